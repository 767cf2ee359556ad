"""The references that visitors bring: each has a shelf of their own, in memory, until they take it back or leave.

Owns: what the page may ask about its shelf, and the limits on it. Must not know layout or runs. No file is
written. A visitor is known by an unguessable key that only their own page has, and that belongs to one session.
"""

from __future__ import annotations

import base64
import binascii
import re
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

import gradio as gr

from specviz.config import MAX_REFERENCES
from specviz.drafts.retrieval.library import Shelf
from specviz.drafts.retrieval.reader import MAX_BYTES, Document, new_name, pasted, shown_name, to_text
from specviz.drafts.retrieval.sets import ReferenceSet, load_sets
from specviz.errors import DocumentError

MAX_VISITORS = 500
MAX_ALL_BYTES = 256 * 2**20
MAX_NAME = 80
_KEY = re.compile(r"[0-9a-f]{32}")


@dataclass
class _Visitor:
    """One page: its session, its documents with their sizes in bytes, and the shelf made of them."""

    session: str
    shelf: Shelf = field(default_factory=lambda: Shelf(()))
    sizes: dict[str, int] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def num_bytes(self) -> int:
        return sum(self.sizes.values())


class Libraries:
    """The shelves of all visitors. `forget` is told of a session whose texts must not be kept elsewhere either."""

    def __init__(self, forget: Callable[[str], None] = lambda _: None) -> None:
        self._forget = forget
        self._visitors: OrderedDict[str, _Visitor] = OrderedDict()
        self._lock = threading.Lock()
        self._sets = {one.name: one for one in load_sets()}

    @property
    def sets(self) -> list[dict[str, Any]]:
        """The bundled sets as the page offers them."""
        return [_described(one) for one in self._sets.values()]

    def enter(self, request: gr.Request, key: str) -> None:
        """A page has been opened."""
        if isinstance(key, str) and _KEY.fullmatch(key):
            with self._lock:
                self._visitors[key] = _Visitor(request.session_hash or "")
                self._make_room(key)

    def leave(self, session: str) -> None:
        """A page was closed: its texts are dropped, here and wherever a run still has them."""
        with self._lock:
            gone = [key for key, visitor in self._visitors.items() if visitor.session == session]
            for key in gone:
                del self._visitors[key]
        self._forget(session)

    def shelf(self, session: str) -> Shelf | None:
        """What a run of this session copies from; None where there is nothing."""
        with self._lock:
            found = [visitor.shelf for visitor in self._visitors.values() if visitor.session == session]
        return next((shelf for shelf in reversed(found) if shelf.documents), None)

    def library(self, request: object) -> dict[str, Any]:
        """Change a shelf or look at it: `{"visitor", "do", ...}`. Answers with what is on it now.

        `do` is add (`name`, `data` in base64), paste (`text`), set (`name`), remove (`name`), prompt (`name`,
        `on`) or look. What cannot be done is a sentence under `complaint`.
        """
        asked = request if isinstance(request, dict) else {}
        with self._lock:
            key = asked.get("visitor")
            visitor = self._visitors.get(key) if isinstance(key, str) else None
            if visitor is None:
                return {"documents": [], "complaint": "The server no longer knows this page; reload it."}
            self._visitors.move_to_end(str(key))
        action = {
            "add": _add,
            "paste": _paste,
            "set": self._take_set,
            "remove": self._remove,
            "prompt": _put_in_prompt,
        }.get(str(asked.get("do")), _look)
        with visitor.lock:
            try:
                action(visitor, asked)
                complaint = ""
            except DocumentError as error:
                complaint = str(error)
            answer = _contents(visitor)
        with self._lock:
            self._make_room(str(key))
        return {**answer, "complaint": complaint}

    def _take_set(self, visitor: _Visitor, asked: dict[str, Any]) -> None:
        """A bundled set in the place of everything that was there."""
        chosen = self._sets.get(str(asked.get("name")))
        if chosen is None:
            raise DocumentError("There is no such set of references.")
        visitor.shelf = Shelf(chosen.documents)
        visitor.sizes = {document.name: len(document.text.encode()) for document in chosen.documents}
        self._forget(visitor.session)  # last: a run that begins meanwhile finds the new shelf, or is told

    def _remove(self, visitor: _Visitor, asked: dict[str, Any]) -> None:
        visitor.shelf = Shelf([one for one in visitor.shelf.documents if one.name != asked.get("name")])
        visitor.sizes = {document.name: visitor.sizes[document.name] for document in visitor.shelf.documents}
        self._forget(visitor.session)  # last, as for a set

    def _make_room(self, key: str) -> None:
        """Drop whoever has been still for longest, but not the one who is asking."""
        for other in list(self._visitors):
            total = sum(visitor.num_bytes for visitor in self._visitors.values())
            if len(self._visitors) <= MAX_VISITORS and total <= MAX_ALL_BYTES:
                return
            if other != key:
                del self._visitors[other]


def _described(chosen: ReferenceSet) -> dict[str, Any]:
    prompts = [{"prompt": one.prompt, "in_prompt": one.in_prompt} for one in chosen.prompts]
    return {"name": chosen.name, "title": chosen.title, "prompts": prompts}


def _add(visitor: _Visitor, asked: dict[str, Any]) -> None:
    name, data = asked.get("name"), asked.get("data")
    if not isinstance(name, str) or not isinstance(data, str):
        raise DocumentError("The file could not be read.")
    name = shown_name(PurePath(name.replace("\\", "/")).name[-MAX_NAME:]) or "file"
    _check_room(visitor, name, len(data) * 3 // 4 - 2)  # before it takes memory; the end may be padding
    try:
        content = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        raise DocumentError(f"{name} could not be read.") from None
    text = to_text(name, content)
    size = max(len(content), len(text.encode()))
    _check_room(visitor, name, size)
    _put(visitor, Document(new_name(name, visitor.shelf.documents), text), size)


def _paste(visitor: _Visitor, asked: dict[str, Any]) -> None:
    text = asked.get("text")
    document = pasted(text if isinstance(text, str) else "", visitor.shelf.documents)
    size = len(document.text.encode())
    _check_room(visitor, document.name, size)
    _put(visitor, document, size)


def _put(visitor: _Visitor, document: Document, size: int) -> None:
    visitor.shelf = Shelf([*visitor.shelf.documents, document])
    visitor.sizes[document.name] = size


def _check_room(visitor: _Visitor, name: str, size: int) -> None:
    if len(visitor.shelf.documents) >= MAX_REFERENCES:
        raise DocumentError(f"There are {MAX_REFERENCES} references already; remove one before adding {name}.")
    if size > MAX_BYTES - visitor.num_bytes:
        limit = f"{MAX_BYTES / 2**20:g} MB"
        raise DocumentError(f"{name} goes beyond the limit of {limit} for all references; it was left out.")


def _put_in_prompt(visitor: _Visitor, asked: dict[str, Any]) -> None:
    names = {document.name for document in visitor.shelf.documents if document.in_prompt}
    change = names.add if asked.get("on") is True else names.discard
    change(str(asked.get("name")))
    visitor.shelf = visitor.shelf.putting_in_prompt(names)


def _look(visitor: _Visitor, asked: dict[str, Any]) -> None:
    """Nothing changes."""


def _contents(visitor: _Visitor) -> dict[str, Any]:
    documents = [
        {"name": one.name, "bytes": visitor.sizes[one.name], "in_prompt": one.in_prompt}
        for one in visitor.shelf.documents
    ]
    return {"documents": documents}
