"""Boost-tuning: train a draft on what earlier drafts miss, so that together they cover more.

Owns: which positions earlier drafts hit, how a batch's weights follow from that, what the trained one adds, and
how a card says so. Must not know kinds, jobs or files. SpecInfer (2305.09781, §3) drops the samples that an
earlier draft gets right before it trains the next; here each position keeps a little weight, since a context is
learnt from its neighbours too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from specviz.distill.card import UNKNOWN
from specviz.distill.loss import Labels
from specviz.distill.measure import Hits, first_choices
from specviz.distill.store import Chat

COVERED = 0.2
"""Weight of a position whose token an earlier draft has as its first choice; 1 where all of them miss it."""


class Earlier:
    """The drafts, causal models by name, that come before the one in training; false where there are none."""

    def __init__(self, drafts: Mapping[str, Any]) -> None:
        self._drafts = dict(drafts)
        self._hits: dict[int, Hits] = {}

    def __bool__(self) -> bool:
        return bool(self._drafts)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._drafts)

    def hits(self, chat: Chat) -> Hits:
        """Where the first choice of any of them is the target's, at positions `first_row`..n-1 of a chat.

        Each chat is read once: what these drafts know does not change any more.
        """
        if chat.index not in self._hits:
            found = [first_choices(draft, chat, chat.first_row) for draft in self._drafts.values()]
            self._hits[chat.index] = np.any(found, axis=0)
        return self._hits[chat.index]

    def answer_hits(self, chat: Chat) -> Hits:
        """The same at the answer's positions alone."""
        return self.hits(chat)[chat.answer_start - chat.first_row :]

    def training(self) -> str:
        """The sentence of a card."""
        return (
            f" A position that {' or '.join(self._drafts)} gets right counts {COVERED:g} of one that is missed "
            "(boost-tuning, 2305.09781, §3)."
        )


def weighed(labels: Labels, hits: Sequence[Hits]) -> Labels:
    """Labels with `COVERED` of their weight where `hits`, chat by chat; their sum stays."""
    hit = torch.from_numpy(np.concatenate(hits)).to(labels.tail.device)
    own = labels.weights.sum(1) + labels.tail
    share = torch.where(hit, COVERED, 1.0)
    share = share * (own.sum() / (own * share).sum())
    return replace(labels, weights=labels.weights * share[:, None], tail=labels.tail * share)


@dataclass(frozen=True)
class Gain:
    """Over held-out answer positions: how many there are, how many the drafts `after` which this one was trained
    miss, and how many of those this one gets."""

    after: tuple[str, ...]
    num_positions: int
    num_missed: int
    num_gained: int

    def rows(self) -> tuple[tuple[str, str], ...]:
        """What a card's table says of it."""
        rate = f"{self.num_gained / self.num_missed:.3f}" if self.num_missed else UNKNOWN
        missed = f"{rate} of {self.num_missed:,} held-out positions, of {self.num_positions:,} in all"
        return (("trained after", " and ".join(self.after)), ("right where they miss", missed))


def gain(own_hits: Callable[[Chat], Hits], earlier: Earlier, chats: Sequence[Chat]) -> Gain:
    """What a draft adds to the `earlier` ones, given the target's own answers so far.

    `own_hits` says where the draft's first choice is the target's, (num_answer,).
    """
    total = missed = gained = 0
    for chat in chats:
        if chat.num_answer:
            miss = ~earlier.answer_hits(chat)
            total, missed = total + len(miss), missed + int(miss.sum())
            gained += int((own_hits(chat) & miss).sum())
    return Gain(earlier.names, total, missed, gained)
