"""The shape and the first weights of a small causal draft.

Owns: choosing a Llama that stays under a share of the target's parameters, and starting its embeddings
from the target's principal components. Must not know data, training or files.
"""

from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from specviz.errors import ModelError

SHARE = 20
"""The draft has at most 1/SHARE of the target's parameters."""
_EMBEDDING_RMS = 0.05


def tiny_config(target: Any, vocab_size: int, budget: int) -> LlamaConfig:
    """The widest two-layer Llama of at most `budget` parameters whose vocabulary is `vocab_size`.

    Raises ModelError when not even the embeddings fit.
    """
    for width in (512, 384, 256, 192, 128, 96, 64, 48, 32, 16, 8):
        spare = budget - vocab_size * width - _layers_size(width, 0)
        inner = min(4 * width, spare // (NUM_LAYERS * 3 * width) // 8 * 8)
        if inner >= 2 * width:
            return _config(target, vocab_size, width, inner)
    raise ModelError(
        f"A draft of 1/{SHARE} of this target's size ({budget:,} parameters) cannot hold embeddings for "
        f"its {vocab_size:,} tokens; choose a larger target or a draft without weights such as lookup."
    )


NUM_LAYERS = 2


def _layers_size(width: int, inner: int) -> int:
    return NUM_LAYERS * (4 * width * width + 3 * width * inner + 2 * width) + width


def _config(target: Any, vocab_size: int, width: int, inner: int) -> LlamaConfig:
    heads = max(1, width // 32)
    return LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=width,
        intermediate_size=inner,
        num_hidden_layers=NUM_LAYERS,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        max_position_embeddings=target.max_position_embeddings,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        bos_token_id=target.bos_token_id,
        eos_token_id=target.eos_token_id,
        pad_token_id=None,
    )


def build(target: Any, seed: int) -> LlamaForCausalLM:
    """A fresh float32 draft for `target` (a causal model of transformers), the same for the same seed."""
    embeddings = target.get_input_embeddings().weight.detach()
    budget = target.num_parameters() // SHARE
    config = tiny_config(target.config, embeddings.shape[0], budget)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        student = LlamaForCausalLM(config)
    student.model.embed_tokens.weight.data.copy_(principal(embeddings, config.hidden_size))
    return student


def principal(embeddings: torch.Tensor, width: int) -> torch.Tensor:
    """The first `width` principal components of `embeddings` (vocab, any), as (vocab, width), rescaled."""
    table = embeddings.float().cpu()
    _, vectors = torch.linalg.eigh(table.T @ table)
    start = table @ vectors[:, -min(width, table.shape[1]) :]
    padded = torch.zeros(table.shape[0], width)
    padded[:, : start.shape[1]] = start
    return padded * (_EMBEDDING_RMS / padded.square().mean().sqrt().clamp_min(1e-8))
