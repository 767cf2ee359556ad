"""Draft heads: what they compute with a cache is what they learned without one, and a target loses nothing by them."""

import head_makers
import pytest
import torch
import toys

from specviz.drafts.eight_bit import from_eight_bits, to_eight_bits
from specviz.drafts.head_file import load_head
from specviz.errors import ModelError
from specviz.runner import Runner
from specviz.sampling import Sampler

KINDS = ("pruned", "feature")
TEXT = [5, 6, 7, 8, 9, 10, 11, 7, 8, 40, 3, 21]


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
@pytest.mark.parametrize("kind", KINDS)
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
