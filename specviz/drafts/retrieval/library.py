"""The references of a run: documents as tokens, indexed, with the way back to their characters.

Owns: `Library` and `build_library`. Must not know file formats or faces.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specviz.drafts.retrieval.fixed import FixedTexts
from specviz.drafts.retrieval.reader import Document, read_documents
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

    def references(self, *, with_text: bool) -> list[Reference]:
        """As a trace keeps them: names and lengths, or the whole text."""
        pairs = list(zip(self.documents, self.tokens, strict=True))
        bare = [Reference(document.name, len(tokens.ids)) for document, tokens in pairs]
        if not with_text:
            return bare
        return [
            replace(one, text=document.text, starts=tuple(tokens.starts.tolist()))
            for one, (document, tokens) in zip(bare, pairs, strict=True)
        ]


def build_library(paths: Sequence[str | Path], tokenizer: Any) -> Library:
    """Read, tokenize and index files; what cannot be used is left out with a sentence.

    Raises:
        DocumentError: no file could be used; the text is all sentences.
    """
    documents, complaints = read_documents(paths)
    library = index_documents(documents, tokenizer, complaints)
    if paths and not library.documents:
        raise DocumentError(" ".join(library.complaints))
    return library


def index_documents(documents: Sequence[Document], tokenizer: Any, complaints: Sequence[str] = ()) -> Library:
    """The same for texts that are there already."""
    began = time.perf_counter()
    kept, tokens, left_out, room = [], [], list(complaints), MAX_TOKENS
    for document in documents:
        ids = tokenize(tokenizer, document.text)
        if len(ids.ids) > room:
            left_out.append(f"{document.name} goes beyond {MAX_TOKENS:,} tokens of references; it was left out.")
            continue
        room -= len(ids.ids)
        kept.append(document)
        tokens.append(ids)
    tokenized = time.perf_counter()
    texts = FixedTexts.of({d.name: t.ids for d, t in zip(kept, tokens, strict=True)})
    indexed = time.perf_counter()
    return Library(tuple(kept), tuple(tokens), texts, tuple(left_out), tokenized - began, indexed - tokenized)


def tokenize(tokenizer: Any, text: str) -> Tokens:
    """Ids without special tokens added; a tokenizer that cannot tell characters gives no starts."""
    with_starts = bool(getattr(tokenizer, "is_fast", False))
    read = tokenizer(text, add_special_tokens=False, return_offsets_mapping=with_starts, verbose=False)
    starts = [start for start, _ in read["offset_mapping"]] if with_starts else []
    return Tokens(np.array(read["input_ids"], dtype=np.int64), np.array(starts, dtype=np.int64))
