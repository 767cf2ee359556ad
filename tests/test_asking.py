"""Counts that ask a head where they are in doubt: when it is asked, what it adds, and that the text stays."""

import head_makers
import pytest
import torch
from count_makers import counted_source
from odds import law as odds_law
from odds import law_of_text, variation
from toys import P9, logits_of, plain_greedy, play, said, scripted, settings, table

from specviz import sampling, verify
from specviz.decode import Surroundings, speculate
from specviz.drafts import growth
from specviz.drafts.asking import HEAD_SHARES, SURE, AskingTree
from specviz.drafts.copies import CopyGuesser
from specviz.drafts.guess import Blend, Guess
from specviz.drafts.mix import make_tree
from specviz.metrics import summarize
from specviz.sampling import Sampler
from specviz.trace import Step


class ScriptedHead:
    """Says one list whatever the text, and counts how often it was asked."""

    names, wants_hidden = ("head",), False

    def __init__(self, ranked, logits=None):
        self._ranked = ranked
        self._logits = torch.zeros(1, 4) if logits is None else logits
        self.asked, self.seen = [], 0

    def start(self, *_):
        self.asked = []

    def begin(self, context_ids):
        self.asked.append(tuple(context_ids))
        return self._logits

    def candidates(self, _, num):
        return [self._ranked[:num]]

    def observe(self, _):
        self.seen += 1


class Listed:
    """A guesser with one list and one level."""

    def __init__(self, level, ranked, name="listed"):
        self.name, self._guess = name, Guess(level, ranked)

    def start(self, context_ids):
        pass

    def extend(self, token_ids):
        pass

    def guess(self, _):
        return self._guess

    def learn(self, tails, tops):
        pass


def propose(source, text=P9, budget=3):
    source.start(list(text), Sampler(settings(), text, vocab_size=97), lambda: False)
    return source.propose(list(text), budget, torch.Generator())


@pytest.mark.parametrize(("chance", "num_asked"), [(SURE, 0), (SURE - 0.01, 1)])
def test_a_head_is_asked_once_a_step_where_counts_are_in_doubt(chance, num_asked):
    head = ScriptedHead([(9, 0.9)])
    propose(AskingTree([Listed(1, [(5, chance)])], head, Blend({})))
    assert head.asked == [P9] * num_asked


@pytest.mark.parametrize("level", range(len(HEAD_SHARES)))
def test_what_the_head_says_is_added_at_the_root_by_how_long_a_match_the_text_has(level):
    tree = propose(
        AskingTree([Listed(level, [(5, 0.5)])], ScriptedHead([(9, 0.6), (5, 0.2)]), Blend({})), budget=9
    )
    shown = dict(tree.proposals[0].shown)
    share, own = HEAD_SHARES[level], 0.5 * (level > 0)
    assert shown[5] == pytest.approx((1 - share) * own + share * 0.2)
    assert shown[9] == pytest.approx(share * 0.6)
    assert 9 not in [tree.token_ids[node] for node, parent in enumerate(tree.parents) if parent >= 0]


def test_nodes_of_the_head_bear_its_name():
    source = AskingTree([Listed(0, [])], ScriptedHead([(9, 0.6)]), Blend({}))
    tree = propose(source)
    assert source.names == ("listed", "head")
    assert [(tree.token_ids[p.node], source.names[p.proposer]) for p in tree.proposals] == [(9, "head")]


def test_a_head_that_has_read_nothing_yet_adds_nothing():
    class Silent(ScriptedHead):
        def begin(self, _):
            return None

    assert propose(AskingTree([Listed(1, [(5, 0.5)])], Silent([]), Blend({}))).token_ids[:1] == [5]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_case_14_a_head_that_breaks_ends_the_run_by_its_name(bad):
    head = ScriptedHead([], logits=torch.full((1, 4), bad))
    target = table((0.2, 0.4, 0.2, 0.2))
    trace = play(target, AskingTree([CopyGuesser()], head, Blend({})), [0])
    assert "head returned NaN" in trace.finished("speculative").message


@pytest.mark.parametrize("kind", ["pruned", "feature"])
@pytest.mark.parametrize("prompt", [(31,), P9], ids=["one token", "P9"])
@pytest.mark.parametrize("draft_len", [1, 4, 12])
def test_case_1_a_mix_that_asks_a_head_does_not_change_the_text(tmp_path, kind, prompt, draft_len):
    target = head_makers.tied(num_hidden_layers=1)
    counts = counted_source("ngram", target, [(5, 6), (9, 10)])._guessers[0]._table
    asked = make_tree("mix", counts, head_makers.agreeing(tmp_path / "head", kind, target))
    trace = play(target, asked, prompt, draft_len=draft_len, max_new_tokens=30)
    assert said(trace) == plain_greedy(target, prompt, 30)
    steps = trace.steps("speculative")
    proposers = {i for step in steps for node in step.nodes for i in node.proposers}
    assert asked.names.index(kind) in proposers, "the head had something to say"
    assert summarize(trace).accepted > 0 or draft_len == 1


def test_case_10_with_a_head_beside_counts_the_text_keeps_the_targets_law(monkeypatch):
    rows = [(0.4, 0.3, 0.2, 0.1), (0.1, 0.1, 0.1, 0.7), (0.25, 0.25, 0.5, 0.0), (0.0, 0.6, 0.0, 0.4)]
    target = scripted(lambda context: logits_of(rows[context[-1]]))
    prompt, config = (1, 0, 3, 1, 0), settings(temperature=1.0, draft_len=3, max_new_tokens=3)

    def run(odds):
        for room in (verify, growth, sampling):
            monkeypatch.setattr(room, "uniform", odds.uniform)
            monkeypatch.setattr(room, "draw", odds.draw)
        source = AskingTree([CopyGuesser()], ScriptedHead([(3, 0.4), (0, 0.3), (1, 0.1)]), Blend({}))
        events = list(speculate(target, source, prompt, config, Surroundings()))
        return tuple(i for event in events if isinstance(event, Step) for i in event.emitted)

    expected = law_of_text(lambda path: rows[(*prompt, *path)[-1]], 3)
    assert variation(odds_law(run), expected) < 1e-6
