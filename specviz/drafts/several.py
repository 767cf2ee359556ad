"""What drafts made of drafts share: they pass on what they are told.

Owns: `Several`. Must not know who proposes, nor what kind the members are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from specviz.drafts import DraftSource, Observation, ReadsPrompt, SharesCache, most_copied
from specviz.runner.cache import TreeCache
from specviz.sampling import Sampler


class Several:
    """Members in their order, with all their names; `draft_len` is the most that one drafts that does not copy."""

    def __init__(self, sources: Sequence[DraftSource], draft_len: int) -> None:
        self.sources = tuple(sources)
        self.most_copied = max(most_copied(source) for source in sources)
        self.names = tuple(name for source in sources for name in source.names)
        self.wants_hidden = any(source.wants_hidden for source in sources)
        self._limits = [most_copied(source) or draft_len for source in sources]
        sizes = [len(source.names) for source in sources]
        self._offsets = [sum(sizes[:i]) for i in range(len(sizes))]

    def start(self, context_ids: list[int], sampler: Sampler, cancelled: Callable[[], bool]) -> None:
        for source in self.sources:
            source.start(context_ids, sampler, cancelled)

    def share(self, cache: TreeCache) -> None:
        """Hand the target's cache on to those who are part of it."""
        for source in self.sources:
            if isinstance(source, SharesCache):
                source.share(cache)

    def read_prompt(self, hidden: Tensor) -> None:
        """Hand the prompt's states on to those who want them."""
        for source in self.sources:
            if isinstance(source, ReadsPrompt):
                source.read_prompt(hidden)

    def observe(self, seen: Observation) -> None:
        for source in self.sources:
            source.observe(seen)
