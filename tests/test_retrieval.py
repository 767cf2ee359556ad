"""Retrieval: what is found (against a naive search), what wins, what is drafted, and where it came from."""

import random

import numpy as np
import pytest
import torch
from toys import P9, plain_greedy, play, settings, texts_said_in_part

from specviz.config import MAX_DRAFT_LEN, RetrievalSettings
from specviz.drafts import Observation
from specviz.drafts.cascade import Cascade
from specviz.drafts.model import ModelDraft
from specviz.drafts.retrieval import Retrieval, prompt_lookup
from specviz.drafts.retrieval.copy_length import CopyLength
from specviz.drafts.retrieval.fixed import FixedTexts
from specviz.drafts.retrieval.live import LiveText
from specviz.drafts.retrieval.match import MAX_MATCH, MAX_PLACES, plan
from specviz.drafts.retrieval.suffix_array import SuffixArray
from specviz.metrics import summarize
from specviz.metrics.provenance import copies_by_source
from specviz.sampling import Sampler
from specviz.trace import Origin, Trace

# -- searching, against a search that looks everywhere -------------------------------------------


def common_end(a, b):
    size = 0
    while size < min(len(a), len(b)) and a[-1 - size] == b[-1 - size]:
        size += 1
    return size


def naive(text, beginnings):
    """(length, places) of the longest common end of `text` and any of the `beginnings` (place → ids)."""
    lengths = {place: common_end(text, ids) for place, ids in beginnings.items()}
    longest = max(lengths.values(), default=0)
    return longest, [place for place, length in lengths.items() if length == longest and longest]


def texts_of(rng, num, most, symbols):
    return [[rng.randrange(symbols) for _ in range(rng.randrange(most))] for _ in range(num)]


def as_pair(found):
    return (found.length, found.places.tolist()) if found else (0, [])


@pytest.mark.parametrize("seed", range(120))
def test_the_suffix_array_finds_what_a_naive_search_finds(seed):
    rng = random.Random(seed)
    documents = texts_of(rng, rng.randrange(4), 40, rng.choice((1, 2, 4)))
    (text,) = texts_of(rng, 1, 12, 3)
    beginnings, start = {}, 0
    for ids in documents:
        beginnings |= {start + end: ids[:end] for end in range(1, len(ids))}
        start += len(ids) + 1
    length, places = SuffixArray.of(documents).longest(text, 1)
    assert (length, places.tolist()) == naive(text, beginnings)


@pytest.mark.parametrize("seed", range(60))
def test_the_live_text_finds_what_a_naive_search_finds_whether_it_was_read_or_written(seed):
    rng = random.Random(seed)
    (text,) = texts_of(rng, 1, 40, rng.choice((1, 2, 4)))
    first = rng.randint(0, len(text))
    grown = LiveText(text[:first])
    for end in range(first, len(text) + 1):
        grown.extend(text[len(grown) : end])
        expected = naive(text[:end], {place: text[:place] for place in range(1, end)})
        assert as_pair(grown.match(1)) == as_pair(LiveText(text[:end]).match(1)) == expected


@pytest.mark.parametrize(("prompt", "output"), [(True, True), (True, False), (False, True), (False, False)])
def test_only_what_is_switched_on_is_copied_from(prompt, output):
    rng = random.Random(1)
    on = {name for name, switch in (("prompt", prompt), ("output", output)) if switch}
    for _ in range(60):
        (text,) = texts_of(rng, 1, 30, 2)
        border = rng.randint(0, len(text))
        live = LiveText(text[:border], prompt=prompt, output=output)
        live.extend(text[border:])
        allowed = [place for place in range(1, len(text)) if (prompt if place < border else output)]
        found = live.match(1)
        assert as_pair(found) == naive(text, {place: text[:place] for place in allowed})
        if found:
            assert {live.locate(int(place))[0] for place in live.run(found.places, 8).flat} <= on


def test_a_match_is_counted_up_to_its_limit_and_found_in_a_text_that_repeats_one_token():
    ones = np.ones(3 * MAX_MATCH, dtype=np.int64)
    length, places = SuffixArray.of([ones]).longest(ones.tolist(), 2)
    assert length == MAX_MATCH
    assert len(places) == MAX_PLACES
    live = LiveText(ones.tolist())
    live.extend([1])
    assert live.match(2).length == MAX_MATCH


def test_an_index_of_nothing_finds_nothing():
    for documents in ([], [[]], [[], [5]]):
        assert SuffixArray.of(documents).longest([5, 5], 1)[0] == 0
    assert SuffixArray.of([[1, 2, 3]]).longest([], 1)[0] == 0
    assert LiveText([]).match(1) is None


# -- which match wins, and what is drafted -------------------------------------------------------


def source(texts=None, **more):
    fixed = [FixedTexts.of(texts)] if texts else []
    return Retrieval("references", fixed, RetrievalSettings(**{"min_match": 2, **more}))


def begin(draft, text, vocab_size=97):
    draft.start(list(text), Sampler(settings(), list(text), vocab_size=vocab_size), lambda: False)
    return draft


def tree_of(draft, text, budget=4, vocab_size=97):
    begin(draft, text, vocab_size)
    return draft.propose(list(text), budget, torch.Generator())


def branches(tree):
    """Root paths of the leaves."""
    return [tree.path(node) for node in range(len(tree)) if node not in tree.parents]


@pytest.mark.parametrize(
    ("texts", "text", "expected"),
    [
        ({"a": [1, 2, 3, 4, 5, 6]}, [9, 2, 3], [[4, 5, 6]]),
        ({"a": [1, 2, 3, 4], "b": [7, 2, 3, 5]}, [7, 2, 3], [[5]]),  # the longest
        ({"a": [2, 3, 4, 2, 3, 5, 2, 3, 4, 8]}, [2, 3], [[4, 8], [5, 2]]),  # then the most frequent
        ({"a": [2, 3, 4], "b": [2, 3, 5]}, [2, 3], [[5], [4]]),  # then the most recent
        ({"a": [2, 3, 4, 6, 7], "b": [2, 3, 4, 6, 8]}, [2, 3], [[4, 6, 8], [4, 6, 7]]),  # a fork where they part
        ({"a": [2, 3]}, [2, 3], []),  # nothing follows the end of a document
        ({"a": [2, 3], "b": [4, 5]}, [2, 3], []),  # nor does the next document
        ({"a": [2, 3, 99, 4]}, [2, 3], []),  # an id that the target has not
        ({"a": [1, 2, 3]}, [2], []),  # shorter than the minimum
    ],
    ids=str,
)
def test_the_longest_then_the_most_frequent_then_the_most_recent(texts, text, expected):
    tree = tree_of(source(texts), text)
    assert sorted(branches(tree)) == sorted(expected)
    assert tree.token_ids[:1] == [path[0] for path in expected[:1]]


def test_references_and_the_text_itself_are_one_pool():
    assert branches(tree_of(source({"a": [1, 2, 3, 4]}), [2, 3, 5, 1, 2, 3])) == [[4]]
    assert branches(tree_of(source({"a": [2, 3, 4]}), [1, 2, 3, 5, 1, 2, 3], 2)) == [[5, 1]]


def test_the_budget_goes_to_the_likeliest_nodes_and_never_to_hopeless_ones():
    many = {"a": [token for x in range(30, 90) for token in (2, 3, x)]}
    assert 1 <= len(tree_of(source(many, copy_len=32), [2, 3], 32)) < 32
    assert len(tree_of(source({"a": list(range(50))}, copy_len=32), [2, 3], 32)) == 32
    assert plan([], 8, 97, 0.9) == []


def test_every_copied_token_says_where_it_stood():
    tree = tree_of(source({"a": [9, 9], "b": [1, 2, 3, 4, 5]}), [7, 2, 3])
    assert [p.origin for p in tree.proposals] == [Origin("b", 3, 2), Origin("b", 4, 2)]
    tree = tree_of(prompt_lookup(), P9, 3)
    assert [p.origin for p in tree.proposals] == [Origin("prompt", i, 2) for i in (4, 5, 6)]
    both = source({"a": [1, 2, 3, 4]})
    tree = tree_of(both, [1, 2, 3, 4, 9, 2, 3])
    assert tree.proposals[0].origin == Origin("a", 3, 2), "not the copy of it in the prompt"
    draft = prompt_lookup()
    tree_of(draft, [1, 2])
    tree = draft.propose([1, 2, 5, 6, 7, 5, 6], 2, torch.Generator())
    assert [p.origin for p in tree.proposals] == [Origin("output", 2, 2), Origin("output", 3, 2)]


# -- how much is copied --------------------------------------------------------------------------


def lengths(source_of_copies, text, budget=32):
    """Depth of the tree behind a text in which everything goes on for long."""
    tree = source_of_copies.propose(list(text), budget, torch.Generator())
    return tree, max(tree.depths(), default=0)


def test_auto_copies_more_behind_accepted_copies_and_less_behind_rejected_ones():
    draft = source({"a": list(range(90))})
    tree, first = begin(draft, [2, 3]) and lengths(draft, [2, 3])
    draft.observe(Observation(tuple(tree.token_ids), tree, (), torch.zeros(1, 97)))
    text = [2, 3, *tree.token_ids]
    grown = lengths(draft, [*text, 95, 50, 51])[1]
    assert grown > first
    depths = []
    for place in (60, 62, 64, 66, 68):
        draft.observe(Observation((96,), draft._tree, (), torch.zeros(1, 97)))
        text = [*text, 96, place, place + 1]
        depths.append(lengths(draft, text)[1])
    assert depths == sorted(depths, reverse=True)
    assert 1 <= depths[-1] < first


def test_what_was_cut_off_before_the_pass_teaches_nothing():
    whole, cut = (begin(source({"a": list(range(90))}), [2, 3]) for _ in range(2))
    for draft, tried in ((whole, 99), (cut, 2)):
        tree = draft.propose([2, 3], 16, torch.Generator())
        draft.observe(Observation((4, 5, 50), tree.cut(tried), (0, 1), torch.zeros(1, 97)))
    text = [2, 3, 4, 5, 50, 60, 61]
    assert lengths(whole, text)[1] < lengths(cut, text)[1], "two of two held, not two of many"


def test_a_longer_match_is_trusted_further():
    depths = []
    for length in (1, 2, 3, 4, 8):
        draft = begin(source({"a": list(range(90))}, min_match=1), range(length))
        depths.append(lengths(draft, range(length))[1])
    assert depths == sorted(set(depths)), "each class further than the one before"
    assert (depths[0] > 0, depths[-1]) == (True, MAX_DRAFT_LEN)


def test_what_a_run_has_taught_is_forgotten_by_the_next():
    length = CopyLength("auto")
    before = length.keeps(2)
    length.observe(2, 4, 0)
    assert length.keeps(2) < before
    length.observe(2, 0, 0)
    assert length.keeps(2) < before, "a step without a copy teaches nothing"
    assert length.keeps(9) == CopyLength("auto").keeps(9), "nor does it about matches of another length"
    length.reset()
    assert length.keeps(2) == before


def test_a_fixed_copy_length_stays_and_never_exceeds_the_budget():
    draft = source({"a": list(range(60))}, copy_len=5)
    tree = tree_of(draft, [2, 3], 32)
    assert len(tree) == 5
    draft.observe(Observation((50,), tree, (), torch.zeros(1, 97)))
    assert len(draft.propose([2, 3, 50, 7, 8], 32, torch.Generator())) == 5
    assert len(tree_of(draft, [2, 3], 3)) == 3


# -- in a run (that the text stays exact is in test_decode) ---------------------------------------


def test_a_right_reference_is_accepted_in_few_passes(tiny):
    text = [*P9, *plain_greedy(tiny, P9, 24)]
    trace = play(tiny, source({"a": text}), P9, draft_len=16)
    assert len(trace.steps("speculative")) <= 3
    (tally,) = copies_by_source(trace)
    assert summarize(trace).copied == (tally,)
    assert (tally.source, tally.accepted) == ("a", sum(s.num_accepted for s in trace.steps("speculative")))
    assert tally.used[0][0] == len(P9)


def test_a_cascade_asks_the_next_only_where_nothing_matches(tiny, family):
    first = source(texts_said_in_part(tiny), min_match=3)
    trace = play(tiny, Cascade([first, ModelDraft(family["noisy .01"])]), P9, max_new_tokens=40)
    assert trace.started("speculative").proposers == ("references", "NOISY 0.01")
    by_step = [{p for node in step.nodes for p in node.proposers} for step in trace.steps("speculative")]
    assert all(len(proposers) <= 1 for proposers in by_step)
    assert {0} in by_step
    assert {1} in by_step
    for step in trace.steps("speculative"):
        for node in step.nodes:
            assert (node.origin is not None) == (node.proposers == (0,))


# -- the trace -----------------------------------------------------------------------------------


def test_the_trace_keeps_where_copies_came_from(tiny):
    trace = play(tiny, source(texts_said_in_part(tiny)), P9, draft_len=8)
    origins = [node.origin for step in trace.steps("speculative") for node in step.nodes]
    assert {origin.source for origin in origins} <= {"right", "astray", "prompt", "output"}
    again = Trace.from_json(trace.to_json())
    assert [node.origin for step in again.steps("speculative") for node in step.nodes] == origins


@pytest.mark.parametrize(
    "origin",
    [
        '{"source":"a","offset":-1,"match_len":2}',
        '{"source":"a","offset":1,"match_len":0}',
        '{"source":"a"}',
        '"a"',
    ],
)
def test_an_impossible_origin_is_refused(tiny, origin):
    trace = play(tiny, source({"a": [*P9, 1, 2, 3]}), P9, max_new_tokens=4)
    first = next(node.origin for step in trace.steps("speculative") for node in step.nodes)
    right = f'{{"source":"{first.source}","offset":{first.offset},"match_len":{first.match_len}}}'
    text = trace.to_json()
    assert right in text
    with pytest.raises(Exception, match="damaged"):
        Trace.from_json(text.replace(right, origin, 1))
