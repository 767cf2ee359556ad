"""`pruned`, `pruned-two` and `feature`: small heads on the target's own embeddings and its cut output head.

Owns: these kinds: their sizes and what a target must have. Must not know how heads are taught.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from specviz.distill.kinds.head import Head, forward_size
from specviz.distill.kinds.kind import Lesson
from specviz.distill.states import StateStore
from specviz.distill.store import Chat
from specviz.drafts.head import HeadShape
from specviz.errors import ConfigError, ModelError

_MOST_KEPT, _FEWEST_KEPT = 8192, 64
_LAYER_PARTS = {
    "self_attn.q_proj.weight",
    "self_attn.k_proj.weight",
    "self_attn.v_proj.weight",
    "self_attn.o_proj.weight",
    "mlp.gate_proj.weight",
    "mlp.up_proj.weight",
    "mlp.down_proj.weight",
    "input_layernorm.weight",
    "post_attention_layernorm.weight",
}


class Pruned(Head):
    """The target's first layer, trained further, and as many tokens as `share` allows."""

    kind = "pruned"
    can_follow = True
    share = 20
    """It multiplies at most 1/share of the target's parameters per token."""
    taken: tuple[int, ...] = (0,)
    """The target's layers that it starts from, one for each of its own; counted from the end below 0."""
    reading_share = 0.05
    origin = (
        "Started from the target's first layer, its sums refitted to guess the target's last state, and its last "
        "norm."
    )
    course = (
        "Cross-entropy over the kept tokens against the target's 16 largest probabilities, all others as one "
        "class, mixed with its first choice."
    )

    def start_from(self, name: str) -> None:
        super().start_from(name)
        self.reading_share = 0.0  # the target's states serve the first fit alone

    def _sizes(self, target: Any) -> tuple[HeadShape, int]:
        shape = dataclasses.replace(_shape(target, "pruned"), num_layers=len(self.taken))
        if not is_llama_like(target):
            raise ModelError(
                "This target's layers are not built like Llama's, so none can be taken over; choose the kind tiny."
            )
        room = (target.num_parameters() // self.share - forward_size(shape, 0)) // shape.hidden_size
        if room < _FEWEST_KEPT:
            layers = "One layer of this target is" if shape.num_layers == 1 else "Two layers of this target are"
            raise ModelError(
                f"{layers} more than 1/{self.share} of its {target.num_parameters():,} "
                "parameters; choose the kind tiny."
            )
        return shape, min(room // 100 * 100 or room, _MOST_KEPT, len(self._table))

    def _layers(self, target: Any) -> list[int]:
        return [index % target.config.num_hidden_layers for index in self.taken]


class PrunedTwo(Pruned):
    """The target's first and last layer: better guesses for nearly twice the work of `Pruned`."""

    kind = "pruned-two"
    share = 11
    taken = (0, -1)
    origin = Pruned.origin.replace("first layer, its", "first and last layer, their")


class Feature(Head):
    """One layer over [token; target's state], then over its own states."""

    kind = "feature"
    reading_share = 0.35
    origin = "Started as the best linear guess of the target's next state, matrix by matrix."
    course = (
        "Reads the embedding of the last token and the target's hidden state before it, then its own states "
        "(EAGLE, 2401.15077). Cross-entropy over the kept tokens against the target's 16 largest probabilities, "
        "all others as one class, mixed with its first choice; in the second half several steps ahead on its own "
        "states (2503.01840)."
    )

    def _sizes(self, target: Any) -> tuple[HeadShape, int]:
        return _shape(target, "feature"), min(_MOST_KEPT, len(self._table))

    def _layers(self, target: Any) -> list[int]:
        return [target.config.num_hidden_layers - 1] if is_llama_like(target) else []

    def _read_states(self, lesson: Lesson) -> Sequence[Chat]:
        super()._read_states(lesson)
        self._stores[1].fill(self._target, lambda _: True)
        read = [chat for chat in lesson.chats if chat in self._stores[0]]
        if not read:
            raise ConfigError("The target could read none of its chats in the time given; give more --minutes.")
        return read

    @property
    def _given(self) -> StateStore | None:
        return self._stores[0]

    @property
    def _given_held_out(self) -> StateStore | None:
        return self._stores[1]


def _shape(target: Any, kind: Any) -> HeadShape:
    """A layer of the target's own sizes."""
    config = target.config
    heads, width = config.num_attention_heads, config.hidden_size
    rope = getattr(config, "rope_parameters", None) or {}
    return HeadShape(
        kind=kind,
        hidden_size=width,
        inner_size=getattr(config, "intermediate_size", None) or 8 * width // 3,
        num_layers=1,
        num_heads=heads,
        num_kv_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_dim=getattr(config, "head_dim", None) or width // heads,
        rope_theta=float(rope.get("rope_theta", 10_000.0)),
        norm_eps=float(getattr(config, "rms_norm_eps", 1e-5)),
    )


def is_llama_like(target: Any) -> bool:
    """Whether its decoder's layers hold just what a Llama's do."""
    layers = getattr(target.get_decoder(), "layers", None)
    return layers is not None and {name for name, _ in layers[0].named_parameters()} == _LAYER_PARTS
