"""The embedded target in bfloat16: whatever tree is drafted, the bits are those of plain decoding.

The yardstick, its fixtures and the drafts are those of the chains.
"""

import pytest
import torch
from test_real import PROMPTS, counted_draft, decoded, plain, target, tiny_draft
from test_trees import shape_of
from toys import said

from specviz.drafts.lookup import PromptLookup
from specviz.drafts.merge import MergedDraft
from specviz.drafts.model import ModelDraft
from specviz.models import first_layers
from specviz.trace import ROOT

pytestmark = pytest.mark.real
__all__ = ["plain", "target"]  # fixtures, which pytest finds by name

NUM_NEW = 48


def tiny_and(make_other, target, tree):
    return MergedDraft([tiny_draft(target, shape_of(tree)), make_other()])


SOURCES = {
    "tiny and lookup": lambda target, tree: tiny_and(PromptLookup, target, tree),
    "tiny and mix": lambda target, tree: tiny_and(lambda: counted_draft(target, "mix"), target, tree),
    "tiny and skip:2": lambda target, tree: tiny_and(
        lambda: ModelDraft(first_layers(target, 2, "skip:2"), shape_of(tree)), target, tree
    ),
    "mix": lambda target, _: counted_draft(target, "mix"),
}
CASES = [
    ("tiny and lookup", "3,2,1,1"),
    ("tiny and lookup", "2,2,2"),
    ("tiny and lookup", "auto:8"),
    ("tiny and mix", "2,2,2"),
    ("tiny and skip:2", "2,2,1"),
    ("mix", "auto:8"),
]


@pytest.mark.parametrize(("name", "tree"), CASES, ids=[f"{name}, {tree}" for name, tree in CASES])
@pytest.mark.parametrize("prompt", PROMPTS)
def test_every_tree_gives_the_ids_logits_and_cache_of_plain_decoding_bit_for_bit(
    target, plain, prompt, name, tree
):
    prompt_ids, expected, stored = plain(prompt)
    trace, ours = decoded(target, SOURCES[name](target, tree), prompt_ids, tree=tree, max_new_tokens=NUM_NEW)
    assert said(trace) == said(expected)[:NUM_NEW]
    steps = trace.steps("speculative")
    shown = [(site.p_top, site.top2_gap) for step in steps for site in step.sites]
    alone = [(site.p_top, site.top2_gap) for step in expected.steps("baseline") for site in step.sites]
    assert shown == alone[:NUM_NEW]
    length = len(prompt_ids) + NUM_NEW - 1
    assert all(torch.equal(one[:, :, :length], many) for one, many in zip(stored, ours, strict=True))
    places = [node.parent for step in steps for node in step.nodes]
    assert len(places) > len({(step.index, node.parent) for step in steps for node in step.nodes}), "it branches"
    assert ROOT in places
