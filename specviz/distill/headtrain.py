"""How a draft head learns, and what it has learned.

Owns: the loss of a batch, chains included, `HeadLearner`, and where a head hits. Must not know files or kinds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specviz.distill.boost import Earlier, weighed
from specviz.distill.headbatch import CutHead, HeadBatch, HeadRecipe, States, make_head_batch
from specviz.distill.headnet import Cached, HeadNet
from specviz.distill.measure import Hits
from specviz.distill.store import Chat
from specviz.distill.train import Scored, TrainSettings
from specviz.drafts.head_file import output_rows
from specviz.numerics import fast_dtype, fast_products

NUM_STEPS = 4
ALONE_FROM = 0.5
"""The share of the training after which a `feature` head learns chains of NUM_STEPS on its own states."""


def head_loss(net: HeadNet, head: CutHead, batch: HeadBatch, recipe: HeadRecipe) -> Tensor:
    """Mean loss of a scored position, further steps added with falling weights. In bfloat16 where that is fast."""
    with fast_products(batch.ids.device):
        if batch.states is None:
            own, kept = net.read_tokens(batch.ids), list[Cached]()
        else:
            own, kept = net.read_states(batch.ids, batch.states)
        loss = head.loss(own.flatten(0, 1).index_select(0, batch.places), batch.labels)
        chains: list[list[Cached]] = []
        last = _gather(own, batch.starts)
        for step, (places, labels) in enumerate(batch.later, start=1):
            ids = _read_at(batch.ids, batch.starts + step)
            last = net.go_on(ids, last, batch.starts, kept, chains)
            part = head.loss(last.flatten(0, 1).index_select(0, places), labels)
            loss = loss + recipe.step_weight**step * part
    return loss


def _gather(states: Tensor, rows: Tensor) -> Tensor:
    return states.gather(1, rows[..., None].expand(-1, -1, states.shape[-1]))


def _read_at(ids: Tensor, rows: Tensor) -> Tensor:
    """The tokens that chains read; those that have left their text read anything, and are not scored."""
    return ids.gather(1, rows.clamp_max(ids.shape[1] - 1))


def matrices_by(device: torch.device) -> str:
    """Which optimizer moves matrices: torch's Muon multiplies in bfloat16 alone, which crawls on a CPU without
    instructions for it."""
    return "Muon" if fast_dtype(device) == torch.bfloat16 else "AdamW"


class HeadLearner:
    """A head that learns: its network, the target's output rows, and for `feature` the target's `states`.

    What the drafts that come `earlier` miss counts most.
    """

    def __init__(self, net: HeadNet, target: Any, states: States | None, earlier: Earlier | None = None) -> None:
        self.net: torch.nn.Module = net
        self.head_net, self.states = net, states
        self._earlier = earlier
        self._target = target

    @cached_property
    def head(self) -> CutHead:
        """Cut to the network's kept ids; made late, since a checkpoint brings them along."""
        kept_ids = self.head_net.kept_ids
        return CutHead(output_rows(self._target, kept_ids), kept_ids.cpu().numpy(), len(self.head_net.table))

    def optimizers(self, settings: TrainSettings) -> list[torch.optim.Optimizer]:
        """Muon for matrices (Jordan et al. 2024; scaled as in 2502.16982), AdamW at half its rate for vectors.

        AdamW for matrices, too, where `matrices_by` says so.
        """
        rate, decay = settings.learning_rate, settings.weight_decay
        learning = [parameter for parameter in self.net.parameters() if parameter.requires_grad]
        matrices = [parameter for parameter in learning if parameter.dim() == 2]
        vectors = [parameter for parameter in learning if parameter.dim() != 2]
        first: torch.optim.Optimizer
        if matrices_by(matrices[0].device) == "Muon":
            first = torch.optim.Muon(matrices, lr=rate, weight_decay=decay, adjust_lr_fn="match_rms_adamw")
        else:
            first = torch.optim.AdamW(matrices, lr=rate, betas=(0.9, 0.98), weight_decay=decay, fused=True)
        return [
            first,
            torch.optim.AdamW(vectors, lr=rate / 2, betas=(0.9, 0.98), weight_decay=0.0, fused=True),
        ]

    def lesson(self, chats: Sequence[Chat], settings: TrainSettings, number: int, fraction: float) -> Scored:
        """Single steps first; chains once a `feature` head is good enough to live on its own states."""
        alone = self.states is not None and fraction >= ALONE_FROM
        recipe = HeadRecipe(settings.greedy_share, num_steps=NUM_STEPS if alone else 1)
        rng = np.random.default_rng((settings.seed, 3, number))
        batch = make_head_batch(chats, self.head, recipe, rng, self.states)
        if self._earlier:
            labels = weighed(batch.labels, [self._earlier.answer_hits(chat) for chat in chats])
            batch = dataclasses.replace(batch, labels=labels)
        return Scored(head_loss(self.head_net, self.head, batch, recipe), batch.num_tokens)


@torch.inference_mode()
def hits(learner: HeadLearner, chat: Chat, num_steps: int = NUM_STEPS) -> Hits:
    """Whether the choice at each answer position is the target's: (steps, answer tokens).

    Row k holds what is chosen k tokens after the last verified one, where a `feature` head is on its own states;
    a `pruned` one reads tokens only, so that all its rows are one.
    """
    net, head = learner.head_net, learner.head
    wanted = chat.top_ids[chat.answer_start - chat.first_row :, 0]
    ids = torch.from_numpy(chat.ids).to(head.device)[None]
    if learner.states is None:
        own = net.read_tokens(ids[:, :-1])[0, chat.answer_start - 1 :]
        return np.broadcast_to(head.choose(own) == wanted, (num_steps, len(wanted)))
    own, kept = net.read_states(ids[:, 1:-1], learner.states(chat)[None, :-2].to(net.norm))
    starts = torch.arange(chat.answer_start - 2, ids.shape[1] - 2, device=ids.device)[None]
    last, chains = _gather(own, starts), list[list[Cached]]()
    found = np.zeros((num_steps, len(wanted)), np.bool_)
    found[0] = head.choose(last[0]) == wanted
    for step in range(1, num_steps):
        last = net.go_on(_read_at(ids[:, 1:], starts + step), last, starts, kept, chains)
        found[step, step:] = head.choose(last[0])[: len(wanted) - step] == wanted[step:]
    return found
