"""A run as a table: one row for each pass.

Owns: the columns of the CSV. Must not know gradio, files or the engine.
"""

from __future__ import annotations

import csv
import io
from typing import Any

from specviz.metrics import count_step
from specviz.text import Detokenizer
from specviz.trace import Lane, Step, Trace

COLUMNS = (
    "lane",
    "pass",
    "tokens_before",
    "draft_len",
    "drafted",
    "tested",
    "accepted",
    "emitted",
    "final",
    "acceptance_rate",
    "overlap",
    "draft_s",
    "verify_s",
    "total_s",
    "clock_s",
    "token_ids",
    "text",
)
_RUNS_AS_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def steps_csv(trace: Trace) -> str:
    """All passes in the order they were decoded, as CSV with a header; undefined values are empty."""
    out = io.StringIO()
    table = csv.DictWriter(out, COLUMNS)
    table.writeheader()
    readers: dict[Lane, Detokenizer] = {"speculative": Detokenizer(), "baseline": Detokenizer()}
    for event in trace.events:
        if isinstance(event, Step):
            table.writerow(_row(event, _text(event, trace, readers[event.lane])))
    return out.getvalue()


def _text(step: Step, trace: Trace, reader: Detokenizer) -> str:
    """Characters that this pass completed; a spreadsheet must not take them for a formula."""
    text = "".join(reader.push(trace.pieces[token_id]) for token_id in step.emitted)
    return f"'{text}" if text.startswith(_RUNS_AS_FORMULA) else text


def _row(step: Step, text: str) -> dict[str, Any]:
    counts = count_step(step)
    return {
        "lane": step.lane,
        "pass": step.index + 1,
        "tokens_before": step.start,
        "draft_len": step.draft_len,
        "drafted": counts.drafted,
        "tested": counts.tested,
        "accepted": counts.accepted,
        "emitted": counts.emitted,
        "final": step.final.kind if step.final else "",
        "acceptance_rate": counts.acceptance_rate,
        "overlap": counts.overlap,
        "draft_s": step.draft_s,
        "verify_s": step.verify_s,
        "total_s": step.total_s,
        "clock_s": step.clock_s,
        "token_ids": " ".join(map(str, step.emitted)),
        "text": text,
    }
