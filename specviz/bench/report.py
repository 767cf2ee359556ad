"""The report: every section in order, the machine it was made on, and the table.

Owns: the table of sections (later ones are added there), machine and versions, how rows are shown. Must not
know how anything is measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from specviz.bench import drafts, engine
from specviz.bench.bench import Bench, Row
from specviz.bench.machine import machine
from specviz.bench.retrieval import retrieval
from specviz.bench.searching import searching
from specviz.bench.trees import trees
from specviz.errors import ConfigError
from specviz.run import versions

Section = Callable[[Bench], Iterator[Row]]
SECTIONS: dict[str, Section] = {
    "bookkeeping": engine.bookkeeping,
    "plain decoding": engine.against_transformers,
    "numerics": engine.numerics,
    "pass times": engine.pass_times,
    "drafts": drafts.gains,
    "trees": trees,
    "retrieval": retrieval,
    "searching": searching,
}
TITLES = {
    "bookkeeping": "Step time outside draft and verify, full trace kept",
    "plain decoding": "Plain decoding against transformers' generate, in turn",
    "numerics": "Exact against fast numerics, one target pass",
    "pass times": "One target pass by block size",
    "drafts": "Drafts against plain decoding, raced step by step",
    "trees": "Chain, trees, several drafts and both rules, in turn",
    "retrieval": "Copying from references, against plain decoding and prompt lookup, in turn",
    "searching": "Searching for copies, on one core",
}
_BUSY = 0.5


def measure(
    *,
    quick: bool = False,
    say: Callable[[str, float | None], None] = lambda *_: None,
    bench: Bench | None = None,
    sections: Mapping[str, Section] = SECTIONS,
) -> dict[str, Any]:
    """Run every section; the report as plain JSON values. `say` gets a sentence and the fraction done.

    Raises:
        ModelError: the embedded target cannot be had.
    """
    measured_on = machine()
    bench = bench or Bench(quick=quick)
    rows = []
    for place, (name, section) in enumerate(sections.items()):
        say(f"Measuring {name}", place / len(sections))
        rows += [row.to_json() for row in section(bench)]
    pair = {"target": bench.target, "drafts": list(bench.drafts)}
    return {"machine": measured_on, "versions": versions(), "quick": bench.quick, **pair, "rows": rows}


def choose(names: Sequence[str] | None) -> dict[str, Section]:
    """The sections of these names in the order of the report; all without any.

    Raises:
        ConfigError: a name that there is not.
    """
    for name in names or ():
        if name not in SECTIONS:
            raise ConfigError(f"The bench has no section {name!r}; it has {', '.join(SECTIONS)}.")
    return {name: section for name, section in SECTIONS.items() if not names or name in names}


def format_report(report: Mapping[str, Any]) -> str:
    """The report as a table: median, range, number of values, goal."""
    lines = [*_head(report)]
    width = max((len(row["name"]) for row in report["rows"]), default=0)
    for section, rows in groupby(report["rows"], key=lambda row: row["section"]):
        lines += ["", TITLES.get(section, section)]
        lines += [_line(row, width) for row in rows]
    return "\n".join(lines)


def _head(report: Mapping[str, Any]) -> Iterator[str]:
    machine, versions = report["machine"], report["versions"]
    where = machine["gpu"] or machine["cpu"]
    yield f"{where}, {machine['cores']} cores, {machine['threads']} threads, {machine['system']}"
    yield ", ".join(f"{name} {version}" for name, version in versions.items())
    yield f"target {report['target']}; drafts {', '.join(report['drafts'])}; medians [range] of n"
    load = machine["load_at_start"]
    if load is not None and load > _BUSY:
        yield f"The machine was busy at the start (load {load:.1f}): times may be too long, ratios less so."


def _line(row: Mapping[str, Any], width: int) -> str:
    median, low, high = (_value(row[key], row["unit"]) for key in ("median", "low", "high"))
    unit = f" {row['unit']}" if row["unit"] in ("s", "ms", "tokens/s") else ""
    goal = ""
    if row["goal"]:
        sign = "≤" if row["goal"]["at_most"] else "≥"
        met = "met" if row["met"] else "NOT MET"
        goal = f"  goal {sign} {_value(row['goal']['limit'], row['unit'])}: {met}"
    note = f"  ({row['note']})" if row["note"] else ""
    return f"  {row['name']:<{width}}  {median:>8}{unit} [{low} to {high}] n={row['num']}{goal}{note}"


def _value(value: float, unit: str) -> str:
    match unit:
        case "%":
            return f"{value:.1%}"
        case "×":
            return f"{value:.2f}×"
        case "ms" if abs(value) < 1:
            return f"{value:.3f}"
        case "ms" | "tokens/s":
            return f"{value:.1f}"
    return f"{value:.2f}"
