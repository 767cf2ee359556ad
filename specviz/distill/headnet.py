"""The draft heads while they learn: transformer layers between the target's embeddings and its cut output head.

Owns: `HeadNet` and the chains in which a feature head lives on its own states. Must not know
data, losses, files, or how a trained head drafts (`drafts.head` computes the same for one text with a cache).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specviz.drafts.head import HeadShape, norm, rope_table, rotate

Cached = tuple[Tensor, Tensor]
"""A layer's keys and values, (batch, kv_heads, rows, d) each."""


_OWN = 0.1
"""Small, so that a token does not say itself again; the layer's norm takes the scale out of what it reads."""


class HeadLayer(nn.Module):
    """One layer as in Llama, its projections joined: norms in front, grouped queries, SwiGLU."""

    def __init__(self, shape: HeadShape) -> None:
        super().__init__()
        self.shape = shape
        width, attended = shape.hidden_size, shape.num_heads * shape.head_dim
        joined = attended + 2 * shape.num_kv_heads * shape.head_dim
        self.norm_attention = nn.Parameter(torch.ones(width))
        self.qkv = nn.Linear(width, joined, bias=False)
        self.out = nn.Linear(attended, width, bias=False)
        self.norm_mlp = nn.Parameter(torch.ones(width))
        self.gate_up = nn.Linear(width, 2 * shape.inner_size, bias=False)
        self.down = nn.Linear(shape.inner_size, width, bias=False)

    def project(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated queries (batch, heads, rows, d), rotated keys and plain values (batch, kv_heads, rows, d).

        `x` is (batch, rows, width), `positions` (batch or 1, rows).
        """
        shape = self.shape
        heads, kv_heads, dim = shape.num_heads, shape.num_kv_heads, shape.head_dim
        joined = self.qkv(norm(x, self.norm_attention, shape.norm_eps))
        joined = joined.unflatten(-1, (heads + 2 * kv_heads, dim)).transpose(1, 2)
        cos, sin = rope_table(positions, dim, shape.rope_theta)
        cos, sin = cos[:, None].to(joined.dtype), sin[:, None].to(joined.dtype)
        turned = rotate(joined[:, : heads + kv_heads], cos, sin)
        return turned[:, :heads], turned[:, heads:], joined[:, heads + kv_heads :]

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        """The rest of the layer behind its attention; `attended` is (batch, heads, rows, d)."""
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        finished: Tensor = x + self.down(self.units(x))
        return finished

    def units(self, x: Tensor) -> Tensor:
        """What the gated units say of `x`, (batch, rows, inner size)."""
        gate, up = self.gate_up(norm(x, self.norm_mlp, self.shape.norm_eps)).chunk(2, -1)
        units: Tensor = F.silu(gate) * up
        return units


class HeadNet(nn.Module):
    """A head's trained weights, over the target's frozen embeddings `table` (vocab, width).

    `pruned` reads tokens: learned shares of each token's embedding and of the one before (a token shift, so that a
    single layer can match pairs of tokens). `feature` reads token and target state together (EAGLE, 2401.15077).
    """

    table: Tensor
    kept_ids: Tensor
    """Ids (classes,), ascending, that the output head keeps; chosen when training begins, part of the state."""

    def __init__(self, shape: HeadShape, table: Tensor, num_kept: int) -> None:
        super().__init__()
        self.shape = shape
        self.register_buffer("table", table, persistent=False)
        self.register_buffer("kept_ids", torch.arange(num_kept))
        width = shape.hidden_size
        if shape.kind == "feature":
            self.norm_token = nn.Parameter(torch.ones(width))
            self.norm_state = nn.Parameter(torch.ones(width))
            self.fuse = nn.Linear(2 * width, width, bias=False)
        else:
            self.own = nn.Parameter(torch.full((width,), _OWN))
            self.shift = nn.Parameter(torch.full((width,), _OWN / 2))
        self.layers = nn.ModuleList(HeadLayer(shape) for _ in range(shape.num_layers))
        self.norm = nn.Parameter(torch.ones(width))

    @property
    def head_layers(self) -> list[HeadLayer]:
        """The layers, by their type."""
        return [layer for layer in self.layers if isinstance(layer, HeadLayer)]

    def read_tokens(self, ids: Tensor) -> Tensor:
        """States (batch, rows, width) behind each of `ids` (batch, rows); for `pruned`."""
        return self._through(self.shifted(ids))[0]

    def shifted(self, ids: Tensor) -> Tensor:
        """What a `pruned` head's first layer reads, (batch, rows, width)."""
        tokens = F.embedding(ids, self.table).to(self.norm.dtype)
        return self.own * tokens + self.shift * F.pad(tokens, (0, 0, 1, 0))[:, :-1]

    def read_states(self, ids: Tensor, states: Tensor) -> tuple[Tensor, list[Cached]]:
        """For `feature`: own states (batch, rows, width), and each layer's keys and values.

        Row i reads the token `ids[:, i]` and the target's state of the token before it, `states[:, i]`.
        """
        return self._through(self.fuse(self.inputs(ids, states)))

    def inputs(self, ids: Tensor, states: Tensor) -> Tensor:
        """What `fuse` reads: tokens beside states, each normed, (batch, rows, 2 * width)."""
        eps = self.shape.norm_eps
        tokens = norm(F.embedding(ids, self.table).to(self.norm.dtype), self.norm_token, eps)
        return torch.cat((tokens, norm(states, self.norm_state, eps)), -1)

    def _through(self, x: Tensor) -> tuple[Tensor, list[Cached]]:
        positions = torch.arange(x.shape[1], device=x.device)[None]
        kept = []
        for layer in self.head_layers:
            query, key, value = layer.project(x, positions)
            attended = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
            x = layer.finish(x, attended)
            kept.append((key, value))
        return norm(x, self.norm, self.shape.norm_eps), kept

    def go_on(
        self,
        ids: Tensor,
        states: Tensor,
        starts: Tensor,
        prefix: list[Cached],
        chains: list[list[Cached]],
    ) -> Tensor:
        """One step further for chains that feed on their own states (EAGLE-3's training-time test, 2503.01840).

        Chain j of a row of the batch began behind row `starts[:, j]` of `prefix`, which it sees up to there; it
        also sees its own earlier steps in `chains`, to which this one is added. `ids` are the tokens read now,
        `states` (batch, num_chains, width) the chains' own last states. Returns the new ones.
        """
        x = self.fuse(self.inputs(ids, states))
        chains.append([])
        for i, layer in enumerate(self.head_layers):
            query, key, value = layer.project(x, starts + len(chains))
            chains[-1].append((key, value))
            attended = _attend_chains(query, prefix[i], starts, [step[i] for step in chains])
            x = layer.finish(x, attended)
        return norm(x, self.norm, self.shape.norm_eps)


def _attend_chains(query: Tensor, prefix: Cached, starts: Tensor, steps: list[Cached]) -> Tensor:
    """Attention of (batch, heads, chains, d) to the prefix up to each chain's start and to the chain itself."""
    keys, values = prefix
    batch, heads, chains, dim = query.shape
    grouped = query.reshape(batch, keys.shape[1], heads // keys.shape[1], chains, dim)
    behind = torch.einsum("bkgcd,bktd->bkgct", grouped, keys)
    hidden = torch.arange(keys.shape[2], device=query.device) > starts[..., None]
    behind = behind.masked_fill(hidden[:, None, None], -torch.inf)
    own = [(grouped * key[:, :, None]).sum(-1, keepdim=True) for key, _ in steps]
    shares = (torch.cat((behind, *own), -1).float() * dim**-0.5).softmax(-1).to(values.dtype)
    mixed = torch.einsum("bkgct,bktd->bkgcd", shares[..., : keys.shape[2]], values)
    for i, (_, value) in enumerate(steps, start=keys.shape[2]):
        mixed = mixed + shares[..., i : i + 1] * value[:, :, None]
    return mixed.reshape(batch, heads, chains, dim)
