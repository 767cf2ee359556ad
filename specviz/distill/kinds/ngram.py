"""`ngram`: counts of what the target wrote, for the drafts `ngram`, `recycle` and `mix`. For any causal LM.

Owns: this kind. Must not know how data are written or where jobs keep their state.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from specviz.distill import blending
from specviz.distill.counting import count
from specviz.distill.kinds.kind import About, Lesson
from specviz.distill.measure import Agreement
from specviz.distill.report import Report
from specviz.distill.store import Chat, write_atomic
from specviz.distill.train import Progress
from specviz.drafts.mix import GUESSERS, make_tree, weight_notes, write_weights
from specviz.drafts.ngram import NgramTable, tokenizer_stamp
from specviz.errors import ModelError
from specviz.models.catalog import COUNTS_FILE

MAX_BYTES = 10_000_000
ASIDE_EVERY = 20
_BUDGETS = (4, 8, 16)


class Ngram:
    """A table of counts with the weights of the blends it is used in.

    The weights at temperature 0 are learnt from every other held-out chat; what the card says is measured on those
    between. Those above it are learnt from sampled answers kept aside here, since held-out ones are greedy.
    """

    data_share = 0.9
    can_follow = False

    def build(self, target: Any, tokenizer: Any, seed: int) -> None:
        del seed  # nothing is drawn
        self._vocab_size = int(target.config.vocab_size)
        self._stamp = tokenizer_stamp(tokenizer)

    def start_from(self, name: str) -> None:
        raise ModelError(f"Counts are always made anew, so --start {name} has no meaning here; leave it out.")

    def train(self, lesson: Lesson) -> Progress:
        began = lesson.clock()
        chats, sampled = _keep_aside(lesson.chats)
        num_tokens = sum(map(_num_rows, chats))
        lesson.say(Report("train", f"Counting {num_tokens:,} positions", 0.1))
        table = count(chats, vocab_size=self._vocab_size, stamp=self._stamp, max_bytes=MAX_BYTES)
        greedy = lesson.held_out[::2]
        lesson.say(Report("train", f"Weighing {len(greedy) + len(sampled):,} answers kept aside", 0.9))
        self._table = dataclasses.replace(table, notes=_blends(table, greedy, sampled))
        return Progress(step=1, epoch=1, tokens_seen=num_tokens, elapsed_s=lesson.clock() - began)

    def measure(self, held_out: Sequence[Chat]) -> Agreement:
        chats = [chat for chat in held_out[1::2] if chat.num_answer]
        places = [place for chat in chats for place in blending.positions(chat)]
        right = sum(
            bool(ranked := self._table.find(tail).ranked) and ranked[0][0] == token_id
            for tail, token_id, _ in places
        )
        replays = tuple(
            (
                f"{kind}, {budget} nodes",
                blending.replay(make_tree(kind, self._table), chats, budget, self._vocab_size),
            )
            for kind in GUESSERS
            for budget in _BUDGETS
        )
        return Agreement(right / max(1, len(places)), len(places), len(chats), replays)

    def save(self, out: Path) -> None:
        self._bytes = self._table.to_bytes()
        write_atomic(out / COUNTS_FILE, lambda file: file.write(self._bytes))

    def about(self) -> About:
        table = self._table
        return About(
            rows=(
                ("parameters", f"{len(table.ids):,} probabilities behind {len(table.keys):,} contexts"),
                ("forward parameters", "0: a lookup per node"),
                ("used by", "`--draft FOLDER` (these counts alone), `recycle:FOLDER`, `mix:FOLDER`"),
                ("bytes", f"{len(self._bytes):,}"),
            ),
            training="The target's own probabilities at every position, averaged over all occurrences of the last "
            "one to four tokens, smoothed with those of the shorter context, those contexts kept that tell most. "
            "The weights of `recycle` and `mix` maximise the likelihood of every other held-out answer; above "
            "temperature 0 that of sampled answers that were not counted.",
            agreement="Share of positions where the likeliest token, given the target's own greedy answer so far, "
            "is the target's; on the held-out chats between those. Replays teach from the answer's path alone.",
        )


def _keep_aside(chats: Sequence[Chat]) -> tuple[list[Chat], list[Chat]]:
    """(to be counted, sampled answers to be weighed); what asks the same as one of the latter is in neither."""
    aside = [chat for chat in chats if chat.temperature > 0 and chat.index % ASIDE_EVERY == ASIDE_EVERY // 2]
    asked = {chat.user_turn for chat in aside}
    counted = [chat for chat in chats if chat.user_turn not in asked]
    return (counted, aside) if counted else (list(chats), [])


def _blends(table: NgramTable, greedy: Sequence[Chat], sampled: Sequence[Chat]) -> dict[str, str]:
    """The weights of every kind with more than one guesser, as notes of the file."""
    return {
        name: write_weights(blending.fit(make(table), chats))
        for kind, make in GUESSERS.items()
        if len(make(table)) > 1
        for name, chats in zip(weight_notes(kind), (greedy, sampled), strict=True)
    }


def _num_rows(chat: Chat) -> int:
    return len(chat.ids) - chat.first_row
