"""Trees from draft models: their shapes, their rows, what is kept of them, and the text and law that must stay.

Case numbers are those of the project's list of faults met elsewhere.
"""

import itertools
from collections import Counter

import pytest
import torch
from odds import law, law_of_text, variation
from test_decode import DRAFT_ROWS, OTHER_ROWS, TARGET_ROWS, spoken
from test_verify import continued
from toys import (
    P9,
    fresh_cache,
    logits_of,
    mistral,
    noisy,
    plain_greedy,
    plain_logits,
    play,
    said,
    scripted,
    settings,
    table,
    timeless,
)
from transformers import RepetitionPenaltyLogitsProcessor

from specviz import decode, sampling, verify
from specviz.decode import Surroundings, speculate
from specviz.drafts import Observation
from specviz.drafts import model as draft_model
from specviz.drafts.merge import MergedDraft
from specviz.drafts.model import ModelDraft
from specviz.drafts.retrieval import prompt_lookup
from specviz.drafts.shape import PROBE_EVERY, SURE, AutoShape, Costs, Hope, Profile, affordable_nodes
from specviz.metrics import summarize
from specviz.runner import Runner
from specviz.sampling import Sampler
from specviz.trace import ROOT, Origin, Step
from specviz.verify import TokenTree

TARGET_TIMES = [(1, 1.0), (8, 1.05), (16, 1.2), (32, 1.6), (64, 2.6)]
DRAFT_TIMES = [(1, 0.05), (8, 0.055), (32, 0.08)]


def auto(target_times=TARGET_TIMES, draft_times=DRAFT_TIMES):
    return AutoShape(Costs(target_times, draft_times))


def shape_of(tree):
    """What `run` makes of the setting, with times of our own."""
    return auto() if tree.startswith("auto") else Profile([int(width) for width in tree.split(",")])


def tree_draft(model, tree):
    return ModelDraft(model, shape_of(tree))


def begin(source, prompt=P9, vocab_size=97, cancelled=lambda: False, **more):
    source.start(list(prompt), Sampler(settings(**more), prompt, vocab_size=vocab_size), cancelled)
    return source


def propose(source, text=P9, budget=64, seed=0):
    return source.propose(list(text), budget, torch.Generator().manual_seed(seed))


def steps(trace):
    return trace.steps("speculative")


# The shape that is asked for.


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    ("tree", "levels"),
    [("1", [1]), ("3", [3]), ("3,2,1,1", [3, 6, 6, 6]), ("2,2,2", [2, 4, 8]), ("1,4", [1, 4])],
)
def test_a_profile_gives_every_node_of_a_level_as_many_children(tiny, tree, levels, temperature):
    made = propose(begin(tree_draft(tiny, tree), temperature=temperature, max_new_tokens=99))
    assert [made.depths().count(depth + 1) for depth in range(max(made.depths()))] == levels
    widths = Counter(made.parents)
    assert all(widths[node] == int(tree.split(",")[0 if node < 0 else made.depths()[node]]) for node in widths)


@pytest.mark.parametrize("tree", ["3,2,1,1", "auto"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_level_takes_one_pass_of_the_draft_however_wide_it_is(tree, temperature):
    draft = table((0.4, 0.3, 0.2, 0.1))
    source = begin(tree_draft(draft, tree), [0, 1], 4, temperature=temperature)
    draft.model.num_passes = 0
    made = propose(source, [0, 1])
    assert len(made) > max(made.depths()), "wide"
    assert draft.model.num_passes == max(made.depths()), "leaves are not fed"


@pytest.mark.parametrize("budget", [0, 1, 2, 5, 20, 64])
@pytest.mark.parametrize("tree", ["3,2,1,1", "4,4,2", "auto"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_no_tree_is_larger_than_its_budget_and_a_profile_uses_all_of_it(tiny, tree, budget, temperature):
    made = propose(begin(tree_draft(tiny, tree), temperature=temperature), budget=budget)
    assert len(made) <= budget
    if tree == "3,2,1,1":
        assert len(made) == min(budget, 21)


@pytest.mark.parametrize("num_wanted", [1, 2, 3, 9])
def test_no_level_lies_deeper_than_tokens_are_wanted(tiny, num_wanted):
    trace = play(tiny, tree_draft(tiny, "2,2,1,1"), tree="2,2,1,1", max_new_tokens=num_wanted)
    for made in steps(trace):
        assert all(node.depth <= num_wanted - made.start - 1 for node in made.nodes)
    assert said(trace) == plain_greedy(tiny, P9, num_wanted)


def test_a_copy_beside_a_profile_goes_no_deeper_than_it(tiny):
    source = MergedDraft([tree_draft(tiny, "2,1"), prompt_lookup()])
    trace = play(tiny, source, (1, 2, 3, 1, 2, 3, 1, 2, 3), tree="2,1", max_new_tokens=40)
    assert {node.depth for made in steps(trace) for node in made.nodes} == {1, 2}


def test_the_first_children_are_the_best_tokens_and_each_is_a_sure_choice(family):
    draft = family["noisy .01"]
    made = propose(begin(tree_draft(draft, "3,2")))
    for parent in (ROOT, 0, 1, 2):
        logits = plain_logits(draft, [*P9, *made.path(parent)])[-1]
        own = [made.token_ids[p.node] for p in made.proposals_under(parent)]
        assert own == logits.topk(len(own)).indices.tolist()
    for proposal in made.proposals:
        assert proposal.row.sum() == proposal.row[made.token_ids[proposal.node]] == 1
        assert 0 < proposal.shown[made.token_ids[proposal.node]] < 1


def test_drawn_siblings_differ_and_each_carries_the_row_that_the_earlier_ones_left(family):
    draft = family["noisy .01"]
    made = propose(begin(tree_draft(draft, "4,2"), temperature=1.0))
    for parent in (ROOT, 0, 1, 2, 3):
        left = plain_logits(draft, [*P9, *made.path(parent)])[-1].softmax(-1)
        for proposal in made.proposals_under(parent):
            assert torch.allclose(proposal.row, left / left.sum(), atol=1e-5)
            left = left.index_fill(0, torch.tensor(made.token_ids[proposal.node]), 0.0)


def test_each_row_of_a_drafts_tree_is_penalised_by_its_own_path_and_not_by_siblings(family):
    draft, penalty = family["noisy .01"], 1.3
    made = propose(begin(tree_draft(draft, "3,2"), temperature=1.0, repetition_penalty=penalty))
    for parent in (ROOT, 0, 1, 2):
        text = torch.tensor([[*P9, *made.path(parent)]])
        scores = RepetitionPenaltyLogitsProcessor(penalty)(text, plain_logits(draft, text[0].tolist())[-1:])
        first = next(made.proposals_under(parent))
        assert torch.allclose(first.row, scores[0].softmax(-1), atol=1e-5)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("came", [0, 1, 2, None])
def test_a_shape_is_not_told_of_drawn_siblings_behind_the_one_that_came_to_be(tiny, came, temperature):
    told = []

    class Told(Profile):
        def observe(self, places, num_emitted):
            told.append((places, num_emitted))

    source = begin(ModelDraft(tiny, Told((3,))), temperature=temperature)
    made = propose(source)
    other = next(i for i in range(97) if i not in made.token_ids)
    emitted = (other,) if came is None else (made.token_ids[came], other)
    source.observe(Observation(emitted, made, (), torch.zeros(1, 97)))
    [(places, num_emitted)] = told
    assert num_emitted == len(emitted)
    looked_at = 3 if came is None or temperature == 0 else came + 1  # all of a list are wrong but one
    assert [hit for _, hit in places[0]] == [i == came for i in range(looked_at)]


@pytest.mark.parametrize("top_k", [1, 2, 3])
def test_no_more_siblings_are_drawn_than_the_row_has_tokens(top_k):
    source = begin(tree_draft(table((0.1, 0.2, 0.3, 0.4)), "4"), [0], 4, temperature=1.0, top_k=top_k)
    made = propose(source, [0])
    assert sorted(made.token_ids) == [3, 2, 1][:top_k][::-1]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", ["noisy .005", "noisy .01", "other"])
def test_case_32_width_1_is_the_trace_of_the_chain(tiny, family, name, temperature):
    around, more = {"seed": 3}, {"temperature": temperature, "max_new_tokens": 31}
    chain = play(tiny, ModelDraft(family[name]), draft_len=4, around=around, **more)
    tree = play(tiny, tree_draft(family[name], "1,1,1,1"), tree="1,1,1,1", around=around, **more)
    assert timeless(tree.events) == timeless(chain.events)


# Temperature 0: the shape may change the trace, never the text.

TREES = ("1", "1,1,1", "2", "2,2", "2,2,2", "4", "4,4", "4,4,2", "3,2,1,1", "auto", "auto:5")


@pytest.fixture(scope="module")
def greedy(tiny):
    return plain_greedy(tiny, P9, 24)


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("sources", ["one tree", "two trees", "three kinds"])
def test_case_32_no_shape_of_the_tree_changes_the_text(tiny, family, greedy, tree, sources):
    drafts = [tree_draft(family[name], tree) for name in ("noisy .01", "noisy .005")]
    source = {
        "one tree": drafts[0],
        "two trees": MergedDraft(drafts),
        "three kinds": MergedDraft([drafts[0], prompt_lookup(), tree_draft(family["other"], tree)]),
    }[sources]
    assert said(play(tiny, source, tree=tree)) == greedy


@pytest.mark.parametrize("tree", ["2,2,1", "auto"])
def test_trees_in_a_sliding_window_and_under_a_penalty_keep_the_text(tree):
    target = mistral()
    source = tree_draft(noisy(target, 0.01), tree)
    assert said(play(target, source, tree=tree)) == plain_greedy(target, P9, 24)
    penalised = play(target, source, tree=tree, repetition_penalty=1.3)
    assert said(penalised) == plain_greedy(target, P9, 24, penalty=1.3)


def test_wider_trees_of_a_partly_right_draft_give_more_tokens_a_pass(tiny, family):
    rates = [
        summarize(play(tiny, tree_draft(family["noisy .01"], t), tree=t, max_new_tokens=60)).tokens_per_pass
        for t in ("1,1,1", "2,2,2", "4,3,3")
    ]
    assert rates[0] < rates[1] < rates[2]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_case_34_two_equal_drafts_make_one_node_of_a_token_and_one_path_of_what_is_accepted(
    tiny, family, temperature
):
    source = MergedDraft([tree_draft(family["noisy .01"], "2,2,2") for _ in range(2)])
    trace = play(tiny, source, tree="2,2,2", temperature=temperature, max_new_tokens=60)  # audited
    nodes = [node for made in steps(trace) for node in made.nodes]
    assert any(node.proposers == (0, 1) for node in nodes)
    for made in steps(trace):
        places = [(node.parent, node.token_id) for node in made.nodes]
        assert len(set(places)) == len(places)
        parents = [node.parent for node in made.nodes if node.verdict == "accepted"]
        assert len(set(parents)) == len(parents)
    if temperature == 0:
        assert {node.proposers for node in nodes} == {(0, 1)}


# Above temperature 0: the law, by exact enumeration of every draw of the draft and the rule.

ROWS = {"target": TARGET_ROWS, "draft": DRAFT_ROWS, "other": OTHER_ROWS}
MIXES = {
    "a profile": (["2,1"], "2,1"),
    "a wide profile": (["3"], "3"),
    "a narrow, then wide one": (["1,2"], "1,2"),
    "auto": (["auto"], "auto:3"),
    "auto, deep": (["auto"], "auto:4"),
    "two equal trees": (["2", "2"], "2"),
    "two unlike trees": (["2", "2 other"], "2"),
    "a tree and a copy": (["2", "lookup"], "2"),
    "three drafts": (["2", "1 other", "lookup"], "1"),
}


def mixed(kinds):
    made = []
    for kind in kinds:
        tree, _, rows = kind.partition(" ")
        made.append(prompt_lookup() if tree == "lookup" else tree_draft(spoken(ROWS[rows or "draft"]), tree))
    return made[0] if len(made) == 1 else MergedDraft(made)


def law_of_first_step(monkeypatch, make_events):
    """The exact law of what a run's first step emits."""

    def played(odds):
        for room in (verify, draft_model, sampling):
            monkeypatch.setattr(room, "uniform", odds.uniform)
            monkeypatch.setattr(room, "draw", odds.draw)
        return next(event.emitted for event in make_events() if isinstance(event, Step))

    return law(played)


@pytest.mark.parametrize("rule", ["standard", "naive"])
@pytest.mark.parametrize("mix", MIXES)
def test_the_law_is_the_targets_whatever_trees_are_drawn_and_whichever_rule_judges_them(monkeypatch, mix, rule):
    target, prompt = spoken(TARGET_ROWS), (1, 0, 3, 1, 0)
    kinds, tree = MIXES[mix]
    config = settings(temperature=1.0, tree=tree, rule=rule, max_new_tokens=3)
    emitted = law_of_first_step(
        monkeypatch, lambda: speculate(target, mixed(kinds), prompt, config, Surroundings())
    )
    rows = lambda path: TARGET_ROWS((*prompt, *path))  # noqa: E731
    length = max(map(len, emitted))
    assert length > 1
    assert variation(continued(emitted, rows, length), law_of_text(rows, length)) < 1e-6


@pytest.mark.parametrize("tree", ["3,2,1", "auto"])
def test_case_17_a_seed_fixes_the_whole_trace_of_a_tree(tiny, family, tree):
    traces = [
        play(tiny, tree_draft(family["noisy .01"], tree), tree=tree, temperature=1.0, around={"seed": seed})
        for seed in (5, 5, 6)
    ]
    assert timeless(traces[0].events) == timeless(traces[1].events)
    assert said(traces[0]) != said(traces[2])


# The naive rule: draw first, then look.


@pytest.mark.parametrize("tree", ["", "3,2,1"])
def test_at_temperature_0_the_naive_rule_gives_the_same_text_verdicts_and_passes(tiny, family, greedy, tree):
    shape = shape_of(tree) if tree else None
    traces = [
        play(tiny, ModelDraft(family["noisy .01"], shape), tree=tree, rule=rule) for rule in ("standard", "naive")
    ]
    assert said(traces[0]) == said(traces[1]) == greedy
    outcomes = [[[node.verdict for node in made.nodes] for made in steps(trace)] for trace in traces]
    assert outcomes[0] == outcomes[1]


def test_the_naive_rule_accepts_less_above_temperature_0_and_its_trace_says_what_it_drew(tiny, family):
    rates = {}
    for rule in ("standard", "naive"):
        counts = [0, 0]
        for seed in range(4):
            source = tree_draft(family["noisy .01"], "2,1,1")
            trace = play(
                tiny, source, tree="2,1,1", rule=rule, temperature=1.0, max_new_tokens=120, around={"seed": seed}
            )
            summary = summarize(trace)
            counts = [counts[0] + summary.tokens, counts[1] + summary.passes]
            sites = [site for made in steps(trace) for site in made.sites]
            assert all((site.drawn is None) == (rule == "standard") for site in sites)
        rates[rule] = counts[0] / counts[1]
    assert rates["naive"] < rates["standard"] - 0.1


@pytest.mark.parametrize("cut", [0, 1, 2])
def test_a_stop_inside_the_path_of_the_naive_rule_ends_the_run_there(cut):
    target = counting(16)
    target.eos_ids = frozenset([cut + 1])
    trace = play(target, ModelDraft(counting(16)), [0], rule="naive", draft_len=6)
    assert said(trace) == list(range(1, cut + 2))
    assert steps(trace)[-1].final is None


# What is kept between steps.


class Watched(Runner):
    made: list = []  # noqa: RUF012

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.made.append(self)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("sources", ["profile", "auto", "three"])
def test_logits_behind_each_step_equal_a_fresh_forward_of_the_text(
    tiny, family, monkeypatch, sources, temperature
):
    monkeypatch.setattr(decode, "Runner", Watched)
    monkeypatch.setattr(Watched, "made", [])
    drafts = [tree_draft(family[name], "3,2,1") for name in ("noisy .01", "noisy .005")] + [prompt_lookup(2)]
    source = {"profile": drafts[0], "auto": tree_draft(family["noisy .01"], "auto"), "three": MergedDraft(drafts)}
    config = settings(tree="3,2,1" if sources != "auto" else "auto", temperature=temperature)
    text = list(P9)
    for event in speculate(tiny, source[sources], P9, config, Surroundings(seed=1)):
        if isinstance(event, Step):
            text += event.emitted
            (runner,) = Watched.made
            assert runner.length == len(text) - 1
            logits = runner.forward(text[-1:]).logits[0]
            assert torch.allclose(logits, plain_logits(tiny, text)[-1], atol=1e-3)
            runner.truncate(len(text) - 1)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("seed", range(6))
def test_a_drafts_cache_holds_the_text_and_nothing_else_whichever_path_was_accepted(family, seed, temperature):
    draft, text = family["noisy .01"], list(P9)
    source = begin(tree_draft(draft, "3,2,2"), text, temperature=temperature, max_new_tokens=99)
    chance = torch.Generator().manual_seed(seed)
    for _ in range(4):
        made = propose(source, text, seed=seed)
        node = int(torch.randint(-1, len(made), (), generator=chance))
        emitted = [*made.path(node), 50]
        source.observe(Observation(tuple(emitted), made, (), torch.zeros(1, 97)))
        text += emitted
        runner = source._runner
        assert len(text) - 2 <= runner.length < len(text)
        kept, fresh = runner.cache.stored(range(runner.length)), fresh_cache(draft, text[: runner.length])
        assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(kept, fresh, strict=True))


@pytest.mark.parametrize("after", [0, 1, 2])
def test_a_cancelled_tree_stops_between_two_levels(after):
    draft = table((0.5, 0.3, 0.2))
    cancelled = lambda: draft.model.num_passes >= after  # noqa: E731
    made = propose(begin(tree_draft(draft, "2,2,2"), [0], 3, cancelled=cancelled), [0])
    assert len(made.depths() and {*made.depths()}) <= after
    assert draft.model.num_passes <= max(after, 1)


# Growing by itself.


def counting(vocab_size=64):
    """Says 0, 1, 2, … up to 7 and over again, and is sure of it."""
    return scripted(
        lambda context: logits_of([float(i == len(context) % 8) for i in range(vocab_size)]), vocab_size
    )


def test_auto_goes_deep_where_the_draft_is_always_right():
    trace = play(counting(), ModelDraft(counting(), auto()), [0], tree="auto", max_new_tokens=120)
    assert max(node.depth for made in steps(trace)[1:] for node in made.nodes) >= 8
    assert summarize(trace).tokens_per_pass > 6


def test_auto_drops_to_plain_passes_under_a_draft_that_is_always_wrong_and_probes_every_16th():
    wrong = table([0.0] * 40 + [0.7] + [0.3 / 23] * 23)
    trace = play(counting(), ModelDraft(wrong, auto()), [0], tree="auto", max_new_tokens=160)
    drafted = [made.num_drafted for made in steps(trace)]
    assert drafted[0] > 0
    last = [i for i, num in enumerate(drafted) if num and i > 30]
    assert len(last) >= 3, "it goes on asking"
    assert {b - a for a, b in itertools.pairwise(last)} == {PROBE_EVERY}


def test_auto_lists_a_second_child_where_the_draft_wavers_and_none_where_it_is_sure():
    wavering, sure = (0.48, 0.46, 0.03, 0.03), (0.97, 0.01, 0.01, 0.01)
    draft = spoken(lambda context: wavering if context[-1] == 0 else sure)
    shape = auto(target_times=[(1, 1.0), (64, 4.0)])
    made = propose(begin(ModelDraft(draft, shape), [0], 4), [0], budget=8)
    assert made.token_ids[:2] == [0, 1]
    widths = Counter(made.parents)
    assert widths[ROOT] == 2
    assert {widths[node] for node in widths if node >= 0 and made.token_ids[node] == 0} <= {2}
    assert {widths[node] for node in widths if node >= 0 and made.token_ids[node] > 0} <= {1}


def modelled_s(trace, costs):
    """Seconds of a run by the measured times alone: the draft's pass for each level, the target's for the tree."""
    total = 0.0
    for made in steps(trace):
        sizes = Counter(node.depth for node in made.nodes)
        fed = [1, *(sizes[depth] for depth in range(1, max(sizes, default=0)))] if sizes else []
        total += costs.verify(made.num_drafted) + sum(costs.draft(num) for num in fed)
    return total


@pytest.mark.parametrize("name", ["self", "noisy .01", "other"])
@pytest.mark.parametrize("draft_times", [DRAFT_TIMES, [(1, 0.3), (32, 0.35)]], ids=["cheap", "dear"])
def test_auto_never_loses_much_to_the_best_chain_nor_to_no_draft(tiny, family, name, draft_times):
    """Over 120 tokens, those that it learns from included, by the times that it was told."""
    costs, num = Costs(TARGET_TIMES, draft_times), 120
    ours = play(tiny, ModelDraft(family[name], AutoShape(costs)), tree="auto", max_new_tokens=num)
    chains = [play(tiny, ModelDraft(family[name]), draft_len=n, max_new_tokens=num) for n in (1, 2, 4, 8)]
    best = min(float(num), *(modelled_s(chain, costs) for chain in chains))
    assert modelled_s(ours, costs) < 1.2 * best


def test_auto_forgets_the_last_run(tiny, family):
    source = ModelDraft(family["noisy .01"], auto())
    play(tiny, source, (31,), tree="auto")
    again, alone = (play(tiny, made, tree="auto") for made in (source, ModelDraft(family["noisy .01"], auto())))
    assert timeless(again.events) == timeless(alone.events)


@pytest.mark.parametrize(
    ("times", "num"),
    [
        ([(1, 1.0), (64, 1.0)], 64),
        ([(1, 1.0), (2, 2.0)], 1),
        ([(1, 1.0), (2, 9.0)], 1),
        ([(1, 1.0), (11, 2.0), (21, 3.0)], 10),
        ([], 64),
    ],
)
def test_the_budget_of_auto_is_the_largest_tree_that_takes_no_longer_than_two_passes(times, num):
    assert affordable_nodes(times, 64) == num


def test_costs_are_in_plain_passes_and_a_node_is_never_free():
    costs = Costs([(1, 2.0), (9, 4.0)], [(1, 0.5), (3, 1.0)])
    assert (costs.verify(0), costs.verify(8)) == (1.0, 2.0)
    assert (costs.draft(1), costs.draft(3)) == (0.25, 0.5)
    assert costs.slope(0) == pytest.approx(1 / 8)
    assert Costs([(1, 2.0), (9, 1.0)], [(1, 0.5)]).slope(0) > 0


@pytest.mark.parametrize("shape", [Profile((2, 2)), auto()])
def test_a_shape_plans_no_more_children_than_there_is_room_for(shape):
    tops = [[0.4, 0.3, 0.2, 0.1]] * 2
    for room in range(5):
        planned = shape.children([SURE, Hope(0.9)], tops, 2, room)
        assert len(planned) == 2
        assert sum(map(len, planned)) <= room
        assert all(0 <= hope.chance <= 1 for hopes in planned for hope in hopes)


def test_with_little_room_auto_gives_it_to_the_likeliest_children_not_to_the_first_in_order():
    tops = [[0.4, 0.3, 0.2, 0.1]] * 2
    assert [len(own) for own in auto().children([Hope(0.3), Hope(0.9)], tops, 2, 8)] == [4, 4]
    assert [len(own) for own in auto().children([Hope(0.3), Hope(0.9)], tops, 2, 2)] == [0, 2]


@pytest.mark.parametrize("greedy_run", [True, False])
def test_what_is_hoped_of_children_never_exceeds_their_parent_and_falls_with_their_order(greedy_run):
    shape = auto()
    shape.start(greedy=greedy_run)
    shape.expand({ROOT: SURE}, 1)
    planned = shape.children([Hope(0.8)], [[0.5, 0.3, 0.15, 0.05]], 2, 64)
    chances = [hope.chance for hope in planned[0]]
    assert chances == sorted(chances, reverse=True)
    assert chances[0] <= 0.8
    if greedy_run:
        assert sum(chances) <= 0.8 + 1e-9, "a list's tokens exclude each other"


def test_experience_corrects_what_the_draft_says_of_itself():
    shape, modest = auto(), [[0.4, 0.3, 0.2, 0.1]]
    before = shape.children([SURE], modest, 1, 64)[0]
    for _ in range(30):
        shape.observe([[(before[0], True), *((hope, False) for hope in before[1:])]], 2)
    after = shape.children([SURE], modest, 1, 64)[0]
    assert after[0].chance > before[0].chance
    assert len(after) < len(before) or after[1].chance < before[1].chance


def test_a_cut_keeps_all_proposals_down_to_its_depth_in_their_order():
    made = TokenTree()
    row = torch.full((9,), 1 / 9)
    for token_id, parent in ((1, ROOT), (2, ROOT), (3, 0), (1, ROOT), (4, 1), (5, 2)):
        made.add(token_id, parent, row, origin=Origin("a", token_id, 1))
    cut = made.cut(2)
    assert (cut.token_ids, cut.parents) == ([1, 2, 3, 4], [ROOT, ROOT, 0, 1])
    assert [p.node for p in cut.proposals] == [0, 1, 2, 0, 3]
    assert [p.origin.offset for p in cut.proposals] == [1, 2, 3, 1, 4], "a copy still says where it stood"
    assert made.cut(3) is made
    assert len(made.cut(0)) == 0
