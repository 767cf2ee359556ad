"""Prompts in files: what is read, what is refused in which words, and what the bundled set promises."""

import json

import pytest

from specviz import models, prompts
from specviz.distill.chats import OPENINGS
from specviz.errors import ConfigError
from specviz.models import catalog
from specviz.prompts import BUNDLED, CATEGORIES, Prompt, bundled, read_file
from specviz.text import encode_prompt

MAX_TOKENS = 1500
LONG_OPENING_BYTES = 18


@pytest.fixture
def write(tmp_path):
    """Puts these lines (objects as JSON) into a file."""

    def written(*lines):
        path = tmp_path / "prompts.jsonl"
        texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
        path.write_text("\n".join(texts), encoding="utf-8")
        return path

    return written


# Reading.


def test_a_prompt_is_one_turn_or_several(write):
    path = write(
        {"prompt": "one", "id": 7}, "", {"turns": ["two", "三"], "category": "x", "id": "b"}, {"prompt": "4"}
    )
    assert read_file(path) == (
        Prompt("7", "", ("one",)),
        Prompt("b", "x", ("two", "三")),
        Prompt("line 4", "", ("4",)),
    )


@pytest.mark.parametrize("character", ["\u2028", "\x85", "\x0c", "\v"])
def test_only_a_line_feed_ends_a_line(write, character):
    path = write(json.dumps({"prompt": f"a{character}b"}, ensure_ascii=False), {"prompt": "c"})
    assert [prompt.turns[0] for prompt in read_file(path)] == [f"a{character}b", "c"]


def test_a_byte_order_mark_and_the_line_ends_of_windows_do_no_harm(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"prompt": "a"}\r\n{"prompt": "b"}\r\n')
    assert [prompt.turns[0] for prompt in read_file(path)] == ["a", "b"]


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("hello", "line 2 is not a prompt"),
        ("[" * 100_000, "line 2 is not a prompt"),
        ([1], "line 2 is not a prompt"),
        ({}, "needs one of prompt and turns"),
        ({"prompt": "a", "turns": ["b"]}, "needs one of prompt and turns"),
        ({"prompt": " \n"}, "not empty"),
        ({"prompt": None}, "not empty"),
        ({"prompt": "half \ud83d"}, "Unicode"),
        ({"turns": []}, "not empty"),
        ({"turns": "all one"}, "not empty"),
        ({"turns": ["a", 3]}, "not empty"),
        ({"prompt": "a", "catagory": "x"}, "unknown key 'catagory'"),
        ({"prompt": "a", "id": ""}, "the id ''"),
        ({"prompt": "a", "id": True}, "the id True"),
        ({"prompt": "a", "category": 1}, "the category 1"),
        ({"prompt": "a", "id": "first"}, "id 'first' of an earlier line"),
    ],
)
def test_a_line_that_is_no_prompt_is_refused_in_one_sentence(write, line, sentence):
    with pytest.raises(ConfigError, match=sentence) as refused:
        read_file(write({"prompt": "good", "id": "first"}, line))
    assert "line 2" in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [(None, "No such file"), (b"\xff\xfe\x00", "not UTF-8"), (b" \n\n", "holds no prompt")],
)
def test_a_file_that_holds_no_prompts_is_refused_in_one_sentence(tmp_path, content, sentence):
    path = tmp_path / "prompts.jsonl"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=sentence) as refused:
        read_file(path)
    assert str(path) in str(refused.value)


# The bundled set.


def test_the_set_has_ten_prompts_of_each_category():
    assert len(bundled()) == 80
    assert {path.stem for path in BUNDLED.glob("*.jsonl")} == set(CATEGORIES)
    for category in CATEGORIES:
        assert [prompt.category for prompt in bundled(category)] == [category] * 10
    assert bundled("code", "chinese") == (*bundled("code"), *bundled("chinese"))


def test_a_category_that_there_is_not_is_one_sentence():
    with pytest.raises(ConfigError, match=r"called 'maths'; choose from multi-turn, .*code\.$"):
        bundled("maths")


def test_a_set_with_a_file_missing_is_one_sentence(monkeypatch, tmp_path):
    monkeypatch.setattr(prompts, "BUNDLED", tmp_path)
    with pytest.raises(ConfigError, match="cannot be read"):
        bundled()


def test_no_id_and_no_turn_occurs_twice():
    turns = [turn for prompt in bundled() for turn in prompt.turns]
    assert len({prompt.id for prompt in bundled()}) == len(bundled())
    assert len(set(turns)) == len(turns)


def test_conversations_have_several_turns_and_all_else_one():
    assert all((len(prompt.turns) > 1) == (prompt.category == "multi-turn") for prompt in bundled())


def test_a_prompt_about_a_text_brings_the_text():
    about = bundled("summarisation", "retrieval-augmented")
    assert all(120 <= len(prompt.turns[0].split()) <= 400 for prompt in about)


def test_chinese_prompts_are_in_chinese():
    def share(text):
        letters = [char for char in text if char.isalpha()]
        return sum("\u4e00" <= char <= "\u9fff" for char in letters) / len(letters)

    assert all(share(prompt.turns[0]) > 0.8 for prompt in bundled("chinese"))


def test_nothing_of_the_set_is_what_drafts_are_trained_on():
    openings = {words.strip() for _, group in OPENINGS for words in group} - {""}
    turns = [turn for prompt in bundled() for turn in prompt.turns]
    assert openings.isdisjoint(turns)
    long = [words for words in openings if len(words.encode()) >= LONG_OPENING_BYTES]
    assert len(long) > 20
    assert [(words, turn) for words in long for turn in turns if words in turn] == []


@pytest.mark.real
def test_every_conversation_leaves_the_embedded_target_room_to_answer():
    _, tokenizer = models.load_plain(catalog.EMBEDDED)
    for prompt in bundled():
        num_tokens = len(encode_prompt(tokenizer, "\n".join(prompt.turns), raw=False))
        assert num_tokens <= MAX_TOKENS, prompt.id
