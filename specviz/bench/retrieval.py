"""Measurements of copying: the bundled reference sets, against plain decoding and against prompt lookup.

Owns: the answers that are timed, and this section's rows. Must not know how rows are shown.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import torch

from specviz import text
from specviz.bench.bench import Bench, Goal, Row
from specviz.bench.rounds import Spread, in_turn
from specviz.config import REFERENCES
from specviz.drafts.retrieval.library import Shelf
from specviz.drafts.retrieval.sets import GROUNDED, SetPrompt
from specviz.metrics import summarize

LOOKUP_LENGTHS = (3, 5, 10)
"""Values of `prompt_lookup_num_tokens` that are tried; the best of them for each prompt is compared with."""
OURS = REFERENCES
SECTION = "retrieval"
SPEEDUP_GOAL = 2.0
LEAST = Goal(1.0, at_most=False)


@dataclass(frozen=True)
class _Task:
    """A prompt with the texts to copy from, and to stand before it where it wants them."""

    prompt: SetPrompt
    shelf: Shelf = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One answer to a prompt of a set, `by` a draft of ours or by prompt lookup with a certain length.

    `wall_s` is from the text of the prompt to the last token. A draft of ours has a `speedup` over plain decoding,
    raced, and is `identical` to it or not; None where there was no such race.
    """

    prompt: str
    category: str
    by: str
    tokens: int
    passes: int
    wall_s: float
    speedup: float | None = None
    identical: bool | None = None

    @property
    def tokens_per_pass(self) -> float:
        return self.tokens / self.passes

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.wall_s


def measure_answers(bench: Bench, say: Callable[[str, float | None], None] = lambda *_: None) -> list[Answer]:
    """All answers, prompt by prompt, the ways to get one in turn, another one first each time.

    All are greedy and end where the model ends them. Both sides get the same prompt, with the references in it
    where the prompt wants them. A cascade is tried where answers are the model's own words more than copies.
    """
    tasks = _tasks(bench)
    if not tasks:
        return []
    theirs = _PromptLookup(bench)

    def ours(place: int) -> Answer:
        say(f"Answering {tasks[place].prompt.id}", place / len(tasks))
        return _ours(bench, OURS, tasks[place])

    def cascade(place: int) -> Answer | None:
        wanted = bench.copying_cascade and tasks[place].prompt.category not in GROUNDED
        return _ours(bench, bench.copying_cascade, tasks[place]) if wanted else None

    jobs: dict[str, Callable[[int], Answer | None]] = {OURS: ours, "cascade": cascade}
    for num in LOOKUP_LENGTHS:
        jobs[lookup_name(num)] = lambda place, num=num: theirs(tasks[place], num)  # type: ignore[misc]
    results = in_turn(jobs, len(tasks))
    return [one for at_once in zip(*results.values(), strict=True) for one in at_once if one is not None]


def lookup_name(num: int) -> str:
    """How prompt lookup of that length is called in results."""
    return f"prompt_lookup_num_tokens={num}"


def retrieval(bench: Bench) -> Iterator[Row]:
    """Speedup and tokens per pass by category, raced with plain decoding, and in turn with transformers."""
    yield from answer_rows(measure_answers(bench))


def _tasks(bench: Bench) -> list[_Task]:
    """Every prompt of every set, the shortest first, which the warm-up repeats; one a category for a quick run."""
    tasks = []
    for texts in bench.sets:
        alone = Shelf(texts.documents)
        within = alone.putting_in_prompt({document.name for document in texts.documents})
        tasks += [_Task(prompt, within if prompt.in_prompt else alone) for prompt in texts.prompts]
    tasks.sort(key=lambda task: (task.prompt.in_prompt, len(task.prompt.prompt)))
    first = {task.prompt.category: task for task in reversed(tasks)}
    return [task for task in tasks if not bench.quick or task is first[task.prompt.category]]


def _ours(bench: Bench, draft: str, task: _Task) -> Answer:
    """A race for the speedup, then the draft alone for the time that a user waits."""
    settings: dict[str, Any] = {
        "drafts": (draft,),
        "ignore_eos": False,
        "max_new_tokens": bench.num_tokens_cited,
    }
    raced = summarize(bench.decode_with(task.shelf, task.prompt.prompt, **settings))
    start = time.perf_counter()
    bench.decode_with(task.shelf, task.prompt.prompt, baseline=False, **settings)
    return Answer(
        prompt=task.prompt.id,
        category=task.prompt.category,
        by=draft,
        tokens=raced.tokens,
        passes=raced.passes,
        wall_s=time.perf_counter() - start,
        speedup=raced.speedup,
        identical=raced.identical,
    )


class _PromptLookup:
    """transformers' own copying: `generate` with `prompt_lookup_num_tokens`, same weights, prompt and dtype."""

    def __init__(self, bench: Bench) -> None:
        loaded = bench.load(bench.target)
        self._model, _ = bench.load_plain(bench.target)
        self._model = self._model.to(device=loaded.device, dtype=loaded.dtype)
        self._tokenizer = loaded.tokenizer
        self._eos_ids = sorted(loaded.eos_ids)
        self._most = bench.num_tokens_cited
        self._num_passes = 0
        self._model.register_forward_pre_hook(self._count)

    def _count(self, *_: Any) -> None:
        self._num_passes += 1

    @torch.inference_mode()
    def __call__(self, task: _Task, num_copied: int) -> Answer:
        start, self._num_passes = time.perf_counter(), 0
        prompt = task.shelf.library(self._tokenizer).with_prompt(task.prompt.prompt)
        ids = torch.tensor([text.encode_prompt(self._tokenizer, prompt, raw=False)]).to(self._model.device)
        made = self._model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=self._most,
            do_sample=False,
            prompt_lookup_num_tokens=num_copied,
            eos_token_id=self._eos_ids or None,
            pad_token_id=0,
        )
        return Answer(
            prompt=task.prompt.id,
            category=task.prompt.category,
            by=lookup_name(num_copied),
            tokens=made.shape[1] - ids.shape[1],
            passes=self._num_passes,
            wall_s=time.perf_counter() - start,
        )


VALUES: tuple[tuple[Callable[[Answer], float], str, str], ...] = (
    (lambda one: one.tokens_per_pass, "tokens per target pass τ", ""),
    (lambda one: one.tokens_per_s, "prompt pass included", "tokens/s"),
)


def answer_rows(answers: Sequence[Answer]) -> Iterator[Row]:
    """What each category comes to: speedups, then tokens per pass and per second, ours beside theirs."""
    by_category = sorted(answers, key=lambda one: one.category)
    for category, same in groupby(by_category, key=lambda one: one.category):
        found: dict[str, list[Answer]] = {}
        for one in same:
            found.setdefault(one.by, []).append(one)
        yield from _rows(category, found)


def _rows(category: str, found: dict[str, list[Answer]]) -> Iterator[Row]:
    theirs = [found[lookup_name(num)] for num in LOOKUP_LENGTHS]
    for by, answers in found.items():
        if speedups := [one.speedup for one in answers if one.speedup is not None]:
            is_goal = category in GROUNDED and by == OURS
            goal = Goal(SPEEDUP_GOAL, at_most=False) if is_goal else None
            yield Row(SECTION, f"{category}: {by}: speedup over plain decoding", "×", Spread.of(speedups), goal)
    for value, what, unit in VALUES:
        for by, answers in found.items():
            yield Row(SECTION, f"{category}: {by}: {what}", unit, Spread.of([value(one) for one in answers]))
        best = [max(value(one) for one in tried) for tried in zip(*theirs, strict=True)]
        ratios = [value(one) / other for one, other in zip(found[OURS], best, strict=True)]
        note = "their best length for each prompt"
        yield Row(SECTION, f"{category}: {what}, ours ÷ theirs", "×", Spread.of(ratios), LEAST, note)
