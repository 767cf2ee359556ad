"""Training a draft on what the target wrote.

Owns: batches in an order fixed by the seed, the step, the learning-rate course, checkpoints that lose at
most a minute. Must not know where chats come from, model cards or faces.
"""

from __future__ import annotations

import dataclasses
import io
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch

from specviz.distill.boost import Earlier, weighed
from specviz.distill.loss import Labels, choose_classes, soft_shares, top_and_tail
from specviz.distill.store import Chat, write_atomic
from specviz.numerics import fast_dtype, fast_products


@dataclass(frozen=True)
class TrainSettings:
    """How a draft is trained. Training ends after `seconds` or `max_steps`, whichever comes first."""

    seconds: float
    max_steps: int | None = None
    seed: int = 0
    batch_tokens: int = 4096
    learning_rate: float = 3e-3
    rate_share: float = 1.0
    warm_up: float = 0.02
    weight_decay: float = 0.01
    greedy_share: float = 0.3
    user_weight: float = 0.3
    num_sampled: int = 2048
    save_every_s: float = 60.0


@dataclass
class Progress:
    """Where training stands; what a checkpoint holds beside the weights."""

    step: int = 0
    epoch: int = 0
    batch: int = 0
    tokens_seen: int = 0
    elapsed_s: float = 0.0
    loss: float = 0.0
    course: list[tuple[int, float]] = field(default_factory=list)

    def fraction(self, settings: TrainSettings) -> float:
        """Share of the work done, in [0, 1]."""
        by_time = self.elapsed_s / settings.seconds if settings.seconds > 0 else 1.0
        by_step = self.step / settings.max_steps if settings.max_steps else 0.0
        return min(1.0, max(by_time, by_step))


def learning_rate_share(settings: TrainSettings, fraction: float) -> float:
    """Of the full rate: linear warm-up to `rate_share`, then half a cosine down to a hundredth of that."""
    if fraction < settings.warm_up:
        return settings.rate_share * (0.05 + 0.95 * fraction / settings.warm_up)
    course = (fraction - settings.warm_up) / (1 - settings.warm_up)
    return settings.rate_share * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * course)))


def epoch_batches(chats: Sequence[Chat], settings: TrainSettings, epoch: int) -> list[list[int]]:
    """Indices into `chats`, shuffled by seed and epoch, chats of similar length together."""
    rng = np.random.default_rng((settings.seed, 1, epoch))
    order = rng.permutation(len(chats))
    pool = 512
    batches: list[list[int]] = []
    for start in range(0, len(order), pool):
        near = sorted(order[start : start + pool], key=lambda i: len(chats[i].ids))
        batches += _cut(near, chats, settings.batch_tokens)
    return [batches[i] for i in rng.permutation(len(batches))]


def _cut(order: Sequence[int], chats: Sequence[Chat], batch_tokens: int) -> list[list[int]]:
    batches: list[list[int]] = [[]]
    for i in order:
        if batches[-1] and len(chats[i].ids) * (len(batches[-1]) + 1) > batch_tokens:
            batches.append([])
        batches[-1].append(int(i))
    return batches


@dataclass(frozen=True, eq=False)
class Batch:
    """Padded ids (chats, longest) and, for each scored position, its place in the flattened table."""

    ids: torch.Tensor
    places: torch.Tensor
    classes: torch.Tensor
    labels: Labels
    num_tokens: int


def make_batch(
    chats: Sequence[Chat], settings: TrainSettings, vocab_size: int, number: int, device: torch.device
) -> Batch:
    """Everything a step needs, on `device`; `number` seeds the sampled classes."""
    longest = max(len(chat.ids) for chat in chats)
    ids = np.zeros((len(chats), longest), np.int64)
    for row, chat in zip(ids, chats, strict=True):
        row[: len(chat.ids)] = chat.ids
    # The state that predicts position t stands at t - 1.
    places = [np.arange(c.first_row, len(c.ids)) - 1 + i * longest for i, c in enumerate(chats)]
    top_ids = np.concatenate([chat.top_ids for chat in chats])
    rng = np.random.default_rng((settings.seed, 2, number))
    classes, prior = choose_classes(top_ids, vocab_size, settings.num_sampled, rng)
    weights, tail = soft_shares(np.concatenate([chat.top_logps for chat in chats]), settings.greedy_share)
    row_weights = np.concatenate([_row_weights(chat, settings.user_weight) for chat in chats])
    row_weights /= row_weights.sum()
    labels = Labels(
        torch.from_numpy(np.searchsorted(classes, top_ids)).to(device),
        torch.from_numpy(weights * row_weights[:, None]).to(device),
        torch.from_numpy(tail * row_weights).to(device),
        None if prior is None else torch.from_numpy(prior).to(device),
    )
    return Batch(
        torch.from_numpy(ids).to(device),
        torch.from_numpy(np.concatenate(places)).to(device),
        torch.from_numpy(classes).to(device),
        labels,
        len(top_ids),
    )


def _row_weights(chat: Chat, user_weight: float) -> npt.NDArray[np.float32]:
    weights = np.ones(len(chat.ids) - chat.first_row, np.float32)
    weights[: chat.answer_start - chat.first_row] = user_weight
    return weights


def batch_loss(student: Any, batch: Batch) -> torch.Tensor:
    """Mean loss per scored position. Matrices are multiplied in bfloat16 where that is fast, sums are
    kept in float32."""
    with fast_products(batch.ids.device):
        states = student.model(input_ids=batch.ids, use_cache=False).last_hidden_state
    hidden = states.flatten(0, 1).index_select(0, batch.places).float()
    head = student.lm_head.weight
    if batch.labels.prior is not None:
        head = head.index_select(0, batch.classes)
    return top_and_tail(hidden, head, batch.labels, fast_dtype(hidden.device))


class Learner(Protocol):
    """A network with what it learns by: how chats become a loss, and who moves the weights."""

    net: torch.nn.Module

    def optimizers(self, settings: TrainSettings) -> list[torch.optim.Optimizer]:
        """Each with its full learning rates, which the trainer scales along its course."""

    def lesson(self, chats: Sequence[Chat], settings: TrainSettings, number: int, fraction: float) -> Scored:
        """What step `number` learns; `fraction` of the training lies behind."""


class Scored(NamedTuple):
    """The loss of one batch, to be differentiated, and how many positions it scores."""

    loss: torch.Tensor
    num_tokens: int


class Causal:
    """A whole causal LM of transformers that learns every position of a chat, those most that `earlier` miss."""

    def __init__(self, student: Any, earlier: Earlier | None = None) -> None:
        self.net = student
        self._earlier = earlier

    def optimizers(self, settings: TrainSettings) -> list[torch.optim.Optimizer]:
        rate, decay = settings.learning_rate, settings.weight_decay
        moved = self.net.parameters()
        return [torch.optim.AdamW(moved, lr=rate, betas=(0.9, 0.98), weight_decay=decay, fused=True)]

    def lesson(self, chats: Sequence[Chat], settings: TrainSettings, number: int, fraction: float) -> Scored:
        del fraction  # the same from first to last
        batch = make_batch(chats, settings, self.net.config.vocab_size, number, self.net.device)
        if self._earlier:
            labels = weighed(batch.labels, [self._earlier.hits(chat) for chat in chats])
            batch = dataclasses.replace(batch, labels=labels)
        return Scored(batch_loss(self.net, batch), batch.num_tokens)


class Trainer:
    """Trains a learner's network in place; `checkpoint` is read at the start if it is there."""

    def __init__(
        self,
        learner: Learner,
        chats: Sequence[Chat],
        settings: TrainSettings,
        checkpoint: Path,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.learner, self._chats, self._settings = learner, chats, settings
        self._checkpoint, self._clock = checkpoint, clock
        self._optimizers = learner.optimizers(settings)
        self._full_rates = [group["lr"] for group in self._groups()]
        self.progress = Progress()
        self.due = False
        self._load()

    def run(self, report: Callable[[Progress], None]) -> Progress:
        """Trains to the end of the settings' time or steps. `report` is called after each step; `due` is
        then true once a minute and at the first step, when a measurement is worth its time."""
        self.learner.net.train()
        resumed_at, before = self._clock(), self.progress.elapsed_s
        saved_at = resumed_at
        for chats in self._batches():
            if self.progress.fraction(self._settings) >= 1:
                break
            self._step(chats)
            now = self._clock()
            self.progress.elapsed_s = before + now - resumed_at
            self.due = now - saved_at >= self._settings.save_every_s or self.progress.step == 1
            report(self.progress)
            if self.due:
                self.save()
                saved_at = now
        self.save()
        return self.progress

    def _step(self, chats: Sequence[Chat]) -> None:
        fraction = self.progress.fraction(self._settings)
        course = learning_rate_share(self._settings, fraction)
        for group, rate in zip(self._groups(), self._full_rates, strict=True):
            group["lr"] = rate * course
        loss, num_tokens = self.learner.lesson(chats, self._settings, self.progress.step, fraction)
        for optimizer in self._optimizers:
            optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.learner.net.parameters(), 1.0)
        for optimizer in self._optimizers:
            optimizer.step()
        self.progress.loss = loss.item()
        self.progress.step += 1
        self.progress.tokens_seen += num_tokens

    def _groups(self) -> list[dict[str, Any]]:
        """Asked anew each time: loading an optimizer's state replaces them."""
        return [group for optimizer in self._optimizers for group in optimizer.param_groups]

    def _batches(self) -> Iterator[list[Chat]]:
        """Batches without end, from where the progress stands."""
        assert self._chats, "there is nothing to learn from"
        while True:
            plan = epoch_batches(self._chats, self._settings, self.progress.epoch)
            while self.progress.batch < len(plan):
                self.progress.batch += 1
                yield [self._chats[i] for i in plan[self.progress.batch - 1]]
            self.progress.epoch, self.progress.batch = self.progress.epoch + 1, 0

    def save(self) -> None:
        """Writes the checkpoint; a reader finds the old one or the new one."""
        state = {
            "net": self.learner.net.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self._optimizers],
            "progress": vars(self.progress),
        }
        buffer = io.BytesIO()
        torch.save(state, buffer)
        write_atomic(self._checkpoint, lambda file: file.write(buffer.getbuffer()))

    def _load(self) -> None:
        if self._checkpoint.exists():
            state = torch.load(self._checkpoint, weights_only=True, map_location="cpu")
            self.learner.net.load_state_dict(state["net"])
            for optimizer, kept in zip(self._optimizers, state["optimizers"], strict=True):
                optimizer.load_state_dict(kept)
            self.progress = Progress(**state["progress"])
