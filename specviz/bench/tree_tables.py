"""The report on trees as Markdown: every setting, what is claimed, and what branching costs a pass.

Owns: how these results are shown. Must not know how they were measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from specviz.bench.rounds import Spread

NAME = "trees.md"
_UNKNOWN = "n/a"
Runs = Sequence[Mapping[str, Any]]


def format_trees(report: Mapping[str, Any]) -> str:
    """The whole file."""
    return "\n".join([*_head(report), *_settings(report), *_claims(report), *_passes(report)]) + "\n"


def _head(report: Mapping[str, Any]) -> Iterator[str]:
    machine, settings, versions = report["machine"], report["settings"], report["versions"]
    num_prompts = len({run["prompt"] for run in report["runs"]})
    yield "# Trees"
    yield ""
    yield (
        f"Target {settings['target']}, {settings['num_tokens']} new tokens behind each of {num_prompts} prompts, "
        "every setting in turn, another one first for each prompt. Times and speeds are medians over the prompts "
        "with [range], tokens per pass those of all prompts together."
    )
    yield ""
    yield (
        f"{machine['gpu'] or machine['cpu']}, {machine['cores']} cores, {machine['threads']} threads; "
        + ", ".join(f"{name} {version}" for name, version in versions.items())
    )


def _settings(report: Mapping[str, Any]) -> Iterator[str]:
    for temperature in dict.fromkeys(run["temperature"] for run in report["runs"]):
        runs = [run for run in report["runs"] if run["temperature"] == temperature]
        same = [run["identical"] for run in runs if run["identical"] is not None]
        note = f"{sum(same)} of {len(same)} texts identical to plain decoding." if same else ""
        columns = ("setting", "nodes per pass", "tokens per pass τ", "ms per token", "speed ÷ plain")
        yield from _table(f"T = {temperature:g}", columns, note)
        for name in dict.fromkeys(run["setting"] for run in runs):
            yield _line(name, _of(runs, name), _of(runs, "plain"))


def _table(title: str, columns: Sequence[str], note: str = "") -> Iterator[str]:
    """What stands above the rows of a section."""
    yield from ("", f"## {title}", "")
    yield from (note, "") if note else ()
    yield f"| {' | '.join(columns)} |"
    yield f"|{'---|' * len(columns)}"


def _of(runs: Runs, name: str) -> Runs:
    return [run for run in runs if run["setting"] == name]


def _line(name: str, runs: Runs, plain: Runs) -> str:
    passes = sum(run["passes"] for run in runs)
    nodes, tokens = (sum(run[key] for run in runs) / passes for key in ("nodes", "tokens"))
    own, alone = ([1e3 * run["seconds"] / run["tokens"] for run in each] for each in (runs, plain))
    speed = Spread.of([b / a for a, b in zip(own, alone, strict=True)])
    return f"| {name} | {nodes:.1f} | {tokens:.2f} | {_spread(Spread.of(own), 1)} | {_spread(speed, 2)}× |"


def _claims(report: Mapping[str, Any]) -> Iterator[str]:
    yield from _table("What is claimed", ("ratio, prompt by prompt", "median [range]", "goal"))
    for row in report["claims"]:
        note = f" ({row['note']})" if row["note"] else ""
        goal = row["goal"]
        told = f"≥ {goal['limit']:g}×: {'met' if row['met'] else 'missed'}" if goal else _UNKNOWN
        yield f"| {row['name']}{note} | {_of_row(row, 2)}× | {told} |"


def _passes(report: Mapping[str, Any]) -> Iterator[str]:
    yield from _table("What branching costs", ("one target pass at 256 tokens of context", "median [range]"))
    for row in report["passes"]:
        digits, unit = (1, " ms") if row["unit"] == "ms" else (2, "×")
        yield f"| {row['name']} | {_of_row(row, digits)}{unit} |"


def _of_row(row: Mapping[str, Any], digits: int) -> str:
    return _spread(Spread(row["median"], row["low"], row["high"], row["num"]), digits)


def _spread(spread: Spread, digits: int) -> str:
    return f"{spread.median:.{digits}f} [{spread.low:.{digits}f}–{spread.high:.{digits}f}]"
