"""Drafts raced by category: what is asked, in which order, what is kept, and going on after a kill."""

import json
from types import SimpleNamespace

import pytest
from fake_engine import FakeEngine

from specviz.bench import categories
from specviz.bench.bench import Bench
from specviz.bench.categories import TEMPERATURES, measure_categories, round_robin
from specviz.bench.tables import format_categories
from specviz.errors import ConfigError
from specviz.prompts import Prompt

PROMPTS = (
    Prompt("a-1", "a", ("first",)),
    Prompt("a-2", "a", ("second",)),
    Prompt("b-1", "b", ("one turn", "another", "a third")),
    Prompt("c-1", "c", ("last",)),
)


class Template:
    """A chat template that shows who said what."""

    def apply_chat_template(self, messages, *, tokenize, add_generation_prompt):
        assert not tokenize
        assert add_generation_prompt
        return "".join(f"<{message['role']}>{message['content']}" for message in messages)


@pytest.fixture
def asked(monkeypatch):
    """The settings of every run that was prepared, in order."""
    monkeypatch.setattr(categories, "bundled", lambda: PROMPTS)
    monkeypatch.setattr(categories, "NUM_TOKENS", 6)
    return []


def bench(asked, drafts=("one", "two")):
    engine = FakeEngine()

    def prepare(config):
        asked.append(config)
        return engine.prepare(config)

    load = lambda _name: SimpleNamespace(tokenizer=Template())  # noqa: E731
    return Bench(prepare=prepare, load=load, drafts=drafts, target="T")


def test_prompts_are_taken_round_the_categories_so_that_a_part_is_balanced():
    assert [prompt.id for prompt in round_robin(PROMPTS, None)] == ["a-1", "b-1", "c-1", "a-2"]
    assert [prompt.id for prompt in round_robin(PROMPTS, 1)] == ["a-1", "b-1", "c-1"]


def test_every_turn_is_raced_with_every_draft_at_every_temperature(asked, tmp_path):
    report = measure_categories(bench(asked), tmp_path)
    races = [(race["prompt"], race["draft"], race["temperature"]) for race in report["races"]]
    turns = ["a-1", "a-2", "b-1", "b-1/2", "b-1/3", "c-1"]
    assert sorted(races) == [(turn, draft, t) for turn in turns for draft in ("one", "two") for t in TEMPERATURES]
    assert report["finished"]
    assert all(race["tokens_per_pass"] >= 1 and race["speedup"] > 0 for race in report["races"])
    assert all((race["identical"] is None) == (race["temperature"] > 0) for race in report["races"])


def test_a_later_turn_stands_behind_the_targets_own_answers(asked, tmp_path):
    measure_categories(bench(asked, ("one",)), tmp_path, limit_per_category=1)
    raced = [config.prompt for config in asked if config.raw and config.drafts == ("one",)]
    third = raced[-1]
    assert third.startswith("<user>one turn<assistant>")
    assert "<user>another<assistant>" in third
    assert third.endswith("<user>a third")
    answer = third.split("<assistant>")[1].removesuffix("<user>another")
    assert answer.strip()
    assert answer in raced[0]


def test_the_drafts_take_turns_in_being_first(asked, tmp_path):
    report = measure_categories(bench(asked), tmp_path)
    firsts = {race["prompt"]: race["draft"] for race in reversed(report["races"])}
    assert {firsts["a-1"], firsts["b-1"]} == {"one", "two"}


def test_a_measurement_that_was_cut_goes_on_and_measures_nothing_twice(asked, tmp_path, monkeypatch):
    whole = measure_categories(bench([]), tmp_path / "whole")
    right, seen = categories._races, []

    def dying(bench_, prompt, drafts):
        if len(seen) == 2:
            raise KeyboardInterrupt
        seen.append(prompt.id)
        return right(bench_, prompt, drafts)

    monkeypatch.setattr(categories, "_races", dying)
    with pytest.raises(KeyboardInterrupt):
        measure_categories(bench([]), tmp_path / "cut")
    kept = json.loads((tmp_path / "cut" / "drafts.json").read_text())
    assert not kept["finished"]
    assert "Not finished" in (tmp_path / "cut" / "drafts.md").read_text()
    monkeypatch.setattr(categories, "_races", right)
    report = measure_categories(bench(asked), tmp_path / "cut")
    assert report["races"][: len(kept["races"])] == kept["races"]
    assert not {config.prompt for config in asked if config.max_new_tokens == 6} & {"first", "one turn"}
    assert [r["prompt"] for r in report["races"]] == [r["prompt"] for r in whole["races"]]
    assert report["finished"]


def test_other_settings_or_a_finished_measurement_begin_anew(asked, tmp_path):
    measure_categories(bench([]), tmp_path, limit_per_category=1)
    report = measure_categories(bench(asked, ("two",)), tmp_path, limit_per_category=1)
    assert {race["draft"] for race in report["races"]} == {"two"}
    num_asked = len(asked)
    measure_categories(bench(asked, ("two",)), tmp_path, limit_per_category=1)
    assert len(asked) == 2 * num_asked


@pytest.mark.parametrize(
    ("drafts", "limit", "says"), [(("one",), 0, "--limit-per-category 0"), ((), 1, "no draft")]
)
def test_a_measurement_of_nothing_is_refused(asked, tmp_path, drafts, limit, says):
    with pytest.raises(ConfigError, match=says):
        measure_categories(bench(asked, drafts), tmp_path, limit_per_category=limit)
    assert not asked


def race(**more):
    usual = {
        "prompt": "p", "category": "a", "draft": "one", "temperature": 0.0, "tokens": 30, "passes": 10,
        "speedup": 2.0, "tokens_per_pass": 3.0, "nodes_per_pass": 7.5, "draft_ratio": 0.01, "verify_ratio": 1.25,
        "identical": True,
    }  # fmt: skip
    return {**usual, **more}


def test_the_tables_hold_medians_ranges_and_the_slowest_category():
    report = {
        "machine": {"cpu": "CPU", "gpu": None, "cores": 2, "threads": 2},
        "versions": {"torch": "9"},
        "settings": {"target": "T", "drafts": ["one", "two"], "limit_per_category": 3, "num_tokens": 128},
        "finished": True,
        "races": [
            race(speedup=2.0),
            race(prompt="q", speedup=3.0, tokens=10, passes=10, identical=False),
            race(prompt="r", category="b", speedup=1.5),
            race(draft="two", speedup=None, draft_ratio=None, verify_ratio=None, tokens=0, passes=0),
        ],
    }
    text = format_categories(report)
    assert "| one | 0 | 2.33 | 2.00× [1.50–3.00] | b 1.50× |" in text
    assert "| two | 0 | n/a | n/a | n/a |" in text
    assert "2 of 3 texts identical to plain decoding." in text
    assert "| a | 2 | 2.00 | 7.5 | 2.50× [2.00–3.00] | 0.010 | 1.25 |" in text
    assert "| all | 3 | 2.33 | 7.5 | 2.00× [1.50–3.00] | 0.010 | 1.25 |" in text
    assert "3 turns of the bundled prompts, at most 3 of each category" in text
