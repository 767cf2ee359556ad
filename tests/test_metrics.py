"""Every number of a trace against hand-counted traces; wrong ways to count stand beside the right one."""

import dataclasses
import json

import pytest
from trace_makers import chain_step, final, finished, make_trace, node, sampled_trace, site, started, step, trial

from specviz.metrics import Counts, Tally, count_step, summarize
from specviz.metrics.summary import tally_trace
from specviz.metrics.tally import ACCEPTANCE_WINDOW
from specviz.theory import speedup_factor
from specviz.trace import ROOT, Trace

JSON_FIELDS = set(
    """target draft draft_len dtype device seed prompt_tokens tokens passes drafted tested accepted
acceptance_rate overlap draft_yield tokens_per_pass prefill_s draft_s verify_s total_s tokens_per_s
baseline_tokens_per_s speedup predicted_speedup draft_target_ratio verify_ratio stop_reason identical
first_difference token_ids""".split()  # noqa: SIM905
)


def plain_steps(ids, seconds=0.1, **more):
    fields = {"verify_s": seconds, "total_s": seconds, "draft_s": 0.0, **more}
    return [
        step(i, lane="baseline", emitted=(token,), final=final(token), clock_s=seconds * (i + 1), **fields)
        for i, token in enumerate(ids)
    ]


def of_times(tokens, seconds, lane):
    """A lane of one step that took `seconds` for `tokens` tokens."""
    return step(0, lane=lane, emitted=tuple([1] * tokens), total_s=seconds, clock_s=seconds)


def tree_step():
    """Seven nodes: 0 and 1 under the root, 2 and 3 under 0, 4 and 5 under 1, 6 under 2. Accepted: 0, then 3.

    Node 2 was tried before 3 and rejected; node 1 stands behind the accepted sibling 0.
    """
    parents = [ROOT, ROOT, 0, 0, 1, 1, 2]
    depths = [1, 1, 2, 2, 2, 2, 3]
    verdicts = ["accepted", "untested", "rejected", "accepted", "untested", "untested", "untested"]
    nodes = tuple(node(10 + i, parents[i], depths[i], verdicts[i]) for i in range(7))
    sites = (site(ROOT, trial(0)), site(0, trial(2, False), trial(3)), site(3))
    return step(0, nodes=nodes, sites=sites, final=final(kind="bonus"), emitted=(10, 13, 9))


def test_case_36_imported_totals_name_every_number_for_what_it_is():
    counts = Counts.from_totals(passes=87, drafted=259, accepted_at=[70, 55, 42])
    assert counts.accepted == 167
    assert counts.draft_yield == pytest.approx(0.645, abs=5e-4)
    assert counts.acceptance_rate is None
    assert counts.overlap is None
    assert counts.accepted_per_pass == pytest.approx(1.92, abs=5e-3)
    assert counts.tokens_per_pass == pytest.approx(2.92, abs=5e-3)
    assert counts.acceptance_of_passes == pytest.approx((0.805, 0.632, 0.483), abs=5e-4)
    assert counts.acceptance_of_tested is None
    assert (counts + Counts(passes=1, emitted=1)).acceptance_rate is None, "unknown stays unknown in a sum"


def test_a_pass_without_a_draft_is_counted_where_one_was_wanted():
    found = [count_step(step(0, draft_len=n, nodes=(), sites=(site(ROOT),))).undrafted for n in (0, 4)]
    assert found == [0, 1]
    assert count_step(tree_step()).undrafted == 0
    assert sum((count_step(tree_step()), Counts(undrafted=1)), Counts()).undrafted == 1
    foreign = Counts.from_totals(passes=1, drafted=1, accepted_at=[1])
    assert (foreign.undrafted, (foreign + Counts()).undrafted) == (None, None)


def test_case_39_a_trees_path_tokens_and_nodes_are_three_numbers():
    counts = count_step(tree_step())
    assert (counts.accepted, counts.emitted, counts.drafted, counts.tested) == (2, 3, 7, 3)
    assert counts.draft_yield == pytest.approx(2 / 7)
    assert counts.acceptance_rate == pytest.approx(2 / 3), "the chain's rate never divides by all nodes"
    assert counts.tested_at == (1, 2)
    assert counts.acceptance_of_tested == (1.0, 0.5)


@pytest.mark.parametrize(
    ("drafted", "accepted", "tested"), [(4, 0, 1), (4, 2, 3), (4, 4, 4), (1, 1, 1), (0, 0, 0)]
)
def test_a_chain_is_tested_up_to_its_first_rejection(drafted, accepted, tested):
    counts = count_step(chain_step(0, drafted, accepted))
    assert (counts.drafted, counts.accepted, counts.tested) == (drafted, accepted, tested)
    assert counts.emitted == accepted + 1


def test_a_rate_that_counts_untested_nodes_is_another_number():
    """.72 / .59 / .42 at γ = 2 / 4 / 8 is what accepted ÷ drafted says of the same α = .8."""
    counts = sum((count_step(chain_step(i, 8, accepted)) for i, accepted in enumerate([0, 1, 2, 4, 8])), Counts())
    wrong = counts.accepted / counts.drafted
    assert counts.acceptance_rate == pytest.approx(15 / 19)
    assert wrong == counts.draft_yield == pytest.approx(15 / 40)


def test_overlap_is_the_mean_of_each_tested_nodes_first_trial():
    twice = chain_step(0, 1, 0)
    merged = site(ROOT, trial(0, False, overlap=0.5), trial(0, False, overlap=0.1, proposer=1))
    one = dataclasses.replace(twice, sites=(merged,), nodes=(node(0, verdict="rejected", proposers=(0, 1)),))
    two = dataclasses.replace(chain_step(1, 1, 1), sites=(site(ROOT, trial(0, overlap=0.9)), site(0)))
    counts = count_step(one) + count_step(two)
    assert counts.tested == 2, "a merged node with two trials counts once"
    assert counts.overlap == pytest.approx(0.7)


def test_a_merged_node_counts_once_in_the_run_and_once_for_each_source_that_tried_it():
    merged = chain_step(0, 1, 1, nodes=(node(0, verdict="accepted", proposers=(0, 1)),))
    rejected_first = chain_step(
        1,
        1,
        1,
        nodes=(node(0, verdict="accepted", proposers=(0, 1)),),
        sites=(site(ROOT, trial(0, False), trial(0, proposer=1)), site(0)),
    )
    tally = Tally()
    for event in (started(), merged, rejected_first):
        tally.add(event)
    assert tally.speculative.counts.drafted == tally.speculative.counts.tested == 2
    small, lookup = tally.proposers
    assert (small.name, small.proposed, small.tested, small.accepted) == ("small", 2, 2, 1)
    assert (lookup.name, lookup.proposed, lookup.tested, lookup.accepted) == ("lookup", 2, 1, 1)
    assert small.unique == lookup.unique == 0, "whichever was left out, the other would have given it"


def test_a_sources_unique_tokens_are_those_accepted_that_no_other_proposed():
    nodes = (
        node(0, verdict="accepted", proposers=(1,)),
        node(1, 0, 2, verdict="accepted", proposers=(0, 1)),
        node(2, 1, 3, verdict="rejected", proposers=(0,)),
    )
    tally = Tally()
    for event in (started(), chain_step(0, 3, 2, nodes=nodes)):
        tally.add(event)
    assert [(one.name, one.proposed, one.unique) for one in tally.proposers] == [("small", 2, 0), ("lookup", 2, 1)]
    assert sum(one.unique for one in tally.proposers) <= tally.speculative.counts.accepted


def test_a_source_that_proposed_nothing_is_listed_with_zeros():
    summary = summarize(make_trace(started(), chain_step(0, 2, 1), finished(num_tokens=2)))
    assert [(one["name"], one["proposed"]) for one in summary.to_json()["proposers"]] == [
        ("small", 2),
        ("lookup", 0),
    ]


def test_case_39_a_tree_shows_path_tokens_and_nodes_and_its_yield_is_not_called_acceptance():
    """TREE with 7 nodes and an accepted path of 2; 4 nodes were tried on the way."""
    parents, depths = (ROOT, ROOT, 0, 0, 2, 2, 1), (1, 1, 2, 2, 3, 3, 2)
    verdicts = ("accepted", "untested", "accepted", "rejected", "rejected", "untested", "untested")
    nodes = tuple(
        node(20 + i, p, d, verdict=v) for i, (p, d, v) in enumerate(zip(parents, depths, verdicts, strict=True))
    )
    sites = (site(ROOT, trial(0)), site(0, trial(3, False), trial(2)), site(2, trial(4, False)))
    tally = Tally()
    for event in (started(), chain_step(0, 7, 2, nodes=nodes, sites=sites)):
        tally.add(event)
    summary, counts = summarize(tally), tally.speculative.counts
    assert (counts.accepted_per_pass, summary.tokens, summary.drafted) == (2, 3, 7)
    assert (summary.draft_yield, summary.acceptance_rate) == (2 / 7, 2 / 4)
    assert summary.predicted_speedup is None, "the formula is for chains"
    assert dict(tally.accepted_lengths) == {2: 1}


def test_a_run_with_nothing_drafted_has_no_acceptance_not_0_and_not_1():
    summary = summarize(make_trace(started(), chain_step(0, 0, 0), chain_step(1, 0, 0), finished(num_tokens=2)))
    assert (summary.drafted, summary.tested, summary.accepted) == (0, 0, 0)
    assert summary.acceptance_rate is summary.overlap is summary.draft_yield is None
    assert summary.predicted_speedup is summary.draft_target_ratio is None
    assert summary.tokens_per_pass == 1.0


def test_where_nobody_drafts_the_summary_is_of_the_only_lane():
    summary = summarize(make_trace(started("baseline"), *plain_steps([1, 2]), finished("baseline", 2)))
    assert (summary.target, summary.draft, summary.token_ids) == ("big", "none", (1, 2))
    assert (summary.passes, summary.tokens_per_pass, summary.stop_reason) == (2, 1.0, "length")
    assert summary.tokens_per_s == summary.baseline_tokens_per_s == pytest.approx(10)
    assert summary.speedup is summary.predicted_speedup is summary.acceptance_rate is summary.identical is None


def test_an_empty_trace_knows_nothing():
    summary = summarize(Trace())
    assert (summary.tokens, summary.passes) == (0, 0)
    unknown = (
        "target",
        "seed",
        "prefill_s",
        "tokens_per_s",
        "speedup",
        "verify_ratio",
        "stop_reason",
        "identical",
    )
    assert all(getattr(summary, name) is None for name in unknown)


def test_the_summary_holds_every_field_that_json_prints():
    trace = make_trace(started(), chain_step(0, 4, 2), started("baseline"), *plain_steps([0, 1, 8]))
    data = summarize(trace).to_json()
    assert set(data) >= JSON_FIELDS
    assert json.loads(json.dumps(data, allow_nan=False))["first_difference"] == {"index": 2, "top2_gap": 1.0}
    assert (data["target"], data["draft"], data["draft_len"], data["seed"]) == ("big", "small + lookup", 4, 3)
    assert (data["prompt_tokens"], data["prefill_s"], data["token_ids"]) == (3, 0.4, [0, 1, 9])


def test_case_64_speedup_is_of_rates_not_of_raw_times_and_may_be_below_1():
    ours, plain = of_times(947, 15.325, "speculative"), of_times(1000, 14.329, "baseline")
    summary = summarize(make_trace(started(), started("baseline"), ours, plain))
    assert summary.speedup == pytest.approx(0.885, abs=5e-4)
    assert summary.speedup != pytest.approx(14.329 / 15.325, abs=0.01), "raw times would say .935"
    assert (summary.tokens, summary.baseline_tokens) == (947, 1000)


@pytest.mark.parametrize("order", [("speculative", "baseline"), ("baseline", "speculative")])
def test_case_62_the_prompt_pass_is_no_part_of_speed_in_either_order(order):
    events = {
        "speculative": [started(prefill_s=5.0)]
        + [chain_step(i, 0, 0, total_s=0.06, clock_s=0.06 * (i + 1)) for i in range(20)],
        "baseline": [started("baseline", prefill_s=7.0), *plain_steps(range(20))],
    }
    tally = Tally()
    for lane in order:
        for event in events[lane]:
            tally.add(event)
    assert summarize(tally).speedup == pytest.approx(1.67, rel=0.05)
    assert summarize(tally).prefill_s == 5.0
    assert min(tally.speedup.y) > 0.9, "no near-zero start"


def test_predicted_speedup_is_the_papers_factor_with_the_measured_ratios():
    """γ = 4 throughout, α = 8/10, c = (.02/4)/.05 = .1, v = .07/.05 = 1.4."""
    steps = [chain_step(i, 4, accepted) for i, accepted in enumerate([4, 3, 1])]
    summary = summarize(make_trace(started(), *steps, started("baseline"), *plain_steps([1, 1], 0.05)))
    assert summary.draft_target_ratio == pytest.approx(0.1)
    assert summary.verify_ratio == pytest.approx(1.4)
    assert summary.predicted_speedup == pytest.approx(speedup_factor(0.8, 4, 0.1, 1.4))


def test_predicted_speedup_weighs_lengths_that_vary_by_what_was_drafted():
    steps = [chain_step(0, 4, 4), chain_step(1, 0, 0), chain_step(2, 2, 0)]
    summary = summarize(make_trace(started(), *steps, config={"draft_len": "auto"}))
    assert summary.draft_len == "auto"
    alpha, c, v = 4 / 5, (0.06 / 6) / 0.05, 0.07 / 0.05
    tokens = sum(sum(alpha**i for i in range(n + 1)) for n in (4, 0, 2))
    assert summary.predicted_speedup == pytest.approx(tokens / (6 * c + 3 * v))


def test_without_a_baseline_the_plain_pass_is_the_one_measured_at_load():
    summary = summarize(make_trace(started(), chain_step(0, 4, 2)))
    assert summary.verify_ratio == pytest.approx(0.07 / 0.05)
    assert summary.speedup is summary.baseline_tokens_per_s is summary.identical is None
    assert summarize(make_trace(started(pass_times=()), chain_step(0, 4, 2))).verify_ratio is None


def test_a_tree_has_no_predicted_speedup():
    assert summarize(make_trace(started(), tree_step())).predicted_speedup is None


LANES_ENDED = (finished(num_tokens=3), finished("baseline", 3))


@pytest.mark.parametrize(
    ("ours", "plain", "ends", "identical", "index"),
    [
        ([1, 2, 3], [1, 2, 3], LANES_ENDED, True, None),
        ([1, 2, 3], [1, 5, 3], LANES_ENDED, False, 1),
        ([1, 2], [1, 2, 3], LANES_ENDED, False, 2),
        ([1, 2, 3], [1, 2], LANES_ENDED, False, 2),
        ([1, 2], [1, 2, 3], (finished(), finished("baseline", reason="cancelled")), True, None),
        ([1, 2, 3], [1, 2], (finished(reason="error"), finished("baseline")), True, None),
        ([1, 2], [1, 4, 3], (finished(reason="cancelled"), finished("baseline")), False, 1),
        ([1, 2], [1, 2, 3], (), True, None),
        ([1], [], (), None, None),
    ],
)
def test_identical_compares_the_lanes_and_a_cut_lane_only_as_far_as_it_got(ours, plain, ends, identical, index):
    steps = [chain_step(i, 0, 0, emitted=(token,), final=final(token)) for i, token in enumerate(ours)]
    summary = summarize(make_trace(started(), started("baseline"), *steps, *plain_steps(plain), *ends))
    assert summary.identical is identical
    assert (summary.first_difference.index if summary.first_difference else None) == index


def test_the_first_difference_tells_how_close_the_two_best_were():
    steps = [chain_step(i, 0, 0, sites=(site(top2_gap=5.0),)) for i in range(2)]
    plain = plain_steps([9, 4], sites=(site(top2_gap=0.125),))
    difference = summarize(make_trace(started(), *steps, *plain)).first_difference
    assert (difference.index, difference.top2_gap) == (1, 0.125)


@pytest.mark.parametrize("config", [{"temperature": 1.0}, {"temperature": 0.01}, {}])
def test_case_18_at_a_temperature_no_verdict_on_equal_ids_is_given(config):
    trace = make_trace(started(), chain_step(0, 0, 0), *plain_steps([4]), *LANES_ENDED, config=config)
    summary = summarize(trace)
    assert summary.identical is None
    assert summary.first_difference is None


def test_a_live_tally_says_after_each_event_what_a_recording_cut_there_says():
    trace = sampled_trace(5, width=2)
    tally = Tally(trace.config)
    for seen, event in enumerate(trace.events, 1):
        tally.add(event)
        cut = Trace(config=trace.config, events=trace.events[:seen])
        assert summarize(tally) == summarize(cut)


def test_rolling_acceptance_looks_back_over_its_window_and_the_cumulative_over_all():
    tally = Tally()
    for index in range(3 * ACCEPTANCE_WINDOW):
        tally.add(chain_step(index, 4, 4 if index < 2 * ACCEPTANCE_WINDOW else 0))
    rolling, cumulative = tally.rolling_acceptance, tally.cumulative_acceptance
    assert rolling.x == cumulative.x == list(range(1, 3 * ACCEPTANCE_WINDOW + 1))
    assert rolling.y[2 * ACCEPTANCE_WINDOW - 1] == cumulative.y[2 * ACCEPTANCE_WINDOW - 1] == 1.0
    assert rolling.y[2 * ACCEPTANCE_WINDOW] == pytest.approx(60 / 61)
    assert rolling.y[-1] == 0.0
    assert cumulative.y[-1] == pytest.approx(8 / 9)


def test_passes_without_a_draft_leave_the_rolling_acceptance_undefined():
    tally = Tally()
    tally.add(chain_step(0, 0, 0))
    tally.add(chain_step(1, 2, 2))
    assert tally.rolling_acceptance.y == [None, 1.0]
    assert tally.rolling_acceptance.since(1).y == [1.0]


def test_the_speedup_course_begins_with_both_lanes_and_ends_with_the_summarys_number():
    tally = Tally()
    for event in sampled_trace(1).events:
        tally.add(event)
    assert len(tally.speedup) == 79
    assert tally.speedup.x == sorted(tally.speedup.x)
    assert tally.speedup.y[-1] == summarize(tally).speedup


def test_the_speedup_course_goes_on_over_lane_time_when_one_lane_is_done():
    tally = Tally()
    for event in (chain_step(0, 4, 4), *plain_steps([1, 2, 3])):
        tally.add(event)
    assert tally.speedup.x == pytest.approx([0.1, 0.2, 0.3])
    assert tally.speedup.y == pytest.approx([5.0, 5.0, 5.0])


def test_token_courses_run_from_0_over_each_lanes_own_clock():
    tally = Tally()
    for event in (chain_step(0, 4, 2), chain_step(1, 4, 0), *plain_steps([1])):
        tally.add(event)
    assert (tally.speculative.tokens.x, tally.speculative.tokens.y) == ([0, 0.1, 0.2], [0, 3, 4])
    assert (tally.baseline.tokens.x, tally.baseline.tokens.y) == ([0, 0.1], [0, 1])


def test_histograms_count_passes_and_the_time_split_leaves_nothing_out():
    tally = Tally()
    for index, (drafted, accepted) in enumerate([(4, 2), (4, 2), (4, 0), (3, 3)]):
        tally.add(chain_step(index, drafted, accepted))
    assert tally.accepted_lengths == {2: 2, 0: 1, 3: 1}
    assert tally.draft_lengths == {4: 3, 3: 1}
    split = tally.speculative.time_split
    assert (split.draft_s, split.verify_s, split.rest_s) == pytest.approx((0.08, 0.28, 0.04))
    assert split.draft_s + split.verify_s + split.rest_s == pytest.approx(summarize(tally).total_s)


def test_acceptance_by_position_is_told_of_passes_and_of_tested():
    counts = sum((count_step(chain_step(i, 3, n)) for i, n in enumerate([3, 1, 0, 0])), Counts())
    assert counts.acceptance_of_passes == (0.5, 0.25, 0.25)
    assert counts.acceptance_of_tested == (0.5, 0.5, 1.0)


@pytest.mark.parametrize("width", [1, 3])
def test_a_tally_knows_whether_only_chains_were_drafted(width):
    assert tally_trace(sampled_trace(5, depth=3, width=width)).only_chains == (width == 1)
