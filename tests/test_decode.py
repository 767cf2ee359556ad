"""The decode loops against plain greedy decoding by whole forwards, and against exact odds above temperature 0.

Every run here is audited (`toys.play`): each trial and draw is rechecked from the trace, and its tokens,
positions and clocks add up. Case numbers are those of the project's list of faults met elsewhere.
"""

import pytest
import torch
from count_makers import counted, counted_source, spoken_chat
from odds import law, law_of_text, variation
from toys import (
    P9,
    Bushy,
    Copies,
    FakeClock,
    ending,
    fresh_cache,
    gpt2,
    logits_of,
    mistral,
    noisy,
    plain_greedy,
    plain_logits,
    play,
    said,
    script,
    scripted,
    settings,
    table,
    texts_said_in_part,
    timeless,
    tiny,
)
from trace_makers import finished, started, step

from specviz import decode, sampling, verify
from specviz.config import RetrievalSettings
from specviz.decode import Surroundings, autoregress, race, speculate
from specviz.drafts import growth
from specviz.drafts import model as draft_model
from specviz.drafts.cascade import Cascade
from specviz.drafts.merge import MergedDraft
from specviz.drafts.mix import GUESSERS, make_tree
from specviz.drafts.model import ModelDraft
from specviz.drafts.retrieval import Retrieval, prompt_lookup
from specviz.drafts.retrieval.fixed import FixedTexts
from specviz.errors import ContextError
from specviz.metrics import summarize
from specviz.models import LoadedModel
from specviz.runner import Runner
from specviz.sampling import Sampler
from specviz.text import StopChecker
from specviz.trace import Piece, RunFinished, RunStarted, Step, Trace
from specviz.verify import ROOT

NAMES = ("self", "noisy .005", "noisy .01", "other")


# Greedy decoding: the draft may change the trace, never the text.


@pytest.fixture(scope="session")
def greedy(tiny):
    return {prompt: plain_greedy(tiny, prompt, 30) for prompt in (P9, (31,))}


def copying(texts=None, name="references", **settings):
    """A draft that copies, from one token on."""
    return Retrieval(
        name, [FixedTexts.of(texts)] if texts else (), RetrievalSettings(**{"min_match": 1, **settings})
    )


KINDS = {
    **{name: lambda family, *_, name=name: ModelDraft(family[name]) for name in NAMES},
    "lookup": lambda _, __, num: copying(copy_len=num),
    "references": lambda _, texts, num: copying(texts, copy_len=num),
    "references, as far as they are trusted": lambda _, texts, __: copying(texts),
    "corpus": lambda _, texts, __: copying(texts, "corpus.sv", sources=("references",)),
    "cascade": lambda family, texts, num: Cascade(
        [copying(texts, min_match=3), ModelDraft(family["noisy .01"])], num
    ),
    "cascade, the model first": lambda family, _, num: Cascade([ModelDraft(family["other"]), copying()], num),
    "references and a model": lambda family, texts, num: MergedDraft(
        [copying(texts), ModelDraft(family["noisy .01"])], num
    ),
}


@pytest.mark.parametrize("prompt", [(31,), P9], ids=["one token", "P9"])
@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("draft_len", [1, 2, 5, 8])
def test_case_1_no_draft_and_no_length_changes_the_text(tiny, family, greedy, prompt, name, draft_len):
    source = KINDS[name](family, texts_said_in_part(tiny), draft_len)
    trace = play(tiny, source, prompt, draft_len=draft_len, max_new_tokens=30)
    assert said(trace) == greedy[prompt]
    assert ending(trace) == "length"


def test_plain_decoding_is_plain_greedy_with_one_token_a_pass(tiny, greedy):
    trace = play(tiny, max_new_tokens=30)
    assert said(trace) == greedy[P9]
    assert [len(step.emitted) for step in trace.steps("baseline")] == [1] * 30


def test_the_drafts_here_agree_in_part(tiny, family):
    """Else the tests above would say little."""
    rates = [summarize(play(tiny, ModelDraft(family[name]))).acceptance_rate for name in NAMES]
    assert rates[0] == 1
    assert 0.5 < rates[2] < rates[1] < 1
    assert rates[3] < 0.2


@pytest.mark.parametrize("draft_len", [1, 2, 3, 5, 8])
def test_case_2_an_end_token_inside_a_block_ends_the_text_there(draft_len):
    target = tiny()
    expected = plain_greedy(target, P9, 24)
    target.eos_ids = frozenset([expected[2]])
    trace = play(target, ModelDraft(target), draft_len=draft_len)
    assert said(trace) == expected[:3]
    assert ending(trace) == "eos"
    assert summarize(trace).tokens == trace.finished("speculative").num_tokens == 3
    assert summarize(trace).accepted <= 3, "what was drafted beyond the end does not count as accepted"


def test_with_ignore_eos_the_end_token_is_a_token_like_any_other():
    target = tiny()
    expected = plain_greedy(target, P9, 24)
    target.eos_ids = frozenset([expected[2]])
    trace = play(target, ModelDraft(target), ignore_eos=True)
    assert (said(trace), ending(trace)) == (expected, "length")


@pytest.mark.parametrize("words", [["one ", "two ", "STOP"], ["one ", "two ", "ST", "OP"]], ids=["whole", "split"])
def test_case_5_a_stop_string_inside_a_block_ends_everything_at_its_token(words):
    words = ["?", *words, " three", " four", " five", " six"]
    pieces = {i: Piece(word.encode()) for i, word in enumerate(words)}
    target = script(range(1, len(words)), len(words))
    around = {"stops": StopChecker(["STOP"], pieces.__getitem__).push}
    trace = play(target, ModelDraft(target), [0], around=around, pieces=pieces, draft_len=8, stop=("STOP",))
    last = len(words) - 5
    assert said(trace) == list(range(1, last + 1))
    assert "".join(words[i] for i in said(trace)) == "one two STOP"
    assert ending(trace) == "stop"
    (only,) = trace.steps("speculative")
    assert only.num_accepted == last
    assert {node.verdict for node in only.nodes[last:]} == {"untested"}
    assert only.final is None


@pytest.mark.parametrize("num", [1, 2, 3, 4])
@pytest.mark.parametrize("kind", ["lookup", "self"])
def test_case_6_no_more_tokens_than_asked_for(tiny, kind, num):
    prompt, source = ((10, 0, 0, 0, 0), prompt_lookup(copy_len=3)) if kind == "lookup" else (P9, ModelDraft(tiny))
    trace = play(tiny, source, prompt, draft_len=3 if kind == "lookup" else 8, max_new_tokens=num)
    assert said(trace) == plain_greedy(tiny, prompt, num)
    assert ending(trace) == "length"
    summary = summarize(trace)
    assert summary.drafted == summary.accepted == num - 1, "and none is drafted that could not be emitted"


@pytest.mark.parametrize(
    ("prompt", "first"), [((1, 2, 3, 4), []), ((5,), []), (P9, [9, 10, 11])], ids=["no repeat", "one token", "P9"]
)
def test_case_7_lookup_drafts_what_it_finds_and_nothing_where_it_finds_nothing(tiny, prompt, first):
    trace = play(tiny, prompt_lookup(copy_len=3), prompt)
    assert said(trace) == plain_greedy(tiny, prompt, 24)
    assert [node.token_id for node in trace.steps("speculative")[0].nodes] == first


def test_case_7_the_acceptance_of_a_run_with_nothing_drafted_is_unknown():
    trace = play(script(range(1, 9), 10), prompt_lookup(), [0], max_new_tokens=8)
    assert summarize(trace).drafted == 0
    assert summarize(trace).acceptance_rate is None
    assert summarize(trace).tokens_per_pass == 1


def test_case_9_greedy_goes_by_the_best_token_not_by_the_ratio():
    target, draft = table((0.3, 0.5, *[0.04] * 5)), table((0.2, 0.15, *[0.13] * 5))
    for seed in range(100):
        trace = play(target, ModelDraft(draft), [2], around={"seed": seed}, draft_len=1, max_new_tokens=2)
        first = trace.steps("speculative")[0]
        assert (first.nodes[0].token_id, first.nodes[0].verdict, first.emitted) == (0, "rejected", (1,))


@pytest.mark.parametrize("prompt", [P9, (31,)])
def test_case_15_a_penalty_sees_the_drafted_tokens_before_each_position(tiny, prompt):
    expected = plain_greedy(tiny, prompt, 24, penalty=1.3)
    assert expected != plain_greedy(tiny, prompt, 24)
    trace = play(tiny, ModelDraft(tiny), prompt, repetition_penalty=1.3)
    assert said(trace) == expected
    assert summarize(trace).acceptance_rate == 1, "the draft's own rows see them too"


def test_case_15_penalising_from_the_committed_text_alone_fails(tiny, monkeypatch):
    right = Sampler.shape
    monkeypatch.setattr(Sampler, "shape", lambda self, logits, paths: right(self, logits, [[] for _ in paths]))
    expected = plain_greedy(tiny, P9, 24, penalty=1.3)
    assert said(play(tiny, ModelDraft(tiny), repetition_penalty=1.3)) != expected


@pytest.mark.parametrize("name", ["self", "noisy .01"])
def test_case_16_the_end_is_barred_for_exactly_the_minimum_of_tokens(family, name):
    target = tiny()
    target.eos_ids = frozenset([plain_greedy(target, P9, 3)[2]])
    expected = plain_greedy(target, P9, 24, min_new=6)
    assert len(expected) >= 6
    assert expected != plain_greedy(target, P9, 24)
    assert said(play(target, ModelDraft(family[name]), min_new_tokens=6)) == expected


@pytest.mark.parametrize("draft_len", [1, 4])
def test_case_22_sliding_windows_are_kept_over_rejections(draft_len):
    target = mistral()
    trace = play(target, ModelDraft(noisy(target, 0.005)), draft_len=draft_len, max_new_tokens=30)
    assert said(trace) == plain_greedy(target, P9, 30)
    assert 0 < summarize(trace).acceptance_rate < 1


def test_case_25_zeros_in_front_of_a_prompt_are_tokens_of_it_since_nothing_is_padded_here(tiny):
    """Prompts come as bare ids without a mask, so there is no padding that could leak into them."""
    padded = (0, 0, *P9)
    trace = play(tiny, ModelDraft(tiny), padded, max_new_tokens=12)
    assert trace.started("speculative").prompt_ids == padded
    assert said(trace) == plain_greedy(tiny, padded, 12) != plain_greedy(tiny, P9, 12)


class Positions:
    """Remembers the largest position that a model was fed."""

    def __init__(self, target: LoadedModel) -> None:
        self.largest = 0
        target.model.register_forward_pre_hook(self._look, with_kwargs=True)

    def _look(self, _module, _args, kwargs):
        self.largest = max(self.largest, int(kwargs["position_ids"].max()))


def test_case_26_nothing_is_fed_beyond_the_context():
    target = gpt2(64)
    expected = plain_greedy(target, range(60), 5)  # the last from position 63
    positions = Positions(target)
    trace = play(target, ModelDraft(target), tuple(range(60)), draft_len=8, max_new_tokens=20)
    assert (said(trace), ending(trace), positions.largest) == (expected, "context", 63)


@pytest.mark.parametrize(("length", "fits"), [(64, True), (65, False)])
def test_case_26_a_prompt_beyond_the_context_is_refused_in_one_sentence(length, fits):
    target = gpt2(64)
    if fits:
        trace = play(target, ModelDraft(target), tuple(range(length)))
        assert (len(said(trace)), ending(trace)) == (1, "context")
    else:
        with pytest.raises(ContextError, match=r"65 tokens, but GPT2 takes at most 64.*\.$"):
            next(autoregress(target, range(length), settings(), Surroundings()))


def test_an_empty_prompt_is_refused(tiny):
    with pytest.raises(ContextError, match=r"no tokens.*\.$"):
        next(autoregress(tiny, [], settings(), Surroundings()))


@pytest.mark.parametrize("num_prompt", [30, 32, 33, 40])
def test_case_26_a_draft_with_a_shorter_context_stops_drafting_where_it_ends(tiny, num_prompt):
    prompt = tuple(i % 90 for i in range(num_prompt))
    trace = play(tiny, ModelDraft(gpt2(32)), prompt, max_new_tokens=20)
    assert said(trace) == plain_greedy(tiny, prompt, 20)
    drafted = {num_prompt + step.start: step.num_drafted for step in trace.steps("speculative")}
    assert all(length + num <= 33 for length, num in drafted.items() if num)
    assert drafted[num_prompt] == min(4, max(0, 33 - num_prompt))


# Trees and several drafts.


@pytest.mark.parametrize("width", [1, 2, 4])
@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("sources", ["one tree", "two trees"])
def test_case_32_no_shape_of_the_tree_changes_the_text(tiny, family, width, depth, sources):
    bushes = [Bushy(family[name], width, depth) for name in ("noisy .01", "noisy .005")]
    source = bushes[0] if sources == "one tree" else MergedDraft(bushes)
    trace = play(tiny, source, draft_len=32, max_new_tokens=16)
    assert said(trace) == plain_greedy(tiny, P9, 16)


@pytest.fixture(scope="module")
def counts(family):
    """What some targets say, counted once for all."""
    prompts = (P9, (31,), (5, 6))
    return {
        name: counted([spoken_chat(family[name], prompt) for prompt in prompts], family[name].vocab_size)
        for name in ("self", "noisy .005", "noisy .01")
    }


@pytest.mark.parametrize("kind", GUESSERS)
@pytest.mark.parametrize("name", ["self", "noisy .005", "noisy .01"])
@pytest.mark.parametrize("prompt", [(31,), P9], ids=["one token", "P9"])
@pytest.mark.parametrize("draft_len", [1, 2, 5, 8, 16])
def test_case_1_no_draft_without_a_model_changes_the_text(tiny, counts, greedy, kind, name, prompt, draft_len):
    trace = play(tiny, make_tree(kind, counts[name]), prompt, draft_len=draft_len, max_new_tokens=30)
    assert said(trace) == greedy[prompt]
    assert summarize(trace).accepted > 0


def test_trees_in_a_sliding_window_are_right_too():
    target = mistral()
    trace = play(target, Bushy(noisy(target, 0.01), 2, 3), draft_len=14)
    assert said(trace) == plain_greedy(target, P9, 24)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", ["noisy .005", "noisy .01"])
def test_case_32_a_merge_of_one_is_the_trace_of_the_draft_alone(tiny, family, name, temperature):
    traces = [
        play(tiny, source, temperature=temperature, around={"seed": 3})
        for source in (ModelDraft(family[name]), MergedDraft([ModelDraft(family[name])]))
    ]
    assert timeless(traces[0].events) == timeless(traces[1].events)


def test_two_drafts_share_the_budget_and_the_text_stays(tiny, family):
    for draft_len in (1, 2, 3, 7):
        members = [ModelDraft(family["other"]), prompt_lookup(copy_len=draft_len), ModelDraft(family["noisy .01"])]
        trace = play(tiny, MergedDraft(members), draft_len=draft_len)
        assert said(trace) == plain_greedy(tiny, P9, 24)
        assert max(step.num_drafted for step in trace.steps("speculative")) <= draft_len


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_case_34_equal_proposals_are_one_node_with_a_trial_for_each_proposer(tiny, family, temperature):
    source = MergedDraft([ModelDraft(family["noisy .01"]), ModelDraft(family["noisy .01"])])
    trace = play(tiny, source, draft_len=6, temperature=temperature, max_new_tokens=60)
    nodes = [node for step in trace.steps("speculative") for node in step.nodes]
    assert any(node.proposers == (0, 1) for node in nodes)
    if temperature == 0:
        whole = (step for step in trace.steps("speculative") if step.draft_len == 6)
        assert {node.proposers for step in whole for node in step.nodes} == {(0, 1)}
        assert max(step.num_drafted for step in trace.steps("speculative")) == 3
    trials = [
        {trial.proposer for trial in site.trials if trial.node == node}
        for step in trace.steps("speculative")
        for site in step.sites
        for node in {trial.node for trial in site.trials if not trial.accepted}
        if step.nodes[node].verdict == "rejected"
    ]
    assert {0, 1} in trials, "a merged node that both lost was tried for each"


def test_case_35_the_bonus_follows_the_last_accepted_token_and_is_the_targets_own():
    follower = {0: 1, 1: 2, 2: 3, 3: 3}  # after x (1) always y (2), after y always z (3)
    target = scripted(lambda context: logits_of([float(i == follower[context[-1]]) for i in range(4)]))
    for seed in range(200):
        trace = play(target, Copies([1, 2]), [0], temperature=1.0, max_new_tokens=3, around={"seed": seed})
        (only,) = trace.steps("speculative")
        assert (only.emitted, only.num_accepted, only.final.kind) == ((1, 2, 3), 2, "bonus")


# Above temperature 0: the law of the text, by exact enumeration of the whole loop.


@pytest.fixture
def exact_odds(monkeypatch):
    """Plays a run over all its draws: the lanes' generator is the `Odds` that every draw asks."""

    def law_of(make_run):
        return law(lambda odds: _played(monkeypatch, odds, make_run))

    return law_of


def _played(monkeypatch, odds, make_run):
    for room in (verify, draft_model, growth, sampling):
        monkeypatch.setattr(room, "uniform", odds.uniform)
        monkeypatch.setattr(room, "draw", odds.draw)
    events = list(make_run())
    return tuple(i for event in events if isinstance(event, Step) for i in event.emitted)


def rows_by_last(first, *turned):
    """Probabilities that depend on the last token."""
    return lambda context: [first, *turned][context[-1] % (1 + len(turned))]


def spoken(rows, name="TABLE"):
    logits = lambda context: logits_of(rows(context))  # noqa: E731
    return scripted(logits, len(rows((0,))), name)


TARGET_ROWS = rows_by_last(
    (0.4, 0.3, 0.2, 0.1), (0.1, 0.1, 0.1, 0.7), (0.25, 0.25, 0.5, 0.0), (0.0, 0.6, 0.0, 0.4)
)
DRAFT_ROWS = rows_by_last((0.1, 0.2, 0.3, 0.4), (0.4, 0.3, 0.2, 0.1))
TEXTS = {"a": [1, 0, 2, 3, 1, 0, 3], "b": [0, 1, 1, 0, 0, 2], "c": [1, 0, 2, 1]}
OTHER_ROWS = rows_by_last((0.3, 0.3, 0.0, 0.4))
SOURCES = {
    "plain": lambda: None,
    "a model": lambda: ModelDraft(spoken(DRAFT_ROWS)),
    "lookup": lambda: prompt_lookup(1),
    "references": lambda: copying(TEXTS),
    "references that match rarely": lambda: copying(TEXTS, min_match=3),
    "references, one token at a time": lambda: copying(TEXTS, copy_len=1),
    "corpus": lambda: copying(TEXTS, "corpus.sv", sources=("references",)),
    "cascade": lambda: Cascade([copying(TEXTS, min_match=3), ModelDraft(spoken(DRAFT_ROWS))]),
    "cascade, the model first": lambda: Cascade([ModelDraft(spoken(DRAFT_ROWS)), prompt_lookup(1)]),
    "references and a model": lambda: MergedDraft([copying(TEXTS), ModelDraft(spoken(DRAFT_ROWS))]),
    "a tree of the best": lambda: Bushy(spoken(DRAFT_ROWS), 2, 2),
    "a tree without replacement": lambda: Bushy(spoken(DRAFT_ROWS), 2, 1, sampled=True),
    "two equal models": lambda: MergedDraft([ModelDraft(spoken(DRAFT_ROWS)) for _ in range(2)]),
    "two unlike models": lambda: MergedDraft([ModelDraft(spoken(DRAFT_ROWS)), ModelDraft(spoken(OTHER_ROWS))]),
    "a copy and a model": lambda: MergedDraft([prompt_lookup(1), ModelDraft(spoken(DRAFT_ROWS))]),
    "a wider draft": lambda: ModelDraft(spoken(lambda context: (*DRAFT_ROWS(context), 5.0))),
    "a narrower draft": lambda: ModelDraft(spoken(rows_by_last((0.2, 0.3, 0.5)))),
    **{kind: lambda kind=kind: counted_source(kind, spoken(DRAFT_ROWS), [(0, 1), (1, 0)]) for kind in GUESSERS},
    "a mix and a model": lambda: MergedDraft(
        [counted_source("mix", spoken(OTHER_ROWS), [(1, 0)]), ModelDraft(spoken(DRAFT_ROWS))]
    ),
}


@pytest.mark.parametrize("source", SOURCES)
def test_case_10_three_tokens_of_a_run_have_the_targets_law(exact_odds, source):
    target, prompt = spoken(TARGET_ROWS), (1, 0, 3, 1, 0)
    config = settings(temperature=1.0, draft_len=2, max_new_tokens=3)

    def run():
        made = SOURCES[source]()
        around = Surroundings()
        if made is None:
            return autoregress(target, prompt, config, around)
        return speculate(target, made, prompt, config, around)

    expected = law_of_text(lambda path: TARGET_ROWS((*prompt, *path)), 3)
    assert variation(exact_odds(run), expected) < 1e-6


@pytest.mark.parametrize(
    "more",
    [{"top_k": 2}, {"top_p": 0.6}, {"temperature": 0.5}, {"repetition_penalty": 1.5}, {"top_k": 3, "top_p": 0.7}],
    ids=str,
)
def test_settings_shape_target_and_draft_alike_so_the_law_is_that_of_plain_decoding(exact_odds, more):
    target = spoken(TARGET_ROWS)
    config = settings(**{"temperature": 1.0, "draft_len": 2, "max_new_tokens": 2, **more})
    plain = exact_odds(lambda: autoregress(target, [0], config, Surroundings()))
    ours = exact_odds(lambda: speculate(target, SOURCES["a model"](), [0], config, Surroundings()))
    assert variation(ours, plain) < 1e-6
    assert variation(plain, law_of_text(lambda path: TARGET_ROWS((0, *path)), 2)) > 0.01


def test_case_10_seeded_sampling_gives_the_known_frequencies_and_acceptance():
    """p = (.5, .3, .2), q = (.2, .5, .3): (.40, .60, 0) is a known wrong result, (.35, .39, .26) another."""
    target, draft = table((0.5, 0.3, 0.2)), table((0.2, 0.5, 0.3))
    counts, num_accepted, num_steps = [0, 0, 0], 0, 0
    for seed in range(100):
        trace = play(
            target, ModelDraft(draft), [0], temperature=1.0, draft_len=1, max_new_tokens=40, around={"seed": seed}
        )
        for made in trace.steps("speculative"):
            counts[made.emitted[0]] += 1
            num_steps += made.num_drafted
            num_accepted += made.num_accepted
    shares = [count / sum(counts) for count in counts]
    assert sum(abs(a - b) for a, b in zip(shares, (0.5, 0.3, 0.2), strict=True)) / 2 < 0.03
    assert num_accepted / num_steps == pytest.approx(0.7, abs=0.03)


def test_case_13_the_target_as_its_own_draft_is_accepted_throughout(tiny):
    trace = play(tiny, ModelDraft(tiny), max_new_tokens=20)
    summary = summarize(trace)
    assert (summary.accepted, summary.tested, summary.passes) == (16, 16, 4)


@pytest.mark.parametrize("seed", range(3))
def test_case_13_also_when_sampling_and_the_draft_cache_does_not_decay(tiny, seed):
    trace = play(tiny, ModelDraft(tiny), temperature=1.0, max_new_tokens=100, around={"seed": seed})
    assert summarize(trace).acceptance_rate >= 0.99


def test_case_13_equal_one_hot_rows_leave_nothing_over_and_make_no_nan():
    target = table((0.0, 1.0, 0.0))
    trace = play(target, ModelDraft(target), [0], temperature=0.01)
    assert summarize(trace).acceptance_rate == 1
    assert set(said(trace)) == {1}


def test_case_17_a_seed_fixes_the_whole_trace_whoever_else_is_running(tiny, family):
    def lane(seed):
        config = settings(temperature=1.0, max_new_tokens=40)
        return speculate(tiny, ModelDraft(family["noisy .01"]), P9, config, Surroundings(seed=seed))

    alone = [timeless(list(lane(42))) for _ in range(2)]
    beside, others = [], lane(7)
    for event in lane(42):
        beside.append(event)
        next(others, None)
        torch.rand(1)  # the global stream is nobody's
    assert alone[0] == alone[1] == timeless(beside)


def test_case_17_seeds_matter_above_temperature_0_and_only_there(tiny, family):
    def texts(temperature, seeds):
        draft = ModelDraft(family["noisy .01"])
        runs = (play(tiny, draft, temperature=temperature, around={"seed": seed}) for seed in seeds)
        return {tuple(said(trace)) for trace in runs}

    assert len(texts(1.0, range(10))) >= 2
    assert len(texts(0.0, range(0, 100, 10))) == 1


def test_the_lanes_of_one_seed_draw_from_streams_of_their_own():
    target = table((0.05,) * 20)
    raced = play(target, Copies([]), [0], baseline=True, temperature=1.0, around={"seed": 5})
    alone = play(target, None, [0], temperature=1.0, around={"seed": 5})
    assert raced.token_ids("baseline") == alone.token_ids("baseline"), "neither disturbs the other"
    assert raced.token_ids("baseline") != raced.token_ids("speculative")


@pytest.mark.parametrize(("temperature", "verdict"), [(0.0, True), (1.0, None)])
def test_case_18_texts_are_compared_at_temperature_0_only(tiny, family, temperature, verdict):
    source = ModelDraft(family["noisy .01"])
    trace = play(tiny, source, baseline=True, temperature=temperature, around={"seed": 1})
    assert summarize(trace).identical is verdict


@pytest.mark.parametrize(("ours", "theirs"), [(100, 97), (97, 100)], ids=["padded target", "padded draft"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_case_20_padded_vocabularies_run_and_no_padding_is_drafted(ours, theirs, temperature):
    target, draft = tiny(vocab_size=ours), tiny(vocab_size=theirs)
    if theirs > ours:  # the draft would say nothing but padding
        head = draft.model.lm_head
        head.register_forward_hook(lambda _m, _a, out: torch.cat((out[..., :97], 0 * out[..., 97:] + 50), -1))
    trace = play(target, ModelDraft(draft), temperature=temperature)
    if temperature == 0:
        assert said(trace) == plain_greedy(target, P9, 24)
    nodes = [node for step in trace.steps("speculative") for node in step.nodes]
    assert nodes
    assert max(node.token_id for node in nodes) < 97


# What a model does wrong.


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("drafting", [False, True])
def test_case_14_a_target_that_breaks_ends_the_run_and_what_was_made_stays(bad, temperature, drafting):
    broken = [True]

    def next_logits(context):
        said_last = len(context) % 4
        return (
            [bad] * 4 if broken[0] and len(context) == 4 else logits_of([float(i == said_last) for i in range(4)])
        )

    target = scripted(next_logits, name="BROKEN")
    source = ModelDraft(table((0.25,) * 4)) if drafting else None
    trace = play(target, source, [0], temperature=temperature, draft_len=1)
    lane = "speculative" if drafting else "baseline"
    finished, ids = trace.finished(lane), said(trace)
    assert finished.reason == "error"
    assert finished.num_tokens == len(ids) > 0
    assert ids == [1, 2, 3][: len(ids)]
    assert f"BROKEN returned NaN or infinite logits in step {len(trace.steps(lane)) + 1}" in finished.message
    if not drafting:
        assert len(ids) == 3
    broken[0] = False
    assert len(said(play(target, source, [0], temperature=temperature))) == 24


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_case_14_a_draft_that_breaks_ends_the_run_by_its_name_and_leaves_no_nan(temperature):
    nan = float("nan")
    draft = scripted(lambda context: [nan] * 4 if len(context) > 5 else [0.0, 1.0, 0.0, 0.0], name="SICK")
    trace = play(table((0.2, 0.4, 0.2, 0.2)), ModelDraft(draft), [0], temperature=temperature)
    step = len(trace.steps("speculative")) + 1
    assert f"SICK returned NaN or infinite logits in step {step};" in trace.finished("speculative").message
    assert said(trace)


# What is kept between steps.


class _Watched(Runner):
    made: list = []  # noqa: RUF012

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.made.append(self)


@pytest.mark.parametrize("name", ["chain", "tree", "merged"])
def test_what_is_kept_after_each_step_equals_a_fresh_forward_of_the_text(tiny, family, monkeypatch, name):
    monkeypatch.setattr(decode, "Runner", _Watched)
    monkeypatch.setattr(_Watched, "made", [])
    drafts = [ModelDraft(family["noisy .01"]), ModelDraft(family["noisy .005"])]
    source = {"chain": drafts[0], "tree": Bushy(family["noisy .01"], 2, 3), "merged": MergedDraft(drafts)}[name]
    text = list(P9)
    for event in speculate(tiny, source, P9, settings(draft_len=6), Surroundings()):
        if isinstance(event, Step):
            text += event.emitted
            (runner,) = _Watched.made
            assert runner.length == len(text) - 1
            kept = runner.cache.stored(range(runner.length))
            assert all(
                torch.allclose(a, b, atol=1e-5) for a, b in zip(kept, fresh_cache(tiny, text[:-1]), strict=True)
            )
            logits = runner.forward(text[-1:]).logits[0]
            assert torch.allclose(logits, plain_logits(tiny, text)[-1], atol=1e-3)
            runner.truncate(len(text) - 1)


def test_the_rows_of_rejected_tokens_would_show(tiny, family, monkeypatch):
    """A cache that keeps the first rows instead of the accepted ones changes the text."""
    right = Runner.keep
    monkeypatch.setattr(
        decode, "Runner", type("Careless", (Runner,), {"keep": lambda s, p: right(s, range(len(p)))})
    )
    trace = play(tiny, Bushy(family["noisy .01"], 3, 3), draft_len=32)
    assert said(trace) != plain_greedy(tiny, P9, 24)


# Lengths, clocks and turns.


def test_case_28_nothing_learnt_in_one_run_stays_for_the_next(tiny, family):
    source = ModelDraft(family["noisy .005"])
    play(tiny, source, (31,), draft_len=4)
    after, alone = (play(tiny, made, draft_len=4) for made in (source, ModelDraft(family["noisy .005"])))
    assert timeless(after.events) == timeless(alone.events)
    assert after.steps("speculative")[0].num_drafted == 4
    assert play(tiny, source, draft_len=2).steps("speculative")[0].num_drafted == 2


def auto_trace(draft_s, alpha_is_1=True, num=40):
    """A run at "auto" whose clock moves .1 s a target pass and `draft_s` a draft pass."""
    clock = FakeClock()
    target = clock.ticking(table((0.0, 1.0, 0.0)), 0.1)
    draft = clock.ticking(table((0.0, 1.0, 0.0) if alpha_is_1 else (0.0, 0.0, 1.0)), draft_s)
    return play(target, ModelDraft(draft), [0], around={"clock": clock}, draft_len="auto", max_new_tokens=num)


def lengths(trace):
    return [step.draft_len for step in trace.steps("speculative")]


def test_auto_begins_with_4_and_grows_while_drafts_are_cheap_and_right():
    chosen = lengths(auto_trace(0.001, num=80))
    assert chosen[0] == 4
    assert chosen[1] > 4


def test_case_28_auto_starts_afresh_with_each_run_of_the_same_draft():
    """What a first run learnt (drafts are cheap and right) must not show in the next one's first lengths."""
    clock = FakeClock()
    target = clock.ticking(table((0.0, 1.0, 0.0)), 0.1)
    source = ModelDraft(clock.ticking(table((0.0, 1.0, 0.0)), 0.001))
    runs = [
        lengths(play(target, source, [0], around={"clock": clock}, draft_len="auto", max_new_tokens=80))
        for _ in range(2)
    ]
    assert runs[0] == runs[1]
    assert runs[1][0] == 4


def test_auto_gives_up_drafts_that_do_not_pay_and_tries_again_every_16th_step():
    chosen = lengths(auto_trace(0.2, alpha_is_1=False, num=60))
    assert chosen[0] == 4
    assert chosen[1:17] == [0] * 15 + [1]
    assert chosen[17:33] == [0] * 15 + [1]


def test_case_62_load_first_calls_and_prompts_are_no_part_of_speed_in_either_order():
    """Load 5 s, first call 2 s more, .1 s a target pass, .05 s a draft pass: .06 s a token with 4 right drafts."""
    for first in ("baseline", "speculative"):
        clock = FakeClock()
        clock.now += 5.0
        target = clock.ticking(table((0.0, 1.0)), lambda num: 0.1 + 2.0 * (num == 1))
        draft = clock.ticking(table((0.0, 1.0)), 0.05)
        config, around = settings(max_new_tokens=50), Surroundings(clock=clock)
        lanes = {
            "baseline": autoregress(target, [0, 1], config, around),
            "speculative": speculate(target, ModelDraft(draft), [0, 1], config, around),
        }
        trace = decode_trace(config, race(lanes.pop(first), *lanes.values()))
        assert summarize(trace).speedup == pytest.approx(0.1 / 0.06, rel=0.05)
        assert trace.started(first).prefill_s >= 2.0
        clocks = [step.clock_s for step in trace.steps("speculative")]
        assert clocks[0] == pytest.approx(0.3)


def decode_trace(config, events):
    trace = Trace(config=config.to_json(), events=list(events))
    trace.pieces = {i: Piece(b"?") for i in trace.ids_used()}
    return trace


def test_a_lanes_clock_counts_its_own_steps_and_never_the_watchers():
    clock = FakeClock()
    target = clock.ticking(table((0.5, 0.5)), 0.1)
    lanes = [
        autoregress(target, [0], settings(), Surroundings(clock=clock)),
        speculate(target, Copies([0]), [0], settings(), Surroundings(clock=clock)),
    ]
    steps = {"speculative": [], "baseline": []}
    for event in race(*lanes):
        clock.now += 100.0  # drawing
        if isinstance(event, Step):
            steps[event.lane].append(event)
    for made in steps.values():
        assert [step.total_s for step in made] == pytest.approx([0.1] * len(made))
        assert made[-1].clock_s == pytest.approx(0.1 * len(made))


def fake_lane(name, seconds, log, num=6):
    clock_s = 0.0
    try:
        yield started(name)
        for index in range(num):
            clock_s += seconds
            yield step(index, lane=name, total_s=seconds, clock_s=clock_s)
        yield finished(name, num)
    finally:
        log.append(name)


@pytest.mark.parametrize("seconds", [(0.1, 0.1), (0.1, 0.35), (0.35, 0.1), (0.0, 1.0)])
def test_the_race_always_advances_the_lane_that_is_behind(seconds):
    names, closed = ("speculative", "baseline"), []
    clocks, over = dict.fromkeys(names, 0.0), set()
    lanes = [fake_lane(name, s, closed) for name, s in zip(names, seconds, strict=True)]
    for event in race(*lanes):
        running = [name for name in names if name not in over]
        assert event.lane == min(running, key=clocks.__getitem__)
        if isinstance(event, Step):
            clocks[event.lane] = event.clock_s
        over |= {event.lane} if isinstance(event, RunFinished) else set()
    assert over == set(names) == set(closed)


def test_the_race_closes_its_lanes_when_it_is_left():
    closed = []
    lanes = [fake_lane("speculative", 0.1, closed), fake_lane("baseline", 0.1, closed)]
    running = race(*lanes)
    for _ in range(5):
        next(running)
    running.close()
    assert sorted(closed) == ["baseline", "speculative"]


@pytest.mark.parametrize("num_prompt", [1, 2000], ids=["decoding", "reading the prompt"])
@pytest.mark.parametrize("after", [1, 2, 3, 7])
@pytest.mark.parametrize("drafting", [False, True])
def test_a_cancelled_run_stops_within_one_pass_of_the_target(num_prompt, after, drafting):
    target, draft = table((0.5, 0.5)), table((0.4, 0.6))
    passes = [0]

    def count():
        passes[0] += 1

    target.model.on_pass = draft.model.on_pass = count
    config = settings(draft_len=8, max_new_tokens=500, temperature=1.0)
    around = Surroundings(cancelled=lambda: passes[0] >= after)
    prompt = [0] * num_prompt
    lane = speculate(target, ModelDraft(draft), prompt, config, around) if drafting else None
    events = list(lane or autoregress(target, prompt, config, around))
    assert passes[0] <= after + 2, "at most the draft's pass under way and the target's behind it"
    assert isinstance(events[0], RunStarted)
    assert events[-1].reason == "cancelled"


def test_every_step_says_where_its_tokens_stand(tiny, family):
    trace = play(tiny, ModelDraft(family["noisy .01"]), max_new_tokens=40)
    place = 0
    for made in trace.steps("speculative"):
        assert made.start == place
        assert len(made.emitted) == made.num_accepted + (made.final is not None)
        place += len(made.emitted)
    assert place == trace.finished("speculative").num_tokens == 40


@pytest.mark.parametrize("name", ["noisy .01", "other"])
def test_the_tops_and_gaps_of_a_trace_are_those_of_the_models(tiny, family, name):
    trace = play(tiny, ModelDraft(family[name]))
    text = list(P9)
    for made in trace.steps("speculative"):
        for site in made.sites:
            path = [] if site.node == ROOT else [node.token_id for node in made.nodes[: site.node + 1]]
            logits = plain_logits(tiny, [*text, *path])[-1]
            best = logits.topk(8)
            assert [i for i, _ in site.p_top] == best.indices.tolist()
            assert [p for _, p in site.p_top] == pytest.approx(logits.softmax(-1)[best.indices].tolist(), abs=1e-4)
            assert site.top2_gap == pytest.approx(float(best.values[0] - best.values[1]), abs=1e-3)
            if site.trials:
                shown = plain_logits(family[name], [*text, *path])[-1].softmax(-1)
                assert made.nodes[site.trials[0].node].q_draft == pytest.approx(float(shown.max()), abs=1e-4)
        text += made.emitted
