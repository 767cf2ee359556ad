"""A draft that learns what earlier ones miss: which positions weigh what, what comes of it, what is refused."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from test_distill import LIMITS, Parrot, make_target, settings, tokenizer
from tokenizer_makers import byte_level

from specviz.distill import distill
from specviz.distill.boost import COVERED, covered, gain, weighed
from specviz.distill.loss import Labels
from specviz.distill.store import Chat, read_chats
from specviz.distill.train import Batch
from specviz.errors import ConfigError, ModelError

__all__ = ["LIMITS", "tokenizer"]  # a fixture, which pytest finds by name


class Knows(Parrot):
    """A draft that says the next id is one more than the last, as far as it can count."""

    def __init__(self, most):
        self._most = most
        self.lm_head = SimpleNamespace(weight=torch.eye(50))

    def model(self, input_ids, use_cache):
        del use_cache
        said = torch.where(input_ids < self._most, input_ids + 1, 0)
        return SimpleNamespace(last_hidden_state=torch.eye(50)[said])


def batch():
    """One text 1 2 3 4 5 6, all of its followers scored over the classes 0 to 9 in reverse."""
    ids = torch.tensor([[1, 2, 3, 4, 5, 6]])
    classes = torch.arange(9, -1, -1)
    columns = 9 - torch.stack([ids[0, 1:], torch.zeros(5, dtype=torch.long)], 1)
    weights, tail = torch.full((5, 2), 0.08), torch.full((5,), 0.04)
    return Batch(ids, torch.arange(5), classes, Labels(columns, weights, tail, None), 5)


def test_a_position_is_covered_where_the_first_choice_of_any_earlier_draft_is_the_targets():
    assert covered([Knows(3)], batch()).tolist() == [True, True, False, False, False]
    assert covered([Knows(3), Knows(4)], batch()).tolist() == [True, True, True, False, False]
    assert covered([], batch()).tolist() == [False] * 5


def test_covered_positions_weigh_less_and_all_weights_add_up_as_before():
    made = batch()
    hit = torch.tensor([True, True, False, False, False])
    labels = weighed(made, hit).labels
    own = labels.weights.sum(1) + labels.tail
    assert own.sum() == pytest.approx(1.0)
    assert own[0] / own[2] == pytest.approx(COVERED)
    assert torch.allclose(labels.weights / own[:, None], made.labels.weights / 0.2), (
        "shares within a position stay"
    )
    assert torch.equal(made.labels.tail, torch.full((5,), 0.04)), "the batch itself stays"


def test_what_a_draft_adds_is_counted_where_all_earlier_ones_miss():
    ids = np.arange(1, 9)
    chat = Chat(0, True, 0.0, 1, 2, ids, ids[1:, None], np.zeros((7, 1), np.float16))

    class Model(Knows):
        def lm_head(self, hidden):
            return hidden

        def __init__(self, most):
            self._most = most

    found = gain(Model(7), [Model(3), Model(4)], [chat])
    assert (found.num_positions, found.num_missed, found.num_gained) == (6, 4, 3)
    assert gain(Model(3), [Model(7)], [chat]).num_gained == 0


def trained(tokenizer, tmp_path, name, *after, steps=60, **more):
    """A job over toys; an earlier draft is the folder that an earlier job left."""
    from specviz.models import load_plain

    given = settings(tmp_path, out=tmp_path / name, max_steps=steps, data_tokens=1500, after=after, **more)
    result = distill(
        given, loader=lambda which: (make_target(), tokenizer) if which == "toy" else load_plain(which)
    )
    return given.out, result


def test_a_companion_gets_more_of_what_its_elder_misses_than_a_twin_trained_alone(tokenizer, tmp_path):
    first, _ = trained(tokenizer, tmp_path, "first")
    companion, _ = trained(tokenizer, tmp_path, "companion", str(first))
    folder = next((tmp_path / "cache").iterdir())
    chats = [chat for chat in read_chats(folder) if chat.held_out]
    twin, _ = trained(tokenizer, tmp_path, "twin", seed=2)
    from specviz.models import load_plain

    elder, ours, other = (load_plain(str(folder))[0].eval() for folder in (first, companion, twin))
    with_companion, with_twin = gain(ours, [elder], chats), gain(other, [elder], chats)
    assert with_companion.num_missed == with_twin.num_missed > 0
    assert with_companion.num_gained > with_twin.num_gained
    card = (companion / "README.md").read_text()
    assert f"| trained after | {first} |" in card
    assert f"of {with_companion.num_missed:,} held-out positions" in card
    assert f"--after {first}" in card
    assert "boost-tuning" in card
    assert "boost-tuning" not in (twin / "README.md").read_text()


def test_what_comes_earlier_is_part_of_the_job(tokenizer, tmp_path):
    first, _ = trained(tokenizer, tmp_path, "first", steps=1)
    out, _ = trained(tokenizer, tmp_path, "second", str(first), steps=1)
    assert json.loads((out / "distill.json").read_text())["job"]["after"] == [str(first)]
    assert "after" not in json.loads((first / "distill.json").read_text())["job"], "older jobs go on"
    with pytest.raises(ConfigError, match="belongs to another job"):
        trained(tokenizer, tmp_path, "second", steps=1)


@pytest.mark.parametrize("kind", ["ngram", "pruned", "feature"])
def test_kinds_that_cannot_learn_what_others_miss_refuse_in_one_sentence(tmp_path, kind):
    with pytest.raises(
        ConfigError, match=rf"no meaning for --kind {kind}; leave it out, or choose --kind tiny\.$"
    ):
        settings(tmp_path, kind=kind, after=("tiny",))


def test_four_earlier_drafts_are_one_too_many(tmp_path):
    with pytest.raises(ConfigError, match="at most 3 can come earlier"):
        settings(tmp_path, after=("a",) * 4)


def test_an_earlier_draft_without_probabilities_or_with_other_tokens_is_refused(tokenizer, tmp_path):
    head = tmp_path / "head"
    head.mkdir()
    (head / "config.json").write_text('{"kind": "pruned"}')
    for name in ("ngram", str(head)):
        with pytest.raises(ModelError, match="no model of its own"):
            trained(tokenizer, tmp_path, "out", name)
    foreign = byte_level(["<x>", "</x>"])
    with pytest.raises(ModelError, match=r"other tokens than toy; name a draft of the same target\.$"):
        distill(
            settings(tmp_path, after=("odd",)),
            loader=lambda which: (make_target(), tokenizer if which == "toy" else foreign),
        )
    assert not (tmp_path / "draft").exists(), "a refused job leaves nothing behind"
