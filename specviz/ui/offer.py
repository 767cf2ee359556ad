"""The models that a visitor may choose from.

Owns: how the catalog becomes choices, with those that are ready here first. Must not know gradio or how a
model is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from specviz.config import CASCADE, DEFAULT_DRAFT_LEN, REFERENCES, copies, members
from specviz.ui.settings import ITSELF

ITSELF_LABEL = "the target itself: every guess is right, but for rounding"


@dataclass(frozen=True)
class Offer:
    """(label, name) of targets and drafts, and the ones chosen at first.

    With `any_name` a visitor may also type a Hub id, a folder or a file: only where the visitor is the owner of
    the machine. `on_gpu` says that runs go to a GPU, where blocks equal single passes only to rounding.
    `draft_lens` holds the length that a draft does best with, where it is not the usual one; `corpora` the places
    of corpora that are offered by their files' names, which is all that a visitor learns of them.
    """

    targets: Sequence[tuple[str, str]]
    drafts: Sequence[tuple[str, str]]
    target: str
    draft: str
    any_name: bool = False
    on_gpu: bool = False
    draft_lens: Mapping[str, int] = field(default_factory=dict)
    corpora: Mapping[str, str] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        return [name for _, name in (*self.targets, *self.drafts) if name != ITSELF]


def from_catalog(*, any_name: bool = False, hub: bool = False, corpora: Sequence[str] = ()) -> Offer:
    """The catalog's targets and drafts, and corpora; what needs the Hub only where `hub` says it is there."""
    from specviz.models import catalog, default_target, has_gpu  # late: it imports torch

    def offered(entries: Sequence[catalog.Entry]) -> list[tuple[str, str]]:
        return [(e.label, e.name) for e in entries if catalog.is_ready(e)[0] or (hub and e.hub_id)]

    target = default_target()
    targets = offered(catalog.TARGETS)
    if target not in [name for _, name in targets] and targets:
        target = targets[0][1]
    # A draft that is the only target under another name would be offered twice.
    others = [e for e in catalog.DRAFTS if len(targets) > 1 or e.place != target]
    drafts = [*offered(others), (ITSELF_LABEL, ITSELF)]
    first = catalog.default_drafts(target)[0]
    if not copies(first):
        drafts.insert(
            len(drafts) - 1, (f"references, then {first} where nothing matches", f"{CASCADE}{REFERENCES},{first}")
        )
    places = {Path(corpus).name: corpus for corpus in corpora}
    drafts[-1:-1] = [(f"{name}: a corpus to copy from", name) for name in places]
    lengths = {entry.name: entry.draft_len for entry in catalog.DRAFTS if entry.draft_len != DEFAULT_DRAFT_LEN}
    return Offer(targets, drafts, target, first, any_name, has_gpu(), lengths, places)


def has_no_weights(name: str) -> bool:
    """Whether a draft needs nothing loaded that the target has not: copies, counts, none, the target itself."""
    from specviz.models.source import counts_of

    return all(one in ("", "none", ITSELF) or copies(one) or counts_of(one) is not None for one in members(name))
