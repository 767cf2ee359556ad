"""Drafts without a model: what each guesser lists, how lists become one tree, and what a run leaves behind."""

import itertools
import math
import random

import pytest
import torch
from count_makers import counted_source
from toys import P9, noisy, plain_greedy, play, said, settings

from specviz.drafts import Observation
from specviz.drafts.copies import CopyGuesser
from specviz.drafts.growth import holds
from specviz.drafts.guess import NUM_BLENDED, NUM_CANDIDATES, TAIL, Blend, Guess, even_weights, likeliest
from specviz.drafts.guess_tree import GuessTree
from specviz.drafts.mix import GUESSERS, make_tree, weight_notes, write_weights
from specviz.drafts.ngram import NgramTable
from specviz.drafts.recycle import RecycledGuesser
from specviz.errors import ModelError
from specviz.metrics import summarize
from specviz.sampling import Sampler, one_hot
from specviz.verify import ROOT, TokenTree


class Fixed:
    """Lists what a function of the tail says."""

    def __init__(self, ranked_of, name="fixed"):
        self.name, self._ranked_of = name, ranked_of
        self.read, self.learnt = [], []

    def start(self, context_ids):
        self.read, self.learnt = list(context_ids), []

    def extend(self, token_ids):
        self.read += token_ids

    def guess(self, tail):
        ranked = self._ranked_of(tail)
        return Guess(int(bool(ranked)), ranked)

    def learn(self, tails, tops):
        self.learnt += zip(tails, tops, strict=True)


def begin(source, text, vocab_size=97):
    source.start(list(text), Sampler(settings(), text, vocab_size=vocab_size), lambda: False)
    return source


def propose(source, text, budget):
    return source.propose(list(text), budget, torch.Generator())


def random_lists(seed, width=4, vocab_size=20):
    """Tail → a ranked list, the same for the same tail."""

    def ranked_of(tail):
        chance = random.Random(f"{seed} {tail}")
        shares = sorted((chance.random() for _ in range(width)), reverse=True)
        ids = chance.sample(range(vocab_size), width)
        return [(i, share / (sum(shares) + 0.2)) for i, share in zip(ids, shares, strict=True)]

    return ranked_of


def all_paths(ranked_of, text, depth):
    """(chance, path) of every path down to `depth`."""
    level = [(1.0, ())]
    for _ in range(depth):
        level = [
            (chance * share, (*path, token_id))
            for chance, path in level
            for token_id, share in ranked_of((*text, *path)[-TAIL:])
        ]
        yield from level


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("budget", [1, 2, 7, 20])
def test_the_likeliest_paths_are_drafted(seed, budget):
    ranked_of = random_lists(seed)
    tree = propose(begin(GuessTree([Fixed(ranked_of)], Blend({})), P9), P9, budget)
    worth = [(chance, path) for chance, path in all_paths(ranked_of, P9, 6) if chance >= 0.05]
    best = sorted(worth, reverse=True)[:budget]
    assert sorted(tuple(tree.path(node)) for node in range(len(tree))) == sorted(path for _, path in best)


def test_a_smaller_budget_gives_the_beginning_of_the_tree():
    source = begin(GuessTree([Fixed(random_lists(3))], Blend({})), P9)
    whole = propose(source, P9, 12)
    for budget in range(len(whole) + 1):
        part = propose(source, P9, budget)
        assert part.token_ids == whole.token_ids[:budget]
        assert part.parents == whole.parents[:budget]


def test_what_is_not_worth_a_row_is_not_drafted():
    lists = lambda tail: [(1, 0.5), (2, 0.06), (3, 0.04)] if tail[-1] == 0 else [(4, 0.09)]  # noqa: E731
    tree = propose(begin(GuessTree([Fixed(lists)], Blend({})), [0]), [0], 9)
    assert [tree.path(node) for node in range(len(tree))] == [[1], [2]]
    assert len(propose(begin(GuessTree([Fixed(lists)], Blend({}), min_chance=0.0), [0]), [0], 4)) == 4


def test_nodes_are_single_sure_choices_and_show_the_blended_list():
    guessers = [Fixed(random_lists(1, vocab_size=6), "a"), Fixed(random_lists(2, vocab_size=6), "b")]
    tree = propose(begin(GuessTree(guessers, Blend({})), P9), P9, 16)
    assert [proposal.node for proposal in tree.proposals] == list(range(len(tree))), "one trial for each node"
    assert len({(parent, i) for parent, i in zip(tree.parents, tree.token_ids, strict=True)}) == len(tree)
    for proposal, token_id in zip(tree.proposals, tree.token_ids, strict=True):
        assert proposal.row.sum() == proposal.row[token_id] == 1
        assert 0 < dict(proposal.shown)[token_id] < 1
    assert {proposal.proposer for proposal in tree.proposals} == {0, 1}


def test_a_node_is_named_after_whoever_gives_it_the_greatest_probability():
    guessers = [Fixed(lambda _: [(1, 0.6), (2, 0.3)], "a"), Fixed(lambda _: [(2, 0.5), (1, 0.2)], "b")]
    tree = propose(begin(GuessTree(guessers, Blend({})), [0]), [0], 2)
    named = {tree.token_ids[p.node]: p.proposer for p in tree.proposals if tree.parents[p.node] == ROOT}
    assert named == {1: 0, 2: 1}
    same = GuessTree([Fixed(lambda _: [], "a"), Fixed(lambda _: [], "a"), Fixed(lambda _: [], "b")], Blend({}))
    assert same.names == ("a", "b")


def test_a_blend_weighs_by_what_each_guesser_knows_and_evenly_where_it_was_never_told():
    guesses = [Guess(2, [(1, 0.5), (2, 0.5)]), Guess(1, [(2, 1.0)]), Guess(0, [])]
    assert Blend({(2, 1, 0): (0.8, 0.2, 0.0)}).merge(guesses) == [(2, pytest.approx(0.6)), (1, pytest.approx(0.4))]
    assert Blend({}).merge(guesses) == [(2, pytest.approx(0.75)), (1, pytest.approx(0.25))]
    assert even_weights((0, 0)) == [0.0, 0.0]
    assert len(Blend({}).merge([Guess(1, [(i, 0.01) for i in range(30)])])) == NUM_BLENDED


def test_every_guesser_reads_the_whole_text_once_and_is_told_what_the_target_expects():
    target_row = torch.full((3, 97), -10.0)
    target_row[0, 5], target_row[1, 6], target_row[2, 7] = 10.0, 10.0, 10.0
    guesser = Fixed(random_lists(1))
    source = begin(GuessTree([guesser], Blend({})), P9)
    propose(source, [*P9, 1, 2], 4)
    propose(source, [*P9, 1, 2, 3], 4)
    assert guesser.read == [*P9, 1, 2, 3]
    tree = TokenTree()
    for token_id in (40, 41):
        tree.add(token_id, ROOT, one_hot(token_id, source._sampler))
    source.observe(Observation((40, 6), tree, (0,), target_row))
    assert [(tail[-2:], top[0][0]) for tail, top in guesser.learnt] == [((3, 41), 7), ((2, 3), 5), ((3, 40), 6)]
    assert all(len(tail) == TAIL for tail, _ in guesser.learnt)


def test_the_likeliest_tokens_come_with_their_probabilities_best_first():
    logits = torch.randn(3, 200)
    for row, ranked in zip(logits.softmax(-1), likeliest(logits), strict=True):
        assert [share for _, share in ranked] == pytest.approx(sorted(row.tolist(), reverse=True)[:NUM_CANDIDATES])
        assert all(row[token_id] == share for token_id, share in ranked)


# Above temperature 0.


def drawn(ranked_of, seed, budget=9, temperature=1.0, vocab_size=20):
    source = GuessTree([Fixed(ranked_of)], Blend({}))
    source.start([0], Sampler(settings(temperature=temperature), [0], vocab_size=vocab_size), lambda: False)
    return source.propose([0], budget, torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("seed", range(8))
def test_drawn_siblings_come_each_from_what_the_earlier_ones_left(seed):
    ranked_of = random_lists(seed)
    tree = drawn(ranked_of, seed)
    assert 2 <= len(tree) <= 9
    for parent in {ROOT, *range(len(tree))}:
        left = dict(ranked_of((0, *tree.path(parent))[-TAIL:]))
        for proposal in tree.proposals_under(parent):
            total = sum(left.values())
            expected = torch.zeros(20)
            expected[list(left)] = torch.tensor([share / total for share in left.values()])
            assert torch.allclose(proposal.row, expected)
            assert left.pop(tree.token_ids[proposal.node]) > 0


@pytest.mark.parametrize(("temperature", "shares"), [(1.0, (0.6, 0.3, 0.1)), (0.5, (0.36, 0.09, 0.01))])
def test_the_first_draw_follows_the_list_at_the_runs_temperature(temperature, shares):
    ranked = [(i, 0.5 * share) for i, share in enumerate((0.6, 0.3, 0.1))]
    counts = torch.zeros(3)
    for seed in range(600):
        counts[drawn(lambda _: ranked, seed, 1, temperature, 3).token_ids[0]] += 1
    assert (counts / 600).tolist() == pytest.approx([share / sum(shares) for share in shares], abs=0.06)


def test_a_drawn_tree_grows_where_draws_hold():
    """A sure list is followed deep, an unsure one is drawn from more than once."""
    sure = drawn(lambda tail: [(len(tail), 0.97), (19, 0.03)], 1)
    unsure = drawn(lambda _: [(i, 0.2) for i in range(5)], 1)
    assert max(sure.depths()) > max(unsure.depths())
    assert unsure.parents.count(ROOT) > sure.parents.count(ROOT)


def test_what_is_accepted_more_often_is_thought_to_be():
    assert all(0 < holds(i / 10) < holds((i + 1) / 10) < 1 for i in range(10))


# Guessers.


def naive_copy(text, tail):
    """The latest earlier place behind the longest end of the tail, by trying all."""
    for length in range(len(tail), 0, -1):
        places = [i for i in range(length, len(text)) if tuple(text[i - length : i]) == tail[-length:]]
        if places:
            return length, text[places[-1]]
    return 0, None


@pytest.mark.parametrize("seed", range(6))
def test_a_copy_is_what_a_search_of_the_whole_text_finds(seed):
    chance = random.Random(seed)
    text = [chance.randrange(3) for _ in range(60)]
    source = CopyGuesser()
    source.start(text[:1])
    levels = {}
    for end in range(1, len(text)):
        tail = tuple(text[max(0, end - TAIL) : end])
        length, token_id = naive_copy(text[:end], tail)
        level, ranked = source.guess(tail)
        assert ranked == ([(token_id, 1.0)] if length else [])
        levels.setdefault(level, set()).add(length)
        source.extend(text[end : end + 1])
    assert [max(lengths) for _, lengths in sorted(levels.items())] == sorted(
        max(lengths) for lengths in levels.values()
    ), "a longer match is a higher level"


def test_a_copy_goes_on_over_the_end_of_a_text_that_repeats_itself():
    source = begin(GuessTree([CopyGuesser()], Blend({})), [7, 1, 2, 3, 1, 2, 3])
    assert propose(source, [7, 1, 2, 3, 1, 2, 3], 7).token_ids == [1, 2, 3, 1, 2, 3, 1]


def test_recycled_candidates_are_those_of_the_last_visit_of_the_same_end():
    source = RecycledGuesser(2)
    source.learn([(1, 2), (5, 1, 2), (9, 2)], [[(3, 0.9)], [(4, 0.8)], [(5, 0.7)]])
    assert source.guess((8, 1, 2)) == Guess(1, [(4, 0.8)])
    assert source.guess((2, 2)) == Guess(0, [])
    source.start([])
    assert source.guess((8, 1, 2)) == Guess(0, [])


@pytest.mark.parametrize("kind", GUESSERS)
def test_nothing_of_a_run_stays_for_the_next(tiny, kind):
    source = counted_source(kind, tiny)
    first = play(tiny, source)
    play(tiny, source, (31, 30, 29))
    again = play(tiny, source)
    assert [step.nodes for step in again.steps("speculative")] == [
        step.nodes for step in first.steps("speculative")
    ]


@pytest.mark.parametrize("kind", GUESSERS)
def test_counts_of_the_target_are_accepted_and_those_of_another_less(tiny, kind):
    own = summarize(play(tiny, counted_source(kind, tiny), draft_len=8))
    noise = summarize(play(tiny, counted_source(kind, noisy(tiny, 0.02)), draft_len=8))
    assert own.tokens_per_pass > noise.tokens_per_pass
    assert own.tokens_per_pass > 1.5


def test_recycling_learns_from_rejected_nodes(tiny):
    """Without counts there is nothing at first; what passes taught is drafted again, and the text stays."""
    source = GuessTree([RecycledGuesser(2), RecycledGuesser(1)], Blend({}))
    trace = play(tiny, source, max_new_tokens=80, draft_len=8)
    steps = trace.steps("speculative")
    assert said(trace) == plain_greedy(tiny, P9, 80)
    assert steps[0].num_drafted == 0
    assert sum(step.num_drafted for step in steps) > 40


# The weights in a file.


def empty_table(**notes):
    nothing = torch.zeros(0).numpy()
    return NgramTable(nothing, nothing, nothing, nothing, 2, "toy", notes)


def test_weights_are_read_as_they_were_written_and_serve_their_temperature():
    greedy, sampled = (
        {levels: [share, 1 - share, 0.0, 0.0] for levels in itertools.product((0, 1), repeat=4)}
        for share in (0.25, 0.5)
    )
    notes = {name: write_weights(w) for name, w in zip(weight_notes("mix"), (greedy, sampled), strict=True)}
    for notes_given, temperature, expected in [
        (notes, 0.0, greedy), (notes, 0.7, sampled), (dict(list(notes.items())[:1]), 1.0, greedy),
    ]:  # fmt: skip
        source = make_tree("mix", empty_table(**notes_given))
        source.start([1], Sampler(settings(temperature=temperature), [1], vocab_size=9), lambda: False)
        assert source._blend._weights == expected
    assert source.names == ("lookup", "recycle", "ngram")


@pytest.mark.parametrize("note", ["{", "[1]", '{"1,x": [1]}', '{"1": 3}', '{"1": ["a"]}'])
def test_weights_that_cannot_be_read_are_one_sentence(note):
    with pytest.raises(ModelError, match=r"weights in the file of counts cannot be read.*\.$"):
        make_tree("mix", empty_table(mix=note))


def test_a_tree_without_chances_is_empty():
    nowhere = GuessTree([Fixed(lambda _: [(1, math.nan)]), Fixed(lambda _: [])], Blend({}))
    assert len(propose(begin(nowhere, P9), P9, 5)) == 0
