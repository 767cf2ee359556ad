"""A trained head on disk, and its marriage to a target: `config.json` and `model.safetensors` in one folder.

Owns: the format, rounding to eight bits, the check that a head and a target belong together. Must not know how a
head is trained or how it drafts. Embeddings and output head are the target's and are not stored again.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from specviz.drafts.eight_bit import Linear, from_eight_bits, to_eight_bits
from specviz.drafts.feature import FeatureDraft
from specviz.drafts.head import HeadModel, HeadShape
from specviz.drafts.head_draft import HeadDraft
from specviz.drafts.pruned import PrunedDraft
from specviz.errors import ModelError
from specviz.models import LoadedModel

KINDS: dict[str, type[HeadDraft]] = {"pruned": PrunedDraft, "feature": FeatureDraft}
_CONFIG, _WEIGHTS = "config.json", "model.safetensors"
_NUM_WITNESSES = 32
_MOST_STRANGE = 0.3
"""How far embeddings may lie from those the head knew, relative: rounding to four bits moves them by a tenth."""


def is_head(folder: Path) -> bool:
    """Whether `folder` holds a draft head, not a model of transformers."""
    try:
        config = json.loads((folder / _CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and config.get("kind") in KINDS


def save_head(
    folder: Path, shape: HeadShape, weights: Mapping[str, Tensor], kept_ids: Tensor, target: str, table: Tensor
) -> None:
    """Write a head: matrices in eight bits, vectors in bfloat16. `weights` are named as in `HeadNet`; `table` is
    the target's embeddings (vocab, width), of which a few rows are kept as witnesses.

    Raises:
        OSError: as the writing gives it.
    """
    stored: dict[str, Tensor] = {"kept_ids": kept_ids.to(torch.int32).cpu()}
    for name, weight in weights.items():
        if weight.dim() == 2:
            stored[f"{name}.bytes"], stored[f"{name}.scale"] = to_eight_bits(weight.cpu())
        else:
            stored[name] = weight.detach().to(torch.bfloat16).cpu()
    stored["witnesses"] = table[_witness_ids(len(table))].to(torch.bfloat16).cpu()
    save_file({name: tensor.contiguous() for name, tensor in stored.items()}, folder / _WEIGHTS)
    config = {**dataclasses.asdict(shape), "target": target, "vocab_size": len(table)}
    (folder / _CONFIG).write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")


def load_head(folder: Path, name: str, target: LoadedModel) -> HeadDraft:
    """The head in `folder`, drafting for `target` on its device and in its dtype.

    Raises:
        ModelError: a damaged folder, or a head that was trained for another target.
    """
    with _refusing_damage(folder, name):
        config, shape, stored = _read(folder)
        wanted = config["target"]
        _check_target(name, shape, config["vocab_size"], wanted, target, stored["witnesses"])
        model = _model(shape, stored, target)
    return KINDS[shape.kind](name, model, _table(target))


def read_weights(folder: Path, name: str) -> tuple[HeadShape, dict[str, Tensor], Tensor]:
    """What a head has learned: its sizes, its weights in float32 named as in `HeadNet`, and the ids it keeps.

    Raises:
        ModelError: a damaged folder.
    """
    with _refusing_damage(folder, name):
        _, shape, stored = _read(folder)
        weights = {key: tensor.float() for key, tensor in _vectors(stored).items()}
        for key in _matrices(stored):
            weights[key] = from_eight_bits(stored[f"{key}.bytes"], stored[f"{key}.scale"])
        return shape, weights, stored["kept_ids"].long()


@contextmanager
def _refusing_damage(folder: Path, name: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise ModelError(
            f"The draft head {name!r} in {folder} is damaged ({error}); train it again: python -m specviz distill"
        ) from error


def _read(folder: Path) -> tuple[dict[str, Any], HeadShape, dict[str, Tensor]]:
    """(its config, its sizes, what is stored of it)."""
    config = json.loads((folder / _CONFIG).read_text(encoding="utf-8"))
    fields = {field.name for field in dataclasses.fields(HeadShape)}
    shape = HeadShape(**{key: value for key, value in config.items() if key in fields})
    return config, shape, load_file(folder / _WEIGHTS)


def _matrices(stored: Mapping[str, Tensor]) -> list[str]:
    return [name.removesuffix(".bytes") for name in stored if name.endswith(".bytes")]


def _vectors(stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {
        name: tensor
        for name, tensor in stored.items()
        if tensor.dtype == torch.bfloat16 and not name.endswith((".scale", "witnesses"))
    }


def _model(shape: HeadShape, stored: Mapping[str, Tensor], target: LoadedModel) -> HeadModel:
    dtype, device = target.dtype, target.device
    kept_ids = stored["kept_ids"].long()
    linears = {
        name.removesuffix(".weight"): Linear(stored[f"{name}.bytes"], stored[f"{name}.scale"], dtype, device)
        for name in _matrices(stored)
    }
    linears["head"] = Linear.of(output_rows(target.model, kept_ids).to(device, dtype))
    vectors = {name: tensor.to(device, dtype) for name, tensor in _vectors(stored).items()}
    return HeadModel(shape, vectors, linears, kept_ids.to(device))


def output_rows(model: Any, token_ids: Tensor) -> Tensor:
    """The rows of a model's output head for `token_ids`, (tokens, width), also where its weights are packed.

    Raises:
        ModelError: a model without a plain output head.
    """
    head = model.get_output_embeddings()
    tied = getattr(model.config, "tie_word_embeddings", False)
    weight = model.get_input_embeddings().weight if tied else getattr(head, "weight", None)
    if weight is None or getattr(head, "bias", None) is not None:
        raise ModelError("This target has no plain output head to share; distill a draft of the kind tiny.")
    if weight.is_mkldnn:
        weight = weight.to_dense()
    rows: Tensor = weight.detach()[token_ids.to(weight.device)]
    return rows


def _table(target: LoadedModel) -> Tensor:
    model: Any = target.model
    table: Tensor = model.get_input_embeddings().weight.detach()
    return table


def _witness_ids(vocab_size: int) -> Tensor:
    return torch.linspace(0, vocab_size - 1, min(_NUM_WITNESSES, vocab_size)).long()


def _check_target(
    name: str, shape: HeadShape, vocab_size: int, wanted: str, target: LoadedModel, witnesses: Tensor
) -> None:
    """A head reads its target's embeddings and states: with another target it would only guess."""
    table = _table(target)
    advice = f"train one for it: python -m specviz distill --target {target.name} --kind {shape.kind} --out DIR"
    if tuple(table.shape) != (vocab_size, shape.hidden_size):
        raise ModelError(
            f"The draft head {name!r} was trained for {wanted} ({vocab_size:,} tokens, hidden size "
            f"{shape.hidden_size}) and cannot draft for {target.name} ({len(table):,}, {table.shape[1]}); {advice}"
        )
    ours, theirs = table[_witness_ids(vocab_size).to(table.device)].float().cpu(), witnesses.float()
    if float((ours - theirs).norm()) > _MOST_STRANGE * float(theirs.norm()):
        raise ModelError(
            f"The draft head {name!r} was trained for {wanted}, whose embeddings are not those of {target.name}; "
            f"{advice}"
        )
