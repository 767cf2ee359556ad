"""The kinds of draft that can be distilled.

Owns: the table of kinds. A new kind is one class behind `Kind` and one line here.
"""

from __future__ import annotations

from collections.abc import Callable

from specviz.distill.kinds.heads import Feature, Pruned, PrunedTwo
from specviz.distill.kinds.kind import About, Kind, Lesson
from specviz.distill.kinds.ngram import Ngram
from specviz.distill.kinds.tiny import Tiny

KINDS: dict[str, Callable[[], Kind]] = {
    "tiny": Tiny,
    "pruned": Pruned,
    "pruned-two": PrunedTwo,
    "feature": Feature,
    "ngram": Ngram,
}

__all__ = ["KINDS", "About", "Kind", "Lesson"]
