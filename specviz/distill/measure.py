"""How often a draft's first choice is the target's, on answers it never saw.

Owns: agreement on held-out chats and what it is worth in tokens per pass. Must not know training or files.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from specviz.distill.store import Chat


@dataclass(frozen=True)
class Agreement:
    """Shares over held-out answer positions. `tokens_per_pass` replays chains of `draft_len` tokens."""

    rate: float
    num_positions: int
    num_chats: int
    tokens_per_pass: float
    draft_len: int = 4


@torch.inference_mode()
def agreement(student: Any, chats: Sequence[Chat], draft_len: int = 4) -> Agreement:
    """Compares first choices along the target's own answers, given to the draft as they are."""
    was_training = student.training
    student.eval()
    hits = [_hits(student, chat) for chat in chats if chat.num_answer]
    student.train(was_training)
    passes = sum(_num_passes(chat_hits, draft_len) for chat_hits in hits)
    total = sum(map(len, hits))
    agreed = int(sum(chat_hits.sum() for chat_hits in hits))
    return Agreement(agreed / max(1, total), total, len(hits), total / max(1, passes), draft_len)


def _hits(student: Any, chat: Chat) -> Any:
    """Whether each answer position (num_answer,) is predicted."""
    ids = torch.from_numpy(chat.ids[:-1]).to(student.device)[None]
    hidden = student.model(input_ids=ids, use_cache=False).last_hidden_state[0, chat.answer_start - 1 :]
    choice = student.lm_head(hidden).argmax(dim=-1).cpu().numpy()
    return choice == chat.top_ids[chat.answer_start - chat.first_row :, 0]


def _num_passes(hits: Any, draft_len: int) -> int:
    """Target passes to write an answer: each takes the agreeing run, at most `draft_len`, and one more."""
    passes = position = 0
    misses = np.append(np.flatnonzero(~hits), len(hits))
    while position < len(hits):
        run = int(misses[np.searchsorted(misses, position)]) - position
        position += min(run, draft_len) + 1
        passes += 1
    return passes
