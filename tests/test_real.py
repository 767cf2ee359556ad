"""The embedded target: every draft gives the ids, logits and cache of plain decoding, trees included.

In bfloat16 bit for bit; in float32, on CPUs without bfloat16 of their own, up to the order of sums.

One plain run of each prompt is the yardstick for all drafts. One thread, as for the toys: beside any other busy
process two threads stall.
"""

import os
import random

import pytest
import torch
from toys import play, said

from specviz import decode, models
from specviz.config import RetrievalSettings, RunConfig
from specviz.drafts.cascade import Cascade
from specviz.drafts.retrieval import Retrieval, prompt_lookup
from specviz.drafts.retrieval.fixed import FixedTexts
from specviz.metrics import summarize
from specviz.models import catalog
from specviz.run import make_source
from specviz.runner import Runner, calibrate
from specviz.runner.calibrate import blocks_equal_single_passes
from specviz.sampling import one_hot
from specviz.text import encode_prompt
from specviz.verify import ROOT, TokenTree

pytestmark = pytest.mark.real

NUM_NEW = 96
PROMPTS = [
    "Explain in two sentences why the sky is blue.",
    "Write a Python function that returns the n-th Fibonacci number.",
    "List five fruits, one per line.",
    "Repeat this line three times: the quick brown fox jumps over the lazy dog.",
    "Translate to French: Good morning, how are you today?",
    "What is 17 times 23? Show your steps.",
    "Write a short poem about winter.",
    'Give me a JSON object with the keys "name", "age" and "city".',
    "Summarise: Water boils at 100 degrees at sea level, and at a lower temperature on a mountain.",
    "¿Cuál es la capital de España?",
]


class Knowing:
    """Knows what the target will say, and hides it in a random tree (or chain) among wrong tokens."""

    wants_hidden = False

    def __init__(self, truth, prompt_len, *, width, sure, seed=0):
        self.names = ("knowing",)
        self._truth, self._prompt_len, self._width, self._sure = truth, prompt_len, width, sure
        self._random = random.Random(seed)

    def start(self, context_ids, sampler, cancelled):
        del context_ids, cancelled
        self._sampler = sampler

    def propose(self, context_ids, budget, generator):
        del generator
        tree, level, said_so_far = TokenTree(), [ROOT], len(context_ids) - self._prompt_len
        right = ROOT
        while len(tree) < budget and level:
            truth = self._truth[said_so_far] if said_so_far < len(self._truth) else None
            parents, level, next_right = level, [], None
            for parent in parents:
                for token_id in self._children(truth if parent == right else None)[: budget - len(tree)]:
                    node = tree.add(token_id, parent, one_hot(token_id, self._sampler))
                    level.append(node)
                    next_right = node if parent == right and token_id == truth else next_right
            right, said_so_far = next_right, said_so_far + 1
            level = level if self._width == 1 else [n for n in level if n == right or self._random.random() < 0.5]
        return tree

    def _children(self, truth):
        ids = self._random.sample(range(1000, 40000), self._width)
        if truth is not None and self._random.random() < self._sure:
            ids[self._random.randrange(self._width)] = truth
        return ids

    def observe(self, seen):
        pass


class WatchedRunner(Runner):
    """Leaves the last one made where the test finds it."""

    last: Runner

    def __init__(self, *args, **more):
        super().__init__(*args, **more)
        WatchedRunner.last = self


@pytest.fixture(scope="module")
def target():
    ready, reason = catalog.is_ready(catalog.find(catalog.EMBEDDED))
    if not ready and os.environ.get("CI"):
        pytest.fail(f"On CI the embedded target must be there: {reason}")
    if not ready:
        pytest.skip(reason)
    loaded = models.load(catalog.EMBEDDED, device="cpu", numerics="exact")
    calibrate(loaded)
    return loaded


def require_exact(target):
    if target.numerics != "exact":
        pytest.skip("this CPU has no bfloat16 of its own, and float32 is equal up to rounding only")


def few_in_float32(target, prompt):
    """Passes in float32 take several times as long, and two texts show as much."""
    if target.dtype == torch.float32 and prompt not in PROMPTS[:2]:
        pytest.skip("two prompts are decoded in float32")


def same(target, ours, expected):
    """Bit for bit where the target's numerics promise it, else up to the order of float32 sums."""
    if target.numerics == "exact":
        return torch.equal(ours, expected)
    return torch.allclose(ours, expected, atol=2e-3)


@pytest.fixture(scope="module")
def plain(target):
    """Prompt ids → (trace, cached keys and values, text) of plain decoding, made when first asked for."""
    runs = {}

    def run(prompt):
        prompt_ids = encode_prompt(target.tokenizer, prompt, raw=False)
        if prompt not in runs:
            runs[prompt] = (prompt_ids, *decoded(target, None, prompt_ids))
        return runs[prompt]

    return run


def decoded(target, source, prompt_ids, **more):
    """(trace, keys and values) of a greedy run."""
    patch = pytest.MonkeyPatch()
    with patch.context() as patched:
        patched.setattr(decode, "Runner", WatchedRunner)
        trace = play(target, source, prompt_ids, **{"max_new_tokens": NUM_NEW, "ignore_eos": True, **more})
    runner = WatchedRunner.last
    return trace, runner.cache.stored(range(runner.length))


def same_rows(target, ours, expected):
    """Whether steps show the same rows at as many sites as the shorter has; the likeliest tokens and the gap."""
    pairs = zip(*([site for step in steps for site in step.sites] for steps in (ours, expected)), strict=False)
    if target.numerics == "exact":
        return all((one.p_top, one.top2_gap) == (two.p_top, two.top2_gap) for one, two in pairs)
    return all(abs(one.top2_gap - two.top2_gap) < 2e-3 for one, two in pairs)


@pytest.mark.parametrize("num_threads", [1, 2])
def test_the_probe_at_load_finds_blocks_and_single_passes_bit_equal(target, num_threads):
    require_exact(target)
    assert target.bit_exact
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        assert blocks_equal_single_passes(target)
    finally:
        torch.set_num_threads(before)


def test_the_embedded_target_has_the_parameters_that_the_catalog_says(target):
    assert target.num_params == catalog.find(catalog.EMBEDDED).params


def references(truth):
    """A text that holds the answer with every ninth token wrong; a pass verifies up to 32 copies."""
    text = [7 if i % 9 == 8 else token_id for i, token_id in enumerate(truth)]
    return Retrieval("references", [FixedTexts.of({"said": text})], RetrievalSettings())


def dtype_of(target):
    return str(target.dtype).removeprefix("torch.")


def bundled(name, target):
    """As a run makes it, so that what is shipped is what is tested."""
    ready, reason = catalog.is_ready(catalog.find(name))
    if not ready:
        pytest.skip(reason)
    return make_source(target, RunConfig(prompt="", drafts=(name,), dtype=dtype_of(target), device="cpu"))


SOURCES = {
    **{
        name: (lambda target, *_, name=name: bundled(name, target), catalog.find(name).draft_len)
        for name in ("tiny", "companion", "pruned", "feature", "ngram", "recycle", "mix")
    },
    "lookup": (lambda *_: prompt_lookup(), 6),
    "references": (lambda _, __, truth: references(truth), 4),
    "cascade": (lambda target, __, truth: Cascade([references(truth[:48]), bundled("tiny", target)], 2), 2),
    "chain": (lambda _, ids, truth: Knowing(truth, len(ids), width=1, sure=0.8), 7),
    "tree": (lambda _, ids, truth: Knowing(truth, len(ids), width=3, sure=0.8), 16),
}


@pytest.mark.parametrize("name", ["chain", "tree"])
def test_on_two_threads_a_whole_run_is_bit_exact_too(target, name):
    require_exact(target)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        prompt_ids = encode_prompt(target.tokenizer, PROMPTS[0], raw=False)
        expected, stored = decoded(target, None, prompt_ids)
        make, draft_len = SOURCES[name]
        trace, ours = decoded(target, make(target, prompt_ids, said(expected)), prompt_ids, draft_len=draft_len)
    finally:
        torch.set_num_threads(before)
    assert said(trace) == said(expected)
    assert all(torch.equal(one, many) for one, many in zip(stored, ours, strict=True))


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("prompt", ["T", "One two", "The rivers of Europe"])
def test_a_text_of_a_few_tokens_is_bit_exact_too(target, prompt, width):
    """Products with few keys go to other kernels than those with many, and a run passes from one to the other."""
    require_exact(target)
    prompt_ids = encode_prompt(target.tokenizer, prompt, raw=True)
    expected, stored = decoded(target, None, prompt_ids, max_new_tokens=40)
    knowing = Knowing(said(expected), len(prompt_ids), width=width, sure=0.8)
    trace, ours = decoded(target, knowing, prompt_ids, max_new_tokens=40, draft_len=7 if width == 1 else 16)
    assert said(trace) == said(expected)
    assert all(torch.equal(one, many) for one, many in zip(stored, ours, strict=True))


@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.parametrize("prompt", PROMPTS)
def test_every_draft_gives_the_ids_logits_and_cache_of_plain_decoding(target, plain, prompt, name):
    few_in_float32(target, prompt)
    prompt_ids, expected, stored = plain(prompt)
    make, draft_len = SOURCES[name]
    trace, ours = decoded(target, make(target, prompt_ids, said(expected)), prompt_ids, draft_len=draft_len)
    assert said(trace) == said(expected)
    assert same_rows(target, trace.steps("speculative"), expected.steps("baseline"))
    assert all(same(target, many, one) for one, many in zip(stored, ours, strict=True))
    if name in ("chain", "tree"):
        assert 1.5 < summarize(trace).tokens_per_pass < 5, "rollbacks and long paths both happen"
