"""Measurements of trees: one draft's chain against its trees, two drafts, three kinds; standard against naive.

Owns: this section. Must not know how rows are shown.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from specviz.bench.bench import Bench, Goal, Row
from specviz.bench.engine import SHORT_CONTEXT, filled, num_passes, pass_job
from specviz.bench.rounds import Spread, in_turn, ratios
from specviz.metrics import Summary, summarize

PROFILE = "3,2,1,1"
TREE_ROWS = (8, 16, 32)
FIXED = ("plain", "chain of 1", "chain of 2", "chain of 4", "tree 2,1", f"tree {PROFILE}")
TREE_OVER_CHAIN = Goal(1.2, at_most=False)
STANDARD_OVER_NAIVE = Goal(1.2, at_most=False)
AUTO_OVER_FIXED = Goal(0.95, at_most=False)


def settings_of(draft: str) -> dict[str, dict[str, Any]]:
    """What is compared: name → settings of a run."""
    pair, mix = (draft, "skip:4"), (draft, "skip:4", "lookup")
    return {
        "plain": {"drafts": ("none",)},
        **{f"chain of {length}": {"drafts": (draft,), "draft_len": length} for length in (1, 2, 4)},
        **{f"tree {tree}": {"drafts": (draft,), "tree": tree} for tree in ("2,1", PROFILE, "auto")},
        f"two drafts, tree {PROFILE}": {"drafts": pair, "tree": PROFILE},
        f"three kinds, tree {PROFILE}": {"drafts": mix, "tree": PROFILE},
        f"tree {PROFILE}, naive rule": {"drafts": (draft,), "tree": PROFILE, "rule": "naive"},
    }


def trees(bench: Bench) -> Iterator[Row]:
    """What branching costs a pass, then each setting's tokens per pass and seconds per token, a round a prompt."""
    yield from pass_costs(bench)
    settings = settings_of(bench.drafts[0])
    for chosen in settings.values():
        bench.decode(bench.chosen_prompts[0], baseline=False, max_new_tokens=8, **chosen)  # loading, first calls
    for temperature in (0.0, 1.0):
        jobs = {name: _job(bench, chosen, temperature) for name, chosen in settings.items()}
        runs = in_turn(jobs, len(bench.chosen_prompts), num_warm_up=0)
        where = f"temperature {temperature:g}"
        for name, made in runs.items():
            yield Row("trees", f"{name}, {where}: tokens per target pass τ", "", Spread.of(_taus(made)))
            yield Row(
                "trees", f"{name}, {where}: time per token", "ms", Spread.of([1e3 * s for s in _seconds(made)])
            )
        yield from _claims(runs, where, drawn=temperature > 0)


def pass_costs(bench: Bench) -> Iterator[Row]:
    """A target pass over a tree against one over a chain of as many rows, in turn: what branching itself costs."""
    runner = filled(bench.load(bench.target), SHORT_CONTEXT)
    for rows in TREE_ROWS:
        parents = [(row - 1) // 2 if row else -1 for row in range(rows)]  # two children under every row
        jobs = {"chain": pass_job(runner, rows), "tree": pass_job(runner, rows, parents)}
        times = in_turn(jobs, num_passes(bench), num_warm_up=2)
        for kind, seconds in times.items():
            yield Row("trees", f"pass over a {kind} of {rows} rows", "ms", Spread.of([1e3 * s for s in seconds]))
        cost = Spread.of(ratios(times["tree"], times["chain"]))
        yield Row("trees", f"pass over a tree ÷ over a chain of {rows} rows", "×", cost)


def _job(bench: Bench, settings: Mapping[str, Any], temperature: float) -> Callable[[int], Summary]:
    def job(index: int) -> Summary:
        prompt = bench.chosen_prompts[index]
        return summarize(bench.decode(prompt, baseline=False, temperature=temperature, **settings))

    return job


def _taus(runs: Sequence[Summary]) -> list[float]:
    return [run.tokens / run.passes for run in runs]


def _seconds(runs: Sequence[Summary]) -> list[float]:
    return [run.total_s / run.tokens for run in runs]


def _claims(runs: Mapping[str, Sequence[Summary]], where: str, *, drawn: bool) -> Iterator[Row]:
    """Ratios prompt by prompt: what SpecInfer (2305.09781) reports, and what `auto` promises."""
    taus = {name: _taus(made) for name, made in runs.items()}
    over_chain = Spread.of(ratios(taus[f"tree {PROFILE}"], taus["chain of 4"]))
    yield Row("trees", f"tree over chain, {where}: tokens per pass", "×", over_chain, TREE_OVER_CHAIN)
    over_naive = Spread.of(ratios(taus[f"tree {PROFILE}"], taus[f"tree {PROFILE}, naive rule"]))
    goal = STANDARD_OVER_NAIVE if drawn else None
    yield Row("trees", f"standard over naive rule, {where}: tokens per pass", "×", over_naive, goal)
    seconds = {name: _seconds(runs[name]) for name in FIXED}
    best = min(FIXED, key=lambda name: statistics.median(seconds[name]))
    over_fixed = Spread.of(ratios(seconds[best], _seconds(runs["tree auto"])))
    yield Row("trees", f"auto over the best fixed choice, {where}: speed", "×", over_fixed, AUTO_OVER_FIXED, best)
