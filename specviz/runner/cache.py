"""Keys and values of a committed text and of the token tree behind it, in buffers allocated ahead.

Owns: `TreeCache`, which transformers' models write to as to any cache, and which keeps one root path and
forgets the rest. Must not know logits, settings or the rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from specviz.numerics import MIN_KEYS

_FIRST_CAPACITY = 256


class TreeLayer(CacheLayerMixin):
    """One layer: (1, kv_heads, capacity, d) for keys and values; slots past `cache.used` are garbage."""

    keys: Tensor
    values: Tensor

    def __init__(self, cache: TreeCache) -> None:
        super().__init__()
        self._cache = cache

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        key_dtype, value_dtype = self._cache.dtypes or (key_states.dtype, value_states.dtype)
        self.keys = _allocate(key_states, self._cache.capacity, key_dtype)
        self.values = _allocate(value_states, self._cache.capacity, value_dtype)
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Store the new rows behind those in use; return all keys and values to look at, as views."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        start = self._cache.used
        end = start + key_states.shape[-2]
        if end > self.keys.shape[-2]:
            self._grow(end)
        self.keys[:, :, start:end] = key_states
        self.values[:, :, start:end] = value_states
        shown = max(end, MIN_KEYS)
        return self.keys[:, :, :shown], self.values[:, :, :shown]

    def _grow(self, needed: int) -> None:
        capacity = max(needed, 2 * self.keys.shape[-2])
        used = self._cache.used
        for name in ("keys", "values"):
            old: Tensor = getattr(self, name)
            new = _allocate(old, capacity, old.dtype)
            new[:, :, :used] = old[:, :, :used]
            setattr(self, name, new)

    def move(self, sources: Tensor, start: int) -> None:
        """Copy the slots `sources` to consecutive ones from `start` on."""
        for buffer in (self.keys, self.values):
            buffer[:, :, start : start + len(sources)] = buffer[:, :, sources]

    def get_seq_length(self) -> int:
        return self._cache.used

    def get_max_length(self) -> int:
        return -1

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return max(self._cache.used + query_length, MIN_KEYS), 0


def _allocate(like: Tensor, capacity: int, dtype: torch.dtype) -> Tensor:
    """Zeros, since slots that a mask hides are still multiplied: NaN would come through."""
    return torch.zeros(*like.shape[:2], max(capacity, MIN_KEYS), like.shape[-1], dtype=dtype, device=like.device)


class TreeCache(Cache):
    """All layers: `length` committed slots in text order, then the slots of a tree not yet decided.

    Sliding-window layers keep every slot; their window is a matter of the mask. `dtypes` of keys and values
    override the model's for storage (wider ones for the exact attention, so that nothing is converted twice).
    """

    def __init__(
        self,
        num_layers: int,
        *,
        capacity: int = _FIRST_CAPACITY,
        dtypes: tuple[torch.dtype, torch.dtype] | None = None,
    ) -> None:
        self.capacity = capacity
        self.dtypes = dtypes
        self.length = 0
        self.used = 0
        self._layers = [TreeLayer(self) for _ in range(num_layers)]
        super().__init__(layers=[*self._layers])

    def stored(self, slots: Sequence[int]) -> list[Tensor]:
        """Keys and values of these slots, layer by layer, each (1, kv_heads, slots, d)."""
        index = list(slots)
        return [buffer[:, :, index] for layer in self._layers for buffer in (layer.keys, layer.values)]

    def keep(self, path: Sequence[int]) -> None:
        """Commit the undecided slots `path` (counted from `length`, root side first) and drop all others."""
        if list(path) != list(range(len(path))):
            sources = torch.tensor(path, device=self._layers[0].keys.device) + self.length
            for layer in self._layers:
                layer.move(sources, self.length)
        self.length += len(path)
        self.used = self.length

    def truncate(self, length: int) -> None:
        """Forget everything behind the first `length` committed slots."""
        self.length = self.used = min(length, self.length)


class SharedCache(TreeCache):
    """The first layers of another cache, for a model that is the first layers of the other's.

    The buffers are the owner's. Rows fed here lie behind its committed slots, where it writes over them, so they
    are only good until its next pass; `follow` then starts anew from what it has committed.
    """

    def __init__(self, owner: TreeCache, num_layers: int) -> None:
        super().__init__(num_layers, capacity=owner.capacity, dtypes=owner.dtypes)
        self._owner = owner

    def follow(self) -> None:
        """Hold what the owner has committed, and nothing else."""
        for mine, theirs in zip(self._layers, self._owner._layers, strict=False):
            if theirs.is_initialized:  # else nothing is committed yet
                mine.keys, mine.values, mine.is_initialized = theirs.keys, theirs.values, True
        self.length = self.used = self._owner.length
