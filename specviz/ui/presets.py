"""The presets: settings that fill the controls at one press.

Owns: reading `assets/presets.json`, and which of it can be had here. Must not know gradio or runs.

A textbook case shows all, some or none of the drafted tokens accepted. For that it names its target as well, the
smallest of the catalog, so that it can be had on every machine and shows the same on all.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from specviz.ui.component import ASSETS
from specviz.ui.offer import Offer
from specviz.ui.settings import DEFAULTS, NAMES

KEPT = (
    "target", "target_name", "draft", "draft_name", "more_drafts", "draft_len", "auto", "tree", "rule", "dtype",
    "numerics", "baseline",
)  # fmt: skip
"""Settings that a preset which does not name them leaves as they are."""
OF_A_DRAFT = ("draft_name", "more_drafts", "auto", "tree", "rule")
"""Settings that a preset which names a draft sets back."""


def presets(offer: Offer) -> list[dict[str, Any]]:
    """Names, groups (`case` marks a textbook case) and settings; none whose models are not offered."""
    found: list[dict[str, Any]] = json.loads((ASSETS / "presets.json").read_text(encoding="utf-8"))
    if offer.on_gpu:  # bfloat16 has near-ties there, which a block may decide otherwise than single passes
        for item in textbook(found):
            item["settings"]["dtype"] = "float32"
    return [item for item in found if _is_offered(item["settings"], offer)]


def _is_offered(settings: dict[str, Any], offer: Offer) -> bool:
    wanted = ((settings.get("target"), offer.targets), (settings.get("draft"), offer.drafts))
    return all(name is None or name in [value for _, value in choices] for name, choices in wanted)


def textbook(items: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The textbook cases among presets."""
    return [item for item in items if item.get("case")]


def preset_values(settings: dict[str, Any]) -> dict[str, Any]:
    """What a preset sets: what it names, and the default of every other setting that is not `KEPT`."""
    more = {name: DEFAULTS[name] for name in OF_A_DRAFT} if "draft" in settings else {}
    more |= {"target_name": ""} if "target" in settings else {}
    full = {**{name: value for name, value in DEFAULTS.items() if name not in KEPT}, **more, **settings}
    return {name: "" if full[name] is None else full[name] for name in NAMES if name in full}
