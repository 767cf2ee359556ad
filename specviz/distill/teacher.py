"""The target as a writer: one token for each of many rows in one pass, over a preallocated cache.

Owns: the cache in which each row stands at its own position, the pass, the top candidates of its logits.
Must not know chats, files or training.
"""

from dataclasses import dataclass
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.cache_utils import Cache, CacheLayerMixin
from transformers.masking_utils import sdpa_mask

BLOCK = 64
"""Keys are read in multiples of this, so that a row's bits do not depend on its neighbours' lengths."""
WIDTH = 64
"""How many of the likeliest tokens are kept of a row of logits; draws are made among these."""
_ATTENTION = "specviz_rows"


def _attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of one query (rows, heads, 1, dim) per row, as two batched products.

    The heads that share a key head form the query axis, so nothing is copied; on a CPU this takes less
    than half the time of torch's fused attention, whose blocks are made for long queries.
    """
    del module, kwargs  # dropout and flags of transformers that a frozen writer does not need
    rows, heads, _, dim = query.shape
    kv_heads, used = key.shape[1:3]
    grouped = query.reshape(rows * kv_heads, heads // kv_heads, dim)
    scores = torch.bmm(grouped, key.transpose(2, 3).reshape(rows * kv_heads, dim, used)).float()
    scores = scores.view(rows, heads, used) * (dim**-0.5 if scaling is None else scaling)
    shares = (scores + attention_mask[:, 0].float()).softmax(dim=-1).to(query.dtype)
    mixed = torch.bmm(shares.view(rows * kv_heads, -1, used), value.reshape(rows * kv_heads, used, -1))
    return mixed.view(rows, 1, heads, -1), None


AttentionInterface.register(_ATTENTION, _attend)
AttentionMaskInterface.register(_ATTENTION, sdpa_mask)


class _RowLayer(CacheLayerMixin):
    """Keys and values of one layer; each row has its own position.

    Keys are stored as (rows, kv_heads, head_dim, max_len), the order in which they are multiplied, and
    handed out as a view (rows, kv_heads, used, head_dim) like the values.
    """

    is_sliding = False

    def __init__(self, cache: "RowCache") -> None:
        super().__init__()
        self._cache = cache

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        rows, heads, _, dim = key_states.shape
        self.keys = key_states.new_zeros(rows, heads, dim, self._cache.max_len)
        self.values = value_states.new_zeros(rows, heads, self._cache.max_len, value_states.shape[3])
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Stores one position per row and returns the part of the cache that is in use."""
        del args, kwargs  # the interface of transformers passes more than a full layer needs
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        assert self.keys is not None
        assert self.values is not None
        cache = self._cache
        self.keys[cache.rows, :, :, cache.positions] = key_states[:, :, 0]
        self.values[cache.rows, :, cache.positions] = value_states[:, :, 0]
        return self.keys[..., : cache.used].transpose(2, 3), self.values[:, :, : cache.used]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        del query_length
        return self._cache.used, 0

    def get_seq_length(self) -> int:
        return self._cache.used

    def get_max_length(self) -> int:
        return self._cache.max_len


class RowCache(Cache):
    """A cache of `num_rows` rows of up to `max_len` positions, written at `positions` (num_rows,)."""

    def __init__(self, num_layers: int, num_rows: int, max_len: int, device: torch.device) -> None:
        self.max_len = -(-max_len // BLOCK) * BLOCK
        self.rows = torch.arange(num_rows, device=device)
        self.positions = torch.zeros(num_rows, dtype=torch.long, device=device)
        self.used = BLOCK
        super().__init__(layers=[_RowLayer(self) for _ in range(num_layers)])

    def move_to(self, positions: torch.Tensor) -> None:
        """Sets where each row writes next."""
        self.positions = positions
        self.used = (int(positions.max()) // BLOCK + 1) * BLOCK


@dataclass(frozen=True)
class Candidates:
    """The likeliest tokens of each row: `ids` and `logps` (rows, WIDTH), likeliest first.

    The first is the greedy choice: the lowest id among equal best logits, as everywhere in this package.
    """

    ids: torch.Tensor
    logps: torch.Tensor


class Teacher:
    """Decodes `num_rows` rows side by side with any causal model of transformers that keeps full keys."""

    def __init__(self, model: Any, num_rows: int, max_len: int) -> None:
        self._model = model
        if model.config._attn_implementation == "sdpa":
            model.set_attn_implementation(_ATTENTION)
        self.device = torch.device(model.device)
        self._cache = RowCache(model.config.num_hidden_layers, num_rows, max_len, self.device)
        self._keys = torch.arange(self._cache.max_len, device=self.device)
        self.num_rows = num_rows

    @torch.inference_mode()
    def step(self, token_ids: list[int], positions: list[int]) -> Candidates:
        """Feeds one token per row (num_rows,) at its position; keys at later positions stay unseen."""
        ids = torch.tensor(token_ids, device=self.device)[:, None]
        where = torch.tensor(positions, device=self.device)
        self._cache.move_to(where)
        seen = self._keys[: self._cache.used] <= where[:, None]
        mask = torch.zeros(seen.shape, dtype=self._model.dtype, device=self.device)
        mask.masked_fill_(~seen, torch.finfo(mask.dtype).min)
        output = self._model(
            ids,
            attention_mask=mask[:, None, None, :],
            position_ids=where[:, None],
            cache=self._cache,
            use_cache=True,
        )
        return candidates(output.logits[:, -1])


def candidates(logits: torch.Tensor) -> Candidates:
    """The WIDTH likeliest tokens of logits (rows, vocab), with log-probabilities at temperature 1."""
    scores = logits.float()
    values, ids = scores.topk(min(WIDTH, scores.shape[-1]), dim=-1)
    best = ids.masked_fill(values != values[:, :1], scores.shape[-1]).argmin(dim=-1, keepdim=True)
    first = ids[:, :1].clone()
    ids[:, :1] = ids.gather(1, best)
    ids.scatter_(1, best, torch.where(best == 0, ids[:, :1], first))
    return Candidates(ids, values - scores.logsumexp(dim=-1, keepdim=True))


def draw(found: Candidates, temperatures: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """One token per row among the candidates at `temperatures` (rows,); the greedy one where that is 0.

    `uniforms` (rows,) in [0, 1) decide; the same number and row give the same token.
    """
    warm = temperatures.clamp_min(1e-3)[:, None]
    cumulative = (found.logps.double() / warm).softmax(dim=-1).cumsum(dim=-1)
    pick = (cumulative < (uniforms * cumulative[:, -1])[:, None]).sum(dim=-1, keepdim=True)
    drawn = found.ids.gather(1, pick.clamp_max(found.ids.shape[1] - 1))[:, 0]
    return torch.where(temperatures > 0, drawn, found.ids[:, 0])
