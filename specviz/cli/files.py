"""Files that a command reads and writes.

Owns: bounded reading, and output that is whole or not there at all and checked before anything runs. Must
not know what is in the files.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from specviz.config import MAX_PROMPT_CHARS
from specviz.errors import ConfigError, TraceError
from specviz.trace import MAX_TRACE_BYTES, Trace

_MAX_PROMPT_BYTES = 4 * MAX_PROMPT_CHARS  # a character of UTF-8 has at most 4 bytes


class OutputFile:
    """A file to be written at the end of a command.

    Raises:
        ConfigError: at once, where it could not be written; `option` names it.
    """

    def __init__(self, name: str, option: str) -> None:
        self.name = name
        try:
            self._path = Path(os.path.realpath(name))  # a link stays a link
            problem = self._problem()
        except (OSError, ValueError) as error:  # ValueError: a name with a null byte
            problem = _reason(error)
        if problem:
            raise ConfigError(f"{option} {name!r} cannot be written: {problem}.")

    def _problem(self) -> str:
        """Why there can be no such file; empty, or OSError, where the system says so."""
        if not self.name:
            return "it has no name"
        if self._path.is_dir():
            return "it is a folder"
        if self._path.exists() and not self._path.is_file():
            return "it is no regular file"
        if self._path.exists() and not os.access(self._path, os.W_OK):
            return "it is write-protected"
        self._scratch().unlink()
        return ""

    def _scratch(self) -> Path:
        handle, path = tempfile.mkstemp(prefix=".specviz-", dir=self._path.parent)
        os.close(handle)
        return Path(path)

    def write(self, text: str) -> None:
        """Put the text there, whole or not at all. Raises OSError where the disk is full by now."""
        scratch = self._scratch()
        try:
            scratch.write_text(text, encoding="utf-8")
            scratch.chmod(self._path.stat().st_mode if self._path.exists() else 0o644)
            os.replace(scratch, self._path)
        except BaseException:
            scratch.unlink(missing_ok=True)
            raise


def read_prompt(name: str) -> str:
    """The text of a prompt file, without a byte-order mark and without one final line end.

    Raises:
        ConfigError: it cannot be read, is no UTF-8, or holds more than any prompt may.
    """
    data = _read(name, _MAX_PROMPT_BYTES, ConfigError, "The prompt file")
    if len(data) > _MAX_PROMPT_BYTES:
        raise ConfigError(
            f"The prompt file {name!r} is too large; at most {MAX_PROMPT_CHARS:,} characters are allowed."
        )
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"The prompt file {name!r} is not UTF-8 text: byte {data[error.start]:#04x} at position {error.start}."
        ) from None
    return text.removesuffix("\n").removesuffix("\r")


def read_trace(name: str) -> Trace:
    """A trace from a file.

    Raises:
        TraceError: it cannot be read, or is none.
    """
    data = _read(name, MAX_TRACE_BYTES, TraceError, "The trace")
    try:
        return Trace.from_json(data)
    except TraceError as error:
        raise TraceError(f"{name!r} cannot be replayed. {error}") from None


def _read(name: str, limit: int, kind: type[ConfigError] | type[TraceError], what: str) -> bytes:
    """At most one byte more than `limit`, so that the reader sees that it is too much."""
    try:
        with open(name, "rb") as file:
            return file.read(limit + 1)
    except (OSError, ValueError) as error:
        raise kind(f"{what} {name!r} cannot be read: {_reason(error)}.") from None


def _reason(error: OSError | ValueError) -> str:
    return getattr(error, "strerror", None) or str(error)
