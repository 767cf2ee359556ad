"""How far a copy is trusted: a fixed number of tokens, or what accepted and rejected copies have taught.

Owns: `CopyLength`. Must not know texts or the rule; past steps only, so the law of the output stays.
"""

from __future__ import annotations

from bisect import bisect_right

from specviz.config import MAX_DRAFT_LEN, DraftLen

SURE = 0.95
"""How likely each token of a copy of fixed length is taken to hold."""
_CLASSES = (1, 2, 3, 4, 8, 16)
_IMAGINED = ((2, 4), (4, 4), (8, 4), (12, 4), (24, 2), (48, 2))
"""For each class of match lengths: tokens that held and copies that broke, before anything is seen."""
_MEMORY = 0.8


class CopyLength:
    """Says how likely the next token of a copy is to hold, given how long the match behind it was.

    LLMA copies a fixed number, about 20 tokens (Yang et al. 2304.04487, §3.2): right in a long quotation, a waste
    where two words happen to agree. So `auto` counts, for each class of match lengths, the tokens that held and
    the copies that broke, the latest weighing most; whoever plans a copy goes on while it is likely enough.
    """

    def __init__(self, setting: DraftLen) -> None:
        self._is_auto = setting == "auto"
        self.most = MAX_DRAFT_LEN if setting == "auto" else int(setting)
        self._seen: list[tuple[float, float]]
        self.reset()

    def reset(self) -> None:
        """A new run begins."""
        self._seen = [(0.0, 0.0)] * len(_CLASSES)

    def keeps(self, match_len: int) -> float:
        """The likelihood that a token holds where all before it did."""
        if not self._is_auto:
            return SURE
        place = _class_of(match_len)
        held, broken = (sum(pair) for pair in zip(self._seen[place], _IMAGINED[place], strict=True))
        return held / (held + broken)

    def observe(self, match_len: int, num_copied: int, num_held: int) -> None:
        """A copy behind a match was verified: `num_copied` tokens in depth, of which the first `num_held` held."""
        if num_copied:
            held, broken = self._seen[_class_of(match_len)]
            seen = (_MEMORY * held + num_held, _MEMORY * broken + (num_held < num_copied))
            self._seen[_class_of(match_len)] = seen


def _class_of(match_len: int) -> int:
    return bisect_right(_CLASSES, max(match_len, 1)) - 1
