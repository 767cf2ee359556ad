"""Guessing without a model: lists of likely next tokens, blended and grown into one tree.

Owns: the seam `Guesser` and `GuessTree`, the draft source made of guessers. Must not know what kind its guessers
are, or the rule.

All that is proposed here is chosen without chance, so every row is one-hot, and nodes may be ordered and cut at
will. One-hot lists are used above temperature 0 too: a token drawn from the estimated row would be accepted a
little more often than the row's best (Σ min(p, q) against p of the best), but the second and third choice then
cannot be ordered across the whole tree, which is worth more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from heapq import heappop, heappush
from operator import itemgetter
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from specviz.drafts import Observation
from specviz.sampling import Sampler, one_hot, top_candidates
from specviz.verify import ROOT, TokenTree

TAIL = 8
"""How many of the last tokens a guesser sees."""
NUM_CANDIDATES = 8
MIN_CHANCE = 0.05
"""A node less likely than this to be accepted is not drafted. On a CPU a further row costs a pass 2 to 3 % of its
time, and a pass gives 2 to 3 tokens; so a node must be worth .05 to .09 tokens to pay."""

Ranked = Sequence[tuple[int, float]]


class Guess(NamedTuple):
    """`ranked`: (token, probability), likeliest first. `level`: how well the context is known, 0 not at all."""

    level: int
    ranked: Ranked


class Guesser(Protocol):
    """Lists what may follow a text. One object serves one lane of one run at a time."""

    name: str

    def start(self, context_ids: Sequence[int]) -> None:
        """Forget the last run and read the prompt."""

    def extend(self, token_ids: Sequence[int]) -> None:
        """Read what was committed since."""

    def guess(self, tail: tuple[int, ...]) -> Guess:
        """What may follow a text that ends in `tail` (at most `TAIL` ids)."""

    def learn(self, tails: Sequence[tuple[int, ...]], tops: Sequence[Ranked]) -> None:
        """The target itself expects `tops[i]` behind a text that ends in `tails[i]`."""


Weights = Mapping[tuple[int, ...], Sequence[float]]
"""The guessers' levels → what each guesser's list is worth then; summing to 1."""


class Blend:
    """How far to trust each guesser, by how well each of them knows the context.

    Interpolation with weights by situation (Jelinek & Mercer 1980): p(x) = Σ weightᵢ · pᵢ(x). Situations without
    weights share evenly among the guessers that know the context.
    """

    def __init__(self, weights: Weights) -> None:
        self._weights = weights

    def merge(self, guesses: Sequence[Guess]) -> list[tuple[int, float]]:
        """One ranked list of at most `NUM_CANDIDATES` tokens."""
        levels = tuple([guess.level for guess in guesses])
        weights = self._weights.get(levels) or even_weights(levels)
        chances: dict[int, float] = {}
        for weight, guess in zip(weights, guesses, strict=True):
            for token_id, chance in guess.ranked:
                chances[token_id] = chances.get(token_id, 0.0) + weight * chance
        return sorted(chances.items(), key=itemgetter(1), reverse=True)[:NUM_CANDIDATES]


def even_weights(levels: Sequence[int]) -> list[float]:
    """The same for each guesser that knows the context."""
    num_known = sum(level > 0 for level in levels)
    return [(level > 0) / max(1, num_known) for level in levels]


class _Site(NamedTuple):
    """A place in the tree where children can be added: behind `node`, whose path has this chance of acceptance."""

    node: int
    tail: tuple[int, ...]
    chance: float
    guesses: Sequence[Guess]
    ranked: Ranked


_Queue = list[tuple[float, int, int, _Site]]
"""A heap of children that may be added: (negative chance, node, place in its ranked list, its site)."""


class GuessTree:
    """A draft source made of guessers: the likeliest paths first, inside the budget.

    A node's chance is the product of the blended probabilities on its path; the node with the greatest chance is
    added until the budget is used or nothing left is worth its row (`MIN_CHANCE`). So the tree of a smaller budget
    is the beginning of that of a larger one, and a sure path grows long where an unsure one grows wide.
    """

    wants_hidden = False

    def __init__(self, guessers: Sequence[Guesser], blend: Blend, min_chance: float = MIN_CHANCE) -> None:
        self._guessers = tuple(guessers)
        self.names = tuple(dict.fromkeys(guesser.name for guesser in guessers))
        self._proposers = [self.names.index(guesser.name) for guesser in guessers]
        self._blend, self._min_chance = blend, min_chance
        self._tail: tuple[int, ...] = ()
        self._num_read = 0
        self._sampler: Sampler

    def start(self, context_ids: list[int], sampler: Sampler, cancelled: Callable[[], bool]) -> None:
        del cancelled
        self._sampler = sampler
        self._tail, self._num_read = tuple(context_ids[-TAIL:]), len(context_ids)
        for guesser in self._guessers:
            guesser.start(context_ids)

    def propose(self, context_ids: list[int], budget: int, generator: torch.Generator) -> TokenTree:
        del generator
        self._read(context_ids)
        tree, queue = TokenTree(), _Queue()
        self._offer(queue, self._site(ROOT, self._tail, 1.0), 0)
        while queue and len(tree) < budget:
            _, _, place, site = heappop(queue)
            token_id, share = site.ranked[place]
            row = one_hot(token_id, self._sampler)
            node = tree.add(token_id, site.node, row, self._proposer(site, token_id), site.ranked)
            self._offer(queue, site, place + 1)
            if len(tree) < budget:
                self._offer(queue, self._site(node, _append(site.tail, token_id), site.chance * share), 0)
        return tree

    def observe(self, seen: Observation) -> None:
        """Tell every guesser what the target expects behind the root and behind every node.

        Those on the accepted path come last, so that what is kept of an end that stood on both sides is theirs.
        """
        tails = [self._tail]
        for token_id, parent in zip(seen.tree.token_ids, seen.tree.parents, strict=True):
            tails.append(_append(tails[parent + 1], token_id))
        tops = likeliest(seen.logits)
        on_path = [0, *(node + 1 for node in seen.path)]
        order = [*(set(range(len(tails))) - set(on_path)), *on_path]
        self.learn([tails[row] for row in order], [tops[row] for row in order])

    def learn(self, tails: Sequence[tuple[int, ...]], tops: Sequence[Ranked]) -> None:
        """Tell every guesser what the target expects behind each tail."""
        for guesser in self._guessers:
            guesser.learn(tails, tops)

    def _read(self, context_ids: list[int]) -> None:
        """Let every guesser read what is new in the text."""
        fresh = context_ids[self._num_read :]
        self._tail, self._num_read = tuple(context_ids[-TAIL:]), len(context_ids)
        for guesser in self._guessers:
            guesser.extend(fresh)

    def _site(self, node: int, tail: tuple[int, ...], chance: float) -> _Site:
        guesses = [guesser.guess(tail) for guesser in self._guessers]
        return _Site(node, tail, chance, guesses, self._blend.merge(guesses))

    def _offer(self, queue: _Queue, site: _Site, place: int) -> None:
        """Queue a site's child where it has one that is worth a row."""
        if place < len(site.ranked):
            chance = site.chance * site.ranked[place][1]
            if chance >= self._min_chance:
                heappush(queue, (-chance, site.node, place, site))

    def _proposer(self, site: _Site, token_id: int) -> int:
        """Whoever gives the token the greatest probability; the first, if equal."""
        chances = [dict(guess.ranked).get(token_id, 0.0) for guess in site.guesses]
        return self._proposers[chances.index(max(chances))]


def _append(tail: tuple[int, ...], token_id: int) -> tuple[int, ...]:
    return (*tail[1 - TAIL :], token_id)


def likeliest(logits: Tensor) -> list[Ranked]:
    """The `NUM_CANDIDATES` likeliest tokens of each row, from logits of shape (rows, vocab)."""
    values, ids = top_candidates(torch.softmax(logits, -1), NUM_CANDIDATES)
    return [list(zip(i, v, strict=True)) for i, v in zip(ids.tolist(), values.tolist(), strict=True)]
