"""The runs of this process that a page may still ask about.

Owns: for each run its deltas (so that a page can fill gaps), its trace (for export) and its stop flag. A run
is known by an unguessable id that only its own page has. Must not know gradio or the engine.

The stop flag is a file, so that it also reaches a worker in another process.
"""

from __future__ import annotations

import json
import re
import secrets
import shutil
import tempfile
import threading
import weakref
from collections import OrderedDict
from pathlib import Path
from typing import Any

from specviz.trace import RunStarted, Trace
from specviz.view.payload import as_text

MAX_RUNS = 48
MAX_BYTES = 256 * 2**20
MAX_REFILL = 400
MAX_STOPS = 64  # of runs that still wait for their turn
_RUN_ID = re.compile(r"[0-9a-f]{32}")


class Record:
    """One run: its deltas as JSON texts, its trace, and who may stop it."""

    def __init__(self, run: str, session: str, stop_path: Path) -> None:
        self.run = run
        self.session = session
        self.stop_path = stop_path
        self.deltas: list[str] = []
        self.trace = Trace()
        self.weight = 0  # of the trace, where no deltas are kept
        self._keeps_texts = True
        self.over = threading.Event()

    def add(self, delta: dict[str, Any]) -> str:
        """Keep a delta; returns the text that goes to the page."""
        text = as_text(delta)
        self.deltas.append(text)
        return text

    @property
    def num_bytes(self) -> int:
        """About what it takes in memory: a character a byte, the place of a token a number of Python's."""
        texts = sum(len(reference.text) + 40 * len(reference.starts) for reference in self.trace.references)
        return sum(map(len, self.deltas)) + texts + self.weight

    def snapshot(self) -> Trace:
        """The trace so far; the run may be going on."""
        trace = self.trace
        events, references = list(trace.events), list(trace.references)
        return Trace(dict(trace.config), events, dict(trace.pieces), dict(trace.versions), references)

    def forget_texts(self) -> None:
        """Keep of the references only what was copied, also of what a run that goes on has yet to bring."""
        self._keeps_texts = False
        self.drop_texts()

    def drop_texts(self) -> None:
        """Where the texts are to be forgotten, do so now."""
        if self._keeps_texts:
            return
        bare = self.snapshot().without_texts()
        self.trace.references[:] = bare.references
        for place, event in enumerate(bare.events):
            if isinstance(event, RunStarted):
                self.trace.events[place] = event
        if self.over.is_set():  # until then, pieces are still looked up that came with the prompt
            self.trace.pieces = bare.pieces

    def stop(self) -> None:
        self.stop_path.touch()

    @property
    def stopped(self) -> bool:
        return self.stop_path.exists()

    def close(self) -> None:
        """The run is over; its deltas and trace stay."""
        self.over.set()
        self.drop_texts()
        self.stop_path.unlink(missing_ok=True)


class Journal:
    """All runs that are going on, and the latest that are over."""

    def __init__(self) -> None:
        self._records: OrderedDict[str, Record] = OrderedDict()
        self._stops: OrderedDict[str, None] = OrderedDict()
        self._lock = threading.Lock()
        self._folder = Path(tempfile.mkdtemp(prefix="specviz-"))
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)

    def open(self, ticket: str = "", session: str = "") -> Record:
        """A record for a new run; `ticket` is the id its page chose, if it is a proper and a new one."""
        with self._lock:
            proper = _RUN_ID.fullmatch(ticket) and ticket not in self._records
            run = ticket if proper else secrets.token_hex(16)
            record = self._records[run] = Record(run, session, self._path(run))
            if proper and run in self._stops:
                del self._stops[run]
                record.stop()
            self._drop_old()
            return record

    def forget(self, record: Record) -> None:
        """The record's run is over and nobody will ask about it: it takes no place from the others."""
        record.close()
        with self._lock:
            self._records.pop(record.run, None)

    def _path(self, run: str) -> Path:
        return self._folder / run

    def _drop_old(self) -> None:
        for run, record in list(self._records.items())[:-1]:
            total = sum(other.num_bytes for other in self._records.values())
            if len(self._records) <= MAX_RUNS and total <= MAX_BYTES:
                return
            if record.over.is_set():
                del self._records[run]

    def get(self, run: object) -> Record | None:
        with self._lock:
            return self._records.get(run) if isinstance(run, str) else None

    def stop(self, ticket: object) -> Record | None:
        """Stop the run with this id. Where it still waits for its turn, it will end as it begins."""
        if not isinstance(ticket, str):
            return None
        with self._lock:
            record = self._records.get(ticket)
            if record is None and _RUN_ID.fullmatch(ticket):
                self._stops[ticket] = None
                while len(self._stops) > MAX_STOPS:
                    self._stops.popitem(last=False)
        if record is not None and not record.over.is_set():
            record.stop()
        return record

    def stop_session(self, session: str) -> None:
        """Stop whatever a page that has gone away was running."""
        with self._lock:
            gone = [record for record in self._records.values() if record.session == session]
        for record in gone:
            if not record.over.is_set():
                record.stop()

    def forget_texts(self, session: str) -> None:
        """Keep the runs of a page without the references that it has taken back."""
        with self._lock:
            records = [record for record in self._records.values() if record.session == session]
        for record in records:
            record.forget_texts()

    def missing(self, request: object) -> list[dict[str, Any]] | None:
        """The deltas `from` to `to` of a run; an empty list for anything that is no proper request.

        None where no such run is known: the server was started anew, or the run is too long ago.
        """
        if not isinstance(request, dict):
            return []
        run, first, last = (request.get(name) for name in ("run", "from", "to"))
        if not isinstance(run, str) or not isinstance(first, int) or not isinstance(last, int) or first < 0:
            return []
        record = self.get(run)
        if record is None:
            return None
        return [json.loads(text) for text in record.deltas[first : min(last + 1, first + MAX_REFILL)]]
