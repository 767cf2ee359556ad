"""A small causal LM as the draft: one pass of its own for each drafted token.

Owns: the draft's cache and its rollback. Must not know the rule; it only says from which row it drew.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import takewhile

import torch
from torch import Tensor

from specviz.drafts import Observation
from specviz.errors import NumericsError
from specviz.models import LoadedModel
from specviz.runner import Runner
from specviz.sampling import Sampler, draw, uniform
from specviz.verify import ROOT, TokenTree


class ModelDraft:
    """Draws a chain token by token from its own rows, shaped by the run's settings (2211.17192, Alg. 1).

    Drafting stops where the draft's own context ends. Ids that it has no embedding for (a target's padding)
    are read as id 0: a guess from a wrong context is still only a guess.
    """

    wants_hidden = False

    def __init__(self, loaded: LoadedModel) -> None:
        self.names: tuple[str, ...] = (loaded.name,)
        self._loaded = loaded
        self._runner: Runner
        self._sampler: Sampler
        self._cancelled: Callable[[], bool] = lambda: False
        self._chain: list[int] = []

    def start(self, context_ids: list[int], sampler: Sampler, cancelled: Callable[[], bool]) -> None:
        self._sampler, self._cancelled = sampler, cancelled
        capacity = len(context_ids) + sampler.config.max_new_tokens
        self._runner = Runner(self._loaded, capacity=capacity)
        self._chain = []
        limit = self._loaded.context_len or len(context_ids)
        self._runner.prefill(self._readable(context_ids[:-1][:limit]), cancelled)

    def propose(self, context_ids: list[int], budget: int, generator: torch.Generator) -> TokenTree:
        tree, self._chain = TokenTree(), []
        if self._loaded.context_len:
            budget = min(budget, self._loaded.context_len - len(context_ids) + 1)
        if budget <= 0:
            return tree
        logits = self._read(context_ids[self._runner.length :])
        while not self._cancelled():
            row, shown = self._row(logits)
            token_id = draw(row, uniform(generator))[0]
            tree.add(token_id, len(tree) - 1 if len(tree) else ROOT, row, shown=shown)
            self._chain.append(token_id)
            if len(self._chain) == budget:
                break
            logits = self._runner.forward(self._readable([token_id])).logits
        return tree

    def observe(self, seen: Observation) -> None:
        """Keep the rows of drafted tokens that came to be, of those that were fed (the last never is)."""
        pairs = zip(self._chain[:-1], seen.emitted, strict=False)
        num_right = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        self._runner.keep(range(num_right))
        self._chain = []  # the next pass may come without a draft of ours

    def _read(self, token_ids: list[int]) -> Tensor:
        """Commit text that is not in the cache yet, in one pass; logits behind its last token, (1, vocab)."""
        logits = self._runner.forward(self._readable(token_ids), last_only=True).logits
        self._runner.keep(range(len(token_ids)))
        return logits

    def _readable(self, token_ids: list[int]) -> list[int]:
        return [token_id if token_id < self._loaded.vocab_size else 0 for token_id in token_ids]

    def _row(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """(the row to draw from, the row to show), each of shape (vocab,)."""
        if not torch.isfinite(logits.amax()):
            raise NumericsError(f"The draft {self.names[0]} returned NaN or infinite logits")
        shaped = self._sampler.shape(logits, [self._chain])
        rows = self._sampler.probabilities(shaped)
        return rows[0], self._sampler.confidence(shaped, rows)[0]
