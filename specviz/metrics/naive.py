"""Recheck the sites of a trace that was made under the naive rule: draw first, then look into the tree.

Owns: what must hold where the target's own draw decides. Must not know the rule's code, nor the standard rule.
"""

from __future__ import annotations

from collections.abc import Iterator

from specviz.trace import OwnDraw, Site, Step

PROBABILITY_SLACK = 1e-4
"""Rounding of float32 rows over a vocabulary, before it is magnified by a small remaining mass."""


def naive_faults(step: Step, greedy: bool) -> Iterator[str]:
    """Sentences about draws, comparisons and the final token that do not follow from one another."""
    for site in step.sites:
        place = f"the draw behind node {site.node}"
        if site.drawn is None:
            yield f"{place} is missing"
            continue
        yield from (f"{place} {fault}" for fault in _draw_faults(step, site, site.drawn, greedy))
        yield from (f"{place} {fault}" for fault in _comparison_faults(step, site, site.drawn))
    last = step.sites[-1].drawn if step.sites else None
    final = step.final
    if final and last and (final.token_id, final.u, final.low, final.high) != (
        last.token_id, last.u, last.low, last.high,
    ):  # fmt: skip
        yield "the final token is not the last draw"


def _draw_faults(step: Step, site: Site, drawn: OwnDraw, greedy: bool) -> Iterator[str]:
    """The interval holds u and is as wide as the target's probability of the token."""
    if not 0 <= drawn.low <= drawn.u < drawn.high <= 1 + PROBABILITY_SLACK:
        yield f"has u = {drawn.u:g} outside its interval [{drawn.low:g}, {drawn.high:g})"
    known = {step.nodes[trial.node].token_id: trial.p_target for trial in site.trials}
    if step.final and site is step.sites[-1]:
        known[step.final.token_id] = step.final.p_target
    width = drawn.high - drawn.low
    if abs(width - known.get(drawn.token_id, width)) > PROBABILITY_SLACK:
        yield f"has an interval {width:g} wide, but p_target = {known[drawn.token_id]:g}"
    if greedy and abs(width - 1) > PROBABILITY_SLACK:
        yield "is not certain at temperature 0"


def _comparison_faults(step: Step, site: Site, drawn: OwnDraw) -> Iterator[str]:
    """A trial is accepted exactly where its token is the one drawn, and all are made until one is."""
    for trial in site.trials:
        node = step.nodes[trial.node]
        if node.parent != site.node:
            yield f"was compared with node {trial.node}, which does not stand there"
        if trial.accepted != (node.token_id == drawn.token_id):
            yield f"gave token {drawn.token_id}, but node {trial.node} is judged otherwise"
        if (trial.cur, trial.u) != (trial.p_target, drawn.u):
            yield f"was compared with node {trial.node} by another u or cur"
    verdicts = [trial.accepted for trial in site.trials]
    if any(verdicts[:-1]):
        yield "was compared further after a match"
    children = {index for index, node in enumerate(step.nodes) if node.parent == site.node}
    if not any(verdicts) and children != {trial.node for trial in site.trials}:
        yield "was not compared with every child"
