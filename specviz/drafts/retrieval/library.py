"""The references of a run: documents as tokens, indexed, with the way back to their characters.

Owns: `Shelf`, the documents before anything is known of tokens, and `Library`, the same for one tokenizer. Must
not know file formats or faces.
"""

from __future__ import annotations

import functools
import hashlib
import json
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specviz.drafts.retrieval.fixed import FixedTexts
from specviz.drafts.retrieval.reader import LEFT_OUT, Document, read_documents
from specviz.errors import DocumentError
from specviz.trace import Reference

MAX_TOKENS = 1_000_000


@dataclass(frozen=True, slots=True)
class Tokens:
    """The ids of a text and the character at which each begins, both of shape (tokens,)."""

    ids: NDArray[np.int64]
    starts: NDArray[np.int64]


@dataclass(frozen=True)
class Library:
    """Documents ready to be copied from, for any number of runs. `complaints` are sentences on what is not."""

    documents: tuple[Document, ...]
    tokens: tuple[Tokens, ...]
    texts: FixedTexts
    complaints: tuple[str, ...] = ()
    tokenize_s: float = 0.0
    index_s: float = 0.0

    @functools.cached_property
    def references(self) -> list[Reference]:
        """As a trace may keep them, with the whole texts."""
        return [
            Reference(document.name, len(tokens.ids), document.text, tuple(tokens.starts.tolist()))
            for document, tokens in zip(self.documents, self.tokens, strict=True)
        ]

    def with_prompt(self, prompt: str) -> str:
        """The prompt behind the texts of those documents that are to stand in it."""
        texts = [document.text.strip() for document in self.documents if document.in_prompt]
        return "\n\n".join([*texts, prompt])

    @property
    def num_in_prompt(self) -> int:
        """Tokens of the documents that are to stand in the prompt."""
        pairs = zip(self.documents, self.tokens, strict=True)
        return sum(len(tokens.ids) for document, tokens in pairs if document.in_prompt)


class Shelf:
    """Documents for any number of runs, tokenized and indexed at the first run with each tokenizer.

    `complaints` are sentences on files that are not among them. Pickled, it is its documents alone.
    """

    def __init__(self, documents: Sequence[Document], complaints: Sequence[str] = ()) -> None:
        self.documents = tuple(documents)
        self.complaints = tuple(complaints)
        self._libraries: dict[Any, Library] = {}  # by the tokenizer itself

    @classmethod
    def read(cls, paths: Sequence[str | Path], in_prompt: Sequence[str | Path] = ()) -> Shelf:
        """Read files; what cannot be used is left out with a sentence.

        Raises:
            DocumentError: none could be used; the text is all sentences.
        """
        documents, complaints = read_documents(paths, in_prompt=in_prompt)
        if paths and not documents:  # then nothing goes on without them
            raise DocumentError(" ".join(complaints).replace(LEFT_OUT, "."))
        return cls(documents, complaints)

    def putting_in_prompt(self, names: Collection[str]) -> Shelf:
        """The same texts, those of these names standing in the prompt; what was indexed stays so."""
        shelf = Shelf(_flagged(self.documents, names), self.complaints)
        shelf._libraries = {
            tokenizer: replace(library, documents=_flagged(library.documents, names))
            for tokenizer, library in self._libraries.items()
        }
        return shelf

    def __reduce__(self) -> tuple[Any, ...]:
        return Shelf, (self.documents, self.complaints)

    def library(self, tokenizer: Any) -> Library:
        """Raises DocumentError where every document is beyond the limit."""
        if tokenizer not in self._libraries:
            self._libraries[tokenizer] = index_documents(self.documents, tokenizer, self.complaints)
        library = self._libraries[tokenizer]
        if self.documents and not library.documents:
            raise DocumentError(" ".join(library.complaints))
        return library


def _flagged(documents: Iterable[Document], names: Collection[str]) -> tuple[Document, ...]:
    return tuple(replace(document, in_prompt=document.name in names) for document in documents)


def index_documents(documents: Sequence[Document], tokenizer: Any, complaints: Sequence[str] = ()) -> Library:
    """The same for texts that are there already."""
    began = time.perf_counter()
    kept, tokens, left_out, room = [], [], list(complaints), MAX_TOKENS
    for document in documents:
        ids = tokenize(tokenizer, document.text)
        if len(ids.ids) > room:
            left_out.append(f"{document.name} goes beyond {MAX_TOKENS:,} tokens of references{LEFT_OUT}")
            continue
        room -= len(ids.ids)
        kept.append(document)
        tokens.append(ids)
    tokenized = time.perf_counter()
    texts = FixedTexts.of({d.name: t.ids for d, t in zip(kept, tokens, strict=True)})
    indexed = time.perf_counter()
    return Library(tuple(kept), tuple(tokens), texts, tuple(left_out), tokenized - began, indexed - tokenized)


def tokenizer_hash(tokenizer: Any) -> str:
    """Equal where the same ids stand for the same tokens; SHA-256 in hex."""
    vocabulary = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    return hashlib.sha256(json.dumps(vocabulary).encode()).hexdigest()


def tokenize(tokenizer: Any, text: str) -> Tokens:
    """Ids without special tokens added; a tokenizer that cannot tell characters gives no starts."""
    with_starts = bool(getattr(tokenizer, "is_fast", False))
    read = tokenizer(text, add_special_tokens=False, return_offsets_mapping=with_starts, verbose=False)
    starts = [start for start, _ in read["offset_mapping"]] if with_starts else []
    return Tokens(np.array(read["input_ids"], dtype=np.int64), np.array(starts, dtype=np.int64))
