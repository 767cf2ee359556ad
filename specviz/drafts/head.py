"""A small head on a large model: a layer or two between the target's own embeddings and its cut output head.

Owns: `HeadShape`, and `HeadModel`: the forward pass over a token tree with its own cache, in few operator calls.
Must not know where weights come from, what is fed to the first layer, rows, or the rule.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from specviz.drafts.eight_bit import Linear

_FIRST_CAPACITY = 512
_T = TypeVar("_T")
READ_AT_ONCE = 256
"""Rows of committed text in one pass, so that a long prompt's attention scores stay small."""


@dataclass(frozen=True, kw_only=True)
class HeadShape:
    """Sizes of a head; `kind` says what it reads: tokens (`pruned`), or tokens and target states (`feature`)."""

    kind: Literal["pruned", "feature"]
    hidden_size: int
    inner_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rope_theta: float
    norm_eps: float


def rope_table(positions: Tensor, dim: int, theta: float) -> tuple[Tensor, Tensor]:
    """Cosines and sines of shape (*positions, dim) for `rotate` (Su et al. 2104.09864, halves as in Llama)."""
    powers = torch.arange(0, dim, 2, device=positions.device, dtype=torch.float32) / dim
    angles = positions[..., None].float() * theta**-powers
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turns each pair (i, i + d/2) of the last axis by its angle; the sines' first half is negated already."""
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((second, first), -1) * sin


class _Layer:
    """One layer's weights and its keys and values, each (kv_heads, capacity, d), in float32: small products of
    ever new sizes are slow in bfloat16 on a CPU, where each size is compiled first."""

    def __init__(self, weights: Mapping[str, Tensor], linears: Mapping[str, Linear], shape: HeadShape) -> None:
        self.norm_attention, self.norm_mlp = weights["norm_attention"], weights["norm_mlp"]
        self.qkv, self.out = linears["qkv"], linears["out"]
        self.gate_up, self.down = linears["gate_up"], linears["down"]
        empty = self.norm_mlp.new_zeros(shape.num_kv_heads, 0, shape.head_dim, dtype=torch.float32)
        self.keys, self.values = empty, empty

    def store(self, start: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Write (kv_heads, rows, d) from slot `start` on; all keys and values up to there, as views."""
        end = start + keys.shape[1]
        if end > self.keys.shape[1]:
            more = max(end, 2 * self.keys.shape[1], _FIRST_CAPACITY) - self.keys.shape[1]
            self.keys, self.values = F.pad(self.keys, (0, 0, 0, more)), F.pad(self.values, (0, 0, 0, more))
        self.keys[:, start:end], self.values[:, start:end] = keys, values
        return self.keys[:, :end], self.values[:, :end]


class HeadModel:
    """The layers and the cut head. Slots below `length` are committed text, those behind a tree in the making."""

    def __init__(
        self,
        shape: HeadShape,
        weights: Mapping[str, Tensor],
        linears: Mapping[str, Linear],
        kept_ids: Tensor,
    ) -> None:
        """`weights` and `linears` are named as in `distill.headnet.HeadNet`, and `linears["head"]` is the cut head
        whose classes are the tokens `kept_ids`."""
        self.shape, self.kept_ids, self.weights, self.linears = shape, kept_ids, weights, linears
        self._head = linears["head"]
        self._layers = [
            _Layer(_below(weights, f"layers.{i}."), _below(linears, f"layers.{i}."), shape)
            for i in range(shape.num_layers)
        ]
        self._rope = rope_table(torch.zeros(0), shape.head_dim, shape.rope_theta)
        self.length = 0
        self._ancestors: list[list[int]] = []

    def truncate(self, length: int) -> None:
        """Forget what lies behind the first `length` committed slots, and every undecided row."""
        self.length = min(length, self.length)
        self._ancestors = []

    def commit(self, x: Tensor) -> Tensor:
        """Read rows (rows, width) as committed text, in place of any tree; the last one's state (1, width)."""
        self._ancestors = []
        state = x[:0]
        for part in x.split(READ_AT_ONCE):
            rows = len(part)
            mask = None
            if rows > 1:
                mask = _zeros(part, rows, self.length + rows).fill_(-torch.inf).triu_(self.length + 1)
            state = self._through(part, list(range(self.length, self.length + rows)), mask)[-1:]
            self.length += rows
        return state

    def extend(self, x: Tensor, parents: Sequence[int]) -> Tensor:
        """Read rows (rows, width) as nodes of the tree; their states (rows, width).

        `parents` are earlier undecided rows, counted from the last `commit`, or -1 for the committed text's end.
        """
        first = len(self._ancestors)
        for parent in parents:
            above = self._ancestors[parent] if parent >= 0 else []
            self._ancestors.append([*above, len(self._ancestors)])
        new = self._ancestors[first:]
        positions = [self.length + len(path) - 1 for path in new]
        # A chain sees all there is; only a row with strangers in the cache needs a mask.
        mask = None
        if len(new) > 1 or len(new[0]) <= first:
            mask = _zeros(x, len(new), self.length + len(self._ancestors))
            mask[:, self.length :] = -torch.inf
            for row, path in enumerate(new):
                mask[row, [self.length + slot for slot in path]] = 0.0
        return self._through(x, positions, mask, self.length + first)

    def logits(self, states: Tensor) -> Tensor:
        """Float32 logits of the kept tokens, (rows, classes)."""
        return self._head(states).float()

    def _through(self, x: Tensor, positions: list[int], mask: Tensor | None, slot: int = -1) -> Tensor:
        slot = self.length if slot < 0 else slot
        cos, sin = self._rope_rows(positions, x)
        shape = self.shape
        rows, heads, kv_heads = len(x), shape.num_heads, shape.num_kv_heads
        for layer in self._layers:
            joined = layer.qkv(norm(x, layer.norm_attention, shape.norm_eps))
            joined = joined.view(rows, heads + 2 * kv_heads, shape.head_dim).transpose(0, 1)
            turned = rotate(joined[: heads + kv_heads], cos, sin)
            keys, values = layer.store(slot, turned[heads:], joined[heads + kv_heads :])
            x = x + layer.out(_attend(turned[:heads], keys, values, mask))
            gate, up = layer.gate_up(norm(x, layer.norm_mlp, shape.norm_eps)).chunk(2, -1)
            x = x + layer.down(F.silu(gate).mul_(up))
        return norm(x, self.weights["norm"], shape.norm_eps)

    def _rope_rows(self, positions: list[int], like: Tensor) -> tuple[Tensor, Tensor]:
        if (needed := max(positions) + 1) > len(self._rope[0]):
            every = torch.arange(max(needed, 2 * len(self._rope[0]), _FIRST_CAPACITY), device=like.device)
            cos, sin = rope_table(every, self.shape.head_dim, self.shape.rope_theta)
            self._rope = cos.to(like.dtype), sin.to(like.dtype)
        first, end = positions[0], positions[0] + len(positions)
        if positions == list(range(first, end)):  # a view is cheaper
            return self._rope[0][first:end], self._rope[1][first:end]
        return self._rope[0][positions], self._rope[1][positions]


def _attend(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """Grouped-query attention: (heads, rows, d) over (kv_heads, slots, d) to (rows, heads * d)."""
    heads, rows, dim = query.shape
    kv_heads, slots, _ = keys.shape
    grouped = query.reshape(kv_heads, heads // kv_heads * rows, dim).float()
    scores = torch.bmm(grouped, keys.transpose(1, 2)).mul_(dim**-0.5)
    if mask is not None:
        scores.view(heads, rows, slots).add_(mask)
    mixed = torch.bmm(torch.softmax(scores, -1), values)
    return mixed.view(heads, rows, dim).transpose(0, 1).reshape(rows, heads * dim).to(query.dtype)


def _zeros(like: Tensor, rows: int, slots: int) -> Tensor:
    return like.new_zeros(rows, slots, dtype=torch.float32)


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root-mean-square norm of the last axis, with a gain."""
    return F.rms_norm(x, x.shape[-1:], weight.to(x.dtype), eps)


def _below(named: Mapping[str, _T], prefix: str) -> dict[str, _T]:
    return {name.removeprefix(prefix): value for name, value in named.items() if name.startswith(prefix)}
