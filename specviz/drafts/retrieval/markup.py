"""HTML as the text that a reader of the page sees.

Owns: `html_text`. Must not know files. Not the standard library's parser: a page of unfinished tags takes that one
minutes, and what people upload may be meant to. Here the work grows with the length and nothing else.
"""

from __future__ import annotations

import contextlib
import html
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

# Quotes count behind "=" only, as in a browser; `*+` never goes back, so that a page without ">" is read once.
_TAG = re.compile(r"<(/?)([a-z][^\s/>]*)(?:[^>=]|=\s*(?:\"[^\"]*\"|'[^']*')?)*+>", re.IGNORECASE)
_UNSEEN = {"script", "style", "template", "head", "title", "noscript", "svg"}
_RAW = {"script", "style", "title"}  # in these nothing counts but their own end tag
_INLINE = {
    "a", "abbr", "b", "bdi", "cite", "code", "del", "em", "font", "i", "img", "input", "ins", "kbd", "label",
    "mark", "q", "s", "small", "span", "strong", "sub", "sup", "time", "tt", "u", "var", "wbr",
}  # fmt: skip


def html_text(source: str) -> str:
    """One line per block; `pre` keeps its line ends and spaces. Unfinished markup at the end is left out."""
    reader = _Reader()
    for part in _parts(source):
        if isinstance(part, str):
            reader.text(part)
        else:
            reader.tag(*part)
    return re.sub(r"\n{3,}", "\n\n", "\n".join(reader.finished())).strip() + "\n"


def _parts(source: str) -> Iterator[str | tuple[str, bool]]:
    """Texts, and tags as (name, whether it is an end tag); comments and the like are left out."""
    place = 0
    while place < len(source):
        sign = source.find("<", place)
        yield source[place:sign] if sign >= 0 else source[place:]
        if sign < 0:
            return
        behind = source[sign + 1 : sign + 3]
        if behind[:1].isalpha() or (behind[:1] == "/" and behind[1:].isalpha()):
            found = _TAG.match(source, sign)
            if not found:
                return
            yield found[2].lower(), bool(found[1])
            place = _behind_tag(source, found)
        elif behind[:1] in ("!", "?", "/"):
            mark = "-->" if source.startswith("<!--", sign) else ">"
            end = source.find(mark, sign + 2)
            place = end + len(mark) if end >= 0 else len(source)
        else:
            yield "<"
            place = sign + 1


def _behind_tag(source: str, tag: re.Match[str]) -> int:
    """Where reading goes on: behind the tag, or at the end tag of what is no markup inside."""
    name = tag[2].lower()
    if tag[1] or name not in _RAW:
        return tag.end()
    end = re.compile(f"</{name}", re.IGNORECASE).search(source, tag.end())
    return end.start() if end else len(source)


@dataclass
class _Line:
    """A line in the making; `kept` as it stands, with its spaces."""

    kept: bool = False
    parts: list[str] = field(default_factory=list)

    def finished(self) -> str:
        text = "".join(self.parts)
        with contextlib.suppress(ValueError):  # a character reference of thousands of digits
            text = html.unescape(text)
        return text if self.kept else " ".join(text.split())


class _Reader:
    """Collects lines, broken at every tag that is not inline."""

    def __init__(self) -> None:
        self._lines = [_Line()]
        self._num_unseen = self._num_pre = 0

    def tag(self, name: str, closes: bool) -> None:
        change = -1 if closes else 1
        self._num_unseen = max(0, self._num_unseen + change * (name in _UNSEEN))
        self._num_pre = max(0, self._num_pre + change * (name == "pre"))
        if name not in _INLINE and self._lines[-1].parts:
            self._lines.append(_Line())

    def text(self, text: str) -> None:
        if text and not self._num_unseen:
            self._lines[-1].parts.append(text)
            self._lines[-1].kept = self._num_pre > 0

    def finished(self) -> Iterator[str]:
        return (line.finished() for line in self._lines)
