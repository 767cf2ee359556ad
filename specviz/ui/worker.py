"""The one call that runs a model, from plain values to plain values.

Owns: the boundary that may lie between two processes (a GPU worker gets its arguments and gives its results
pickled), the pace of the stream, and which errors become sentences. Must not know gradio, pages or
visitors. No model, lock or generator crosses: models are looked up by name on the far side.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specviz.config import RunConfig
from specviz.errors import SpecvizError
from specviz.trace import Event, event_ids

if TYPE_CHECKING:  # at run time it is handed in: importing it would import torch
    from specviz.drafts.retrieval.library import Shelf
    from specviz.models.loading import Progress
    from specviz.run import Prepare, Run

FLUSH_S = 0.1
NUM_AT_ONCE = 4  # both prompt passes and the first pass of each lane
BUG = "Something went wrong inside specviz; that is our mistake, not yours. The server's log has the details."


def decode(
    prepare: Prepare,
    settings: dict[str, Any],
    stop_path: str,
    shelf: Shelf | None = None,
    progress: Progress | None = None,
) -> Generator[dict[str, Any], None, None]:
    """Run `settings` with the references on `shelf`; yields batches, at most one in `FLUSH_S` seconds.

    The first batch is `{"config", "versions", "references", "warnings"}`; then, the first event at once, come
    `{"events", "pieces"}` with the pieces not sent before. An error that the user can put right ends it with
    `{"error": sentence}`. The run stops at its next pass once a file stands at `stop_path`.
    """
    flag = Path(stop_path)
    try:
        run = prepare(RunConfig.from_json(settings), progress=progress, cancelled=flag.exists, shelf=shelf)
        trace = run.trace
        yield {
            "config": dict(trace.config),
            "versions": dict(trace.versions),
            "references": list(trace.references),
            "warnings": list(run.warnings),
        }
        yield from _batches(run)
    except SpecvizError as error:
        yield {"error": str(error)}
    except Exception:
        logging.getLogger(__name__).exception("a run failed")
        yield {"error": BUG}


def _batches(run: Run) -> Iterator[dict[str, Any]]:
    batch: list[Event] = []
    known: set[int] = set()
    num_seen, due = 0, 0.0
    events = run.events()
    try:
        for event in events:
            batch.append(event)
            num_seen += 1
            if num_seen <= NUM_AT_ONCE or time.monotonic() >= due:
                yield _batch(run, batch, known)
                batch = []
                due = time.monotonic() + FLUSH_S
        if batch:
            yield _batch(run, batch, known)
    finally:
        close = getattr(events, "close", None)
        if close is not None:
            close()


def _batch(run: Run, events: list[Event], known: set[int]) -> dict[str, Any]:
    ids = {token_id for event in events for token_id in event_ids(event)}
    fresh = ids - known
    known |= fresh
    return {"events": list(events), "pieces": {token_id: run.piece(token_id) for token_id in fresh}}
