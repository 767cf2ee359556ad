"""Matches of the text's end and the tree of copies behind them.

Owns: what a match is (`Match`), which of several wins, and how their continuations become branches
(`plan`). Must not know where texts come from, tensors or the rule.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from specviz.trace import Origin

MAX_MATCH = 1024  # tokens; a longer match says no more
MAX_PLACES = 256  # of one match that are looked at
WORTH = 0.03  # the least likelihood for which a further node is drafted: about its share of a pass
ROOT = -1


class Text(Protocol):
    """Something that tokens can be copied from."""

    def run(self, places: NDArray[np.int64], num: int) -> NDArray[np.int64]:
        """Where the next `num` tokens from each place stand, of shape (places, num)."""

    def read(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Token ids at places, same shape; negative where the text has ended."""

    def locate(self, place: int) -> tuple[str, int]:
        """(name of the source, offset in tokens from its start)."""


@dataclass(frozen=True, slots=True)
class Match:
    """The last `length` tokens of the text, found in `text` before each of `places` (ascending)."""

    text: Text
    length: int
    places: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Copy:
    """One node of the planned tree: a token, its parent's index (or `ROOT`), and where it was copied from."""

    token_id: int
    parent: int
    origin: Origin


@dataclass(frozen=True, slots=True)
class _Pool:
    """All continuations of the longest matches, the most recent last: ids and places of shape (rows, num).

    `texts[row]` is where a row was found, `keeps` how likely a token is to hold where all places agree.
    """

    length: int
    keeps: float
    ids: NDArray[np.int64]
    places: NDArray[np.int64]
    texts: list[Text]

    def origin(self, rows: NDArray[np.int64], depth: int) -> Origin:
        """Of places that agree the latest in the first text: a reference, rather than its copy in the prompt."""
        text = self.texts[rows[0]]
        row = next(row for row in rows[::-1] if self.texts[row] is text)
        source, offset = text.locate(int(self.places[row, depth]))
        return Origin(source, offset, self.length)

    def children(
        self, rows: NDArray[np.int64], depth: int, share: float
    ) -> Iterator[tuple[float, int, NDArray[np.int64]]]:
        """(likelihood, most recent row, rows) for each token that follows `rows` at `depth`."""
        if depth == self.ids.shape[1]:
            return
        column = self.ids[rows, depth]
        for token_id in np.unique(column[column >= 0]) if len(rows) > 1 else column[column >= 0]:
            chosen = rows[column == token_id]
            yield share * self.keeps * len(chosen) / len(rows), int(chosen[-1]), chosen


def longest(matches: Iterable[Match]) -> list[Match]:
    """Those of the greatest length, in their order."""
    found = list(matches)
    most = max((match.length for match in found), default=0)
    return [match for match in found if match.length == most]


def plan(matches: Sequence[Match], budget: int, vocab_size: int, keeps: float) -> list[Copy]:
    """The tree of copies behind matches of one length, at most `budget` nodes, parents first.

    Their continuations form a trie, as in REST (He et al. 2311.08252, §3.2); its nodes are taken in the order of
    their likelihood: the share of places that go on so, times `keeps` per token, the most recent first among
    equals, and none below `WORTH` but the first. So places that agree become one chain, and a fork in them a
    fork in the tree. An id outside the vocabulary ends a copy.
    """
    pool = _pool(matches, budget, vocab_size, keeps)
    copies: list[Copy] = []
    heap: list[tuple[float, int, int, int, int, NDArray[np.int64]]] = []
    all_rows, num_pushed = np.arange(len(pool.ids)), 0
    parent, depth, share, rows = ROOT, 0, 1.0, all_rows
    while len(copies) < budget:
        for likelihood, recent, chosen in pool.children(rows, depth, share):
            num_pushed += 1
            heapq.heappush(heap, (-likelihood, -recent, num_pushed, parent, depth, chosen))
        if not heap or (copies and -heap[0][0] < WORTH):
            break
        negative, recent, _, parent, depth, rows = heapq.heappop(heap)
        copies.append(Copy(int(pool.ids[-recent, depth]), parent, pool.origin(rows, depth)))
        parent, depth, share = len(copies) - 1, depth + 1, -negative
    return copies


def _pool(matches: Sequence[Match], budget: int, vocab_size: int, keeps: float) -> _Pool:
    places = [match.text.run(match.places, budget) for match in matches]
    ids = [match.text.read(where) for match, where in zip(matches, places, strict=True)]
    texts = [match.text for match in matches for _ in match.places]
    none = np.zeros((0, budget), dtype=np.int64)
    joined = np.concatenate([none, *ids])
    ended = np.logical_or.accumulate((joined < 0) | (joined >= vocab_size), axis=1)
    length = matches[0].length if matches else 0
    return _Pool(length, keeps, np.where(ended, -1, joined), np.concatenate([none, *places]), texts)
