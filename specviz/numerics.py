"""Making a cached block of tokens compute the same bits as one token at a time, and fast, on a CPU.

Owns: linear layers with weights packed once for oneDNN, and an attention whose rounding does not depend
on the order or number of keys. Must not know the catalog, caches or decoding.

Why float64 attention: sums of a few hundred terms, done in another order, differ by some 2⁻⁵² there, and
rounding the result to bfloat16 (8 bits) hides that for good. So a row gives the same bits alone, inside a
block, and in any branch of a token tree, whatever lies between its keys; no padding, no gathering. What
the CPU's linear layers do to a row must not depend on its neighbours either; `models` checks both by a
probe at load and says "to rounding" where the probe fails.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

EXACT_ATTENTION = "specviz_exact"
_PROBE_ROWS = 32


class PackedLinear(nn.Module):
    """`nn.Linear` over weights in oneDNN's blocked layout, packed once instead of at every call.

    oneDNN picks another kernel for a single row at some widths, and that one rounds differently; where the
    probe saw this, `pad_single` feeds such a row twice and drops the copy.
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.register_buffer("weight", torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach()), False)
        self.bias = linear.bias
        self.pad_single = False

    def forward(self, x: Tensor) -> Tensor:
        """Shape (..., in_features) to (..., out_features)."""
        if self.pad_single and x.shape[:-1].numel() == 1:
            twice = x.reshape(1, -1).expand(2, -1)
            return self._apply_packed(twice)[:1].reshape(*x.shape[:-1], self.out_features)
        return self._apply_packed(x)

    def _apply_packed(self, x: Tensor) -> Tensor:
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")
        return out


def pack_linears(model: nn.Module) -> int:
    """Replace every bfloat16 CPU `nn.Linear` whose packed twin gives equal bits; return how many.

    The operators are torch's own but private: where they are missing or round otherwise than `nn.Linear`, the
    layer stays as it is. Shapes are probed once each.
    """
    verdicts: dict[tuple[int, int, bool], tuple[bool, bool]] = {}
    num_packed = 0
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is not nn.Linear or not _packable(child):
                continue
            packed = PackedLinear(child)
            shape = (child.in_features, child.out_features, child.bias is not None)
            if shape not in verdicts:
                verdicts[shape] = _probe(child, packed)
            usable, packed.pad_single = verdicts[shape]
            if usable:
                setattr(parent, name, packed)
                num_packed += 1
    return num_packed


def _packable(linear: nn.Linear) -> bool:
    has_ops = hasattr(torch.ops.mkldnn, "_reorder_linear_weight") and hasattr(
        torch.ops.mkldnn, "_linear_pointwise"
    )
    on_cpu = linear.weight.device.type == "cpu" and linear.weight.dtype == torch.bfloat16
    return bool(has_ops and on_cpu and torch.backends.mkldnn.is_available())


@torch.inference_mode()
def _probe(linear: nn.Linear, packed: PackedLinear) -> tuple[bool, bool]:
    """(equals `nn.Linear` bit for bit on a block, a row alone needs padding to keep its bits)."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(_PROBE_ROWS, linear.in_features, generator=generator).to(linear.weight.dtype)
    block = packed(rows)
    usable = torch.equal(block, linear(rows))
    alone = torch.cat([packed(row[None]) for row in rows])
    return usable, not torch.equal(alone, block)


def exact_attention(
    _module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Grouped-query attention in float64, in the calling form of transformers' attention functions.

    `query` has shape (1, heads, rows, d); `key` and `value` (1, kv_heads, keys, d), float64 from our own cache;
    `attention_mask` (1, 1, rows, keys), additive. The heads of one group are folded into the row axis, so
    keys are never copied. Returns (1, rows, heads, d) in the query's dtype. Extra arguments that change the
    result (soft caps, sinks) are refused; the caller then falls back to a stock kernel.
    """
    if dropout or any(kwargs.get(name) is not None for name in ("softcap", "s_aux", "position_bias")):
        raise NotImplementedError("exact attention knows neither dropout, soft caps, sinks nor position bias")
    _, num_heads, rows, dim = query.shape
    groups = num_heads // key.shape[1]
    folded = query.reshape(key.shape[1], groups * rows, dim).double()
    scores = torch.bmm(folded, key[0].double().transpose(1, 2)).mul_(scaling or dim**-0.5)
    if attention_mask is not None:
        scores.view(-1, groups, rows, scores.shape[-1]).add_(attention_mask[0])
    out = torch.bmm(torch.softmax(scores, -1), value[0].double()).to(query.dtype)
    return out.view(1, num_heads, rows, dim).transpose(1, 2), None


AttentionInterface.register(EXACT_ATTENTION, exact_attention)
AttentionMaskInterface.register(EXACT_ATTENTION, eager_mask)
