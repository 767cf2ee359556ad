"""A draft that learns what earlier ones miss: which positions weigh what, what comes of it, what is refused."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from test_distill import LIMITS, Parrot, make_target, settings, tokenizer
from test_distill_heads import deep_chats, deep_target
from tokenizer_makers import byte_level
from transformers import LlamaConfig, LlamaForCausalLM

from specviz.distill import distill
from specviz.distill.boost import COVERED, Earlier, gain, weighed
from specviz.distill.loss import Labels
from specviz.distill.measure import first_choices
from specviz.distill.store import Chat, read_chats
from specviz.errors import ConfigError, ModelError
from specviz.models import load_plain

__all__ = ["LIMITS", "deep_chats", "tokenizer"]  # fixtures, which pytest finds by name


@pytest.fixture(scope="module")
def chats(tmp_path_factory):
    """What the toy wrote, for all jobs of this file."""
    return tmp_path_factory.mktemp("chats")


class Knows(Parrot):
    """A draft that says the next id is one more than the last, as far as it can count."""

    def __init__(self, most):
        self._most = most

    def model(self, input_ids, use_cache):
        del use_cache
        said = torch.where(input_ids < self._most, input_ids + 1, 0)
        return SimpleNamespace(last_hidden_state=torch.eye(50)[said])

    def lm_head(self, hidden):
        return hidden


def counting(first_row=1, answer_start=2, index=0):
    """The chat 1 2 3 4 5 6 7 8."""
    ids = np.arange(1, 9)
    tops = ids[first_row:, None]
    return Chat(index, True, 0.0, first_row, answer_start, ids, tops, np.zeros(tops.shape, np.float16))


def test_a_position_is_covered_where_the_first_choice_of_any_earlier_draft_is_the_targets():
    assert Earlier({"three": Knows(3)}).hits(counting()).tolist() == [True, True] + [False] * 5
    both = Earlier({"three": Knows(3), "four": Knows(4)})
    assert both.hits(counting()).tolist() == [True, True, True] + [False] * 4
    assert both.answer_hits(counting()).tolist() == [True, True] + [False] * 4
    assert both.hits(counting(first_row=3, answer_start=4, index=1)).tolist() == [True] + [False] * 4
    assert both
    assert not Earlier({})


def test_covered_positions_weigh_less_and_their_sum_stays():
    labels = Labels(torch.zeros(5, 2).long(), torch.full((5, 2), 0.08), torch.full((5,), 0.04), None)
    made = weighed(labels, [np.array([True, True]), np.array([False, False, False])])
    own = made.weights.sum(1) + made.tail
    assert own.sum() == pytest.approx(1.0)
    assert own[0] / own[2] == pytest.approx(COVERED)
    assert torch.allclose(made.weights / own[:, None], labels.weights / 0.2), "shares within a position stay"
    assert torch.equal(labels.tail, torch.full((5,), 0.04)), "the given labels stay"


def answered(draft):
    return lambda chat: first_choices(draft, chat, chat.answer_start)


def test_what_a_draft_adds_is_counted_where_all_earlier_ones_miss():
    found = gain(answered(Knows(7)), Earlier({"three": Knows(3), "four": Knows(4)}), [counting()])
    assert (found.num_positions, found.num_missed, found.num_gained) == (6, 4, 3)
    assert dict(found.rows())["right where they miss"] == "0.750 of 4 held-out positions, of 6 in all"
    assert gain(answered(Knows(3)), Earlier({"seven": Knows(7)}), [counting()]).num_gained == 0


def trained(tokenizer, chats, folder, *after, steps=60, **more):
    """A job over toys; an earlier draft is the folder that an earlier job left."""
    given = settings(folder, out=folder, max_steps=steps, data_tokens=1500, after=after, cache=chats, **more)
    result = distill(
        given, loader=lambda which: (make_target(), tokenizer) if which == "toy" else load_plain(which)
    )
    return given.out, result


def test_a_companion_gets_more_of_what_its_elder_misses_than_a_twin_trained_alone(tokenizer, chats, tmp_path):
    first, _ = trained(tokenizer, chats, tmp_path / "first")
    companion, _ = trained(tokenizer, chats, tmp_path / "companion", str(first))
    held_out = [chat for chat in read_chats(next(chats.iterdir())) if chat.held_out]
    twin, _ = trained(tokenizer, tmp_path / "others", tmp_path / "twin", seed=2)
    elder, ours, other = (load_plain(str(folder))[0].eval() for folder in (first, companion, twin))
    earlier = Earlier({"first": elder})
    with_companion, with_twin = gain(answered(ours), earlier, held_out), gain(answered(other), earlier, held_out)
    assert with_companion.num_missed == with_twin.num_missed > 0
    assert with_companion.num_gained > with_twin.num_gained
    card = (companion / "README.md").read_text()
    assert f"| trained after | {first} |" in card
    assert f"of {with_companion.num_missed:,} held-out positions" in card
    assert f"--after {first}" in card
    assert "boost-tuning" in card
    assert "boost-tuning" not in (twin / "README.md").read_text()


def test_its_elders_change_what_a_head_learns_and_its_card_says_so(tokenizer, chats, tmp_path):
    first, _ = trained(tokenizer, chats, tmp_path / "first")

    def head(name, *after):  # learns from the chats of its elder's target, some of which that one knows
        given = settings(tmp_path, out=tmp_path / name, kind="pruned", after=after, cache=chats)
        distill(given, loader=lambda which: (deep_target(), tokenizer) if which == "toy" else load_plain(which))
        return (given.out / "README.md").read_text(), (given.out / "model.safetensors").read_bytes()

    companion, twin = head("companion", str(first)), head("twin")
    assert f"| trained after | {first} |" in companion[0]
    assert "boost-tuning" in companion[0]
    assert "boost-tuning" not in twin[0]
    assert companion[1] != twin[1]


@pytest.mark.parametrize("kind", ["tiny", "pruned", "pruned-two", "feature"])
def test_training_goes_on_from_the_weights_of_a_finished_draft(kind, tokenizer, deep_chats, tmp_path):
    def made(name, steps, **more):
        more |= {"kind": kind, "max_steps": steps, "data_tokens": 300, "cache": deep_chats}
        given = settings(tmp_path, out=tmp_path / name, **more)
        distill(given, loader=lambda which: (deep_target(), tokenizer) if which == "toy" else load_plain(which))
        weights = load_file(given.out / "model.safetensors")
        return given.out, torch.cat([w.float().flatten() for name, w in weights.items() if name != "kept_ids"])

    first, learned = made("first", 20)
    _, fresh = made("fresh", 1)
    further, gone_on = made("further", 1, start=str(first))
    assert (gone_on - learned).norm() < 0.2 * (fresh - learned).norm(), "one gentle step"
    card = (further / "README.md").read_text()
    assert f"| started from | the draft {first} |" in card
    assert f"--start {first}" in card
    assert json.loads((further / "distill.json").read_text())["job"]["start"] == str(first)


@pytest.mark.parametrize("kind", ["tiny", "pruned", "feature", "ngram"])
def test_what_cannot_be_trained_further_is_one_sentence(kind, tokenizer, tmp_path):
    other = tmp_path / "other"
    config = LlamaConfig(
        vocab_size=50, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1
    )
    LlamaForCausalLM(config).save_pretrained(other)
    tokenizer.save_pretrained(other)
    with pytest.raises(ModelError, match=r"^[^\n]*--start .*\.$"):
        distill(
            settings(tmp_path, kind=kind, start=str(other)),
            loader=lambda which: (deep_target(), tokenizer) if which == "toy" else load_plain(which),
        )
    assert not (tmp_path / "draft").exists(), "a refused job leaves nothing behind"


def test_what_comes_earlier_is_part_of_the_job(tokenizer, chats, tmp_path):
    first, _ = trained(tokenizer, chats, tmp_path / "first", steps=1)
    out, _ = trained(tokenizer, chats, tmp_path / "second", str(first), steps=1)
    assert json.loads((out / "distill.json").read_text())["job"]["after"] == [str(first)]
    assert "after" not in json.loads((first / "distill.json").read_text())["job"], "older jobs go on"
    with pytest.raises(ConfigError, match="belongs to another job"):
        trained(tokenizer, chats, tmp_path / "second", steps=1)


@pytest.mark.parametrize("kind", ["ngram", "feature"])
def test_kinds_that_cannot_learn_what_others_miss_refuse_in_one_sentence(tmp_path, kind):
    with pytest.raises(
        ConfigError,
        match=rf"for --kind {kind}; leave it out, or choose --kind tiny or pruned or pruned-two",
    ):
        settings(tmp_path, kind=kind, after=("tiny",))


def test_four_earlier_drafts_are_one_too_many(tmp_path):
    with pytest.raises(ConfigError, match="at most 3 can come earlier"):
        settings(tmp_path, after=("a",) * 4)


def test_an_earlier_draft_without_probabilities_or_with_other_tokens_is_refused(tokenizer, chats, tmp_path):
    head = tmp_path / "head"
    head.mkdir()
    (head / "config.json").write_text('{"kind": "pruned"}')
    for name in ("ngram", str(head)):
        with pytest.raises(ModelError, match="no model of its own"):
            trained(tokenizer, chats, tmp_path / "out", name)
    foreign = byte_level(["<x>", "</x>"])
    with pytest.raises(ModelError, match=r"other tokens than toy; name a draft of the same target\.$"):
        distill(
            settings(tmp_path, after=("odd",)),
            loader=lambda which: (make_target(), tokenizer if which == "toy" else foreign),
        )
    assert not (tmp_path / "draft").exists(), "a refused job leaves nothing behind"
