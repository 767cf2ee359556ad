"""The command `run`: decode, show tokens as they come, end with the numbers.

Owns: the order of a run in a terminal, Ctrl-C, and that what was made is kept. Must not know models.
"""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from specviz.cli.files import OutputFile
from specviz.cli.options import Options, run_config
from specviz.cli.paint import Painter, Style, one_line
from specviz.cli.status import Status
from specviz.cli.summary import header, json_object, table
from specviz.errors import TraceError
from specviz.trace import Lane, RunFinished, RunStarted, Step, Trace

if TYPE_CHECKING:
    from specviz.run import Prepare, Run

ENDED_WITH_ERROR = 1
INTERRUPTED = 130


class Interrupt:
    """The first Ctrl-C asks the run to end at its next pass, a second one ends it at once."""

    def __init__(self) -> None:
        self._asked = False

    def asked(self) -> bool:
        return self._asked

    @contextlib.contextmanager
    def caught(self) -> Iterator[None]:
        """Catch Ctrl-C inside; only the main thread can."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.signal(signal.SIGINT, self._ask)
        try:
            yield
        except KeyboardInterrupt:
            self._asked = True
        finally:
            signal.signal(signal.SIGINT, before)

    def ignore(self) -> None:
        """From here to the end of `caught` nothing may disturb: what was made is being written."""
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, signal.SIG_IGN)

    def _ask(self, *_: Any) -> None:
        if self._asked:
            raise KeyboardInterrupt
        self._asked = True


def run(options: Options, prepare: Prepare | None = None) -> int:
    """Decode one prompt. Everything that can be refused is refused before the first pass."""
    config = run_config(options)
    trace_file = OutputFile(options.trace, "--trace") if options.trace is not None else None
    interrupt, status = Interrupt(), Status(sys.stderr, held=True)
    try:
        prepared = (prepare or _real_prepare())(config, progress=status.show, cancelled=interrupt.asked)
    finally:
        status.clear()
    status.release()
    for warning in prepared.warnings:
        print(one_line(f"specviz: {warning}"), file=sys.stderr)
    is_kept = True
    with interrupt.caught():
        try:
            _watch(prepared, options.json, status)
        finally:  # also where the reader of our output left, or a bug struck
            interrupt.ignore()
            kept = prepared.trace if options.include_references else prepared.trace.without_texts()
            is_kept = _keep(kept, trace_file)
    _report(prepared.trace, options.json)
    return _ending(prepared.trace, interrupt, trace_file if is_kept else None, is_kept)


def _real_prepare() -> Prepare:
    from specviz.run import prepare  # late: it imports torch

    return prepare


def _watch(prepared: Run, as_json: bool, status: Status) -> None:
    """Consume the run: tokens on stdout, or only a line of progress on stderr."""
    with_draft = any(name != "none" for name in prepared.config.drafts)
    lane: Lane = "speculative" if with_draft else "baseline"
    if as_json:
        _count(prepared, lane, status)
    else:
        _stream(prepared, lane)


def _count(prepared: Run, lane: Lane, status: Status) -> None:
    wanted = prepared.config.max_new_tokens
    try:
        for event in prepared.events():
            if isinstance(event, Step) and event.lane == lane:
                num_tokens = event.start + len(event.emitted)
                status.update(f"{num_tokens} of at most {wanted} tokens", num_tokens / wanted)
    finally:
        status.clear()


def _stream(prepared: Run, lane: Lane) -> None:
    painter = Painter(Style.of(sys.stdout), prepared.piece)
    try:
        for event in prepared.events():
            if event.lane != lane:
                continue
            if isinstance(event, RunStarted):
                print(header(event, prepared.trace.config), end="\n\n", flush=True)
            elif isinstance(event, Step):
                print(painter.step(event), end="", flush=True)
    finally:
        print(painter.end(), end="\n\n")


def _keep(trace: Trace, file: OutputFile | None) -> bool:
    """Write the trace where one is wanted; false where that failed, which is said."""
    if file is None or not trace.events:
        return True
    try:
        file.write(trace.to_json())
    except OSError as error:
        message = f"The trace {file.name!r} could not be written: {error.strerror}."
    except TraceError as error:
        message = str(error)
    else:
        return True
    print(one_line(f"specviz: {message}"), file=sys.stderr)
    return False


def _report(trace: Trace, as_json: bool) -> None:
    if as_json:
        print(json.dumps(json_object(trace), allow_nan=False))
    else:
        print(Style.of(sys.stdout).legend(), table(trace), sep="\n\n", flush=True)


def _ending(trace: Trace, interrupt: Interrupt, kept: OutputFile | None, is_kept: bool) -> int:
    """Say on stderr what went wrong and where the trace is; the exit code."""
    where = f" The trace is in {kept.name}." if kept and trace.events else ""
    finished = [event for event in trace.events if isinstance(event, RunFinished)]
    messages = dict.fromkeys(event.message or "The run ended with an error." for event in finished
                             if event.reason == "error")  # fmt: skip
    if interrupt.asked():
        say, code = ["Interrupted; what was made so far stands."], INTERRUPTED
    else:
        say, code = list(messages), ENDED_WITH_ERROR if messages or not is_kept else 0
    if say or where:
        print(one_line(f"specviz: {' '.join(say)}{where}" if say else where.strip()), file=sys.stderr)
    return code
