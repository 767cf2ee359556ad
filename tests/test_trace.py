"""The trace's one JSON form: what goes in comes out, and what is damaged or foreign is refused in a sentence."""

import dataclasses
import json
import random

import pytest
from trace_makers import chain_step, finished, make_trace, node, sampled_trace, site, started, step, trial

from specviz import trace as trace_module
from specviz.errors import SpecvizError, TraceError
from specviz.metrics import Tally, audit, summarize
from specviz.trace import MAX_NODES, ROOT, Piece, Trace, event_from_json, event_to_json

EVENTS = (started(), chain_step(0, 4, 2), started("baseline"), step(lane="baseline"), finished(num_tokens=3))


def small_trace():
    trace = make_trace(*EVENTS)
    trace.versions = {"specviz": "0.1.0", "torch": "2.13"}
    trace.pieces[9] = Piece(b"\xf0\x9f", special=True)
    return trace


def document():
    return json.loads(small_trace().to_json())


def refusal(data):
    with pytest.raises(TraceError) as refused:
        Trace.from_json(data if isinstance(data, str | bytes) else json.dumps(data))
    sentence = str(refused.value)
    assert sentence.endswith(".")
    assert "\n" not in sentence
    return sentence


@pytest.mark.parametrize(
    "trace", [Trace(), small_trace(), sampled_trace(1, width=3)], ids=["empty", "small", "trees"]
)
def test_a_trace_survives_its_file(trace):
    text = trace.to_json()
    assert Trace.from_json(text) == trace
    assert Trace.from_json(text.encode()) == trace
    assert Trace.from_json(text).to_json() == text


@pytest.mark.parametrize("event", EVENTS)
def test_an_event_survives_its_json_form(event):
    assert event_from_json(json.loads(json.dumps(event_to_json(event)))) == event


def test_a_step_counts_its_nodes_by_verdict():
    made = chain_step(0, 4, 2)
    assert (made.num_drafted, made.num_tested, made.num_accepted) == (4, 3, 2)


def test_a_trace_tells_lanes_apart():
    trace = small_trace()
    assert trace.token_ids("speculative") == [0, 1, 9]
    assert trace.token_ids("baseline") == [9]
    assert trace.started("baseline") is trace.events[2]
    assert trace.finished("baseline") is None
    assert trace.ids_used() >= {5, 6, 7, 0, 1, 2, 3, 9}


def test_numbers_that_json_has_not_are_never_written():
    trace = make_trace(started(prefill_s=float("nan")))
    with pytest.raises(ValueError):
        trace.to_json()


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "not JSON"),
        (b"\xff\xfe\x00", "not JSON"),
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ('{"a": NaN}', "not JSON"),
        ("null", "not a specviz trace"),
        ("[]", "not a specviz trace"),
        ('{"format": "har"}', "not a specviz trace"),
        ('{"format": "specviz-trace"}', "version None"),
        ('{"format": "specviz-trace", "version": 99}', "version 99"),
        ('{"format": "specviz-trace", "version": 1}', "damaged"),
        (
            '{"format": "specviz-trace", "version": 1, "config": [], "versions": {}, "pieces": {}, "events": []}',
            "damaged",
        ),
        (b"PK\x03\x04", "not JSON"),
    ],
)
def test_foreign_files_are_refused_in_one_sentence(text, part):
    assert part in refusal(text)


def test_a_file_beyond_the_limit_is_refused_unread(monkeypatch):
    monkeypatch.setattr(trace_module, "MAX_TRACE_BYTES", 100)
    assert "larger than" in refusal("x" * 101)


def test_what_could_not_be_read_back_is_not_written(monkeypatch):
    trace = sampled_trace(0)
    text = trace.to_json()
    assert text.isascii(), "so that its characters are the bytes of a file"
    monkeypatch.setattr(trace_module, "MAX_TRACE_BYTES", len(text))
    assert Trace.from_json(trace.to_json()) == trace
    monkeypatch.setattr(trace_module, "MAX_TRACE_BYTES", len(text) - 1)
    assert "larger than" in refusal(text)
    with pytest.raises(TraceError, match=r"can be read back, so it is not written; .*\.$"):
        trace.to_json()


DAMAGED_EVENTS = {
    "no kind": lambda e: e[1].pop("event"),
    "unknown kind": lambda e: e[1].update(event="jump"),
    "kind that is a list": lambda e: e[1].update(event=[]),
    "event that is a list": lambda e: e.insert(0, []),
    "missing field": lambda e: e[1].pop("draft_s"),
    "unknown field": lambda e: e[1].update(extra=1),
    "text for a number": lambda e: e[1].update(total_s="fast"),
    "whole number too large for a float": lambda e: e[1].update(total_s=10**400),
    "float for a whole number": lambda e: e[1].update(index=0.5),
    "truth for a whole number": lambda e: e[1].update(index=True),
    "null for a text": lambda e: e[0].update(target=None),
    "unknown lane": lambda e: e[0].update(lane="third"),
    "unknown verdict": lambda e: e[1]["nodes"][0].update(verdict="maybe"),
    "parent after child": lambda e: e[1]["nodes"][0].update(parent=2),
    "parent below the root": lambda e: e[1]["nodes"][0].update(parent=-2),
    "node its own parent": lambda e: e[1]["nodes"][1].update(parent=1),
    "wrong depth": lambda e: e[1]["nodes"][1].update(depth=5),
    "site at no node": lambda e: e[1]["sites"][0].update(node=4),
    "trial of no node": lambda e: e[1]["sites"][0]["trials"][0].update(node=99),
    "proposer that is none": lambda e: e[1]["nodes"][0].update(proposers=[2]),
    "proposer below 0": lambda e: e[1]["sites"][0]["trials"][0].update(proposer=-1),
    "top that is no pair": lambda e: e[1]["sites"][0].update(p_top=[[1, 0.5, 2]]),
    "id without bytes": lambda e: e[1].update(emitted=[0, 1, 12345]),
}


@pytest.mark.parametrize("name", DAMAGED_EVENTS)
def test_a_damaged_event_is_refused_in_one_sentence(name):
    data = document()
    DAMAGED_EVENTS[name](data["events"])
    assert "damaged" in refusal(data)


@pytest.mark.parametrize(
    "pieces",
    [
        [],
        {"x": ["00", False]},
        {"1": ["0g", False]},
        {"1": ["00"]},
        {"1": ["00", 1]},
        {"1": [None, True]},
        {"1": 5},
    ],
)
def test_damaged_pieces_are_refused_in_one_sentence(pieces):
    assert "damaged" in refusal({**document(), "pieces": pieces})


def test_an_event_read_alone_is_refused_like_one_in_a_file():
    for data in ([], {}, {"event": []}, {"event": "step"}, {**event_to_json(EVENTS[0]), "prefill_s": 10**400}):
        with pytest.raises(TraceError):
            event_from_json(data)


def read(data):
    """(trace, "") or (None, the sentence of the refusal); anything else is a bug and comes through."""
    try:
        return Trace.from_json(data), ""
    except SpecvizError as error:
        return None, str(error)


STRANGE = (None, True, -1, 0, 10**30, 10**400, 1e300, -0.5, "", "ü\u202e<b>", [], [[]], {}, {"a": 1})


def mutate(data, rng):
    """Change one value somewhere: replaced, removed, doubled, or swapped for a neighbour's."""
    spot, key = data, None
    while True:
        keys = list(spot) if isinstance(spot, dict) else list(range(len(spot)))
        if not keys:
            return
        key = rng.choice(keys)
        if not isinstance(spot[key], dict | list) or rng.random() < 0.15:
            break
        spot = spot[key]
    kind = rng.randrange(4)
    if kind == 0:
        spot[key] = rng.choice(STRANGE)
    elif kind == 1:
        del spot[key]
    elif kind == 2 and isinstance(spot, list):
        spot.insert(rng.randrange(len(spot) + 1), spot[key])
    else:
        spot[key] = spot[rng.choice(keys)]


def test_whatever_is_changed_a_trace_is_refused_in_a_sentence_or_safe_to_read():
    rng = random.Random(0)
    text = make_trace(*EVENTS, chain_step(1, 3, 3, start=3)).to_json()
    num_refused = 0
    for _ in range(1500):
        data = json.loads(text)
        for _ in range(rng.choice((1, 1, 1, 5))):
            mutate(data, rng)
        trace, sentence = read(json.dumps(data))
        assert "\n" not in sentence
        assert len(sentence) < 500
        if trace is None:
            num_refused += 1
            continue
        json.dumps(summarize(trace).to_json(), allow_nan=False)
        assert all(isinstance(fault, str) for fault in audit(trace))
        assert Trace.from_json(trace.to_json()) == trace
    assert 500 < num_refused < 1500, "the changes were all harmless, or none was"


def test_whatever_bytes_are_cut_or_flipped_a_trace_is_refused_in_a_sentence_or_read():
    rng = random.Random(1)
    good = small_trace().to_json().encode()
    for _ in range(500):
        data = bytearray(good[: rng.randrange(len(good))] if rng.random() < 0.3 else good)
        for _ in range(rng.randrange(4)):
            if data:
                data[rng.randrange(len(data))] = rng.randrange(256)
        _, sentence = read(bytes(data))
        assert len(sentence) < 500


def test_a_hostile_but_well_formed_trace_breaks_no_number():
    still = {"total_s": 0.0, "clock_s": 0.0}
    absurd = chain_step(0, 2, 1, draft_s=-1e300, verify_s=1e300, start=10**18, **still)
    idle = step(1, sites=(site(ROOT, trial(ROOT)),), emitted=(), **still)
    trace = make_trace(started(prompt_ids=(), pass_times=((1, 0.0),)), absurd, idle)
    again = Trace.from_json(trace.to_json())
    assert summarize(again).tokens_per_s is None
    assert audit(again)
    Tally().add(dataclasses.replace(absurd, nodes=(node(1, ROOT, 1, "accepted", proposers=(77,)),)))


def test_a_step_of_more_parts_than_any_run_makes_is_refused_before_it_costs_time():
    many = step(0, nodes=(node(),), sites=(site(ROOT, *[trial()] * (MAX_NODES + 1)),))
    with pytest.raises(TraceError, match=r"step 0 has more than .* trials"):
        Trace.from_json(make_trace(started(), many).to_json())
