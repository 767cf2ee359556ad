"""Tokens in a terminal: a colour or a mark for each fate, and nothing that a terminal would obey.

Owns: the palette as escape sequences, the marks, and making text safe to print. Must not know models or
numbers. Model text and prompts are foreign: their control characters are shown, never sent.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, TextIO

from specviz.text import Detokenizer
from specviz.trace import Piece, Step

Fate = Literal["accepted", "rejected", "untested", "corrected", "bonus", "plain"]
MARKS: dict[Fate, str] = {"accepted": "✓", "rejected": "✗", "corrected": "→", "bonus": "+"}
# Background light, background dark, other attributes; text is black on light and white or black on dark.
_PALETTE: dict[Fate, tuple[str, str, str]] = {
    "accepted": ("B9ECFD", "0D4659", "4"),
    "rejected": ("E98463", "FA6938", "9"),
    "corrected": ("5B2277", "E883FC", "1;21"),
    "bonus": ("FAE738", "F9F906", "3;4"),
}
_WHITE_TEXT = {"0D4659", "5B2277"}
_CUBE = (0, 95, 135, 175, 215, 255)
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff\U000e0000-\U000e007f]"
)  # control characters but newline and tab; direction overrides; halves of pairs; invisible tags

_MAX_MESSAGE = 800


def safe(text: str) -> str:
    """The text with every character that steers a terminal shown as an escape such as `\\x1b`."""
    return _UNSAFE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def one_line(text: str) -> str:
    """Safe text without line ends, for a message."""
    return safe(text).replace("\n", "\\n").replace("\t", "\\t")


def shortened(text: str) -> str:
    """A message that repeats what it was given, which may be of any length."""
    return text if len(text) <= _MAX_MESSAGE else f"{text[: _MAX_MESSAGE // 2]} … {text[-_MAX_MESSAGE // 2 :]}"


@dataclass(frozen=True)
class Style:
    """How fates look: `codes` holds escape sequences, and is empty where marks stand for colours."""

    codes: Mapping[Fate, str]

    @classmethod
    def of(cls, stream: TextIO, environment: Mapping[str, str] = os.environ) -> Style:
        """Colours on a terminal that has them, unless NO_COLOR says otherwise."""
        forced = bool(environment.get("FORCE_COLOR"))
        wanted = forced or (stream.isatty() and environment.get("TERM") != "dumb")
        if environment.get("NO_COLOR") or not wanted:
            return cls({})
        exact = environment.get("COLORTERM") in ("truecolor", "24bit")
        light = environment.get("COLORFGBG", "").rpartition(";")[2] in ("7", "15")
        return cls({fate: _code(row[0 if light else 1], row[2], exact) for fate, row in _PALETTE.items()})

    def paint(self, fate: Fate, text: str) -> str:
        """The text in its fate's colours, or behind its mark. Line ends stay unpainted."""
        if not self.codes:
            return MARKS.get(fate, "") + text
        code = self.codes.get(fate)
        if not code or not text:
            return text
        lines = text.replace("\n", "↵\n").split("\n")
        return "\n".join(f"\x1b[{code}m{line}\x1b[0m" if line else "" for line in lines)

    def legend(self) -> str:
        """One line that names the fates."""
        return "  ".join(self.paint(fate, f" {fate}{' ' if self.codes else ''}") for fate in MARKS)


def _code(colour: str, attributes: str, exact: bool) -> str:
    red, green, blue = (int(colour[i : i + 2], 16) for i in (0, 2, 4))
    text = 15 if colour in _WHITE_TEXT else 16
    if exact:
        foreground = "255;255;255" if text == 15 else "0;0;0"
        return f"{attributes};38;2;{foreground};48;2;{red};{green};{blue}"
    steps = (min(range(6), key=lambda i: abs(_CUBE[i] - part)) for part in (red, green, blue))
    r, g, b = steps
    return f"{attributes};38;5;{text};48;5;{16 + 36 * r + 6 * g + b}"


def fates(step: Step) -> Iterator[tuple[int, Fate]]:
    """(token id, fate) of all that was tried in a pass, in the order of the walk, then the final token."""
    for site in step.sites:
        for node in dict.fromkeys(trial.node for trial in site.trials):
            if node >= 0:  # a foreign trace may name the root
                yield step.nodes[node].token_id, step.nodes[node].verdict
    if step.final:
        yield step.final.token_id, step.final.kind


class Painter:
    """Steps in, printable text out; characters spread over several tokens appear when they are whole."""

    def __init__(self, style: Style, piece: Callable[[int], Piece]) -> None:
        self._style, self._piece = style, piece
        self._text = Detokenizer()

    def step(self, step: Step) -> str:
        """All tokens of a pass, the rejected ones included."""
        return "".join(self._style.paint(fate, self._show(self._piece(i), fate)) for i, fate in fates(step))

    def end(self) -> str:
        """What is left of a character that was never completed."""
        return _bytes_label(self._text.pending) if self._text.pending else ""

    def _show(self, piece: Piece, fate: Fate) -> str:
        if piece.special:
            return one_line(piece.data.decode(errors="backslashreplace"))
        if fate != "rejected":
            return safe(self._text.push(piece))
        text = self._text.copy().push(piece)
        shown = safe(text).replace("\n", "↵").replace("\t", "⇥")
        return shown or _bytes_label(piece.data)


def _bytes_label(data: bytes) -> str:
    return f"⟨{data.hex(' ').upper()}⟩"
