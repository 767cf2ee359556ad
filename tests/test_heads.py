"""Draft heads: with a cache they compute what they learned without one, and a target loses nothing by them."""

import json

import head_makers
import pytest
import torch
import toys
from odds import law as odds_law
from odds import variation

from specviz import sampling, verify
from specviz.decode import Surroundings, autoregress, speculate
from specviz.drafts import head, head_draft
from specviz.drafts.eight_bit import Linear, from_eight_bits, to_eight_bits
from specviz.drafts.head_file import load_head
from specviz.drafts.merge import MergedDraft
from specviz.errors import ModelError
from specviz.run import make_source
from specviz.runner import Runner
from specviz.sampling import Sampler
from specviz.trace import Step

TEXT = [5, 6, 7, 8, 9, 10, 11, 7, 8, 40, 3, 21]


@pytest.fixture(params=["pruned", "feature"])
def kind(request):
    return request.param


def rounded(made):
    """The network with the weights as they are stored: what its file gives back."""
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(
                from_eight_bits(*to_eight_bits(parameter)) if parameter.dim() == 2 else parameter.bfloat16()
            )
    return made


def states_of(target, text):
    runner = Runner(target)
    return torch.cat(runner.prefill(text, with_hidden=True))


def started(source, target, text, *, hidden=None):
    source.start(text, Sampler(toys.settings(), text, vocab_size=toys.VOCAB), lambda: False)
    if source.wants_hidden:
        source.read_prompt(states_of(target, text[:-1]) if hidden is None else hidden)
    return source


@torch.no_grad()
def learned(kind, made, target, text, steps):
    """Logits behind `text`, then behind each of `steps`, by the network that learns: no cache, no source."""
    head = made.table[made.kept_ids]
    if kind == "pruned":
        whole = made.read_tokens(torch.tensor([[*text, *steps]]))[0]
        return whole[len(text) - 1 :] @ head.T
    states = states_of(target, text[:-1])
    own, kept = made.read_states(torch.tensor([text[1:]]), states[None])
    starts, chains, found = torch.tensor([[len(text) - 2]]), [], [own[:, -1:]]
    for step in steps:
        found.append(made.go_on(torch.tensor([[step]]), found[-1], starts, kept, chains))
    return torch.cat(found, 1)[0] @ head.T


@pytest.mark.parametrize("layers", [1, 2])
def test_drafting_computes_what_was_learned(kind, layers, tmp_path):
    target = head_makers.tied()
    made = head_makers.net(kind, target, num_layers=layers)
    head_makers.save(tmp_path, made, target)
    source = started(load_head(tmp_path, kind, target), target, TEXT)
    rows = [source.begin(TEXT)]
    for i, token_id in enumerate((33, 90, 12)):
        rows.append(source.extend([i - 1], [token_id]))
    expected = learned(kind, rounded(made), target, TEXT, [33, 90, 12])
    assert torch.allclose(torch.cat(rows), expected, atol=2e-3)


def test_a_tree_gives_each_path_what_it_gives_alone(tmp_path, kind):
    target = head_makers.tied()
    source = started(head_makers.head(tmp_path, kind, target), target, TEXT)
    source.begin(TEXT)
    first = source.extend([-1, -1], [33, 90])
    second = source.extend([0, 1, 1], [5, 6, 7])
    for path, rows in (([33, 5], (0, 0)), ([90, 6], (1, 1)), ([90, 7], (1, 2))):
        source.begin(TEXT)
        alone = torch.cat((source.extend([-1], path[:1]), source.extend([0], path[1:])))
        assert torch.allclose(alone, torch.stack((first[rows[0]], second[rows[1]])), atol=1e-4)


def test_nodes_of_any_depth_are_read_together(tmp_path, kind):
    """Depths 1, 1 and 3 span as many positions as there are rows, and are not consecutive all the same."""
    target = head_makers.tied()
    source = started(head_makers.head(tmp_path, kind, target), target, TEXT)
    source.begin(TEXT)
    source.extend([-1], [33])
    source.extend([0], [90])
    together = source.extend([-1, -1, 1], [5, 6, 7])
    for path, row in (([5], 0), ([6], 1), ([33, 90, 7], 2)):
        source.begin(TEXT)
        for i, token_id in enumerate(path):
            alone = source.extend([i - 1], [token_id])
        assert torch.allclose(alone[0], together[row], atol=1e-4)


def test_a_long_prompt_read_in_parts_is_read_as_a_whole(tmp_path, kind, monkeypatch):
    target = head_makers.tied()
    source = head_makers.head(tmp_path, kind, target)
    text = [(7 * i + 3) % toys.VOCAB for i in range(40)]
    whole = started(source, target, text).begin(text)
    monkeypatch.setattr(head, "READ_AT_ONCE", 7)
    assert torch.allclose(started(source, target, text).begin(text), whole, atol=1e-4)


def test_the_cache_after_any_step_is_that_of_the_text_read_afresh(tmp_path, kind):
    """Whatever was drafted, and whether it was accepted, leaves nothing behind."""
    target = head_makers.tied(num_hidden_layers=1, initializer_range=0.15)
    source = head_makers.agreeing(tmp_path, kind, target)
    whole = load_head(tmp_path, kind, target)
    kept = []

    class Watched(type(source)):
        def begin(self, context_ids):
            logits = super().begin(context_ids)
            kept.append((list(context_ids), self._model.length, stored(self), logits))
            return logits

    source.__class__ = Watched
    trace = toys.play(target, source, draft_len=3, max_new_tokens=20)
    assert 0 < sum(step.num_accepted for step in trace.steps("speculative")) < 19, "it agrees in part"
    for text, length, cache, logits in kept:
        afresh = started(whole, target, text).begin(text)
        assert length == whole._model.length
        assert torch.allclose(logits, afresh, atol=1e-4)
        for ours, theirs in zip(cache, stored(whole), strict=True):
            assert torch.allclose(ours, theirs, atol=1e-4)


def stored(source):
    model = source._model
    return [part[:, : model.length].clone() for layer in model._layers for part in (layer.keys, layer.values)]


@pytest.mark.parametrize("prompt", [(31,), toys.P9], ids=["one token", "P9"])
@pytest.mark.parametrize("draft_len", [1, 2, 5])
def test_no_head_changes_the_text(tmp_path, kind, draft_len, prompt):
    target = head_makers.tied(num_hidden_layers=1, initializer_range=0.15)
    source = head_makers.agreeing(tmp_path, kind, target)
    trace = toys.play(target, source, prompt, draft_len=draft_len, max_new_tokens=30)
    assert toys.said(trace) == toys.plain_greedy(target, prompt, 30)


@pytest.mark.parametrize("more", [{}, {"top_k": 2}, {"repetition_penalty": 1.5}, {"temperature": 0.6}], ids=str)
def test_with_a_head_the_text_keeps_the_targets_law(tmp_path, kind, more, monkeypatch):
    """By exact enumeration over a target of four tokens, of which the head was left two or three."""
    target = head_makers.tied(vocab_size=4, hidden_size=16, intermediate_size=32, num_attention_heads=2)
    source = head_makers.head(tmp_path, kind, target, kept=[0, 2, 3])
    config = toys.settings(**{"temperature": 1.0, "draft_len": 2, "max_new_tokens": 2, **more})

    def law_of(make_run):
        def play(odds):
            for room in (verify, head_draft, sampling):
                monkeypatch.setattr(room, "uniform", odds.uniform)
                monkeypatch.setattr(room, "draw", odds.draw)
            return tuple(i for event in make_run() if isinstance(event, Step) for i in event.emitted)

        return odds_law(play)

    plain = law_of(lambda: autoregress(target, (1, 0, 3), config, Surroundings()))
    ours = law_of(lambda: speculate(target, source, (1, 0, 3), config, Surroundings()))
    assert variation(ours, plain) < 1e-5


def test_rows_are_zero_outside_the_cut_head(tmp_path, kind):
    target = head_makers.tied()
    source = started(head_makers.head(tmp_path, kind, target, kept=[4, 9, 50]), target, TEXT)
    source._sampler = Sampler(toys.settings(temperature=1.0), TEXT, vocab_size=toys.VOCAB)
    tree = source.propose(TEXT, 3, torch.Generator().manual_seed(0))
    assert len(tree) == 3
    for proposal in tree.proposals:
        assert proposal.row.shape == (toys.VOCAB,)
        assert proposal.row.nonzero().flatten().tolist() == [4, 9, 50]
        assert tree.token_ids[proposal.node] in (4, 9, 50)


def test_candidates_are_the_likeliest_kept_tokens(tmp_path, kind):
    target = head_makers.tied()
    source = started(head_makers.head(tmp_path, kind, target), target, TEXT)
    logits = source.begin(TEXT)
    (found,) = source.candidates(logits, 3)
    expected = torch.softmax(logits[0], -1).sort(descending=True)
    assert [p for _, p in found] == pytest.approx(expected.values[:3].tolist())
    assert [i for i, _ in found] == [2 * int(place) for place in expected.indices[:3]]


def test_a_draft_that_returns_nan_says_so(tmp_path, kind):
    target = head_makers.tied()
    source = head_makers.head(tmp_path, kind, target)
    source._model.weights["norm"].fill_(torch.nan)
    trace = toys.play(target, source)
    assert toys.ending(trace) == "error"
    assert f"The draft {kind} returned NaN" in trace.finished("speculative").message


# Together with others


def test_merged_with_another_source_a_head_still_gets_its_states(tmp_path, kind):
    target = head_makers.tied()
    alone = head_makers.head(tmp_path, kind, target)
    merged = MergedDraft([toys.Copies([1, 2]), alone])
    trace = toys.play(target, merged, draft_len=6, max_new_tokens=20)
    assert toys.said(trace) == toys.plain_greedy(target, toys.P9, 20)
    assert {node.proposers for step in trace.steps("speculative") for node in step.nodes} - {(0,)}


# Files


def test_eight_bits_are_half_a_step_off_at_most():
    matrix = torch.randn(5, 40, generator=torch.Generator().manual_seed(0)) * torch.logspace(-3, 3, 5)[:, None]
    eight, scale = to_eight_bits(matrix)
    assert eight.dtype == torch.int8
    largest = matrix.abs() > 126.5 * scale.float()[:, None]  # a rounded scale may not reach it: half a step more
    off = (from_eight_bits(eight, scale) - matrix).abs() / scale.float()[:, None]
    assert off[~largest].max() <= 0.5001
    assert off.max() <= 1.0


def test_multiplying_bytes_is_multiplying_what_they_stand_for():
    generator = torch.Generator().manual_seed(0)
    matrix, x = torch.randn(96, 64, generator=generator), torch.randn(3, 64, generator=generator)
    made = Linear(*to_eight_bits(matrix), torch.bfloat16, torch.device("cpu"))
    expected = x.bfloat16().float() @ from_eight_bits(*to_eight_bits(matrix)).T
    assert torch.allclose(made(x.bfloat16()).float(), expected, atol=0.2, rtol=0.02)


def test_a_head_for_another_target_is_refused_in_a_sentence(tmp_path, kind):
    target = head_makers.tied()
    head_makers.save(tmp_path, head_makers.net(kind, target), target)
    wider, stranger = head_makers.tied(hidden_size=32), head_makers.tied()
    stranger.model.get_input_embeddings().weight.mul_(-1)
    with pytest.raises(ModelError, match=r"was trained for TIED \(97 tokens, hidden size 64\).*--kind"):
        load_head(tmp_path, "mine", wider)
    with pytest.raises(ModelError, match="whose embeddings are not those of TIED"):
        load_head(tmp_path, "mine", stranger)
    rounded_target = head_makers.tied()
    weight = rounded_target.model.get_input_embeddings().weight
    weight.copy_((weight * 8).round() / 8)
    load_head(tmp_path, "mine", rounded_target)


@pytest.mark.parametrize("damage", ["config", "weights", "missing"])
def test_a_damaged_folder_is_refused_in_a_sentence(tmp_path, kind, damage):
    target = head_makers.tied()
    head_makers.save(tmp_path, head_makers.net(kind, target), target)
    if damage == "config":
        (tmp_path / "config.json").write_text(json.dumps({"kind": kind}))
    elif damage == "weights":
        (tmp_path / "model.safetensors").write_bytes(b"no")
    else:
        (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="is damaged"):
        load_head(tmp_path, "mine", target)


def test_a_run_finds_a_head_by_its_folder(tmp_path, kind):
    target = head_makers.tied()
    head_makers.save(tmp_path / "mine", head_makers.net(kind, target), target)
    source = make_source(target, toys.settings(drafts=(str(tmp_path / "mine"),)))
    assert toys.said(toys.play(target, source)) == toys.plain_greedy(target, toys.P9, 24)


def test_bytes_that_lie_anywhere_in_memory_can_be_multiplied():
    """The operator crashes on memory that is not aligned, which is what a file gives."""
    eight = torch.ones(64 * 96 + 1, dtype=torch.int8)[1:].view(64, 96)
    made = Linear(eight, torch.ones(64).bfloat16(), torch.bfloat16, torch.device("cpu"))
    assert made(torch.ones(2, 96).bfloat16()).tolist() == [[96.0] * 64] * 2


def test_minimum_lengths_and_penalties_shape_a_heads_rows_as_any_others(tmp_path, kind):
    target = head_makers.tied()
    source = started(head_makers.head(tmp_path, kind, target), target, TEXT)
    logits = source.begin(TEXT)
    for more in ({"min_new_tokens": 3}, {"repetition_penalty": 1.3}, {"top_k": 60}, {"top_k": 3, "top_p": 0.9}):
        config = toys.settings(temperature=1.0, **more)
        source._sampler = Sampler(config, TEXT, vocab_size=toys.VOCAB, eos_ids=[8, 9])
        full = torch.full((1, toys.VOCAB), -torch.inf)
        full[:, source._model.kept_ids] = logits
        expected = source._sampler.probabilities(source._sampler.shape(full, [[40]]))
        assert torch.allclose(source.rows(logits, [[40]])[0], expected)
