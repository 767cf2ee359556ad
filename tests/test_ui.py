"""The page without a browser: settings, links, files, who may name what, the public endpoint, other processes."""

import json
import os
import pickle
import re
import shlex
import subprocess
import sys
import threading
import time
import types
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import gradio as gr
import httpx
import pytest
from browser import serving
from fake_engine import FakeEngine, recorded
from packaging.requirements import Requirement
from packaging.version import Version
from space_stand_in import StandIn

from specviz.config import DTYPES, MAX_DRAFT_LEN, MAX_SEED, MIN_TEMPERATURE, RunConfig
from specviz.errors import ConfigError, ModelError
from specviz.models import catalog, hub
from specviz.models.catalog import BLANK, EMBEDDED
from specviz.run import prepare
from specviz.trace import Trace, event_from_json
from specviz.ui import controls, gpu, presets, recordings, serve
from specviz.ui.api import Api
from specviz.ui.journal import MAX_RUNS, MAX_STOPS, Journal
from specviz.ui.keep import MAX_CHARS, MAX_CHARS_OPEN, Keep
from specviz.ui.links import Links
from specviz.ui.offer import Offer, from_catalog
from specviz.ui.page import build_app
from specviz.ui.recordings import Recording
from specviz.ui.runs import Runs
from specviz.ui.serve import free_port
from specviz.ui.settings import DEFAULTS, ITSELF, MAX_LINK_CHARS, MOST_NEW_TOKENS, NAMES, to_config, to_query
from specviz.ui.worker import BUG

pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # gradio's and asyncio's own
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
ROOT = Path(__file__).parent.parent
OFFER = Offer(
    targets=(("big", "big"), ("bigger", "bigger")),
    drafts=(("small", "small"), ("lookup", "lookup"), ("itself", ITSELF)),
    target="big",
    draft="small",
)
TEACHING = replace(
    OFFER,
    targets=(*OFFER.targets, (EMBEDDED, EMBEDDED)),
    drafts=(*OFFER.drafts, ("tiny", "tiny"), (BLANK, BLANK)),
)
CASES = ["All accepted", "Some accepted", "None accepted"]


def deltas(runs, **values):
    record = runs.journal.open()
    return record, list(runs.deltas(record, {**DEFAULTS, "prompt": "x", "max_new_tokens": 12, **values}))


# -- settings and links ------------------------------------------------------------------------


def test_the_controls_are_one_for_each_setting_and_open_on_the_first_preset():
    with gr.Blocks(analytics_enabled=False):
        built = controls.build(OFFER)
    assert set(built.by_name) == set(NAMES)
    assert {name: c.value for name, c in built.by_name.items() if name not in ("seed",)} == {
        name: value for name, value in controls.opening(OFFER).items() if name != "seed"
    }


def test_presets_are_settings_and_those_without_their_draft_are_left_out():
    for offer, cases in ((TEACHING, CASES), (replace(TEACHING, drafts=[(BLANK, BLANK)]), CASES[2:]), (OFFER, [])):
        found = presets.presets(offer)
        assert len([item for item in found if not item.get("case")]) >= 7
        assert [item["name"] for item in found if item.get("case")] == cases
        for item in found:
            assert set(item["settings"]) <= set(NAMES)
            to_config({**DEFAULTS, **item["settings"]})


def test_the_target_drafts_for_itself_whichever_target_is_chosen():
    itself = next(item for item in presets.presets(TEACHING) if item["name"] == "All accepted")
    values = {**DEFAULTS, **itself["settings"], "target": "big"}
    assert to_config(values).drafts == ("big",)
    assert to_config({**values, "target_name": "org/model"}).drafts == ("org/model",)
    assert ITSELF not in OFFER.names


def test_a_preset_sets_back_what_an_earlier_one_changed_but_not_the_models():
    values = presets.preset_values({"prompt": "x", "temperature": 0})
    assert values["top_k"] == 0
    assert values["seed"] == ""
    assert not {"target", "draft", "draft_len"} & set(values)
    assert not {"more_drafts", "tree", "rule"} & set(values)
    named = presets.preset_values({"draft": "lookup"})
    assert [named[name] for name in ("draft_name", "more_drafts", "tree", "rule")] == ["", [], "", "standard"]


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"top_k": None}, "top-k"),
        ({"seed": "seven"}, "seed"),
        ({"seed": -1}, "seed"),
        ({"temperature": "NaN"}, "temperature"),
        ({"min_new_tokens": 50, "max_new_tokens": 10}, "minimum"),
        ({"draft_len": 33}, "draft length"),
        ({"top_p": 0}, "top-p"),
        ({"dtype": "int3"}, "dtype"),
        ({"tree": "0"}, "tree is '0'"),
        ({"tree": "3,,1"}, "3,2,1,1"),
        ({"tree": "auto:65"}, "at most 64"),
        ({"tree": "4,4", "draft": "a", "more_drafts": ["b", "c", "d"]}, "from each of 4 drafts"),
        ({"draft": "a", "more_drafts": ["b", "c", "d", "e"]}, "5 drafts were given; at most 4"),
        ({"draft": "a", "more_drafts": ["b", "a"]}, "'a' is given twice"),
        ({"target": "a", "draft": "a", "more_drafts": [ITSELF]}, "'a' is given twice"),
        ({"rule": "lucky"}, "standard, naive"),
        ({"prompt": "x" * 300_000}, "prompt"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_in_one_sentence(values, word):
    with pytest.raises(ConfigError, match=word) as caught:
        to_config({**DEFAULTS, **values})
    assert "\n" not in str(caught.value)
    assert not str(caught.value)[0].islower()


def test_controls_become_a_config():
    values = {
        **DEFAULTS, "prompt": "p", "target": "big", "draft_name": " org/model ", "auto": True,
        "seed": str(MAX_SEED), "stop": "one\ntwo\n", "dtype": "float32", "numerics": "fast", "baseline": False,
        "more_drafts": ["lookup", ITSELF], "tree": " 3,2 ", "rule": "naive",
    }  # fmt: skip
    config = to_config(values)
    assert config.drafts == ("org/model", "lookup", "big")
    assert (config.tree, config.rule) == ("3,2", "naive")
    assert to_config({**DEFAULTS, "more_drafts": None, "tree": None, "rule": None}) == to_config(DEFAULTS)
    assert (config.draft_len, config.seed, config.stop) == ("auto", MAX_SEED, ("one", "two"))
    assert (config.dtype, config.numerics, config.baseline) == ("float32", "fast", False)


EVERYTHING = {
    "prompt": "Ein Satz & noch <einer>? 100 %\n中文", "target": "bigger", "draft": "lookup", "target_name": "",
    "draft_name": "", "draft_len": 7, "auto": False, "temperature": 0.65, "max_new_tokens": 40,
    "seed": "2147483647",
    "top_k": 50, "top_p": 0.9, "repetition_penalty": 1.1, "min_new_tokens": 3, "stop": "a\nb", "ignore_eos": True,
    "raw": True, "baseline": False, "dtype": "float32", "numerics": "fast", "min_match": 3, "copy_len": 9,
    "copy_references": True, "copy_prompt": False, "copy_output": True,
    "more_drafts": ["small", "lookup"], "tree": "3,2,1", "rule": "naive",
}  # fmt: skip


def test_a_link_restores_every_setting():
    from urllib.parse import parse_qsl

    assert set(EVERYTHING) == set(NAMES)
    links = Links(OFFER)
    query = dict(parse_qsl(links.make(*(EVERYTHING[name] for name in NAMES))[0]))
    assert links.values(query) == EVERYTHING
    plain = {**DEFAULTS, "prompt": "hello", "target": "big", "draft": "small"}
    query = dict(parse_qsl(links.make(*(plain[name] for name in NAMES))[0]))
    assert links.values(query) == plain


@pytest.mark.parametrize(
    "edge",
    [
        {"repetition_penalty": 3.0},
        {"repetition_penalty": 0.1},
        {"top_p": 0.005},
        {"top_p": 1e-9},
        {"temperature": MIN_TEMPERATURE},
        {"top_k": 1_000_000},
        {"seed": "0"},
        {"stop": "\n".join("s" * 60 for _ in range(16))},
        {"prompt": "長" * 800},
    ],
)
def test_a_link_restores_what_is_legal_to_the_edge(edge):
    from urllib.parse import parse_qsl

    values = {**DEFAULTS, "target": "big", "draft": "small", **edge}
    link, is_cut = Links(OFFER).make(*(values[name] for name in NAMES))
    assert not is_cut
    assert Links(OFFER).values(dict(parse_qsl(link))) == values
    to_config(values)


@pytest.mark.parametrize("text", ["x", "長", "a 長&"])
def test_a_link_too_long_is_cut_in_its_texts_alone_and_says_so(text):
    from urllib.parse import parse_qsl

    values = {
        **DEFAULTS,
        "target": "big",
        "draft": "small",
        "prompt": text * 9000,
        "stop": text * 9000,
        "seed": "5",
    }
    link, is_cut = Links(OFFER).make(*(values[name] for name in NAMES))
    assert is_cut
    assert MAX_LINK_CHARS - 30 < len(link) <= MAX_LINK_CHARS
    found = Links(OFFER).values(dict(parse_qsl(link)))
    assert values["stop"].startswith(found["stop"])
    assert found["seed"] == "5"


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"temperature": "99"}, {"temperature": 2.0}),
        ({"temperature": "nan"}, {"temperature": 0.0}),
        ({"temperature": "inf"}, {"temperature": 2.0}),
        ({"temperature": "0.0005"}, {"temperature": MIN_TEMPERATURE}),
        ({"top_p": "0"}, {"top_p": 1.0}),
        ({"repetition_penalty": "99"}, {"repetition_penalty": 10.0}),
        ({"max_new_tokens": "1e30"}, {"max_new_tokens": MOST_NEW_TOKENS}),
        ({"max_new_tokens": "-4"}, {"max_new_tokens": 1}),
        ({"min_new_tokens": "900", "max_new_tokens": "10"}, {"min_new_tokens": 10}),
        ({"draft_len": "x"}, {"draft_len": 4}),
        ({"seed": "1" * 39}, {"seed": str(MAX_SEED)}),
        ({"seed": "<b>"}, {"seed": None}),
        ({"target": "org/evil"}, {"target": "big"}),
        ({"target_name": "org/evil"}, {"target_name": ""}),
        ({"draft": "../../etc"}, {"draft": "small"}),
        ({"dtype": "object"}, {"dtype": "auto"}),
        ({"auto": "yes"}, {"auto": False}),
        ({"tree": "auto:999"}, {"tree": "auto:64"}),
        ({"tree": "3,,1"}, {"tree": ""}),
        ({"tree": "9,9,9"}, {"tree": ""}),
        ({"tree": "4,4,1", "more_drafts": "lookup"}, {"tree": "", "more_drafts": ["lookup"]}),
        ({"tree": "<b>"}, {"tree": ""}),
        ({"rule": "lucky"}, {"rule": "standard"}),
        ({"more_drafts": "org/evil,lookup,lookup,../x"}, {"more_drafts": ["lookup"]}),
        ({"prompt": "x" * 100_000}, {"prompt": "x" * MAX_LINK_CHARS}),
    ],
)
def test_what_a_link_says_is_clamped(query, expected):
    values = Links(OFFER).values(query)
    assert {name: values[name] for name in expected} == expected
    to_config(values)


def test_a_link_that_names_no_setting_changes_nothing():
    assert Links(OFFER).values({"__theme": "dark", "utm_source": "x"}) is None


def test_a_link_may_name_any_model_only_where_the_page_may():
    anyone = Offer(OFFER.targets, OFFER.drafts, "big", "small", any_name=True)
    assert Links(anyone).values({"draft_name": "org/model"})["draft_name"] == "org/model"
    assert to_query({**DEFAULTS, "draft_name": "org/model"}) == {"draft_name": "org/model"}


# -- runs --------------------------------------------------------------------------------------


def test_a_visitor_may_not_name_a_model_outside_the_offer():
    runs = Runs(FakeEngine().prepare, names=OFFER.names)
    for values in ({"target_name": "org/model"}, {"draft_name": "/etc"}, {"draft": "org/model"}):
        _, found = deltas(runs, **values)
        assert [delta["phase"] for delta in found] == ["error"]
        assert "is not offered here" in found[0]["note"]
    record = runs.journal.open()
    with pytest.raises(ModelError, match="not offered"):
        list(runs.batches({"prompt": "x", "target": "org/model"}, record))
    assert deltas(Runs(FakeEngine().prepare), target_name="org/model")[1][-1]["phase"] == "done"


def test_a_corpus_is_offered_by_its_name_and_its_place_stays_here():
    shown = from_catalog(corpora=["/srv/data/law.sv"])
    assert ("law.sv: a corpus to copy from", "law.sv") in shown.drafts
    assert "/srv" not in repr(shown.drafts) + repr(shown.names)
    engine = FakeEngine()
    runs = Runs(engine.prepare, names=shown.names, corpora=shown.corpora)
    assert deltas(runs, draft="law.sv")[1][-1]["phase"] == "done"
    assert engine.configs[-1].drafts == ("/srv/data/law.sv",)
    assert deltas(runs, draft="/srv/data/law.sv")[1][-1]["phase"] == "error"


def test_only_a_file_that_may_be_a_corpus_can_be_offered(tmp_path, capsys):
    (tmp_path / "law.sv").write_bytes(b"")
    assert serve._parse(["--corpus", str(tmp_path / "law.sv")]).corpus == [str(tmp_path / "law.sv")]
    for place in (tmp_path / "absent.sv", tmp_path):
        with pytest.raises(SystemExit):
            serve._parse(["--corpus", str(place)])
        assert "is no corpus" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("engine", "note"),
    [
        (FakeEngine(refuse="No such model; run: hf download x"), "No such model; run: hf download x"),
        (FakeEngine(fail_at=3), "The target returned NaN logits in step 4."),
    ],
)
def test_an_error_of_each_kind_ends_a_run_with_its_sentence(engine, note):
    record, found = deltas(Runs(engine.prepare))
    assert found[-1]["phase"] == "error"
    assert found[-1]["note"] == note
    assert bool(record.trace.events) == (engine.fail_at is not None)


def test_a_bug_keeps_its_traceback_in_the_log_and_shows_a_sentence(caplog):
    def broken(*_, **__):
        raise ZeroDivisionError("secret /path")

    _, found = deltas(Runs(broken))
    assert found[-1]["phase"] == "error"
    assert "secret" not in found[-1]["note"]
    assert "ZeroDivisionError" in caplog.text


def test_deltas_are_numbered_and_what_was_missed_can_be_asked_for():
    runs = Runs(FakeEngine().prepare)
    record = runs.journal.open("ab" * 16)
    found = [json.loads(record.add(delta)) for delta in runs.deltas(record, {**DEFAULTS, "max_new_tokens": 12})]
    assert [delta["seq"] for delta in found] == list(range(len(found)))
    assert runs.missing({"run": "ab" * 16, "from": 1, "to": 2}) == found[1:3]
    for nonsense in (None, 7, [], {}, {"run": 3}, {"run": "ab" * 16, "from": "0", "to": 1}):
        assert runs.missing(nonsense) == []
    assert runs.missing({"run": "cd" * 16, "from": 0, "to": 9}) is None  # nobody knows that run any more
    assert len(runs.missing({"run": "ab" * 16, "from": 0, "to": 10**12})) == len(found)


def test_the_journal_forgets_old_runs_but_none_that_goes_on(monkeypatch):
    monkeypatch.setattr("specviz.ui.journal.MAX_RUNS", 3)
    journal = Journal()
    going = journal.open()
    for _ in range(6):
        journal.open().close()
    assert journal.get(going.run) is going
    assert len(journal._records) <= 4


def test_a_run_id_is_taken_from_its_page_only_where_it_is_proper_and_new():
    journal = Journal()
    assert journal.open("ab" * 16).run == "ab" * 16
    for ticket in ("ab" * 16, "../../x", "", "AB" * 16):
        assert journal.open(ticket).run not in (ticket, "ab" * 16)


def test_case_51_a_run_stopped_while_it_waits_ends_as_it_begins():
    runs = Runs(FakeEngine().prepare)
    ticket = "cd" * 16
    assert runs.stop(ticket) is True
    record = runs.journal.open(ticket)
    assert [delta["phase"] for delta in runs.deltas(record, DEFAULTS)] == ["error"]


def test_stops_of_runs_that_never_come_are_bounded_and_leave_no_file():
    journal = Journal()
    for number in range(3 * MAX_STOPS):
        journal.stop(f"{number:032x}")
    assert len(journal._stops) == MAX_STOPS
    assert list(journal._folder.iterdir()) == []
    record = journal.open(f"{3 * MAX_STOPS - 1:032x}")
    assert record.stopped
    record.close()
    assert list(journal._folder.iterdir()) == []


def test_refused_files_and_calls_take_no_place_from_the_runs_of_others():
    runs = Runs(FakeEngine().prepare, names=OFFER.names)
    record, _ = deltas(runs)
    record.close()
    for _ in range(2 * MAX_RUNS):
        assert Keep(runs.journal).open_trace("no trace")["phase"] == "error"
        with pytest.raises(gr.Error):
            next(Api(runs).generate("x", target="org/evil"))
    assert list(Api(runs).generate("x", max_new_tokens=4))[-1]["summary"]["tokens"] == 4
    assert list(runs.journal._records) == [record.run]


def test_a_call_is_bounded_as_the_page_is_where_models_are():
    runs = Runs(FakeEngine().prepare, names=OFFER.names)
    with pytest.raises(gr.Error, match="at most 1,024"):
        next(Api(runs).generate("x", max_new_tokens=MOST_NEW_TOKENS + 1))
    own = Api(Runs(FakeEngine().prepare)).generate("x", max_new_tokens=MOST_NEW_TOKENS + 1)
    assert list(own)[-1]["summary"]["tokens"] == MOST_NEW_TOKENS + 1


def test_case_54_runs_at_the_same_time_equal_their_solo_runs():
    runs = Runs(FakeEngine().prepare)
    found = {}

    def visitor(seed):
        found[seed] = deltas(runs, prompt=f"prompt {seed}", seed=str(seed), temperature=1.0)[0].trace

    threads = [threading.Thread(target=visitor, args=(seed,)) for seed in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for seed, trace in found.items():
        solo = recorded(prompt=f"prompt {seed}", seed=seed, temperature=1.0, max_new_tokens=12)
        assert trace.events == solo.events


# -- traces in and out -------------------------------------------------------------------------


@pytest.fixture
def keep():
    return Keep(Journal(), [Recording("first", recorded(max_new_tokens=20), "a laptop")])


def test_a_recording_and_an_imported_trace_can_be_saved_again(keep):
    trace = recorded(max_new_tokens=16, temperature=1.0)
    delta = keep.open_trace(trace.to_json())
    assert delta["phase"] == "done"
    assert delta["start"]["source"] == "imported"
    assert "warning" not in delta
    assert Trace.from_json(keep.export({"run": delta["run"], "what": "trace"})["text"]) == trace
    assert keep.export({"run": delta["run"], "what": "steps"})["text"].startswith("lane,pass,")
    assert keep.opening()["run"] == "recorded-first"
    assert Trace.from_json(keep.export({"run": "recorded-first", "what": "trace"})["text"]).events


@pytest.mark.parametrize(
    "request_", [None, 1, "x", {}, {"run": "nobody", "what": "trace"}, {"run": {}, "what": []}]
)
def test_an_export_of_nothing_is_nothing(keep, request_):
    assert keep.export(request_) is None
    assert keep.export({"run": "recorded-first", "what": "/etc/passwd"}) is None


def test_a_trace_too_large_to_be_read_back_is_refused_with_a_sentence(keep, monkeypatch):
    monkeypatch.setattr("specviz.trace.MAX_TRACE_BYTES", 1000)
    answer = keep.export({"run": "recorded-first", "what": "trace"})
    assert list(answer) == ["error"]
    assert "so it is not written" in answer["error"]


def test_the_longest_run_that_the_page_allows_can_be_opened_again():
    longest = {"max_new_tokens": MOST_NEW_TOKENS, "draft_len": MAX_DRAFT_LEN, "temperature": 1.0}
    for verdicts in ("rejected", "accepted"):
        text = recorded(FakeEngine(verdicts=verdicts), **longest).to_json()
        assert 3 * len(text) < MAX_CHARS_OPEN  # a real one has more digits


def hostile_files():
    good = json.loads(recorded(max_new_tokens=8).to_json())
    yield from ("", "null", "[]", "{}", "{" * 100_000, "[" * 100_000, "\x00", "<script>alert(1)</script>", "1e999")
    yield json.dumps({**good, "version": 99})
    yield json.dumps({**good, "events": good["events"] * 2, "pieces": {}})
    yield json.dumps({**good, "config": []})
    yield json.dumps({**good, "pieces": {"x": ["zz", 1]}})
    for path, value in (
        ("nodes", [[1]]),
        ("emitted", ["x"]),
        ("draft_len", 10**400),
        ("draft_len", 10**6),
        ("total_s", 1e300),
        ("total_s", "NaN"),
        ("sites", None),
    ):
        events = json.loads(json.dumps(good["events"]))
        next(event for event in events if event["event"] == "step")[path] = value
        yield json.dumps({**good, "events": events})


def test_a_hostile_file_is_refused_with_one_sentence_and_no_bug(keep, caplog):
    for text in (*hostile_files(), None, 7, {"a": 1}, "x" * (MAX_CHARS + 1)):
        delta = keep.open_trace(text)
        assert delta["phase"] == "error", str(text)[:60]
        assert 10 < len(delta["note"]) < 400
        assert "\n" not in delta["note"]
        assert not delta["events"]
    assert caplog.text == ""


def test_one_file_is_read_at_a_time(keep, monkeypatch):
    inside = []

    def read(trace):
        inside.append(keep.open_trace(trace.to_json()))
        return []

    monkeypatch.setattr("specviz.ui.keep.audit", read)
    text = recorded(max_new_tokens=4).to_json()
    assert keep.open_trace(text)["phase"] == "done"
    assert [(delta["phase"], "try again" in delta["note"]) for delta in inside] == [("error", True)]
    assert keep.open_trace(text)["phase"] == "done"


def test_a_forged_trace_is_shown_with_a_warning(keep):
    data = json.loads(recorded(max_new_tokens=8).to_json())
    step = next(event for event in data["events"] if event["event"] == "step" and event["nodes"])
    step["sites"][0]["trials"][0]["accepted"] = not step["sites"][0]["trials"][0]["accepted"]
    delta = keep.open_trace(json.dumps(data))
    assert delta["phase"] == "done"
    assert delta["warning"].startswith("This trace does not check out:")


def test_recordings_are_read_in_the_order_of_their_files(tmp_path):
    assert recordings.load_all(tmp_path) == []
    for name in ("2-b", "1-a"):
        (tmp_path / f"{name}.json").write_text(recorded(max_new_tokens=4).to_json(), encoding="utf-8")
    assert [recording.name for recording in recordings.load_all(tmp_path)] == ["1-a", "2-b"]
    assert all(recording.trace.events for recording in recordings.load_all())


# -- the public endpoint -----------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")
def test_generate_is_an_endpoint_with_labels_and_a_clean_stream():
    from gradio_client import Client
    from gradio_client.exceptions import AppError

    with serving(FakeEngine(), offer=OFFER) as served:
        client = Client(served.url, verbose=False, analytics_enabled=False)
        endpoints = client.view_api(return_format="dict")["named_endpoints"]
        assert list(endpoints) == ["/generate"]
        parameters = endpoints["/generate"]["parameters"]
        assert [p["parameter_name"] for p in parameters][:3] == ["prompt", "target", "draft"]
        assert all(p["label"] for p in parameters)
        assert endpoints["/generate"]["returns"][0]["label"] == "Step events"
        job = client.submit("hello", max_new_tokens=24, seed=5, api_name="/generate")
        outputs = list(job)
        events = [event_from_json(event) for output in outputs for event in output.get("events", {}).values()]
        assert events == recorded(prompt="hello", seed=5, max_new_tokens=24, target="fake-target").events
        assert outputs[0]["config"]["seed"] == 5
        text = "".join(output.get("text", {}).get("speculative", "") for output in outputs)
        assert text.startswith("The lighthouse keeper")
        assert outputs[-1]["summary"]["tokens"] == 24
        job = client.submit(
            "hello", draft="small", more_drafts=["lookup"], tree="3,2", rule="naive", max_new_tokens=4,
            api_name="/generate",
        )  # fmt: skip
        asked = next(iter(job))["config"]
        assert (asked["drafts"], asked["tree"], asked["rule"]) == (["small", "lookup"], "3,2", "naive")
        for wrong in (
            {"temperature": -1}, {"target": "org/evil"}, {"draft_len": "long"}, {"stop": "x"}, {"tree": "0"},
            {"tree": "3,,1"}, {"tree": "8,8"}, {"rule": "lucky"}, {"more_drafts": ["org/evil"]},
            {"draft": "small", "more_drafts": ["lookup"] * 4},
        ):  # fmt: skip
            with pytest.raises(AppError, match=r"must|not offered|at most"):
                client.predict("hello", **wrong, api_name="/generate")


def answers(address, body):
    """(event, data) of a call over plain REST: a POST that begins it, a GET that streams it."""
    begun = httpx.post(address, json=body, timeout=60)
    begun.raise_for_status()
    found = []
    with httpx.stream("GET", f"{address}/{begun.json()['event_id']}", timeout=60) as stream:
        for line in stream.iter_lines():
            name, _, value = line.partition(": ")
            if name == "event":
                found.append([value, None])
            elif name == "data":
                found[-1][1] = json.loads(value)
    return [(event, data) for event, data in found if event != "heartbeat"]


@pytest.mark.filterwarnings("ignore")
def test_generate_can_be_called_over_plain_rest():
    positional = {
        "data": ["hello", "", "", 4, 0.0, 0, 1.0, 1.0, None, 0, 24, False, 5, False, True, None, "", "standard"]
    }
    with serving(FakeEngine(), offer=OFFER) as served:
        calls = f"{served.url}gradio_api/call/"
        for path, body in (
            ("v2/generate", {"prompt": "hello", "max_new_tokens": 24, "seed": 5}),
            ("generate", positional),
        ):
            found = answers(calls + path, body)
            assert [event for event, _ in found] == ["generating"] * (len(found) - 1) + ["complete"]
            outputs = [data[0] for _, data in found]
            events = [event_from_json(event) for output in outputs for event in output.get("events", {}).values()]
            assert events == recorded(prompt="hello", seed=5, max_new_tokens=24, target="fake-target").events
            assert outputs[-1]["summary"]["tokens"] == 24
        (event, data), *more = answers(calls + "v2/generate", {"prompt": "hello", "temperature": -1})
        assert (event, more) == ("error", [])
        assert "The temperature is -1, but must be" in data["error"]


@pytest.mark.filterwarnings("ignore")
def test_case_53_a_client_that_cancels_or_goes_away_frees_the_engine():
    from gradio_client import Client

    engine = FakeEngine(endless=True, base_s=0.05, spec_s=0.05)
    with serving(engine) as served:
        client = Client(served.url, verbose=False, analytics_enabled=False)
        job = client.submit("hello", api_name="/generate")
        while engine.passes < 5:
            time.sleep(0.05)
        job.cancel()
        stands_still(engine)
        engine.endless, engine.base_s, engine.spec_s = False, 0.0, 0.0
        assert client.predict("again", max_new_tokens=4, api_name="/generate")["summary"]["tokens"] == 4


@pytest.mark.filterwarnings("ignore")
def test_case_53_a_dropped_connection_frees_the_engine():
    engine = FakeEngine(endless=True, base_s=0.05, spec_s=0.05)
    with serving(engine) as served:
        address = f"{served.url}gradio_api/call/v2/generate"
        begun = httpx.post(address, json={"prompt": "hello"}, timeout=60).json()["event_id"]
        with httpx.stream("GET", f"{served.url}gradio_api/call/generate/{begun}", timeout=60) as stream:
            for _ in stream.iter_lines():
                if engine.passes >= 5:
                    break
        at = engine.passes
        stands_still(engine)
        assert engine.passes <= at + 5 / engine.base_s, "five seconds of passes"


def stands_still(engine, patience=50):
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        passes = engine.passes
        time.sleep(0.5)
        if engine.passes == passes:
            return
    raise AssertionError("the engine goes on")


# -- other processes ---------------------------------------------------------------------------


def test_case_55_whatever_crosses_to_another_process_can_be_pickled():
    settings = RunConfig(prompt="x", max_new_tokens=8, drafts=("fake-draft",)).to_json()
    from specviz.ui.worker import decode

    for value in (settings, *decode(FakeEngine().prepare, settings, "/nowhere/flag")):
        assert pickle.loads(pickle.dumps(value)) == value
    app = build_app(FakeEngine().prepare)
    states = [block for block in app.blocks.values() if isinstance(block, gr.State)]
    assert states == []  # nothing of a run is held in session state


@pytest.fixture(params=["fork", "spawn"])
def spaces(monkeypatch, request):
    monkeypatch.setenv("SPACES_ZERO_GPU", "true")
    stand_in = StandIn(request.param)
    monkeypatch.setitem(sys.modules, "spaces", stand_in)
    return stand_in


def test_case_55_the_real_worker_is_looked_up_by_name_on_the_far_side(monkeypatch):
    seen = []
    monkeypatch.setenv("SPACES_ZERO_GPU", "true")
    lender = types.SimpleNamespace(GPU=lambda **_: seen.append)
    monkeypatch.setitem(sys.modules, "spaces", lender)
    Runs(prepare, gpu=gpu.decorator())
    (worker,) = seen
    assert len(pickle.dumps(worker)) < 500
    assert pickle.loads(pickle.dumps(worker)).args == (prepare,)


def test_case_55_on_a_space_the_run_goes_through_another_process(spaces):
    engine = FakeEngine()
    record, found = deltas(Runs(engine.prepare, gpu=gpu.decorator()), seed="3")
    assert found[-1]["phase"] == "done"
    assert record.trace.events == recorded(prompt="x", seed=3, max_new_tokens=12).events
    assert engine.passes == 0  # they were made over there
    assert gpu.LEAST_S <= spaces.durations[0] <= gpu.MOST_S


def test_on_a_space_stop_and_errors_cross_the_fork(spaces):
    runs = Runs(FakeEngine(endless=True, base_s=0.02, spec_s=0.02).prepare, gpu=gpu.decorator())
    record = runs.journal.open()
    phases = []
    for delta in runs.deltas(record, DEFAULTS):
        phases.append(delta["phase"])
        if len(record.trace.events) > 6:
            record.stop()
    assert phases[-1] == "done"
    assert record.trace.finished("speculative").reason == "cancelled"
    assert not spaces.processes[0].is_alive()
    refusing = Runs(FakeEngine(refuse="No GPU left today.").prepare, gpu=gpu.decorator())
    assert deltas(refusing)[1][-1]["note"] == "No GPU left today."
    spaces.refusal = gr.Error("You have used up your GPU time for today.")
    found = deltas(runs)[1][-1]
    assert (found["phase"], found["note"]) == ("error", "You have used up your GPU time for today.")


def test_on_a_space_an_error_of_any_other_kind_ends_the_run_too(spaces, caplog):
    runs = Runs(FakeEngine().prepare, gpu=gpu.decorator())
    spaces.refusal = RuntimeError("secret address")
    found = deltas(runs)[1][-1]
    assert (found["phase"], found["note"]) == ("error", BUG)
    assert list(runs.batches({"prompt": "x"}, runs.journal.open())) == [{"error": BUG}]
    assert "secret address" in caplog.text


def test_on_a_space_a_page_that_closes_ends_the_worker(spaces):
    runs = Runs(FakeEngine(endless=True, base_s=0.02, spec_s=0.02).prepare, gpu=gpu.decorator())
    record = runs.journal.open(session="s")
    stream = runs.deltas(record, DEFAULTS)
    for _ in range(5):
        next(stream)
    runs.journal.stop_session("s")
    stream.close()
    assert not spaces.processes[0].is_alive()


def test_without_the_package_nothing_is_wrapped(monkeypatch):
    monkeypatch.setenv("SPACES_ZERO_GPU", "true")
    monkeypatch.setitem(sys.modules, "spaces", None)
    assert gpu.decorator() is None


def test_on_a_space_with_a_machine_of_its_own_the_worker_runs_here(spaces, monkeypatch):
    monkeypatch.delenv("SPACES_ZERO_GPU")
    assert gpu.decorator() is None
    assert not spaces.durations


class Loaded(list):
    missing = None


@pytest.fixture
def loaded(monkeypatch):
    """(name, number format) of what is loaded, and the targets that an untrained draft is made for."""
    seen = Loaded()

    def load(name, *, device, dtype):
        if name == seen.missing:
            raise ModelError("It is not here.")
        assert device == "cuda"
        seen.append((name, dtype))
        return name, dtype

    monkeypatch.setattr("specviz.models.load", load)
    monkeypatch.setattr("specviz.models.load_blank", lambda target: seen.append((BLANK, *target)))
    return seen


def test_where_the_gpu_is_lent_only_what_was_loaded_at_start_is_offered(loaded):
    left = gpu.load_at_start(OFFER)
    assert loaded == [("big", "auto"), (BLANK, "big", "auto"), ("small", "auto")]
    assert [name for _, name in left.targets] == ["big"]
    assert [name for _, name in left.drafts] == ["small", "lookup", ITSELF]
    del loaded[:]
    counted = Offer((("big", "big"),), (("mix", "mix"), ("tiny", "tiny")), "big", "mix")
    assert [name for _, name in gpu.load_at_start(counted).drafts] == ["mix"]
    assert [name for name, *_ in loaded] == ["big", BLANK]


def test_where_the_gpu_is_lent_the_three_textbook_cases_are_there_with_their_models_loaded(loaded):
    left = gpu.load_at_start(replace(TEACHING, on_gpu=True))
    cases = [item for item in presets.presets(left) if item.get("case")]
    assert [item["name"] for item in cases] == CASES
    assert {"big", EMBEDDED} == {name for _, name in left.targets}
    for item in cases:
        settings = item["settings"]
        target, draft = ((settings[kind], settings["dtype"]) for kind in ("target", "draft"))
        wanted = {ITSELF: target, BLANK: (BLANK, *target)}.get(settings["draft"], draft)
        assert {target, wanted} <= set(loaded)


def test_where_the_gpu_is_lent_cases_whose_models_cannot_be_had_are_left_out_and_the_page_starts(loaded):
    loaded.missing = EMBEDDED
    left = gpu.load_at_start(replace(TEACHING, on_gpu=True))
    assert [name for _, name in left.targets] == ["big"]
    assert not [item for item in presets.presets(left) if item.get("case")]
    loaded.missing = "big"
    with pytest.raises(ModelError):
        gpu.load_at_start(TEACHING)


def test_the_catalog_offers_all_three_textbook_cases_with_a_gpu_and_without_the_wheel(monkeypatch):
    monkeypatch.setattr(catalog, "EMBEDDED_WHEEL", "no_such_wheel")
    monkeypatch.setattr(hub, "cached", lambda _: None)
    monkeypatch.setattr(hub, "require", lambda _: None)
    for there in (False, True):
        monkeypatch.setattr("torch.cuda.is_available", lambda there=there: there)
        shown = from_catalog(hub=True)
        assert shown.target == (catalog.LARGE if there else EMBEDDED)
        assert [item["name"] for item in presets.presets(shown) if item.get("case")] == CASES


def test_where_every_guess_has_to_be_right_a_gpu_takes_the_format_with_the_fewest_ties():
    for on_gpu in (False, True):
        found = presets.presets(replace(TEACHING, on_gpu=on_gpu))
        dtypes = {item["name"]: item["settings"].get("dtype") for item in found}
        assert {dtypes.pop(name) for name in CASES} == {"float32" if on_gpu else None}
        assert set(dtypes.values()) == {None}


@pytest.mark.parametrize(("tokens", "baseline"), [(1, True), (128, True), (8192, False)])
def test_the_gpu_is_asked_for_as_long_as_the_run_may_take(tokens, baseline):
    asked = gpu.seconds(RunConfig(max_new_tokens=tokens, baseline=baseline).to_json(), "")
    assert gpu.LEAST_S <= asked <= gpu.MOST_S


# -- starting, and the Space's front matter ----------------------------------------------------


def test_a_taken_port_moves_to_the_next_free_one():
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert port < free_port("127.0.0.1", port) < port + 50


def test_case_60_the_space_builds_with_what_is_pinned():
    front = re.match(r"---\n(.*?)\n---\n", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL).group(1)
    values = dict(re.findall(r"^(\w+): *(.+)$", front, re.MULTILINE))
    pin = re.search(
        r"^gradio==(\S+)$", (ROOT / "requirements.txt").read_text(encoding="utf-8"), re.MULTILINE
    ).group(1)
    assert re.fullmatch(r"\d+\.\d+\.\d+", pin)
    assert values["sdk_version"] == pin == gr.__version__
    assert (ROOT / values["app_file"]).is_file()
    assert values["sdk"] == "gradio"
    assert Version(values["python_version"].strip('"')) >= Version("3.11")
    assert len(values["short_description"]) <= 60


def test_case_60_the_commands_that_put_it_on_a_space_are_ones_that_the_hubs_program_takes():
    lines = re.findall(r"^hf (.+)$", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert [line.partition(" ")[0] for line in lines] == ["repos", "upload"]
    program = [str(Path(sys.executable).parent / "hf")]
    offline = {**os.environ, "HF_HUB_OFFLINE": "1"}
    for line in lines:
        words = [*shlex.split(line), "--help"]  # wrong commands and options are refused before help is given
        asked = subprocess.run([*program, *words], env=offline, timeout=60, capture_output=True, text=True)
        assert asked.returncode == 0, asked.stderr
        assert re.search(r"--(repo-)?type space( |$)", line)
    assert re.search(r'upload \S+ \. --\S+ space( --exclude "[^"]*")*$', lines[1]), (
        "one pattern for each --exclude"
    )


def test_case_60_what_is_installed_meets_the_requirements_and_a_spaces_torch_would_too():
    lines = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    wanted = [Requirement(line) for line in lines if line and not line.startswith("#")]
    assert {"gradio", "torch", "transformers"} <= {requirement.name for requirement in wanted}
    for requirement in wanted:
        assert requirement.specifier.contains(Version(version(requirement.name)).public), requirement
    torch_range = next(requirement.specifier for requirement in wanted if requirement.name == "torch")
    assert all(torch_range.contains(offered) for offered in ("2.8.0", "2.11.0"))


@pytest.mark.parametrize("space", [False, True])
def test_case_60_the_app_is_imported_with_no_gpu_and_no_helper_package(space):
    code = "import sys; sys.modules['spaces'] = None; import app; assert callable(app.main)"
    more = {"SPACE_ID": "someone/specviz"} if space else {}
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", **more}
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, env=environment, timeout=300)


def test_every_handler_gives_what_its_outputs_want():
    app = build_app(FakeEngine().prepare, offer=OFFER)
    for fn in app.fns.values():
        if fn.api_name == "restore":
            request = types.SimpleNamespace(query_params={"temperature": "1"})
            assert len(Links(OFFER).restore(request)) == len(fn.outputs)
            assert len(Links(OFFER).restore(types.SimpleNamespace(query_params={}))) == len(fn.outputs)
        if fn.api_name == "make":
            assert len(fn.inputs) == len(NAMES)
        if fn.api_name == "run":
            assert len(fn.inputs) == len(NAMES) + 1


def test_dtypes_and_numerics_of_the_config_are_offered():
    with gr.Blocks(analytics_enabled=False):
        built = controls.build(OFFER)
    assert [value for _, value in built.by_name["dtype"].choices] == list(DTYPES)
    assert built.by_name["target_name"].visible is False
