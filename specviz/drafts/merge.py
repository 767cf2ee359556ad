"""Several drafts in one tree.

Owns: merging trees by prefix, and a source made of sources. Must not know what kind its members are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from specviz.config import MAX_TREE_NODES
from specviz.drafts import DraftSource, Observation, ReadsPrompt, SharesCache, most_copied
from specviz.runner.cache import TreeCache
from specviz.sampling import Sampler
from specviz.verify import ROOT, TokenTree


def merge_trees(trees: Sequence[TokenTree], proposer_offsets: Sequence[int]) -> TokenTree:
    """One tree with all proposals, tree by tree, each in the order drawn.

    Equal tokens under equal paths become one node; each proposal stays a trial of its own, with its own row.
    """
    merged = TokenTree()
    for tree, offset in zip(trees, proposer_offsets, strict=True):
        places = {ROOT: ROOT}
        for proposal in tree.proposals:
            parent = places[tree.parents[proposal.node]]
            token_id = tree.token_ids[proposal.node]
            proposer = offset + proposal.proposer
            places[proposal.node] = merged.add(
                token_id, parent, proposal.row, proposer, proposal.shown, proposal.origin
            )
    return merged


class MergedDraft:
    """2 or more sources that propose in the same step; the budget is shared out among them.

    `draft_len` is the most that a member drafts that does not copy.
    """

    def __init__(self, sources: Sequence[DraftSource], draft_len: int = MAX_TREE_NODES) -> None:
        self.sources = tuple(sources)
        self._limits = [most_copied(source) or draft_len for source in sources]
        self.most_copied = max(most_copied(source) for source in sources)
        self.names = tuple(name for source in sources for name in source.names)
        self.wants_hidden = any(source.wants_hidden for source in sources)
        sizes = [len(source.names) for source in sources]
        self._offsets = [sum(sizes[:i]) for i in range(len(sizes))]

    def start(self, context_ids: list[int], sampler: Sampler, cancelled: Callable[[], bool]) -> None:
        for source in self.sources:
            source.start(context_ids, sampler, cancelled)

    def propose(self, context_ids: list[int], budget: int, generator: torch.Generator) -> TokenTree:
        # Each takes a share of what those before it left: that depends on earlier draws alone, as the rule asks,
        # and nothing sampled has to be dropped to fit.
        trees: list[TokenTree] = []
        for num_waiting, limit, source in zip(
            range(len(self.sources), 0, -1), self._limits, self.sources, strict=True
        ):
            share = min(limit, -(-budget // num_waiting))
            trees.append(source.propose(context_ids, share, generator) if share else TokenTree())
            budget -= len(trees[-1])
        return merge_trees(trees, self._offsets)

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
