"""Wrong ways to speculate, each known from real software; the tests of the law must reject every one.

A `rule` judges a tree in place of `verify`; a `drafter` proposes one. Both draw from `Odds`. `walk` with no
switch set is the right rule once more, written apart from the product's.
"""

import functools

import torch
from odds import Odds
from torch import Tensor

from specviz.verify import ROOT, TokenTree


def walk(
    tree: TokenTree, p_rows: Tensor, odds: Odds, *, redraw=False, once=False, shared=False
) -> tuple[int, ...]:
    """The emitted ids: speculative sampling down the tree (2305.09781, Alg. 2), or one of its misreadings."""
    node, ids = ROOT, []
    while True:
        cur, tried, u = p_rows[node + 1], set(), None
        for proposal in tree.proposals_under(node):
            x, row = tree.token_ids[proposal.node], proposal.row
            if once and x in tried:
                continue
            tried.add(x)
            u = u if shared and u is not None else odds.uniform()
            if u * float(row[x]) < float(cur[x]):
                node = proposal.node
                ids.append(x)
                break
            left = (cur - row).clamp(min=0)
            cur = left / left.sum() if left.sum() > 0 else cur
        else:
            cur = p_rows[node + 1] if redraw else cur
            return (*ids, odds.draw(cur, u if shared and u is not None else odds.uniform())[0])


RULES = {
    "redraw from p_target after a rejection": functools.partial(walk, redraw=True),
    "duplicates tried once": functools.partial(walk, once=True),
    "one draw shared by accept and resample": functools.partial(walk, shared=True),
}


def argmax_with_softmax_row(odds, tree, parent, row):
    """Greedy drafting that claims to have sampled."""
    del odds
    tree.add(int(row.argmax()), parent, row)


def filtered_with_unfiltered_row(odds, tree, parent, row):
    """Draws from the two best, but hands on the whole row."""
    kept = torch.where(row >= row.topk(2).values[-1], row, 0.0)
    tree.add(odds.pick(kept / kept.sum()), parent, row)


def not_renormalised(odds, tree, parent, row):
    """Two siblings without replacement, the second one with the row of the first."""
    first = odds.pick(row)
    left = row.clone()
    left[first] = 0.0
    tree.add(first, parent, row)
    tree.add(odds.pick(left), parent, row)


def pruned_by_probability(odds, tree, parent, row):
    """Draws two and keeps the likelier."""
    picks = (odds.pick(row), odds.pick(row))
    tree.add(max(picks, key=lambda x: float(row[x])), parent, row)


def low_confidence_dropped(odds, tree, parent, row):
    """Draws one and drops it where the draft was not sure."""
    pick = odds.pick(row)
    if float(row[pick]) >= 0.25:
        tree.add(pick, parent, row)


def reordered_by_probability(odds, tree, parent, row):
    """Two independent draws, the likelier tried first."""
    for pick in sorted((odds.pick(row), odds.pick(row)), key=lambda x: -float(row[x])):
        tree.add(pick, parent, row)


DRAFTERS = {
    "softmax row for an argmax draft": argmax_with_softmax_row,
    "unfiltered row for a filtered draft": filtered_with_unfiltered_row,
    "row not renormalised": not_renormalised,
    "pruning sampled nodes by probability": pruned_by_probability,
    "dropping a low-confidence sampled token": low_confidence_dropped,
    "reordering sampled siblings": reordered_by_probability,
}
