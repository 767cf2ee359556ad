"""Prompt lookup: propose what followed the same few words earlier in the text. No model.

Owns: an index of the n-grams of prompt and output. Must not know the rule.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from specviz.drafts import Observation
from specviz.sampling import Sampler, one_hot
from specviz.verify import ROOT, TokenTree


class PromptLookup:
    """Copies behind the most recent earlier match of the text's end, longest n-gram first (Saxena 2023).

    Where the copy reaches the end of the text it goes on with what it has copied, so that a repeated pattern
    is continued. No match is an empty tree.
    """

    names: tuple[str, ...] = ("lookup",)
    wants_hidden = False

    def __init__(self, max_ngram: int = 3, min_ngram: int = 2) -> None:
        self._sizes = range(max_ngram, min_ngram - 1, -1)
        self._places: dict[tuple[int, ...], int] = {}
        self._indexed = 0
        self._sampler: Sampler

    def start(self, context_ids: list[int], sampler: Sampler, cancelled: Callable[[], bool]) -> None:
        del context_ids, cancelled
        self._sampler = sampler
        self._places.clear()
        self._indexed = 0

    def propose(self, context_ids: list[int], budget: int, generator: torch.Generator) -> TokenTree:
        del generator
        self._index(context_ids)
        tree = TokenTree()
        place = self._match(context_ids)
        if place is None:
            return tree
        text, parent = list(context_ids), ROOT
        for token_id in (text[place + i] for i in range(budget)):
            parent = tree.add(token_id, parent, one_hot(token_id, self._sampler))
            text.append(token_id)
        return tree

    def observe(self, seen: Observation) -> None:
        """Nothing to learn: the text itself is the source."""

    def _index(self, context_ids: list[int]) -> None:
        """Note, for each n-gram that something follows, where it goes on."""
        for end in range(max(self._indexed, 1), len(context_ids)):
            for size in self._sizes:
                if end >= size:
                    self._places[tuple(context_ids[end - size : end])] = end
        self._indexed = len(context_ids)

    def _match(self, context_ids: list[int]) -> int | None:
        """The place behind the most recent earlier occurrence of the text's end, or None."""
        ends = (tuple(context_ids[-size:]) for size in self._sizes if size < len(context_ids))
        return next((self._places[end] for end in ends if end in self._places), None)
