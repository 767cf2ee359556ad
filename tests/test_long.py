"""What takes longer: random settings, drafts and trees against plain greedy, and long texts of the real target.

Every choice comes from the number in the test's name, so a failure can be played again.
"""

import random

import pytest
import torch
from test_real import Knowing, decoded, require_exact, target  # noqa: F401  (a fixture)
from toys import P9, Bushy, build, ending, loaded, mistral, noisy, other, plain_greedy, play, said, timeless, tiny
from transformers import Qwen2Config

from specviz.drafts.merge import MergedDraft
from specviz.drafts.model import ModelDraft
from specviz.drafts.retrieval import prompt_lookup
from specviz.text import encode_prompt

pytestmark = pytest.mark.long

NUM_NEW = 32


def qwen():
    shape = {"vocab_size": 97, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.3, "pad_token_id": 0}
    return loaded(build(Qwen2Config(**shape, **heads, eos_token_id=None, bos_token_id=None)), "QWEN")


TARGETS = {"llama": tiny, "sliding window": mistral, "qwen": qwen}


def some_source(chance, model):
    """A draft of any kind, alone or merged with another."""
    kinds = [
        lambda: prompt_lookup(),
        lambda: ModelDraft(noisy(model, chance.choice([0.002, 0.005, 0.01, 0.03]))),
        lambda: ModelDraft(other()),
        lambda: Bushy(noisy(model, 0.01), chance.randint(1, 3), chance.randint(1, 4)),
    ]
    sources = [chance.choice(kinds)() for _ in range(chance.choice([1, 1, 2, 3]))]
    return sources[0] if len(sources) == 1 else MergedDraft(sources)


@pytest.mark.parametrize("number", range(120))
@pytest.mark.parametrize("kind", TARGETS)
def test_any_draft_under_any_settings_says_what_plain_greedy_says(kind, number):
    chance = random.Random(f"{kind} {number}")
    model = TARGETS[kind]()
    prompt_ids = chance.choice([P9, (31,), tuple(chance.randrange(97) for _ in range(chance.randint(1, 40)))])
    penalty, min_new = chance.choice([1.0, 1.0, 1.1, 1.7]), chance.choice([0, 0, 5, 12])
    free = plain_greedy(model, prompt_ids, NUM_NEW, penalty=penalty)
    model.eos_ids = frozenset(chance.sample(free, chance.choice([0, 1])))
    expected = plain_greedy(model, prompt_ids, NUM_NEW, penalty=penalty, min_new=min_new)
    trace = play(
        model,
        some_source(chance, model),
        prompt_ids,
        draft_len=chance.choice(["auto", *range(1, 13)]),
        max_new_tokens=NUM_NEW,
        repetition_penalty=penalty,
        min_new_tokens=min_new,
    )
    assert said(trace) == expected
    assert ending(trace) == ("eos" if expected[-1] in model.eos_ids else "length")


@pytest.mark.parametrize("number", range(60))
def test_a_seed_fixes_a_sampled_run_whatever_the_settings(number):
    chance = random.Random(number)
    model = tiny()
    source = some_source(chance, model)
    settings = {
        "temperature": chance.choice([0.01, 0.5, 1.0, 3.0]),
        "top_k": chance.choice([0, 1, 5, 97]),
        "top_p": chance.choice([1.0, 0.9, 0.3]),
        "repetition_penalty": chance.choice([1.0, 1.3]),
        "draft_len": chance.randint(1, 9),
    }
    around = {"seed": number}
    first = play(
        model, source, max_new_tokens=NUM_NEW, around=around, **settings
    )  # audited: every throw is checked
    again = play(model, source, max_new_tokens=NUM_NEW, around=around, **settings)
    assert timeless(first.events) == timeless(again.events)
    assert len(said(first)) == NUM_NEW


@pytest.mark.real
@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize(
    "prompt", ["Tell a long story of a voyage around the world.", "Explain how a bridge is built."]
)
def test_a_long_text_of_the_embedded_target_is_bit_exact_to_its_end(target, prompt, width):  # noqa: F811
    require_exact(target)
    prompt_ids = encode_prompt(target.tokenizer, prompt, raw=False)
    more = {"max_new_tokens": 700}
    expected, stored = decoded(target, None, prompt_ids, **more)
    knowing = Knowing(said(expected), len(prompt_ids), width=width, sure=0.8)
    trace, ours = decoded(target, knowing, prompt_ids, draft_len=7 if width == 1 else 16, **more)
    assert said(trace) == said(expected)
    assert all(torch.equal(one, many) for one, many in zip(stored, ours, strict=True))
