"""Recheck a trace from the file alone: every accept, reject and final draw, and that the tokens add up.

Owns: what must hold in a sound trace, as sentences about what does not. Must not know the rule that made
the trace: it is restated here from the records' own definitions, so that a fault in `verify` shows.

A trial's `cur` behind a rejection depends on rows that a trace does not hold in full, so it is bounded:
after a rejection of row r, cur(y) = max(0, cur(y) − r(y)) ÷ (1 − Σ min(cur, r)). r(y) is known for the
rejected token itself, and 0 for all others where r was one-hot; else it lies in [0, 1 − r(x)].
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from specviz.metrics.naive import PROBABILITY_SLACK, naive_faults
from specviz.trace import ROOT, FinalDraw, Lane, RunFinished, RunStarted, Site, Step, Trace, Trial

SECONDS_SLACK = 1e-6
LANES: tuple[Lane, ...] = ("speculative", "baseline")


def audit(trace: Trace) -> list[str]:
    """Sentences naming what does not hold, in the order of the trace; empty where all is sound."""
    greedy = trace.config.get("temperature") == 0
    return [f"{place}: {fault}." for place, fault in _audit_trace(trace, greedy)]


def _audit_trace(trace: Trace, greedy: bool) -> Iterator[tuple[str, str]]:
    for lane in LANES:
        for fault in _audit_lane(trace, lane):
            yield f"Lane {lane}", fault
        for step in trace.steps(lane):
            for fault in (*_audit_tree(step), *_audit_verdicts(step), *_audit_rule(trace, step, greedy)):
                yield f"Lane {lane}, step {step.index}", fault
    starts = [start for lane in LANES if (start := trace.started(lane))]
    if len({(start.target, start.prompt_ids) for start in starts}) > 1:
        yield "Run", "the lanes differ in target or prompt"


def _audit_lane(trace: Trace, lane: Lane) -> Iterator[str]:
    """Order of events, and that indices, tokens and seconds add up over the lane."""
    events = [event for event in trace.events if event.lane == lane]
    if events and not isinstance(events[0], RunStarted):
        yield "it does not begin with its prompt pass"
    if sum(isinstance(event, RunStarted) for event in events) > 1:
        yield "it starts more than once"
    if any(isinstance(event, RunFinished) for event in events[:-1]):
        yield "events follow its end"
    num_tokens, clock_s = 0, 0.0
    for index, step in enumerate(trace.steps(lane)):
        clock_s += step.total_s
        if step.index != index:
            yield f"step {step.index} stands at place {index}"
        if step.start != num_tokens:
            yield f"step {index} says that {step.start} tokens stood before it, but {num_tokens} did"
        if abs(step.clock_s - clock_s) > SECONDS_SLACK * (index + 1):
            yield f"its clock reads {step.clock_s:g} s after step {index}, but the steps took {clock_s:g} s"
        num_tokens += len(step.emitted)
    finished = trace.finished(lane)
    if finished is not None and finished.num_tokens != num_tokens:
        yield f"its end counts {finished.num_tokens} tokens, its steps {num_tokens}"


def _audit_tree(step: Step) -> Iterator[str]:
    """Siblings differ; the accepted nodes are one root path; each place on it was decided; ids follow."""
    places = [(node.parent, node.token_id) for node in step.nodes]
    if len(set(places)) < len(places):
        yield "two siblings carry the same token"
    path = _accepted_path(step)
    if any(step.nodes[node].parent != parent for parent, node in zip([ROOT, *path], path, strict=False)):
        yield "the accepted nodes are not one path from the root"
    reached = [ROOT, *path] if step.final else [ROOT, *path][:-1]
    if [site.node for site in step.sites] != reached:
        yield "the places decided are not those on the accepted path"
    ids = [step.nodes[node].token_id for node in path] + ([step.final.token_id] if step.final else [])
    if list(step.emitted) != ids:
        yield "the emitted tokens are not the accepted path and the final token"
    if step.lane == "baseline" and (step.nodes or len(step.emitted) != 1):
        yield "plain decoding drafts nothing and gives one token a pass"
    if step.draft_s + step.verify_s > step.total_s + SECONDS_SLACK:
        yield "drafting and verifying took longer than the step"


def _audit_verdicts(step: Step) -> Iterator[str]:
    """Each node's verdict against its trials."""
    tried: dict[int, bool] = {}
    for trial in (trial for site in step.sites for trial in site.trials):
        tried[trial.node] = tried.get(trial.node, False) or trial.accepted
    for index, node in enumerate(step.nodes):
        verdict = {None: "untested", True: "accepted", False: "rejected"}[tried.get(index)]
        if node.verdict != verdict:
            yield f"node {index} is marked {node.verdict}, but its trials say {verdict}"


def _audit_rule(trace: Trace, step: Step, greedy: bool) -> Iterator[str]:
    """Trials and final draw against the rule that the settings name; they name none where there was only one."""
    naive = trace.config.get("rule") == "naive"
    if naive:
        yield from naive_faults(step, greedy)
    else:
        yield from _audit_trials(step, greedy)
    yield from _audit_final(step, greedy, naive)


def _audit_trials(step: Step, greedy: bool) -> Iterator[str]:
    """Every trial by itself."""
    for site in step.sites:
        if site.drawn is not None:
            yield f"the place behind node {site.node} has a draw of the naive rule"
        tried = {(trial.node, trial.proposer) for trial in site.trials}
        drawn = {
            (i, who) for i, node in enumerate(step.nodes) if node.parent == site.node for who in node.proposers
        }
        if drawn - tried and not any(trial.accepted for trial in site.trials):
            yield f"the place behind node {site.node} was left before all that was proposed there was tried"
        for index in range(len(site.trials)):
            for fault in _audit_trial(step, site, index, greedy):
                yield f"trial {index + 1} behind node {site.node} {fault}"


def _audit_trial(step: Step, site: Site, index: int, greedy: bool) -> Iterator[str]:
    """The throw kept the rule u·row < cur, and cur follows from the throws before it."""
    trial, before = site.trials[index], site.trials[:index]
    if trial.node == ROOT or step.nodes[trial.node].parent != site.node:
        yield "tries a node that does not stand there"
    if any(earlier.accepted for earlier in before):
        yield "comes after an accepted one"
    if not 0 <= trial.u < 1 or not 0 < trial.row <= 1 + PROBABILITY_SLACK:
        yield f"has u = {trial.u:g} or row = {trial.row:g} out of range"
    if trial.accepted != (trial.u * trial.row < trial.cur):
        word = "accepted" if trial.accepted else "rejected"
        yield f"is {word}, but u·row = {trial.u * trial.row:g} and cur = {trial.cur:g}"
    if not _remaining(trial.p_target, trial.node, before).holds(trial.cur):
        yield f"has cur = {trial.cur:g}, which does not follow from p_target and the rows before"
    if greedy and PROBABILITY_SLACK < trial.cur < 1 - PROBABILITY_SLACK:
        yield f"has cur = {trial.cur:g} at temperature 0, where a token is certain or impossible"


class _Range(NamedTuple):
    low: float
    high: float
    slack: float

    def holds(self, value: float, rounding: float = 0.0) -> bool:
        slack = self.slack + rounding
        return self.low - slack <= value <= self.high + slack


def _remaining(p_target: float, node: int | None, rejected: Sequence[Trial]) -> _Range:
    """Where a token's probability must lie after these rejections; exact where none came before."""
    low, high, slack = p_target, p_target, 0.0
    for trial in rejected:
        mass = 1 - trial.overlap
        if mass <= PROBABILITY_SLACK:  # equal rows leave nothing but rounding
            return _Range(0.0, 1.0, PROBABILITY_SLACK)
        least, most = (trial.row, trial.row) if trial.node == node else (0.0, max(0.0, 1 - trial.row))
        low, high = max(0.0, low - most) / mass, max(0.0, high - least) / mass
        slack = (slack + PROBABILITY_SLACK) / mass
    return _Range(low, min(1.0, high), slack)


def _audit_final(step: Step, greedy: bool, naive: bool) -> Iterator[str]:
    """The final token's interval holds u and is as wide as what was left of the token; kind and mass fit."""
    final, path = step.final, _accepted_path(step)
    if final is None:
        if not path:
            yield "it has no final token although nothing was accepted"
        return
    site = next((site for site in step.sites if site.node == (path[-1] if path else ROOT)), None)
    rejected = [trial for trial in site.trials if not trial.accepted] if site else []
    kind = "corrected" if rejected else "bonus" if path else "plain"
    if final.kind != kind:
        yield f"its final token is called {final.kind}, but is {kind}"
    if not 0 <= final.low <= final.u < final.high <= 1 + PROBABILITY_SLACK:
        yield f"u = {final.u:g} is not in the final token's interval [{final.low:g}, {final.high:g})"
    mass = 1 - rejected[-1].overlap if rejected and not naive else 1.0
    if abs(final.mass - mass) > PROBABILITY_SLACK:
        yield f"the remaining mass is {final.mass:g}, but the rows leave {mass:g}"
    if not naive:
        yield from _audit_width(step, final, site, greedy)


def _audit_width(step: Step, final: FinalDraw, site: Site | None, greedy: bool) -> Iterator[str]:
    """The interval is the token's share of the residual; at temperature 0 that is all of it."""
    width = final.high - final.low
    if greedy and abs(width - 1) > PROBABILITY_SLACK:
        yield "the final token at temperature 0 is not certain"
    if greedy or site is None:
        return
    nodes = {t.node for t in site.trials if t.node != ROOT}
    same = next((node for node in nodes if step.nodes[node].token_id == final.token_id), None)
    if not _remaining(final.p_target, same, site.trials).holds(width, PROBABILITY_SLACK):
        yield f"the final token's interval is {width:g} wide, which does not follow from p_target and the rows"


def _accepted_path(step: Step) -> list[int]:
    return [index for index, node in enumerate(step.nodes) if node.verdict == "accepted"]
