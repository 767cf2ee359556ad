"""The first weights of a draft head: what the target offers, and the best guess without training.

Owns: taking over layers, and ridge regression of the target's next states. Must not know data files or the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specviz.distill.headnet import HeadLayer, HeadNet

_START_STD = 0.02
_RIDGE = 1e-3

Reading = tuple[Tensor, Tensor, Tensor]
"""Ids (chats, rows), the target's states (chats, rows + 1, width), and which rows count (chats, rows). Row i
guesses state i + 1 from ids[:, i], and for `feature` from state i."""


@torch.no_grad()
def start_weights(net: HeadNet, target: Any, layers: list[int], seed: int) -> None:
    """Take over the named layers of a Llama-like target and its last norm; small random weights without.

    What a layer adds starts at zero, so that a head begins as a plain map from what it reads to the output head.
    """
    generator = torch.Generator().manual_seed(seed)
    for parameter in net.parameters():
        if parameter.dim() == 2:
            parameter.copy_(_START_STD * torch.randn(parameter.shape, generator=generator))
    for layer, index in zip(net.head_layers, layers, strict=False):
        _copy_layer(layer, target.get_decoder().layers[index])
    if layers:
        net.norm.copy_(target.get_decoder().norm.weight)
    for layer in net.head_layers:
        layer.out.weight.zero_()
        layer.down.weight.zero_()


def _copy_layer(layer: HeadLayer, theirs: Any) -> None:
    attention, mlp = theirs.self_attn, theirs.mlp
    layer.norm_attention.copy_(theirs.input_layernorm.weight)
    layer.qkv.weight.copy_(torch.cat([p.weight for p in (attention.q_proj, attention.k_proj, attention.v_proj)]))
    layer.norm_mlp.copy_(theirs.post_attention_layernorm.weight)
    layer.gate_up.weight.copy_(torch.cat((mlp.gate_proj.weight, mlp.up_proj.weight)))


@torch.no_grad()
def fit_states(net: HeadNet, readings: Callable[[], Iterable[Reading]]) -> None:
    """Make a head the best guess of the target's state before its last gain, matrix by matrix.

    First `fuse`, where there is one, then for each layer what its attention and its gated units add; each is a
    ridge regression on what the ones before leave, over all `readings`, which are asked for once a matrix.
    """
    for number in range((net.shape.kind == "feature") + 2 * len(net.head_layers)):
        gram: Tensor | float = 0.0
        cross: Tensor | float = 0.0
        for ids, states, inside in readings():
            matrix, read, guessed = next(islice(_matrices(net, ids, states), number, None))
            left = (states[:, 1:].float() / net.norm - guessed)[inside]
            gram, cross = gram + read[inside].T @ read[inside], cross + read[inside].T @ left
        assert isinstance(gram, Tensor)
        gram.diagonal().add_(_RIDGE * float(gram.diagonal().mean()))
        matrix.weight.copy_(torch.linalg.solve(gram, cross).T)


def _matrices(net: HeadNet, ids: Tensor, states: Tensor) -> Iterator[tuple[nn.Linear, Tensor, Tensor | float]]:
    """In their order: each matrix whose output is added up, what it reads, and what is added up before it."""
    if net.shape.kind == "feature":
        read = net.inputs(ids, states[:, :-1].float())
        yield net.fuse, read, 0.0
        x: Tensor = net.fuse(read)
    else:
        x = net.shifted(ids)
    positions = torch.arange(ids.shape[1], device=ids.device)[None]
    for layer in net.head_layers:
        query, key, value = layer.project(x, positions)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        mixed = mixed.transpose(1, 2).flatten(2)
        yield layer.out, mixed, x
        x = x + layer.out(mixed)
        units = layer.units(x)
        yield layer.down, units, x
        x = x + layer.down(units)
