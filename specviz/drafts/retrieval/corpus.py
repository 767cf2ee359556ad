"""A folder of texts as one file on disk to copy from: the datastore of REST (He et al. 2311.08252, §3.1).

Owns: the file format of `corpus.sv`, writing it (`build`) and opening it (`open_corpus`). Must not know runs.

    magic (8 bytes) · version, header length (u32 each) · header (JSON) · tokens (u32 big-endian, backwards)
    · sorted places (u32 little-endian) · CRC-32 of all before it (u32)

The header names the tokenizer by a hash, and the texts with their lengths; sizes follow from it and must fit
the file before anything is allocated. Tokens and places are mapped into memory, not read into it.
"""

from __future__ import annotations

import json
import os
import struct
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from specviz.drafts.retrieval.fixed import FixedTexts
from specviz.drafts.retrieval.library import tokenize, tokenizer_hash
from specviz.drafts.retrieval.reader import LEFT_OUT, shown_name, to_text
from specviz.drafts.retrieval.suffix_array import PLACE, TOKEN, SuffixArray, reversed_tokens, sorted_suffixes
from specviz.errors import DocumentError

MAGIC = b"SPECVIZC"
VERSION = 1
MAX_HEADER_BYTES = 16 * 2**20
MAX_TOKENS = 50_000_000
MAX_FILE_BYTES = 32 * 2**20  # of one text in the folder
_PREFIX = struct.Struct("<8sII")
_CHECK = struct.Struct("<I")
_CHUNK = 2**22


@dataclass(frozen=True, slots=True)
class Built:
    """What went into a corpus, and how long it took; `complaints` are sentences about files that did not."""

    num_texts: int
    num_tokens: int
    complaints: tuple[str, ...]
    tokenize_s: float
    index_s: float


def build(
    folder: str | Path,
    out: str | Path,
    tokenizer: Any,
    progress: Callable[[str, float | None], None] = lambda _, __: None,
) -> Built:
    """Read every file below `folder`, index their tokens, write the corpus; nothing is left half-written.

    Raises:
        DocumentError: no folder, nothing readable in it, too many tokens, or a place that cannot be written.
    """
    folder, out = Path(folder), Path(out)
    if not folder.is_dir():
        raise DocumentError(f"{folder} is not a folder; give one that holds the texts to index.")
    began = time.perf_counter()
    texts, complaints = _read_folder(folder, out, tokenizer, progress)
    read = time.perf_counter()
    if not texts:
        more = f" {complaints[0]}" if complaints else ""
        raise DocumentError(f"{folder} holds no text that can be indexed.{more}")
    progress("Sorting", None)
    backwards = reversed_tokens(list(texts.values()))
    places = sorted_suffixes(backwards)
    sorted_ = time.perf_counter()
    lengths = [len(ids) for ids in texts.values()]
    header = {
        "tokenizer": tokenizer_hash(tokenizer),
        "names": list(texts),
        "lengths": lengths,
        "num_places": len(places),
    }
    _write(out, json.dumps(header).encode(), backwards, places)
    return Built(len(texts), sum(lengths), tuple(complaints), read - began, sorted_ - read)


def _read_folder(
    folder: Path, out: Path, tokenizer: Any, progress: Callable[[str, float | None], None]
) -> tuple[dict[str, NDArray[np.int64]], list[str]]:
    texts: dict[str, NDArray[np.int64]] = {}
    complaints: list[str] = []
    num_tokens = 0
    paths = [path for path in _files_below(folder) if path.resolve() != out.resolve()]
    for number, path in enumerate(paths):
        progress(f"Reading {path.name}", number / len(paths))
        name = shown_name(path.relative_to(folder).as_posix())
        while name in texts:  # as another one is shown
            name += " (2)"
        try:
            ids = tokenize(tokenizer, to_text(name, _bytes_of(path, name))).ids
        except DocumentError as error:
            complaints.append(str(error))
            continue
        texts[name] = ids
        num_tokens += len(ids)
        if num_tokens > MAX_TOKENS:
            raise DocumentError(f"{folder} holds more than {MAX_TOKENS:,} tokens; index a part of it.")
    return texts, complaints


def _files_below(folder: Path) -> Iterator[Path]:
    """Regular files in a fixed order, hidden ones and links left out."""
    for root, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            path = Path(root, name)
            if not name.startswith(".") and path.is_file() and not path.is_symlink():
                yield path


def _bytes_of(path: Path, name: str) -> bytes:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise DocumentError(f"{name} is larger than {MAX_FILE_BYTES // 2**20} MB{LEFT_OUT}")
        return path.read_bytes()
    except OSError as error:
        raise DocumentError(f"{name} cannot be opened ({error.strerror}){LEFT_OUT}") from None


def _write(out: Path, header: bytes, backwards: NDArray[np.uint32], places: NDArray[np.uint32]) -> None:
    parts = [_PREFIX.pack(MAGIC, VERSION, len(header)), header, backwards.tobytes(), places.tobytes()]
    check = 0
    for part in parts:
        check = zlib.crc32(part, check)
    unfinished = out.with_name(f".specviz-{os.getpid()}")  # of its own length: `out`'s may be the longest there is
    try:
        with unfinished.open("wb") as file:
            file.writelines([*parts, _CHECK.pack(check)])
        unfinished.replace(out)
    except OSError as error:
        unfinished.unlink(missing_ok=True)
        raise DocumentError(f"{out} cannot be written ({error.strerror}).") from None


def open_corpus(path: str | Path, tokenizer: Any) -> FixedTexts:
    """Map a corpus into memory. The file is read once, to check its sum.

    Raises:
        DocumentError: it is missing, foreign, damaged, or made with another tokenizer.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            header, start = _read_header(path, file)
            names, num_tokens, num_places = _sizes(path, header)
            _check_body(path, file, start + TOKEN.itemsize * num_tokens + PLACE.itemsize * num_places)
        mapped = np.memmap(path, dtype=np.uint8, mode="r")
    except (OSError, ValueError) as error:  # ValueError: a name with a null byte
        reason = getattr(error, "strerror", None) or str(error)
        raise DocumentError(f"{path} cannot be opened ({reason}).") from None
    if header["tokenizer"] != tokenizer_hash(tokenizer):
        raise DocumentError(f"{path.name} was made with another model's tokenizer; index the folder again.")
    middle = start + TOKEN.itemsize * num_tokens
    backwards = mapped[start:middle].view(TOKEN)
    places = mapped[middle : middle + PLACE.itemsize * num_places].view(PLACE)
    if int(places.max(initial=0)) >= max(num_tokens, 1):
        raise _damaged(path)
    return FixedTexts([f"{path.name}/{name}" for name in names], header["lengths"], SuffixArray(backwards, places))


def _damaged(path: Path) -> DocumentError:
    return DocumentError(f"{path.name} is damaged; index the folder again.")


def _read_header(path: Path, file: IO[bytes]) -> tuple[dict[str, Any], int]:
    """(header, where the tokens start)."""
    prefix = file.read(_PREFIX.size)
    if len(prefix) < _PREFIX.size or not prefix.startswith(MAGIC):
        raise DocumentError(
            f"{path.name} is not a corpus; make one with: python -m specviz index FOLDER --out FILE"
        )
    _, version, size = _PREFIX.unpack(prefix)
    if version != VERSION:
        raise DocumentError(
            f"{path.name} has version {version}; this program reads {VERSION}. Index the folder again."
        )
    if size > MAX_HEADER_BYTES:
        raise _damaged(path)
    try:
        header = json.loads(file.read(size))
    except (ValueError, RecursionError):
        raise _damaged(path) from None
    if not isinstance(header, dict):
        raise _damaged(path)
    return header, _PREFIX.size + size


def _sizes(path: Path, header: dict[str, Any]) -> tuple[list[str], int, int]:
    """(names, tokens with separators, places) of a header that may hold anything."""
    names, lengths, num_places = header.get("names"), header.get("lengths"), header.get("num_places")
    if not (isinstance(names, list) and isinstance(lengths, list) and len(names) == len(lengths)):
        raise _damaged(path)
    if any(type(number) is not int or not 0 <= number <= MAX_TOKENS for number in [*lengths, num_places]):
        raise _damaged(path)
    if any(not isinstance(name, str) for name in [*names, header.get("tokenizer")]):
        raise _damaged(path)
    num_tokens = sum(lengths) + len(lengths)
    if not isinstance(num_places, int) or num_places > num_tokens or not lengths:
        raise _damaged(path)
    return names, num_tokens, num_places


def _check_body(path: Path, file: IO[bytes], size: int) -> None:
    """Size first, then the sum, in chunks."""
    if os.fstat(file.fileno()).st_size != size + _CHECK.size:
        raise _damaged(path)
    file.seek(0)
    check, left = 0, size
    while left:
        chunk = file.read(min(left, _CHUNK))
        if not chunk:
            raise _damaged(path)
        check, left = zlib.crc32(chunk, check), left - len(chunk)
    if file.read() != _CHECK.pack(check):
        raise _damaged(path)
