"""The measurement of copying that is kept with the project: every answer, the search for copies, two files.

Owns: `measure_retrieval`, its files and their table (`format_retrieval`). Must not know how anything is measured.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from specviz.bench.bench import Bench
from specviz.bench.machine import machine
from specviz.bench.retrieval import LOOKUP_LENGTHS, OURS, Answer, answer_rows, lookup_name, measure_answers
from specviz.bench.rounds import Spread
from specviz.bench.searching import SECTION, searching
from specviz.distill.store import write_atomic
from specviz.drafts.retrieval.sets import GROUNDED
from specviz.run import versions

JSON_NAME, TABLE_NAME = "retrieval.json", "retrieval.md"
Say = Callable[[str, float | None], None]
_ALL_GROUNDED = " and ".join(GROUNDED)


def measure_retrieval(bench: Bench, folder: Path, *, say: Say = lambda *_: None) -> dict[str, Any]:
    """Answer every prompt of every set in every way, then time the search; the report, which is also in `folder`.

    Raises:
        ModelError: the target cannot be had.
        ConfigError: a folder that cannot be written.
    """
    report: dict[str, Any] = {"machine": machine(), "versions": versions()}
    answers = measure_answers(bench, say)
    say("Searching for copies", None)
    rows = [*answer_rows(answers), *searching(bench)]
    report |= {
        "settings": {"target": bench.target, "num_tokens": bench.num_tokens_cited, "quick": bench.quick},
        "answers": [dataclasses.asdict(one) for one in answers],
        "rows": [row.to_json() for row in rows],
    }
    text = json.dumps(report, indent=1, allow_nan=False) + "\n"
    table = format_retrieval(report)
    write_atomic(folder / JSON_NAME, lambda file: file.write(text.encode()))
    write_atomic(folder / TABLE_NAME, lambda file: file.write(table.encode()))
    return report


def format_retrieval(report: Mapping[str, Any]) -> str:
    """The whole file of tables."""
    answers = [Answer(**one) for one in report["answers"]]
    lines = [*_head(report, answers), *_by_category(answers), *_by_prompt(answers), *_search(report["rows"])]
    return "\n".join(lines) + "\n"


def _head(report: Mapping[str, Any], answers: Sequence[Answer]) -> Iterator[str]:
    machine, settings = report["machine"], report["settings"]
    yield "# Copying from references"
    yield ""
    yield (
        f"Target {settings['target']}, greedy, at most {settings['num_tokens']} new tokens, "
        f"{len({one.prompt for one in answers})} prompts of the bundled reference sets. The draft `{OURS}` copies "
        "from the set's texts, the prompt and the answer. Speedups are over plain decoding, raced step by step, "
        "prompt passes excluded; tokens per second are from the prompt's text to the last token, in turn with "
        "`generate` of transformers and its `prompt_lookup_num_tokens`, the best of "
        f"{', '.join(map(str, LOOKUP_LENGTHS))} for each prompt and value. Medians over the prompts [range]."
    )
    yield ""
    where = f"{machine['gpu'] or machine['cpu']}, {machine['cores']} cores, {machine['threads']} threads"
    yield f"{where}; {', '.join(f'{name} {version}' for name, version in report['versions'].items())}"
    yield ""
    same = [one.identical for one in answers if one.identical is not None]
    yield f"{sum(same)} of {len(same)} texts identical to plain decoding."
    yield ""


def _by_category(answers: Sequence[Answer]) -> Iterator[str]:
    yield "| prompts | n | speedup | tokens per pass, ours | theirs | ratio | tokens/s, ours | theirs | ratio |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for name, chosen in _groups(answers):
        pairs = [(one, _best(one, answers)) for one in chosen if one.by == OURS]
        cells = [name, str(len(pairs)), _spread([one.speedup for one, _ in pairs], "×")]
        for ours, theirs in (
            ([one.tokens_per_pass for one, _ in pairs], [best[0] for _, best in pairs]),
            ([one.tokens_per_s for one, _ in pairs], [best[1] for _, best in pairs]),
        ):
            ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
            cells += [_spread(ours), _spread(theirs), _spread(ratios, "×")]
        yield _line(cells)


def _groups(answers: Sequence[Answer]) -> Iterator[tuple[str, list[Answer]]]:
    """The prompts that the goals are for together, then each category, then all."""
    yield _ALL_GROUNDED, [one for one in answers if one.category in GROUNDED]
    for category in sorted({one.category for one in answers}):
        yield category, [one for one in answers if one.category == category]
    yield "all", list(answers)


def _best(one: Answer, answers: Sequence[Answer]) -> tuple[float, float]:
    """The most tokens per pass and per second that prompt lookup gave for the same prompt."""
    names = [lookup_name(num) for num in LOOKUP_LENGTHS]
    tried = [other for other in answers if other.prompt == one.prompt and other.by in names]
    return max(other.tokens_per_pass for other in tried), max(other.tokens_per_s for other in tried)


def _by_prompt(answers: Sequence[Answer]) -> Iterator[str]:
    yield from ("", "## By prompt", "", "| prompt | category | by | tokens | passes | τ | speedup | tokens/s |")
    yield "|---|---|---|---|---|---|---|---|"
    for one in sorted(answers, key=lambda one: (one.category, one.prompt)):
        speedup = "" if one.speedup is None else f"{one.speedup:.2f}×"
        numbers = [str(one.tokens), str(one.passes), f"{one.tokens_per_pass:.2f}", speedup]
        yield _line([one.prompt, one.category, one.by, *numbers, f"{one.tokens_per_s:.1f}"])


def _search(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield from ("", "## Searching for copies, on one core", "", "| | median [range] | goal |", "|---|---|---|")
    for row in rows:
        if row["section"] == SECTION:
            unit, goal = f" {row['unit']}" if row["unit"] else "", row["goal"]
            met = "met" if row["met"] else "missed"
            limit = f"{'≤' if goal['at_most'] else '≥'} {goal['limit']:g}{unit} {met}" if goal else ""
            spread = _spread([row["low"], row["median"], row["high"]], digits=3)
            yield _line([f"{row['name']} ({row['note']})", f"{spread}{unit}", limit])


def _spread(values: Sequence[float | None], unit: str = "", digits: int = 2) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "n/a"
    spread = Spread.of(known)
    median = f"{spread.median:.{digits}f}{unit}"
    return median if len(known) == 1 else f"{median} [{spread.low:.{digits}f}–{spread.high:.{digits}f}]"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
