"""The bench: how it compares, what it reports. Numbers here are scripted; no test depends on a clock."""

import dataclasses
import json

import pytest
import toys
from fake_engine import FakeEngine
from tokenizer_makers import byte_level
from trace_makers import make_trace, started, step

from specviz import run
from specviz.bench import format_report, format_retrieval, measure, measure_retrieval, searching
from specviz.bench.bench import Bench, Goal, Row
from specviz.bench.drafts import gains
from specviz.bench.engine import against_transformers, bookkeeping, numerics, outside_share, pass_times
from specviz.bench.report import SECTIONS, TITLES
from specviz.bench.retrieval import measure_answers, retrieval
from specviz.bench.rounds import Spread, in_turn, ratios
from specviz.bench.tree_tables import format_trees
from specviz.bench.trees import MOST_SECONDS, TEMPERATURES, TREE_ROWS, measure_trees, settings_of, trees
from specviz.drafts.retrieval.reader import Document
from specviz.drafts.retrieval.sets import ReferenceSet, SetPrompt
from specviz.errors import ConfigError


class Small(Bench):
    """So little that a section is over at once."""

    num_rounds = 2
    num_tokens = 6
    num_tokens_cited = 12
    copying_cascade = "cascade:references,lookup"


def fake(**more):
    return Small(prepare=FakeEngine().prepare, drafts=("one", "two"), **more)


def test_jobs_take_turns_another_first_each_round_and_the_warm_up_is_dropped():
    order = []

    def job(name):
        return lambda index: (order.append(name), index)[1]

    results = in_turn({name: job(name) for name in "abc"}, 3)
    assert "".join(order) == "abcbcacababc"
    assert results == {name: [0, 1, 2] for name in "abc"}


def test_a_spread_is_median_and_range_and_ratios_are_taken_pair_by_pair():
    assert Spread.of([3.0, 1.0, 2.0]) == Spread(2.0, 1.0, 3.0, 3)
    assert ratios([2.0, 20.0], [1.0, 10.0]) == [2.0, 2.0]


@pytest.mark.parametrize(
    ("goal", "value", "is_met"),
    [
        (Goal(0.05, at_most=True), 0.05, True),
        (Goal(0.05, at_most=True), 0.06, False),
        (Goal(1.2, at_most=False), 1.2, True),
        (Goal(1.2, at_most=False), 1.19, False),
    ],
)
def test_a_goal_is_a_limit_above_or_below(goal, value, is_met):
    assert goal.is_met(value) is is_met


def test_the_share_outside_draft_and_verify_leaves_the_first_step_out():
    steps = [step(0, total_s=9.0), step(1, draft_s=0.02, verify_s=0.07, total_s=0.1)]
    assert outside_share(make_trace(started(), *steps)) == pytest.approx(0.1)


def test_bookkeeping_has_its_goals_for_each_draft_at_every_temperature():
    rows = list(bookkeeping(fake()))
    assert [row.name.split(", ")[0] for row in rows] == ["one"] * 3 + ["two"] * 3
    assert [row.goal.limit for row in rows if row.goal] == [0.05, 0.10, 0.10] * 2
    assert all(0 < row.spread.median < 1 for row in rows)


def test_each_draft_is_measured_at_both_temperatures():
    rows = {row.name: row for row in gains(fake())}
    assert len(rows) == 2 * 2 * 3
    assert rows["two, temperature 1: tokens per target pass τ"].spread.median > 1
    assert rows["one, temperature 0: speedup"].spread.num == 6


def test_trees_are_measured_against_the_chain_the_naive_rule_and_the_best_fixed_choice():
    engine = FakeEngine()
    small = Small(prepare=engine.prepare, load=lambda _name, **_: toys.tiny(), quick=True, drafts=("one",))
    rows = {row.name: row for row in trees(small)}
    assert len(rows) == 3 * len(TREE_ROWS) + 2 * (2 * len(settings_of(("one",))) + 3)
    assert rows["pass over a tree ÷ over a chain of 16 rows"].unit == "×"
    assert rows["tree auto, temperature 1: time per token"].unit == "ms"
    assert {row.name for row in rows.values() if row.goal} == {
        f"tree over chain, temperature {t}: tokens per pass" for t in (0, 1)
    } | {"standard over naive rule, temperature 1: tokens per pass"} | {
        f"auto over the best fixed choice, temperature {t}: speed" for t in (0, 1)
    }
    assert {config.rule for config in engine.configs} == {"standard", "naive"}
    assert max(len(config.drafts) for config in engine.configs) == 3


def report_on_trees(folder, **more):
    small = Small(prepare=FakeEngine().prepare, load=lambda _name, **_: toys.tiny(), quick=True, drafts=("one",))
    return measure_trees(small, folder, **more)


def test_the_report_on_trees_is_kept_as_json_and_as_a_table(tmp_path):
    report = report_on_trees(tmp_path)
    assert json.loads((tmp_path / "trees.json").read_text()) == report
    settings, prompts = settings_of(("one",)), 2
    assert len(report["runs"]) == len(settings) * len(TEMPERATURES) * prompts
    assert all((run["identical"] is None) == (run["temperature"] > 0) for run in report["runs"])
    text = (tmp_path / "trees.md").read_text()
    assert text == format_trees(report)
    for name in settings:
        assert text.count(f"| {name} | ") == len(TEMPERATURES)
    assert text.count("≥ 1.2×") == 3
    assert text.count("≥ 0.95×") == 2
    assert "pass over a tree ÷ over a chain of 32 rows" in text
    plain = next(line for line in text.splitlines() if line.startswith("| plain | "))
    assert plain.startswith("| plain | 0.0 | 1.00 | ")
    assert plain.endswith("| 1.00 [1.00–1.00]× |")


def test_a_report_on_trees_begins_no_round_when_its_time_is_over_and_keeps_what_it_has(tmp_path):
    ticks = iter([0.0, MOST_SECONDS + 1])
    report = report_on_trees(tmp_path, clock=lambda: next(ticks))
    assert {run["prompt"] for run in report["runs"]} == {0}
    assert "behind each of 1 prompts" in (tmp_path / "trees.md").read_text()


def test_trees_of_drafts_that_grow_none_are_refused_in_one_sentence(tmp_path):
    with pytest.raises(ConfigError, match=r"None of lookup, mix grows trees; name one that does, say tiny\.$"):
        measure_trees(Small(prepare=FakeEngine().prepare, drafts=("lookup", "mix")), tmp_path)
    assert not list(tmp_path.iterdir())


def test_numerics_and_pass_times_run_on_any_model():
    bench = Small(load=lambda _name, **_: toys.tiny(), quick=True, drafts=("lookup",))
    names = [row.name for row in (*numerics(bench), *pass_times(bench))]
    assert "4 rows at 2,000 tokens, cost of exact" in names
    assert "block of 32 ÷ block of 1" in names


TEXT = "The tenant pays rent on the first day of a month. The tenant keeps the tools in the shed.\n" * 3
SETS = (
    ReferenceSet(
        "lease",
        "A lease",
        (Document("lease.txt", TEXT),),
        tuple(
            SetPrompt(f"lease-{kind}-{i}", kind, f"{kind} it {i}", i == 1)
            for kind in ("quote", "ask")
            for i in (1, 2)
        ),
    ),
)


@pytest.fixture
def citing(monkeypatch):
    """A bench over a small set of references, with a model that reads bytes."""
    tokenizer = byte_level()
    target = toys.loaded(
        toys.tiny(vocab_size=256, max_position_embeddings=1024).model, "TINY", tokenizer=tokenizer
    )
    monkeypatch.setattr(run, "_load", lambda *_: target)
    monkeypatch.setattr(run, "require_known", lambda _: None)
    return Small(
        sets=SETS, drafts=("tiny",), load=lambda _: target, load_plain=lambda _: (target.model, tokenizer),
        load_tokenizer=lambda _: tokenizer,
    )  # fmt: skip


def test_copying_is_raced_and_compared_with_the_prompt_lookup_of_transformers(citing):
    rows = {row.name: row for row in retrieval(citing)}
    assert "ask: cascade:references,lookup: speedup over plain decoding" in rows
    assert "quote: cascade:references,lookup: speedup over plain decoding" not in rows
    for kind in ("quote", "ask"):
        assert (rows[f"{kind}: references: speedup over plain decoding"].goal is not None) == (kind == "quote")
        ours = rows[f"{kind}: references: tokens per target pass τ"].spread
        theirs = [
            rows[f"{kind}: prompt_lookup_num_tokens={n}: tokens per target pass τ"].spread for n in (3, 5, 10)
        ]
        assert ours.num == 2
        assert all(1 <= spread.low <= spread.high <= 11 for spread in theirs)
        ratio = rows[f"{kind}: tokens per target pass τ, ours ÷ theirs"].spread
        assert ratio.low <= ours.high / max(spread.low for spread in theirs)


def test_the_kept_measurement_of_copying_holds_every_answer_and_its_table_agrees(citing, tmp_path, monkeypatch):
    monkeypatch.setattr(searching, "NUM_TOKENS", 20_000)
    said = []
    report = measure_retrieval(citing, tmp_path, say=lambda sentence, _: said.append(sentence))
    assert json.loads((tmp_path / "retrieval.json").read_text()) == report
    answers = report["answers"]
    prompts = {prompt.id for one in SETS for prompt in one.prompts}
    assert {one["prompt"] for one in answers} == prompts
    assert len(answers) == 4 * len(prompts) + 2, "three lengths and ours for each, a cascade for those that ask"
    assert all(one["identical"] for one in answers if one["speedup"] is not None)
    assert {f"Answering {prompt}" for prompt in prompts} < set(said)
    table = (tmp_path / "retrieval.md").read_text()
    assert table == format_retrieval(json.loads(json.dumps(report)))
    ours = {one["prompt"]: one["tokens"] / one["passes"] for one in answers if one["by"] == "references"}
    quoted = sorted(rate for prompt, rate in ours.items() if "quote" in prompt)
    (line,) = [line for line in table.splitlines() if line.startswith("| quote | 2 ")]
    assert f"| {sum(quoted) / 2:.2f} [{quoted[0]:.2f}–{quoted[1]:.2f}] |" in line
    assert "6 of 6 texts identical to plain decoding." in table
    assert "memory of the index, bytes a token" in table


def test_a_quick_run_answers_the_shortest_prompt_of_each_category(citing):
    quick = dataclasses.replace(citing, quick=True)
    assert {one.prompt for one in measure_answers(quick)} == {"lease-quote-2", "lease-ask-2"}


def test_searching_reports_memory_and_times_over_as_many_tokens_as_it_says(monkeypatch):
    monkeypatch.setattr(searching, "NUM_TOKENS", 20_000)
    rows = {row.name: row for row in searching.searching(Small(sets=SETS, load_tokenizer=lambda _: byte_level()))}
    assert all(row.spread.low >= 0 for row in rows.values())
    assert rows["memory of the index, bytes a token"].spread.median == pytest.approx(8, abs=1)
    assert rows["memory at the highest point of indexing, bytes a token"].spread.high < 100
    assert rows["longest match, context of 2,000"].spread.num == 100


def test_without_reference_sets_there_is_nothing_to_measure():
    assert list(retrieval(Small(sets=()))) == list(searching.searching(Small(sets=()))) == []


def test_a_report_is_json_and_a_table_with_machine_versions_and_goals():
    def section(bench):
        spread = Spread(1.5, 1.25, 2.0, 3)
        yield Row("plain decoding", f"specviz on {bench.target}", "×", spread, Goal(1.2, at_most=False))
        yield Row("plain decoding", "rate", "tokens/s", spread, Goal(9.0, at_most=False), "a note")
        yield Row("later", "share", "%", spread)

    said = []
    report = measure(bench=fake(), sections={"first": section}, say=lambda *words: said.append(words))
    assert json.loads(json.dumps(report)) == report
    assert said == [("Measuring first", 0.0)]
    assert report["rows"][0] == {
        "section": "plain decoding", "name": "specviz on smollm2-135m", "unit": "×", "median": 1.5, "low": 1.25,
        "high": 2.0, "num": 3, "goal": {"limit": 1.2, "at_most": False}, "met": True, "note": "",
    }  # fmt: skip
    table = format_report({**report, "machine": {**report["machine"], "load_at_start": 3.0}})
    assert "1.50× [1.25× to 2.00×] n=3  goal ≥ 1.20×: met" in table
    assert "1.5 tokens/s [1.2 to 2.0] n=3  goal ≥ 9.0: NOT MET  (a note)" in table
    assert "150.0%" in table
    assert "busy at the start (load 3.0)" in table
    assert all(name in table for name in ("threads", "torch", "transformers", TITLES["plain decoding"]))
    assert set(TITLES) == set(SECTIONS)


@pytest.mark.real
def test_plain_decoding_is_compared_with_generate_on_the_embedded_target():
    bench = Small(prompts=("Hello",))
    rates = {row.name: row for row in against_transformers(bench)}
    assert list(rates) == ["specviz", "transformers", "specviz ÷ transformers"]
    assert all(row.spread.low > 0 for row in rates.values())
