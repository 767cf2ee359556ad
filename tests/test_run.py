"""From settings to events, over model folders made here: names, prompts, seeds, and what is refused beforehand."""

import dataclasses

import pytest
import torch
from count_makers import counted, spoken_chat
from tokenizer_makers import byte_level
from toys import P9, gpt2, noisy, other, plain_greedy, timeless, tiny

from specviz import models
from specviz.config import RunConfig
from specviz.drafts.ngram import tokenizer_stamp
from specviz.errors import ConfigError, ContextError, ModelError
from specviz.metrics import audit, summarize
from specviz.models import catalog, loading
from specviz.run import prepare
from specviz.trace import RunStarted, Trace

VOCAB = 260


@pytest.fixture(scope="module", autouse=True)
def _registry():
    kept = dict(loading._REGISTRY)
    loading._REGISTRY.clear()
    yield
    loading._REGISTRY.clear()
    loading._REGISTRY.update(kept)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Names of model folders: a target, a draft that agrees partly, one with other token ids."""
    place = tmp_path_factory.mktemp("models")
    target = tiny(vocab_size=VOCAB)
    tokenizers = {"target": byte_level(), "draft": byte_level(), "foreign": byte_level(specials=["<s>"])}
    for name, tokenizer in tokenizers.items():
        model = target if name == "target" else noisy(target, 0.01)
        model.model.save_pretrained(place / name)
        tokenizer.save_pretrained(place / name)
    named = {name: str(place / name) for name in tokenizers}
    (place / "head").mkdir()
    (place / "head" / "config.json").write_text('{"kind": "pruned"}')
    named |= {"head": str(place / "head"), "head/": str(place / "head") + "/"}
    for name in ("target", "foreign"):
        counts = counted([spoken_chat(target, prompt) for prompt in ((104,), P9)], VOCAB)
        counts = dataclasses.replace(counts, stamp=tokenizer_stamp(tokenizers[name]))
        (place / f"{name} counts").mkdir()
        (place / f"{name} counts" / catalog.COUNTS_FILE).write_bytes(counts.to_bytes())
        named |= {f"{name} counts": str(place / f"{name} counts"), f"{name} mix": f"mix:{place / name} counts"}
    return named


def prepared(folders, *drafts, **more):
    names = tuple(folders.get(draft, draft) for draft in drafts)
    settings = {"prompt": "hello", "raw": True, "max_new_tokens": 16, "seed": 3, "dtype": "float32", **more}
    return prepare(RunConfig(target=folders["target"], drafts=names, **settings))


def run(folders, *drafts, **more) -> Trace:
    made = prepared(folders, *drafts, **more)
    events = list(made.events())
    assert events == made.trace.events
    assert audit(made.trace) == []
    assert Trace.from_json(made.trace.to_json()) == made.trace
    return made.trace


DRAFTS = [
    ("draft",), ("lookup",), ("none",), ("target",), ("blank",), ("draft", "lookup"),
    ("draft", "lookup", "target"), ("target counts",), ("target mix",), ("target mix", "draft"),
]  # fmt: skip


@pytest.mark.parametrize("drafts", DRAFTS, ids=" ".join)
@pytest.mark.parametrize("prompt", ["   ", "a", "hello hello hello"])
def test_case_29_every_prompt_runs_with_every_kind_of_draft(folders, drafts, prompt):
    trace = run(folders, *drafts, prompt=prompt)
    expected = plain_greedy(tiny(vocab_size=VOCAB), trace.started("baseline").prompt_ids, 16)
    assert trace.token_ids("baseline") == expected
    if drafts != ("none",):
        assert trace.token_ids("speculative") == expected
        assert summarize(trace).identical is True


@pytest.mark.parametrize("drafts", DRAFTS[:3], ids=" ".join)
def test_case_29_an_empty_prompt_without_a_start_token_is_refused_in_one_sentence(folders, drafts):
    with pytest.raises(ConfigError, match=r"The prompt is empty.*\.$"):
        prepared(folders, *drafts, prompt="")


def test_a_prompt_beyond_the_context_is_refused_before_anything_runs(folders):
    with pytest.raises(ContextError, match=r"300 tokens.*at most 256"):
        prepared(folders, "draft", prompt="x" * 300)


@pytest.mark.parametrize("draft", ["foreign counts", "foreign mix", "mix", "ngram"])
def test_counts_of_another_tokenizer_are_refused_before_anything_runs(folders, draft):
    if draft not in folders and not catalog.is_ready(catalog.find(draft))[0]:
        pytest.skip("the bundled counts are not there")
    with pytest.raises(ModelError, match=r"made with another tokenizer than that of .*\.$"):
        prepared(folders, draft)


def test_a_folder_of_counts_that_is_not_there_is_refused_by_its_name(folders):
    with pytest.raises(ModelError, match=r"No counts at '/nowhere/ngram.safetensors'"):
        prepared(folders, "recycle:/nowhere")


def test_the_draft_length_that_nobody_named_suits_the_draft(folders):
    assert prepared(folders, "draft").config.draft_len == 4
    assert prepared(folders, "target counts", "lookup").config.draft_len == 4
    assert prepared(folders, "target mix", draft_len=7).config.draft_len == 7
    assert catalog.default_draft_len(("tiny", "mix")) == catalog.find("mix").draft_len > 4


def test_a_draft_with_other_ids_is_refused_before_anything_runs(folders):
    with pytest.raises(ModelError, match="token id 256"):
        prepared(folders, "foreign")


@pytest.mark.parametrize("baseline", [True, False])
def test_both_lanes_run_unless_the_baseline_is_not_wanted(folders, baseline):
    trace = run(folders, "draft", baseline=baseline)
    assert {event.lane for event in trace.events} == {"speculative", *(["baseline"] if baseline else [])}
    assert trace.started("speculative").proposers == (folders["draft"],)
    assert trace.started("speculative").pass_times


def test_without_a_draft_the_target_runs_alone_even_if_no_baseline_is_wanted(folders):
    trace = run(folders, "none", baseline=False)
    assert {event.lane for event in trace.events} == {"baseline"}


def test_case_17_a_run_without_a_seed_draws_one_and_says_which(folders):
    traces = [run(folders, "draft", temperature=1.0, seed=None) for _ in range(5)]
    assert len({tuple(trace.token_ids("speculative")) for trace in traces}) > 1
    seed = traces[0].config["seed"]
    again = run(folders, "draft", temperature=1.0, seed=seed)
    for lane in ("speculative", "baseline"):
        assert again.started(lane).seed == seed
        assert timeless(again.steps(lane)) == timeless(traces[0].steps(lane))


def test_every_id_that_a_trace_shows_has_its_bytes(folders):
    made = prepared(folders, "draft")
    for event in made.events():
        ids = event.prompt_ids if isinstance(event, RunStarted) else ()
        assert set(ids) <= set(made.trace.pieces)
    assert set(made.trace.pieces) == made.trace.ids_used()
    assert b"".join(made.piece(i).data for i in made.prompt_ids) == b"hello"


def test_case_5_a_stop_string_ends_both_lanes_at_the_same_token(folders):
    free = run(folders, "draft")
    third = free.token_ids("baseline")[2]
    stop = free.pieces[third].data.decode()
    trace = run(folders, "draft", stop=(stop,), draft_len=8)
    expected = free.token_ids("baseline")[:3]
    for lane in ("speculative", "baseline"):
        assert trace.token_ids(lane) == expected
        assert trace.finished(lane).reason == "stop"


def test_a_run_cancelled_from_outside_keeps_what_it_made(folders):
    asked = []

    def cancelled():
        return len(asked) > 3

    config = RunConfig(
        prompt="hello", raw=True, target=folders["target"], drafts=("lookup",), dtype="float32", max_new_tokens=99
    )
    made = prepare(config, cancelled=cancelled)
    for event in made.events():
        asked.append(event)
    assert {made.trace.finished(lane).reason for lane in ("speculative", "baseline")} == {"cancelled"}
    assert len(asked) <= 8


def test_progress_is_told_in_sentences_and_only_while_something_takes_long(folders):
    told = []
    for _ in range(2):
        config = RunConfig(
            prompt="x", raw=True, target=folders["target"], drafts=(folders["draft"],), dtype="float32"
        )
        prepare(config, progress=lambda text, fraction: told.append((text, fraction)))
    assert told == []
    loading._REGISTRY.clear()
    prepare(config, progress=lambda text, _: told.append(text))
    assert [text.split()[0] for text in told] == ["Loading", "Measuring", "Loading", "Measuring"]
    assert told[1].endswith("target takes, for 1 to 32 tokens; once a start")


def test_a_misspelt_draft_is_refused_before_the_target_is_loaded(folders):
    loading._REGISTRY.clear()
    with pytest.raises(ModelError, match="No model 'lokup'"):
        prepared(folders, "lokup")
    assert not loading._REGISTRY


# Trees, several drafts, layer-skip.


@pytest.mark.parametrize("tree", ["1", "3,2,1,1", "auto", "auto:7"])
@pytest.mark.parametrize("rule", ["standard", "naive"])
@pytest.mark.parametrize("drafts", [("draft",), ("draft", "lookup"), ("draft", "target", "skip:1")], ids=" ".join)
def test_trees_of_every_mix_say_what_plain_decoding_says(folders, tree, rule, drafts):
    trace = run(folders, *drafts, tree=tree, rule=rule, prompt="hello hello")
    assert trace.token_ids("speculative") == trace.token_ids("baseline")
    assert len(trace.started("speculative").proposers) == len(drafts)
    drafted = [step.num_drafted for step in trace.steps("speculative")]
    if tree == "auto:7":
        assert max(drafted) <= 7
    elif tree != "auto":  # which may well find, on a busy machine, that no draft pays
        assert max(drafted) > 0


def test_a_layer_skip_draft_is_the_targets_own_first_layers_and_shares_their_weights(folders):
    made = prepared(folders, "skip:1")
    target, short = made.target, made._source._loaded
    assert short.name == "skip:1"
    assert short.model.model.layers[0] is target.model.model.layers[0]
    assert (len(target.model.model.layers), target.config.num_hidden_layers) == (2, 2)
    ids = torch.tensor([[5, 6, 7]])
    with torch.inference_mode():  # weights may be packed, and those cannot be copied
        behind_first = target.model(ids, use_cache=False, output_hidden_states=True).hidden_states[1]
        expected = target.model.lm_head(target.model.model.norm(behind_first))
        assert torch.equal(short.model(ids, use_cache=False).logits, expected)
    assert short.pass_times
    assert prepared(folders, "skip:1")._source._loaded is short, "measured once"
    list(made.events())
    assert audit(made.trace) == []
    assert summarize(made.trace).identical is True


@pytest.mark.parametrize("name", ["skip:0", "skip:2", "skip:99", "skip:x", "skip:", "skip:-1"])
def test_layers_that_the_target_has_not_are_refused_in_one_sentence(folders, name):
    with pytest.raises(ModelError, match=rf"{name}'.*has 2; give 1 to 1\.$"):
        prepared(folders, name)


def test_a_target_of_one_layer_has_none_to_leave_out():
    with pytest.raises(ModelError, match=r"skip:1.*OTHER: it has no layer that could be left out\.$"):
        models.first_layers(other(), 1, "skip:1")


def test_a_model_whose_layers_are_in_no_list_is_refused_as_its_own_draft():
    with pytest.raises(ModelError, match=r"GPT2.*\.$"):
        models.first_layers(gpt2(), 1, "skip:1")


def test_five_drafts_are_refused_and_four_share_a_tree(folders):
    with pytest.raises(ConfigError, match="5 drafts were given; at most 4"):
        prepared(folders, *["draft"] * 5)
    trace = run(folders, "draft", "target counts", "lookup", "skip:1", draft_len=8)
    assert trace.token_ids("speculative") == trace.token_ids("baseline")


def test_a_draft_of_other_ids_among_several_is_refused(folders):
    with pytest.raises(ModelError, match="token id 256"):
        prepared(folders, "draft", "foreign", tree="2,1")


@pytest.mark.parametrize(
    ("drafts", "tree", "says"),
    [
        (("head",), "auto", r".*head can only draft a chain; leave the tree out"),
        (("head", "none", "head/"), "2", r".*head and .*head/ can only draft a chain"),
        (("target counts",), "3,2,1,1", r"spreads its tree by itself; give auto or auto:N"),
        (("head", "target mix"), "2", r"mix:.* spreads its tree by itself"),
        (("lookup",), "3,2,1,1", r"lookup spreads its tree by itself"),
        (("cascade:references,lookup",), "2", r"references spreads its tree by itself"),
    ],
)
def test_a_tree_that_no_draft_can_grow_is_refused_before_anything_is_loaded(folders, drafts, tree, says):
    loading._REGISTRY.clear()
    with pytest.raises(ConfigError, match=rf"The tree {tree} .*{says}.*such as tiny\.$"):
        prepared(folders, *drafts, tree=tree)
    assert not loading._REGISTRY


def test_counts_spread_their_own_tree_within_the_budget_of_auto(folders):
    trace = run(folders, "target mix", tree="auto:5", max_new_tokens=40)
    assert trace.token_ids("speculative") == trace.token_ids("baseline")
    assert 1 < max(step.num_drafted for step in trace.steps("speculative")) <= 5


def test_a_draft_with_several_proposers_is_one_tree_in_the_budget_of_a_profile(folders):
    """`mix` is one draft of several guessers: beside a profile of 3 nodes they share 6."""
    made = prepared(folders, "draft", "target mix", tree="1,1,1", max_new_tokens=40)
    assert len(made._source.names) > 2
    list(made.events())
    assert {step.draft_len for step in made.trace.steps("speculative")} <= {2, 4, 6, 0}


@pytest.mark.parametrize("sick", ["target", "draft"])
def test_case_14_a_lane_that_breaks_ends_the_run_and_the_other_lane_keeps_what_it_made(folders, sick):
    made = prepared(folders, "draft", max_new_tokens=64)
    model = next(loaded.model for key, loaded in loading._REGISTRY.items() if key[0] == folders[sick])
    head, calls = model.lm_head, []

    def breaks_at_the_sixth_call(module, _args, output):
        calls.append(module)
        return output * float("nan") if len(calls) > 5 else output

    hook = head.register_forward_hook(breaks_at_the_sixth_call)
    try:
        events = list(made.events())
    finally:
        hook.remove()
    ends = {event.lane: event for event in events if hasattr(event, "reason")}
    assert sorted(end.reason for end in ends.values()) == ["cancelled", "error"]
    assert all(end.num_tokens < 64 for end in ends.values())
    assert audit(made.trace) == []
    assert len(run(folders, "draft").token_ids("speculative")) == 16, "the next run works"
