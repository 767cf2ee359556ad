"""Distilling draft heads on toys: the loss and chains, the states on disk, whole jobs, a kill, refusals."""

from itertools import count

import head_makers
import numpy as np
import pytest
import torch
import toys
from safetensors import SafetensorError
from safetensors.torch import load_file
from test_distill import make_target, settings
from tokenizer_makers import byte_level
from transformers import LlamaConfig

from specviz.distill import distill, headtrain
from specviz.distill.headbatch import CutHead, HeadRecipe, make_head_batch
from specviz.distill.headtrain import HeadLearner, head_loss, hits
from specviz.distill.kinds.head import forward_size, most_frequent
from specviz.distill.kinds.heads import Feature, Pruned, PrunedTwo
from specviz.distill.measure import replay
from specviz.distill.states import StateStore
from specviz.distill.store import TOP, Chat
from specviz.distill.train import TrainSettings
from specviz.drafts.head_file import load_head
from specviz.errors import ConfigError, ModelError


@pytest.fixture(scope="module")
def tokenizer():
    made = byte_level(["<s>", "</s>"], bos_token="<s>", eos_token="</s>")
    made.chat_template = (
        "{% for m in messages %}<s>{{ m['role'] }}\n{{ m['content'] }}</s>\n{% endfor %}"
        "{% if add_generation_prompt %}<s>assistant\n{% endif %}"
    )
    return made


def deep_target():
    """Thirty thin layers, so that one of them is less than a twentieth."""
    return make_target(num_hidden_layers=30, hidden_size=32, intermediate_size=64, tie_word_embeddings=True)


@pytest.fixture(scope="module")
def deep_chats(tmp_path_factory):
    """What the deep toy wrote, for all jobs of a file: thirty layers take most of a job's time."""
    return tmp_path_factory.mktemp("deep")


def make_chat(target, index=0, num=20, seed=0):
    """A random text with the target's own top tokens; the answer begins at token 6."""
    ids = torch.randint(toys.VOCAB, (num,), generator=torch.Generator().manual_seed(seed))
    logps = toys.plain_logits(target, ids.tolist()).log_softmax(-1)
    top = logps[1:-1].topk(TOP)
    return Chat(index, False, 0.0, 2, 6, ids.numpy(), top.indices.numpy(), top.values.numpy().astype(np.float16))


def states_of(target):
    return lambda chat: target.model.get_decoder()(torch.from_numpy(chat.ids)[None]).last_hidden_state[0]


@pytest.fixture(params=["pruned", "feature"])
def kind(request):
    return request.param


def lesson_of(kind, target, kept=range(0, toys.VOCAB, 2)):
    made = head_makers.net(kind, target, kept=list(kept))
    states = states_of(target) if kind == "feature" else None
    return HeadLearner(made, target.model, states)


# What is learned


def test_a_batch_scores_each_answer_token_once_against_what_the_target_expected_there(kind):
    """The loss of a padded batch is that of each chat's positions, worked out one by one."""
    target = head_makers.tied()
    learner = lesson_of(kind, target)
    chats = [make_chat(target, i, num, i) for i, num in enumerate((20, 13))]
    batch = make_head_batch(chats, learner.head, HeadRecipe(), np.random.default_rng(0), learner.states)
    assert batch.num_tokens == 14 + 7
    expected = []
    kept = learner.head_net.kept_ids
    for chat in chats:
        logits = answer_states(learner, chat) @ learner.head_net.table[kept].T
        logps = torch.full((len(logits), toys.VOCAB), 0.0)
        logps[:, kept] = logits.log_softmax(-1)
        for row, (ids, tops) in enumerate(zip(chat.top_ids[4:], chat.top_logps[4:], strict=True)):
            expected.append(-one_loss(logps[row], ids, np.exp(tops.astype(float)), kept.tolist()))
    ours = head_loss(learner.head_net, learner.head, batch, HeadRecipe())
    assert ours.item() == pytest.approx(float(np.mean(expected)), rel=0.03)  # products are in bfloat16


def answer_states(learner, chat):
    ids = torch.from_numpy(chat.ids)[None]
    with torch.no_grad():
        if learner.states is None:
            return learner.head_net.read_tokens(ids)[0, chat.answer_start - 1 : -1]
        own, _ = learner.head_net.read_states(ids[:, 1:], learner.states(chat)[None, :-1])
        return own[0, chat.answer_start - 2 : -1]


def one_loss(logps, ids, shares, kept, greedy=0.3):
    weights = (1 - greedy) * shares
    weights[0] += greedy
    inside = [i for i, token_id in enumerate(ids) if token_id in kept]
    known = sum(weights[i] * float(logps[ids[i]]) for i in inside)
    tail = (1 - greedy) * (1 - shares.sum())
    rest = 1 - sum(float(logps[ids[i]].exp()) for i in inside)
    return known + tail * np.log(rest)


def test_chains_learn_what_drafting_will_do():
    """The states of a chain in a batch are those of a head that drafts the same tokens itself."""
    target = head_makers.tied()
    learner = lesson_of("feature", target)
    chat = make_chat(target)
    ids, states = torch.from_numpy(chat.ids)[None, 1:], learner.states(chat)[None, :-1]
    with torch.no_grad():
        own, kept = learner.head_net.read_states(ids, states)
        starts, chains = torch.tensor([[5, 9]]), []
        last = own[:, [5, 9]]
        for step in (1, 2):
            last = learner.head_net.go_on(ids.gather(1, starts + step), last, starts, kept, chains)
        for j, start in enumerate((5, 9)):
            short, kept_short = learner.head_net.read_states(ids[:, : start + 1], states[:, : start + 1])
            alone, steps, one = short[:, -1:], [], torch.tensor([[start]])
            for step in (1, 2):
                alone = learner.head_net.go_on(ids[:, [start + step]], alone, one, kept_short, steps)
            assert torch.allclose(alone[0, 0], last[0, j], atol=1e-5)


def test_every_weight_learns(kind):
    target = head_makers.tied()
    learner = lesson_of(kind, target)
    recipe = HeadRecipe(num_steps=3)
    chats = [make_chat(target, i, 20, i) for i in range(3)]
    batch = make_head_batch(chats, learner.head, recipe, np.random.default_rng(0), learner.states)
    head_loss(learner.head_net, learner.head, batch, recipe).backward()
    assert all(float(parameter.grad.abs().sum()) > 0 for parameter in learner.head_net.parameters())


def test_a_cut_label_teaches_nothing():
    head = CutHead(torch.randn(3, 8), np.array([2, 5, 9]), 20)
    labels = head.labels(
        np.array([[5, 7], [7, 8]]), np.log(np.array([[0.6, 0.4], [0.9, 0.1]])).astype(np.float16), 0.3
    )
    assert labels.weights[0].tolist() == pytest.approx([0.5 * (0.3 + 0.7 * 0.6), 0.0], abs=1e-3)
    states = torch.randn(2, 8, requires_grad=True)
    head.loss(states, labels).backward()
    assert states.grad[1].abs().max() < 1e-3


# What is measured


def test_hits_are_those_of_drafting(kind, tmp_path):
    """Row k of the hits is what a source drafts k tokens behind the verified text."""
    target = head_makers.tied(num_hidden_layers=1, initializer_range=0.15)
    learner = lesson_of(kind, target, range(toys.VOCAB))
    head_makers.save(tmp_path, learner.head_net, target)
    source = load_head(tmp_path, kind, target)
    chat = make_chat(target, num=14)
    found = hits(learner, chat, 3)
    for place in range(chat.num_answer):
        text = chat.ids[: chat.answer_start + place].tolist()
        source.start(text, toys.Sampler(toys.settings(), text, vocab_size=toys.VOCAB), lambda: False)
        if kind == "feature":
            source.read_prompt(learner.states(chat)[: len(text) - 1])
        logits = source.begin(text)
        for step in range(min(3, chat.num_answer - place)):
            wanted = chat.top_ids[4 + place + step, 0]
            assert found[step, place + step] == (int(logits.argmax()) == wanted)
            logits = source.extend([step - 1], [int(chat.ids[len(text) + step])])


def test_a_replay_goes_on_while_each_step_of_the_chain_hits():
    rows = np.array([[1, 0, 1, 1, 1, 0], [0, 1, 0, 1, 1, 1]], bool)
    found = replay([rows])
    # from 0: hit, then row 1 at place 1 hits: three tokens; from 3: hit, row 1 at 4 hits: three tokens
    assert found.replays == (("chains of 2", 6 / 2),)
    assert found.rate == pytest.approx(4 / 6)


def test_the_kept_tokens_are_the_most_frequent_of_the_answers():
    ids = np.array([9, 9, 9, 3, 1, 3, 1, 7])
    chat = Chat(0, False, 0.0, 1, 3, ids, ids[1:, None], np.zeros((7, 1), np.float16))
    assert most_frequent([chat], 10, 3).tolist() == [1, 3, 7]
    assert most_frequent([chat], 10, 4).tolist() == [0, 1, 3, 7]
    assert most_frequent([chat], 10, 3, known=torch.tensor([8])).tolist() == [1, 3, 8]


# States on disk


def test_states_on_disk_are_the_targets_and_survive_a_kill(tmp_path):
    target = head_makers.tied()
    chats = [make_chat(target, 40 * i, 9 + i, i) for i in range(6)]  # three stretches
    cut = StateStore(tmp_path, chats)
    cut.fill(target.model, lambda share: share == 0)
    assert [chat in cut for chat in chats] == [True, True, False, False, False, False]
    asked = []
    whole = StateStore(tmp_path, chats)
    whole.fill(target.model, lambda share: asked.append(share) or True)
    assert len(asked) == len({chat.index // 64 for chat in chats}) - 1
    for chat in chats:
        assert torch.allclose(whole(chat).float(), states_of(target)(chat), atol=0.02)


# Whole jobs


def test_a_job_leaves_a_head_that_drafts_and_a_card(kind, tokenizer, deep_chats, tmp_path):
    reports = []
    given = settings(tmp_path, kind=kind, cache=deep_chats)
    result = distill(given, progress=reports.append, loader=lambda _: (deep_target(), tokenizer))
    target = toys.loaded(deep_target(), "toy")
    trace = toys.play(target, load_head(given.out, kind, target), draft_len=3)
    assert toys.said(trace) == toys.plain_greedy(target, toys.P9, 24)
    assert result.progress.step == 6
    assert result.agreement.num_positions > 0
    assert {report.stage for report in reports} == {"load", "data", "train", "measure", "done"}
    assert sorted(path.name for path in given.out.iterdir()) == [
        "README.md", "config.json", "distill.json", "model.safetensors",
    ]  # fmt: skip
    card = (given.out / "README.md").read_text()
    assert f"--kind {kind}" in card
    assert f"{(given.out / 'model.safetensors').stat().st_size:,} (eight bits" in card
    assert f"{result.agreement.rate:.3f} of" in card


def test_a_killed_job_goes_on_to_the_same_head(kind, tokenizer, deep_chats, tmp_path):
    def job(folder, progress=None):
        given = settings(tmp_path / folder, kind=kind, minutes=100_000, cache=deep_chats)
        loader = lambda _: (deep_target(), tokenizer)  # noqa: E731
        return distill(given, progress=progress, loader=loader, clock=count(0, 61).__next__)

    def die(report):
        if report.message.startswith("step 4"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        job("cut", die)
    assert job("cut").progress.step == 6
    job("whole")
    ours, theirs = ((tmp_path / name / "draft" / "model.safetensors").read_bytes() for name in ("cut", "whole"))
    assert ours == theirs


def test_a_kill_behind_the_last_step_loses_nothing_and_leaves_nothing(
    kind, tokenizer, deep_chats, tmp_path, monkeypatch
):
    given = settings(tmp_path, kind=kind, cache=deep_chats)
    loader = lambda _: (deep_target(), tokenizer)  # noqa: E731

    def die(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("specviz.distill.card.text", die)
        with pytest.raises(KeyboardInterrupt):
            distill(given, loader=loader)
    left = given.out / "states" / "trained" / ".part-of-a-file"
    left.touch()
    assert distill(given, loader=loader).progress.step == 6
    assert sorted(path.name for path in given.out.iterdir()) == [
        "README.md", "config.json", "distill.json", "model.safetensors",
    ]  # fmt: skip


def test_a_disk_that_fills_up_under_the_weights_is_one_sentence(
    kind, tokenizer, deep_chats, tmp_path, monkeypatch
):
    given = settings(tmp_path, kind=kind, cache=deep_chats)
    loader = lambda _: (deep_target(), tokenizer)  # noqa: E731

    def full(*_):
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    with monkeypatch.context() as patch:
        patch.setattr("specviz.drafts.head_file.save_file", full)
        with pytest.raises(ConfigError, match=r"^The disk is full: [^\n]*again\.$"):
            distill(given, loader=loader)
    distill(given, loader=loader)


@pytest.mark.parametrize(("fast", "first"), [(torch.bfloat16, "Muon"), (torch.float32, "AdamW")])
def test_matrices_are_moved_by_what_is_fast_here(kind, fast, first, monkeypatch):
    monkeypatch.setattr(headtrain, "fast_dtype", lambda _: fast)
    learner = lesson_of(kind, toys.tiny())
    optimizers = learner.optimizers(TrainSettings(1.0))
    assert [type(one).__name__ for one in optimizers] == [first, "AdamW"]
    moved = [p for one in optimizers for group in one.param_groups for p in group["params"]]
    assert {id(p) for p in moved} == {id(p) for p in learner.net.parameters()}


def test_training_learns(kind, tokenizer, deep_chats, tmp_path):
    given = settings(tmp_path, kind=kind, max_steps=40, data_tokens=1500, cache=deep_chats)
    result = distill(given, loader=lambda _: (deep_target(), tokenizer))
    first, last = result.course[0][1], result.agreement.rate
    assert last > first or last > 0.9


# Sizes and refusals


@pytest.mark.parametrize(("kind", "num_layers", "share"), [(Pruned, 1, 20), (PrunedTwo, 2, 11)])
def test_pruned_stays_under_its_share_and_counts_what_it_multiplies(kind, num_layers, share):
    target = deep_target()
    made = kind()
    made.build(target, None, 0)
    net = made._net
    assert len(net.head_layers) == num_layers
    multiplied = sum(p.numel() for p in net.parameters() if p.dim() == 2) + len(net.kept_ids) * 32
    assert forward_size(net.shape, len(net.kept_ids)) == multiplied
    assert multiplied <= target.num_parameters() // share
    assert multiplied + 100 * 32 > target.num_parameters() // share


def test_a_head_with_a_layer_more_goes_on_from_one_with_fewer_and_begins_as_it(tokenizer, deep_chats, tmp_path):
    loader = lambda _: (deep_target(), tokenizer)  # noqa: E731
    first = settings(tmp_path, kind="pruned", max_steps=20, data_tokens=300, cache=deep_chats)
    distill(first, loader=loader)
    small, grown, other = Pruned(), PrunedTwo(), Pruned()
    for made in (small, grown, other):
        made.build(deep_target(), tokenizer, 0)
    small.start_from(str(first.out))
    grown.start_from(str(first.out))
    ids = torch.randint(0, 50, (2, 9), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        ours, theirs, fresh = (made._net.read_tokens(ids) for made in (grown, small, other))
    assert torch.allclose(ours, theirs, atol=1e-6)
    assert not torch.allclose(fresh, theirs, atol=1e-2)

    second = settings(tmp_path, out=tmp_path / "two", kind="pruned-two", start=str(first.out), max_steps=1,
                      data_tokens=300, cache=deep_chats)  # fmt: skip
    distill(second, loader=loader)
    before, after = (load_file(made.out / "model.safetensors") for made in (first, second))
    assert set(before["kept_ids"].tolist()) < set(after["kept_ids"].tolist())
    known = [name for name in before if name.startswith("layers.") and name.endswith(".bytes")]
    assert known
    assert all(torch.equal(before[name], after[name]) for name in known), "what was learned before stays"
    assert after["layers.1.down.weight.bytes"].any(), "and the new layer learns"
    assert "learned alone" in (second.out / "README.md").read_text()
    with pytest.raises(ModelError, match="has other sizes than a pruned of this target"):
        other.start_from(str(second.out))


def test_what_an_architecture_does_not_allow_is_one_sentence():
    gpt2 = toys.gpt2().model
    with pytest.raises(ModelError, match=r"not built like Llama's.*choose the kind tiny"):
        Pruned().build(gpt2, None, 0)
    Feature().build(gpt2, None, 0)
    with pytest.raises(ModelError, match="One layer of this target is more than 1/20"):
        Pruned().build(make_target(), None, 0)
    with pytest.raises(ModelError, match="Two layers of this target are more than 1/11"):
        PrunedTwo().build(make_target(), None, 0)


def test_a_target_whose_head_is_its_own_shares_that_one():
    target = toys.build(LlamaConfig(**toys.SHAPE))
    head = CutHead(target.lm_head.weight[[1, 5]], np.array([1, 5]), toys.VOCAB)
    learner = HeadLearner(head_makers.net("feature", toys.loaded(target), kept=[1, 5]), target, None)
    assert torch.equal(learner.head.rows, head.rows)
