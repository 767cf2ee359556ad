"""`pruned`: one or two of the target's layers, trained further, between its embeddings and its cut head.

Owns: what this head reads: tokens. Must not know files or the rule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from specviz.drafts.head_draft import HeadDraft
from specviz.sampling import Sampler


class PrunedDraft(HeadDraft):
    """Reads learned shares of each token's embedding and of the one before it (a token shift, 2305.13048): with
    pairs of tokens as keys a single layer can continue what stood behind the same words earlier."""

    _tree_ids: list[int]
    _last_id: int

    @torch.inference_mode()
    def start(self, context_ids: list[int], sampler: Sampler, cancelled: Callable[[], bool]) -> None:
        super().start(context_ids, sampler, cancelled)
        if len(context_ids) > 1:
            self._model.commit(self._committed(context_ids[:-1]))

    @torch.inference_mode()
    def begin(self, context_ids: list[int]) -> Tensor | None:
        self._tree_ids, self._last_id = [], context_ids[-1]
        self._model.truncate(len(context_ids) - 1)  # asked twice, the last token is read again
        return self._model.logits(self._model.commit(self._committed(context_ids)))

    @torch.inference_mode()
    def extend(self, parents: Sequence[int], token_ids: Sequence[int]) -> Tensor:
        before = [self._tree_ids[parent] if parent >= 0 else self._last_id for parent in parents]
        self._tree_ids += token_ids
        own, shift = self._model.weights["own"], self._model.weights["shift"]
        x = torch.addcmul(self._embed(token_ids) * own, self._embed(before), shift)
        return self._model.logits(self._model.extend(x, parents))

    def _committed(self, context_ids: list[int]) -> Tensor:
        """What the layers read of the text that is not in the cache yet."""
        first = self._model.length
        tokens = self._embed(context_ids[max(first - 1, 0) :])
        own, shifted = tokens * self._model.weights["own"], tokens[:-1] * self._model.weights["shift"]
        return own[1:] + shifted if first else torch.cat((own[:1], own[1:] + shifted))
