"""Distillation on toys: the data are the target's own words, the loss is exact, a kill loses nothing."""

import errno
import json
import os
from functools import partial
from itertools import count

import numpy as np
import pytest
import torch
import toys
from tokenizer_makers import byte_level
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig

from specviz.distill import DistillSettings, distill
from specviz.distill.chats import HELD_OUT_EVERY, TEMPERATURES, Limits, Planner, read_template
from specviz.distill.counting import count as count_chats
from specviz.distill.generate import Writer
from specviz.distill.job import check_memory
from specviz.distill.kinds import ngram as ngram_kind
from specviz.distill.loss import Labels, choose_classes, soft_shares, top_and_tail
from specviz.distill.measure import agreement
from specviz.distill.settings import read_prompts
from specviz.distill.store import TOP, Chat, finished, read_chats, write_shard
from specviz.distill.student import build, tiny_config
from specviz.distill.teacher import Candidates, Teacher, candidates, draw
from specviz.drafts.ngram import NgramTable
from specviz.errors import ConfigError, ContextError, ModelError
from specviz.models.catalog import COUNTS_FILE

TEMPLATE = (
    "{% for m in messages %}<s>{{ m['role'] }}\n{{ m['content'] }}</s>\n{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant\n{% endif %}"
)
LIMITS = Limits(num_rows=8, max_user=10, max_answer=12, min_user=2)
VOCAB = 258


@pytest.fixture(scope="module")
def tokenizer():
    made = byte_level(["<s>", "</s>"], bos_token="<s>", eos_token="</s>")
    made.chat_template = TEMPLATE
    return made


def make_target(**more):
    shape = {"vocab_size": VOCAB, "hidden_size": 128, "intermediate_size": 512, "num_hidden_layers": 4}
    shape |= {"eos_token_id": VOCAB - 1, "bos_token_id": VOCAB - 2, "initializer_range": 0.05}
    return toys.build(LlamaConfig(**{**toys.SHAPE, **shape, **more}), attention="sdpa")


@pytest.fixture(scope="module")
def target():
    return make_target()


def write(target, tokenizer, folder, num_tokens=150, limits=LIMITS, report=lambda _: True):
    template = read_template(tokenizer)
    max_len = limits.max_len(template, Planner(tokenizer, (), 3, 1).longest_given)
    planner = Planner(tokenizer, (), 3, max_len)
    teacher = Teacher(target, limits.num_rows, max_len)
    clock = count(0, 10).__next__  # so that shards are saved every few passes
    writer = Writer(teacher, planner, template, limits, frozenset({VOCAB - 1}), folder, VOCAB, clock)
    writer.run(num_tokens, report)
    return read_chats(folder, num_tokens)


def same(one, two):
    fields = ("index", "held_out", "temperature", "first_row", "answer_start")
    assert [[getattr(c, f) for f in fields] for c in one] == [[getattr(c, f) for f in fields] for c in two]
    for a, b in zip(one, two, strict=True):
        assert a.ids.tolist() == b.ids.tolist()
        assert np.array_equal(a.top_ids[:, 0], b.top_ids[:, 0])
        assert np.allclose(a.top_logps, b.top_logps, atol=0.01)


def settings(tmp_path, **more):
    given = {"target": "toy", "out": tmp_path / "draft", "minutes": 5, "data_tokens": 400, "max_steps": 6}
    return DistillSettings(**{**given, "cache": tmp_path / "cache", "limits": LIMITS, "seed": 1, **more})


# Data


def test_the_chats_are_what_the_target_says_and_expects(tokenizer, tmp_path):
    chats = write(make_target(), tokenizer, tmp_path)
    target = make_target()  # with transformers' own attention
    assert sum(chat.num_answer for chat in chats) >= 150
    greedy = 0
    for chat in chats:
        with torch.no_grad():
            logps = target(torch.tensor(chat.ids)[None]).logits[0].log_softmax(-1)[chat.first_row - 1 : -1]
        top = logps.topk(TOP).values
        assert torch.allclose(torch.from_numpy(chat.top_logps).float(), top, atol=0.01)
        if chat.temperature == 0:
            ours = torch.from_numpy(chat.ids[chat.answer_start :])
            assert torch.equal(ours, logps.argmax(-1)[chat.answer_start - chat.first_row :])
            greedy += 1
    assert greedy


def test_the_same_seed_gives_the_same_data_whatever_the_batch(target, tokenizer, tmp_path):
    one = write(target, tokenizer, tmp_path / "a")
    two = write(target, tokenizer, tmp_path / "b", limits=Limits(5, 10, 12, 2))
    same(one, two)


def test_a_kill_changes_nothing_of_the_data(target, tokenizer, tmp_path):
    whole = write(target, tokenizer, tmp_path / "whole")
    for passes in (30, 60):
        ticks = count()

        def die(_, ticks=ticks, passes=passes):
            if next(ticks) > passes:
                raise KeyboardInterrupt
            return True

        with pytest.raises(KeyboardInterrupt):
            write(target, tokenizer, tmp_path / "cut", report=die)
    assert finished(tmp_path / "cut")
    same(write(target, tokenizer, tmp_path / "cut"), whole)


def test_a_kill_while_the_last_chats_end_changes_nothing_of_the_data(target, tokenizer, tmp_path):
    whole = write(target, tokenizer, tmp_path / "whole")
    enough = sum(chat.num_answer for chat in whole) // 2
    folder, half = tmp_path / "cut", partial(write, target, tokenizer, num_tokens=enough)

    def die(total):
        if total >= enough:
            raise KeyboardInterrupt
        return True

    with pytest.raises(KeyboardInterrupt):
        half(folder, report=die)
    killed = set(finished(folder))
    assert killed != set(range(len(killed))), "some that were begun before the last finished one are missing"
    same(half(folder), half(tmp_path / "uncut"))


def test_a_full_disk_is_one_sentence_and_keeps_what_was_written(target, tokenizer, tmp_path, monkeypatch):
    chats = write(target, tokenizer, tmp_path)
    before = sorted(tmp_path.iterdir())

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(ConfigError, match="disk is full"):
        write_shard(tmp_path, chats[:1], VOCAB)
    assert sorted(tmp_path.iterdir()) == before


def test_greedy_is_the_lowest_id_of_equal_logits():
    logits = torch.zeros(2, 100)
    logits[0, [70, 30, 90]] = 5
    logits[1, 8] = 1
    found = candidates(logits)
    assert found.ids[:, 0].tolist() == [30, 8]
    assert sorted(found.ids[0, :3].tolist()) == [30, 70, 90]
    assert len(set(found.ids[0].tolist())) == found.ids.shape[1]


def test_draws_follow_the_temperature():
    found = Candidates(torch.arange(3).repeat(1000, 1), torch.log(torch.tensor([0.5, 0.3, 0.2])).repeat(1000, 1))
    uniforms = (torch.arange(1000, dtype=torch.float64) + 0.5) / 1000
    at_one = draw(found, torch.ones(1000), uniforms).bincount(minlength=3)
    assert at_one.tolist() == [500, 300, 200]
    assert draw(found, torch.zeros(1000), uniforms).unique().tolist() == [0]


def test_own_prompts_come_at_every_temperature_and_are_held_out_whole(tokenizer):
    planner = Planner(tokenizer, tuple(f"prompt {i}" for i in range(HELD_OUT_EVERY)), 0, 50)
    plans = [planner.plan(i) for i in range(len(TEMPERATURES) * HELD_OUT_EVERY)]
    assert all(plan.complete for plan in plans)
    assert [plan.temperature for plan in plans[:3]] == list(TEMPERATURES)
    held_out = [plan for plan in plans if plan.held_out]
    assert {plan.opening for plan in held_out} == {plans[-1].opening}
    assert len(held_out) == len(TEMPERATURES)
    assert not planner.plan(len(plans)).complete


# Loss


def test_the_loss_and_its_gradient_are_exact():
    torch.manual_seed(0)
    hidden = torch.randn(7, 5, dtype=torch.float64, requires_grad=True)
    head = torch.randn(11, 5, dtype=torch.float64, requires_grad=True)
    columns = torch.stack([torch.randperm(11)[:3] for _ in range(7)])
    weights, tail = torch.rand(7, 3, dtype=torch.float64), torch.rand(7, dtype=torch.float64)
    prior = torch.randn(11, dtype=torch.float64)
    loss = top_and_tail(hidden, head, Labels(columns, weights, tail, prior))
    loss.backward()
    ours = hidden.grad.clone(), head.grad.clone()
    hidden.grad = head.grad = None
    logps = (hidden @ head.T + prior).log_softmax(-1).gather(1, columns)
    reference = -(weights * logps).sum() - (tail * (1 - logps.exp().sum(1)).log()).sum()
    reference.backward()
    assert loss.item() == pytest.approx(reference.item(), rel=1e-12)
    assert torch.allclose(ours[0], hidden.grad, atol=1e-12)
    assert torch.allclose(ours[1], head.grad, atol=1e-12)


def test_a_sample_of_classes_stands_for_all():
    ids, prior = choose_classes(np.array([[3, 5], [900, 3]]), 1000, 50, np.random.default_rng(0))
    assert {3, 5, 900} <= set(ids.tolist())
    assert np.exp(prior.astype(float)).sum() == pytest.approx(1000)
    everything, none = choose_classes(np.array([[1, 2]]), 60, 50, np.random.default_rng(0))
    assert len(everything) == 60
    assert none is None


def test_shares_add_up_to_one():
    logps = np.log(np.array([[0.5, 0.2], [0.999, 0.001]])).astype(np.float16)
    weights, tail = soft_shares(logps, 0.25)
    assert np.allclose(weights.sum(1) + tail, 1, atol=1e-3)
    assert weights[0].tolist() == pytest.approx([0.25 + 0.75 * 0.5, 0.75 * 0.2], abs=1e-3)


# Measuring


class Parrot:
    """A draft that says the next id is one more than the last."""

    training, device = False, torch.device("cpu")

    def eval(self):
        return self

    def train(self, _):
        return self

    def model(self, input_ids, use_cache):
        del use_cache
        return type("Output", (), {"last_hidden_state": torch.eye(50)[(input_ids + 1) % 50]})

    def lm_head(self, hidden):
        return hidden


def test_agreement_and_what_it_is_worth():
    ids = np.array([9, 1, 2, 3, 4, 9, 5, 6])
    chat = Chat(0, True, 0.0, 1, 2, ids, ids[1:, None], np.zeros((7, 1), np.float16))
    found = agreement(Parrot(), [chat], draft_len=2)
    # of 2 3 4 9 5 6 the parrot says 2 3 4 and 6; passes: 2 3 4 | 9 | 5 | 6
    assert found.rate == pytest.approx(4 / 6)
    assert found.replays == (("chains of 2", pytest.approx(6 / 4)),)
    assert (found.num_positions, found.num_chats) == (6, 1)


# The whole job


def test_a_job_leaves_a_draft_that_transformers_reads_and_a_card(target, tokenizer, tmp_path):
    reports = []
    given = settings(tmp_path)
    result = distill(given, progress=reports.append, loader=lambda _: (make_target(), tokenizer))
    draft = AutoModelForCausalLM.from_pretrained(given.out, dtype=torch.bfloat16)
    assert draft.num_parameters() <= target.num_parameters() // 20
    assert draft.config.vocab_size == VOCAB
    assert AutoTokenizer.from_pretrained(given.out).get_vocab() == tokenizer.get_vocab()
    assert result.progress.step == 6
    assert result.agreement.num_positions > 0
    assert reports[0].stage == "load"
    assert {report.stage for report in reports} == {"load", "data", "train", "measure", "done"}
    card = (given.out / "README.md").read_text()
    for expected in (
        f"{result.num_answer_tokens:,} answer tokens",
        f"{result.progress.tokens_seen:,} in 6 steps",
        f"{result.agreement.rate:.3f} of {result.agreement.num_positions:,} positions",
        f"{draft.num_parameters():,}",
        "--target toy --out draft --kind tiny --minutes 5 --data-tokens 400 --seed 1",
    ):
        assert expected in card
    assert not (given.out / "checkpoint.pt").exists()
    with pytest.raises(ConfigError, match="finished draft"):
        distill(given, loader=lambda _: (make_target(), tokenizer))


def test_a_job_for_counts_leaves_their_file_the_same_each_time_and_a_card(tokenizer, tmp_path):
    reports = []
    given = [settings(tmp_path, kind="ngram", data_tokens=1500, out=tmp_path / name) for name in ("one", "two")]
    results = [
        distill(each, progress=reports.append, loader=lambda _: (make_target(), tokenizer)) for each in given
    ]
    first, second = ((each.out / COUNTS_FILE).read_bytes() for each in given)
    assert first == second
    table = NgramTable.open(given[0].out / COUNTS_FILE)
    table.check_tokens(tokenizer, VOCAB, "toy")
    measured = results[0].agreement
    assert 0 < measured.rate < 1
    assert measured.num_chats > 0
    assert dict(measured.replays)["mix, 8 nodes"] >= 1
    assert {report.stage for report in reports} == {"load", "data", "train", "measure", "done"}
    card = (given[0].out / "README.md").read_text()
    for expected in (
        f"{len(table.ids):,} probabilities behind {len(table.keys):,} contexts",
        f"| bytes | {len(first):,} |",
        f"{measured.rate:.3f} of {measured.num_positions:,} positions",
        "with mix, 8 nodes",
        "library_name: specviz",
        "--kind ngram",
    ):
        assert expected in card


def test_held_out_chats_are_not_counted(tokenizer, tmp_path, monkeypatch):
    counted = []
    monkeypatch.setattr(
        ngram_kind, "count", lambda chats, **more: counted.extend(chats) or count_chats(chats, **more)
    )
    given = settings(tmp_path, kind="ngram", data_tokens=1500)
    distill(given, loader=lambda _: (make_target(), tokenizer))
    chats = read_chats(next((tmp_path / "cache").iterdir()))
    held_out = {chat.index for chat in chats if chat.held_out}
    aside = {chat.index for chat in chats if chat.temperature > 0 and chat.index % 20 == 10}
    assert held_out
    assert aside
    assert not (held_out | aside) & {chat.index for chat in counted}


def test_a_job_killed_in_training_goes_on_where_it_was(tokenizer, tmp_path):
    def die(report):
        if report.message.startswith("step 4"):
            raise KeyboardInterrupt

    given = settings(tmp_path, minutes=100_000)
    with pytest.raises(KeyboardInterrupt):
        distill(given, progress=die, loader=lambda _: (make_target(), tokenizer), clock=count(0, 61).__next__)
    steps = []
    result = distill(
        given,
        progress=lambda report: steps.append(report.message) if report.stage == "train" else None,
        loader=lambda _: (make_target(), tokenizer),
        clock=count(0, 0.001).__next__,
    )
    assert steps[0].startswith("step 4")
    assert result.progress.step == 6


def test_training_learns(target, tokenizer, tmp_path):
    given = settings(tmp_path, max_steps=40, data_tokens=1500)
    result = distill(given, loader=lambda _: (make_target(), tokenizer))
    untrained = build(target, 1)
    chats = [chat for folder in (tmp_path / "cache").iterdir() for chat in read_chats(folder) if chat.held_out]
    assert result.agreement.rate > agreement(untrained, chats).rate + 0.02


def test_targets_without_template_or_end_token_write_raw_text(tmp_path):
    plain = byte_level(["<s>", "</s>"])
    reports = []
    model = make_target(eos_token_id=None)
    model.generation_config.eos_token_id = None
    given = settings(tmp_path, data_tokens=100, max_steps=1)
    distill(given, progress=reports.append, loader=lambda _: (model, plain))
    notes = [report.message for report in reports if report.stage == "note"]
    assert "no chat template" in notes[0]
    assert "no end token" in notes[1]
    chats = read_chats(next((tmp_path / "cache").iterdir()))
    assert {chat.num_answer for chat in chats} == {LIMITS.max_answer}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"minutes": 0}, "--minutes 0 is out of range"),
        ({"minutes": float("nan")}, "--minutes nan"),
        ({"data_tokens": 0}, "--data-tokens 0"),
        ({"seed": -1}, "--seed -1"),
        ({"kind": "huge"}, "no kind of draft called 'huge'"),
    ],
)
def test_settings_out_of_range_are_one_sentence(tmp_path, change, sentence):
    with pytest.raises(ConfigError, match=sentence):
        settings(tmp_path, **change)


def test_a_folder_with_anything_else_is_left_alone(tokenizer, tmp_path):
    out = tmp_path / "draft"
    out.mkdir()
    (out / "thesis.txt").write_text("years of work")
    with pytest.raises(ConfigError, match="not empty"):
        distill(settings(tmp_path), loader=lambda _: (make_target(), tokenizer))
    (out / "thesis.txt").unlink()
    (out / "distill.json").write_text(json.dumps({"job": {"target": "another"}, "finished": False}))
    with pytest.raises(ConfigError, match="another job"):
        distill(settings(tmp_path), loader=lambda _: (make_target(), tokenizer))
    (out / "distill.json").write_text("{")
    with pytest.raises(ConfigError, match="damaged"):
        distill(settings(tmp_path), loader=lambda _: (make_target(), tokenizer))


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "cannot be read"),
        (b"\xff\xfe\x00", "not UTF-8"),
        (b"\n", "holds no prompt"),
        (b'{"prompt": "a"}\n{"prompt": 3}', "line 2 is not a prompt"),
        (b'{"turns": []}', "line 1 is not a prompt"),
        (b"[1]", "line 1 is not a prompt"),
        (b"hello", "line 1 is not a prompt"),
    ],
)
def test_prompts_that_cannot_be_read_are_one_sentence(tmp_path, content, sentence):
    path = tmp_path / "prompts.jsonl"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=sentence):
        read_prompts(path)


def test_prompts_are_read_in_both_forms(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text(
        '{"prompt": "one", "id": 1}\n\n{"turns": ["two", "three"], "category": "x"}\n', encoding="utf-8"
    )
    assert read_prompts(path) == ("one", "two")


def test_what_does_not_fit_is_refused(target, tokenizer, tmp_path):
    with pytest.raises(ModelError, match="Choose a smaller target"):
        check_memory(9 * 10**9, 16 * 10**9, "big")
    check_memory(10**9, 16 * 10**9, "small")
    with pytest.raises(ModelError, match="cannot hold embeddings"):
        tiny_config(target.config, 50_000, 100_000)
    path = tmp_path / "prompts.jsonl"
    path.write_text(json.dumps({"prompt": "x" * 300}))
    with pytest.raises(ContextError, match="give shorter prompts"):
        distill(settings(tmp_path, prompts=path), loader=lambda _: (make_target(), tokenizer))
