"""Models in memory: loading, the checks that make decoding lossless, and the one registry.

Owns: `LoadedModel`, `load`, and the only module-level state of the project: the registry of loaded models,
behind a lock. Must not know caches, drafts or runs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging

from specviz.errors import ModelError
from specviz.models.blank import untrained
from specviz.models.catalog import BLANK
from specviz.models.hub import first_line
from specviz.models.source import FROM_DISK, folder_of
from specviz.numerics import EXACT_ATTENTION, fast_dtype, pack_linears

Progress = Callable[[str, float | None], None]
_RECURRENT = ("linear", "mamba", "recurrent", "ssm", "rwkv", "conv")
_LAYER_KINDS = {"full_attention", "sliding_attention"}
_REGISTRY: dict[tuple[str, str, str, str], LoadedModel] = {}
_LOCK = threading.RLock()
transformers_logging.disable_progress_bar()  # it writes to the terminal; the faces are told by `Progress`


@dataclass
class LoadedModel:
    """A causal LM with what decoding needs to know of it. Shared by all visitors and never changed by a run.

    `numerics` is "exact" where blocks are meant to equal single passes bit for bit (CPU, bfloat16);
    `bit_exact` whether the probe found that they do. `pass_times` maps block size to seconds of one pass.
    `num_params` counts tied weights once.
    """

    name: str
    model: nn.Module
    tokenizer: Any
    eos_ids: frozenset[int] = frozenset()
    numerics: str = "fast"
    bit_exact: bool = False
    pass_times: dict[int, float] = field(default_factory=dict)
    num_params: int = 0

    @property
    def config(self) -> Any:
        return self.model.config

    @property
    def vocab_size(self) -> int:
        return int(self.config.vocab_size)

    @property
    def context_len(self) -> int:
        """Positions that can be decoded; 0 where the model names no limit.

        With two sets of rotary factors ("longrope") only those before the switch: a pass across it would take
        the second set for all its rows, and single passes would not.
        """
        limit = int(getattr(self.config, "max_position_embeddings", 0) or 0)
        rope = getattr(self.config, "rope_parameters", None) or {}
        if rope.get("rope_type") == "longrope":
            return min(limit, int(rope.get("original_max_position_embeddings") or limit))
        return limit

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        return next(self.model.parameters()).dtype


def load(
    name: str,
    *,
    dtype: str = "auto",
    device: str = "auto",
    numerics: str = "exact",
    progress: Progress | None = None,
) -> LoadedModel:
    """The model of that name from the registry, loaded at the first call.

    Raises:
        ModelError: it cannot be had, or not be decoded losslessly.
    """
    device = _device(device)
    kind = _dtype(dtype, torch.device(device))
    if not _is_cpu_bfloat16(kind, torch.device(device)):
        numerics = "fast"  # what it comes to anyway, so that one model is not kept twice
    key = (name, str(kind), device, numerics)
    with _LOCK:
        if key not in _REGISTRY:
            if progress:
                progress(f"Loading {name}", None)
            _REGISTRY[key] = _load(name, kind, device, numerics)
        return _REGISTRY[key]


def registered(
    key: tuple[str, str, str, str],
    make: Callable[[], LoadedModel],
    fits: Callable[[LoadedModel], bool] = lambda _: True,
) -> LoadedModel:
    """What the registry holds under that key; made where it holds nothing, or nothing that fits."""
    with _LOCK:
        kept = _REGISTRY.get(key)
        if kept is None or not fits(kept):
            kept = _REGISTRY[key] = make()
        return kept


def load_blank(target: LoadedModel) -> LoadedModel:
    """The untrained draft for `target`, with its tokens, dtype and device; made at the first call."""
    key = (f"{BLANK} for {target.name}", str(target.dtype), str(target.device), "fast")
    with _LOCK:
        if key not in _REGISTRY:
            model: nn.Module = untrained(target.vocab_size, target.context_len)
            model = model.eval().to(target.device, target.dtype)
            _REGISTRY[key] = wrap(model, target.tokenizer, name=BLANK, numerics="fast")
        return _REGISTRY[key]


def load_plain(name: str, dtype: str = "auto", device: str = "cpu") -> tuple[nn.Module, Any]:
    """(model, tokenizer) as transformers gives them, for training and for comparisons; not registered."""
    return _read(name, _dtype(dtype, torch.device(device)), device)


def load_tokenizer(name: str) -> Any:
    """The tokenizer of a model alone.

    Raises:
        ModelError: it cannot be had.
    """
    folder = folder_of(name)
    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # what reads a damaged file may raise anything
        raise ModelError(f"The tokenizer of {name!r} could not be loaded: {first_line(error)}") from error


def _device(device: str) -> str:
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        kind, index = torch.device(device).type, torch.device(device).index or 0
    except RuntimeError:
        raise ModelError(f"Device {device!r} is none; give auto, cpu, cuda or cuda:N.") from None
    if kind == "cuda" and index >= torch.cuda.device_count():
        raise ModelError(f"Device {device!r} was asked for, but torch finds no such GPU here; give cpu or auto.")
    if kind != "cuda" and device != "cpu":
        raise ModelError(f"Device {device!r} is not supported; give auto, cpu, cuda or cuda:N.")
    return device


def _dtype(dtype: str, device: torch.device) -> torch.dtype:
    named: torch.dtype = fast_dtype(device) if dtype == "auto" else getattr(torch, dtype)
    return named


def _is_cpu_bfloat16(dtype: torch.dtype, device: torch.device) -> bool:
    """Where blocks can be exact."""
    return dtype == torch.bfloat16 and device.type == "cpu"


def _load(name: str, dtype: torch.dtype, device: str, numerics: str) -> LoadedModel:
    model, tokenizer = _read(name, dtype, device)
    return wrap(model, tokenizer, name=name, numerics=numerics)


def _read(name: str, dtype: torch.dtype, device: str) -> tuple[nn.Module, Any]:
    """(model, tokenizer) from the name's folder, refused in one sentence where that fails."""
    folder = folder_of(name)
    try:
        check_decodable(AutoConfig.from_pretrained(folder, **FROM_DISK), name)
        tokenizer = AutoTokenizer.from_pretrained(folder, **FROM_DISK)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, **FROM_DISK)
        return model.eval().to(device), tokenizer
    except ModelError:
        raise
    except Exception as error:  # what reads a damaged file may raise anything
        if "trust_remote_code" in str(error):
            raise ModelError(f"{name!r} needs code from its own folder, which specviz never runs.") from None
        raise ModelError(
            f"{name!r} was found in {folder}, but could not be loaded: {first_line(error)}"
        ) from error


def wrap(model: nn.Module, tokenizer: Any, *, name: str, numerics: str = "exact") -> LoadedModel:
    """Make a transformers model ready to decode: pack its weights, choose its attention.

    Raises:
        ModelError: an encoder-decoder, or a model whose state cannot be rolled back.
    """
    config: Any = model.config
    check_decodable(config, name)
    if getattr(model, "_is_stateful", False):
        raise _recurrent(name)
    eos_ids = eos_ids_of(model, tokenizer)
    num_params = sum(parameter.numel() for parameter in model.parameters())  # packed weights are none any more
    parameter = next(model.parameters())
    on_cpu_bf16 = _is_cpu_bfloat16(parameter.dtype, parameter.device)
    pack_linears(model)
    # A cache of compressed keys is projected by the model itself, in its own dtype.
    exact = numerics == "exact" and on_cpu_bf16 and not getattr(config, "kv_lora_rank", None)
    try:
        model.set_attn_implementation("sdpa")  # type: ignore[operator]  # refused where soft caps or sinks need more
        if exact:
            model.set_attn_implementation(EXACT_ATTENTION)  # type: ignore[operator]
    except (ValueError, ImportError):
        model.set_attn_implementation("eager")  # type: ignore[operator]
    exact = config._attn_implementation == EXACT_ATTENTION  # some classes ignore what they do not know
    model.requires_grad_(False)
    return LoadedModel(
        name, model, tokenizer, eos_ids, numerics="exact" if exact else "fast", num_params=num_params
    )


def eos_ids_of(model: nn.Module, tokenizer: Any) -> frozenset[int]:
    """Ids that end a text: of the generation config (which a config without one gets) and the tokenizer."""
    named: list[int] = []
    generation: Any = getattr(model, "generation_config", None)
    for value in (getattr(generation, "eos_token_id", None), getattr(tokenizer, "eos_token_id", None)):
        named += value if isinstance(value, list) else [] if value is None else [value]
    return frozenset(named)


def check_decodable(config: Any, name: str) -> None:
    """Refuse what one pass over a tree cannot verify and roll back.

    Raises:
        ModelError: one sentence saying why.
    """
    if getattr(config, "is_encoder_decoder", False):
        raise ModelError(f"{name!r} is an encoder-decoder; specviz decodes decoder-only models.")
    if hasattr(config, "get_text_config") and config.get_text_config() is not config:
        raise ModelError(f"{name!r} reads more than text; specviz decodes models of text alone.")
    kinds = set(getattr(config, "layer_types", None) or ())
    if any(mark in kind for kind in (*kinds, str(getattr(config, "model_type", ""))) for mark in _RECURRENT):
        raise _recurrent(name)
    if unknown := sorted(kinds - _LAYER_KINDS):
        raise ModelError(
            f"{name!r} has layers of the kind {unknown[0]!r}; specviz decodes full and sliding attention only."
        )


def _recurrent(name: str) -> ModelError:
    return ModelError(
        f"{name!r} keeps a recurrent state, which cannot be rolled back after a rejected token; "
        "choose a model with attention layers only."
    )


def check_same_tokens(target: LoadedModel, draft: LoadedModel) -> None:
    """A draft must mean the same token by the same id; padding ids at the end may differ.

    Raises:
        ModelError: naming the first id at which the two differ.
    """
    if target.tokenizer is None or draft.tokenizer is None:
        return
    ours, theirs = ({i: t for t, i in m.tokenizer.get_vocab().items()} for m in (target, draft))
    for token_id in sorted(ours.keys() | theirs.keys()):
        if ours.get(token_id) != theirs.get(token_id):
            raise ModelError(
                f"{draft.name!r} cannot draft for {target.name!r}: token id {token_id} is "
                f"{theirs.get(token_id)!r} there and {ours.get(token_id)!r} here."
            )
