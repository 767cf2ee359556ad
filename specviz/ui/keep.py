"""Traces in and out of the page: recordings, files to keep, and files that a visitor brings.

Owns: what the page may ask for outside the queue about whole traces. Every answer is bounded, and a bad
request gets one sentence or nothing. Must not know gradio or the engine: a trace is shown with no model.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from specviz.errors import SpecvizError, TraceError
from specviz.metrics import audit
from specviz.trace import Piece, Step, Trace, event_to_json
from specviz.ui.journal import Journal, Record
from specviz.ui.recordings import Recording
from specviz.ui.worker import BUG
from specviz.view.export import steps_csv
from specviz.view.payload import Feed
from specviz.view.replay import recorded_delta
from specviz.view.sources import source_tokens

MAX_FAULTS_SHOWN = 3
MAX_CHARS = 32 * 2**20  # far above what a run of the page can come to; larger ones the command line replays
MAX_CHARS_OPEN = 16 * 2**20  # where anybody may send files: still the longest run of the page
MAX_NUMBER = 1e12
MAX_NODES = 4096
MAX_TOKENS = 4000  # of a reference in one answer
WEIGHT = 6  # bytes in memory for each character of a trace, about


class Keep:
    """The handlers of one page. Recordings stay for good; what visitors bring stays as long as a run does."""

    def __init__(
        self, journal: Journal, recordings: Sequence[Recording] = (), *, max_chars: int = MAX_CHARS
    ) -> None:
        self._journal = journal
        self._max_chars = max_chars
        self._reading = threading.Lock()  # reading takes many times a file's size, outside the queue
        self._recordings = {f"recorded-{recording.name}": recording for recording in recordings}

    def opening(self) -> dict[str, Any] | None:
        """The delta of the first recording, which plays when the page opens."""
        for run, recording in self._recordings.items():
            return recorded_delta(recording.trace, run, "recorded", recording.title)
        return None

    def export(self, request: object) -> dict[str, str] | None:
        """A file of the run `run`: `what` is "trace" (JSON) or "steps" (CSV). None where there is no such run.

        Of references a trace holds only what was copied, unless `references` is true.
        A trace too large to be read back is `{"error": sentence}` instead.
        """
        if not isinstance(request, dict):
            return None
        trace = self._trace(request.get("run"))
        if trace is None or not trace.events:
            return None
        if request.get("what") == "trace":
            kept = trace if request.get("references") is True else trace.without_texts()
            try:
                return {"name": "specviz-trace.json", "type": "application/json", "text": kept.to_json()}
            except TraceError as error:
                return {"error": str(error)}
        if request.get("what") == "steps":
            return {"name": "specviz-steps.csv", "type": "text/csv", "text": steps_csv(trace)}
        return None

    def reference(self, request: object) -> dict[str, Any] | None:
        """Tokens `from` to `to` of the `source` of a run (a reference's name, or "prompt"): `{"tokens": [text]}`.

        None for anything that is no proper request, or a text that is not kept.
        """
        if not isinstance(request, dict):
            return None
        first, last, source = (request.get(name) for name in ("from", "to", "source"))
        trace = self._trace(request.get("run"))
        if trace is None or type(first) is not int or type(last) is not int or not 0 <= first <= last:
            return None
        tokens = source_tokens(trace, str(source), first, min(last, first + MAX_TOKENS))
        return None if tokens is None else {"tokens": tokens}

    def _trace(self, run: object) -> Trace | None:
        recording = self._recordings.get(run) if isinstance(run, str) else None
        if recording is not None:
            return recording.trace
        record = self._journal.get(run)
        return record.snapshot() if record else None

    def open_trace(self, text: object) -> dict[str, Any]:
        """The delta that shows the trace in a file's `text`, or one that says why it cannot be shown."""
        record = self._journal.open()
        try:
            delta = self._opened(record, text)
        except SpecvizError as error:
            delta = _refusal(record.run, str(error))
        except Exception:
            logging.getLogger(__name__).exception("a trace could not be shown")
            delta = _refusal(record.run, BUG)
        if delta["phase"] == "error":
            self._journal.forget(record)
        record.close()
        return delta

    def _opened(self, record: Record, text: object) -> dict[str, Any]:
        if not self._reading.acquire(blocking=False):
            raise TraceError("Another file is being read here; try again in a moment.")
        try:
            record.trace = _read(text, self._max_chars)
            record.weight = WEIGHT * len(str(text))
            delta = recorded_delta(record.trace, record.run, "imported")
            faults = audit(record.trace)
        finally:
            self._reading.release()
        return {**delta, "warning": _warning(faults)} if faults else delta


def _read(text: object, max_chars: int) -> Trace:
    if not isinstance(text, str):
        raise TraceError("The file is not text, so it is no trace.")
    if len(text) > max_chars:
        raise TraceError(f"The trace is larger than {max_chars // 2**20} MB; the command line can replay it.")
    trace = Trace.from_json(text)
    for number, event in enumerate(trace.events):
        widest = max(map(abs, _numbers(event_to_json(event))), default=0)
        if widest > MAX_NUMBER or (isinstance(event, Step) and not 0 <= event.draft_len <= MAX_NODES):
            raise TraceError(f"The trace is damaged: event {number + 1} holds a number beyond all bounds.")
    return trace


def _numbers(value: Any) -> Iterator[float]:
    """All numbers in a JSON value, seeds apart."""
    if isinstance(value, dict):
        for name, item in value.items():
            yield from _numbers(item) if name != "seed" else ()
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _numbers(item)
    elif isinstance(value, int | float):
        yield value


def _refusal(run: str, sentence: str) -> dict[str, Any]:
    no_pieces: dict[int, Piece] = {}
    return Feed(run, no_pieces.__getitem__, {}).delta(phase="error", note=sentence)


def _warning(faults: Sequence[str]) -> str:
    shown = " ".join(fault[:200] for fault in faults[:MAX_FAULTS_SHOWN])
    more = f" And {len(faults) - MAX_FAULTS_SHOWN} more." if len(faults) > MAX_FAULTS_SHOWN else ""
    return f"This trace does not check out: {shown}{more}"
