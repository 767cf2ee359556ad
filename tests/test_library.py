"""What visitors bring: each has a shelf of their own, with limits, and nothing outlives its owner."""

import base64
import json
import pickle
from types import SimpleNamespace

import pytest
from fake_engine import STORY, FakeEngine
from tokenizer_makers import byte_level

from specviz.config import MAX_REFERENCES
from specviz.drafts.retrieval.library import Shelf
from specviz.drafts.retrieval.reader import MAX_BYTES, Document
from specviz.drafts.retrieval.sets import ReferenceSet
from specviz.trace import RunStarted, Trace
from specviz.ui import library
from specviz.ui.keep import Keep
from specviz.ui.library import Libraries
from specviz.ui.runs import Runs
from specviz.ui.settings import DEFAULTS

ANN, BOB = "a" * 32, "b" * 32
SECRET = "The keeper counts the waves as others count sheep."


def visiting(*keys, forget=lambda _: None):
    libraries = Libraries(forget)
    for key in keys:
        libraries.enter(SimpleNamespace(session_hash=f"session {key[0]}"), key)
    return libraries


def add(libraries, key, name, data, **more):
    return libraries.library(
        {"visitor": key, "do": "add", "name": name, "data": base64.b64encode(data).decode(), **more}
    )


def names(answer):
    return [document["name"] for document in answer["documents"]]


def test_files_and_pasted_texts_go_on_the_shelf_in_their_order():
    libraries = visiting(ANN)
    add(libraries, ANN, "a.txt", b"one")
    libraries.library({"visitor": ANN, "do": "paste", "text": "two"})
    answer = libraries.library({"visitor": ANN, "do": "paste", "text": "three"})
    assert names(answer) == ["a.txt", "pasted text", "pasted text (2)"]
    assert [document["bytes"] for document in answer["documents"]] == [3, 3, 5]
    assert answer["complaint"] == ""
    assert [document.text for document in libraries.shelf("session a").documents] == ["one", "two", "three"]


def test_what_cannot_be_read_is_one_sentence_and_the_rest_stays():
    libraries = visiting(ANN)
    add(libraries, ANN, "a.txt", b"one")
    for name, data in (
        ("b.bin", b"\0\xff" * 9),
        ("c.txt", b""),
        ("d.pdf", b"%PDF-1.7 torn"),
        ("e.txt", b"caf\xe9"),
    ):
        answer = add(libraries, ANN, name, data)
        assert names(answer) == ["a.txt"]
        assert answer["complaint"].startswith(name)
        assert answer["complaint"].endswith(".")
    for text in ("", "  \n", "\ud800", 5, None):
        answer = libraries.library({"visitor": ANN, "do": "paste", "text": text})
        assert (names(answer), bool(answer["complaint"])) == (["a.txt"], True)


@pytest.mark.parametrize(
    "request_",
    [
        None,
        5,
        [],
        {},
        {"visitor": ANN.upper()},
        {"visitor": "c" * 32, "do": "look"},
        {"visitor": [ANN]},
        {"visitor": {}},
    ],
    ids=str,
)
def test_a_stranger_learns_nothing_and_changes_nothing(request_):
    libraries = visiting(ANN)
    add(libraries, ANN, "a.txt", b"one")
    assert libraries.library(request_)["documents"] == []
    assert names(libraries.library({"visitor": ANN, "do": "look"})) == ["a.txt"]


@pytest.mark.parametrize(
    "asked",
    [
        {"do": "add"}, {"do": "add", "name": 5, "data": 5}, {"do": "add", "name": "a", "data": "%%%"},
        {"do": "add", "name": "a", "data": "é"}, {"do": "set", "name": "none such"}, {"do": "set", "name": []},
        {"do": "prompt", "name": "none such", "on": True}, {"do": "remove", "name": {}}, {"do": "drop tables"},
        {"do": []},
    ],
    ids=str,
)  # fmt: skip
def test_requests_that_make_no_sense_change_nothing(asked):
    libraries = visiting(ANN)
    add(libraries, ANN, "a.txt", b"one")
    answer = libraries.library({"visitor": ANN, **asked})
    assert names(answer) == ["a.txt"]
    assert json.loads(json.dumps(answer)) == answer


def test_a_key_that_is_none_is_no_visitor():
    libraries = Libraries()
    for key in ("", "short", "A" * 32, None, 5):
        libraries.enter(SimpleNamespace(session_hash="s"), key)
        assert libraries.library({"visitor": key, "do": "look"})["complaint"]


def test_visitors_see_only_their_own_and_it_goes_when_they_remove_it_or_leave():
    forgotten = []
    libraries = visiting(ANN, BOB, forget=forgotten.append)
    add(libraries, ANN, "secret.txt", SECRET.encode())
    assert libraries.library({"visitor": BOB, "do": "look"})["documents"] == []
    assert libraries.shelf("session b") is None
    assert libraries.library({"visitor": BOB, "do": "remove", "name": "secret.txt"})["documents"] == []
    assert libraries.shelf("session a").documents == (Document("secret.txt", SECRET),)
    libraries.library({"visitor": ANN, "do": "remove", "name": "secret.txt"})
    assert libraries.shelf("session a") is None
    add(libraries, ANN, "secret.txt", SECRET.encode())
    libraries.leave("session a")
    assert forgotten == ["session b", "session a", "session a"]
    assert SECRET not in str(vars(libraries))
    assert libraries.shelf("session a") is None
    assert libraries.library({"visitor": ANN, "do": "look"})["complaint"]


def test_there_is_room_for_ten_files_and_five_megabytes():
    libraries = visiting(ANN, BOB)
    for number in range(MAX_REFERENCES):
        assert add(libraries, ANN, f"{number}.txt", b"x")["complaint"] == ""
    assert "10 references already" in add(libraries, ANN, "11.txt", b"x")["complaint"]
    half = b"x" * (MAX_BYTES // 2)
    add(libraries, BOB, "a.txt", half)
    assert add(libraries, BOB, "b.txt", half)["complaint"] == ""
    assert "5 MB" in add(libraries, BOB, "c.txt", b"x")["complaint"]
    libraries.library({"visitor": BOB, "do": "remove", "name": "a.txt"})
    assert add(libraries, BOB, "c.txt", b"x")["complaint"] == ""


def test_whoever_was_still_for_longest_makes_room_for_others(monkeypatch):
    monkeypatch.setattr(library, "MAX_VISITORS", 2)
    libraries = visiting(ANN, BOB, "c" * 32)
    assert libraries.library({"visitor": ANN, "do": "look"})["complaint"]
    monkeypatch.setattr(library, "MAX_ALL_BYTES", 5)
    add(libraries, BOB, "a.txt", b"abc")
    add(libraries, "c" * 32, "a.txt", b"abc")
    assert libraries.library({"visitor": BOB, "do": "look"})["complaint"]
    assert names(libraries.library({"visitor": "c" * 32, "do": "look"})) == ["a.txt"]


def test_a_name_is_a_name_not_a_path():
    libraries = visiting(ANN)
    answer = add(libraries, ANN, "../../etc/\\..\\pass\\wd" + "x" * 500, b"x")
    (name,) = names(answer)
    assert "/" not in name
    assert "\\" not in name
    assert len(name) <= library.MAX_NAME
    json.dumps(add(libraries, ANN, "half a pair \ud800.txt", b"x"), ensure_ascii=False).encode()


def test_putting_a_text_into_the_prompt_keeps_what_was_indexed():
    shelf = Shelf([Document("a", "one"), Document("b", "two")])
    tokenizer = byte_level()
    before = shelf.library(tokenizer)
    flagged = shelf.putting_in_prompt({"b"})
    after = flagged.library(tokenizer)
    assert after.texts is before.texts
    assert (before.with_prompt("ask"), after.with_prompt("ask")) == ("ask", "two\n\nask")
    copy = pickle.loads(pickle.dumps(flagged))
    assert copy.documents == flagged.documents
    assert copy.library(tokenizer).with_prompt("ask") == "two\n\nask"


# -- through a run -------------------------------------------------------------------------------


def run_of(runs, session="session a"):
    """The record of a whole run of that session."""
    record = runs.journal.open("", session)
    for delta in runs.deltas(record, {**DEFAULTS, "prompt": "go", "max_new_tokens": 40}):
        record.add(delta)
    record.close()
    return record


@pytest.fixture
def runs():
    made = Runs(FakeEngine().prepare)
    made.libraries.enter(SimpleNamespace(session_hash="session a"), ANN)
    add(made.libraries, ANN, "story.txt", "".join(STORY).encode())
    made.libraries.library({"visitor": ANN, "do": "prompt", "name": "story.txt", "on": True})
    return made


def test_a_run_copies_from_the_shelf_of_its_session_and_says_so_in_its_deltas(runs):
    deltas = [json.loads(text) for text in run_of(runs).deltas]
    start = next(delta["start"] for delta in deltas if "start" in delta)
    assert [(one["name"], one["kept"]) for one in start["references"]] == [("story.txt", True)]
    assert [name for delta in deltas for name in delta.get("sources", ())] == ["story.txt"]
    origins = [
        chip["o"] for delta in deltas for e in delta["events"] for chip in e.get("chips", ()) if "o" in chip
    ]
    assert origins
    assert {origin[0] for origin in origins} == {0}
    other = [json.loads(text) for text in run_of(runs, "session b").deltas]
    assert not any("sources" in delta for delta in other)


def test_an_export_holds_only_what_was_copied_unless_references_are_asked_for(runs):
    record, keep = run_of(runs), Keep(runs.journal)
    kept = keep.export({"run": record.run, "what": "trace"})["text"]
    whole = keep.export({"run": record.run, "what": "trace", "references": True})["text"]
    text = "".join(STORY)
    assert Trace.from_json(whole).references[0].text == text
    assert [(one.name, one.text) for one in Trace.from_json(kept).references] == [("story.txt", "")]
    assert Trace.from_json(kept).started("speculative").prompt_ids == ()
    assert json.dumps(text)[1:-1] not in kept


def test_the_pane_gets_the_tokens_of_a_reference_and_of_the_prompt_in_pieces(runs):
    record, keep = run_of(runs), Keep(runs.journal)
    ask = lambda **more: keep.reference({"run": record.run, "source": "story.txt", "from": 0, "to": 9, **more})  # noqa: E731
    number = record.trace.references[0].num_tokens
    assert len(ask(**{"from": number - 2, "to": number + 50})["tokens"]) == 2
    assert "".join(ask(to=4000)["tokens"]) == "".join(STORY)
    assert ask(source="prompt")["tokens"] == [STORY[i] for i in range(3)]
    for odd in (
        {"from": -1},
        {"from": 5, "to": 4},
        {"from": "0"},
        {"to": None},
        {"source": "none"},
        {"run": "none"},
    ):
        assert ask(**odd) is None
    assert keep.reference(None) is None


def test_what_a_visitor_takes_back_is_in_no_run_of_theirs_any_more(runs):
    mine, keep = run_of(runs), Keep(runs.journal)
    runs.libraries.enter(SimpleNamespace(session_hash="session b"), BOB)
    add(runs.libraries, BOB, "story.txt", "".join(STORY).encode())
    theirs = run_of(runs, "session b")
    runs.libraries.library({"visitor": ANN, "do": "remove", "name": "story.txt"})
    assert [one.text for one in mine.trace.references] == [""]
    assert mine.trace.started("speculative").prompt_ids == ()
    assert theirs.trace.references[0].text
    assert keep.reference({"run": mine.run, "source": "story.txt", "from": 0, "to": 9}) is None
    whole = keep.export({"run": mine.run, "what": "trace", "references": True})["text"]
    assert Trace.from_json(whole).references[0].text == ""
    runs.leave(SimpleNamespace(session_hash="session b"))
    assert theirs.trace.references[0].text == ""


def test_files_that_a_run_goes_on_without_are_said():
    runs = Runs(FakeEngine(warnings=("a goes beyond 1,000,000 tokens.", "b too.")).prepare)
    record = runs.journal.open()
    warned = [
        delta["warning"] for delta in runs.deltas(record, {**DEFAULTS, "prompt": "go"}) if "warning" in delta
    ]
    assert warned == ["a goes beyond 1,000,000 tokens. b too."]


def test_what_is_taken_back_before_a_run_is_prepared_is_not_kept_by_it_either(runs):
    record = runs.journal.open("", "session a")
    deltas = runs.deltas(record, {**DEFAULTS, "prompt": "go", "max_new_tokens": 40})
    record.add(next(deltas))
    taken = runs.libraries.shelf
    runs.libraries.shelf = lambda session: (  # type: ignore[method-assign]
        taken(session),
        runs.libraries.library({"visitor": ANN, "do": "remove", "name": "story.txt"}),
    )[0]  # just behind the moment at which the run takes what is on the shelf
    for delta in deltas:
        record.add(delta)
        assert [one.text for one in record.trace.references] == [""]
        assert not any(started.prompt_ids for started in record.trace.events if isinstance(started, RunStarted))
    record.close()
    assert record.trace.ids_used() == set(record.trace.pieces), "nor the tokens of the prompt that held the text"


@pytest.mark.parametrize("asked", [{"do": "remove", "name": "story.txt"}, {"do": "set", "name": "lease"}], ids=str)
def test_a_run_that_begins_while_a_text_is_taken_back_does_not_find_it_any_more(monkeypatch, asked):
    lease = ReferenceSet("lease", "A lease", (Document("lease.md", "rent"),), ())
    monkeypatch.setattr(library, "load_sets", lambda: (lease,))
    found = []
    libraries = visiting(ANN, forget=lambda session: found.append(libraries.shelf(session)))
    add(libraries, ANN, "story.txt", SECRET.encode())
    found.clear()
    libraries.library({"visitor": ANN, **asked})
    (shelf,) = found
    assert "story.txt" not in [document.name for document in (shelf.documents if shelf else ())]
