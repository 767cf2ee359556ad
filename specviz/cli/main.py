"""From arguments to an exit code; the one place where errors become messages.

Owns: which command runs, exit codes, keeping libraries quiet. 0: done. 1: the run ended with an error, or a
replayed trace does not check out. 2: bad input, said in one line before anything ran. 130: Ctrl-C.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

from specviz.cli import options
from specviz.cli.paint import one_line, shortened
from specviz.errors import SpecvizError

if TYPE_CHECKING:
    from specviz.run import Prepare

BAD_INPUT = 2
INTERRUPTED = 130
BROKEN_PIPE = 141
FULL = 1


def main(arguments: Sequence[str] | None = None, *, prepare: Prepare | None = None) -> int:
    """Run one command and return its exit code. `prepare` stands in for `specviz.run.prepare` in tests."""
    _quiet_libraries()
    _never_fail_to_print()
    try:
        return _dispatch(options.parse(arguments), prepare)
    except SpecvizError as error:
        print(one_line(f"specviz: {shortened(str(error))}"), file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        print("specviz: interrupted before there was anything to keep.", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # the reader of a pipe left, as `head` does
        _let_output_go()
        return BROKEN_PIPE
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        with contextlib.suppress(OSError):
            print("specviz: the output could not be written, since its disk is full.", file=sys.stderr)
        _let_output_go()
        return FULL


def _dispatch(parsed: options.Options, prepare: Prepare | None) -> int:
    """Commands are imported when they run: some need torch, which takes seconds."""
    match parsed.command:
        case "run":
            from specviz.cli.run import run

            return run(parsed, prepare)
        case "replay":
            from specviz.cli.replay import replay

            return replay(parsed)
        case "models":
            from specviz.cli.listing import list_models

            return list_models(parsed)
        case "index":
            from specviz.cli.jobs import index

            return index(parsed)
        case "bench":
            from specviz.cli.jobs import bench

            return bench(parsed)
        case _:
            from specviz.cli.jobs import distill

            return distill(parsed)


def _quiet_libraries() -> None:
    """Progress bars and advice of the model libraries are not ours to show; set before they are imported."""
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TQDM_DISABLE", "1")  # the reader of GGUF files has no other switch
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if not sys.warnoptions:
        warnings.simplefilter("ignore")


def _let_output_go() -> None:
    """So that what Python still holds back does not fail again at exit."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, io.UnsupportedOperation):
            stream.flush()
            continue
        with contextlib.suppress(OSError, ValueError, io.UnsupportedOperation):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _never_fail_to_print() -> None:
    """What the terminal's encoding cannot show is shown escaped; a closed stream swallows what it is given."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
