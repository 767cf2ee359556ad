"""The GPU of a ZeroGPU Space, where there is one.

Owns: the optional package `spaces` and how long a run may hold the GPU. Everywhere else this is nothing: the
worker runs as it is. Must not know pages or decoding.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from specviz.errors import SpecvizError
from specviz.ui.offer import Offer, has_no_weights
from specviz.ui.presets import presets, textbook
from specviz.ui.runs import Worker

LEAST_S = 20
MOST_S = 120
S_PER_TOKEN = 0.12  # both lanes of a 7B target, with room


def is_zero() -> bool:
    """Whether this is a Space whose GPU is lent call by call."""
    return bool(os.environ.get("SPACES_ZERO_GPU"))


def seconds(settings: dict[str, Any], *_: Any) -> int:
    """How long a run with these settings may hold the GPU; called with all that the worker is called with."""
    tokens = settings.get("max_new_tokens", 0) * (2 if settings.get("baseline", True) else 1)
    return int(min(MOST_S, max(LEAST_S, 10 + tokens * S_PER_TOKEN)))


def decorator() -> Callable[[Worker], Worker] | None:
    """What makes the worker run on the lent GPU, or None where it runs here, and can tell how loading goes."""
    if not is_zero():
        return None
    try:
        import spaces  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        return None
    wrap: Callable[[Worker], Worker] = spaces.GPU(duration=seconds)
    return wrap


def load_at_start(shown: Offer) -> Offer:
    """Fill the registry before the first call; returns the offer of what can be had with it.

    A worker process only inherits what is loaded by then, so any other model would be loaded at every call.
    Beside the first target and draft these are the models of the textbook cases, which are small; a case whose
    models cannot be had is not offered.
    """
    from specviz import models  # late: it imports torch
    from specviz.models import catalog

    def load(target: str, draft: str, dtype: str = "auto") -> set[str]:
        models.load_blank(models.load(target, device="cuda", dtype=dtype))
        if draft == catalog.BLANK or has_no_weights(draft):
            return {target, catalog.BLANK}
        models.load(draft, device="cuda", dtype=dtype)
        return {target, catalog.BLANK, draft}

    here = load(shown.target, shown.draft)
    for case in textbook(presets(shown)):
        settings = case["settings"]
        with suppress(SpecvizError):
            here |= load(settings["target"], settings["draft"], settings.get("dtype", "auto"))
    targets = [choice for choice in shown.targets if choice[1] in here]
    drafts = [choice for choice in shown.drafts if choice[1] in here or has_no_weights(choice[1])]
    return replace(shown, targets=targets, drafts=drafts, any_name=False)
