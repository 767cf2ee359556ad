"""`pruned`, `pruned-two` and `feature`: small heads on the target's own embeddings and its cut output head.

Owns: these kinds: their sizes, what a target must have, how they are taught. Must not know how data are
written or where jobs keep their state.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from specviz.distill.boost import gain
from specviz.distill.headbatch import for_fitting
from specviz.distill.headfit import fit_states, start_weights
from specviz.distill.headnet import HeadNet
from specviz.distill.headtrain import HeadLearner, hits
from specviz.distill.kinds.course import reporter
from specviz.distill.kinds.kind import About, Lesson
from specviz.distill.measure import Agreement, Hits, replay
from specviz.distill.report import Report
from specviz.distill.states import StateStore
from specviz.distill.store import Chat
from specviz.distill.train import Progress, Trainer, TrainSettings
from specviz.drafts.eight_bit import from_eight_bits, to_eight_bits
from specviz.drafts.head import HeadShape
from specviz.drafts.head_file import output_rows, save_head
from specviz.errors import ModelError

_MOST_KEPT, _FEWEST_KEPT = 8192, 64
_STATES = "states"
_RATE = 1e-3
_FITTED_CHATS, _FITTED_AT_ONCE = 600, 50
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
_AGREEMENT = (
    "Share of positions where the head's first choice, behind the target's own greedy answer so far, is the "
    "target's token; on chats that were never trained on, with the weights in eight bits."
)


class _Head:
    """What both kinds share: `_net` learns, embeddings and output head stay the target's."""

    data_share = 0.6
    can_follow = False
    kind: str
    reading_share: float
    """The largest share of the training's time in which the target reads its chats again."""
    training: str

    def build(self, target: Any, tokenizer: Any, seed: int) -> None:
        del tokenizer  # a head speaks in the target's ids
        self._target, self._target_size = target, target.num_parameters()
        self._table = target.get_input_embeddings().weight.detach()
        output_rows(target, torch.zeros(1, dtype=torch.long))  # refused now where there are none
        shape, num_kept = self._sizes(target)
        self._net = HeadNet(shape, self._table, num_kept)
        start_weights(self._net, target, self._layers(target), seed)
        self._net.to(target.device)

    def _sizes(self, target: Any) -> tuple[HeadShape, int]:
        """(the head's sizes, how many tokens it keeps)."""
        raise NotImplementedError

    def _layers(self, target: Any) -> list[int]:
        """Which of the target's layers the head starts from; none where they are built otherwise."""
        raise NotImplementedError

    def train(self, lesson: Lesson) -> Progress:
        self._target_name = lesson.target
        chats = self._read_states(lesson)
        self._net.kept_ids.copy_(most_frequent(chats, len(self._table), len(self._net.kept_ids)))
        if not lesson.checkpoint.exists():
            self._fit(chats)
        self._earlier = lesson.earlier
        learner = HeadLearner(self._net, self._target, self._given, self._earlier)
        settings = TrainSettings(lesson.seconds, lesson.max_steps, lesson.seed, learning_rate=_RATE)
        trainer = Trainer(learner, chats, settings, lesson.checkpoint, lesson.clock)
        return trainer.run(reporter(trainer, settings, lesson, self._agreement))

    def _read_states(self, lesson: Lesson) -> Sequence[Chat]:
        """Has the target read chats again, for as much of the time as this kind allows; the chats to train on."""
        folder = lesson.checkpoint.parent / _STATES
        self._target.set_attn_implementation("sdpa")  # the writer's takes one token a row
        self._stores = [
            StateStore(folder / "trained", lesson.chats),
            StateStore(folder / "held-out", lesson.held_out),
        ]
        began, resumed = lesson.clock(), lesson.checkpoint.exists()

        def go_on(share: float) -> bool:
            used = lesson.clock() - began
            left = lesson.seconds - used
            lesson.say(Report("train", "Reading the target's states", share * self.reading_share, left))
            return used < lesson.seconds * self.reading_share and not resumed

        self._stores[0].fill(self._target, go_on)
        return lesson.chats

    def _fit(self, chats: Sequence[Chat]) -> None:
        """First weights from the target's states."""
        read = [chat for chat in chats if chat in self._stores[0]][:_FITTED_CHATS]
        parts = [read[i : i + _FITTED_AT_ONCE] for i in range(0, len(read), _FITTED_AT_ONCE)]
        states, reads, device = self._stores[0], self._net.shape.kind, self._table.device
        if parts:
            fit_states(self._net, lambda: (for_fitting(part, states, reads, device) for part in parts))

    def measure(self, held_out: Sequence[Chat]) -> Agreement:
        with torch.no_grad():
            for parameter in self._net.parameters():
                if parameter.dim() == 2:
                    parameter.copy_(from_eight_bits(*to_eight_bits(parameter)))
        self._gain = gain(self._answer_hits, self._earlier, held_out) if self._earlier else None
        return self._agreement(held_out)

    def _answer_hits(self, chat: Chat) -> Hits:
        found: Hits = hits(HeadLearner(self._net, self._target, self._given_held_out), chat)[0]
        return found

    def _agreement(self, chats: Sequence[Chat]) -> Agreement:
        learner = HeadLearner(self._net, self._target, self._given_held_out)
        return replay([hits(learner, chat) for chat in chats if chat.num_answer])

    @property
    def _given(self) -> StateStore | None:
        """The states that this head reads beside the tokens."""
        return None

    @property
    def _given_held_out(self) -> StateStore | None:
        return None

    def save(self, out: Path) -> None:
        kept_ids, weights = self._net.kept_ids, dict(self._net.named_parameters())
        save_head(out, self._net.shape, weights, kept_ids, self._target_name, self._table)
        self._bytes = (out / "model.safetensors").stat().st_size
        for store in self._stores:
            store.remove()
        (out / _STATES).rmdir()

    def about(self) -> About:
        stored = sum(parameter.numel() for parameter in self._net.parameters())
        forward = forward_size(self._net.shape, len(self._net.kept_ids))
        rows = (
            ("parameters", f"{stored:,}; embeddings and output head are the target's own"),
            (
                "forward parameters",
                f"{forward:,} weights multiplied per token (1/{self._target_size / forward:.1f} of the target's), "
                f"the head cut to the {len(self._net.kept_ids):,} most frequent tokens of the answers",
            ),
            ("bytes", f"{self._bytes:,} (eight bits a weight, a scale a row)"),
        )
        training = self.training + (self._earlier.training() if self._earlier else "")
        return About(rows + (self._gain.rows() if self._gain else ()), training, _AGREEMENT)


class Pruned(_Head):
    """The target's first layer, trained further, and as many tokens as `share` allows."""

    kind = "pruned"
    can_follow = True
    share = 20
    """It multiplies at most 1/share of the target's parameters per token."""
    taken: tuple[int, ...] = (0,)
    """The target's layers that it starts from, one for each of its own; counted from the end below 0."""
    reading_share = 0.05
    training = (
        "Started from the target's first layer, its sums refitted to guess the target's last state, and its last "
        "norm. Cross-entropy over the kept tokens against the "
        "target's 16 largest probabilities, all others as one class, mixed with its first choice; Muon for "
        "matrices, AdamW for vectors."
    )

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
    training = Pruned.training.replace("first layer, its", "first and last layer, their")


class Feature(_Head):
    """One layer over [token; target's state], then over its own states."""

    kind = "feature"
    reading_share = 0.35
    training = (
        "Reads the embedding of the last token and the target's hidden state before it, then its own states "
        "(EAGLE, 2401.15077). Started as the best linear guess of the target's next state, matrix by matrix; then "
        "cross-entropy over the kept tokens against the target's 16 largest probabilities, all others as one "
        "class, mixed with its first choice; in the second half several steps ahead on its own states "
        "(2503.01840); Muon for matrices, AdamW for vectors."
    )

    def _sizes(self, target: Any) -> tuple[HeadShape, int]:
        return _shape(target, "feature"), min(_MOST_KEPT, len(self._table))

    def _layers(self, target: Any) -> list[int]:
        return [target.config.num_hidden_layers - 1] if is_llama_like(target) else []

    def _read_states(self, lesson: Lesson) -> Sequence[Chat]:
        super()._read_states(lesson)
        self._stores[1].fill(self._target, lambda _: True)
        return [chat for chat in lesson.chats if chat in self._stores[0]]

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


def forward_size(shape: HeadShape, num_kept: int) -> int:
    """Weights multiplied per token, those of the cut output head included."""
    width, attended = shape.hidden_size, shape.num_heads * shape.head_dim
    layer = width * (2 * attended + 2 * shape.num_kv_heads * shape.head_dim + 3 * shape.inner_size)
    fuse = 2 * width * width if shape.kind == "feature" else 0
    return shape.num_layers * layer + fuse + num_kept * width


def most_frequent(chats: Sequence[Chat], vocab_size: int, num: int) -> torch.Tensor:
    """The ids (num,), ascending, that stand most often in answers; the lowest first among equals."""
    counts = np.zeros(vocab_size, np.int64)
    for chat in chats:
        counts += np.bincount(chat.ids[chat.answer_start :], minlength=vocab_size)
    return torch.from_numpy(np.sort(np.argsort(-counts, kind="stable")[:num]))
