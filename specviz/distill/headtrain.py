"""What a draft head learns from a batch of chats: labels over its cut head, the loss, the chains.

Owns: `CutHead`, batches for both kinds of head, their losses, and what counts as a hit. Must not know files, kinds'
names on disk, or the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from specviz.distill.headfit import Reading
from specviz.distill.headnet import HeadNet
from specviz.distill.loss import Labels, soft_shares, top_and_tail
from specviz.distill.measure import Hits
from specviz.distill.store import Chat
from specviz.distill.train import Scored, TrainSettings
from specviz.drafts.head_file import output_rows

States = Callable[[Chat], Tensor]
"""The target's last hidden states of a chat, (tokens, width)."""
_NEVER = -1e4
NUM_STEPS = 4
ALONE_FROM = 0.5
"""The share of the training after which a `feature` head learns chains of NUM_STEPS on its own states."""


class CutHead:
    """The target's output rows of the tokens that are kept, and one class more for all that are not.

    `kept_ids` (classes,) ascending. A label that was cut carries no weight: nothing can be learned from it.
    """

    def __init__(self, rows: Tensor, kept_ids: npt.NDArray[np.int64], vocab_size: int) -> None:
        """`rows` (classes, width) belong to `kept_ids`."""
        self.kept_ids = kept_ids
        self.rows = torch.cat((rows, torch.zeros_like(rows[:1])))
        self.prior = torch.zeros(len(self.rows), device=rows.device)
        self.prior[-1] = _NEVER
        self._class_of = np.full(vocab_size, len(kept_ids), np.int64)
        self._class_of[kept_ids] = np.arange(len(kept_ids))

    def labels(self, top_ids: npt.NDArray[np.int64], top_logps: npt.NDArray[np.float16], greedy: float) -> Labels:
        """Labels of all rows, each of weight 1 / rows."""
        columns = self._class_of[top_ids]
        weights, tail = soft_shares(top_logps, greedy)
        weights[columns == len(self.kept_ids)] = 0
        share, device = np.float32(1 / max(1, len(top_ids))), self.rows.device
        return Labels(
            torch.from_numpy(columns).to(device),
            torch.from_numpy(weights * share).to(device),
            torch.from_numpy(tail * share).to(device),
            self.prior,
        )

    def loss(self, states: Tensor, labels: Labels) -> Tensor:
        """Cross-entropy of states (rows, width) over the kept tokens."""
        return top_and_tail(states.float(), self.rows, labels, torch.bfloat16)

    def choose(self, states: Tensor) -> npt.NDArray[np.int64]:
        """First choice behind each of `states` (rows, width), as ids (rows,)."""
        logits = states.to(self.rows.dtype) @ self.rows[:-1].T
        return self.kept_ids[logits.float().argmax(-1).cpu().numpy()]


@dataclass(frozen=True, eq=False)
class HeadBatch:
    """Padded `ids` (chats, longest), for `feature` the target's `states` (chats, longest, width); which flat `places`
    are scored, against what. `starts` (chats, chains) are rows behind which chains begin; `later` holds, for each
    step after the first, the flat places among the chains and their labels.
    """

    ids: Tensor
    states: Tensor | None
    places: Tensor
    labels: Labels
    starts: Tensor | None
    later: tuple[tuple[Tensor, Labels], ...]
    num_tokens: int


@dataclass(frozen=True)
class HeadRecipe:
    """How a head is taught: the greedy choice's share of a label, the steps of a chain, the share of answer positions
    behind which chains begin, the weight of each further step, and that of matching the target's states."""

    greedy_share: float = 0.3
    num_steps: int = 1
    chain_share: float = 0.25
    step_weight: float = 0.8
    state_weight: float = 0.0


def make_head_batch(
    chats: Sequence[Chat], head: CutHead, recipe: HeadRecipe, rng: np.random.Generator, states: States | None
) -> HeadBatch:
    """A batch on the head's device. For `feature` (with `states`) row i reads token i + 1 and the state of token i,
    and is scored against token i + 2; for `pruned` row i reads token i and is scored against token i + 1."""
    ahead = 1 if states is None else 2
    device = head.rows.device
    longest = max(len(chat.ids) for chat in chats) - (ahead - 1)
    ids = np.zeros((len(chats), longest), np.int64)
    for row, chat in zip(ids, chats, strict=True):
        row[: len(chat.ids) - ahead + 1] = chat.ids[ahead - 1 :]
    spans = [(chat.answer_start - ahead, len(chat.ids) - ahead) for chat in chats]
    places = np.concatenate([np.arange(*span) + i * longest for i, span in enumerate(spans)])
    labels = _labels(head, recipe, [chat.top_ids[_answer(chat)] for chat in chats], [chat.top_logps[_answer(chat)] for chat in chats])
    starts, later = None, ()
    if states is not None and recipe.num_steps > 1:
        starts, later = _chains(chats, spans, head, recipe, rng)
    return HeadBatch(
        torch.from_numpy(ids).to(device),
        None if states is None else _pad([states(chat)[:-1] for chat in chats], longest).to(device),
        torch.from_numpy(places).to(device),
        labels,
        starts,
        later,
        len(places),
    )


def for_fitting(chats: Sequence[Chat], states: States, device: torch.device) -> Reading:
    """What `fit_states` asks for: padded ids, the target's states, and which rows guess an answer's states."""
    longest = max(len(chat.ids) for chat in chats)
    ids = _pad([torch.from_numpy(chat.ids[1:, None]) for chat in chats], longest - 1)[..., 0]
    rows = torch.arange(longest - 1)[None]
    first = torch.tensor([chat.answer_start - 2 for chat in chats])[:, None]
    last = torch.tensor([len(chat.ids) - 2 for chat in chats])[:, None]
    inside = (rows >= first) & (rows <= last)
    return ids.to(device), _pad([states(chat) for chat in chats], longest).to(device), inside.to(device)


def _answer(chat: Chat) -> slice:
    return slice(chat.answer_start - chat.first_row, None)


def _labels(head, recipe, top_ids, top_logps) -> Labels:
    return head.labels(np.concatenate(top_ids), np.concatenate(top_logps), recipe.greedy_share)


def _pad(parts: list[Tensor], longest: int) -> Tensor:
    padded = parts[0].new_zeros(len(parts), longest, parts[0].shape[1])
    for row, part in zip(padded, parts, strict=True):
        row[: len(part)] = part
    return padded


def _chains(chats, spans, head, recipe, rng):
    """Starts (chats, chains) and, for each later step, which chains still stand in their answer, with labels."""
    num = max(1, round(recipe.chain_share * float(np.mean([stop - start for start, stop in spans]))))
    starts = np.stack([rng.integers(start, max(start + 1, stop - recipe.num_steps + 1), num) for start, stop in spans])
    later = []
    for step in range(1, recipe.num_steps):
        rows, columns = np.nonzero(starts + step < np.array([[stop] for _, stop in spans]))
        positions = [starts[i, j] + step + 2 - chats[i].first_row for i, j in zip(rows, columns, strict=True)]
        top_ids = np.stack([chats[i].top_ids[p] for i, p in zip(rows, positions, strict=True)]) if len(rows) else np.zeros((0, 16), np.int64)
        top_logps = np.stack([chats[i].top_logps[p] for i, p in zip(rows, positions, strict=True)]) if len(rows) else np.zeros((0, 16), np.float16)
        places = torch.from_numpy(rows * num + columns).to(head.rows.device)
        later.append((places, head.labels(top_ids, top_logps, recipe.greedy_share)))
    return torch.from_numpy(starts).to(head.rows.device), tuple(later)


def head_loss(net: HeadNet, head: CutHead, batch: HeadBatch, recipe: HeadRecipe) -> Tensor:
    """Mean loss of a scored position, further steps added with falling weights. Products are in bfloat16."""
    with torch.autocast(batch.ids.device.type, torch.bfloat16):
        if batch.states is None:
            return head.loss(net.read_tokens(batch.ids).flatten(0, 1).index_select(0, batch.places), batch.labels)
        own, kept = net.read_states(batch.ids, batch.states)
        first = own.flatten(0, 1).index_select(0, batch.places)
        loss = head.loss(first, batch.labels)
        if recipe.state_weight:
            loss = loss + recipe.state_weight * _state_loss(first, batch)
        if batch.starts is None:
            return loss
        last, weight, chains = _gather(own, batch.starts), 1.0, []
        for step, (places, labels) in enumerate(batch.later, start=1):
            ids = batch.ids.gather(1, (batch.starts + step).clamp_max(batch.ids.shape[1] - 1))
            last = net.go_on(ids, last, batch.starts, kept, chains)
            weight *= recipe.step_weight
            loss = loss + weight * head.loss(last.flatten(0, 1).index_select(0, places), labels)
    return loss


def _state_loss(first: Tensor, batch: HeadBatch) -> Tensor:
    """Smooth L1 distance to the target's own next states (2401.15077, eq. 4); the last row of a chat has none."""
    assert batch.states is not None
    width = batch.states.shape[-1]
    theirs = batch.states[:, 1:].reshape(-1, width)
    longest = batch.states.shape[1]
    inside = batch.places % longest < longest - 1
    places = batch.places[inside]
    theirs = theirs.index_select(0, places - places // longest).float()
    return torch.nn.functional.smooth_l1_loss(first[inside].float(), theirs)


def _gather(states: Tensor, rows: Tensor) -> Tensor:
    return states.gather(1, rows[..., None].expand(-1, -1, states.shape[-1]))


class HeadLearner:
    """A head that learns: its network, the target's output rows, and for `feature` the target's `states`."""

    def __init__(self, net: HeadNet, target: Any, states: States | None) -> None:
        self.net, self._target, self.states = net, target, states

    @cached_property
    def head(self) -> CutHead:
        """Cut to the network's kept ids; made late, since a checkpoint brings them along."""
        rows = output_rows(self._target, self.net.kept_ids)
        return CutHead(rows, self.net.kept_ids.cpu().numpy(), len(self.net.table))

    def optimizers(self, settings: TrainSettings) -> list[torch.optim.Optimizer]:
        rate, decay = settings.learning_rate, settings.weight_decay
        matrices = [parameter for parameter in self.net.parameters() if parameter.dim() == 2]
        vectors = [parameter for parameter in self.net.parameters() if parameter.dim() != 2]
        return [
            torch.optim.Muon(matrices, lr=rate, weight_decay=decay, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(vectors, lr=rate, betas=(0.9, 0.98), weight_decay=0.0, fused=True),
        ]

    def lesson(self, chats: Sequence[Chat], settings: TrainSettings, number: int, fraction: float) -> Scored:
        recipe = HeadRecipe(settings.greedy_share, num_steps=1 if fraction < ALONE_FROM else NUM_STEPS)
        rng = np.random.default_rng((settings.seed, 3, number))
        batch = make_head_batch(chats, self.head, recipe, rng, self.states)
        return Scored(head_loss(self.net, self.head, batch, recipe), batch.num_tokens)


@torch.inference_mode()
def hits(learner: HeadLearner, chat: Chat, num_steps: int = 4) -> Hits:
    """Whether the choice at each answer position is the target's: (steps, answer tokens).

    Row k holds what is chosen k tokens after the last one that was verified, a `feature` head then being on its own
    states; a `pruned` one reads tokens only, so that all its rows are one.
    """
    net, head = learner.net, learner.head
    wanted = chat.top_ids[_answer(chat), 0]
    ids = torch.from_numpy(chat.ids).to(head.rows.device)[None]
    if learner.states is None:
        own = net.read_tokens(ids[:, :-1])[0, chat.answer_start - 1 :]
        return np.broadcast_to(head.choose(own) == wanted, (num_steps, len(wanted)))
    own, kept = net.read_states(ids[:, 1:-1], learner.states(chat)[None, :-2].to(net.norm))
    starts = torch.arange(chat.answer_start - 2, ids.shape[1] - 2, device=ids.device)[None]
    last, chains = _gather(own, starts), []
    found = np.zeros((num_steps, len(wanted)), np.bool_)
    found[0] = head.choose(last[0]) == wanted
    for step in range(1, num_steps):
        now = ids[:, 1:].gather(1, (starts + step).clamp_max(ids.shape[1] - 2))
        last = net.go_on(now, last, starts, kept, chains)
        found[step, step:] = head.choose(last[0])[: len(wanted) - step] == wanted[step:]
    return found
