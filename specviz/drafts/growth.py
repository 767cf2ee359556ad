"""How a tree of guesses grows: which child comes next, and from which row it is proposed.

Owns: `SureGrowth` for temperature 0, `DrawnGrowth` for above. Must not know who guesses, or the rule.

At temperature 0 the best guesses are sure choices, so their rows are one-hot and they may be ordered and cut at
will. Above it tokens are drawn from the list, without replacement. With estimates q of the target's p as good as
blended ones that is accepted more often: Σ min(p, q) against p of the best. On 14,000 sampled tokens of held-out
answers at temperature 1 the first, the first two, the first three children of a node held in .38, .47, .51 of the
cases when drawn, in .30, .39, .45 when taken from the top.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from specviz.drafts.guess import Guess, Ranked
from specviz.sampling import Sampler, draw, one_hot, uniform

_FADE = 0.45
"""A further child of one node, tried where those before it were rejected, holds so much less often."""


class Site(NamedTuple):
    """A place where children can be added: behind `node`, which has this `chance` to be accepted.

    `ranked` is what may follow there, `guesses` where each guesser's part of it came from.
    """

    node: int
    tail: tuple[int, ...]
    chance: float
    guesses: Sequence[Guess]
    ranked: Ranked


class Child(NamedTuple):
    """The next node: proposed from `row` (vocab,) at `site`, with its own `chance` to be accepted."""

    site: Site
    token_id: int
    chance: float
    row: Tensor


class Growth(Protocol):
    """Hands out children, the likeliest first."""

    def open(self, site: Site) -> None:
        """Children may come from here, too."""

    def take(self, least: float) -> Child | None:
        """The next child, or None where none is as likely as `least`."""


class SureGrowth:
    """The best of all lists: a child's chance is that of its site times its probability."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self._queue: list[tuple[float, int, int, Site]] = []

    def open(self, site: Site) -> None:
        self._offer(site, 0)

    def take(self, least: float) -> Child | None:
        if not self._queue or not -self._queue[0][0] >= least:  # a NaN, too, is no chance
            return None
        cost, _, place, site = heappop(self._queue)
        self._offer(site, place + 1)
        token_id = site.ranked[place][0]
        return Child(site, token_id, -cost, one_hot(token_id, self._sampler))

    def _offer(self, site: Site, place: int) -> None:
        if place < len(site.ranked):
            heappush(self._queue, (-site.chance * site.ranked[place][1], site.node, place, site))


class _Urn(NamedTuple):
    """What is left to draw from at a site: `ids` with `shares` that sum to 1. `number` have been drawn before, and
    `reach` is the chance that all of them are rejected."""

    site: Site
    ids: list[int]
    shares: list[float]
    number: int
    reach: float

    @property
    def chance(self) -> float:
        """That the next draw is accepted."""
        return self.site.chance * self.reach * sum(share * self.holds(share) for share in self.shares)

    def holds(self, share: float) -> float:
        """How often a token drawn with probability `share` is accepted when it is tried."""
        return _FADE**self.number * holds(share)


def holds(share: float) -> float:
    """How often the first token drawn at a node is accepted, by the probability it was drawn with.

    E[min(1, p/q)] given q, measured at temperature 1: .24 at .1, .37 at .45, .60 at .65, .81 at .85, .91 at .98.
    """
    return 0.22 + 0.72 * share * share


class DrawnGrowth:
    """Draws without replacement, each token from the list less those drawn before at its site, renormalised.

    Which site is drawn from next follows from the lists and from the tokens already drawn, never from the token to
    come, and nothing drawn is dropped, so the law stays exact.
    """

    def __init__(self, sampler: Sampler, generator: torch.Generator) -> None:
        self._sampler, self._generator = sampler, generator
        self._queue: list[tuple[float, int, int, _Urn]] = []

    def open(self, site: Site) -> None:
        """Probabilities are those of temperature 1; the run's own makes them flatter or sharper."""
        power = 1 / self._sampler.config.temperature
        best = site.ranked[0][1] if site.ranked else 0.0
        ids = [token_id for token_id, chance in site.ranked if chance > 0]
        self._offer(site, ids, [(chance / best) ** power for _, chance in site.ranked if chance > 0], 0, 1.0)

    def take(self, least: float) -> Child | None:
        if not self._queue or not -self._queue[0][0] >= least:  # a NaN, too, is no chance
            return None
        *_, urn = heappop(self._queue)
        shares = torch.tensor(urn.shares)
        place = draw(shares, uniform(self._generator))[0]
        row = torch.zeros(self._sampler.vocab_size)
        row[urn.ids] = shares
        holds_now = urn.holds(urn.shares[place])
        ids, left = urn.ids[:place] + urn.ids[place + 1 :], urn.shares[:place] + urn.shares[place + 1 :]
        self._offer(urn.site, ids, left, urn.number + 1, urn.reach * (1 - holds_now))
        chance = urn.site.chance * urn.reach * holds_now
        return Child(urn.site, urn.ids[place], chance, row.to(self._sampler.device))

    def _offer(self, site: Site, ids: list[int], weights: list[float], number: int, reach: float) -> None:
        total = sum(weights)
        if total > 0:
            urn = _Urn(site, ids, [weight / total for weight in weights], number, reach)
            heappush(self._queue, (-urn.chance, site.node, number, urn))
