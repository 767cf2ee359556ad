"""A recorded trace as one delta, exactly as a live run would have sent it.

Owns: how a kept trace enters the page, and the line that says what it is. Must not know gradio or files.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from specviz.config import CASCADE, copies
from specviz.trace import Trace
from specviz.view.payload import Feed
from specviz.view.verdict import closing_note, ending, theory_curve

Source = Literal["live", "recorded", "imported"]
MAX_PROMPT_SHOWN = 600


def start_of(trace: Trace, source: Source, title: str = "") -> dict[str, Any]:
    """The part `start` of a run's first delta: its settings, its references, and where it comes from."""
    config = trace.config
    prompt = str(config.get("prompt", ""))
    length = config.get("draft_len")
    return {
        "source": source,
        "title": title,
        "config": {
            "prompt": prompt[:MAX_PROMPT_SHOWN] + ("…" if len(prompt) > MAX_PROMPT_SHOWN else ""),
            "temperature": _number(config.get("temperature"), None),
            "draft_len": length if length == "auto" else _number(length, None),
            "copy_len": _copy_len(config),
            "tree": str(config.get("tree") or "")[:40],
            "rule": "naive" if config.get("rule") == "naive" else "standard",
            "max_new_tokens": _number(config.get("max_new_tokens"), 0),
            "baseline": config.get("baseline") is not False,
        },
        "references": [
            {"name": reference.name, "num_tokens": reference.num_tokens, "kept": bool(reference.starts)}
            for reference in trace.references
        ],
    }


def _copy_len(config: Mapping[str, Any]) -> str | float | None:
    """How much is copied at once, where every draft does nothing but copy; else None."""
    drafts, length = config.get("drafts"), config.get("copy_len")
    names = drafts if isinstance(drafts, list) and all(isinstance(name, str) for name in drafts) else []
    if not names or any(name.startswith(CASCADE) or not copies(name) for name in names):
        return None
    return "auto" if length == "auto" else _number(length, None)


def _number(value: object, otherwise: float | None) -> float | None:
    """A trace from elsewhere may hold anything among its settings."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number and abs(value) < 1e9 else otherwise  # type: ignore[return-value, arg-type]


def recorded_delta(trace: Trace, run: str, source: Source, title: str = "") -> dict[str, Any]:
    """All of `trace` in one delta of the run `run`."""
    feed = Feed(run, trace.pieces.__getitem__, trace.config)
    delta = feed.delta(
        trace.events,
        phase="done",
        start=start_of(trace, source, title or trace.versions.get("machine", "")),
    )
    note = closing_note(feed.tally, live=source == "live")
    return {**delta, "note": note, "end": ending(feed.tally), "theory": theory_curve(feed.tally)}
