"""The forward pass over a token tree with its cache, for any attention-only causal LM of transformers.

Owns: `Runner`: positions, masks, what is committed. Must not know settings, rows, rules or drafts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from specviz.models import LoadedModel
from specviz.numerics import EXACT_ATTENTION, MIN_KEYS
from specviz.runner.cache import TreeCache

PREFILL_CHUNK = 256


@dataclass(frozen=True, slots=True)
class Pass:
    """What one forward gave: `logits` (rows, vocab) in float32, and `hidden` (rows, hidden size) if asked for."""

    logits: Tensor
    hidden: Tensor | None


class Runner:
    """One model with one cache: feed tokens as a tree, then keep one root path of it.

    Row indices count the undecided rows since the last `keep`; a row's parent is an earlier row or -1, the end
    of the committed text. The position of a row is the committed length plus its depth.
    """

    def __init__(self, loaded: LoadedModel, *, capacity: int = 0, cache: TreeCache | None = None) -> None:
        """`cache` takes the place of one of its own with room for `capacity` tokens."""
        self.loaded = loaded
        self._exact = loaded.config._attn_implementation == EXACT_ATTENTION
        self.cache = cache or TreeCache(
            loaded.config.num_hidden_layers,
            capacity=max(capacity, PREFILL_CHUNK),
            dtypes=(torch.float32, torch.float64) if self._exact else None,
        )
        self._mask_dtype = torch.float32 if self._exact else loaded.dtype
        self._windows = _windows(loaded.config)
        self._depths: list[int] = []
        self._ancestry = torch.zeros(0, 0, dtype=torch.bool)

    @property
    def length(self) -> int:
        """Committed tokens in the cache."""
        return self.cache.length

    def prefill(
        self,
        token_ids: Sequence[int],
        cancelled: Callable[[], bool] = lambda: False,
        *,
        with_hidden: bool = False,
    ) -> list[Tensor]:
        """Commit a stretch of text, in chunks; looks at `cancelled` between them and then stops early.

        Returns the hidden states of each chunk, (rows, hidden size), if asked for; else nothing.
        """
        states = []
        for start in range(0, len(token_ids), PREFILL_CHUNK):
            if cancelled():
                break
            chunk = token_ids[start : start + PREFILL_CHUNK]
            ran = self.forward(chunk, with_hidden=with_hidden, last_only=True)
            states += [] if ran.hidden is None else [ran.hidden]
            self.keep(range(len(chunk)))
        return states

    @torch.inference_mode()
    def forward(
        self,
        token_ids: Sequence[int],
        parents: Sequence[int] | None = None,
        *,
        with_hidden: bool = False,
        last_only: bool = False,
    ) -> Pass:
        """Feed rows behind what is committed and undecided; without `parents` they continue as a chain.

        Logits have shape (rows, vocab), or (1, vocab) with `last_only`. The rows stay undecided until `keep`.
        """
        num_before = len(self._depths)
        if parents is None:
            parents = [num_before - 1 + i for i in range(len(token_ids))]
        self._extend(parents)
        device = self.loaded.device
        output: Any = self.loaded.model(
            input_ids=torch.tensor([list(token_ids)], device=device),
            position_ids=torch.tensor([self._depths[num_before:]], device=device) + self.length,
            attention_mask=self._masks(num_before),
            cache=self.cache,
            use_cache=True,
            logits_to_keep=1 if last_only else 0,
            output_hidden_states=with_hidden,
        )
        self.cache.used += len(token_ids)
        return Pass(output.logits[0].float(), output.hidden_states[-1][0] if with_hidden else None)

    @torch.inference_mode()
    def keep(self, path: Sequence[int]) -> None:
        """Commit the undecided rows `path` (a root path, root side first); all others never happened."""
        self.cache.keep(path)
        self._forget_rows()

    def truncate(self, length: int) -> None:
        """Forget all but the first `length` committed tokens, and every undecided row."""
        self.cache.truncate(length)
        self._forget_rows()

    def _forget_rows(self) -> None:
        self._depths = []
        self._ancestry = torch.zeros(0, 0, dtype=torch.bool)

    def _extend(self, parents: Sequence[int]) -> None:
        """Add rows to the undecided tree: their depths, and whom each may look at (itself and ancestors)."""
        before, total = len(self._depths), len(self._depths) + len(parents)
        ancestry = torch.zeros(total, total, dtype=torch.bool)
        ancestry[:before, :before] = self._ancestry
        for row, parent in enumerate(parents, start=before):
            assert -1 <= parent < row
            if parent >= 0:
                ancestry[row] = ancestry[parent]
            ancestry[row, row] = True
            self._depths.append(self._depths[parent] + 1 if parent >= 0 else 0)
        self._ancestry = ancestry

    def _masks(self, first: int) -> Tensor | dict[str, Tensor]:
        """Additive masks of shape (1, 1, new rows, keys): one, or one per kind of layer where kinds mix."""
        masks = {kind: self._mask(first, window) for kind, window in self._windows.items()}
        return masks if len(masks) > 1 else next(iter(masks.values()))

    def _mask(self, first: int, window: int | None) -> Tensor:
        rows = len(self._depths) - first
        end = self.length + len(self._depths)
        mask = torch.zeros(rows, max(end, MIN_KEYS), dtype=self._mask_dtype)
        mask[:, self.length : end].masked_fill_(~self._ancestry[first:], -torch.inf)
        mask[:, end:] = -torch.inf
        if window is not None:
            depths = torch.tensor(self._depths)
            key_positions = torch.cat((torch.arange(self.length), self.length + depths))
            behind = self.length + depths[first:, None] - key_positions[None]
            mask[:, :end].masked_fill_(behind >= window, -torch.inf)
        return mask[None, None].to(self.loaded.device)


def _windows(config: Any) -> dict[str, int | None]:
    """Kind of layer → its sliding window, None for full attention; the kinds this model has."""
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    if not kinds:
        return {"": window if window and getattr(config, "use_sliding_window", True) else None}
    return {kind: window if kind == "sliding_attention" else None for kind in dict.fromkeys(kinds)}
