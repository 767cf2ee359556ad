"""Boost-tuning: train a draft on what earlier drafts miss, so that together they cover more.

Owns: which positions earlier drafts hit, how a batch's weights follow from that, and what the trained one adds.
Must not know kinds, jobs or files. SpecInfer (2305.09781, §3) drops the samples that an earlier draft gets right
before it trains the next; here each position keeps a little weight, since a context is learnt from its neighbours
too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specviz.distill.measure import first_choices
from specviz.distill.store import Chat
from specviz.distill.train import Batch

COVERED = 0.2
"""Weight of a position whose token an earlier draft has as its first choice; 1 where all of them miss it."""


@torch.no_grad()
def covered(earlier: Sequence[Any], batch: Batch) -> Tensor:
    """Where (positions,) the first choice of one of the `earlier` drafts is the target's.

    Choices are made among the classes that the batch is scored against, which hold every likely token.
    """
    wanted = batch.labels.columns[:, 0]
    hit = torch.zeros(len(wanted), dtype=torch.bool, device=wanted.device)
    for draft in earlier:
        with torch.autocast(batch.ids.device.type, torch.bfloat16):
            states = draft.model(input_ids=batch.ids, use_cache=False).last_hidden_state
            scored = states.flatten(0, 1).index_select(0, batch.places)
            logits = scored @ draft.lm_head.weight.index_select(0, batch.classes).to(scored.dtype).T
        hit |= logits.argmax(-1) == wanted
    return hit


def weighed(batch: Batch, hit: Tensor) -> Batch:
    """The batch with `COVERED` of its weight where `hit` (positions,); all weights add up to what they did."""
    labels = batch.labels
    share = torch.where(hit, COVERED, 1.0)
    own = labels.weights.sum(1) + labels.tail
    share = share * (own.sum() / (own * share).sum())
    return replace(
        batch, labels=replace(labels, weights=labels.weights * share[:, None], tail=labels.tail * share)
    )


@dataclass(frozen=True)
class Gain:
    """Over held-out answer positions: how many there are, how many the earlier drafts miss, and how many of those
    the new one gets."""

    num_positions: int
    num_missed: int
    num_gained: int


def gain(draft: Any, earlier: Sequence[Any], chats: Sequence[Chat]) -> Gain:
    """What `draft` adds to the `earlier` ones, given the target's own answers so far."""
    total = missed = gained = 0
    for chat in chats:
        if not chat.num_answer:
            continue
        before = np.any([first_choices(one, chat) for one in earlier], axis=0)
        own = first_choices(draft, chat)
        total, missed, gained = (
            total + len(own),
            missed + int((~before).sum()),
            gained + int((own & ~before).sum()),
        )
    return Gain(total, missed, gained)
