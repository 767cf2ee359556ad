"""Legal ranges of every setting, each end and just beyond it, and the JSON form."""

import dataclasses
import json
import math

import pytest

from specviz.config import (
    MAX_DRAFT_LEN,
    MAX_NEW_TOKENS,
    MAX_PROMPT_CHARS,
    MAX_SEED,
    MAX_STOP_STRINGS,
    RunConfig,
    TreePlan,
)
from specviz.errors import ConfigError

LEGAL = {
    "prompt": ["", "x" * MAX_PROMPT_CHARS],
    "draft_len": [1, 4, MAX_DRAFT_LEN, "auto", None],
    "tree": ["", "1", "3,2,1,1", "4, 4", "64", "1" + ",1" * 63, "auto", "auto:1", "auto:64"],
    "rule": ["standard", "naive"],
    "drafts": [(), ("a",), ("a", "b", "c", "d")],
    "temperature": [0, 0.0, 0.01, 1, 10.0],
    "top_k": [0, 1, 1_000_000],
    "top_p": [1e-9, 0.5, 1, 1.0],
    "repetition_penalty": [0.1, 1, 1.3, 10.0],
    "stop": [(), ("a",) * MAX_STOP_STRINGS],
    "max_new_tokens": [1, MAX_NEW_TOKENS],
    "min_new_tokens": [0, 128],
    "seed": [None, 0, MAX_SEED],
    "dtype": ["auto", "float32", "bfloat16", "float16"],
    "numerics": ["exact", "fast"],
}
ILLEGAL = {
    "prompt": ["x" * (MAX_PROMPT_CHARS + 1)],
    "draft_len": [0, -1, MAX_DRAFT_LEN + 1, 2.0, "4", "Auto", True],
    "tree": [
        "0",
        "3,,1",
        ",",
        "3,0",
        "-1",
        "3;2",
        "2.5",
        "Auto",
        "auto:",
        "auto:0",
        "auto:65",
        "auto:x",
        "auto:9,2",
        "65",
        "8,8",
        "1" + ",1" * 64,
        "9" * 99,
        "1," * 500_000,
        "tree",
    ],
    "rule": ["", "Standard", "coupled", None],
    "drafts": [tuple("abcde"), ("a", "b", "a")],
    "temperature": [-0.1, 10.1, math.nan, math.inf, -math.inf, "1", None, True, 10**400, 1e-40, 0.0009],
    "top_k": [-1, 1_000_001, 2.0, False],
    "top_p": [0, 0.0, -0.1, 1.1, math.nan],
    "repetition_penalty": [0, 0.09, 10.1, math.nan, math.inf],
    "stop": [("",), ("a", ""), ("a",) * (MAX_STOP_STRINGS + 1)],
    "max_new_tokens": [0, MAX_NEW_TOKENS + 1, 1.5],
    "min_new_tokens": [-1, 129],
    "seed": [-1, MAX_SEED + 1, 1.0, "7"],
    "dtype": ["fp32", "", "int8", []],
    "numerics": ["", "Exact", None],
}


@pytest.mark.parametrize(("name", "value"), [(n, v) for n, values in LEGAL.items() for v in values])
def test_values_up_to_both_ends_of_a_range_are_legal(name, value):
    assert getattr(RunConfig(**{name: value}), name) == value


@pytest.mark.parametrize(("name", "value"), [(n, v) for n, values in ILLEGAL.items() for v in values])
def test_what_is_out_of_range_is_refused_in_one_sentence(name, value):
    with pytest.raises(ConfigError) as refused:
        RunConfig(**{name: value})
    sentence = str(refused.value)
    assert sentence.endswith(".")
    assert not sentence[0].islower()
    assert "\n" not in sentence
    assert len(sentence) < 600


@pytest.mark.parametrize(
    ("value", "legal"),
    [({"temperature": -1}, "0.0 to 10.0"), ({"draft_len": 99}, '1 to 32 or "auto"'), ({"top_p": 0}, "above 0")],
)
def test_the_sentence_names_what_was_given_and_what_is_legal(value, legal):
    with pytest.raises(ConfigError) as refused:
        RunConfig(**value)
    assert str(*value.values()) in str(refused.value)
    assert legal in str(refused.value)


@pytest.mark.parametrize(
    ("more", "parts"),
    [
        ({"tree": "3,,1"}, ["'3,,1'", "3,2,1,1", "auto:N"]),
        ({"tree": "8,8"}, ["8,8", "72 nodes", "at most 64"]),
        ({"tree": "1" + ",1" * 200}, ["comes to 201 nodes"]),
        ({"tree": "1" * 50}, ["comes to more than 9,999 nodes"]),
        ({"tree": "99" + ",99" * 999}, ["comes to more than 9,999 nodes"]),
        ({"tree": "4,4", "drafts": tuple("abcd")}, ["from each of 4 drafts", "80 nodes"]),
        ({"drafts": tuple("abcde")}, ["5 drafts", "at most 4"]),
        ({"drafts": ("tiny", "lookup", "tiny")}, ["'tiny' is given twice", "give it once"]),
    ],
)
def test_a_tree_or_too_many_drafts_are_refused_with_what_was_given_and_what_is_legal(more, parts):
    with pytest.raises(ConfigError) as refused:
        RunConfig(**more)
    assert all(part in str(refused.value) for part in parts)


@pytest.mark.parametrize(
    ("text", "plain"),
    [("0000000000003,2", "3,2"), ("auto:0000000000005", "auto:5"), (" auto ", "auto"), (" 3, 2 ", "3,2")],
)
def test_a_tree_may_have_leading_zeros_and_spaces(text, plain):
    assert TreePlan.parse(text) == TreePlan.parse(plain)


def test_a_draft_that_is_none_grows_no_tree_of_its_own():
    assert RunConfig(tree="4,4,2", drafts=("a", "none")).tree_plan.num_nodes == 52
    with pytest.raises(ConfigError, match="from each of 2 drafts comes to 104 nodes"):
        RunConfig(tree="4,4,2", drafts=("a", "none", "b"))


def test_a_tree_auto_shares_its_budget_among_the_drafts():
    assert RunConfig(tree="auto:64", drafts=tuple("abcd")).tree_plan.num_nodes == 64
    assert RunConfig(tree="auto").tree_plan == TreePlan()
    assert RunConfig(tree="3,2,1").tree_plan == TreePlan(widths=(3, 2, 1), num_nodes=15)
    assert RunConfig().tree_plan is None


def test_the_minimum_of_new_tokens_may_not_pass_the_maximum():
    assert RunConfig(min_new_tokens=5, max_new_tokens=5).min_new_tokens == 5
    with pytest.raises(ConfigError, match="minimum of new tokens"):
        RunConfig(min_new_tokens=6, max_new_tokens=5)


def test_a_config_cannot_change_and_a_misspelt_setting_is_an_error():
    with pytest.raises(dataclasses.FrozenInstanceError):
        RunConfig().temperature = 1.0  # type: ignore[misc]
    with pytest.raises(TypeError):
        RunConfig(temprature=1.0)  # type: ignore[call-arg]


def test_every_setting_survives_its_json_form():
    config = RunConfig(
        prompt="é\n",
        target="t",
        drafts=("a", "lookup"),
        references=("notes.md", "a.txt"),
        prompt_references=("a.txt",),
        min_match=3,
        copy_len=5,
        copy_sources=("references", "output"),
        draft_len="auto",
        tree="3,2",
        rule="naive",
        temperature=0.7,
        top_k=5,
        top_p=0.9,
        repetition_penalty=1.3,
        stop=("STOP", "\n\n"),
        ignore_eos=True,
        min_new_tokens=2,
        max_new_tokens=9,
        seed=MAX_SEED,
        raw=True,
        baseline=False,
        dtype="float32",
        device="cpu",
        numerics="fast",
    )
    unlike_defaults = [f.name for f in dataclasses.fields(config) if getattr(config, f.name) == f.default]
    assert unlike_defaults == []
    assert RunConfig.from_json(json.loads(json.dumps(config.to_json()))) == config


@pytest.mark.parametrize(
    "data",
    [
        {"temprature": 1},
        {"temperature": "hot"},
        {"temperature": 10**400},
        {"prompt": 5},
        {"prompt": None},
        {"target": ["a"]},
        {"drafts": "tiny"},
        {"drafts": [1]},
        {"stop": [None]},
        {"stop": {"a": 1}},
        {"ignore_eos": 1},
        {"raw": "yes"},
        {"baseline": None},
        {"draft_len": [4]},
        {"seed": True},
    ],
)
def test_foreign_json_settings_are_refused_in_one_sentence(data):
    with pytest.raises(ConfigError) as refused:
        RunConfig.from_json(data)
    assert str(refused.value).endswith(".")
    assert str(refused.value)[0].isupper()
