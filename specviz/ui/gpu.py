"""The GPU of a ZeroGPU Space, where there is one.

Owns: the optional package `spaces` and how long a run may hold the GPU. Everywhere else this is nothing: the
worker runs as it is. Must not know pages or decoding.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from specviz.ui.offer import Offer
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
    """What makes the worker run on the lent GPU, or None where it runs here."""
    try:
        import spaces  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        return None
    wrap: Callable[[Worker], Worker] = spaces.GPU(duration=seconds)
    return wrap


def load_at_start(shown: Offer) -> None:
    """Fill the registry before the first call: a worker process only inherits what is loaded by then."""
    from specviz import models  # late: it imports torch

    for name in dict.fromkeys([shown.target, shown.draft]):
        if name not in ("none", "lookup"):
            models.load(name, device="cuda")
