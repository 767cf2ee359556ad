"""Measurements of drafts: what each gains over plain decoding of the same target.

Owns: this section. Must not know how rows are shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from specviz.bench.bench import Bench, Row
from specviz.bench.rounds import Spread, in_turn
from specviz.metrics import Summary, summarize


def gains(bench: Bench) -> Iterator[Row]:
    """Speedup, tokens per pass and acceptance of each draft, against plain decoding raced beside it.

    One round a prompt, the drafts in rotated order; values spread over the prompts.
    """
    prompts = bench.chosen_prompts
    for draft in bench.drafts:
        bench.decode(prompts[0], drafts=(draft,), max_new_tokens=8)  # loading and first calls
    for temperature in (0.0, 1.0):
        jobs = {draft: _job(bench, draft, temperature) for draft in bench.drafts}
        for draft, runs in in_turn(jobs, len(prompts), num_warm_up=0).items():
            name = f"{draft}, temperature {temperature:g}"
            for what, unit, values in (
                ("speedup", "×", [run.speedup for run in runs]),
                ("tokens per target pass τ", "", [run.tokens_per_pass for run in runs]),
                ("acceptance rate α", "%", [run.acceptance_rate for run in runs]),
            ):
                if known := [value for value in values if value is not None]:
                    yield Row("drafts", f"{name}: {what}", unit, Spread.of(known))


def _job(bench: Bench, draft: str, temperature: float) -> Callable[[int], Summary]:
    def job(index: int) -> Summary:
        prompt = bench.chosen_prompts[index]
        return summarize(bench.decode(prompt, drafts=(draft,), temperature=temperature))

    return job
