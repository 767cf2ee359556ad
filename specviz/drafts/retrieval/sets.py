"""The reference sets that come with the project: texts, and prompts that lean on them.

Owns: `ReferenceSet` and the folder they are in. Must not know tokens, models or faces.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specviz.drafts.retrieval.reader import Document, read_documents
from specviz.errors import DocumentError

FOLDER = Path(__file__).resolve().parents[3] / "assets" / "references"
GROUNDED = ("quote", "edit")
"""Categories of prompts whose answers are mostly copies, where the model does as it is told."""


@dataclass(frozen=True, slots=True)
class SetPrompt:
    """What a user asks of a set; `category` is summarise, quote, edit or ask.

    `in_prompt`: the texts stand before it. Otherwise it carries what it needs itself, and they only help to draft.
    """

    id: str
    category: str
    prompt: str
    in_prompt: bool


@dataclass(frozen=True, slots=True)
class ReferenceSet:
    """Texts in the order in which they may stand before a prompt, and the prompts."""

    name: str
    title: str
    documents: tuple[Document, ...]
    prompts: tuple[SetPrompt, ...]


def load_sets(folder: Path = FOLDER) -> tuple[ReferenceSet, ...]:
    """All sets by name; none where there is no such folder.

    Raises:
        DocumentError: a set that is damaged, or whose text cannot be read.
    """
    return tuple(_load(path.parent) for path in sorted(folder.glob("*/set.json")))


def _load(folder: Path) -> ReferenceSet:
    try:
        data: dict[str, Any] = json.loads((folder / "set.json").read_text(encoding="utf-8"))
        prompts = tuple(SetPrompt(**item) for item in data["prompts"])
        paths = [folder / name for name in data["files"]]
        name, title = str(data["name"]), str(data["title"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DocumentError(f"The reference set {folder.name} is damaged: {error}.") from None
    documents, complaints = read_documents(paths)
    if complaints:
        raise DocumentError(f"The reference set {folder.name} cannot be used. {' '.join(complaints)}")
    return ReferenceSet(name, title, tuple(documents), prompts)
