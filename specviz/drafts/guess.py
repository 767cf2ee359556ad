"""Guessing without a model: lists of likely next tokens, and how several lists become one.

Owns: the seam `Guesser`, `Blend`. Must not know what kinds of guessers there are, trees, or the rule.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from specviz.sampling import top_candidates

TAIL = 8
"""How many of the last tokens a guesser sees."""
NUM_CANDIDATES = 8
NUM_BLENDED = 16
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
        """One ranked list of at most `NUM_BLENDED` tokens."""
        levels = tuple([guess.level for guess in guesses])
        weights = self._weights.get(levels) or even_weights(levels)
        lists = [(weight, guess.ranked) for weight, guess in zip(weights, guesses, strict=True)]
        return ranked_sum(lists, NUM_BLENDED)


def ranked_sum(lists: Sequence[tuple[float, Ranked]], num: int) -> list[tuple[int, float]]:
    """The `num` tokens with the greatest weighted sums of probabilities, likeliest first."""
    chances: dict[int, float] = {}
    for weight, ranked in lists:
        for token_id, chance in ranked:
            chances[token_id] = chances.get(token_id, 0.0) + weight * chance
    return sorted(chances.items(), key=itemgetter(1), reverse=True)[:num]


def even_weights(levels: Sequence[int]) -> list[float]:
    """The same for each guesser that knows the context."""
    num_known = sum(level > 0 for level in levels)
    return [(level > 0) / max(1, num_known) for level in levels]


def likeliest(logits: Tensor) -> list[Ranked]:
    """The `NUM_CANDIDATES` likeliest tokens of each row, from logits of shape (rows, vocab)."""
    values, ids = top_candidates(torch.softmax(logits, -1), NUM_CANDIDATES)
    return [list(zip(i, v, strict=True)) for i, v in zip(ids.tolist(), values.tolist(), strict=True)]
