"""Making a cached block of tokens compute the same bits as one token at a time, and fast, on a CPU.

Owns: linear layers with weights packed once for oneDNN, and an attention whose rounding does not depend
on the order or number of keys. Must not know the catalog, caches or decoding.

Why float64 attention: sums of a few hundred terms, done in another order, differ by some 2⁻⁵² there, and
rounding the result to bfloat16 (8 bits) hides that for good. So a row gives the same bits alone, inside a
block, and in any branch of a token tree, whatever lies between its keys; nothing is gathered. The scores
alone may be float32, which halves the keys to read: each is a sum over one head's width, whose order does
not change with the number of rows and keys once there are a few of both. A probe decides, once a shape.

What the CPU's linear layers do to a row must not depend on its neighbours either; `runner` checks it all by
a probe at load and says "to rounding" where that fails.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

EXACT_ATTENTION = "specviz_exact"
MIN_KEYS = 16
"""What a cache hands over at least, masked slots included: products with fewer keys round otherwise."""
_MIN_QUERIES = 4
_PROBE_ROWS = 32
_ROUNDING = 1e-5  # float32 sums of some thousand products, in another order


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


def multiplies_bfloat16() -> bool:
    """Whether this CPU has instructions for bfloat16; false where torch cannot tell."""
    if not torch.backends.mkldnn.is_available() or not hasattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported"):
        return False
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def fast_dtype(device: torch.device) -> torch.dtype:
    """bfloat16 where the hardware multiplies it natively, else float32."""
    return torch.bfloat16 if device.type != "cpu" or multiplies_bfloat16() else torch.float32


def fast_products(device: torch.device) -> torch.autocast:
    """A context in which float32 matrices are multiplied in `fast_dtype(device)`."""
    return torch.autocast(device.type, torch.bfloat16, enabled=fast_dtype(device) == torch.bfloat16)


def pack_linears(model: nn.Module) -> int:
    """Replace every CPU `nn.Linear` in bfloat16 or float32 whose packed twin gives the same; return how many.

    In bfloat16 that means equal bits, in float32 equal up to the order of sums: there the stock layer is not
    oneDNN's, and takes two to three times as long for a few rows, which is just what verifying takes. The
    operators are torch's own but private: where they are missing or give something else, the layer stays as it
    is. Shapes are probed once each.
    """
    verdicts: dict[tuple[int, int, bool], tuple[bool, bool]] = {}
    num_packed = 0
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is not nn.Linear or not _packable(child):
                continue
            try:
                packed = PackedLinear(child)
            except RuntimeError:  # oneDNN refuses to pack what this CPU has no instructions for
                continue
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
    on_cpu = linear.weight.device.type == "cpu" and torch.backends.mkldnn.is_available()
    return has_ops and on_cpu and linear.weight.dtype in (torch.bfloat16, torch.float32)


@torch.inference_mode()
def _probe(linear: nn.Linear, packed: PackedLinear) -> tuple[bool, bool]:
    """(gives what `nn.Linear` gives for a block, a row alone needs padding to keep its bits)."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(_PROBE_ROWS, linear.in_features, generator=generator).to(linear.weight.dtype)
    block, stock = packed(rows), linear(rows)
    if linear.weight.dtype == torch.float32:
        return bool((block - stock).abs().max() <= _ROUNDING * stock.abs().max()), False
    alone = torch.cat([packed(row[None]) for row in rows])
    return torch.equal(block, stock), not torch.equal(alone, block)


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
    """Grouped-query attention with float64 sums, in the calling form of transformers' attention functions.

    `query` has shape (1, heads, rows, d); `key` (float32) and `value` (float64) (1, kv_heads, keys, d), from our
    own cache; `attention_mask` (1, 1, rows, keys), additive. The heads of one group are folded into the row
    axis, so keys are never copied. Returns (1, rows, heads, d) in the query's dtype. Extra arguments that
    change the result (soft caps, sinks) are refused; the caller then falls back to a stock kernel.
    """
    if dropout or any(kwargs.get(name) is not None for name in ("softcap", "s_aux", "position_bias")):
        raise NotImplementedError("exact attention knows neither dropout, soft caps, sinks nor position bias")
    _, num_heads, rows, dim = query.shape
    num_kv, num_keys = key.shape[1:3]
    stable = _float32_products_are_stable(num_kv, dim, torch.get_num_threads())
    key = key[0].to(torch.float32 if stable else torch.float64)
    num = num_heads // num_kv * rows
    folded = key.new_zeros(num_kv, max(num, _MIN_QUERIES), dim)
    folded[:, :num] = query.reshape(num_kv, num, dim)
    # The mask is where the product is added to: few, large operators are what a small model's pass is made of.
    scores = key.new_zeros(*folded.shape[:2], num_keys)
    if attention_mask is not None:
        scores[:, :num].view(num_kv, -1, rows, num_keys).copy_(attention_mask[0])
    scores.baddbmm_(folded, key.transpose(1, 2), alpha=scaling or dim**-0.5)
    weights = torch.softmax(scores, -1, dtype=torch.float64)
    out = torch.bmm(weights, value[0].double())[:, :num].to(query.dtype)
    return out.view(1, num_heads, rows, dim).transpose(1, 2), None


@functools.cache
@torch.inference_mode()
def _float32_products_are_stable(num_heads: int, dim: int, num_threads: int) -> bool:
    """Whether a score keeps its bits whatever the number of rows and keys in the product.

    A single key/value head fails on two threads, for one: the product is then cut between the threads along
    the rows, and the pieces go to other kernels.
    """
    del num_threads  # part of the key: who shares the work decides who rounds how
    generator = torch.Generator().manual_seed(0)
    keys = torch.randn(num_heads, 600, dim, generator=generator).bfloat16().float().transpose(1, 2)
    queries = torch.randn(num_heads, 64, dim, generator=generator).bfloat16().float()
    whole = torch.bmm(queries, keys)
    return all(
        torch.equal(torch.bmm(queries[:, :rows], keys[..., :cols]), whole[:, :rows, :cols])
        for rows in (*range(_MIN_QUERIES, 14), 24, 27, 32, 48)
        for cols in (*range(MIN_KEYS, MIN_KEYS + 9), 48, 63, 64, 65, 127, 255, 257, 300, 511, 513, 599)
    )


AttentionInterface.register(EXACT_ATTENTION, exact_attention)
AttentionMaskInterface.register(EXACT_ATTENTION, eager_mask)
