"""What is going on, on stderr.

Owns: one line that is overwritten on a terminal, and now and then a new line elsewhere. Must not know what it
reports.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TextIO

from specviz.cli.paint import one_line

_REDRAW_S = 0.1
_NEW_LINE_S = 10.0
_ERASE = "\r\x1b[K"


class Status:
    """A line of progress. With `held`, a stream that is no terminal gets nothing before `release`.

    So a run that is refused leaves the reason alone on stderr.
    """

    def __init__(self, stream: TextIO, *, held: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._clock = stream, clock
        self._terminal = stream.isatty()
        self._held: list[str] | None = [] if held and not self._terminal else None
        self._shown_at = -_NEW_LINE_S
        self._drawn = False

    def show(self, sentence: str, fraction: float | None = None) -> None:
        """Show a sentence that starts something new."""
        self._shown_at = self._clock()
        line = one_line(sentence) + (f" ({fraction:.0%})" if fraction is not None else "")
        if self._terminal:
            self._write(_ERASE + line)
            self._drawn = True
        elif self._held is not None:
            self._held.append(line)
        else:
            self._write(line + "\n")

    def update(self, sentence: str, fraction: float | None = None) -> None:
        """Show how far it is, but not more often than can be read."""
        if self._clock() - self._shown_at >= (_REDRAW_S if self._terminal else _NEW_LINE_S):
            self.show(sentence, fraction)

    def release(self) -> None:
        """Nothing was refused: let out what was held."""
        held, self._held = self._held or [], None
        self._write("".join(line + "\n" for line in held))

    def clear(self) -> None:
        """Take the line off a terminal."""
        if self._drawn:
            self._write(_ERASE)
            self._drawn = False

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
