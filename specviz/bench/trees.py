"""Measurements of trees: one draft's chain against its trees, two drafts, three kinds; standard against naive.

Owns: this section, its runs, and the report on it that is kept. Must not know how anything is shown.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specviz.bench.bench import Bench, Goal, Row
from specviz.bench.engine import SHORT_CONTEXT, filled, num_passes, pass_job
from specviz.bench.machine import machine
from specviz.bench.rounds import Spread, in_turn, ratios, rotated
from specviz.bench.tree_tables import NAME as TABLE_NAME
from specviz.bench.tree_tables import format_trees
from specviz.distill.store import write_atomic
from specviz.drafts.naming import can_branch
from specviz.errors import ConfigError
from specviz.run import versions
from specviz.trace import Lane, Trace

TEMPERATURES = (0.0, 1.0)
PROFILE = "3,2,1,1"
TREE_ROWS = (8, 16, 32)
FIXED = ("plain", "chain of 1", "chain of 2", "chain of 4", "tree 2,1", f"tree {PROFILE}")
TREE_OVER_CHAIN = Goal(1.2, at_most=False)
STANDARD_OVER_NAIVE = Goal(1.2, at_most=False)
AUTO_OVER_FIXED = Goal(0.95, at_most=False)
NUM_TOKENS = 64
MOST_SECONDS = 330.0
"""No round of a report begins later."""
JSON_NAME = "trees.json"
Say = Callable[[str, float | None], None]


@dataclass(frozen=True, kw_only=True)
class TreeRun:
    """One prompt decoded one way. `nodes` were drafted; at temperature 0 `identical` says whether the text is the
    one of plain decoding."""

    setting: str
    temperature: float
    prompt: int
    tokens: int
    passes: int
    nodes: int
    seconds: float
    identical: bool | None


def settings_of(drafts: Sequence[str]) -> dict[str, dict[str, Any]]:
    """What is compared: name → settings of a run. Trees of several drafts have about as many nodes as that of one.

    Raises:
        ConfigError: none of `drafts` can grow a tree of a given shape.
    """
    draft = next((name for name in drafts if can_branch(name, by_profile=True)), None)
    if draft is None:
        raise ConfigError(f"None of {', '.join(drafts) or 'no drafts'} grows trees; name one that does, say tiny.")
    others = ("companion", "skip:4") if draft == "tiny" else ("skip:4",)
    return {
        "plain": {"drafts": ("none",)},
        **{f"chain of {length}": {"drafts": (draft,), "draft_len": length} for length in (1, 2, 4)},
        **{f"tree {tree}": {"drafts": (draft,), "tree": tree} for tree in ("2,1", PROFILE, "auto")},
        **{
            f"two drafts ({draft}, {other}), tree 2,2,1": {"drafts": (draft, other), "tree": "2,2,1"}
            for other in others
        },
        f"three kinds ({draft}, recycle, lookup), tree 2,1,1": {
            "drafts": (draft, "recycle", "lookup"),
            "tree": "2,1,1",
        },
        f"tree {PROFILE}, naive rule": {"drafts": (draft,), "tree": PROFILE, "rule": "naive"},
    }


def trees(bench: Bench) -> Iterator[Row]:
    """What branching costs a pass, then each setting's tokens per pass and seconds per token, a round a prompt."""
    yield from pass_costs(bench)
    settings = settings_of(bench.drafts)
    _warm_up(bench, settings)
    rounds = range(len(bench.chosen_prompts))
    yield from rows_of([run for prompt in rounds for run in tree_round(bench, settings, prompt)])


def measure_trees(
    bench: Bench, folder: Path, *, say: Say = lambda *_: None, clock: Callable[[], float] = time.monotonic
) -> dict[str, Any]:
    """The section by itself, at most some six minutes; the report is also in `folder` after every round.

    Raises:
        ConfigError: no draft that grows trees, or a folder that cannot be written.
    """
    bench, began = dataclasses.replace(bench, length=24 if bench.quick else NUM_TOKENS), clock()
    settings = settings_of(bench.drafts)
    report: dict[str, Any] = {
        "machine": machine(), "versions": versions(),
        "settings": {"target": bench.target, "num_tokens": bench.num_tokens, "runs": _plain_values(settings)},
    }  # fmt: skip
    say("Measuring passes", 0.0)
    report["passes"] = [row.to_json() for row in pass_costs(bench)]
    _warm_up(bench, settings)
    runs: list[TreeRun] = []
    for prompt in range(len(bench.chosen_prompts)):
        if prompt and clock() - began > MOST_SECONDS:
            break
        say(f"Decoding prompt {prompt + 1}", prompt / len(bench.chosen_prompts))
        runs += tree_round(bench, settings, prompt)
        report["runs"] = [dataclasses.asdict(run) for run in runs]
        report["claims"] = [row.to_json() for row in claims(runs)]
        _keep(folder, report)
    return report


def _plain_values(settings: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    return {name: {**chosen, "drafts": list(chosen["drafts"])} for name, chosen in settings.items()}


def _keep(folder: Path, report: Mapping[str, Any]) -> None:
    text = json.dumps(report, indent=1, allow_nan=False) + "\n"
    write_atomic(folder / JSON_NAME, lambda file: file.write(text.encode()))
    write_atomic(folder / TABLE_NAME, lambda file: file.write(format_trees(report).encode()))


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


def _warm_up(bench: Bench, settings: Mapping[str, Mapping[str, Any]]) -> None:
    """Loading, and first calls."""
    for chosen in settings.values():
        bench.decode(bench.chosen_prompts[0], baseline=False, **{"max_new_tokens": 8, **chosen})


def tree_round(bench: Bench, settings: Mapping[str, Mapping[str, Any]], prompt: int) -> Iterator[TreeRun]:
    """One prompt decoded every way at every temperature, another way first for each prompt."""
    for temperature in TEMPERATURES:
        traces = {
            name: bench.decode(
                bench.chosen_prompts[prompt], baseline=False, temperature=temperature, **settings[name]
            )
            for name in rotated(list(settings), prompt)
        }
        plain = traces["plain"].token_ids("baseline")
        for name in settings:
            yield _told(traces[name], name, temperature, prompt, plain)


def _told(trace: Trace, name: str, temperature: float, prompt: int, plain: Sequence[int]) -> TreeRun:
    lane: Lane = "baseline" if name == "plain" else "speculative"
    steps, ids = trace.steps(lane), trace.token_ids(lane)
    return TreeRun(
        setting=name,
        temperature=temperature,
        prompt=prompt,
        tokens=len(ids),
        passes=len(steps),
        nodes=sum(step.num_drafted for step in steps),
        seconds=sum(step.total_s for step in steps),
        identical=ids == plain if temperature == 0 else None,
    )


def rows_of(runs: Sequence[TreeRun]) -> Iterator[Row]:
    """Tokens per pass and seconds per token of every setting, and the claims."""
    for temperature in TEMPERATURES:
        for name in dict.fromkeys(run.setting for run in runs):
            where = f"{name}, temperature {temperature:g}"
            yield Row("trees", f"{where}: tokens per target pass τ", "", Spread.of(_taus(runs, name, temperature)))
            times = [1e3 * s for s in _seconds(runs, name, temperature)]
            yield Row("trees", f"{where}: time per token", "ms", Spread.of(times))
    yield from claims(runs)


def _chosen(runs: Sequence[TreeRun], name: str, temperature: float) -> list[TreeRun]:
    return [run for run in runs if (run.setting, run.temperature) == (name, temperature)]


def _taus(runs: Sequence[TreeRun], name: str, temperature: float) -> list[float]:
    return [run.tokens / run.passes for run in _chosen(runs, name, temperature)]


def _seconds(runs: Sequence[TreeRun], name: str, temperature: float) -> list[float]:
    return [run.seconds / run.tokens for run in _chosen(runs, name, temperature)]


def claims(runs: Sequence[TreeRun]) -> Iterator[Row]:
    """Ratios prompt by prompt: what SpecInfer (2305.09781) reports, and what `auto` promises."""
    tree, naive = f"tree {PROFILE}", f"tree {PROFILE}, naive rule"
    for temperature in TEMPERATURES:
        where = f"temperature {temperature:g}"
        of_tree = _taus(runs, tree, temperature)
        over_chain = Spread.of(ratios(of_tree, _taus(runs, "chain of 4", temperature)))
        yield Row("trees", f"tree over chain, {where}: tokens per pass", "×", over_chain, TREE_OVER_CHAIN)
        over_naive = Spread.of(ratios(of_tree, _taus(runs, naive, temperature)))
        goal = STANDARD_OVER_NAIVE if temperature else None
        yield Row("trees", f"standard over naive rule, {where}: tokens per pass", "×", over_naive, goal)
        seconds = {name: _seconds(runs, name, temperature) for name in FIXED}
        best = min(FIXED, key=lambda name: statistics.median(seconds[name]))
        over_fixed = Spread.of(ratios(seconds[best], _seconds(runs, "tree auto", temperature)))
        name = f"auto over the best fixed choice, {where}: speed"
        yield Row("trees", name, "×", over_fixed, AUTO_OVER_FIXED, best)
