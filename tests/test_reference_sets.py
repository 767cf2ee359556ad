"""The bundled reference sets: their form, that prompts lean on their texts, that the program among them runs."""

import json
import subprocess
import sys
from difflib import SequenceMatcher

import pytest

from specviz import models
from specviz.models import catalog
from specviz.text import encode_prompt

FOLDER = catalog.ASSETS / "references"
NAMES = ("article", "code", "contract")
CATEGORIES = {"summarise", "quote", "edit", "ask"}
MAX_TOKENS = 1800
PASSAGE_CHARACTERS = 150


def load(name):
    return json.loads((FOLDER / name / "set.json").read_text(encoding="utf-8"))


def texts(name):
    return [(FOLDER / name / file).read_text(encoding="utf-8").strip() for file in load(name)["files"]]


def test_there_are_three_sets_and_no_file_without_use():
    assert {path.parent.name for path in FOLDER.glob("*/set.json")} == set(NAMES)
    for name in NAMES:
        assert {path.name for path in (FOLDER / name).iterdir()} == {"set.json", *load(name)["files"]}


@pytest.mark.parametrize("name", NAMES)
def test_a_set_has_its_form(name):
    data = load(name)
    assert set(data) == {"name", "title", "files", "prompts"}
    assert data["name"] == name
    assert 4 <= len(data["prompts"]) <= 6
    for prompt in data["prompts"]:
        assert set(prompt) == {"id", "category", "in_prompt", "prompt"}
        assert prompt["id"].startswith(f"{name}-")
        assert prompt["category"] in CATEGORIES
        assert isinstance(prompt["in_prompt"], bool)
        assert prompt["prompt"].strip()


def test_no_prompt_occurs_twice():
    prompts = [prompt for name in NAMES for prompt in load(name)["prompts"]]
    assert len({prompt["id"] for prompt in prompts}) == len(prompts)
    assert len({prompt["prompt"] for prompt in prompts}) == len(prompts)


@pytest.mark.parametrize("name", NAMES)
def test_a_prompt_without_the_texts_before_it_carries_a_passage_of_them(name):
    whole = "\n\n".join(texts(name))
    for prompt in load(name)["prompts"]:
        matcher = SequenceMatcher(None, whole, prompt["prompt"], autojunk=False)
        common = matcher.find_longest_match().size
        assert (common >= PASSAGE_CHARACTERS) is not prompt["in_prompt"], prompt["id"]


@pytest.mark.parametrize(("name", "least", "most"), [("article", 600, 900), ("contract", 900, 1400)])
def test_texts_are_as_long_as_they_should_be(name, least, most):
    assert least <= sum(len(text.split()) for text in texts(name)) <= most


def test_the_program_to_edit_lends_lists_and_takes_back(tmp_path):
    assert 120 <= len(texts("code")[0].splitlines()) <= 200

    def lending(*words):
        command = [sys.executable, FOLDER / "code" / "lending.py", "--file", tmp_path / "loans.json", *words]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    assert "drill" in lending("lend", "drill", "Ann").stdout
    assert "drill is with Ann" in lending("lend", "drill", "Bo").stderr
    assert "Ann" in lending("list").stdout
    assert lending("overdue").stdout == ""
    assert lending("return", "drill").stdout == "Fee: 0.00\n"
    assert lending("list").stdout == ""
    assert "not lent out" in lending("return", "drill").stderr


@pytest.mark.real
@pytest.mark.parametrize("name", NAMES)
def test_the_embedded_target_has_room_for_the_texts_and_an_answer(name):
    _, tokenizer = models.load_plain(catalog.EMBEDDED)
    for prompt in load(name)["prompts"]:
        given = "\n\n".join([*texts(name), prompt["prompt"]])
        assert len(encode_prompt(tokenizer, given, raw=False)) <= MAX_TOKENS, prompt["id"]
