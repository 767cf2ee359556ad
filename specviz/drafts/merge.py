"""Several drafts in one tree.

Owns: merging trees by prefix, and a source made of sources. Must not know what kind its members are.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from specviz.config import MAX_TREE_NODES
from specviz.drafts import DraftSource
from specviz.drafts.several import Several
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


class MergedDraft(Several):
    """2 or more sources that propose in the same step; the budget is shared out among them."""

    def __init__(self, sources: Sequence[DraftSource], draft_len: int = MAX_TREE_NODES) -> None:
        super().__init__(sources, draft_len)

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
