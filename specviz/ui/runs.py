"""What happens on Run, Stop and the page's questions: settings in, deltas out.

Owns: one run from press to last delta, its record in the journal, and who may name which model. Must not
know layout; the engine is handed in as `prepare`, and its values cross as in `worker`.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any

import gradio as gr

from specviz.config import RunConfig
from specviz.errors import ConfigError, ModelError, SpecvizError
from specviz.trace import Trace
from specviz.ui.journal import Journal, Record
from specviz.ui.library import Libraries
from specviz.ui.settings import MOST_NEW_TOKENS, NAMES, to_config
from specviz.ui.worker import BUG, decode
from specviz.view.payload import Feed
from specviz.view.replay import start_of
from specviz.view.verdict import closing_note, ending, theory_curve

if TYPE_CHECKING:
    from specviz.drafts.retrieval.library import Shelf
    from specviz.models.loading import Progress
    from specviz.run import Prepare

THEORY_EVERY = 5
STOP_WAIT_S = 20.0
Batches = Generator[dict[str, Any], None, None]
Worker = Callable[..., Batches]
"""`worker.decode` without its first argument: (settings, stop path, shelf), and a progress callback here only."""
BUILT_IN_DRAFTS = ("", "none", "lookup", "references")


class Runs:
    """The handlers of one page. `names` are the models a visitor may ask for; None allows any.

    `corpora` are the places of those corpora that go by their file's name alone. `gpu`, where given, wraps the
    worker so that it runs elsewhere; see `specviz.ui.gpu`.
    """

    def __init__(
        self,
        prepare: Prepare,
        *,
        gpu: Callable[[Worker], Worker] | None = None,
        names: Sequence[str] | None = None,
        libraries: Libraries | None = None,
        corpora: Mapping[str, str] | None = None,
    ) -> None:
        self.journal = Journal()
        self.libraries = libraries or Libraries(forget=self.journal.forget_texts)
        self._prepare = prepare
        self._names = None if names is None else {*names, *BUILT_IN_DRAFTS}
        self._corpora = dict(corpora or {})
        # What may be called in another process holds nothing of this one: no journal, no lock.
        self._remote = gpu(partial(decode, prepare)) if gpu else None

    # -- handlers ------------------------------------------------------------------------------

    def generate(
        self,
        request: gr.Request,
        ticket: str,
        progress: gr.Progress = gr.Progress(),  # noqa: B008 - gradio finds it by its default
        *values: Any,
    ) -> Iterator[str]:
        """Run what the controls say; yields deltas as JSON texts."""
        record = self.journal.open(ticket, request.session_hash or "")
        notify = _notify(progress)
        try:
            with closing(self.deltas(record, dict(zip(NAMES, values, strict=True)), notify)) as deltas:
                for delta in deltas:
                    yield record.add(delta)
        finally:
            record.close()

    def stop(self, ticket: str) -> bool:
        """Stop the page's run and wait until it has stopped; True where it had not begun yet."""
        record = self.journal.stop(ticket)
        if record is not None:
            record.over.wait(STOP_WAIT_S)
        return record is None

    def leave(self, request: gr.Request) -> None:
        """The page was closed: nothing of what it brought is kept."""
        session = request.session_hash or ""
        self.journal.stop_session(session)
        self.libraries.leave(session)

    def missing(self, request: dict[str, Any]) -> list[dict[str, Any]] | None:
        """Deltas that a page did not get; see `Journal.missing`."""
        return self.journal.missing(request)

    # -- one run -------------------------------------------------------------------------------

    def deltas(self, record: Record, values: dict[str, Any], notify: Progress | None = None) -> Batches:
        """All deltas of one run, from `loading` to `done` or `error`."""
        trace = record.trace
        feed = Feed(record.run, trace.pieces.__getitem__, {})
        try:
            config = self._allowed(to_config(values))
        except SpecvizError as error:
            yield feed.delta(phase="error", note=str(error))
            return
        if record.stopped:
            yield feed.delta(phase="error", note="Stopped before it began.")
            return
        yield feed.delta(phase="loading", note="Getting the models ready.")
        try:
            shelf = self.libraries.shelf(record.session)
            with closing(self._batches(config, record, shelf, notify)) as batches:
                for batch in batches:
                    delta = _delta(feed, trace, batch)
                    record.drop_texts()  # of references that were taken back before the run was prepared
                    yield delta
                    if "error" in batch:
                        return
        except Exception:  # else the page would take the run for one that goes on
            logging.getLogger(__name__).exception("a run could not be told")
            yield _delta(feed, trace, {"error": BUG})
            return
        yield _last(feed)

    def _batches(
        self, config: RunConfig, record: Record, shelf: Shelf | None = None, notify: Progress | None = None
    ) -> Batches:
        """The worker's batches; whatever goes wrong on the way to it ends them with its sentence."""
        settings, stop_path = config.to_json(), str(record.stop_path)
        try:
            if self._remote is None:
                yield from decode(self._prepare, settings, stop_path, shelf, notify)
            else:
                yield from self._remote(settings, stop_path, shelf)
        except gr.Error as error:  # from whoever lends the GPU: no time left, or the task was ended
            yield {"error": str(error.message)}
        except Exception:  # the same, told in another way
            logging.getLogger(__name__).exception("the worker could not be reached")
            yield {"error": BUG}

    def batches(self, settings: dict[str, Any], record: Record) -> Batches:
        """The worker's batches for plain settings, as the public endpoint wants them.

        Raises:
            SpecvizError: a setting out of range, or a model that is not offered here.
        """
        yield from self._batches(self._allowed(RunConfig.from_json(settings)), record)

    def _allowed(self, config: RunConfig) -> RunConfig:
        """The same config, corpora by their places.

        Raises where a visitor may not name one of its models, or asks for too much.
        """
        if self._names is not None and config.max_new_tokens > MOST_NEW_TOKENS:
            most = f"at most {MOST_NEW_TOKENS:,} are decoded here"
            raise ConfigError(f"The maximum of new tokens is {config.max_new_tokens:,}, but {most}.")
        for name in (config.target, *config.drafts):
            if self._names is not None and name not in self._names:
                known = ", ".join(sorted(filter(None, self._names)))
                raise ModelError(f"The model {name[:80]!r} is not offered here; choose one of {known}.")
        return dataclasses.replace(config, drafts=tuple(self._corpora.get(name, name) for name in config.drafts))


def _delta(feed: Feed, trace: Trace, batch: dict[str, Any]) -> dict[str, Any]:
    """Keep a batch of the worker in the trace, and tell the page."""
    if "error" in batch:
        return feed.delta(phase="error", note=batch["error"], **_close(feed))
    if "config" in batch:
        trace.config, trace.versions = batch["config"], batch["versions"]
        trace.references = batch["references"]
        feed.tally.config = dict(trace.config)
        start = start_of(trace, "live")
        warning: dict[str, Any] = {"warning": " ".join(batch["warnings"])} if batch["warnings"] else {}
        return feed.delta(phase="loading", note="Reading the prompt.", start=start, **warning)
    trace.pieces.update(batch["pieces"])
    trace.events.extend(batch["events"])
    theory: dict[str, Any] = {"theory": theory_curve(feed.tally)} if feed.seq % THEORY_EVERY == 0 else {}
    return feed.delta(batch["events"], **theory)


def _last(feed: Feed) -> dict[str, Any]:
    finished = [lane.finished for lane in feed.tally.lanes.values() if lane.finished]
    failed = next((event for event in finished if event.reason == "error"), None)
    if failed is not None:
        return feed.delta(phase="error", note=failed.message, **_close(feed))
    if not finished:
        return feed.delta(phase="error", note=BUG, **_close(feed))
    return feed.delta(phase="done", note=closing_note(feed.tally), **_close(feed))


def _close(feed: Feed) -> dict[str, Any]:
    if not any(lane.counts.passes for lane in feed.tally.lanes.values()):
        return {}
    return {"end": ending(feed.tally), "theory": theory_curve(feed.tally)}


def _notify(progress: gr.Progress) -> Progress:
    def notify(text: str, fraction: float | None) -> None:
        progress(0.0 if fraction is None else fraction, desc=text)

    return notify
