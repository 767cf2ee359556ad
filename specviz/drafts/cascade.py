"""Several drafts, asked in order: the first that has something to say drafts the step.

Owns: `Cascade`. Must not know what kind its members are. Whether the next is asked depends on whether the ones
before proposed anything, never on the value of a sampled token, so the rule stays exact.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from specviz.drafts import DraftSource, Observation
from specviz.drafts.merge import merge_trees
from specviz.sampling import Sampler
from specviz.verify import TokenTree


class Cascade:
    """Retrieval first, say, and a small model where nothing matches. Nodes name who drafted them."""

    def __init__(self, sources: Sequence[DraftSource]) -> None:
        self._sources = tuple(sources)
        self.names = tuple(name for source in sources for name in source.names)
        self.wants_hidden = any(source.wants_hidden for source in sources)

    def start(self, context_ids: list[int], sampler: Sampler, cancelled: Callable[[], bool]) -> None:
        for source in self._sources:
            source.start(context_ids, sampler, cancelled)

    def propose(self, context_ids: list[int], budget: int, generator: torch.Generator) -> TokenTree:
        offset = 0
        for source in self._sources:
            tree = source.propose(context_ids, budget, generator)
            if len(tree):
                return merge_trees([tree], [offset])
            offset += len(source.names)
        return TokenTree()

    def observe(self, seen: Observation) -> None:
        for source in self._sources:
            source.observe(seen)
