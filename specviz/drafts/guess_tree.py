"""A draft source made of guessers: their blended lists, grown into one tree.

Owns: `GuessTree`. Must not know what kinds of guessers there are, how a tree grows, or the rule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from specviz.drafts import Observation
from specviz.drafts.growth import Child, DrawnGrowth, Growth, Site, SureGrowth
from specviz.drafts.guess import TAIL, Blend, Guesser, Ranked, likeliest
from specviz.sampling import Sampler
from specviz.verify import ROOT, TokenTree

MIN_CHANCE = 0.05
"""A node less likely than this to be accepted is not drafted. On a CPU a further row costs a pass 2 to 3 % of its
time, and a pass gives 2 to 3 tokens; so a node must be worth .05 to .09 tokens to pay."""


class GuessTree:
    """Grows the node with the greatest chance next, until the budget is used or nothing left is worth its row.

    So the tree of a smaller budget is the beginning of that of a larger one, and a sure path grows long where an
    unsure one grows wide.
    """

    wants_hidden = False

    def __init__(
        self,
        guessers: Sequence[Guesser],
        blend: Blend,
        sampled: Blend | None = None,
        min_chance: float = MIN_CHANCE,
    ) -> None:
        """`sampled` is the blend above temperature 0, where the best guess is right less often; else `blend`."""
        self._guessers = tuple(guessers)
        self.names = tuple(dict.fromkeys(guesser.name for guesser in guessers))
        self._proposers = [self.names.index(guesser.name) for guesser in guessers]
        self._blends, self._min_chance = (blend, sampled or blend), min_chance
        self._tail: tuple[int, ...] = ()
        self._num_read = 0
        self._blend = blend
        self._sampler: Sampler

    def start(self, context_ids: list[int], sampler: Sampler, cancelled: Callable[[], bool]) -> None:
        del cancelled
        self._sampler, self._blend = sampler, self._blends[sampler.config.temperature > 0]
        self._tail, self._num_read = tuple(context_ids[-TAIL:]), len(context_ids)
        for guesser in self._guessers:
            guesser.start(context_ids)

    def propose(self, context_ids: list[int], budget: int, generator: torch.Generator) -> TokenTree:
        self._read(context_ids)
        tree, growth = TokenTree(), self._growth(generator)
        growth.open(self._root(context_ids))
        while len(tree) < budget and (child := growth.take(self._min_chance)):
            site = child.site
            node = tree.add(child.token_id, site.node, child.row, self._proposer(child), site.ranked)
            if len(tree) < budget:
                growth.open(self._site(node, _append(site.tail, child.token_id), child.chance))
        return tree

    def _growth(self, generator: torch.Generator) -> Growth:
        is_greedy = self._sampler.config.temperature == 0
        return SureGrowth(self._sampler) if is_greedy else DrawnGrowth(self._sampler, generator)

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

    def _root(self, context_ids: list[int]) -> Site:
        """The site behind the committed text."""
        del context_ids  # for those who read more of it than its tail
        return self._site(ROOT, self._tail, 1.0)

    def _site(self, node: int, tail: tuple[int, ...], chance: float) -> Site:
        guesses = [guesser.guess(tail) for guesser in self._guessers]
        return Site(node, tail, chance, guesses, self._blend.merge(guesses))

    def _proposer(self, child: Child) -> int:
        """Whoever gives the token the greatest probability; the first, if equal."""
        chances = [dict(guess.ranked).get(child.token_id, 0.0) for guess in child.site.guesses]
        return self._proposers[chances.index(max(chances))]


def _append(tail: tuple[int, ...], token_id: int) -> tuple[int, ...]:
    return (*tail[1 - TAIL :], token_id)
