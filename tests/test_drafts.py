"""Draft sources by themselves: what they propose, what they keep, and how a length is chosen."""

import random
import statistics

import pytest
import torch
from toys import P9, Bushy, Copies, fresh_cache, plain_greedy, play, said, scripted, settings, table
from trace_makers import chain_step, node, step

from specviz.config import MAX_DRAFT_LEN, RetrievalSettings
from specviz.drafts import Observation
from specviz.drafts.cascade import Cascade
from specviz.drafts.length import FIRST_LEN, PROBE_EVERY, AutoLength, FixedLength
from specviz.drafts.merge import MergedDraft
from specviz.drafts.model import ModelDraft
from specviz.drafts.retrieval import Retrieval, prompt_lookup
from specviz.drafts.retrieval.fixed import FixedTexts
from specviz.sampling import Sampler
from specviz.theory import best_draft_len, measured_verify_ratio, speedup_factor
from specviz.verify import TokenTree


def begin(source, prompt, vocab_size=97, cancelled=lambda: False, **more):
    source.start(list(prompt), Sampler(settings(**more), prompt, vocab_size=vocab_size), cancelled)
    return source


def propose(source, text, budget=4, seed=0):
    return source.propose(list(text), budget, torch.Generator().manual_seed(seed))


def seen(emitted, tree=None):
    return Observation(tuple(emitted), tree or TokenTree(), (), torch.zeros(1, 97))


@pytest.mark.parametrize(
    ("text", "budget", "ids"),
    [
        ([5, 6, 7, 8, 9, 10, 11, 7, 8], 3, [9, 10, 11]),
        ([5, 6, 7, 8, 9, 10, 11, 7, 8], 1, [9]),
        ([1, 2, 3, 4], 4, []),
        ([5], 4, []),
        ([5, 5], 4, []),
        ([5, 5, 5], 4, [5, 5, 5, 5]),
        ([1, 2, 1, 2], 5, [1, 2, 1, 2, 1]),
        ([1, 2, 8, 1, 2, 9, 1, 2], 1, [9]),
        ([1, 2, 3, 8, 2, 3, 9, 1, 2, 3], 1, [8]),
    ],
    ids=str,
)
def test_lookup_copies_behind_the_latest_longest_match(text, budget, ids):
    assert propose(begin(prompt_lookup(2, 8), text), text, budget).token_ids == ids


def test_lookup_finds_the_same_in_a_text_that_grew_step_by_step():
    grown = [1, 2, 3, 1, 2, 4, 3, 1, 2, 3, 1, 2, 4, 4, 1, 2, 3]
    source = begin(prompt_lookup(2, 8), grown[:1])
    for end in range(1, len(grown) + 1):
        whole = begin(prompt_lookup(2, 8), grown[:end])
        assert propose(source, grown[:end]).token_ids == propose(whole, grown[:end]).token_ids


def test_lookup_forgets_the_last_run():
    source = begin(prompt_lookup(2, 8), [1, 2, 3])
    propose(source, [1, 2, 3])
    assert propose(begin(source, [1, 2]), [1, 2]).token_ids == []


def test_a_model_drafts_its_own_greedy_text(family):
    tree = propose(begin(ModelDraft(family["noisy .01"]), P9), P9)
    assert tree.token_ids == plain_greedy(family["noisy .01"], P9, 4)
    assert tree.parents == [-1, 0, 1, 2]
    for proposal in tree.proposals:
        assert proposal.row.sum() == proposal.row[tree.token_ids[proposal.node]] == 1
        assert 0 < proposal.shown[tree.token_ids[proposal.node]] < 1


def test_a_sampled_draft_carries_the_row_it_was_drawn_from():
    probabilities = (0.1, 0.2, 0.3, 0.4)
    source, counts = ModelDraft(table(probabilities)), torch.zeros(4)
    for seed in range(300):
        tree = propose(begin(source, [0], 4, temperature=1.0, top_k=3), [0], 2, seed)
        counts[tree.token_ids[0]] += 1
        assert tree.proposals[0].row.tolist() == pytest.approx([0, 2 / 9, 3 / 9, 4 / 9])
    assert (counts / 300).tolist() == pytest.approx([0, 2 / 9, 3 / 9, 4 / 9], abs=0.09)


@pytest.mark.parametrize("num_right", range(6))
def test_a_models_cache_holds_the_text_and_nothing_else_whatever_was_accepted(family, num_right):
    """Cut too far, it would show as acceptance that decays; too little, as drafts of another text."""
    draft, text = family["noisy .01"], list(P9)
    source = begin(ModelDraft(draft), text)
    for _ in range(3):
        tree = propose(source, text, 5)
        emitted = [*tree.token_ids[:num_right], 50]
        source.observe(seen(emitted, tree))
        text += emitted
        runner = source._runner
        assert len(text) - 2 <= runner.length < len(text)
        kept = runner.cache.stored(range(runner.length))
        fresh = fresh_cache(draft, text[: runner.length])
        assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(kept, fresh, strict=True))


def test_a_pass_without_its_own_draft_leaves_a_models_cache_alone(family):
    """As when the length is 0, or a merge gives it no share: the last chain is no longer what was verified."""
    draft, text = family["self"], [*P9, 3, 3]
    source = begin(ModelDraft(draft), text)
    tree = propose(source, text)
    source.observe(seen([tree.token_ids[0], 50], tree))
    text += [tree.token_ids[0], 50]
    for _ in range(3):
        source.observe(seen(tree.token_ids[:1]))
        text += tree.token_ids[:1]
    assert propose(source, text).token_ids == plain_greedy(draft, text, 4)


def test_a_model_reads_all_new_text_in_one_pass():
    draft = table((0.2, 0.8))
    source = begin(ModelDraft(draft), [0, 1, 0], 2)
    draft.model.num_passes = 0
    propose(source, [0, 1, 0, 1, 1, 0, 1], 3)
    assert draft.model.num_passes == 3


@pytest.mark.parametrize("budget", [0, 1, 3])
def test_a_model_drafts_no_more_than_its_budget(tiny, budget):
    assert len(propose(begin(ModelDraft(tiny), P9), P9, budget)) == budget


def test_a_models_run_starts_from_its_prompt_alone(family):
    source = ModelDraft(family["noisy .01"])
    play(family["self"], source, (31, 30, 29))
    assert propose(begin(source, P9), P9).token_ids == plain_greedy(family["noisy .01"], P9, 4)


def test_ids_that_a_draft_has_not_are_read_as_some_id_and_drafting_goes_on(tiny):
    text = [5, 120, 6]
    tree = propose(begin(ModelDraft(tiny), text, vocab_size=128), text)
    assert tree.token_ids == plain_greedy(tiny, [5, 0, 6], 4)
    assert all(len(proposal.row) == 128 for proposal in tree.proposals)


@pytest.mark.parametrize("after", [0, 1, 3])
def test_a_cancelled_draft_stops_between_two_passes(after):
    draft = table((0.5, 0.5))
    source = begin(ModelDraft(draft), [0], 2, cancelled=lambda: draft.model.num_passes >= after)
    assert len(propose(source, [0], 9)) <= after
    assert draft.model.num_passes <= max(after, 1)


@pytest.mark.parametrize(
    ("budget", "shares"), [(1, (1, 0, 0)), (2, (1, 1, 0)), (3, (1, 1, 1)), (7, (3, 2, 2)), (9, (3, 3, 3))]
)
def test_a_merge_shares_the_budget_out_before_anything_is_drawn(budget, shares):
    chains = [[10, 11, 12], [20, 21, 22], [30, 31, 32]]
    tree = propose(begin(MergedDraft([Copies(chain) for chain in chains]), [0]), [0], budget)
    proposers = [proposal.proposer for proposal in tree.proposals]
    assert tuple(proposers.count(i) for i in range(3)) == shares


def test_copies_have_a_length_of_their_own_beside_a_model_that_drafts(tiny, family):
    text = [*P9, *plain_greedy(tiny, P9, 24)]
    for beside, copied in ((Cascade, 9), (MergedDraft, 5)):
        copies = Retrieval("references", [FixedTexts.of({"a": text})], RetrievalSettings(copy_len=9))
        source = beside([copies, ModelDraft(family["other"])], 2)
        trace = play(tiny, source, draft_len=2, max_new_tokens=20)
        proposers = [[i for node in step.nodes for i in node.proposers] for step in trace.steps("speculative")]
        assert max(step.count(0) for step in proposers) == copied
        assert max(step.count(1) for step in proposers) <= 2
        assert said(trace) == text[len(P9) :][:20]


def test_a_merge_of_merges_names_every_source_once():
    inner = MergedDraft([Copies([1]), Copies([2])])
    source = begin(MergedDraft([Copies([3]), inner, Copies([1])]), [0])
    tree = propose(source, [0], 9)
    assert len(source.names) == 4
    assert sorted((tree.token_ids[p.node], p.proposer) for p in tree.proposals) == [(1, 1), (1, 3), (2, 2), (3, 0)]
    assert len(tree) == 3


def test_a_merge_tells_every_source_what_was_seen_and_asks_for_hidden_states_if_one_does():
    class Curious(Copies):
        wants_hidden = True
        told = ()

        def observe(self, observation):
            self.told = (*self.told, (observation.emitted, tuple(observation.hidden.shape)))

    curious = Curious([1, 2])
    source = MergedDraft([Copies([1, 3]), curious])
    target = scripted(lambda context: [float(i == len(context) % 4) for i in range(4)])
    play(target, source, [0], max_new_tokens=6)
    assert MergedDraft([Copies([1])]).wants_hidden is False
    emitted, shapes = zip(*curious.told, strict=True)
    assert sum(emitted, ()) == (1, 2, 3, 0, 1, 2)
    assert shapes[0] == (4, 4), "a row behind the root and one behind each of the 3 nodes"


def test_the_toy_trees_have_the_shape_they_are_asked_for(tiny):
    source = begin(Bushy(tiny, 2, 3), P9)
    assert propose(source, P9, 32).depths() == [1] * 2 + [2] * 4 + [3] * 8
    assert len(propose(source, P9, 5)) == 5


# Lengths.


FLAT = [(1, 0.1), (64, 0.1)]
RISING = [(1, 0.1), (4, 0.11), (8, 0.14), (32, 0.3)]


def learn(policy, drafted, accepted, draft_s, times=1):
    for index in range(times):
        policy.observe(
            chain_step(index, drafted, accepted, draft_len=drafted, draft_s=draft_s * drafted, verify_s=0.1)
        )


def live(policy, accept, draft_s=0.0, pass_times=FLAT, num_steps=300, most=MAX_DRAFT_LEN):
    """Run steps of the length that the policy asks for; `accept(length)` says which are accepted. All lengths."""
    seconds = measured_verify_ratio(pass_times)
    lengths = []
    for index in range(num_steps):
        lengths.append(length := policy.next_len())
        verdicts = accept(min(length, most))
        nodes = tuple(node(i, -1, 1, "accepted" if right else "rejected") for i, right in enumerate(verdicts))
        spent_s = draft_s * len(nodes)
        policy.observe(
            step(index, nodes=nodes, draft_len=length, draft_s=spent_s, verify_s=0.1 * seconds(len(nodes)))
        )
    return lengths


def chain_of(alpha, seed=0):
    chance = random.Random(seed)

    def accept(length):
        num_right = next((i for i in range(length) if chance.random() >= alpha), length)
        return [i < num_right for i in range(length)]

    return accept


def tree_of(shares, seed=0):
    """Node i is accepted in a share of the steps, whatever became of the others."""
    chance = random.Random(seed)
    return lambda length: [chance.random() < share for share in shares[:length]]


def test_a_fixed_length_stays():
    policy = FixedLength(7)
    learn(policy, 7, 0, 1.0, times=5)
    assert policy.next_len() == 7


def test_the_first_automatic_length_is_4_and_asking_changes_nothing():
    policy = AutoLength(FLAT)
    assert [policy.next_len() for _ in range(3)] == [FIRST_LEN] * 3 == [4, 4, 4]


@pytest.mark.parametrize("pass_times", [FLAT, RISING], ids=["flat", "rising"])
@pytest.mark.parametrize("alpha", [0.9, 0.8, 0.6, 0.4])
@pytest.mark.parametrize("cost", [0.01, 0.05, 0.2])
def test_on_chains_the_automatic_length_comes_close_to_the_best_that_theory_knows(pass_times, alpha, cost):
    ratio = measured_verify_ratio(pass_times)
    lengths = live(AutoLength(pass_times), chain_of(alpha), 0.1 * cost, pass_times)
    found = statistics.mean(speedup_factor(alpha, length, cost, ratio) for length in lengths[100:])
    _, best = best_draft_len(alpha, cost, MAX_DRAFT_LEN, ratio)
    assert found > 0.93 * best


@pytest.mark.parametrize(
    "shares",
    [[0.5, 0.3, 0.2, 0.15, 0.1, 0.08, 0.06, 0.05], [0.9] * 10 + [0.02] * 22, [0.3] + [0.01] * 20],
    ids=len,
)
def test_on_trees_it_comes_close_to_the_best_budget_though_shares_are_no_powers(shares):
    ratio = measured_verify_ratio(RISING)
    lengths = live(AutoLength(RISING), tree_of(shares), 0.001, RISING)
    rates = [(1 + sum(shares[:n])) / (ratio(n) + 0.01 * n) for n in range(len(shares) + 1)]
    found = statistics.mean(rates[min(length, len(shares))] for length in lengths[100:])
    assert found > 0.93 * max(rates)


def test_a_source_that_drafts_less_than_it_may_is_charged_for_what_it_drafts():
    """It is sure of 3 tokens and stops there, so a larger budget costs nothing."""
    lengths = live(AutoLength(RISING), lambda length: [True] * length, 0.001, RISING, most=3)
    assert min(lengths[1:]) >= 3


def test_slow_blocks_shorten_what_pays():
    cheap, dear = (
        live(AutoLength(times), chain_of(0.8), 0.001, times)[-1] for times in (FLAT, [(1, 0.1), (64, 3.2)])
    )
    assert dear < cheap


def test_off_it_probes_with_1_every_16_steps_and_comes_back_when_drafts_get_better():
    policy = AutoLength(FLAT)
    learn(policy, 4, 0, 0.09, times=3)
    chosen = []
    for _ in range(3 * PROBE_EVERY):
        chosen.append(policy.next_len())
        learn(policy, chosen[-1], 0, 0.09)
    assert chosen == ([0] * (PROBE_EVERY - 1) + [1]) * 3
    learn(policy, 1, 1, 0.001, times=200)
    assert policy.next_len() > 1


def test_a_source_that_finds_nothing_is_asked_again_as_at_first():
    policy = AutoLength(FLAT)
    policy.observe(chain_step(0, 0, 0, draft_len=4, verify_s=0.1))
    assert policy.next_len() == FIRST_LEN


def test_without_measured_pass_times_every_block_is_taken_to_cost_one_pass():
    policy = AutoLength([])
    learn(policy, 4, 4, 0.001, times=9)
    assert policy.next_len() == MAX_DRAFT_LEN
