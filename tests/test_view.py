"""What the browser is given: deltas, tables, figures and sentences."""

import csv
import dataclasses
import io
import json
import math
from dataclasses import replace

import pytest
from fake_engine import FakeEngine, recorded
from trace_makers import chain_step, finished, make_trace, node, sampled_trace, site, started, trial

from specviz.config import MAX_DRAFT_LEN
from specviz.metrics import audit, summarize
from specviz.trace import ROOT, OwnDraw, Piece, RunFinished, RunStarted, Step, Trace
from specviz.view.export import COLUMNS, steps_csv
from specviz.view.figures import figures
from specviz.view.numbers import definitions
from specviz.view.payload import FIELDS, Feed, as_text
from specviz.view.pieces import describe
from specviz.view.replay import recorded_delta, start_of


def emitted_text(delta, lane):
    """The text of a lane as the page makes it from chips and pieces."""
    text = ""
    for event in delta["events"]:
        if event["kind"] == "step" and event["lane"] == lane:
            for chip in event["chips"]:
                if chip["kind"] not in ("rejected", "untested"):
                    piece = delta["pieces"][str(chip["id"])]
                    text += "" if piece.get("s") else chip.get("x", piece["t"])
    return text


def test_the_scripted_traces_check_out():
    assert [audit(recorded(temperature=t)) for t in (0.0, 1.0)] == [[], []]


def test_a_recording_is_the_same_as_the_live_run_in_any_batches():
    trace = recorded(max_new_tokens=40)
    whole = recorded_delta(trace, "r", "recorded")
    feed = Feed("r", trace.pieces.__getitem__, trace.config)
    parts = [feed.delta(trace.events[i : i + 3]) for i in range(0, len(trace.events), 3)]
    assert [event for part in parts for event in part["events"]] == whole["events"]
    assert {i: p for part in parts for i, p in part["pieces"].items()} == whole["pieces"]
    assert [part["seq"] for part in parts] == list(range(len(parts)))


def test_every_step_carries_the_running_numbers_of_the_summary():
    trace = recorded(max_new_tokens=40)
    delta = recorded_delta(trace, "r", "recorded")
    last = [event for event in delta["events"] if event["kind"] == "step" and event["lane"] == "speculative"][-1]
    row, summary = dict(zip(FIELDS, last["row"], strict=True)), summarize(trace)
    for field in ("tokens", "passes", "drafted", "tested", "accepted"):
        assert row[field] == getattr(summary, field)
    for field in ("acceptance_rate", "overlap", "draft_yield", "tokens_per_pass", "tokens_per_s"):
        assert math.isclose(row[field], getattr(summary, field), rel_tol=1e-4)
    assert delta["end"]["speedup"] == summary.speedup


def test_case_45_a_delta_holds_no_character_that_a_page_could_take_for_a_tag():
    hostile = "<script>alert(1)</script>"
    trace = recorded(FakeEngine(words=[hostile, " b"]), max_new_tokens=4, prompt=hostile)
    text = as_text(recorded_delta(trace, "r", "recorded"))
    assert "<" not in text
    assert hostile in json.loads(text)["start"]["config"]["prompt"]


def test_case_44_and_47_text_keeps_spaces_and_leaves_special_tokens_out():
    words = ["    ", "x", "\n\n", Piece(b"<|im_end|>", True), "y"]
    delta = recorded_delta(recorded(FakeEngine(words=words), max_new_tokens=10), "r", "recorded")
    for lane in ("speculative", "baseline"):
        assert emitted_text(delta, lane) == "    x\n\ny    x\n\ny"
    special = [piece for piece in delta["pieces"].values() if piece.get("s")]
    assert special == [{"t": "<|im_end|>", "s": 1}]


@pytest.mark.parametrize("gamma", [1, 3, 8])
def test_case_50_a_character_in_pieces_is_shown_once_also_around_rejected_tokens(gamma):
    flame = "🔥".encode()
    words = ["a", flame[:1], flame[1:3], flame[3:], "e", "\u0301", "ש", " b"]
    trace = recorded(FakeEngine(words=words, agree=0.5), max_new_tokens=16, draft_len=gamma)
    delta = recorded_delta(trace, "r", "recorded")
    for lane in ("speculative", "baseline"):
        assert emitted_text(delta, lane) == "a🔥e\u0301ש b" * 2
    assert "\ufffd" not in as_text(delta)


def test_bytes_that_are_no_character_are_labelled():
    assert describe(Piece(b"\xf0\x9f")) == {"t": "", "b": "F0 9F"}
    assert describe(Piece(b"ok")) == {"t": "ok"}


def step_events(trace):
    events = recorded_delta(trace, "r", "imported")["events"]
    return [event for event in events if event["kind"] == "step" and event["lane"] == "speculative"]


def test_a_trees_sites_list_their_trials_in_order_and_a_chains_do_not():
    assert not any("t" in site for event in step_events(recorded(temperature=1.0)) for site in event["sites"])
    trace = sampled_trace(1, width=3)
    trace.pieces = {i: Piece(b"?") for i in trace.ids_used()}
    num_trees = 0
    for event, made in zip(step_events(trace), trace.steps("speculative"), strict=True):
        is_tree = any(place.parent != index - 1 for index, place in enumerate(made.nodes))
        num_trees += is_tree
        for shown, own in zip(event["sites"], made.sites, strict=True):
            assert "t" in shown or not is_tree
            if "t" in shown:
                assert [(t[0], t[1]) for t in shown["t"]] == [(one.node, one.proposer) for one in own.trials]
    assert num_trees > 1


def test_under_the_naive_rule_the_chance_of_a_token_is_the_targets_own():
    kept = trial(0, False, p_target=0.3, cur=0.3, row=0.4, u=0.2)
    place = dataclasses.replace(site(ROOT, kept), drawn=OwnDraw(0, 0.2, 0.0, 0.5))
    for sites, chance in (((place,), 0.3), ((site(ROOT, kept),), 0.75)):
        made = chain_step(0, 1, 0, nodes=(node(7, verdict="rejected"),), sites=sites)
        trace = make_trace(started(), made, finished(num_tokens=1), config={"rule": "naive", "tree": "1"})
        trace.pieces = {i: Piece(b"?") for i in trace.ids_used()}
        assert step_events(trace)[0]["chips"][0]["a"] == pytest.approx(chance)
    assert recorded_delta(trace, "r", "imported")["start"]["config"]["rule"] == "naive"


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"temperature": "hot", "draft_len": [1], "max_new_tokens": {"a": 1}, "baseline": "yes", "prompt": 7},
        {"temperature": True, "draft_len": "auto", "max_new_tokens": 1e300},
    ],
)
def test_settings_of_a_strange_trace_are_numbers_or_nothing(config):
    shown = start_of(Trace(config=config), "imported")["config"]
    assert isinstance(shown["prompt"], str)
    assert shown["temperature"] is None
    assert shown["draft_len"] in (None, "auto")
    assert shown["max_new_tokens"] == 0
    assert shown["baseline"] is True


def test_the_table_has_one_row_for_each_pass_and_runs_no_formula():
    words = ["=1+1", " +", "@x", "-2", " ok"]
    trace = recorded(FakeEngine(words=words, agree=0.6), max_new_tokens=20)
    rows = list(csv.DictReader(io.StringIO(steps_csv(trace))))
    steps = [event for event in trace.events if isinstance(event, Step)]
    assert list(rows[0]) == list(COLUMNS)
    assert [int(row["emitted"]) for row in rows] == [len(step.emitted) for step in steps]
    assert sum(int(row["accepted"]) for row in rows) == summarize(trace).accepted
    assert not any(row["text"].startswith(("=", "+", "-", "@")) for row in rows)
    baseline = [row for row in rows if row["lane"] == "baseline"]
    assert {row["acceptance_rate"] for row in baseline} == {""}
    assert "".join(row["text"].removeprefix("'") for row in baseline) == "".join(words) * 4


def test_numbers_have_names_of_their_own_and_fields_that_exist():
    numbers = definitions()
    assert (
        len({number["label"] for number in numbers}) == len({number["key"] for number in numbers}) == len(numbers)
    )
    assert all("{" in number["values"] for number in numbers)
    derived = {"cost_ratio", "verify_ratio"}  # by the page, from the rows of both lanes
    known = {*derived, *FIELDS, *(f"plain_{field}" for field in FIELDS), "race_speedup", "prefill_s"}
    assert {number["field"] for number in numbers} <= known


def test_figures_are_empty_plotly_json_with_numeric_axes_from_zero():
    for figure in figures():
        assert json.loads(as_text(figure)) == figure
        for trace in figure["figure"]["data"]:
            assert trace["x"] == trace["y"] == []
            assert trace["meta"]["role"]
        assert figure["figure"]["layout"]["yaxis"].get("rangemode", "tozero") in ("tozero", "normal")


def test_case_64_a_slow_down_is_not_clipped():
    from specviz.metrics import Tally
    from specviz.view.verdict import ending

    tally = Tally({"temperature": 0})
    for event in recorded(FakeEngine(verdicts="rejected"), max_new_tokens=24).events:
        tally.add(event)
    assert ending(tally)["speedup"] < 1
    assert ending(tally)["verdict"]["kind"] == "identical"


def test_a_run_without_a_draft_is_not_compared_with_itself():
    verdict = recorded_delta(recorded(drafts=("none",), max_new_tokens=20), "r", "recorded")["end"]["verdict"]
    assert verdict["kind"] == "unknown"
    assert "no draft" in verdict["text"]


def test_who_opens_a_trace_is_not_told_to_have_stopped_it():
    trace = recorded(max_new_tokens=20)
    ends = [replace(e, reason="cancelled") if isinstance(e, RunFinished) else e for e in trace.events]
    notes = [recorded_delta(replace(trace, events=ends), "r", s)["note"] for s in ("live", "imported")]
    assert ["by you" in note for note in notes] == [True, False]


def test_a_trace_that_names_no_temperature_is_not_called_identical_or_wrong():
    trace = replace(recorded(max_new_tokens=20), config={})
    assert recorded_delta(trace, "r", "imported")["end"]["verdict"]["kind"] == "unknown"


@pytest.mark.parametrize("width", [1, 2])
def test_there_is_a_theory_just_where_a_speedup_is_predicted_and_a_sentence_for_trees(width):
    trace = sampled_trace(1, width=width)
    theory = recorded_delta(trace, "r", "imported")["theory"]
    assert ("now" in theory) == (summarize(trace).predicted_speedup is not None) == (width == 1)
    assert ("single chain" in theory.get("why_none", "")) == (width > 1)


def test_the_theory_goes_to_the_longest_draft_there_is():
    assert recorded_delta(recorded(), "r", "recorded")["theory"]["draft_len"][-1] == MAX_DRAFT_LEN


def differing(**of_target):
    """The verdict on a run whose lanes differ at the sixth token; `gap` and facts of the target as given."""
    gap = of_target.pop("gap")
    trace = recorded(FakeEngine(differ_at=5), max_new_tokens=20)
    for index, event in enumerate(trace.events):
        if isinstance(event, RunStarted):
            trace.events[index] = replace(event, **of_target)
        elif isinstance(event, Step):
            trace.events[index] = replace(event, sites=tuple(replace(s, top2_gap=gap) for s in event.sites))
    return recorded_delta(trace, "r", "recorded")["end"]["verdict"]


@pytest.mark.parametrize(
    ("dtype", "bit_exact", "gap", "kind"),
    [
        ("bfloat16", False, 0.0, "tie"),
        ("bfloat16", False, 0.25, "tie"),
        ("bfloat16", False, 3.0, "fault"),
        ("bfloat16", True, 0.0, "fault"),  # where bits are equal, ties are broken alike
        ("bfloat16", True, 3.0, "fault"),
        ("float32", False, 1e-5, "tie"),
        ("float32", False, 0.25, "fault"),
        ("int3", False, 0.25, "tie"),
    ],
)
def test_a_first_difference_is_a_tie_only_where_rounding_could_have_made_it(dtype, bit_exact, gap, kind):
    found = differing(dtype=dtype, bit_exact=bit_exact, gap=gap)
    assert found["kind"] == kind
    assert "token 6" in found["text"]
    assert f"{gap:.3g} apart" in found["text"]
    assert ("tie" in found["text"], "report" in found["text"]) == (kind == "tie", kind == "fault")


def test_above_temperature_0_no_verdict_calls_a_difference_wrong():
    delta = recorded_delta(recorded(FakeEngine(differ_at=5), max_new_tokens=20, temperature=1.0), "r", "recorded")
    assert delta["end"]["verdict"]["kind"] == "law"
    assert not {"wrong", "mismatch"} & set(delta["end"]["verdict"]["text"].lower().split())


def test_an_imported_trace_is_shown_from_its_file_alone():
    trace = recorded(max_new_tokens=20, temperature=1.0)
    again = Trace.from_json(trace.to_json())
    assert recorded_delta(again, "r", "imported") == recorded_delta(trace, "r", "imported")
