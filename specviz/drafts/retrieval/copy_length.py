"""How many tokens to copy: a fixed number, or one that follows what was accepted.

Owns: `CopyLength`. Must not know texts or the rule; past steps only, so the law of the output stays.
"""

from __future__ import annotations

from specviz.config import MAX_DRAFT_LEN, DraftLen

FIRST_COPY = 8
MIN_COPY = 2


class CopyLength:
    """`auto` doubles behind a copy that was accepted whole; else it goes half the way to what held, and one more.

    LLMA copies a fixed number, about 20 tokens (Yang et al. 2304.04487, §3.2): right in a long quotation,
    a waste where copies are short.
    """

    def __init__(self, setting: DraftLen) -> None:
        self._fixed = None if setting == "auto" else int(setting)
        self._auto = FIRST_COPY

    def reset(self) -> None:
        """A new run begins."""
        self._auto = FIRST_COPY

    def next_len(self) -> int:
        """Tokens to copy in the coming step."""
        return self._auto if self._fixed is None else self._fixed

    def observe(self, num_copied: int, num_accepted: int) -> None:
        """A copy of `num_copied` tokens in depth was verified; its first `num_accepted` held."""
        if not num_copied:
            return
        if num_accepted == num_copied:
            self._auto = min(max(self._auto, 2 * num_copied), MAX_DRAFT_LEN)
        else:
            self._auto = max((self._auto + num_accepted + 1) // 2, MIN_COPY)
