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
from specviz.verify import ROOT, TokenTree, residual, verify, verify_naively

P, Q = (0.4, 0.3, 0.2, 0.1), (0.1, 0.2, 0.3, 0.4)
EXACT = 1e-6
MISSED = 0.01


def rolled(row, stride):
    """Rows that depend on the whole context: the same numbers, turned round by what was said."""

    def rows(context):
        shift = sum((i + 1) * stride * token_id for i, token_id in enumerate(context)) % len(row)
        return (*row[shift:], *row[:shift])

    return rows


def drawn_rows(seed, size=4, zeros=0):
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
    "greedy target": (drawn_rows("p", zeros=3), drawn_rows("q")),
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
    "nothing": lambda *_: TokenTree(),
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
    "three equal drafts": merged(chain(1), chain(1), chain(1)),
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


def naive_rule(tree, p_rows, odds):
    walked = verify_naively(tree, p_rows, odds)
    return (*(tree.token_ids[node] for node in walked.path), walked.final.token_id)


@pytest.mark.parametrize("pair", ["any", "filtered", "disjoint", "greedy target"])
@pytest.mark.parametrize("draft", DRAFTS)
def test_the_naive_rule_has_the_same_law(draft, pair):
    """Fewer pairs than above: this rule leaves no residual, so how p and q overlap is nothing to it."""
    assert miss(DRAFTS[draft], PAIRS[pair], naive_rule) < EXACT


@pytest.mark.parametrize("pair", ["opposite", "turning apart", "equal", "any"])
@pytest.mark.parametrize(
    "draft", ["chain of 2", "2 independent siblings", "2 without replacement", "two unlike drafts"]
)
def test_the_naive_rule_accepts_fewer_tokens_of_a_sampled_draft(draft, pair):
    """2305.09781, Thm. 4.3: in the mean over all draws, and strictly where the draft is drawn."""
    means = [
        sum(
            len(emitted) * probability
            for emitted, probability in law_of_step(DRAFTS[draft], *PAIRS[pair], rule).items()
        )
        for rule in (product_rule, naive_rule)
    ]
    assert means[1] < means[0] - 0.01


def test_of_a_single_sure_choice_both_rules_accept_alike():
    """A copy is kept with the target's probability of it, whichever comes first, the draw or the look."""
    for draft in ("copied ids", "the best 1, 1, 1"):
        laws = [law_of_step(DRAFTS[draft], *PAIRS["any"], rule) for rule in (product_rule, naive_rule)]
        assert variation(*laws) < EXACT


def test_only_one_of_five_tokens_in_the_second_row_is_still_exact():
    pair = (drawn_rows("p", 5), drawn_rows("q", 5, zeros=4))
    assert miss(siblings(2), pair) < EXACT


WRONG_RULES = [
    ("redraw from p_target after a rejection", "chain of 1"),
    ("redraw from p_target after a rejection", "chain of 3"),
    ("redraw from p_target after a rejection", "the best 2"),
    ("duplicates tried once", "2 independent siblings"),
    ("duplicates tried once", "two equal drafts"),
    ("duplicates tried once", "three equal drafts"),
    ("one draw shared by accept and resample", "chain of 1"),
    ("one draw shared by accept and resample", "2 independent siblings"),
]


@pytest.mark.parametrize(("rule", "draft"), WRONG_RULES)
def test_a_wrong_rule_misses_the_law(rule, draft):
    assert miss(DRAFTS[draft], PAIRS["opposite"], wrong_rules.RULES[rule]) > MISSED


@pytest.mark.parametrize("draft", sorted({draft for _, draft in WRONG_RULES}))
def test_the_right_rule_written_apart_keeps_it(draft):
    assert miss(DRAFTS[draft], PAIRS["opposite"], wrong_rules.walk) < EXACT


def one_level(propose):
    def draft(odds, q):
        tree = TokenTree()
        propose(odds, tree, ROOT, tensor(q(())))
        return tree

    return draft


@pytest.mark.parametrize("name", wrong_rules.DRAFTERS)
def test_a_wrong_draft_misses_the_law(name):
    assert miss(one_level(wrong_rules.DRAFTERS[name]), PAIRS["opposite"]) > MISSED


@pytest.mark.parametrize(
    ("rule", "draft", "off"),
    [
        (wrong_rules.RULES["duplicates tried once"], siblings(2), 0.027),
        (product_rule, one_level(wrong_rules.not_renormalised), 0.043),
    ],
)
def test_the_subtle_wrong_rules_miss_by_what_the_arithmetic_says(rule, draft, off):
    assert miss(draft, PAIRS["opposite"], rule) == pytest.approx(off, abs=5e-4)


def throw(tree, p_rows, seed=0, **more):
    return verify(tree, torch.tensor(p_rows), torch.Generator().manual_seed(seed), **more)


class TestTheWalk:
    """What the walk reports, with real draws."""

    @pytest.fixture(autouse=True)
    def _real_draws(self, monkeypatch):
        monkeypatch.undo()

    def test_a_sure_path_is_followed_to_its_leaf_and_the_leafs_row_gives_the_final_token(self):
        tree = DRAFTS["the best 1, 1, 1"](None, rolled((0.0, 1.0, 0.0, 0.0), 0))
        walked = throw(tree, [one_hot(1, 4).tolist()] * 3 + [one_hot(3, 4).tolist()])
        assert walked.path == (0, 1, 2)
        assert walked.final.token_id == 3
        assert [len(decision.throws) for decision in walked.decisions] == [1, 1, 1, 0]

    @pytest.mark.parametrize("last", [0, 1, 2])
    def test_a_stop_inside_the_path_ends_the_walk_without_a_final_token(self, last):
        tree = DRAFTS["copied ids"](None, rolled(P, 0))
        told = []

        def stops(token_id):
            told.append(token_id)
            return len(told) == last + 1

        walked = throw(tree, [one_hot(i, 4).tolist() for i in (2, 0, 1, 3)], stops=stops)
        assert walked.final is None
        assert walked.path == tuple(range(last + 1))
        assert told == [2, 0, 1][: last + 1]

    def test_equal_rows_are_always_accepted(self):
        tree = TokenTree()
        tree.add(1, ROOT, torch.tensor(P))
        assert all(throw(tree, [P, P], seed).path == (0,) for seed in range(200))

    def test_two_equal_rows_that_rejected_by_rounding_leave_what_stood_before(self):
        cur, mass = residual(torch.tensor(P), torch.tensor(P))
        assert mass == 0
        assert cur.tolist() == pytest.approx(P)

    def test_a_trial_reports_what_it_compared(self):
        tree = TokenTree()
        tree.add(3, ROOT, torch.tensor(Q))
        walks = [throw(tree, [P, P], seed) for seed in range(100)]
        throws = [walked.decisions[0].throws[0] for walked in walks]
        assert {(round(t.cur, 6), round(t.row, 6), round(t.overlap, 6)) for t in throws} == {(0.1, 0.4, 0.6)}
        assert all(t.accepted == (t.u < 0.25) for t in throws)
        assert {t.accepted for t in throws} == {True, False}

    def test_the_same_seed_gives_the_same_walk(self):
        tree = TokenTree()
        tree.add(3, ROOT, torch.tensor(Q))
        results = [[(w.path, w.final) for w in (throw(tree, [P, P], s) for s in range(20))] for _ in range(2)]
        assert results[0] == results[1]


def test_a_repeated_sibling_is_one_node_with_a_proposal_for_each_draw():
    tree = TokenTree()
    assert [tree.add(t, ROOT, tensor(Q), who) for t, who in ((2, 0), (1, 0), (2, 1))] == [0, 1, 0]
    assert tree.add(2, 0, tensor(Q)) == 2, "the same token deeper down is another node"
    assert (tree.token_ids, tree.parents, tree.depths()) == ([2, 1, 2], [ROOT, ROOT, 0], [1, 1, 2])
    assert [(p.node, p.proposer) for p in tree.proposals_under(ROOT)] == [(0, 0), (1, 0), (0, 1)]
    assert tree.path(2) == [2, 2]


def test_merging_shares_prefixes_and_keeps_every_proposal_in_the_order_drawn():
    first, second = TokenTree(), TokenTree()
    for tree, ids in ((first, (5, 6, 7)), (second, (5, 8))):
        for token_id in ids:
            tree.add(token_id, len(tree) - 1, one_hot(token_id, 9))
    tree = merge_trees([first, second], [0, 3])
    assert (tree.token_ids, tree.parents) == ([5, 6, 7, 8], [ROOT, 0, 1, 0])
    assert [(p.node, p.proposer) for p in tree.proposals] == [(0, 0), (1, 0), (2, 0), (0, 3), (3, 3)]
