"""Timing things side by side on a machine that is never quite quiet.

Owns: rounds in rotated order with the warm-up dropped, spreads, ratios pair by pair. Must not know what is
measured.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Spread:
    """The median of `num` values and the range that they lie in."""

    median: float
    low: float
    high: float
    num: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(statistics.median(values), min(values), max(values), len(values))


def in_turn(
    jobs: Mapping[str, Callable[[int], T]], num_rounds: int, *, num_warm_up: int = 1
) -> dict[str, list[T]]:
    """Each job once a round, another one first in every round; the results of warm-up rounds are dropped.

    A job gets the number of its round, from 0; warm-up rounds are numbered like the first ones.
    """
    names = list(jobs)
    results: dict[str, list[T]] = {name: [] for name in names}
    for place in range(num_warm_up + num_rounds):
        index = place - num_warm_up if place >= num_warm_up else place
        for name in rotated(names, place):
            result = jobs[name](index)
            if place >= num_warm_up:
                results[name].append(result)
    return results


def rotated(items: Sequence[T], place: int) -> list[T]:
    """The same in a circle, another one first for each `place`."""
    first = place % len(items)
    return [*items[first:], *items[:first]]


def ratios(over: Sequence[float], under: Sequence[float]) -> list[float]:
    """over ÷ under for values of the same round, so that what slows a round slows both."""
    return [a / b for a, b in zip(over, under, strict=True)]
