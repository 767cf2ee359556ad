"""Prompts in files: their one form, JSONL, and the set that comes with the project.

Owns: `Prompt`, reading and checking a file, the bundled set. Must not know models, tokens or what the prompts
are used for.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specviz.errors import ConfigError

BUNDLED = Path(__file__).resolve().parents[1] / "assets" / "prompts"
CATEGORIES = (
    "multi-turn",
    "translation",
    "summarisation",
    "question-answering",
    "mathematics",
    "retrieval-augmented",
    "chinese",
    "code",
)
"""The bundled set's categories, a file each: the six of Spec-Bench (arXiv 2401.07851), then two more."""
_KEYS = {"id", "category", "prompt", "turns"}
_FORM = 'each line is an object like {"prompt": "..."} or {"turns": ["...", "..."]}'


@dataclass(frozen=True)
class Prompt:
    """What a user says: one turn or several, in order. `id` is unique in its file; `category` may be empty."""

    id: str
    category: str
    turns: tuple[str, ...]


def bundled(*categories: str) -> tuple[Prompt, ...]:
    """The prompts of these categories, in this order; of all without any.

    Raises:
        ConfigError: a category that there is not, or a file that is missing or damaged.
    """
    for category in categories:
        if category not in CATEGORIES:
            raise ConfigError(
                f"There is no category of prompts called {category!r}; choose from {', '.join(CATEGORIES)}."
            )
    return tuple(prompt for name in categories or CATEGORIES for prompt in read_file(BUNDLED / f"{name}.jsonl"))


def read_file(path: Path) -> tuple[Prompt, ...]:
    """The prompts of a JSONL file in UTF-8. Empty lines are passed over; without an id the line's number serves.

    Raises:
        ConfigError: naming the first line that is not a prompt, or the file that cannot be read or is empty.
    """
    found: dict[str, Prompt] = {}
    for number, line in enumerate(_text(path).split("\n"), 1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        prompt = _parse(line, f"line {number}", where)
        if prompt.id in found:
            raise ConfigError(f"{where} has the id {prompt.id!r} of an earlier line; give each prompt its own id.")
        found[prompt.id] = prompt
    if not found:
        raise ConfigError(f"{path} holds no prompt; {_FORM}.")
    return tuple(found.values())


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        reason = error.strerror or "unreadable"
    except UnicodeDecodeError:
        reason = "it is not UTF-8 text"
    raise ConfigError(f"{path} cannot be read ({reason}); give a JSONL file of prompts.")


def _parse(line: str, fallback_id: str, where: str) -> Prompt:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        entry = None
    if not isinstance(entry, dict):
        raise ConfigError(f"{where} is not a prompt; {_FORM}.")
    if unknown := sorted(entry.keys() - _KEYS):
        raise ConfigError(f"{where} has the unknown key {unknown[0]!r}; a prompt has {', '.join(sorted(_KEYS))}.")
    return Prompt(_id(entry, fallback_id, where), _category(entry, where), _turns(entry, where))


def _turns(entry: dict[str, Any], where: str) -> tuple[str, ...]:
    if ("prompt" in entry) == ("turns" in entry):
        raise ConfigError(f"{where} is not a prompt, it needs one of prompt and turns; {_FORM}.")
    turns = entry["turns"] if "turns" in entry else [entry["prompt"]]
    if not isinstance(turns, list) or not turns or not all(map(_is_said, turns)):
        raise ConfigError(f"{where} is not a prompt, its turns must be Unicode texts that are not empty; {_FORM}.")
    return tuple(turns)


def _is_said(turn: object) -> bool:
    """A text with something in it. Half a surrogate pair, which JSON can spell, is none."""
    return isinstance(turn, str) and turn.strip() != "" and not any("\ud800" <= char <= "\udfff" for char in turn)


def _id(entry: dict[str, Any], fallback: str, where: str) -> str:
    given = entry.get("id", fallback)
    if isinstance(given, bool) or not isinstance(given, str | int) or given == "":
        raise ConfigError(f"{where} has the id {given!r}, but an id is a text or a whole number; or leave it out.")
    return str(given)


def _category(entry: dict[str, Any], where: str) -> str:
    given = entry.get("category", "")
    if not isinstance(given, str):
        raise ConfigError(f"{where} has the category {given!r}, but a category is a text; or leave it out.")
    return given
