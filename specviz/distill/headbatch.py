"""What a draft head learns from a batch of chats: the cut output head, labels over it, places and chains.

Owns: `CutHead`, `HeadRecipe` and batches for both kinds of head. Must not know networks, losses or the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from specviz.distill.headfit import Reading
from specviz.distill.loss import Labels, soft_shares, top_and_tail
from specviz.distill.store import Chat
from specviz.numerics import fast_dtype

States = Callable[[Chat], Tensor]
"""The target's last hidden states of a chat, (tokens, width)."""
Ints = npt.NDArray[np.int64]
_NEVER = -1e4


class CutHead:
    """The target's output rows of the tokens that are kept, and one class more for all that are not.

    A label that was cut carries no weight: nothing can be learned from it.
    """

    def __init__(self, rows: Tensor, kept_ids: Ints, vocab_size: int) -> None:
        """`rows` (classes, width) belong to `kept_ids` (classes,), ascending."""
        self.kept_ids = kept_ids
        self.rows = torch.cat((rows, torch.zeros_like(rows[:1])))
        self.prior = torch.zeros(len(self.rows), device=rows.device)
        self.prior[-1] = _NEVER
        self._class_of = np.full(vocab_size, len(kept_ids), np.int64)
        self._class_of[kept_ids] = np.arange(len(kept_ids))

    @property
    def device(self) -> torch.device:
        return self.rows.device

    def labels(self, top_ids: Ints, top_logps: npt.NDArray[np.float16], greedy_share: float) -> Labels:
        """Labels of rows with these top tokens, (rows, k) both, each row of weight 1 / rows."""
        columns = self._class_of[top_ids]
        weights, tail = soft_shares(top_logps, greedy_share)
        weights[columns == len(self.kept_ids)] = 0
        share = np.float32(1 / max(1, len(top_ids)))
        return Labels(
            torch.from_numpy(columns).to(self.device),
            torch.from_numpy(weights * share).to(self.device),
            torch.from_numpy(tail * share).to(self.device),
            self.prior,
        )

    def loss(self, states: Tensor, labels: Labels) -> Tensor:
        """Cross-entropy of states (rows, width) over the kept tokens."""
        return top_and_tail(states.float(), self.rows, labels, fast_dtype(self.device))

    def choose(self, states: Tensor) -> Ints:
        """First choice behind each of `states` (rows, width), as ids (rows,)."""
        logits = states.to(self.rows.dtype) @ self.rows[:-1].T
        chosen: Ints = self.kept_ids[logits.float().argmax(-1).cpu().numpy()]
        return chosen


@dataclass(frozen=True)
class HeadRecipe:
    """How a head is taught: the greedy choice's share of a label, how many steps a chain takes (only `feature` has
    any beyond the first), behind which share of the answer positions chains begin, each further step's weight."""

    greedy_share: float = 0.3
    num_steps: int = 1
    chain_share: float = 0.25
    step_weight: float = 0.8


@dataclass(frozen=True, eq=False)
class HeadBatch:
    """Padded `ids` (chats, longest); for `feature` the target's `states` (chats, longest, width) beside them.

    `places` among the flattened rows are scored against `labels`. Chains begin behind the rows `starts` (chats,
    chains); `later` holds, for each step after the first, the places among the flattened chains and their labels.
    """

    ids: Tensor
    states: Tensor | None
    places: Tensor
    labels: Labels
    starts: Tensor
    later: tuple[tuple[Tensor, Labels], ...]

    @property
    def num_tokens(self) -> int:
        """Positions of answers that are scored."""
        return len(self.places)


def make_head_batch(
    chats: Sequence[Chat], head: CutHead, recipe: HeadRecipe, rng: np.random.Generator, states: States | None
) -> HeadBatch:
    """A batch on the head's device.

    For `pruned` row i reads token i and is scored against token i + 1. For `feature`, with `states`, row i reads
    token i + 1 and the state of token i, and is scored against token i + 2.
    """
    first = 0 if states is None else 1
    longest = max(len(chat.ids) for chat in chats) - first
    ids = _pad([torch.from_numpy(chat.ids[first:]) for chat in chats], longest)
    spans = np.array([(chat.answer_start, len(chat.ids)) for chat in chats]) - first - 1
    tops = _Tops(chats, head, recipe.greedy_share, ahead=first + 1)
    rows = np.repeat(np.arange(len(chats)), spans[:, 1] - spans[:, 0])
    places = np.concatenate([np.arange(*span) for span in spans])
    starts, later = _chains(spans, tops, recipe, rng) if states else (np.zeros((len(chats), 0), np.int64), ())
    return HeadBatch(
        ids.to(head.device),
        None if states is None else _pad([states(chat)[:-1] for chat in chats], longest).to(head.device),
        torch.from_numpy(rows * longest + places).to(head.device),
        tops.labels(rows, places),
        torch.from_numpy(starts).to(head.device),
        later,
    )


class _Tops:
    """The chats' top tokens in one table, found by chat and row; row i is scored against token i + `ahead`."""

    def __init__(self, chats: Sequence[Chat], head: CutHead, greedy_share: float, ahead: int) -> None:
        self.head, self._greedy_share = head, greedy_share
        self._ids = np.concatenate([chat.top_ids for chat in chats])
        self._logps = np.concatenate([chat.top_logps for chat in chats])
        ends = np.cumsum([len(chat.top_ids) for chat in chats])
        self._first = ends - np.array([len(chat.ids) for chat in chats]) + ahead

    def labels(self, chats: Ints, rows: Ints) -> Labels:
        """Labels of rows (n,) of `chats` (n,)."""
        places = self._first[chats] + rows
        return self.head.labels(self._ids[places], self._logps[places], self._greedy_share)


def _chains(
    spans: Ints, tops: _Tops, recipe: HeadRecipe, rng: np.random.Generator
) -> tuple[Ints, tuple[tuple[Tensor, Labels], ...]]:
    """Starts (chats, chains) drawn from the scored rows `spans`, and the chains still inside at later steps."""
    num = max(1, round(recipe.chain_share * float(np.mean(spans[:, 1] - spans[:, 0]))))
    ends = np.maximum(spans[:, :1] + 1, spans[:, 1:] - recipe.num_steps + 1)
    starts = rng.integers(spans[:, :1], ends, (len(spans), num))
    later = []
    for step in range(1, recipe.num_steps):
        chats, chains = np.nonzero(starts + step < spans[:, 1:])
        places = torch.from_numpy(chats * num + chains).to(tops.head.device)
        later.append((places, tops.labels(chats, starts[chats, chains] + step)))
    return starts, tuple(later)


def for_fitting(chats: Sequence[Chat], states: States, kind: str, device: torch.device) -> Reading:
    """What `fit_states` asks for, of the rows that guess an answer's states.

    A `feature` head's row i reads token i + 1 and guesses its state; a `pruned` one's row i does so of token i, so
    its states begin with one of nothing.
    """
    first = 1 if kind == "feature" else 0
    longest = max(len(chat.ids) for chat in chats) - first
    ids = _pad([torch.from_numpy(chat.ids[first:]) for chat in chats], longest)
    before = torch.zeros(1 - first, states(chats[0]).shape[1])
    known = _pad([torch.cat((before.to(states(chat)), states(chat))) for chat in chats], longest + 1)
    rows = torch.arange(longest)[None]
    start = torch.tensor([chat.answer_start - 1 - first for chat in chats])[:, None]
    end = torch.tensor([len(chat.ids) - first for chat in chats])[:, None]
    return ids.to(device), known.to(device), ((rows >= start) & (rows < end)).to(device)


def _pad(parts: Sequence[Tensor], longest: int) -> Tensor:
    padded = parts[0].new_zeros(len(parts), longest, *parts[0].shape[1:])
    for row, part in zip(padded, parts, strict=True):
        row[: len(part)] = part
    return padded
