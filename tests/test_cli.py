"""The command line, over a scripted engine: what it prints, refuses, keeps and returns."""

import dataclasses
import errno
import json
import os
import random
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from fake_engine import STORY, FakeEngine, as_reference, recorded
from tokenizer_makers import byte_level
from trace_makers import chain_step, finished, make_trace, sampled_trace, started

from specviz import models
from specviz.cli import files
from specviz.cli.jobs import course_in_bars
from specviz.cli.main import main
from specviz.cli.paint import Painter, Style, one_line, safe
from specviz.cli.status import Status
from specviz.cli.summary import header, plain_text, table
from specviz.config import RunConfig
from specviz.drafts.retrieval.corpus import open_corpus
from specviz.drafts.retrieval.reader import Document
from specviz.errors import SpecvizError
from specviz.trace import Piece, RunFinished, Trace

ROOT = Path(__file__).parent.parent
JSON_KEYS = [
    "target", "draft", "draft_len", "tree", "rule", "dtype", "device", "seed", "prompt_tokens", "tokens", "passes",
    "undrafted", "drafted", "tested", "accepted", "acceptance_rate", "overlap", "draft_yield", "tokens_per_pass",
    "prefill_s", "draft_s", "verify_s", "total_s", "tokens_per_s", "baseline_tokens_per_s", "speedup",
    "predicted_speedup", "draft_target_ratio", "verify_ratio", "stop_reason", "identical", "first_difference",
    "proposers", "copied", "text",
    "token_ids",
]  # fmt: skip
EVIL = "\x1b[2J\x1b]0;owned\x07\x9b31m\u202eabc\r\x08\x7f\x00"


@pytest.fixture(autouse=True)
def _plain_terminal(monkeypatch):
    for name in ("NO_COLOR", "FORCE_COLOR", "COLORTERM", "COLORFGBG"):
        monkeypatch.delenv(name, raising=False)


def never(*_, **__):
    raise AssertionError("nothing may be loaded for input that is refused")


def run(*arguments, engine=None, prepare=None):
    """Exit code of `run` with a prompt, over a fake engine."""
    prompt = [] if any(word.startswith("--prompt") for word in arguments) else ["--prompt", "hello"]
    return main(["run", *prompt, *arguments], prepare=prepare or (engine or FakeEngine()).prepare)


def refused(capsys, code):
    """The one line that a refusal leaves on stderr; nothing is on stdout."""
    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    assert err.endswith("\n")
    assert err.count("\n") == 1
    return err


# Refusals


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "COMMAND"),
        (["walk"], "walk"),
        (["run"], "--prompt"),
        (["run", "--prompt", "a", "--prompt-file", "b"], "not allowed with"),
        (["run", "--prompt", "a", "--temprature", "1"], "--temprature"),
        (["run", "--prompt", "a", "--temp", "1"], "--temp"),
        (["run", "--prompt", "a", "stray\nline\x1b[2J"], "stray\\nline\\x1b[2J"),
        (["run", "--prompt", "a", "--top-k"], "expected one argument"),
        (["run", "--prompt", "a", "--temperature", "hot"], "from 0.0 to 10.0"),
        (["run", "--prompt", "a", "--temperature", "nan"], "temperature"),
        (["run", "--prompt", "a", "--temperature", "-1"], "temperature"),
        (["run", "--prompt", "a", "--temperature", "inf"], "temperature"),
        (["run", "--prompt", "a", "--top-k", "1.5"], "whole number"),
        (["run", "--prompt", "a", "--top-p", "0"], "top-p"),
        (["run", "--prompt", "a", "--top-p", "1.1"], "top-p"),
        (["run", "--prompt", "a", "--repetition-penalty", "0"], "repetition penalty"),
        (["run", "--prompt", "a", "--draft-len", "0"], 'from 1 to 32 or "auto"'),
        (["run", "--prompt", "a", "--draft-len", "33"], "draft length"),
        (["run", "--prompt", "a", "--draft-len", "many"], "draft length"),
        (["run", "--prompt", "a", "--tree", "0"], "children per level such as 3,2,1,1"),
        (["run", "--prompt", "a", "--tree", "3,,1"], "tree is '3,,1'"),
        (["run", "--prompt", "a", "--tree", "8,8"], "72 nodes"),
        (["run", "--prompt", "a", "--tree", "auto:65"], "65 nodes"),
        (["run", "--prompt", "a", "--tree", "4,4", *["--draft", "tiny"] * 4], "from each of 4 drafts"),
        (["run", "--prompt", "a", *["--draft", "tiny"] * 5], "5 drafts were given; at most 4"),
        (["run", "--prompt", "a", "--rule", "lucky"], "standard, naive"),
        (["run", "--prompt", "a", "--max-new-tokens", "0"], "maximum of new tokens"),
        (["run", "--prompt", "a", "--max-new-tokens", "9" * 5000], "maximum of new tokens"),
        (["run", "--prompt", "a", "--min-new-tokens", "9", "--max-new-tokens", "8"], "minimum of new tokens"),
        (["run", "--prompt", "a", "--seed", "-1"], "seed"),
        (["run", "--prompt", "a", "--stop", ""], "stop string"),
        (["run", "--prompt", "a", "--dtype", "int3"], "float32"),
        (["run", "--prompt", "a", "--numerics", "vague"], "exact"),
        (["run", "--prompt", "a" * 1_000_000], "1,000,000 characters"),
        (["run", "--prompt-file", "/nowhere/at/all"], "No such file"),
        (["run", "--prompt-file", "/"], "directory"),
        (["run", "--prompt-file", "/dev/zero"], "too large"),
        (["run", "--prompt", "a", "--trace", "/nowhere/out.json"], "--trace"),
        (["run", "--prompt", "a", "--trace", "/"], "folder"),
        (["run", "--prompt", "a", "--trace", ""], "--trace"),
        (["run", "--prompt", "a", "--trace", "/dev/null"], "regular file"),
        (["run", "--prompt", "a", "--trace", "/tmp/" + "x" * 300], "too long"),
        (["replay"], "FILE"),
        (["replay", "/nowhere/at/all"], "No such file"),
        (["replay", "/"], "directory"),
        (["replay", "a\0b"], "null byte"),
        (["bench", "--out", "/nowhere/bench.json"], "--out"),
        (["bench", "--table", "/nowhere/bench.txt"], "--table"),
        (["bench", "--section", "luck"], "no section 'luck'"),
        (["index", "."], "--out"),
        (["index", ".", "--out", "corpus.txt"], "must end in .sv"),
        (["index", ".", "--out", "/nowhere/corpus.sv"], "--out"),
        (["bench", "--by-category", "--limit-per-category", "0", "--drafts", "lookup"], "--limit-per-category 0"),
        (["bench", "--by-category", "--drafts", ","], "no draft"),
        (["bench", "--trees", "--drafts", "lookup"], "None of lookup grows trees"),
        (["distill", "--out", "new", "--minutes", "soon"], "--minutes"),
        (["distill", "--out", "new", "--kind", "huge"], "huge"),
        (["distill", "--out", "new", "--kind", "ngram", "--after", "tiny"], "no meaning for --kind ngram"),
        (["distill", "--out", "new", *["--after", "tiny"] * 4], "at most 3 can come earlier"),
        (["distill", "--kind", "tiny"], "--out"),
        (["models", "--yaml"], "--yaml"),
    ],
    ids=lambda value: " ".join(value)[:60] if isinstance(value, list) else "",
)
def test_bad_input_is_one_line_and_exit_code_2_before_anything_loads(capsys, arguments, says):
    assert says in refused(capsys, main(arguments, prepare=never))


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"\xff\xfeh\0i\0", "not UTF-8 text: byte 0xff at position 0"),
        (b"caf\xe9", "0xe9 at position 3"),
        (b"a" * 1_000_000, "too large"),
        ("é" * 200_001, "200,001 characters"),
    ],
)
def test_a_prompt_file_that_is_no_prompt_is_refused(capsys, tmp_path, data, says):
    file = tmp_path / "prompt.txt"
    file.write_bytes(data.encode() if isinstance(data, str) else data)
    assert says in refused(capsys, run("--prompt-file", str(file), prepare=never))


@pytest.mark.parametrize("data", [b"one\ntwo\n", b"\xef\xbb\xbfone\ntwo", b"one\ntwo\r\n"])
def test_a_prompt_file_gives_its_text_without_mark_and_final_line_end(tmp_path, data):
    (tmp_path / "prompt.txt").write_bytes(data)
    engine = FakeEngine()
    assert run("--prompt-file", str(tmp_path / "prompt.txt"), "--max-new-tokens", "2", engine=engine) == 0
    assert engine.configs[0].prompt == "one\ntwo"


def test_what_loading_refuses_is_one_line_too_although_progress_was_reported(capsys, tmp_path):
    def prepare(_config, *, progress, cancelled):
        del cancelled
        progress("Loading the target", 0.5)
        raise SpecvizError("The prompt has 9,000 tokens,\nbut 8,192 fit \x1b[31m.")

    trace = tmp_path / "t.json"
    line = refused(capsys, run("--trace", str(trace), prepare=prepare))
    assert line == "specviz: The prompt has 9,000 tokens,\\nbut 8,192 fit \\x1b[31m.\n"
    assert list(tmp_path.iterdir()) == []


# Settings


def test_every_option_reaches_the_settings():
    engine = FakeEngine()
    words = (
        "--prompt hi --target T --draft a --draft lookup --draft-len auto --tree 2,1 --rule naive "
        "--temperature 0.5 --top-k 9 --top-p 0.8 "
        "--repetition-penalty 1.1 --stop x --stop y --min-new-tokens 2 --max-new-tokens 5 --ignore-eos --seed 7 "
        "--no-baseline --raw --dtype float32 --device cpu --numerics fast --reference r.txt "
        "--prompt-reference q.md --reference s.txt --min-match 3 --copy-len 6 --copy-from references "
        "--copy-from output"
    )
    assert run(*words.split(), engine=engine) == 0
    assert engine.configs == [
        RunConfig(
            prompt="hi", target="T", drafts=("a", "lookup"), draft_len="auto", tree="2,1", rule="naive",
            temperature=0.5, top_k=9, top_p=0.8,
            repetition_penalty=1.1, stop=("x", "y"), ignore_eos=True, min_new_tokens=2, max_new_tokens=5, seed=7,
            raw=True, baseline=False, dtype="float32", device="cpu", numerics="fast",
            references=("r.txt", "s.txt", "q.md"), prompt_references=("q.md",), min_match=3, copy_len=6,
            copy_sources=("references", "output"),
        )
    ]  # fmt: skip
    untouched = {f.name for f in dataclasses.fields(RunConfig) if getattr(engine.configs[0], f.name) == f.default}
    assert untouched == set()


def test_without_options_the_defaults_are_those_of_the_settings():
    engine = FakeEngine()
    run("--max-new-tokens", "2", engine=engine)
    given = engine.configs[0]
    assert (given.draft_len, given.temperature, given.baseline, given.numerics) == (None, 0.0, True, "exact")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--tree", "0"], "tree is '0', but must be children per level such as 3,2,1,1"),
        (["--tree", "3,,1"], "tree is '3,,1'"),
        (["--tree", "4,4,4"], "The tree 4,4,4 comes to 84 nodes a pass; at most 64"),
        (["--tree", "auto:99"], "at most 64"),
        (["--rule", "wild"], "rule is 'wild', but must be one of standard, naive"),
        (["--draft", "a"] * 5, "5 drafts were given; at most 4 can share a tree"),
    ],
)
def test_trees_rules_and_too_many_drafts_are_refused_in_one_line_before_anything_is_loaded(capsys, words, says):
    assert says in refused(capsys, run(*words, prepare=never))


def test_several_drafts_have_a_line_each_and_the_head_names_the_tree_and_the_teaching_rule():
    trace = make_trace(
        started(), chain_step(0, 4, 2), finished(num_tokens=3), config={"tree": "3,2", "rule": "naive"}
    )
    text = table(trace)
    assert "draft 1, small" in text
    assert "4 proposed, 3 tested, 2 accepted, 2 of them proposed by no other" in text
    assert "draft 2, lookup" in text
    line = header(trace.started("speculative"), trace.config)
    assert "tree 3,2" in line
    assert "naive rule (for teaching)" in line
    assert "draft length" not in line


# JSON


def test_json_prints_exactly_one_object_with_exactly_the_promised_keys(capsys):
    assert run("--json", "--max-new-tokens", "30", "--seed", "3") == 0
    out, _ = capsys.readouterr()
    result = json.loads(out)
    assert list(result) == JSON_KEYS
    assert out.count("\n") == 1
    assert result["seed"] == 3
    assert (result["tokens"], len(result["token_ids"]), result["stop_reason"]) == (30, 30, "length")
    assert result["text"] == "".join(STORY[:30])
    assert result["identical"] is True
    assert result["first_difference"] is None


def test_json_without_baseline_or_draft_has_null_where_nothing_is_defined(capsys):
    run("--json", "--no-baseline", "--max-new-tokens", "9")
    result = json.loads(capsys.readouterr().out)
    assert [result[key] for key in ("speedup", "baseline_tokens_per_s", "identical")] == [None] * 3


def test_json_says_where_the_lanes_differ(capsys):
    run("--json", "--max-new-tokens", "9", engine=FakeEngine(differ_at=4))
    result = json.loads(capsys.readouterr().out)
    assert result["identical"] is False
    assert result["first_difference"]["index"] == 4


def test_json_above_temperature_0_compares_no_texts(capsys):
    run("--json", "--temperature", "1", "--max-new-tokens", "9")
    assert json.loads(capsys.readouterr().out)["identical"] is None


# What a terminal sees


def test_text_from_a_model_never_steers_the_terminal(capsys):
    engine = FakeEngine(words=(EVIL, "ok", "\ud800".encode(errors="surrogatepass"), "a\tb"))
    assert run("--max-new-tokens", "8", "--target", f"t{EVIL}", engine=engine) == 0
    out, err = capsys.readouterr()
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", out + err)
    assert "\\x1b[2J\\x1b]0;owned\\x07\\x9b31m\\u202eabc\\r\\x08\\x7f\\x00" in out
    assert "a\tb" in out


def test_json_escapes_them_too(capsys):
    run("--json", "--max-new-tokens", "4", engine=FakeEngine(words=(EVIL,)))
    out, _ = capsys.readouterr()
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", out)
    assert json.loads(out)["text"] == EVIL * 4


def test_safe_text_keeps_letters_emoji_and_line_ends():
    text = "שלום é 👩‍👩‍👧 中文\n\tx"
    assert safe(text) == text
    assert one_line("a\nb\tc\x1b") == "a\\nb\\tc\\x1b"


def test_marks_stand_for_colours_where_there_are_none(capsys):
    run("--max-new-tokens", "24", engine=FakeEngine(verdicts="rejected"))
    out, _ = capsys.readouterr()
    assert "\x1b" not in out
    assert re.search(r"✗[^✗→]*→The", out)
    assert "✓ accepted  ✗ rejected  → corrected  + bonus" in out
    run("--max-new-tokens", "24", engine=FakeEngine(verdicts="accepted"))
    assert "✓The✓ lighthouse✓ keeper✓ counted+ the" in capsys.readouterr().out


def test_colours_strike_the_rejected_token_and_then_give_the_corrected_one(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLORTERM", "truecolor")
    run("--max-new-tokens", "24", engine=FakeEngine(verdicts="rejected"))
    out, _ = capsys.readouterr()
    assert re.search(r"\x1b\[9;[\d;]*48;2;250;105;56m[^\x1b]+\x1b\[0m\x1b\[1;21;[\d;]*mThe\x1b\[0m", out)
    assert "✗" not in out


class Terminal:
    def __init__(self, is_terminal=True):
        self.is_terminal, self.written = is_terminal, []

    def isatty(self):
        return self.is_terminal

    def write(self, text):
        self.written.append(text)

    def flush(self):
        pass


@pytest.mark.parametrize(
    ("is_terminal", "environment", "coloured"),
    [
        (True, {}, True),
        (True, {"TERM": "xterm"}, True),
        (True, {"NO_COLOR": "1"}, False),
        (True, {"NO_COLOR": ""}, True),
        (True, {"TERM": "dumb"}, False),
        (False, {}, False),
        (False, {"FORCE_COLOR": "1"}, True),
        (True, {"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
    ],
)
def test_colours_are_for_terminals_that_want_them(is_terminal, environment, coloured):
    assert bool(Style.of(Terminal(is_terminal), environment).codes) is coloured


def test_each_fate_has_codes_of_its_own_light_or_dark_exact_or_not():
    for environment in ({}, {"COLORTERM": "truecolor"}, {"COLORFGBG": "0;15"}):
        codes = Style.of(Terminal(), environment).codes
        assert len(set(codes.values())) == 4
    assert (
        Style.of(Terminal(), {"COLORTERM": "24bit", "COLORFGBG": "0;15"}).codes["accepted"].endswith("185;236;253")
    )


def test_a_character_spread_over_tokens_appears_once_whole_and_pending_bytes_are_flagged():
    fire = [bytes([byte]) for byte in "🔥".encode()]
    words = (*fire, "!")
    whole = recorded(FakeEngine(words=words, verdicts="accepted"), max_new_tokens=5)
    painter = Painter(Style({}), whole.pieces.__getitem__)
    assert "".join(map(painter.step, whole.steps("speculative"))).replace("✓", "").replace("+", "") == "🔥!"
    cut = recorded(FakeEngine(words=words, verdicts="accepted"), max_new_tokens=2)
    painter = Painter(Style({}), cut.pieces.__getitem__)
    assert "".join(map(painter.step, cut.steps("speculative"))) + painter.end() == "✓+⟨F0 9F⟩"
    assert plain_text(cut, "speculative") == ""


def test_a_special_token_shows_its_name_and_is_no_text(capsys):
    words = ("hi", Piece(b"<|end\x1b|>", special=True))
    run("--max-new-tokens", "2", engine=FakeEngine(words=words, verdicts="accepted"))
    assert "<|end\\x1b|>" in capsys.readouterr().out
    run("--json", "--max-new-tokens", "2", engine=FakeEngine(words=words))
    assert json.loads(capsys.readouterr().out)["text"] == "hi"


def test_the_summary_names_every_rate_and_calls_a_slow_down_one(capsys):
    run("--max-new-tokens", "24", "--draft-len", "32", engine=FakeEngine(verdicts="rejected"))
    out, _ = capsys.readouterr()
    for name in ("acceptance rate α", "overlap α̂", "draft yield", "tokens per target pass τ", "a slow-down"):
        assert name in out
    assert "Identical to the baseline: 24 of 24 tokens." in out


def test_progress_is_held_until_nothing_was_refused_and_is_a_line_on_a_terminal():
    pipe, terminal = Terminal(False), Terminal()
    status = Status(pipe, held=True)
    status.show("Loading\x1b", 0.5)
    assert pipe.written == []
    status.release()
    assert "".join(pipe.written) == "Loading\\x1b (50%)\n"
    live = Status(terminal, held=True, clock=iter([0.0, 0.05, 0.2, 0.2]).__next__)
    live.show("a")
    live.update("too soon")
    live.update("b")
    live.clear()
    assert "".join(terminal.written) == "\r\x1b[Ka\r\x1b[Kb\r\x1b[K"


# What is kept


def test_a_trace_is_kept_whole_and_replays_as_it_ran(capsys, tmp_path):
    file = tmp_path / "out.json"
    assert run("--trace", str(file), "--max-new-tokens", "24") == 0
    ran = capsys.readouterr()
    assert f"The trace is in {file}." in ran.err
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]
    main(["replay", str(file)])
    replayed = capsys.readouterr().out
    assert all(part in replayed for part in ran.out.strip().split("\n\n"))
    assert "prompt: hello" in replayed


NOTES = as_reference(Document("notes.txt", "The lighthouse keeper counted the waves as others count sheep."))


def test_copies_are_counted_by_source_and_the_trace_keeps_the_texts_only_if_asked(capsys, tmp_path):
    engine = FakeEngine(references=[NOTES], warnings=("scan.pdf is a PDF of images.",), verdicts="accepted")
    file = tmp_path / "out.json"
    assert run("--trace", str(file), "--max-new-tokens", "24", engine=engine) == 0
    shown = capsys.readouterr()
    assert re.search(r"\ncopied +\d+ of \d+ from notes.txt\n", shown.out)
    assert "specviz: scan.pdf is a PDF of images.\n" in shown.err
    kept = Trace.from_json(file.read_text())
    assert [(r.name, r.num_tokens, r.text) for r in kept.references] == [("notes.txt", NOTES.num_tokens, "")]
    assert any(node.origin for step in kept.steps("speculative") for node in step.nodes)
    assert run("--trace", str(file), "--max-new-tokens", "24", "--include-references", engine=engine) == 0
    assert Trace.from_json(file.read_text()).references == [NOTES]
    assert main(["replay", str(file)]) == 0
    assert run("--json", "--max-new-tokens", "24", engine=engine) == 0
    (copied,) = json.loads(capsys.readouterr().out.splitlines()[-1])["copied"]
    assert copied["source"] == "notes.txt"
    assert 0 < copied["accepted"] <= copied["drafted"]


def test_a_folder_becomes_a_corpus_and_what_is_no_text_is_said(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(models, "load_tokenizer", lambda _: byte_level())
    (tmp_path / "a.txt").write_text("one two three")
    (tmp_path / "b.bin").write_bytes(b"\0\1\2\xff" * 9)
    assert main(["index", str(tmp_path), "--out", str(tmp_path / "c.sv")]) == 0
    shown = capsys.readouterr()
    assert "1 text, 13 tokens" in shown.out
    assert "b.bin is a binary file" in shown.err
    assert open_corpus(tmp_path / "c.sv", byte_level()).names == ("c.sv/a.txt",)


def test_a_trace_that_cannot_be_written_at_the_end_leaves_the_old_file(capsys, tmp_path, monkeypatch):
    file = tmp_path / "out.json"
    file.write_text("old")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "replace", full)
    assert run("--trace", str(file), "--max-new-tokens", "4") == 1
    assert file.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]
    assert "No space left" in capsys.readouterr().err


def test_a_trace_too_large_to_be_read_back_is_said_and_the_numbers_are_shown(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("specviz.trace.MAX_TRACE_BYTES", 1000)
    file = tmp_path / "out.json"
    assert run("--trace", str(file)) == 1
    out, err = capsys.readouterr()
    assert "tokens per target pass" in out
    assert "so it is not written" in err
    assert err.count("\n") == 1
    assert not file.exists()


def test_a_trace_behind_a_link_is_written_where_the_link_points(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "link.json").symlink_to(tmp_path / "there" / "real.json")
    run("--trace", str(tmp_path / "link.json"), "--max-new-tokens", "4")
    assert (tmp_path / "link.json").is_symlink()
    Trace.from_json((tmp_path / "there" / "real.json").read_text())


class Interrupted(FakeEngine):
    """Sends Ctrl-C to this process at some events; the second one cannot wait for a pass."""

    at: tuple[int, ...] = (7,)

    def prepare(self, config, *, progress=None, cancelled=None):
        prepared = super().prepare(config, progress=progress, cancelled=cancelled)
        events = prepared.events

        def interrupted():
            for number, event in enumerate(events()):
                yield event
                if number in self.at:
                    os.kill(os.getpid(), signal.SIGINT)

        prepared.events = interrupted
        return prepared


@pytest.mark.parametrize("at", [(7,), (7, 8)])
@pytest.mark.parametrize("how", [[], ["--json"]])
def test_ctrl_c_keeps_the_trace_so_far_says_where_and_ends_with_130(capsys, tmp_path, at, how):
    engine = Interrupted(endless=True)
    engine.at = at
    file = tmp_path / "out.json"
    before = signal.getsignal(signal.SIGINT)
    assert run("--trace", str(file), *how, engine=engine) == 130
    trace = Trace.from_json(file.read_text())
    assert 7 < len(trace.events) < 12
    out, err = capsys.readouterr()
    assert f"Interrupted; what was made so far stands. The trace is in {file}." in err
    assert json.loads(out)["tokens"] > 0 if how else "acceptance rate α" in out
    assert signal.getsignal(signal.SIGINT) is before


def test_ctrl_c_while_loading_leaves_nothing(capsys, tmp_path):
    def prepare(*_, **__):
        raise KeyboardInterrupt

    assert run("--trace", str(tmp_path / "out.json"), prepare=prepare) == 130
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr().err == "specviz: interrupted before there was anything to keep.\n"


@pytest.mark.parametrize("how", [[], ["--json"]])
def test_a_run_that_ends_with_an_error_says_why_keeps_the_trace_and_exits_1(capsys, tmp_path, how):
    file = tmp_path / "out.json"
    assert run("--trace", str(file), *how, engine=FakeEngine(fail_at=3)) == 1
    trace = Trace.from_json(file.read_text())
    assert trace.steps("baseline")
    assert any(isinstance(event, RunFinished) and event.reason == "error" for event in trace.events)
    out, err = capsys.readouterr()
    last = err.splitlines()[-1]
    assert last == f"specviz: The target returned NaN logits in step 4. The trace is in {file}."
    assert out


def test_a_bug_in_the_middle_keeps_the_trace_and_its_traceback(tmp_path):
    class Broken(FakeEngine):
        def prepare(self, config, **how):
            prepared = super().prepare(config, **how)
            events = prepared.events()
            prepared.events = lambda: iter([next(events), next(events), next(events), 1 / 0])
            return prepared

    with pytest.raises(ZeroDivisionError):
        run("--trace", str(tmp_path / "out.json"), engine=Broken())
    assert len(Trace.from_json((tmp_path / "out.json").read_text()).events) == 3


def test_a_reader_who_leaves_is_no_error_and_the_trace_is_kept(monkeypatch, tmp_path):
    class Closed(Terminal):
        def write(self, _):
            raise BrokenPipeError

        def fileno(self):
            raise OSError

    monkeypatch.setattr(sys, "stdout", Closed(False))
    assert run("--trace", str(tmp_path / "out.json")) == 141
    assert Trace.from_json((tmp_path / "out.json").read_text()).events


# Replay


def keep(tmp_path, trace):
    file = tmp_path / "trace.json"
    file.write_text(trace if isinstance(trace, str) else trace.to_json())
    return str(file)


def test_a_sound_trace_checks_out(capsys, tmp_path):
    assert main(["replay", keep(tmp_path, sampled_trace(1, width=2))]) == 0
    assert "every accept, reject and draw checks out." in capsys.readouterr().out


def test_a_trace_of_a_wrong_rule_is_told_what_does_not_check_out(capsys, tmp_path):
    assert main(["replay", keep(tmp_path, sampled_trace(1, redraw_from_p=True))]) == 1
    out, _ = capsys.readouterr()
    assert "do not check out:\n  Lane speculative, step" in out


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format":"other"}', "\0", "[" * 100_000, "9" * 5000])
def test_a_damaged_or_foreign_trace_is_one_line(capsys, tmp_path, text):
    refused(capsys, main(["replay", keep(tmp_path, text)]))


def test_a_hostile_trace_neither_steers_the_terminal_nor_breaks_the_program(capsys, tmp_path):
    trace = recorded(FakeEngine(words=(EVIL,)), prompt=EVIL * 200, target=EVIL)
    trace.config |= {"temperature": EVIL, "draft_len": [EVIL], "max_new_tokens": None}
    trace.pieces = {i: Piece(piece.data, special=True) for i, piece in trace.pieces.items()}
    main(["replay", keep(tmp_path, trace)])
    out, err = capsys.readouterr()
    assert err == ""
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", out)


def test_a_trace_changed_at_random_is_shown_or_refused_but_never_a_traceback(capsys, tmp_path):
    text = recorded(max_new_tokens=12).to_json()
    spots = [found.span() for found in re.finditer(r"(?<=:)(-?[\d.e-]+|true|null|\[\])", text)]
    rng = random.Random(0)
    codes = set()
    for _ in range(150):
        changed = text
        for start, end in sorted(rng.sample(spots, 3), reverse=True):
            value = rng.choice(["-1", "0", "1", "1e308", "-1e308", "9" * 30, "null", "[]", "true", '"x"', "0.5"])
            changed = changed[:start] + value + changed[end:]
        codes.add(main(["replay", keep(tmp_path, changed)]))
        capsys.readouterr()
    assert codes <= {0, 1, 2}
    assert {1, 2} <= codes


def test_replay_and_help_start_without_the_model_libraries(tmp_path):
    file = keep(tmp_path, recorded(max_new_tokens=6))
    code = (
        "import sys; from specviz.cli.main import main\n"
        f"main(['replay', {file!r}])\n"
        "try: main(['--help'])\nexcept SystemExit: pass\n"
        "assert not {'torch', 'transformers', 'numpy', 'gradio', 'plotly'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, capture_output=True, timeout=60)


# Models, help


def test_models_lists_targets_and_drafts_with_what_is_known_of_them(capsys):
    assert main(["models", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert list(listed) == ["targets", "drafts"]
    for kind, rows in listed.items():
        assert all(list(row) == ["name", "kind", "params", "ready", "reason"] for row in rows)
        assert {row["kind"] for row in rows} == {kind[:-1]}
        assert all(row["ready"] or row["reason"] for row in rows)
    params = {row["name"]: row["params"] for row in listed["drafts"]}
    assert {"tiny", "lookup", "blank", "none"} <= set(params)
    assert params["tiny"] == 6_724_224
    assert main(["models"]) == 0
    printed = capsys.readouterr().out
    assert "smollm2-135m" in printed
    assert "6.7 M" in printed


@pytest.mark.parametrize("command", [[], ["run"], ["replay"], ["models"], ["bench"], ["index"], ["distill"]])
def test_every_command_explains_itself(capsys, command):
    with pytest.raises(SystemExit) as left:
        main([*command, "--help"])
    assert left.value.code == 0
    assert len(capsys.readouterr().out) > 200


def test_the_version_is_printed(capsys):
    with pytest.raises(SystemExit):
        main(["--version"])
    assert re.fullmatch(r"specviz \d+\.\d+\.\d+\n", capsys.readouterr().out)


# The real model


def specviz(*words):
    """A process of its own, since only there our settings come before the libraries are imported."""
    command = [sys.executable, "-m", "specviz", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)


@pytest.mark.real
def test_the_embedded_target_runs_and_nothing_but_our_lines_is_on_stderr(tmp_path):
    file = tmp_path / "out.json"
    words = "run --prompt Hello --draft lookup --max-new-tokens 6 --seed 1 --json --trace"
    done = specviz(*words.split(), str(file))
    result = json.loads(done.stdout)
    assert done.returncode == 0
    assert list(result) == JSON_KEYS
    assert result["identical"] is True
    assert result["text"] == plain_text(Trace.from_json(file.read_text()), "speculative")
    measuring = "Measuring how long a pass of smollm2-135m takes, .*"
    ours = rf"Loading smollm2-135m|{measuring}|\d+ of at most 6 tokens \(\d+%\)|The trace is in .*"
    assert all(re.fullmatch(ours, line) for line in done.stderr.splitlines()), done.stderr


@pytest.mark.real
def test_a_draft_that_cannot_be_had_is_one_line_although_the_target_was_loaded():
    done = specviz("run", "--prompt", "a", "--draft", "no-such-draft")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "no-such-draft" in done.stderr


@pytest.mark.real
@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--target no-such-target", "no-such-target"),
        ("--device cuda:99", "cuda"),
        ("--device toaster", "toaster"),
    ],
)
def test_a_target_or_device_that_cannot_be_had_is_one_line(capsys, words, says):
    code = main(["run", "--prompt", "a", *words.split()])
    assert says in refused(capsys, code)


def test_a_full_disk_under_the_output_is_one_line(capsys, monkeypatch):
    def full(*_args, **_more):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(sys.stdout, "write", full)
    assert main(["models"]) == 1
    monkeypatch.undo()
    assert capsys.readouterr().err.count("\n") == 1


def test_a_closed_output_swallows_what_it_is_given(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    assert main(["run", "--prompt", "x", "--json"], prepare=FakeEngine().prepare) == 0


@pytest.mark.parametrize("words", ["--trees --retrieval", "--trees --by-category", "--section engine --trees"])
def test_one_bench_at_a_time(words, capsys):
    assert "not allowed with" in refused(capsys, main(["bench", *words.split()]))


def test_the_bench_of_copying_keeps_its_two_files_where_it_is_told_and_prints_the_table(
    tmp_path, monkeypatch, capsys
):
    seen = {}

    def measured(chosen, folder, say):
        seen.update(drafts=chosen.drafts, quick=chosen.quick, folder=folder)
        say("Answering", 0.5)
        return {"of": "Copying"}

    monkeypatch.setattr("specviz.bench.measure_retrieval", measured)
    monkeypatch.setattr("specviz.bench.format_retrieval", lambda report: f"# {report['of']}\n")
    assert main(["bench", "--retrieval", "--quick", "--drafts", "mix", "--out", str(tmp_path)]) == 0
    assert seen == {"drafts": ("mix",), "quick": True, "folder": tmp_path}
    assert capsys.readouterr().out == "# Copying\n"
    assert main(["bench", "--retrieval"]) == 0
    assert seen["folder"] == ROOT / "assets" / "results"


def test_the_course_of_a_training_is_told_as_a_line_of_bars():
    line = course_in_bars([(10 * i, i / 100) for i in range(1, 101)])
    bars = line.split(": ")[1].split()[0]
    assert (len(bars), bars[0], bars[-1]) == (48, "▁", "█")
    assert list(bars) == sorted(bars)
    assert line.endswith("100.0% after 1,000 tokens seen")
    assert "▁▁ 50.0% after 9" in course_in_bars([(5, 0.5), (9, 0.5)])
