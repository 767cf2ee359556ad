"""The law of the output, by exact enumeration of every draft, throw and final draw: never by sampling.

Texts of several tokens are compared, behind context-dependent rows, so that a fault below the first token
shows. The product's rule must give the target's law to rounding; each known wrong way must miss it.
"""

import random
from collections import defaultdict

import pytest
import torch
import wrong_rules
from odds import law, law_of_text, variation

from specviz import verify as verify_module
from specviz.drafts.merge import merge_trees
from specviz.verify import ROOT, TokenTree, residual, verify

P, Q = (0.4, 0.3, 0.2, 0.1), (0.1, 0.2, 0.3, 0.4)
EXACT = 1e-6
MISSED = 0.01


def rolled(row, stride):
    """Rows that depend on the whole context: the same numbers, turned round by what was said."""

    def rows(context):
        shift = sum((i + 1) * stride * token_id for i, token_id in enumerate(context)) % len(row)
        return (*row[shift:], *row[:shift])

    return rows


def drawn_rows(seed, size=5, zeros=0):
    """Other numbers for every context, some of them 0, as top-k and top-p leave them."""

    def rows(context):
        rng = random.Random(f"{seed} {context}")
        weights = [rng.random() ** 2 + 0.01 for _ in range(size)]
        for token_id in rng.sample(range(size), zeros):
            weights[token_id] = 0.0
        return tuple(weight / sum(weights) for weight in weights)

    return rows


PAIRS = {
    "opposite": (rolled(P, 1), rolled(Q, 1)),
    "turning apart": (rolled(P, 1), rolled(Q, 3)),
    "equal": (rolled(P, 1), rolled(P, 1)),
    "any": (drawn_rows("p"), drawn_rows("q")),
    "filtered": (drawn_rows("p", zeros=2), drawn_rows("q", zeros=2)),
    "disjoint": (rolled((0.5, 0.5, 0.0, 0.0), 1), rolled((0.0, 0.0, 0.5, 0.5), 1)),
    "greedy target": (drawn_rows("p", zeros=4), drawn_rows("q")),
}


def tensor(row):
    return torch.tensor(row, dtype=torch.float64)


def one_hot(token_id, size):
    return tensor([float(i == token_id) for i in range(size)])


def chain(length):
    def draft(odds, q):
        tree = TokenTree()
        for _ in range(length):
            row = tensor(q(tuple(tree.token_ids)))
            tree.add(odds.pick(row), len(tree) - 1, row)
        return tree

    return draft


def siblings(*widths):
    """Independent draws: `widths[d]` under each node of depth d; a repeated token is one node, two trials."""

    def draft(odds, q):
        tree, level = TokenTree(), [ROOT]
        for width in widths:
            rows = {parent: tensor(q(tuple(tree.path(parent)))) for parent in level}
            pairs = [(parent, row) for parent, row in rows.items() for _ in range(width)]
            level = [tree.add(odds.pick(row), parent, row) for parent, row in pairs]
            level = list(dict.fromkeys(level))
        return tree

    return draft


def without_replacement(*widths):
    def draft(odds, q):
        tree, level = TokenTree(), [ROOT]
        for width in widths:
            parents, level = level, []
            for parent in parents:
                row = tensor(q(tuple(tree.path(parent))))
                for _ in range(min(width, int((row > 0).sum()))):
                    level.append(tree.add(odds.pick(row), parent, row))
                    row = row.index_fill(0, torch.tensor(tree.token_ids[-1]), 0.0)
                    row = row / row.sum()
        return tree

    return draft


def best(*widths):
    """Top-k lists: sure choices, so one-hot rows; nothing is drawn."""

    def draft(odds, q):
        del odds
        tree, level = TokenTree(), [ROOT]
        for width in widths:
            parents, level = level, []
            for parent in parents:
                row = tensor(q(tuple(tree.path(parent))))
                level += [tree.add(i, parent, one_hot(i, len(row))) for i in row.topk(width).indices.tolist()]
        return tree

    return draft


def copied(*token_ids):
    def draft(odds, q):
        del odds
        tree = TokenTree()
        for token_id in token_ids:
            tree.add(token_id, len(tree) - 1, one_hot(token_id, len(q(()))))
        return tree

    return draft


def merged(*drafts, unlike=False):
    """Several drafts in one tree; with `unlike` those behind the first have rows of their own."""

    def draft(odds, q):
        own = [drawn_rows(f"draft {i}", len(q(()))) if unlike and i else q for i in range(len(drafts))]
        trees = [make(odds, rows) for make, rows in zip(drafts, own, strict=True)]
        return merge_trees(trees, range(len(trees)))

    return draft


DRAFTS = {
    "nothing": lambda odds, q: TokenTree(),
    "chain of 1": chain(1),
    "chain of 2": chain(2),
    "chain of 3": chain(3),
    "2 independent siblings": siblings(2),
    "3 independent siblings": siblings(3),
    "2 siblings, then 1": siblings(2, 1),
    "1, then 2 siblings": siblings(1, 2),
    "2 without replacement": without_replacement(2),
    "3 without replacement": without_replacement(3),
    "2 without replacement, then 1": without_replacement(2, 1),
    "the best 2": best(2),
    "the best 2, then 2": best(2, 2),
    "the best 1, 1, 1": best(1, 1, 1),
    "copied ids": copied(2, 0, 1),
    "two equal drafts": merged(chain(1), chain(1)),
    "two equal drafts of 2": merged(chain(2), chain(2)),
    "two unlike drafts": merged(chain(1), chain(1), unlike=True),
    "two unlike drafts of 2": merged(chain(2), chain(2), unlike=True),
    "three unlike drafts": merged(chain(1), siblings(2), best(2), unlike=True),
    "a copy before a chain": merged(copied(1, 1), chain(2)),
    "a chain before a copy": merged(chain(2), copied(1, 1)),
}


def product_rule(tree, p_rows, odds):
    walked = verify(tree, p_rows, odds)
    return (*(tree.token_ids[node] for node in walked.path), walked.final.token_id)


def law_of_step(draft, p, q, rule=product_rule):
    """The law of what one step emits, drafting and judging both."""

    def play(odds):
        tree = draft(odds, q)
        paths = [(), *(tuple(tree.path(node)) for node in range(len(tree)))]
        return rule(tree, torch.stack([tensor(p(path)) for path in paths]), odds)

    return law(play)


def miss(draft, pair, rule=product_rule):
    """How far the law of a step, continued by the target alone, is from the target's law of the same length."""
    p, q = pair
    step = law_of_step(draft, p, q, rule)
    length = max(map(len, step))
    return variation(continued(step, p, length), law_of_text(p, length))


def continued(step, p, length):
    result = defaultdict(float)
    for emitted, probability in step.items():
        rest = law_of_text(lambda path, emitted=emitted: p((*emitted, *path)), length - len(emitted))
        for ending, share in rest.items():
            result[(*emitted, *ending)] += probability * share
    return result


@pytest.fixture(autouse=True)
def _exact_draws(monkeypatch):
    """`verify` is handed an `Odds` for its generator; each of its draws asks it."""
    monkeypatch.setattr(verify_module, "uniform", lambda odds: odds.uniform())
    monkeypatch.setattr(verify_module, "draw", lambda row, u: u.odds.draw(row, u))


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("draft", DRAFTS)
def test_the_output_has_exactly_the_targets_law(draft, pair):
    assert miss(DRAFTS[draft], PAIRS[pair]) < EXACT
