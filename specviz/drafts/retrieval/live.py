"""The text being written, prompt and own output, and where its end stood before in it.

Owns: `LiveText`. Must not know references, drafts or rules.

For every earlier place that holds the last token it keeps how far the match reaches back. A new token makes
each of those lengths one more where the place behind it holds the same token, and forgets the others. So the
longest match is known exactly at any time, for one sweep of numpy over the text per token: what a suffix automaton
would give through a walk of Python's, and with all places and their order at hand. The sweep
grows with the text, as the walk would not.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from specviz.drafts.retrieval.match import MAX_MATCH, MAX_PLACES, Match
from specviz.trace import OUTPUT, PROMPT


class LiveText:
    """Grows by `extend`. `prompt` and `output` say which part may be copied from."""

    def __init__(self, prompt_ids: Sequence[int], *, prompt: bool = True, output: bool = True) -> None:
        self._num = self._num_prompt = len(prompt_ids)
        self._ids = np.array(prompt_ids, dtype=np.int64)
        self._reach = np.zeros(self._num, dtype=np.int64)  # 0 but at `_ends`
        self._allowed = (0 if prompt else self._num_prompt, None if output else self._num_prompt)
        self._ends = self._first_ends()

    def __len__(self) -> int:
        return self._num

    def extend(self, token_ids: Sequence[int]) -> None:
        """Append ids that came to be."""
        for token_id in token_ids:
            self._append(token_id)

    def match(self, min_match: int) -> Match | None:
        """The longest earlier occurrence of the text's end, at most its `MAX_PLACES` latest places."""
        low, high = np.searchsorted(self._ends, [bound - 1 for bound in self._bounds()])
        ends = self._ends[low:high]
        reach = self._reach[ends]
        length = int(reach.max(initial=0))
        if length < max(min_match, 1):
            return None
        return Match(self, length, ends[reach == length][-MAX_PLACES:] + 1)

    def run(self, places: NDArray[np.int64], num: int) -> NDArray[np.int64]:
        """As `Text.run`. A copy that reaches the end of the text goes on with what it has copied."""
        behind = self._bounds()[1]
        return places[:, None] + np.arange(num) % (behind - places[:, None])

    def read(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """As `Text.read`."""
        return self._ids[places]

    def locate(self, place: int) -> tuple[str, int]:
        """As `Text.locate`."""
        in_prompt = place < self._num_prompt
        return (PROMPT, place) if in_prompt else (OUTPUT, place - self._num_prompt)

    def _bounds(self) -> tuple[int, int]:
        """The places that may be copied from, as a range."""
        low, high = self._allowed
        return low, self._num if high is None else high

    def _first_ends(self) -> NDArray[np.int64]:
        """The same as appending the prompt token by token, in one go: reach back from each place at once."""
        if not self._num:
            return np.zeros(0, dtype=np.int64)
        last = self._num - 1
        ends = alive = np.flatnonzero(self._ids[:last] == self._ids[last])
        reach = 0
        while len(alive) and reach < MAX_MATCH:
            reach += 1
            self._reach[alive] = reach
            alive = alive[alive >= reach]
            alive = alive[self._ids[alive - reach] == self._ids[last - reach]]
        return ends

    def _append(self, token_id: int) -> None:
        if self._num == len(self._ids):
            self._ids, self._reach = (
                np.concatenate([a, np.zeros(len(a) + 64, a.dtype)]) for a in (self._ids, self._reach)
            )
        ends = np.flatnonzero(self._ids[: self._num] == token_id)
        reach = np.where(ends > 0, self._reach[ends - 1], 0) + 1
        self._reach[self._ends] = 0
        self._reach[ends] = np.minimum(reach, MAX_MATCH)
        self._ids[self._num] = token_id
        self._num += 1
        self._ends = ends
