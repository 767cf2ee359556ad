"""From what a target wrote to counts: how likely each token is behind the last one, two, three or four.

Owns: averaging the target's own distributions over all occurrences of a context, smoothing, pruning to a size.
Must not know files of chats or drafts in use.

A plain count sees the one token that was drawn; the target's 16 largest probabilities at each occurrence say much
more, and most contexts are rare. With contexts of up to three tokens, on 21,000 held-out ones: agreement .371 from
averaged distributions against .361 from counts of tokens, and half a nat more likely on average.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from specviz.distill.store import Chat
from specviz.drafts.ngram import MAX_ORDER, NgramTable, context_keys, encode_probabilities

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

USER_WEIGHT = 0.5
"""Of a position in a user's turn; one in an answer counts 1."""
PRIOR = 3.0
"""Occurrences that the next shorter context stands for when a context is smoothed with it."""
MIN_SIGHTINGS = (1, 1, 1, 2)
"""How often a context of 1 to 4 tokens must occur to be kept."""
_MIN_SHARE = 0.005
_WIDTH = 16
_MIN_KEPT = 0.01
_MAX_KEPT = 8
_BYTES_A_CONTEXT = 8
_MARGIN = 65_536  # for the header and the weights in it
_UNSEEN = 1e-4
_NONE = -1


@dataclass(frozen=True, eq=False)
class Sightings:
    """Every position of the chats where the target's expectation is known, n in all.

    `before[i]` (n,) are the ids i + 1 places back, -1 where there is none; `top_ids` and `shares` (n, candidates)
    the target's distribution; `weights` (n,).
    """

    before: tuple[Ints, ...]
    top_ids: Ints
    shares: Floats
    weights: Floats

    @classmethod
    def of(cls, chats: Sequence[Chat]) -> Sightings:
        return cls(
            before=tuple(np.concatenate([_shifted(chat, i + 1) for chat in chats]) for i in range(MAX_ORDER)),
            top_ids=np.concatenate([chat.top_ids for chat in chats]),
            shares=np.exp(np.concatenate([chat.top_logps for chat in chats]).astype(np.float64)),
            weights=np.concatenate([_weights(chat) for chat in chats]),
        )

    def chosen(self, mask: npt.NDArray[np.bool_]) -> Sightings:
        """Those where `mask` (n,) is true."""
        before = tuple(ids[mask] for ids in self.before)
        return Sightings(before, self.top_ids[mask], self.shares[mask], self.weights[mask])


def _shifted(chat: Chat, back: int) -> Ints:
    places = np.arange(chat.first_row, len(chat.ids)) - back
    return np.where(places >= 0, chat.ids[np.maximum(places, 0)], _NONE)


def _weights(chat: Chat) -> Floats:
    in_answer = np.arange(chat.first_row, len(chat.ids)) >= chat.answer_start
    return np.where(in_answer, 1.0, USER_WEIGHT)


@dataclass(frozen=True, eq=False)
class _Level:
    """The contexts of one length: sorted `keys` (contexts,), `ids` and `shares` (contexts, _WIDTH), best first.

    `gains` (contexts,) say how many nats all occurrences of a context gain over the next shorter one.
    """

    keys: npt.NDArray[np.uint32]
    ids: Ints
    shares: Floats
    gains: Floats

    def find(self, keys: npt.NDArray[np.uint32]) -> Ints:
        """Where each key stands, -1 where it is unknown."""
        places = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        return np.where(self.keys[places] == keys, places, _NONE)


def count(chats: Sequence[Chat], *, vocab_size: int, stamp: str, max_bytes: int) -> NgramTable:
    """Counts of the `chats` in at most `max_bytes`, of the contexts that tell most; equal for equal chats."""
    sightings = Sightings.of(chats)
    levels: list[_Level] = []
    for length, least in enumerate(MIN_SIGHTINGS, start=1):
        known = _met(sightings, length, least)
        if not len(known.weights):
            break
        levels.append(_level(known, length, levels[-1] if levels else None))
    return _pruned(levels, vocab_size, stamp, max_bytes)


def _met(sightings: Sightings, length: int, least: int) -> Sightings:
    """Those behind a context of `length` tokens that occurs at least so often."""
    sightings = sightings.chosen(sightings.before[length - 1] != _NONE)
    _, which, num = np.unique(context_keys(sightings.before[:length]), return_inverse=True, return_counts=True)
    return sightings.chosen(num[which] >= least)


def _level(sightings: Sightings, length: int, shorter: _Level | None) -> _Level:
    """The target's distributions behind contexts of `length` tokens, averaged, smoothed with the shorter ones'."""
    keys = context_keys(sightings.before[:length])
    contexts, first, which = np.unique(keys, return_index=True, return_inverse=True)
    pairs, masses = _masses(which, sightings)
    seen = np.bincount(which, weights=sightings.weights, minlength=len(contexts))
    if shorter is None:
        return _ranked(contexts, pairs, masses / (seen + 1)[pairs >> 32], np.full(len(contexts), np.inf))
    shorter_keys = context_keys([ids[first] for ids in sightings.before[: length - 1]])
    prior_pairs, prior = _lists(shorter, shorter.find(shorter_keys))
    none = np.zeros(len(pairs)), np.zeros(len(prior))
    both = np.concatenate([pairs, prior_pairs])
    pairs, (masses, prior) = _sum_equal(both, np.concatenate([masses, none[1]]), np.concatenate([none[0], prior]))
    shares = (masses + PRIOR * prior) / (seen + PRIOR)[pairs >> 32]
    gains = masses * np.log(shares / np.maximum(prior, _UNSEEN))
    total: Floats = np.bincount(pairs >> 32, weights=gains, minlength=len(contexts)).astype(np.float64)
    return _ranked(contexts, pairs, shares, total)


def _masses(which: Ints, sightings: Sightings) -> tuple[Ints, Floats]:
    """(context << 32 | token, summed weight × probability), for all that the target ever expected there."""
    shares = sightings.shares * sightings.weights[:, None]
    likely = sightings.shares >= _MIN_SHARE
    pairs = (which[:, None].astype(np.int64) << 32) | sightings.top_ids
    pairs, (masses,) = _sum_equal(pairs[likely], shares[likely])
    return pairs, masses


def _sum_equal(keys: Ints, *columns: Floats) -> tuple[Ints, list[Floats]]:
    """Sorted distinct keys with the sums of their values in each column."""
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    first = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
    return keys[first], [np.add.reduceat(values[order], first) for values in columns]


def _lists(level: _Level, places: Ints) -> tuple[Ints, Floats]:
    """What stands at `places` (contexts,) of a level: (context << 32 | token, share); nothing where it is -1."""
    context = np.flatnonzero(places != _NONE)
    ids, shares = level.ids[places[context]], level.shares[places[context]]
    pairs = (context[:, None] << 32) | ids
    filled = ids != _NONE
    return pairs[filled], shares[filled]


def _ranked(contexts: npt.NDArray[np.uint32], pairs: Ints, shares: Floats, gains: Floats) -> _Level:
    """The best few of each context's pairs."""
    order = np.lexsort((-shares, pairs >> 32))
    which, tokens, shares = pairs[order] >> 32, pairs[order] & 0xFFFFFFFF, shares[order]
    starts = np.searchsorted(which, np.arange(len(contexts)))
    rank = np.arange(len(which)) - starts[which]
    kept = rank < _WIDTH
    ids = np.full((len(contexts), _WIDTH), _NONE, np.int64)
    best = np.zeros((len(contexts), _WIDTH))
    ids[which[kept], rank[kept]] = tokens[kept]
    best[which[kept], rank[kept]] = shares[kept]
    return _Level(contexts, ids, best, gains)


def _pruned(levels: list[_Level], vocab_size: int, stamp: str, max_bytes: int) -> NgramTable:
    """The contexts that gain most for their bytes, of all lengths, in one table."""
    id_type = np.uint16 if vocab_size <= 1 << 16 else np.uint32
    keys = np.concatenate([level.keys for level in levels])
    ids = np.concatenate([level.ids[:, :_MAX_KEPT] for level in levels])
    shares = np.concatenate([level.shares[:, :_MAX_KEPT] for level in levels])
    kept = (ids != _NONE) & (shares >= _MIN_KEPT)
    sizes = kept.sum(1)
    num_bytes = _BYTES_A_CONTEXT + sizes * (1 + np.dtype(id_type).itemsize)
    worth = np.where(sizes > 0, np.concatenate([level.gains for level in levels]) / num_bytes, -np.inf)
    order = np.argsort(-worth, kind="stable")
    order = order[(worth[order] > 0) & (num_bytes[order].cumsum() <= max_bytes - _MARGIN)]
    _, first = np.unique(keys[order], return_index=True)  # of two with one hash the better one
    chosen = order[first]
    starts = np.concatenate([[0], sizes[chosen].cumsum()]).astype(np.uint32)
    inside = kept[chosen]
    return NgramTable(
        keys=keys[chosen],
        starts=starts,
        ids=ids[chosen][inside].astype(id_type),
        codes=encode_probabilities(shares[chosen][inside]),
        order=len(levels),
        stamp=stamp,
        notes={},
    )
