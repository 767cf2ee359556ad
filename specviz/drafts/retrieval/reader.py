"""Files that people bring, as plain text: txt, markdown, HTML, PDF, source code.

Owns: `Document`, reading and refusing. Must not know tokens or indexes. What cannot be read gives one sentence
naming the file, so that the others still can be.
"""

from __future__ import annotations

import io
import logging
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

import pypdf

from specviz.drafts.retrieval.markup import html_text
from specviz.errors import DocumentError
from specviz.trace import OUTPUT, PROMPT

MAX_BYTES = 5 * 2**20  # in all
LEFT_OUT = "; it was left out."
"""How the sentence on a file ends that the others go on without."""
MAX_PDF_PAGES = 1000
MAX_PDF_S = 30
_HTML = (".html", ".htm", ".xhtml")
_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1a\x1c-\x1f\x7f]")


@dataclass(frozen=True, slots=True)
class Document:
    """A text with the name that people know it by. `in_prompt`: it is to stand before the prompt, too."""

    name: str
    text: str
    in_prompt: bool = False


def read_documents(
    paths: Sequence[str | Path], *, in_prompt: Sequence[str | Path] = (), max_bytes: int = MAX_BYTES
) -> tuple[list[Document], list[str]]:
    """(what could be read, a sentence for each file that could not). Equal names are numbered.

    `in_prompt` are those of the paths whose texts are to stand before the prompt.
    """
    documents: list[Document] = []
    complaints: list[str] = []
    left = max_bytes
    for given in paths:
        path = Path(given)
        try:
            name = shown_name(path.name or str(given) or "a file without a name")
            data = _load(path, name, left, max_bytes)
            text = to_text(name, data)
        except DocumentError as error:
            complaints.append(str(error))
            continue
        left -= len(data)
        documents.append(Document(new_name(name, documents), text, given in in_prompt))
    return documents, complaints


def to_text(name: str, data: bytes) -> str:
    """The text of one file.

    Raises:
        DocumentError: empty, binary, not UTF-8, or a PDF that is encrypted, damaged or without text.
    """
    if not data:
        raise DocumentError(f"{name} is empty (0 bytes){LEFT_OUT}")
    if data.startswith(b"%PDF"):
        text = _pdf_text(name, data)
    else:
        text = _decoded(name, data)
        if PurePath(name).suffix.lower() in _HTML:
            text = html_text(text)
    if not text.strip():
        raise DocumentError(f"{name} holds no text{LEFT_OUT}")
    return text


def pasted(text: str, documents: Iterable[Document]) -> Document:
    """A text that was typed or pasted, named so.

    Raises:
        DocumentError: nothing in it, or no Unicode text.
    """
    if not text.strip():
        raise DocumentError("The pasted text is empty; nothing was added.")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise DocumentError("The pasted text holds half a surrogate pair, which is no Unicode text.") from None
    return Document(new_name("pasted text", documents), text)


def _load(path: Path, name: str, left: int, max_bytes: int) -> bytes:
    if path.name and path.is_dir():
        raise DocumentError(f"{name} is a folder, of which `index` makes a corpus{LEFT_OUT}")
    try:
        with path.open("rb") as file:
            data = file.read(left + 1)
    except (OSError, ValueError) as error:  # ValueError: a name with a null byte
        reason = getattr(error, "strerror", None) or str(error)
        raise DocumentError(f"{name} cannot be opened ({reason}){LEFT_OUT}") from None
    if len(data) > left:
        limit = f"{max_bytes / 2**20:g} MB"
        raise DocumentError(f"{name} goes beyond the limit of {limit} for all references{LEFT_OUT}")
    return data


def shown_name(name: str) -> str:
    """A file's name as Unicode text: one whose bytes are none has question marks for them."""
    return name.encode(errors="replace").decode()


def new_name(name: str, documents: Iterable[Document]) -> str:
    """The name, numbered where one of the documents, or a source that is no file, has it already."""
    taken = {PROMPT, OUTPUT, *(document.name for document in documents)}
    numbered = (f"{name} ({number})" for number in range(2, len(taken) + 2))
    return name if name not in taken else next(other for other in numbered if other not in taken)


def _decoded(name: str, data: bytes) -> str:
    """UTF-8, or UTF-16 where a byte order mark says so."""
    marked = data[:2] in (b"\xff\xfe", b"\xfe\xff")
    try:
        text = data.decode("utf-16" if marked else "utf-8-sig")
    except UnicodeDecodeError as error:
        if b"\0" in data:
            raise DocumentError(f"{name} is a binary file, not text{LEFT_OUT}") from None
        raise DocumentError(
            f"{name} is not {'UTF-16' if marked else 'UTF-8'} text (byte {error.start:,} does not fit); "
            f"save it as UTF-8{LEFT_OUT}"
        ) from None
    if len(_CONTROL.findall(text[:100_000])) > len(text[:100_000]) // 100:
        raise DocumentError(f"{name} is a binary file, not text{LEFT_OUT}")
    return text.replace("\r\n", "\n")


def _pdf_text(name: str, data: bytes) -> str:
    logging.getLogger("pypdf").setLevel(logging.ERROR)
    try:
        pdf = pypdf.PdfReader(io.BytesIO(data))
        if pdf.is_encrypted and not pdf.decrypt(""):
            raise DocumentError(f"{name} is an encrypted PDF; save it without a password{LEFT_OUT}")
        num_pages = len(pdf.pages)
        if num_pages > MAX_PDF_PAGES:
            raise DocumentError(f"{name} has {num_pages:,} pages; at most {MAX_PDF_PAGES:,} are read{LEFT_OUT}")
        text = "\n\n".join(_pages(name, pdf))
    except DocumentError:
        raise
    except pypdf.errors.DependencyError:
        raise DocumentError(
            f"{name} is a PDF encrypted with AES, for which the Python package cryptography must be installed; or "
            f"save the PDF without encryption{LEFT_OUT}"
        ) from None
    except Exception:  # a PDF is a foreign program: the parser may raise anything
        raise DocumentError(f"{name} is a damaged PDF{LEFT_OUT}") from None
    if not text.strip():
        raise DocumentError(f"{name} is a PDF of images without text; run text recognition on it first.")
    return text.encode(errors="replace").decode()  # a font may name half a surrogate pair


def _pages(name: str, pdf: pypdf.PdfReader) -> Iterator[str]:
    """The text of each page, as long as that takes no longer than is decent.

    Asked before every operator, since a page may draw what draws itself twice, and so on. Inside such a form pypdf
    goes on after an error, but with the next operator outside; so it is asked behind the page once more.
    """
    began = time.monotonic()

    def check(*_: object) -> None:
        if time.monotonic() - began > MAX_PDF_S:
            raise DocumentError(f"{name} takes longer than {MAX_PDF_S} s to read; save it as text{LEFT_OUT}")

    for page in pdf.pages:
        text = page.extract_text(visitor_operand_before=check)
        check()
        yield text
