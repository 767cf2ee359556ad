"""The audit passes sound traces and names each kind of damage; known wrong rules leave marks that it sees."""

import dataclasses

import pytest
from trace_makers import chain_step, final, finished, make_trace, node, sampled_trace, site, started, trial

from specviz.metrics import audit
from specviz.trace import ROOT, OwnDraw, Trace


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("width", [1, 2, 3])
def test_a_sound_trace_passes_the_audit_also_from_its_file(seed, width):
    trace = sampled_trace(seed, width=width)
    assert audit(Trace.from_json(trace.to_json())) == []


def test_a_sound_greedy_trace_passes_the_audit():
    steps, start = [], 0
    for index, (drafted, accepted) in enumerate([(4, 2), (4, 4), (0, 0), (2, 0)]):
        steps.append(chain_step(index, drafted, accepted, start=start))
        start += accepted + 1
    assert audit(make_trace(started(), *steps, finished(num_tokens=start))) == []
    inside = chain_step(0, 4, 2, final=None, emitted=(0, 1))
    nodes = (*inside.nodes[:2], node(2, 1, 3), node(3, 2, 4))
    stopped = dataclasses.replace(inside, nodes=nodes, sites=inside.sites[:2])
    assert audit(make_trace(started(), stopped, finished(num_tokens=2, reason="stop"))) == []


def test_the_audit_sees_a_token_redrawn_from_the_target_after_a_rejection():
    faults = audit(sampled_trace(0, redraw_from_p=True))
    assert faults
    assert all("final token's interval is" in fault for fault in faults)


def test_the_audit_sees_duplicates_whose_second_trial_used_the_first_cur():
    odds = {"p_target": 0.3, "row": 0.6, "u": 0.9, "overlap": 0.5}
    right = site(ROOT, trial(0, False, cur=0.3, **odds), trial(0, False, cur=0.0, **odds))
    wrong = site(ROOT, trial(0, False, cur=0.3, **odds), trial(0, False, cur=0.3, **odds))
    drawn = final(9, "corrected", mass=0.5, p_target=0.5, low=0.0, high=1.0)
    for sites, sound in ((right, True), (wrong, False)):
        made = chain_step(0, 1, 0, sites=(sites,), final=drawn)
        faults = audit(make_trace(started(), made, config={"temperature": 1.0}))
        assert (not any("cur" in fault for fault in faults)) is sound


def test_the_audit_sees_a_proposal_that_was_dropped_and_a_duplicate_that_was_tried_once():
    odds = {"p_target": 0.3, "row": 0.6, "u": 0.9, "overlap": 0.5}
    first, second = trial(0, False, cur=0.3, **odds), trial(0, False, cur=0.0, proposer=1, **odds)
    drawn = final(9, "corrected", mass=0.5, p_target=0.5, low=0.0, high=1.0)
    of_two = node(0, verdict="rejected", proposers=(0, 1))
    dropped = (node(0, verdict="rejected"), node(1))
    for nodes, trials, sound in (
        ((of_two,), (first, second), True),
        ((of_two,), (first,), False),
        (dropped, (first,), False),
    ):
        made = chain_step(0, 1, 0, nodes=nodes, sites=(site(ROOT, *trials),), final=drawn)
        faults = audit(make_trace(started(), made, config={"temperature": 1.0}))
        assert any("before all that was proposed" in fault for fault in faults) is not sound


def replace_first(step_, **trial_fields):
    first = step_.sites[0]
    trials = (dataclasses.replace(first.trials[0], **trial_fields), *first.trials[1:])
    return dataclasses.replace(step_, sites=(dataclasses.replace(first, trials=trials), *step_.sites[1:]))


SOUND = chain_step(0, 4, 2)
DAMAGES = {
    "is accepted, but": replace_first(SOUND, cur=0.0),
    "is rejected, but": replace_first(SOUND, accepted=False),
    "does not follow from p_target": replace_first(SOUND, p_target=0.5),
    "out of range": replace_first(SOUND, u=1.0, row=0.5),
    "at temperature 0": replace_first(SOUND, cur=0.5, p_target=0.5, u=0.1),
    "does not stand there": replace_first(SOUND, node=3),
    "is marked rejected, but its trials say accepted": dataclasses.replace(
        SOUND, nodes=(dataclasses.replace(SOUND.nodes[0], verdict="rejected"), *SOUND.nodes[1:])
    ),
    "is marked accepted, but its trials say untested": dataclasses.replace(
        SOUND, nodes=(*SOUND.nodes[:3], dataclasses.replace(SOUND.nodes[3], verdict="accepted"))
    ),
    "not one path": dataclasses.replace(
        SOUND, nodes=(*SOUND.nodes[:3], dataclasses.replace(SOUND.nodes[3], verdict="accepted"))
    ),
    "siblings carry the same": dataclasses.replace(SOUND, nodes=(*SOUND.nodes, node(0))),
    "places decided": dataclasses.replace(SOUND, sites=SOUND.sites[:2]),
    "emitted tokens": dataclasses.replace(SOUND, emitted=(0, 1)),
    "is not in the final token's interval": dataclasses.replace(SOUND, final=final(kind="corrected", low=0.6)),
    "not certain": dataclasses.replace(SOUND, final=final(kind="corrected", high=0.7)),
    "is called bonus, but is corrected": dataclasses.replace(SOUND, final=final(kind="bonus")),
    "remaining mass": dataclasses.replace(SOUND, final=final(kind="corrected", mass=0.5)),
    "took longer than the step": dataclasses.replace(SOUND, draft_s=1.0),
    "tokens stood before it": dataclasses.replace(SOUND, start=7),
    "stands at place": dataclasses.replace(SOUND, index=3),
    "its clock reads": dataclasses.replace(SOUND, clock_s=0.7),
    "no final token although": chain_step(0, 0, 0, final=None, emitted=()),
    "plain decoding drafts nothing": dataclasses.replace(SOUND, lane="baseline"),
}


@pytest.mark.parametrize("sentence", DAMAGES)
def test_the_audit_names_each_kind_of_damage(sentence):
    assert audit(make_trace(started(), SOUND)) == []
    damaged = DAMAGES[sentence]
    faults = audit(make_trace(started(damaged.lane), damaged))
    assert any(sentence in fault for fault in faults), faults


@pytest.mark.parametrize(
    ("events", "sentence"),
    [
        ((SOUND,), "does not begin with its prompt pass"),
        ((started(), started()), "starts more than once"),
        ((started(), finished(num_tokens=3), SOUND), "events follow its end"),
        ((started(), SOUND, finished(num_tokens=4)), "its end counts 4 tokens, its steps 3"),
        ((started(), started("baseline", prompt_ids=(1,))), "the lanes differ in target or prompt"),
    ],
)
def test_the_audit_names_what_is_out_of_order(events, sentence):
    assert any(sentence in fault for fault in audit(make_trace(*events)))


# Under the naive rule.

OWN = OwnDraw(0, 0.25, 0.0, 0.5)
MISSED = trial(0, False, p_target=0.3, cur=0.3, row=0.4, u=0.25, overlap=0.4)
NAIVE = chain_step(
    0, 1, 0,
    nodes=(node(7, verdict="rejected"),),
    sites=(dataclasses.replace(site(ROOT, MISSED), drawn=OWN),),
    emitted=(0,),
    final=final(0, "corrected", u=0.25, low=0.0, high=0.5, mass=1.0, p_target=0.5),
)  # fmt: skip


def naive_faults(step_, rule="naive"):
    config = {"temperature": 1.0, "rule": rule}
    return audit(make_trace(started(), step_, finished(num_tokens=len(step_.emitted)), config=config))


def with_site(step_, **more):
    return dataclasses.replace(step_, sites=(dataclasses.replace(step_.sites[0], **more), *step_.sites[1:]))


def test_a_sound_step_of_the_naive_rule_passes_and_is_none_of_the_standard_rule():
    assert naive_faults(NAIVE) == []
    assert any("draw of the naive rule" in fault for fault in naive_faults(NAIVE, "standard"))
    assert any("is missing" in fault for fault in naive_faults(with_site(NAIVE, drawn=None)))


NAIVE_DAMAGES = {
    "outside its interval": with_site(NAIVE, drawn=dataclasses.replace(OWN, u=0.6)),
    "but p_target": with_site(NAIVE, drawn=dataclasses.replace(OWN, high=0.9)),
    "is judged otherwise": with_site(NAIVE, trials=(dataclasses.replace(MISSED, accepted=True),)),
    "by another u or cur": with_site(NAIVE, trials=(dataclasses.replace(MISSED, u=0.3),)),
    "not compared with every child": with_site(NAIVE, trials=()),
    "final token is not the last draw": dataclasses.replace(NAIVE, emitted=(1,), final=final(
        1, "corrected", u=0.25, low=0.0, high=0.5, mass=1.0, p_target=0.5)),
    "remaining mass": dataclasses.replace(NAIVE, final=dataclasses.replace(NAIVE.final, mass=0.6)),
    "compared further": with_site(
        NAIVE,
        trials=(dataclasses.replace(MISSED, accepted=True), MISSED),
        drawn=dataclasses.replace(OWN, token_id=7),
    ),
    "does not stand there": dataclasses.replace(NAIVE, nodes=(*NAIVE.nodes, node(8, 0, 2, verdict="rejected")),
        sites=(dataclasses.replace(NAIVE.sites[0], trials=(MISSED, dataclasses.replace(MISSED, node=1))),)),
}  # fmt: skip


@pytest.mark.parametrize("word", NAIVE_DAMAGES)
def test_each_damage_to_a_naive_step_is_named(word):
    faults = naive_faults(NAIVE_DAMAGES[word])
    assert any(word in fault for fault in faults), faults
