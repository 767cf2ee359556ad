"""What every draft head has in common while it is made: a small network between the target's embeddings and its
cut output head.

Owns: `Head`: how it is built, started, taught, measured and described. Must not know which heads there are, how
data are written or where jobs keep their state.
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
from specviz.distill.headtrain import HeadLearner, hits, matrices_by
from specviz.distill.kinds.course import reporter
from specviz.distill.kinds.kind import FURTHER, About, Lesson, other_sizes
from specviz.distill.measure import Agreement, replay
from specviz.distill.report import Report
from specviz.distill.states import StateStore
from specviz.distill.store import Chat
from specviz.distill.train import Progress, Trainer, TrainSettings
from specviz.drafts.eight_bit import from_eight_bits, to_eight_bits
from specviz.drafts.head import HeadShape
from specviz.drafts.head_file import is_head, output_rows, read_weights, save_head
from specviz.errors import ModelError
from specviz.models.source import local_folder

_RATE = 1e-3
_FITTED_CHATS, _FITTED_AT_ONCE = 600, 50
_AGREEMENT = (
    "Share of positions where the head's first choice, behind the target's own greedy answer so far, is the "
    "target's token; on chats that were never trained on, with the weights in eight bits."
)

_FURTHER = "Trained further from the weights of another."
_GROWN = (
    "The layers of another stay as they are; the layer behind them started as the target's last, added nothing at "
    "first, and learned alone."
)


class Head:
    """A kind of head without its sizes: `_net` learns, embeddings and output head stay the target's."""

    data_share = 0.6
    can_follow = False
    _known_ids: torch.Tensor | None = None
    """What the head that this one goes on from keeps, ascending."""
    _is_grown = False
    kind: str
    reading_share: float
    """The largest share of the training's time in which the target reads its chats again."""
    origin: str
    """A card's sentence on the first weights."""
    course: str
    """And on what followed."""

    def build(self, target: Any, tokenizer: Any, seed: int) -> None:
        del tokenizer  # a head speaks in the target's ids
        self._target, self._target_size = target, target.num_parameters()
        self._table = target.get_input_embeddings().weight.detach()
        output_rows(target, torch.zeros(1, dtype=torch.long))  # refused now where there are none
        shape, num_kept = self._sizes(target)
        self._net = HeadNet(shape, self._table, num_kept)
        start_weights(self._net, target, self._layers(target), seed)
        self._net.to(target.device)

    def start_from(self, name: str) -> None:
        folder = local_folder(name)
        if folder is None or not is_head(folder):
            raise ModelError(f"--start {name} is no draft head; name a finished draft of the kind {self.kind}.")
        shape, weights, kept_ids = read_weights(folder, name)
        num_layers = self._net.shape.num_layers
        fits = dataclasses.replace(shape, num_layers=num_layers) == self._net.shape
        if not fits or shape.num_layers > num_layers or len(kept_ids) > len(self._net.kept_ids):
            raise other_sizes(name, self.kind)
        self._net.load_state_dict({**self._net.state_dict(), **weights})
        self._known_ids = kept_ids
        self._is_grown = shape.num_layers < num_layers
        if self._is_grown:
            # New layers add nothing at first (`start_weights`): the head begins as what it was, and what it was
            # stays, since it was learned from more than this job may have.
            for name in weights:
                self._net.get_parameter(name).requires_grad_(False)

    def _sizes(self, target: Any) -> tuple[HeadShape, int]:
        """(the head's sizes, how many tokens it keeps)."""
        raise NotImplementedError

    def _layers(self, target: Any) -> list[int]:
        """Which of the target's layers the head starts from; none where they are built otherwise."""
        raise NotImplementedError

    def train(self, lesson: Lesson) -> Progress:
        self._target_name = lesson.target
        chats = self._read_states(lesson)
        self._net.kept_ids.copy_(most_frequent(chats, len(self._table), len(self._net.kept_ids), self._known_ids))
        if self._known_ids is None and not lesson.checkpoint.exists():
            self._fit(chats)
        self._earlier = lesson.earlier
        learner = HeadLearner(self._net, self._target, self._given, self._earlier)
        settings = TrainSettings(
            lesson.seconds,
            lesson.max_steps,
            lesson.seed,
            learning_rate=_RATE,
            rate_share=1.0 if self._known_ids is None or self._is_grown else FURTHER,
        )
        trainer = Trainer(learner, chats, settings, lesson.checkpoint, lesson.clock)
        return trainer.run(reporter(trainer, settings, lesson, self._agreement))

    def _read_states(self, lesson: Lesson) -> Sequence[Chat]:
        """Has the target read chats again, for as much of the time as this kind allows; the chats to train on."""
        self._target.set_attn_implementation("sdpa")  # the writer's takes one token a row
        self._stores = [
            StateStore(lesson.scratch / "trained", lesson.chats),
            StateStore(lesson.scratch / "held-out", lesson.held_out),
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
                is_matrix = parameter.dim() == 2
                parameter.copy_(from_eight_bits(*to_eight_bits(parameter)) if is_matrix else parameter.bfloat16())
        learner = HeadLearner(self._net, self._target, self._given_held_out)
        self._gain = gain(lambda chat: hits(learner, chat)[0], self._earlier, held_out) if self._earlier else None
        return self._agreement(held_out)

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
        origin = self.origin if self._known_ids is None else _GROWN if self._is_grown else _FURTHER
        by = matrices_by(self._table.device)
        moved = "AdamW." if by == "AdamW" else f"{by} for matrices, AdamW for vectors."
        training = f"{origin} {self.course} {moved}" + (self._earlier.training() if self._earlier else "")
        return About(rows + (self._gain.rows() if self._gain else ()), training, _AGREEMENT)


def forward_size(shape: HeadShape, num_kept: int) -> int:
    """Weights multiplied per token, those of the cut output head included."""
    width, attended = shape.hidden_size, shape.num_heads * shape.head_dim
    layer = width * (2 * attended + 2 * shape.num_kv_heads * shape.head_dim + 3 * shape.inner_size)
    fuse = 2 * width * width if shape.kind == "feature" else 0
    return shape.num_layers * layer + fuse + num_kept * width


def most_frequent(
    chats: Sequence[Chat], vocab_size: int, num: int, known: torch.Tensor | None = None
) -> torch.Tensor:
    """The ids (num,), ascending, that stand most often in answers; the lowest first among equals.

    Those that are `known` are among them in any case.
    """
    counts = np.zeros(vocab_size, np.int64)
    for chat in chats:
        counts += np.bincount(chat.ids[chat.answer_start :], minlength=vocab_size)
    if known is not None:
        counts[known] = np.iinfo(counts.dtype).max
    return torch.from_numpy(np.sort(np.argsort(-counts, kind="stable")[:num]))
