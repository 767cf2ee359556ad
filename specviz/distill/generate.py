"""The loop in which a target writes both sides of many chats at once.

Owns: rows that are refilled as their chats finish, the phases of a chat (user turn, template, answer),
what counts as degenerate, when shards are written. Must not know training or where models come from.
"""

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from specviz.distill import store
from specviz.distill.chats import RAW_LEAD, ChatPlan, Limits, Planner, Template
from specviz.distill.teacher import Candidates, Teacher, draw
from specviz.errors import ContextError

SAVE_EVERY_S = 30.0


class _Writing:
    """One chat while it is written; `ids` grows by one for each pass of the target."""

    def __init__(self, plan: ChatPlan, template: Template, limits: Limits) -> None:
        self.plan = plan
        self._suffix = template.suffix
        self._limits = limits
        self.first_row = len(template.header)
        self.ids = list(template.header)
        self.top_ids: list[npt.NDArray[np.int64]] = []
        self.top_logps: list[npt.NDArray[np.float16]] = []
        self._forced = list(plan.opening)
        self._max_user = limits.max_user if template.chat else RAW_LEAD
        self.answer_start = -1
        if plan.complete:
            self._begin_answer()

    @property
    def temperature(self) -> float:
        """Of the next draw: users are invented at 1."""
        return 1.0 if self.answer_start < 0 else self.plan.temperature

    @property
    def uniform(self) -> float:
        """The draw that belongs to the next position."""
        return float(self.plan.draws[len(self.ids) - self.first_row])

    @property
    def degenerate(self) -> bool:
        """A user turn too short to be a question, or the same few tokens over and over."""
        turn = self.ids[self.first_row : self.answer_start - len(self._suffix)]
        return not self.plan.complete and (len(turn) < self._limits.min_user or len(set(turn)) < 0.3 * len(turn))

    def add(self, drawn: int, top_ids: npt.NDArray[np.int64], logps: npt.NDArray[np.float16]) -> None:
        """Takes the next token: what the plan or the template says, else what was drawn."""
        if self.answer_start < 0 and not self._forced and self._user_ends(drawn):
            self._begin_answer()
        self.ids.append(self._forced.pop(0) if self._forced else drawn)
        self.top_ids.append(top_ids)
        self.top_logps.append(logps)

    def _user_ends(self, drawn: int) -> bool:
        if self._suffix and drawn == self._suffix[0]:
            return True
        return len(self.ids) - self.first_row >= self._max_user

    def _begin_answer(self) -> None:
        self._forced += self._suffix
        self.answer_start = len(self.ids) + len(self._forced)

    def ended(self, eos_ids: frozenset[int]) -> bool:
        """Whether the answer is over, or is not worth beginning."""
        length = len(self.ids) - self.answer_start
        if self.answer_start < 0 or length < 0:
            return False
        return self.degenerate or length >= self._limits.max_answer or (length > 0 and self.ids[-1] in eos_ids)

    def chat(self) -> store.Chat:
        """The finished record."""
        if self.degenerate:
            return store.dropped(self.plan.index)
        return store.Chat(
            self.plan.index,
            self.plan.held_out,
            self.plan.temperature,
            self.first_row,
            self.answer_start,
            np.array(self.ids, np.int64),
            np.stack(self.top_ids),
            np.stack(self.top_logps),
        )


class Writer:
    """Writes chats into `folder` until enough answer tokens are there; goes on where a run was killed."""

    def __init__(
        self,
        teacher: Teacher,
        planner: Planner,
        template: Template,
        limits: Limits,
        eos_ids: frozenset[int],
        folder: Path,
        vocab_size: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._teacher, self._planner, self._template, self._limits = teacher, planner, template, limits
        self._eos_ids, self._folder, self._vocab_size, self._clock = eos_ids, folder, vocab_size, clock
        self._done = store.finished(folder)
        self._fresh: list[store.Chat] = []
        self._next = 0
        self._last = max(self._done, default=-1)
        self._saved_at = clock()
        self._idle = len(template.header) - 1

    @property
    def num_tokens(self) -> int:
        """Answer tokens of all chats that are finished."""
        return sum(self._done.values())

    def run(self, num_tokens: int, report: Callable[[int], bool]) -> int:
        """Writes until `num_tokens` answer tokens are finished; returns how many are.

        `report` gets the count after every pass; when it returns False no further chat is begun.
        """
        rows: list[_Writing | None] = [None] * self._teacher.num_rows
        self._feed_header()
        total = self.num_tokens
        in_time = report(total)
        try:
            while True:
                wanted = total < num_tokens
                rows = [row or (self._begin() if in_time and (wanted or self._owes()) else None) for row in rows]
                if not any(rows):
                    return total
                rows, finished = self._advance(rows)
                total += finished
                in_time = report(total) and in_time
                self._save_sometimes()
        finally:
            self._save()

    def _feed_header(self) -> None:
        """Fills every row's first positions, which all chats share and none overwrites."""
        for position, token in enumerate(self._template.header[:-1]):
            self._teacher.step([token] * self._teacher.num_rows, [position] * self._teacher.num_rows)

    def _upcoming(self) -> int:
        """The least index of a chat that is neither finished nor begun."""
        while self._next in self._done:
            self._next += 1
        return self._next

    def _owes(self) -> bool:
        """Whether a chat is missing that had been begun when an earlier run was killed."""
        return self._upcoming() < self._last

    def _begin(self) -> _Writing:
        self._next = self._upcoming() + 1
        return _Writing(self._planner.plan(self._next - 1), self._template, self._limits)

    def _advance(self, rows: list[_Writing | None]) -> tuple[list[_Writing | None], int]:
        """One pass for all rows. Returns the rows still being written and the answer tokens finished."""
        last = self._template.header[-1]
        found = self._teacher.step(
            [row.ids[-1] if row else last for row in rows],
            [len(row.ids) - 1 if row else self._idle for row in rows],
        )
        drawn = self._draw(rows, found)
        top_ids = found.ids[:, : store.TOP].cpu().numpy()
        logps = found.logps[:, : store.TOP].to(torch.float16).cpu().numpy()
        finished = 0
        for i, row in enumerate(rows):
            if row:
                row.add(drawn[i], top_ids[i], logps[i])
                if row.ended(self._eos_ids):
                    finished += self._finish(row.chat())
                    rows[i] = None
        return rows, finished

    def _draw(self, rows: list[_Writing | None], found: Candidates) -> list[int]:
        temperatures = torch.tensor([row.temperature if row else 0.0 for row in rows])
        uniforms = torch.tensor([row.uniform if row else 0.0 for row in rows], dtype=torch.float64)
        device = found.ids.device
        return [int(token) for token in draw(found, temperatures.to(device), uniforms.to(device)).tolist()]

    def _finish(self, chat: store.Chat) -> int:
        self._fresh.append(chat)
        self._done[chat.index] = chat.num_answer
        return chat.num_answer

    def _save_sometimes(self) -> None:
        if self._clock() - self._saved_at >= SAVE_EVERY_S:
            self._save()

    def _save(self) -> None:
        store.write_shard(self._folder, self._fresh, self._vocab_size)
        self._fresh = []
        self._saved_at = self._clock()


def check_context(max_len: int, context_len: int) -> None:
    """Raises ContextError when the longest chat does not fit the target."""
    if max_len > context_len:
        raise ContextError(
            f"The longest chat takes {max_len} tokens and the target's context holds {context_len}; "
            "give shorter prompts."
        )
