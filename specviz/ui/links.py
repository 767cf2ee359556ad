"""Links that carry the settings of a run.

Owns: what a link holds and how the page opens from one. A link never starts anything: it only fills controls.
Must not know runs or layout.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

import gradio as gr

from specviz.ui.offer import Offer
from specviz.ui.settings import CHOICES, DEFAULTS, NAMES, from_query, shortened, to_query


class Links:
    """The handlers of links for the models of `offer`."""

    def __init__(self, offer: Offer) -> None:
        self._fallback = {**DEFAULTS, "target": offer.target, "draft": offer.draft}
        self._choices: dict[str, list[str]] = {
            "target": [name for _, name in offer.targets],
            "draft": [name for _, name in offer.drafts],
            **{name: list(legal) for name, legal in CHOICES.items()},
        }
        if not offer.any_name:
            self._choices |= {"target_name": [], "draft_name": []}

    def values(self, query: Mapping[str, str]) -> dict[str, Any] | None:
        """All controls as a link wants them, or None where it names none of them."""
        if not set(NAMES) & set(query):
            return None
        return {**self._fallback, **from_query(query, self._choices)}

    def restore(self, request: gr.Request) -> list[Any]:
        """On opening: an update for every control."""
        values = self.values(dict(request.query_params))
        if values is None:
            return [gr.skip() for _ in NAMES]
        return [gr.update(value="" if values[name] is None else values[name]) for name in NAMES]

    def make(self, *values: Any) -> tuple[str, bool]:
        """The query of a link to these settings, and whether it holds only the beginning of a text."""
        query, is_cut = shortened(to_query(dict(zip(NAMES, values, strict=True))))
        return urlencode(query), is_cut
