"""The pass over a token tree against plain forwards of its paths, and the cache that keeps one of them."""

import pytest
import torch
from toys import P9, SHAPE, VOCAB, FakeClock, build, fresh_cache, gpt2, loaded, mistral, plain_logits, table, tiny
from transformers import (
    BloomConfig,
    Gemma3TextConfig,
    GPTNeoConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MptConfig,
    Qwen2Config,
)

from specviz.errors import ModelError
from specviz.models import wrap
from specviz.numerics import EXACT_ATTENTION, exact_attention
from specviz.runner import Runner, calibrate
from specviz.runner.cache import TreeCache
from specviz.runner.calibrate import BLOCK_SIZES, blocks_equal_single_passes

TREE = ([20, 21, 30, 31, 40], [-1, -1, 0, 1, 3])
DEEP = ([20, 21, 22, 20, 21, 5, 6, 7, 8, 9], [-1, 0, 0, 1, 1, 3, 5, 6, 7, -1])


def path_to(node, parents):
    path = []
    while node >= 0:
        path.append(node)
        node = parents[node]
    return path[::-1]


def after_prompt(model, runner_type=Runner, prompt=P9):
    runner = runner_type(model)
    runner.prefill(prompt)
    return runner


def worst_difference(model, tree, runner_type=Runner):
    """Largest difference of any node's logits from a plain forward of its root path."""
    tokens, parents = tree
    logits = after_prompt(model, runner_type).forward(tokens, parents).logits
    differences = []
    for node in range(len(tokens)):
        path = [tokens[i] for i in path_to(node, parents)]
        differences.append(float((logits[node] - plain_logits(model, [*P9, *path])[-1]).abs().max()))
    return max(differences)


def mixed_layers():
    """Sliding and full attention in turn, with a mask for each."""
    shape = {**SHAPE, "num_hidden_layers": 4, "head_dim": 16, "initializer_range": 0.1}
    kinds = ["sliding_attention", "full_attention"] * 2
    return loaded(build(Gemma3TextConfig(**shape, sliding_window=4, layer_types=kinds)), "GEMMA")


MODELS = {
    "llama, eager": tiny,
    "llama, sdpa": lambda: loaded(build(LlamaConfig(**SHAPE), attention="sdpa")),
    "llama, exact kernel in fp32": lambda: loaded(build(LlamaConfig(**SHAPE), attention=EXACT_ATTENTION)),
    "gpt2": gpt2,
    "qwen2": lambda: loaded(build(Qwen2Config(**SHAPE, tie_word_embeddings=True))),
    "sliding window": mistral,
    "sliding and full layers": mixed_layers,
}


@pytest.mark.parametrize("tree", [TREE, DEEP], ids=["TREE", "deep"])
@pytest.mark.parametrize("name", MODELS)
def test_case_30_every_node_sees_its_root_path_and_nothing_else(name, tree):
    assert worst_difference(MODELS[name](), tree) < 1e-3


class CausalMask(Runner):
    """Every row sees all rows before it."""

    def _extend(self, parents):
        before = len(self._depths)
        super()._extend(parents)
        self._ancestry = torch.ones(before + len(parents), before + len(parents), dtype=torch.bool).tril()


class FlatPositions(Runner):
    """The index in the tree for a position."""

    def _extend(self, parents):
        super()._extend(parents)
        self._depths = list(range(len(self._depths)))


@pytest.mark.parametrize("wrong", [CausalMask, FlatPositions])
def test_case_30_wrong_masks_and_positions_are_far_off(tiny, wrong):
    assert worst_difference(tiny, TREE, wrong) > 1


def bfloat16_model(config=None):
    return wrap(build(config or LlamaConfig(**SHAPE), dtype=torch.bfloat16), None, name="EXACT")


@pytest.mark.parametrize("config", [LlamaConfig(**SHAPE), Qwen2Config(**SHAPE)], ids=["llama", "qwen2"])
@pytest.mark.parametrize("tree", [TREE, DEEP, ([3] * 32, [-1, *range(31)])], ids=["TREE", "deep", "chain of 32"])
def test_case_30_in_bfloat16_a_block_equals_its_own_single_passes_bit_for_bit(config, tree):
    model = bfloat16_model(config)
    assert model.numerics == "exact"
    tokens, parents = tree
    together = after_prompt(model)
    logits = together.forward(tokens, parents).logits
    for node in range(len(tokens)):
        path = path_to(node, parents)
        alone = after_prompt(model)
        for row in path:
            single = alone.forward([tokens[row]]).logits[0]
            alone.keep([0])
        assert torch.equal(single, logits[node])
        slots = [*range(len(P9)), *(len(P9) + row for row in path)]
        pairs = zip(alone.cache.stored(range(len(slots))), together.cache.stored(slots), strict=True)
        assert all(torch.equal(one, many) for one, many in pairs)


@pytest.mark.parametrize("num_kv", [1, 3])
def test_exact_attention_gives_a_row_the_same_bits_alone_and_scattered_in_a_tree(num_kv):
    """Rounding to bfloat16 hides most differences; half a million numbers do not all hide float32 sums."""
    generator = torch.Generator().manual_seed(2)

    def normal(*shape):
        return torch.randn(*shape, generator=generator).bfloat16()

    heads, dim, prefix, width = 3 * num_kv, 64, 300, 40
    query, key, value = normal(1, heads, width, dim), normal(1, num_kv, 400, dim), normal(1, num_kv, 400, dim)
    key, value = key.float(), value.double()
    slots = [
        torch.arange(prefix).tolist() + sorted({*range(prefix + row % 3, prefix + row, 3), prefix + row})
        for row in range(width)
    ]
    mask = torch.full((1, 1, width, 400), -torch.inf)
    for row, own in enumerate(slots):
        mask[0, 0, row, own] = 0
    block, _ = exact_attention(None, query, key, value, mask)
    for row, own in enumerate(slots):
        alone, _ = exact_attention(None, query[:, :, [row]], key[:, :, own], value[:, :, own], None)
        assert torch.equal(alone[0, 0], block[0, row])


def test_the_probe_tells_exact_from_rounded():
    assert blocks_equal_single_passes(bfloat16_model())
    assert not blocks_equal_single_passes(wrap(build(LlamaConfig(**SHAPE)), None, name="fp32", numerics="fast"))


def test_exact_numerics_are_near_the_models_own():
    """float64 inside attention must not make another model of it."""
    model = bfloat16_model()
    stock = build(LlamaConfig(**SHAPE), dtype=torch.bfloat16)
    ours = after_prompt(model, prompt=P9[:-1]).forward(P9[-1:]).logits[0]
    theirs = stock(torch.tensor([P9])).logits[0, -1].float()
    assert (ours - theirs).abs().max() < 0.05 * theirs.abs().max()


@pytest.mark.parametrize("node", range(len(DEEP[0])))
@pytest.mark.parametrize("name", ["llama, eager", "sliding window", "gpt2"])
def test_any_root_path_can_be_kept_and_decoding_goes_on_from_it(name, node):
    model, (tokens, parents) = MODELS[name](), DEEP
    runner = after_prompt(model)
    runner.forward(tokens, parents)
    path = path_to(node, parents)
    runner.keep(path)
    text = [*P9, *(tokens[i] for i in path)]
    assert runner.length == len(text)
    kept, fresh = runner.cache.stored(range(len(text))), fresh_cache(model, text)
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(kept, fresh, strict=True))
    assert torch.allclose(runner.forward([77]).logits[0], plain_logits(model, [*text, 77])[-1], atol=1e-3)


def test_rows_can_be_added_to_an_undecided_tree_before_one_path_is_kept(tiny):
    runner = after_prompt(tiny)
    runner.forward([20, 21], [-1, -1])
    logits = runner.forward([30, 31], [0, 1]).logits
    assert torch.allclose(logits[1], plain_logits(tiny, [*P9, 21, 31])[-1], atol=1e-3)
    chain = runner.forward([40, 41]).logits
    assert torch.allclose(chain[1], plain_logits(tiny, [*P9, 21, 31, 40, 41])[-1], atol=1e-3)
    runner.keep([1, 3, 4])
    assert torch.allclose(runner.forward([50]).logits[0], plain_logits(tiny, [*P9, 21, 31, 40, 50])[-1], atol=1e-3)


def test_keeping_nothing_leaves_no_mark(tiny):
    runner = after_prompt(tiny)
    runner.forward(*TREE)
    runner.keep([])
    assert runner.length == len(P9)
    assert torch.allclose(runner.forward([77]).logits[0], plain_logits(tiny, [*P9, 77])[-1], atol=1e-3)


@pytest.mark.parametrize("length", [0, 1, 5, len(P9), 99])
def test_truncating_forgets_what_lies_behind_and_undecided_rows(tiny, length):
    runner = after_prompt(tiny)
    runner.forward(*TREE)
    runner.truncate(length)
    kept = list(P9[:length])
    assert runner.length == len(kept)
    assert torch.allclose(runner.forward([77]).logits[0], plain_logits(tiny, [*kept, 77])[-1], atol=1e-3)


@pytest.mark.parametrize("capacity", [1, 4, 9, 64])
def test_a_cache_that_is_too_small_grows_and_keeps_what_it_holds(tiny, capacity):
    runner = Runner(tiny)
    runner.cache = TreeCache(2, capacity=capacity)
    runner.prefill(P9)
    logits = runner.forward(*TREE).logits
    assert torch.allclose(logits, after_prompt(tiny).forward(*TREE).logits)
    runner.keep([1, 3, 4])
    kept = runner.cache.stored(range(runner.length))
    fresh = fresh_cache(tiny, [*P9, 21, 31, 40])
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(kept, fresh, strict=True))


@pytest.mark.parametrize("chunk", [1, 4, 8, 256])
@pytest.mark.parametrize("name", ["llama, eager", "sliding window", "sliding and full layers"])
def test_a_prompt_read_in_chunks_is_the_same_prompt(name, chunk, monkeypatch):
    monkeypatch.setattr("specviz.runner.eager.PREFILL_CHUNK", chunk)
    model, text = MODELS[name](), [i % VOCAB for i in range(5, 40)]
    runner = after_prompt(model, prompt=text[:-1])
    assert torch.allclose(runner.forward(text[-1:]).logits[0], plain_logits(model, text)[-1], atol=1e-3)


def test_hidden_states_come_only_where_asked_for(tiny):
    runner = after_prompt(tiny)
    assert runner.forward([20]).hidden is None
    ran = runner.forward([21, 22], with_hidden=True)
    assert ran.hidden.shape == (2, 64)
    assert torch.allclose(tiny.model.lm_head(ran.hidden), ran.logits, atol=1e-4)


def test_logits_of_the_last_row_alone_are_those_of_all_rows(tiny):
    whole = after_prompt(tiny).forward([20, 21, 22]).logits
    last = after_prompt(tiny).forward([20, 21, 22], last_only=True).logits
    assert last.shape == (1, VOCAB)
    assert torch.allclose(last[0], whole[-1])


def test_calibrating_measures_each_block_size_once_without_the_first_call():
    clock, model = FakeClock(), table((0.5, 0.5))
    blocks_equal_single_passes(model)
    first_timed = model.model.num_passes + 2  # behind the prompt
    model.model.num_passes, model.pass_times = 0, {}
    calibrate(clock.ticking(model, lambda num: 9.0 if num == first_timed else 0.25), clock)
    assert model.pass_times == dict.fromkeys(BLOCK_SIZES, 0.25)
    num_passes = model.model.num_passes
    calibrate(model, clock)
    assert model.model.num_passes == num_passes


@pytest.mark.parametrize("num_positions", [8, 32, 40, 64])
def test_calibrating_stays_inside_a_short_context(num_positions):
    model = gpt2(num_positions)
    model.pass_times = {}
    calibrate(model)
    assert 1 in model.pass_times
    assert max(model.pass_times) <= num_positions // 2


class DeafLlama(LlamaForCausalLM):
    """Takes no notice of the mask it is given, as a kernel without masks would."""

    def forward(self, attention_mask=None, position_ids=None, **more):
        return super().forward(attention_mask=torch.zeros_like(attention_mask), position_ids=position_ids, **more)


def refused_models():
    """Bloom makes its position biases from a 2-D mask, MPT counts keys, GPT-Neo masks by the order of keys."""
    neo = {"num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]], "window_size": 8}
    return {
        "BLOOM": build(BloomConfig(vocab_size=VOCAB, hidden_size=64, n_layer=2, n_head=4)),
        "MPT": build(MptConfig(vocab_size=VOCAB, d_model=64, n_layers=2, n_heads=4)),
        "NEO": build(GPTNeoConfig(vocab_size=VOCAB, hidden_size=64, initializer_range=0.3, **neo)),
        "DEAF": DeafLlama(LlamaConfig(**SHAPE)).eval(),
    }


@pytest.mark.parametrize("name", ["BLOOM", "MPT", "NEO", "DEAF"])
def test_case_30_a_model_that_cannot_take_mask_and_positions_is_refused_in_one_sentence(name):
    model = loaded(refused_models()[name], name)
    model.pass_times = {}
    with pytest.raises(ModelError, match=rf"{name}.*\.$"):
        calibrate(model)
