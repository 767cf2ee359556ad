"""`feature`: a head that reads the target's last hidden state, then its own (EAGLE, 2401.15077).

Owns: which state belongs to which token. Must not know files or the rule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from specviz.drafts import Observation
from specviz.drafts.head import norm
from specviz.drafts.head_draft import HeadDraft
from specviz.sampling import Sampler


class FeatureDraft(HeadDraft):
    """Row i reads token i + 1 together with the state that predicted it: the target's own for committed text, the
    head's for what it has drafted itself."""

    wants_hidden = True

    def start(self, context_ids: list[int], sampler: Sampler, cancelled: Callable[[], bool]) -> None:
        super().start(context_ids, sampler, cancelled)
        self._prompt_ids = context_ids
        self._unread: list[Tensor] = []
        self._root: Tensor | None = None
        self._tree_states: list[Tensor] = []

    def read_prompt(self, hidden: Tensor) -> None:
        self._unread.append(hidden)
        self._read(self._prompt_ids)

    def observe(self, seen: Observation) -> None:
        """Keep the states that predicted the emitted tokens: the root's, then those along the accepted path."""
        assert seen.hidden is not None
        rows = [0, *(node + 1 for node in seen.path)][: len(seen.emitted)]
        self._unread.append(seen.hidden[rows])

    @torch.inference_mode()
    def begin(self, context_ids: list[int]) -> Tensor | None:
        self._model.truncate(self._model.length)
        self._tree_states = []
        self._read(context_ids)
        return None if self._root is None else self._model.logits(self._root)

    @torch.inference_mode()
    def _read(self, context_ids: list[int]) -> None:
        """Commit the rows of all states that are known."""
        if not self._unread:
            return
        states = torch.cat(self._unread)
        first = self._model.length + 1
        token_ids = context_ids[first : first + len(states)]
        self._unread = []
        if token_ids:
            self._root = self._model.commit(self._fused(token_ids, states[: len(token_ids)]))

    @torch.inference_mode()
    def extend(self, parents: Sequence[int], token_ids: Sequence[int]) -> Tensor:
        assert self._root is not None
        above = torch.cat([self._tree_states[parent] if parent >= 0 else self._root for parent in parents])
        states = self._model.extend(self._fused(token_ids, above), parents)
        self._tree_states += states.split(1)
        return self._model.logits(states)

    def _fused(self, token_ids: Sequence[int], states: Tensor) -> Tensor:
        weights, eps = self._model.weights, self._model.shape.norm_eps
        tokens = norm(self._embed(token_ids), weights["norm_token"], eps)
        states = norm(states, weights["norm_state"], eps)
        return self._model.linears["fuse"](torch.cat((tokens, states), -1))
