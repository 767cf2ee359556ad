"""Several drafts, asked in order: the first that has something to say drafts the step.

Owns: `Cascade`. Must not know what kind its members are. Whether the next is asked depends on whether the ones
before proposed anything, never on the value of a sampled token, so the rule stays exact.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from specviz.config import MAX_DRAFT_LEN
from specviz.drafts import DraftSource
from specviz.drafts.merge import merge_trees
from specviz.drafts.several import Several
from specviz.verify import TokenTree


class Cascade(Several):
    """Retrieval first, say, and a small model where nothing matches. Nodes name who drafted them."""

    def __init__(self, sources: Sequence[DraftSource], draft_len: int = MAX_DRAFT_LEN) -> None:
        super().__init__(sources, draft_len)

    def propose(self, context_ids: list[int], budget: int, generator: torch.Generator) -> TokenTree:
        for source, limit, offset in zip(self.sources, self._limits, self._offsets, strict=True):
            tree = source.propose(context_ids, min(budget, limit), generator)
            if len(tree):
                return merge_trees([tree], [offset])
        return TokenTree()
