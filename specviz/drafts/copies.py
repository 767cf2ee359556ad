"""What followed the same last words earlier in this text: prompt lookup as one guesser among others.

Owns: `CopyGuesser`. Must not know trees or other guessers.
"""

from __future__ import annotations

from collections.abc import Sequence

from specviz.drafts.guess import TAIL, Guess

_LEVELS = (0, 1, 2, 3, 3, 4, 4, 4, 5)  # by tokens matched, 0 to `TAIL`


class CopyGuesser:
    """The token behind the latest earlier place that ends in the same `TAIL` tokens or fewer, longest match first.

    The level grows with the match. In the middle of a copy every node finds its own match, so copies go on by
    themselves, over the end of the text too where it repeats itself.
    """

    name = "lookup"

    def __init__(self) -> None:
        self._behind: dict[tuple[int, ...], int] = {}
        self._last: tuple[int, ...] = ()

    def start(self, context_ids: Sequence[int]) -> None:
        self._behind.clear()
        self._last = ()
        self.extend(context_ids)

    def extend(self, token_ids: Sequence[int]) -> None:
        """Note for each end of up to `TAIL` tokens what came behind it."""
        for token_id in token_ids:
            last = self._last
            for start in range(len(last)):
                self._behind[last[start:]] = token_id
            self._last = (*last[1 - TAIL :], token_id)

    def guess(self, tail: tuple[int, ...]) -> Guess:
        for start in range(len(tail)):
            token_id = self._behind.get(tail[start:])
            if token_id is not None:
                return Guess(_LEVELS[len(tail) - start], [(token_id, 1.0)])
        return Guess(0, [])

    def learn(self, tails: Sequence[tuple[int, ...]], tops: Sequence[Sequence[tuple[int, float]]]) -> None:
        """Only the text itself counts."""
