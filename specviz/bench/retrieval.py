"""Measurements of copying: the bundled reference sets, against plain decoding and against prompt lookup.

Owns: this section. Must not know how rows are shown.
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
from specviz.drafts.retrieval.library import Shelf
from specviz.drafts.retrieval.sets import GROUNDED, SetPrompt
from specviz.metrics import summarize

LOOKUP_LENGTHS = (3, 5, 10)
"""Values of `prompt_lookup_num_tokens` that are tried; the best of them for each prompt is compared with."""
SECTION = "retrieval"
SPEEDUP_GOAL = 2.0
LEAST = Goal(1.0, at_most=False)


@dataclass(frozen=True)
class _Task:
    """A prompt with the texts to copy from, and to stand before it where it wants them."""

    prompt: SetPrompt
    shelf: Shelf = field(repr=False)


@dataclass(frozen=True)
class _Result:
    """One answer: `wall_s` from the text of the prompt to the last token, `speedup` over plain decoding raced."""

    num_tokens: int
    num_passes: int
    wall_s: float
    speedup: float | None = None

    @property
    def tokens_per_pass(self) -> float:
        return self.num_tokens / self.num_passes

    @property
    def tokens_per_s(self) -> float:
        return self.num_tokens / self.wall_s


def retrieval(bench: Bench) -> Iterator[Row]:
    """Speedup and tokens per pass by category, raced with plain decoding, and in turn with transformers.

    All answers are greedy and end where the model ends them. Both sides get the same prompt, with the references
    in it where the prompt wants them.
    """
    tasks = _tasks(bench)
    if not tasks:
        return
    theirs = _PromptLookup(bench)
    jobs: dict[str, Callable[[int], _Result]] = {}
    for draft in bench.copying_drafts:
        jobs[draft] = lambda i, draft=draft: _ours(bench, draft, tasks[i])  # type: ignore[misc]
    for num in LOOKUP_LENGTHS:
        jobs[f"prompt_lookup_num_tokens={num}"] = lambda i, num=num: theirs(tasks[i], num)  # type: ignore[misc]
    results = in_turn(jobs, len(tasks))
    categories = [task.prompt.category for task in tasks]
    for category in dict.fromkeys(categories):
        chosen = [i for i, other in enumerate(categories) if other == category]
        found = {name: [all_[i] for i in chosen] for name, all_ in results.items()}
        yield from _rows(category, found, len(bench.copying_drafts))


def _tasks(bench: Bench) -> list[_Task]:
    """Every prompt of every set, by category; the first of each category and set for a quick run."""
    tasks = []
    for texts in bench.sets:
        alone = Shelf(texts.documents)
        within = alone.putting_in_prompt({document.name for document in texts.documents})
        prompts: Sequence[SetPrompt] = sorted(texts.prompts, key=lambda prompt: prompt.category)
        if bench.quick:
            prompts = [next(same) for _, same in groupby(prompts, key=lambda prompt: prompt.category)]
        tasks += [_Task(prompt, within if prompt.in_prompt else alone) for prompt in prompts]
    return sorted(tasks, key=lambda task: task.prompt.category)


def _ours(bench: Bench, draft: str, task: _Task) -> _Result:
    """A race for the speedup, then the draft alone for the time that a user waits."""
    settings: dict[str, Any] = {
        "drafts": (draft,),
        "ignore_eos": False,
        "max_new_tokens": bench.num_tokens_cited,
    }
    raced = summarize(bench.decode_with(task.shelf, task.prompt.prompt, **settings))
    start = time.perf_counter()
    bench.decode_with(task.shelf, task.prompt.prompt, baseline=False, **settings)
    return _Result(raced.tokens, raced.passes, time.perf_counter() - start, raced.speedup)


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
    def __call__(self, task: _Task, num_copied: int) -> _Result:
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
        return _Result(made.shape[1] - ids.shape[1], self._num_passes, time.perf_counter() - start)


_VALUES: tuple[tuple[Callable[[_Result], float], str, str], ...] = (
    (lambda one: one.tokens_per_pass, "tokens per target pass τ", ""),
    (lambda one: one.tokens_per_s, "prompt pass included", "tokens/s"),
)


def _rows(category: str, results: dict[str, list[_Result]], num_ours: int) -> Iterator[Row]:
    """What a category comes to: our speedups, then tokens per pass and per second beside theirs.

    The first of ours is the one that the goals are for.
    """
    ours, theirs = list(results.items())[:num_ours], list(results.values())[num_ours:]
    first = ours[0][1]
    for draft, found in ours:
        is_goal = category in GROUNDED and found is first
        speedups = Spread.of([one.speedup for one in found if one.speedup is not None])
        goal = Goal(SPEEDUP_GOAL, at_most=False) if is_goal else None
        yield Row(SECTION, f"{category}: {draft}: speedup over plain decoding", "×", speedups, goal)
    for value, what, unit in _VALUES:
        for name, found in results.items():
            yield Row(SECTION, f"{category}: {name}: {what}", unit, Spread.of([value(one) for one in found]))
        best = [max(value(one) for one in tried) for tried in zip(*theirs, strict=True)]
        ratios = [value(one) / other for one, other in zip(first, best, strict=True)]
        note = "their best length for each prompt"
        yield Row(SECTION, f"{category}: {what}, ours ÷ theirs", "×", Spread.of(ratios), LEAST, note)
