"""The races of drafts as Markdown tables: one of headlines, then one for each draft and temperature.

Owns: how these results are shown. Must not know how they were measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from specviz.bench.rounds import Spread

NAME = "drafts.md"
_UNKNOWN = "n/a"
_ALL = "all"
Races = Sequence[Mapping[str, Any]]


def format_categories(report: Mapping[str, Any]) -> str:
    """The whole file."""
    return "\n".join([*_head(report), *_headlines(report), *_details(report)]) + "\n"


def _head(report: Mapping[str, Any]) -> Iterator[str]:
    machine, settings, versions = report["machine"], report["settings"], report["versions"]
    limit = settings["limit_per_category"]
    num_prompts = len({race["prompt"] for race in report["races"]})
    which = "bundled prompts" if limit is None else f"bundled prompts, at most {limit} of each category"
    yield "# Drafts by category"
    yield ""
    yield (
        f"Target {settings['target']}, at most {settings['num_tokens']} new tokens, {num_prompts} turns of the "
        f"{which}; each draft raced against plain decoding, step by step, on the same machine. Speedups are "
        "medians over the turns with [range]; tokens per pass are those of all turns together."
    )
    if not report["finished"]:
        yield ""
        yield "**Not finished:** the same command goes on from here."
    yield ""
    yield (
        f"{machine['gpu'] or machine['cpu']}, {machine['cores']} cores, {machine['threads']} threads; "
        + ", ".join(f"{name} {version}" for name, version in versions.items())
    )
    yield ""


def _headlines(report: Mapping[str, Any]) -> Iterator[str]:
    yield "| draft | T | tokens per pass | speedup | slowest category |"
    yield "|---|---|---|---|---|"
    for draft, temperature, races in _groups(report):
        slowest = min(
            ((spread.median, name) for name, rows in _by_category(races) if (spread := _speedups(rows))),
            default=None,
        )
        last = f"{slowest[1]} {slowest[0]:.2f}×" if slowest else _UNKNOWN
        yield f"| {draft} | {temperature:g} | {_tokens_per_pass(races)} | {_spread(races)} | {last} |"


def _details(report: Mapping[str, Any]) -> Iterator[str]:
    for draft, temperature, races in _groups(report):
        yield ""
        yield f"## {draft}, T = {temperature:g}"
        yield ""
        if (same := [race["identical"] for race in races if race["identical"] is not None]) and temperature == 0:
            yield f"{sum(same)} of {len(same)} texts identical to plain decoding."
            yield ""
        yield "| category | turns | tokens per pass | nodes per pass | speedup | c | v |"
        yield "|---|---|---|---|---|---|---|"
        for name, rows in (*_by_category(races), (_ALL, races)):
            yield f"| {name} | {len(rows)} | {_tokens_per_pass(rows)} | {_mean(rows, 'nodes_per_pass', 1)} | " + (
                f"{_spread(rows)} | {_mean(rows, 'draft_ratio', 3)} | {_mean(rows, 'verify_ratio', 2)} |"
            )


def _groups(report: Mapping[str, Any]) -> Iterator[tuple[str, float, Races]]:
    """(draft, temperature, its races), temperatures of a draft together."""
    temperatures = sorted({race["temperature"] for race in report["races"]})
    for draft in report["settings"]["drafts"]:
        for temperature in temperatures:
            chosen = [r for r in report["races"] if (r["draft"], r["temperature"]) == (draft, temperature)]
            yield draft, temperature, chosen


def _by_category(races: Races) -> list[tuple[str, Races]]:
    names = dict.fromkeys(race["category"] for race in races)
    return [(name, [race for race in races if race["category"] == name]) for name in names]


def _speedups(races: Races) -> Spread | None:
    known = [race["speedup"] for race in races if race["speedup"] is not None]
    return Spread.of(known) if known else None


def _spread(races: Races) -> str:
    spread = _speedups(races)
    return f"{spread.median:.2f}× [{spread.low:.2f}–{spread.high:.2f}]" if spread else _UNKNOWN


def _tokens_per_pass(races: Races) -> str:
    passes = sum(race["passes"] for race in races)
    return f"{sum(race['tokens'] for race in races) / passes:.2f}" if passes else _UNKNOWN


def _mean(races: Races, name: str, digits: int) -> str:
    known = [race[name] for race in races if race[name] is not None]
    return f"{sum(known) / len(known):.{digits}f}" if known else _UNKNOWN
