"""The controls of the page as settings of a run, and as a link.

Owns: names, order and defaults of the controls, how their raw values become a `RunConfig`, and how a link
sets them (clamped, never trusted). Must not know gradio components or the engine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote_plus, urlencode

from specviz.config import (
    COPY_SOURCES,
    DTYPES,
    MAX_DRAFT_LEN,
    MAX_DRAFTS,
    MAX_PENALTY,
    MAX_SEED,
    MAX_TOP_K,
    MAX_TREE_NODES,
    MIN_PENALTY,
    MIN_TEMPERATURE,
    NUMERICS,
    RULES,
    RunConfig,
    TreePlan,
)
from specviz.errors import ConfigError

DEFAULTS: dict[str, Any] = {
    "prompt": "",
    "target": "",
    "draft": "",
    "target_name": "",
    "draft_name": "",
    "more_drafts": [],
    "draft_len": 4,
    "auto": False,
    "tree": "",
    "rule": "standard",
    "temperature": 0.0,
    "max_new_tokens": 96,
    "seed": None,
    "top_k": 0,
    "top_p": 1.0,
    "repetition_penalty": 1.0,
    "min_new_tokens": 0,
    "stop": "",
    "ignore_eos": False,
    "raw": False,
    "baseline": True,
    "dtype": "auto",
    "numerics": "exact",
    "min_match": 1,
    "copy_len": 0,
    "copy_references": True,
    "copy_prompt": True,
    "copy_output": True,
}
NAMES = tuple(DEFAULTS)
ITSELF = "@target"  # the draft that is the target, whichever is chosen
MOST_NEW_TOKENS = 1024  # of the slider, and so of a link
MAX_LINK_CHARS = 8000  # as sent, so encoded: what servers on the way let through at the least
HOTTEST = 2.0  # of the slider
CHOICES = {"dtype": DTYPES, "numerics": NUMERICS, "rule": RULES}
_RANGES: dict[str, tuple[float, float]] = {
    "draft_len": (1, MAX_DRAFT_LEN),
    "temperature": (0.0, HOTTEST),
    "max_new_tokens": (1, MOST_NEW_TOKENS),
    "seed": (0, MAX_SEED),
    "top_k": (0, MAX_TOP_K),
    "top_p": (0.0, 1.0),
    "repetition_penalty": (MIN_PENALTY, MAX_PENALTY),
    "min_new_tokens": (0, MOST_NEW_TOKENS),
    "min_match": (1, 64),
    "copy_len": (0, MAX_DRAFT_LEN),
}
_WHOLE = ("draft_len", "max_new_tokens", "seed", "top_k", "min_new_tokens", "min_match", "copy_len")
_WORDS = {
    "draft_len": "draft length",
    "max_new_tokens": "maximum of new tokens",
    "min_new_tokens": "minimum of new tokens",
    "min_match": "minimum match",
    "copy_len": "copy length",
    "top_k": "top-k",
    "top_p": "top-p",
    "repetition_penalty": "repetition penalty",
}


def to_config(values: Mapping[str, Any]) -> RunConfig:
    """The run that the controls ask for.

    Raises:
        ConfigError: a control left empty, no number where one is needed, or a value out of range.
    """
    settings = {**DEFAULTS, **values}
    numbers = {name: _number(name, settings[name]) for name in _RANGES if name != "seed"}
    if settings["auto"]:
        numbers["draft_len"] = "auto"
    numbers["copy_len"] = numbers["copy_len"] or "auto"
    target, draft = (_chosen(settings, kind) for kind in ("target", "draft"))
    drafts = [target if name == ITSELF else name for name in (draft, *_listed(settings["more_drafts"]))]
    return RunConfig.from_json(
        {
            **numbers,
            "prompt": str(settings["prompt"] or ""),
            "target": target,
            "drafts": list(filter(None, drafts)),
            "tree": str(settings["tree"] or "").strip(),
            "seed": _seed(settings["seed"]),
            "stop": [line for line in str(settings["stop"] or "").split("\n") if line],
            **{name: bool(settings[name]) for name in ("ignore_eos", "raw", "baseline")},
            **{name: str(settings[name] or DEFAULTS[name]) for name in CHOICES},
            "copy_sources": [source for source in COPY_SOURCES if settings[f"copy_{source}"]],
        }
    )


def _chosen(settings: Mapping[str, Any], kind: str) -> str:
    """A name typed in goes before the one picked."""
    return str(settings[f"{kind}_name"] or "").strip() or str(settings[kind] or "").strip()


def _listed(value: object) -> list[str]:
    return [str(name) for name in value] if isinstance(value, list | tuple) else []


def _number(name: str, value: object) -> Any:
    word = _WORDS.get(name, name)
    try:
        number = float(str(value))
    except ValueError:
        raise ConfigError(f"The {word} is {_shown(value)}, but must be a number.") from None
    if name in _WHOLE and number == number and abs(number) < 2**53 and number == int(number):
        return int(number)
    return number


def _seed(value: object) -> int | None:
    """A seed may be larger than a float holds, so it is read as digits."""
    text = str(value if value is not None else "").strip().removesuffix(".0")
    if not text:
        return None
    if not text.isascii() or not text.lstrip("-").isdigit():
        raise ConfigError(f"The seed is {_shown(value)}, but must be a whole number, or empty for a fresh one.")
    return int(text)


def _shown(value: object) -> str:
    text = str(value if value is not None else "")
    return repr(text[:40]) if text else "empty"


def from_query(query: Mapping[str, str], choices: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """The controls that a link sets, each clamped to what is legal; what makes no sense is left out.

    `choices` lists the names a link may pick for `target` and `draft`, and whatever else is a closed list.
    """
    found: dict[str, Any] = {}
    for name in NAMES:
        text = query.get(name)
        if text is not None and (value := _from_link(name, text, choices)) is not None:
            found[name] = value
    if "min_new_tokens" in found:
        most = found.get("max_new_tokens", DEFAULTS["max_new_tokens"])
        found["min_new_tokens"] = min(found["min_new_tokens"], most)
    num_drafts = 1 + len(found.get("more_drafts", []))
    if found.get("tree") and TreePlan.parse(found["tree"]).most_of(num_drafts) > MAX_TREE_NODES:
        del found["tree"]
    return found


def _from_link(name: str, text: str, choices: Mapping[str, Sequence[str]]) -> Any:
    if name in choices:
        return text if text in choices[name] else None
    if name == "more_drafts":
        named = dict.fromkeys(draft for draft in text.split(",") if draft in choices.get("draft", ()))
        return list(named)[: MAX_DRAFTS - 1]
    if name == "tree":
        return _legal_tree(text)
    if isinstance(DEFAULTS[name], bool):
        return {"1": True, "0": False}.get(text)
    if name == "seed":
        return str(min(int(text), MAX_SEED)) if text.isascii() and text.isdigit() and len(text) < 40 else None
    if name in _RANGES:
        return _clamped(name, text)
    return text[:MAX_LINK_CHARS]


def _legal_tree(text: str) -> str | None:
    """The tree that a link asks for, a budget beyond the limit cut to it; None for what is no tree."""
    try:
        plan = TreePlan.parse(text)
    except ConfigError:
        return None
    too_many = not plan.widths and (plan.num_nodes or 0) > MAX_TREE_NODES
    return f"auto:{MAX_TREE_NODES}" if too_many else text


def _clamped(name: str, text: str) -> float | int | None:
    low, high = _RANGES[name]
    try:
        number = float(text)
    except ValueError:
        return None
    if number != number:
        return None
    number = min(max(number, low), high)
    if name == "top_p" and number == 0:
        return None
    if name == "temperature" and 0 < number < MIN_TEMPERATURE:
        return MIN_TEMPERATURE
    return round(number) if name in _WHOLE else number


def to_query(values: Mapping[str, Any]) -> dict[str, str]:
    """What a link has to carry: every control that is not at its default."""
    query = {}
    for name in NAMES:
        value = values.get(name, DEFAULTS[name])
        is_default = value == DEFAULTS[name] or value in (None, "")
        if is_default or (name == "draft_len" and values.get("auto")):
            continue
        query[name] = _in_link(value)
    return query


def _in_link(value: object) -> str:
    if isinstance(value, bool):
        return str(int(value))
    return ",".join(value) if isinstance(value, list) else f"{value}"


def shortened(query: Mapping[str, str]) -> tuple[dict[str, str], bool]:
    """The same query with its texts cut until a link can hold it, the prompt first; and whether any was cut."""
    found = dict(query)
    for name in ("prompt", "stop", "target_name", "draft_name"):
        excess = len(urlencode(found)) - MAX_LINK_CHARS
        if excess > 0 and name in found:
            found[name] = _beginning(found[name], len(quote_plus(found[name])) - excess)
    return found, found != dict(query)


def _beginning(text: str, room: int) -> str:
    """As much of `text` as takes at most `room` characters once encoded."""
    for end, char in enumerate(text):
        room -= len(quote_plus(char))
        if room < 0:
            return text[:end]
    return text
