"""Exact odds: play something random over every outcome of its draws, each with its exact probability.

A uniform draw is kept as the interval it is known to lie in. Comparing it, or drawing a token with it,
splits the interval, and both sides are played. So nothing is sampled, and one draw used twice is seen to be.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product

import pytest
from torch import Tensor

NEGLIGIBLE = 1e-13


class Odds:
    """One play: choices follow `script`, then always take the first branch that can happen."""

    def __init__(self, script: Sequence[int]) -> None:
        self._script = script
        self.taken: list[int] = []
        self.weights: list[list[float]] = []

    @property
    def probability(self) -> float:
        result = 1.0
        for choice, weights in zip(self.taken, self.weights, strict=True):
            result *= weights[choice]
        return result

    def choose(self, weights: list[float]) -> int:
        place = len(self.taken)
        possible = (i for i, weight in enumerate(weights) if weight > NEGLIGIBLE)
        choice = self._script[place] if place < len(self._script) else next(possible)
        self.taken.append(choice)
        self.weights.append(weights)
        return choice

    def uniform(self, _generator: object = None) -> Uniform:
        return Uniform(self)

    def draw(self, row: Tensor, u: Uniform) -> tuple[int, float, float]:
        """As `sampling.draw`: the token in whose interval of the cumulative sum `u` lies."""
        ends = (row.double().cumsum(0) / row.double().sum()).tolist()
        starts = [0.0, *ends[:-1]]
        token_id = u.within(list(zip(starts, ends, strict=True)))
        return token_id, starts[token_id], ends[token_id]

    def pick(self, row: Tensor) -> int:
        """A token drawn from the row with a uniform of its own."""
        return self.draw(row, self.uniform())[0]

    def unplayed(self) -> Iterator[tuple[int, ...]]:
        """Scripts of the branches that this play left aside behind its own script."""
        for place in range(len(self._script), len(self.taken)):
            for choice in range(self.taken[place] + 1, len(self.weights[place])):
                if self.weights[place][choice] > NEGLIGIBLE:
                    yield (*self.taken[:place], choice)


class Uniform:
    """A uniform draw from [0, 1), known so far to lie in [low, high)."""

    def __init__(self, odds: Odds) -> None:
        self.odds, self.low, self.high = odds, 0.0, 1.0

    def within(self, intervals: list[tuple[float, float]]) -> int:
        """The index of the interval it lies in; they partition [0, 1)."""
        cut = [(max(self.low, low), min(self.high, high)) for low, high in intervals]
        weights = [max(0.0, high - low) / (self.high - self.low) for low, high in cut]
        choice = self.odds.choose(weights)
        self.low, self.high = cut[choice]
        return choice

    def __mul__(self, factor: float) -> Product:
        return Product(self, factor)

    def __lt__(self, bound: float) -> bool:
        return self * 1.0 < bound


class Product:
    """`u * factor`, waiting to be compared."""

    def __init__(self, u: Uniform, factor: float) -> None:
        self._u, self._factor = u, factor

    def __lt__(self, bound: float) -> bool:
        threshold = min(1.0, max(0.0, bound / self._factor))
        return self._u.within([(0.0, threshold), (threshold, 1.0)]) == 0


def law(play: Callable[[Odds], object]) -> dict[object, float]:
    """Result of `play` → its exact probability."""
    result: dict[object, float] = defaultdict(float)
    scripts: list[tuple[int, ...]] = [()]
    while scripts:
        odds = Odds(scripts.pop())
        result[play(odds)] += odds.probability
        scripts.extend(odds.unplayed())
    assert sum(result.values()) == pytest.approx(1.0, abs=1e-9)
    return result


def law_of_text(rows: Callable[[tuple[int, ...]], Sequence[float]], length: int) -> dict[object, float]:
    """The law of `length` tokens drawn one by one from `rows(context)`."""
    result = {}
    for text in product(range(len(rows(()))), repeat=length):
        result[text] = 1.0
        for place, token_id in enumerate(text):
            result[text] *= rows(text[:place])[token_id]
    return result


def variation(ours: Mapping[object, float], theirs: Mapping[object, float]) -> float:
    """Total variation between two laws."""
    return sum(abs(ours.get(key, 0.0) - theirs.get(key, 0.0)) for key in {*ours, *theirs}) / 2
