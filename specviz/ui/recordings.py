"""Recorded traces that the page can play before any model is loaded.

Owns: the folder of recordings. Must not know gradio.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from specviz.trace import Trace

FOLDER = Path(__file__).resolve().parents[2] / "assets" / "traces"


@dataclass(frozen=True)
class Recording:
    """A kept trace by name, and the line that says where it was recorded."""

    name: str
    trace: Trace
    title: str = ""


def load_all(folder: Path = FOLDER) -> list[Recording]:
    """The recordings in the order of their files; the first plays when the page opens.

    Raises:
        TraceError: a file is damaged.
    """
    files = sorted(folder.glob("*.json"))
    return [Recording(path.stem, Trace.from_json(path.read_bytes())) for path in files]
