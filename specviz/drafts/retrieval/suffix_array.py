"""The end of a text looked up in texts that do not change: a suffix array over their reversed tokens.

Owns: sorting (`sorted_suffixes`) and searching (`SuffixArray`). Must not know files, tokenizers, drafts or rules.

The array sorts the *ends* of all beginnings of the texts, read backwards. So the longest match of a text's end
stands beside the place where that end would be sorted in, and all equal matches lie together: three binary
searches find them, however long either text is.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from specviz.drafts.retrieval.match import MAX_MATCH, MAX_PLACES

SEPARATOR = 0  # behind every document; a token is stored as its id + 1
TOKEN = np.dtype(">u4")  # big-endian, so that bytes sort as tokens do
PLACE = np.dtype("<u4")
NO_TOKEN = -1


def reversed_tokens(documents: Sequence[Sequence[int] | NDArray[np.int64]]) -> NDArray[np.uint32]:
    """The documents one behind the other, a separator after each, all read backwards; `TOKEN`s of shape (n,)."""
    parts = [np.append(np.asarray(ids, dtype=np.int64) + 1, SEPARATOR) for ids in documents]
    whole = np.concatenate([np.zeros(0, dtype=np.int64), *parts])
    return whole[::-1].astype(TOKEN)


def sorted_suffixes(tokens: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Starts of the suffixes of `tokens` in the order of their first `MAX_MATCH` tokens, separators' left out.

    Prefix doubling (Manber & Myers 1993): a suffix known by its first h tokens is sorted by 2h tokens with the
    rank of the suffix h further on. The first rank packs as many tokens as fit into 63 bits, and only suffixes
    that still share a rank are sorted again (Larsson & Sadakane 1999). A suffix is left out, too, where it
    starts a document's reversed text: nothing follows the end of a document, so there is nothing to copy.
    """
    num = len(tokens)
    rank, known = _packed_ranks(tokens)
    order = np.argsort(rank).astype(np.int64)
    rank = _dense(rank, order)
    groups = np.flatnonzero(_shared(rank[order]))
    while known < MAX_MATCH and len(groups):
        members = order[groups]
        key = rank[members] * (num + 1) + _rank_behind(rank, members + known)
        resorted = np.argsort(key)
        order[groups], key = members[resorted], key[resorted]
        _split(rank, order, groups, key)
        groups = groups[_shared(key)]
        known *= 2
    kept = (tokens[order] != SEPARATOR) & (tokens[order - 1] != SEPARATOR)
    places: NDArray[np.uint32] = order[kept].astype(PLACE)
    return places


def _packed_ranks(tokens: NDArray[np.uint32]) -> tuple[NDArray[np.int64], int]:
    """(a first rank of each suffix, by how many tokens it ranks), of shape (n,)."""
    bits = max(int(tokens.max(initial=1)).bit_length(), 1)
    width = 63 // bits
    padded = np.concatenate([tokens.astype(np.int64), np.zeros(width, dtype=np.int64)])
    rank = np.zeros(len(tokens), dtype=np.int64)
    for i in range(width):
        rank = (rank << bits) | padded[i : i + len(tokens)]
    return rank, width


def _dense(rank: NDArray[np.int64], order: NDArray[np.int64]) -> NDArray[np.int64]:
    """Ranks as the place of the first of their group in `order`, counted from 1 (0 is: behind the end)."""
    dense = np.empty_like(rank)
    dense[order] = _first_of_group(rank[order]) + 1
    return dense


def _first_of_group(key: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each place of a sorted key, the first place that holds the same."""
    starts = np.concatenate([[True], key[1:] != key[:-1]])[: len(key)]
    return np.maximum.accumulate(np.where(starts, np.arange(len(key)), 0))


def _shared(key: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which places of a sorted key have an equal neighbour."""
    same: NDArray[np.bool_] = key[1:] == key[:-1]
    return np.concatenate([[False], same]) | np.concatenate([same, [False]]) if len(key) else same


def _rank_behind(rank: NDArray[np.int64], places: NDArray[np.int64]) -> NDArray[np.int64]:
    inside = places < len(rank)
    return np.where(inside, rank[np.where(inside, places, 0)], 0)


def _split(
    rank: NDArray[np.int64], order: NDArray[np.int64], groups: NDArray[np.int64], key: NDArray[np.int64]
) -> None:
    """Give the members of each old group, now sorted by `key`, the ranks of their new groups, in place."""
    rank[order[groups]] = groups[_first_of_group(key)] + 1


class SuffixArray:
    """Finds the longest match of a text's end in fixed texts, and reads on behind it.

    `backwards` holds reversed tokens (`TOKEN`s of shape (n,)), `sorted_places` their sorted suffixes (`PLACE`s
    of shape (entries,)); both may be mapped from a file. Outside this class a place counts forwards. A match
    never reaches over a separator, since no text holds one.
    """

    def __init__(self, backwards: NDArray[np.uint32], sorted_places: NDArray[np.uint32]) -> None:
        self._backwards, self._sorted = backwards, sorted_places

    @classmethod
    def of(cls, documents: Sequence[Sequence[int] | NDArray[np.int64]]) -> SuffixArray:
        """Index token ids, document by document."""
        backwards = reversed_tokens(documents)
        return cls(backwards, sorted_suffixes(backwards))

    def __len__(self) -> int:
        return len(self._backwards)

    def longest(self, context_ids: Sequence[int], min_match: int) -> tuple[int, NDArray[np.int64]]:
        """(length, places that follow the matches, ascending); (0, none) below `min_match` tokens.

        Lengths are counted up to `MAX_MATCH`. Of more than `MAX_PLACES` places an even share is returned.
        """
        nothing = 0, np.zeros(0, dtype=np.int64)
        end = (np.array(context_ids[-MAX_MATCH:], dtype=np.int64)[::-1] + 1).astype(TOKEN)
        if len(end) < min_match or not len(self._sorted):
            return nothing
        place = bisect_left(self._sorted, end.tobytes(), key=self._reader(len(end)))
        beside = self._sorted[max(place - 1, 0) : place + 1].tolist()
        length = max(_num_equal(self._backwards[p : p + len(end)], end) for p in beside)
        if length < max(min_match, 1):
            return nothing
        found, read = end[:length].tobytes(), self._reader(length)
        low = bisect_left(self._sorted, found, hi=place, key=read)
        high = bisect_right(self._sorted, found, lo=place, key=read)
        chosen = np.linspace(low, high - 1, min(high - low, MAX_PLACES)).astype(np.int64)
        return length, np.sort(len(self) - self._sorted[chosen].astype(np.int64))

    def read(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Token ids at forward places, any shape; `NO_TOKEN` at a separator and behind the end."""
        inside = np.clip(len(self) - 1 - places, 0, None)
        return self._backwards[inside].astype(np.int64) - 1

    def _reader(self, length: int) -> Callable[[int], bytes]:
        def read(place: int) -> bytes:
            return self._backwards[place : int(place) + length].tobytes()

        return read


def _num_equal(ours: NDArray[np.uint32], theirs: NDArray[np.uint32]) -> int:
    """How many leading tokens agree."""
    size = min(len(ours), len(theirs))
    unlike = np.flatnonzero(ours[:size] != theirs[:size])
    return int(unlike[0]) if len(unlike) else size
