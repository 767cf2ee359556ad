"""Token recycling: what the target itself expected at its last visit of the same token or two.

Owns: `RecycledGuesser`. Must not know trees or other guessers.
"""

from __future__ import annotations

from collections.abc import Sequence

from specviz.drafts.guess import Guess, Ranked


class RecycledGuesser:
    """Remembers the target's best candidates behind every end of `num_tokens` tokens that a pass has verified.

    Rejected nodes teach as well: their rows are the target's own for that path (Luo et al. 2408.08696). Kept for
    one run. The level is 1 where the end is known.
    """

    name = "recycle"

    def __init__(self, num_tokens: int) -> None:
        self._num_tokens = num_tokens
        self._expected: dict[tuple[int, ...], Guess] = {}

    def start(self, context_ids: Sequence[int]) -> None:
        del context_ids
        self._expected.clear()

    def extend(self, token_ids: Sequence[int]) -> None:
        """Nothing to take from the text."""

    def guess(self, tail: tuple[int, ...]) -> Guess:
        return self._expected.get(tail[-self._num_tokens :], _NOTHING)

    def learn(self, tails: Sequence[tuple[int, ...]], tops: Sequence[Ranked]) -> None:
        for tail, top in zip(tails, tops, strict=True):
            self._expected[tail[-self._num_tokens :]] = Guess(1, top)


_NOTHING = Guess(0, [])
