"""Drafting with a head: a chain for a run of its own, levels of candidates for a source that mixes.

Owns: `HeadDraft`, what `pruned` and `feature` share. Must not know files or the rule; it only says from which row
it drew.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from specviz.drafts import Observation
from specviz.drafts.head import HeadModel
from specviz.errors import NumericsError
from specviz.sampling import Sampler, draw, uniform
from specviz.verify import TokenTree


class HeadDraft:
    """Draws a chain from its own rows, one forward a token; tokens that were cut from the head have probability 0.

    Only committed text stays in the cache: each step reads what the last one emitted, in one forward that gives
    the first row too, and whatever was drafted in between is overwritten.
    """

    wants_hidden = False

    def __init__(self, name: str, model: HeadModel, table: Tensor) -> None:
        """`table` (vocab, width) holds the target's embeddings."""
        self.names: tuple[str, ...] = (name,)
        self._model, self._table = model, table
        self._kept: list[int] = model.kept_ids.tolist()
        self._sampler: Sampler
        self._cancelled: Callable[[], bool] = lambda: False

    def start(self, context_ids: list[int], sampler: Sampler, cancelled: Callable[[], bool]) -> None:
        del context_ids  # what to read of it differs from head to head
        self._sampler, self._cancelled = sampler, cancelled
        self._model.truncate(0)

    def propose(self, context_ids: list[int], budget: int, generator: torch.Generator) -> TokenTree:
        tree, path = TokenTree(), list[int]()
        logits = self.begin(context_ids) if budget > 0 else None
        while logits is not None and not self._cancelled():
            rows, shown = self._cut_rows(logits, [path])
            token_id = self._kept[draw(rows[0], uniform(generator))[0]]
            row = self._widened(rows)[0]
            tree.add(token_id, len(path) - 1, row, shown=row if shown is rows else self._widened(shown)[0])
            path.append(token_id)
            if len(path) == budget:
                break
            logits = self.extend([len(path) - 2], [token_id])
        return tree

    def observe(self, seen: Observation) -> None:
        """Nothing to learn: the text itself is read in the next step."""

    def begin(self, context_ids: list[int]) -> Tensor | None:
        """Read the committed text not read yet, in one forward, and forget any tree: logits (1, classes).

        None where there is nothing to draft from yet.
        """
        raise NotImplementedError

    def extend(self, parents: Sequence[int], token_ids: Sequence[int]) -> Tensor:
        """Read a level of drafted tokens in one forward: logits (tokens, classes).

        `parents` are rows read since `begin`, numbered in the order they were read, or -1 for the text's end.
        """
        raise NotImplementedError

    def candidates(self, logits: Tensor, num: int) -> list[list[tuple[int, float]]]:
        """The `num` likeliest tokens of each row with their probabilities at temperature 1, likeliest first."""
        values, places = torch.softmax(logits, -1).topk(min(num, logits.shape[-1]), -1)
        ids = self._model.kept_ids[places].tolist()
        return [list(zip(*row, strict=True)) for row in zip(ids, values.tolist(), strict=True)]

    def rows(self, logits: Tensor, paths: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        """(rows to draw from, rows to show), each (rows, vocab), of logits (rows, classes) behind drafted `paths`.

        Raises:
            NumericsError: NaN or infinite logits.
        """
        rows, shown = self._cut_rows(logits, paths)
        return self._widened(rows), self._widened(shown)

    def _cut_rows(self, logits: Tensor, paths: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        """The same over the kept tokens alone, (rows, classes): whatever is cut has probability 0."""
        if not torch.isfinite(logits.amax()):
            raise NumericsError(f"The draft {self.names[0]} returned NaN or infinite logits")
        if self._sampler.changes(paths):
            full = self._widened(logits, -math.inf)
            logits = self._sampler.shape(full, paths)[:, self._model.kept_ids]
        rows = self._sampler.probabilities(logits)
        return rows, self._sampler.confidence(logits, rows)

    def _widened(self, rows: Tensor, elsewhere: float = 0.0) -> Tensor:
        full = rows.new_full((len(rows), self._sampler.vocab_size), elsewhere)
        return full.index_copy_(1, self._model.kept_ids, rows)

    def _embed(self, token_ids: Sequence[int]) -> Tensor:
        if len(token_ids) == 1:
            return self._table[token_ids[0] : token_ids[0] + 1]
        return self._table[list(token_ids)]
