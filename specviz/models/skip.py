"""The first layers of a loaded model as a model of its own, over the same weights: layer-skip drafts.

Owns: `first_layers`. Must not know caches, drafts or runs.
"""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

from torch import nn

from specviz.errors import ModelError
from specviz.models.loading import LoadedModel, registered


def first_layers(target: LoadedModel, num_layers: int, name: str) -> LoadedModel:
    """The target's first layers with its own norm and head: a draft that needs no training and no memory.

    A model of its own over the same modules (early exit; Zhang et al. 2309.08168 skip layers likewise), registered
    beside its target, so that it is measured once.

    Raises:
        ModelError: as many layers as the target has, or a model that keeps its layers in no list.
    """
    total = int(getattr(target.config, "num_hidden_layers", 0))
    if total < 2:
        raise ModelError(f"{name!r} cannot be had of {target.name}: it has no layer that could be left out.")
    if not 1 <= num_layers < total:
        raise ModelError(
            f"{name!r} names {num_layers} layers, but {target.name} has {total:,}; give 1 to {total - 1:,}."
        )

    def make() -> LoadedModel:
        return dataclasses.replace(target, name=name, model=_cut_short(target, num_layers, name), pass_times={})

    key = (f"{target.name} {name}", str(target.dtype), str(target.device), target.numerics)
    return registered(key, make, lambda kept: _same_weights(kept, target))


def _same_weights(one: LoadedModel, other: LoadedModel) -> bool:
    embeddings: list[Any] = [loaded.model.get_input_embeddings() for loaded in (one, other)]  # type: ignore[operator]
    return embeddings[0] is embeddings[1]


def _cut_short(target: LoadedModel, num_layers: int, name: str) -> Any:
    """Shallow copies of the model and its decoder, with a configuration of their own; all else is shared."""
    model: Any = _twin(target.model)
    prefix = getattr(model, "base_model_prefix", "")
    decoder: Any = _twin(getattr(model, prefix)) if prefix in model._modules else None
    layers = getattr(decoder, "layers", None)
    if not isinstance(layers, nn.ModuleList):
        raise ModelError(f"{name!r} cannot be had of {target.name}: its layers are in no list that can be cut.")
    config: Any = copy.deepcopy(target.config)
    config.num_hidden_layers = num_layers
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:num_layers]
    decoder.layers = layers[:num_layers]
    setattr(model, prefix, decoder)
    model.config = decoder.config = config
    return model


def _twin(module: nn.Module) -> nn.Module:
    twin = copy.copy(module)
    twin._modules = dict(module._modules)
    return twin
