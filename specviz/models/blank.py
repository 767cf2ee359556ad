"""A draft that knows nothing: small, untrained, and the same wherever it is made.

Owns: the shape and the weights of `blank`. Must not know the registry, targets or runs.
"""

from __future__ import annotations

import torch
from transformers import LlamaConfig, LlamaForCausalLM

_SEED = 0
_SPREAD = 0.02
_POSITIONS = 8192  # where the target names no limit


@torch.no_grad()
def untrained(vocab_size: int, context_len: int) -> LlamaForCausalLM:
    """The shape of the bundled small draft with random weights, float32, for a vocabulary of `vocab_size`.

    Input and output embeddings are not tied: tied ones would prefer the token just read, which is a guess
    that a text with repeats sometimes bears out.
    """
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=128,
        intermediate_size=392,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=context_len or _POSITIONS,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = LlamaForCausalLM(config)
    generator = torch.Generator().manual_seed(_SEED)
    for parameter in model.parameters():
        if parameter.dim() > 1:  # the rest are the norms' ones
            parameter.normal_(0.0, _SPREAD, generator=generator)
    return model
