"""Several drafts in one tree.

Owns: merging trees by prefix, and a source made of sources. Must not know what kind its members are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from specviz.config import MAX_DRAFT_LEN
from specviz.drafts import DraftSource, Observation, most_copied
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


def shared(budget: int, limits: Sequence[int]) -> list[int]:
    """The budget in shares as equal as their limits allow; the first get what cannot be divided."""
    shares = [0] * len(limits)
    in_order = sorted(range(len(limits)), key=lambda i: limits[i])
    for num_left, i in zip(range(len(limits), 0, -1), in_order, strict=True):
        shares[i] = min(limits[i], -(-budget // num_left))
        budget -= shares[i]
    return shares


class MergedDraft:
    """2 or more sources that propose in the same step; the budget is shared out among them.

    `draft_len` is the most that a member drafts that does not copy.
    """

    def __init__(self, sources: Sequence[DraftSource], draft_len: int = MAX_DRAFT_LEN) -> None:
        self._sources = tuple(sources)
        self._limits = [most_copied(source) or draft_len for source in sources]
        self.most_copied = max(most_copied(source) for source in sources)
        self.names = tuple(name for source in sources for name in source.names)
        self.wants_hidden = any(source.wants_hidden for source in sources)
        sizes = [len(source.names) for source in sources]
        self._offsets = [sum(sizes[:i]) for i in range(len(sizes))]

    def start(self, context_ids: list[int], sampler: Sampler, cancelled: Callable[[], bool]) -> None:
        for source in self._sources:
            source.start(context_ids, sampler, cancelled)

    def propose(self, context_ids: list[int], budget: int, generator: torch.Generator) -> TokenTree:
        # Shares are settled before anything is drawn: a sampled node may not be dropped to fit.
        shares = shared(budget, self._limits)
        trees = [
            source.propose(context_ids, share, generator) if share else TokenTree()
            for source, share in zip(self._sources, shares, strict=True)
        ]
        return merge_trees(trees, self._offsets)

    def observe(self, seen: Observation) -> None:
        for source in self._sources:
            source.observe(seen)
