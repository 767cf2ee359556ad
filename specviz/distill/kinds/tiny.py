"""`tiny`: a plain causal LM of at most 1/20 of its target, which transformers loads by itself.

Owns: this kind. Must not know how data are written or where jobs keep their state.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from specviz.distill import student
from specviz.distill.boost import gain
from specviz.distill.card import Sizes
from specviz.distill.kinds.course import reporter
from specviz.distill.kinds.kind import FURTHER, About, Lesson, other_sizes
from specviz.distill.measure import Agreement, Hits, agreement, first_choices
from specviz.distill.store import Chat
from specviz.distill.train import Causal, Progress, Trainer, TrainSettings
from specviz.models import load_plain


class Tiny:
    """Two narrow layers and the target's vocabulary, its embeddings started from the target's."""

    data_share = 0.6
    can_follow = True
    _rate_share = 1.0

    def build(self, target: Any, tokenizer: Any, seed: int) -> None:
        self._tokenizer = tokenizer
        self._draft = student.build(target, seed).to(target.device)
        self._sizes = Sizes.of(target, self._draft)

    def start_from(self, name: str) -> None:
        earlier: Any = load_plain(name, "float32")[0]
        try:
            self._draft.load_state_dict(earlier.state_dict())
        except RuntimeError as error:
            raise other_sizes(name, "tiny") from error
        self._rate_share = FURTHER

    def train(self, lesson: Lesson) -> Progress:
        settings = TrainSettings(lesson.seconds, lesson.max_steps, lesson.seed, rate_share=self._rate_share)
        self._earlier = lesson.earlier
        learner = Causal(self._draft, self._earlier)
        trainer = Trainer(learner, lesson.chats, settings, lesson.checkpoint, lesson.clock)
        measure = partial(agreement, self._draft)
        return trainer.run(reporter(trainer, settings, lesson, measure))

    def measure(self, held_out: Sequence[Chat]) -> Agreement:
        self._draft.to(torch.bfloat16).eval()
        self._gain = gain(self._answer_hits, self._earlier, held_out) if self._earlier else None
        return agreement(self._draft, held_out)

    def _answer_hits(self, chat: Chat) -> Hits:
        return first_choices(self._draft, chat, chat.answer_start)

    def save(self, out: Path) -> None:
        self._draft.save_pretrained(out)
        self._tokenizer.save_pretrained(out)
        if getattr(self._tokenizer, "is_fast", False):  # again, without the line breaks that make a third of it
            self._tokenizer.backend_tokenizer.save(str(out / "tokenizer.json"), pretty=False)

    def about(self) -> About:
        return About(
            rows=self._sizes.rows() + (self._gain.rows() if self._gain else ()),
            training="Cross-entropy against the target's 16 largest probabilities, all other tokens as one class, "
            "mixed with its first choice; AdamW; embeddings started from principal components of the target's."
            + (self._earlier.training() if self._earlier else ""),
            agreement="Share of positions where the draft's first choice, given the target's own greedy answer so "
            "far, is the target's token; on chats that were never trained on.",
            library="transformers",
        )
