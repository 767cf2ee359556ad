"""How often a draft's first choice is the target's, on answers it never saw.

Owns: agreement on held-out chats and what it is worth in tokens per pass. Must not know training or files.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from specviz.distill.store import Chat

Hits = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Agreement:
    """Shares over held-out answer positions.

    `replays` says what agreement is worth: (a shape of draft in words, tokens per target pass when answers are
    replayed with it), say ("chains of 4", 1.59).
    """

    rate: float
    num_positions: int
    num_chats: int
    replays: tuple[tuple[str, float], ...]


@torch.inference_mode()
def agreement(student: Any, chats: Sequence[Chat], draft_len: int = 4) -> Agreement:
    """Compares first choices along the target's own answers, given to the draft as they are."""
    was_training = student.training
    student.eval()
    hits = [first_choices(student, chat, chat.answer_start) for chat in chats if chat.num_answer]
    student.train(was_training)
    return replay([np.broadcast_to(chat_hits, (draft_len, len(chat_hits))) for chat_hits in hits])


def replay(hits: Sequence[Hits]) -> Agreement:
    """What a draft is worth on answers of which it is known where it hits.

    Each array (draft_len, answer tokens) holds in row k whether the choice k tokens after the last verified one is
    the target's; agreement is that of row 0.
    """
    draft_len = len(hits[0]) if hits else 0
    passes = sum(_num_passes(chat_hits) for chat_hits in hits)
    total = sum(chat_hits.shape[1] for chat_hits in hits)
    agreed = int(sum(chat_hits[0].sum() for chat_hits in hits))
    replays = ((f"chains of {draft_len}", total / max(1, passes)),)
    return Agreement(agreed / max(1, total), total, len(hits), replays)


@torch.inference_mode()
def first_choices(student: Any, chat: Chat, start: int) -> Hits:
    """Whether the draft's first choice at each position from `start` on, (n - start,), is the target's."""
    ids = torch.from_numpy(chat.ids[:-1]).to(student.device)[None]
    hidden = student.model(input_ids=ids, use_cache=False).last_hidden_state[0, start - 1 :]
    choice: npt.NDArray[np.int64] = student.lm_head(hidden).argmax(dim=-1).cpu().numpy()
    hits: Hits = choice == chat.top_ids[start - chat.first_row :, 0]
    return hits


def _num_passes(hits: Hits) -> int:
    """Target passes to write an answer: each takes the chain's agreeing run, and one token more."""
    draft_len, num_tokens = hits.shape
    passes = position = 0
    while position < num_tokens:
        run = 0
        while run < draft_len and position + run < num_tokens and hits[run, position + run]:
            run += 1
        position += run + 1
        passes += 1
    return passes
