"""Layer-skip over the target's own keys and values: the same drafts as with a cache of its own, for less."""

import pytest
import torch
from test_trees import shape_of
from toys import P9, fresh_cache, mistral, plain_greedy, play, said, settings, tiny

from specviz.decode import Surroundings, speculate
from specviz.drafts import model as draft_model
from specviz.drafts.merge import MergedDraft
from specviz.drafts.model import ModelDraft
from specviz.drafts.retrieval import prompt_lookup
from specviz.drafts.skip import SkipDraft
from specviz.models import first_layers
from specviz.runner import Runner
from specviz.trace import Step


@pytest.fixture(scope="module")
def target():
    return tiny(num_hidden_layers=3)


def skipping(target, tree="", *, make=SkipDraft, num_layers=2):
    return make(first_layers(target, num_layers, f"skip:{num_layers}"), shape_of(tree) if tree else None)


def drafted(trace):
    steps = trace.steps("speculative")
    return [[(node.token_id, node.parent, node.verdict) for node in step.nodes] for step in steps]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("tree", ["", "2,2,1", "auto"])
@pytest.mark.parametrize("prompt", [P9, (31,)])
def test_it_drafts_what_it_would_with_a_cache_of_its_own(target, prompt, tree, temperature):
    more = {"tree": tree, "temperature": temperature, "max_new_tokens": 40, "around": {"seed": 2}}
    shared, alone = (
        play(target, skipping(target, tree, make=make), prompt, **more) for make in (SkipDraft, ModelDraft)
    )
    assert drafted(shared) == drafted(alone)
    assert said(shared) == said(alone)
    if temperature == 0:
        assert said(shared) == plain_greedy(target, prompt, 40)


def test_in_a_sliding_window_and_among_other_drafts_the_text_is_the_targets():
    target = mistral()
    source = MergedDraft([skipping(target, "2,1", num_layers=1), prompt_lookup()])
    assert said(play(target, source, tree="2,1", max_new_tokens=40)) == plain_greedy(target, P9, 40)


def test_the_same_source_serves_run_after_run(target):
    source = skipping(target, "2,1")
    traces = [play(target, source, prompt, tree="2,1") for prompt in ((31,), P9, P9)]
    assert drafted(traces[1]) == drafted(traces[2])
    assert said(traces[2]) == plain_greedy(target, P9, 24)


@pytest.mark.parametrize("tree", ["", "3,2,1"])
def test_what_it_reads_of_the_text_equals_a_fresh_forward_of_the_first_layers(target, tree):
    source, text = skipping(target, tree), list(P9)
    for event in speculate(target, source, P9, settings(tree=tree), Surroundings(seed=1)):
        if isinstance(event, Step):
            text += event.emitted
            source._catch_up()
            kept = source._runner.cache.stored(range(len(text) - 1))
            fresh = fresh_cache(first_layers(target, 2, "skip:2"), text[:-1])
            assert len(kept) == 4
            assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(kept, fresh, strict=True))


def test_it_never_reads_the_prompt_and_one_committed_token_a_step(target, monkeypatch):
    fed = []

    class Counted(Runner):
        def forward(self, token_ids, *args, **more):
            fed.append(len(token_ids))
            return super().forward(token_ids, *args, **more)

    for room in ("specviz.drafts.skip.Runner", "specviz.drafts.model.Runner"):
        monkeypatch.setattr(room, Counted)
    trace = play(target, skipping(target), draft_len=4, max_new_tokens=40)
    drafting = [step for step in trace.steps("speculative") if step.nodes]
    assert fed == [1] * sum(len(step.nodes) for step in drafting), "each pass of a chain reads one token"
    fed.clear()
    play(target, skipping(target, make=ModelDraft), draft_len=4, max_new_tokens=40)
    assert fed[0] == len(P9) - 1
    assert draft_model.Runner is Counted


def test_a_longer_text_than_the_cache_was_made_for_goes_on(target):
    source = skipping(target, "3,2,1")
    prompt = [i % 90 for i in range(120)]
    trace = play(target, source, prompt, tree="3,2,1", max_new_tokens=100)
    assert said(trace) == plain_greedy(target, prompt, 100)
