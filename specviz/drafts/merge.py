"""Several drafts in one tree.

Owns: merging trees by prefix, and a source made of sources. Must not know what kind its members are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from specviz.drafts import DraftSource, Observation
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
    """2 or more sources that propose in the same step; the budget is shared out among them."""

    def __init__(self, sources: Sequence[DraftSource]) -> None:
        self._sources = tuple(sources)
        self.names = tuple(name for source in sources for name in source.names)
        self.wants_hidden = any(source.wants_hidden for source in sources)
        sizes = [len(source.names) for source in sources]
        self._offsets = [sum(sizes[:i]) for i in range(len(sizes))]

    def start(self, context_ids: list[int], sampler: Sampler, cancelled: Callable[[], bool]) -> None:
        for source in self._sources:
            source.start(context_ids, sampler, cancelled)

    def propose(self, context_ids: list[int], budget: int, generator: torch.Generator) -> TokenTree:
        # Shares are settled before anything is drawn: a sampled node may not be dropped to fit.
        num = len(self._sources)
        shares = [budget // num + (index < budget % num) for index in range(num)]
        trees = [
            source.propose(context_ids, share, generator) if share else TokenTree()
            for source, share in zip(self._sources, shares, strict=True)
        ]
        return merge_trees(trees, self._offsets)

    def observe(self, seen: Observation) -> None:
        for source in self._sources:
            source.observe(seen)
