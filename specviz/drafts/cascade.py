"""Several drafts, asked in order: the first that has something to say drafts the step.

Owns: `Cascade`. Must not know what kind its members are. Whether the next is asked depends on whether the ones
before proposed anything, never on the value of a sampled token, so the rule stays exact.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from specviz.config import MAX_DRAFT_LEN
from specviz.drafts import DraftSource, Observation, ReadsPrompt, SharesCache, most_copied
from specviz.drafts.merge import merge_trees
from specviz.runner.cache import TreeCache
from specviz.sampling import Sampler
from specviz.verify import TokenTree


class Cascade:
    """Retrieval first, say, and a small model where nothing matches. Nodes name who drafted them.

    `draft_len` is the most that a member drafts that does not copy.
    """

    def __init__(self, sources: Sequence[DraftSource], draft_len: int = MAX_DRAFT_LEN) -> None:
        self._sources = tuple(sources)
        self._draft_len = draft_len
        self.most_copied = max(most_copied(source) for source in sources)
        self.names = tuple(name for source in sources for name in source.names)
        self.wants_hidden = any(source.wants_hidden for source in sources)

    def start(self, context_ids: list[int], sampler: Sampler, cancelled: Callable[[], bool]) -> None:
        for source in self._sources:
            source.start(context_ids, sampler, cancelled)

    def propose(self, context_ids: list[int], budget: int, generator: torch.Generator) -> TokenTree:
        offset = 0
        for source in self._sources:
            most = min(budget, most_copied(source) or self._draft_len)
            tree = source.propose(context_ids, most, generator)
            if len(tree):
                return merge_trees([tree], [offset])
            offset += len(source.names)
        return TokenTree()

    def share(self, cache: TreeCache) -> None:
        """Hand the target's cache on to those who are part of it."""
        for source in self._sources:
            if isinstance(source, SharesCache):
                source.share(cache)

    def read_prompt(self, hidden: Tensor) -> None:
        """Hand the prompt's states on to those who want them."""
        for source in self._sources:
            if isinstance(source, ReadsPrompt):
                source.read_prompt(hidden)

    def observe(self, seen: Observation) -> None:
        for source in self._sources:
            source.observe(seen)
