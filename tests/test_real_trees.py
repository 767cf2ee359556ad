"""The embedded target: whatever tree is drafted, ids, logits and cache are those of plain decoding.

The yardstick, its fixtures and the way to a draft are those of the chains.
"""

from collections import Counter

import pytest
from test_real import PROMPTS, decoded, dtype_of, few_in_float32, plain, same, same_rows, target
from test_trees import auto
from toys import said

from specviz.config import RunConfig
from specviz.drafts import naming
from specviz.models import catalog
from specviz.run import make_source

pytestmark = pytest.mark.real
__all__ = ["plain", "target"]  # fixtures, which pytest finds by name

NUM_NEW = 48
CASES = [
    ("tiny lookup", "3,2,1,1"),
    ("tiny lookup", "2,2,2"),
    ("tiny lookup", "auto:8"),
    ("tiny mix", "2,2,2"),
    ("tiny skip:2", "2,2,1"),
    ("mix", "auto:8"),
]


def source_of(target, names, tree):
    """As a run makes it, so that what is shipped is what is tested."""
    for name in names:
        ready, reason = catalog.is_ready(catalog.find(name))
        if not ready:
            pytest.skip(reason)
    return make_source(target, RunConfig(drafts=names, tree=tree, dtype=dtype_of(target), device="cpu"))


@pytest.mark.parametrize(("names", "tree"), CASES, ids=[f"{names}, {tree}" for names, tree in CASES])
@pytest.mark.parametrize("prompt", PROMPTS)
def test_every_tree_gives_the_ids_logits_and_cache_of_plain_decoding(
    target, plain, monkeypatch, prompt, names, tree
):
    monkeypatch.setattr(naming, "AutoShape", lambda _: auto())  # by times of our own, whatever this machine does
    few_in_float32(target, prompt)
    prompt_ids, expected, stored = plain(prompt)
    source = source_of(target, tuple(names.split()), tree)
    trace, ours = decoded(target, source, prompt_ids, tree=tree, max_new_tokens=NUM_NEW)
    assert said(trace) == said(expected)[:NUM_NEW]
    steps = trace.steps("speculative")
    assert same_rows(target, steps, expected.steps("baseline"))
    length = len(prompt_ids) + NUM_NEW - 1
    assert all(same(target, many, one[:, :, :length]) for one, many in zip(stored, ours, strict=True))
    widths = Counter((step.index, node.parent) for step in steps for node in step.nodes)
    assert max(widths.values()) > 1, "it branches"
