"""Small traces for tests: value by value, or played by a plain-Python walk over four-token rows.

The walk is written from the papers with lists of floats, apart from the product's own rule, and has a
switch for the best-known wrong rule: drawing from p_target again after a rejection.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from specviz.trace import ROOT, FinalDraw, Node, Piece, RunFinished, RunStarted, Site, Step, Trace, Trial

P = (0.4, 0.3, 0.2, 0.1)
Q = (0.1, 0.2, 0.3, 0.4)
GREEDY = {"temperature": 0.0, "draft_len": 4}


def node(token_id: int = 1, parent: int = ROOT, depth: int = 1, verdict: Any = "untested", **more: Any) -> Node:
    fields: dict[str, Any] = {"proposers": (0,), "q_draft": 0.5, **more}
    return Node(token_id=token_id, parent=parent, depth=depth, verdict=verdict, **fields)


def trial(node: int = 0, accepted: bool = True, **more: Any) -> Trial:
    """By default certain: one-hot rows, as at temperature 0."""
    p = 1.0 if accepted else 0.0
    fields: dict[str, Any] = {
        "proposer": 0,
        "p_target": p,
        "cur": p,
        "row": 1.0,
        "u": 0.5,
        "overlap": p,
        "rank": 1,
    }
    return Trial(**{**fields, **more}, node=node, accepted=accepted)


def site(node: int = ROOT, *trials: Trial, top2_gap: float = 1.0) -> Site:
    return Site(node, trials, ((1, 0.6), (2, 0.4)), ((2, 1.0),) if trials else (), (), top2_gap)


def final(token_id: int = 9, kind: Any = "plain", **more: Any) -> FinalDraw:
    fields: dict[str, Any] = {"u": 0.5, "low": 0.0, "high": 1.0, "mass": 1.0, "p_target": 1.0, "rank": 1, **more}
    return FinalDraw(token_id=token_id, kind=kind, **fields)


def step(index: int = 0, *, lane: Any = "speculative", start: int | None = None, **more: Any) -> Step:
    """A step of 0.1 s; `start` and the clock follow from the index as if each step gave one token."""
    fields: dict[str, Any] = {
        "draft_len": 4,
        "nodes": (),
        "sites": (site(),),
        "final": final(),
        "emitted": (9,),
        "draft_s": 0.02,
        "verify_s": 0.07,
        "total_s": 0.1,
        "clock_s": 0.1 * (index + 1),
        **more,
    }
    return Step(lane=lane, index=index, start=index if start is None else start, **fields)


def chain_step(index: int, drafted: int, accepted: int, **more: Any) -> Step:
    """A greedy chain: ids 0, 1, … at depths 1, 2, …; the first `accepted` hold, the next is rejected."""
    verdicts = ["accepted"] * accepted + ["rejected"] + ["untested"] * drafted
    nodes = tuple(node(i, i - 1, i + 1, verdicts[i]) for i in range(drafted))
    sites = [site(i - 1, trial(i)) for i in range(accepted)]
    sites.append(site(accepted - 1, *([trial(accepted, False)] if accepted < drafted else [])))
    kind = "corrected" if accepted < drafted else "bonus" if drafted else "plain"
    emitted = (*range(accepted), 9)
    fields: dict[str, Any] = {"nodes": nodes, "sites": tuple(sites), "final": final(kind=kind), "emitted": emitted}
    return step(index, **{**fields, **more})


def started(lane: Any = "speculative", **more: Any) -> RunStarted:
    fields: dict[str, Any] = {
        "prompt_ids": (5, 6, 7),
        "target": "big",
        "proposers": ("small", "lookup") if lane == "speculative" else (),
        "seed": 3,
        "dtype": "float32",
        "device": "cpu",
        "bit_exact": True,
        "prefill_s": 0.4,
        "pass_times": ((1, 0.05), (2, 0.06)),
        **more,
    }
    return RunStarted(lane=lane, **fields)


def finished(
    lane: Any = "speculative", num_tokens: int = 0, reason: Any = "length", decode_s: float = 0.0
) -> RunFinished:
    return RunFinished(lane, reason, num_tokens, decode_s)


def make_trace(*events: Any, config: dict[str, Any] | None = None) -> Trace:
    trace = Trace(config=dict(GREEDY if config is None else config), events=list(events))
    trace.pieces = {i: Piece(f"t{i}".encode()) for i in trace.ids_used()}
    return trace


def sampled_trace(seed: int, *, depth: int = 3, width: int = 1, redraw_from_p: bool = False) -> Trace:
    """A race at temperature 1 of P against Q: trees whose first sibling is extended, siblings drawn i.i.d."""
    rng = random.Random(seed)
    events: list[Any] = [started(), started("baseline")]
    num_tokens = 0
    for index in range(40):
        made = _sampled_step(rng, index, num_tokens, depth, width, redraw_from_p)
        num_tokens += len(made.emitted)
        events += [made, _plain_step(rng, index)]
    events += [finished(num_tokens=num_tokens), finished("baseline", 40)]
    return make_trace(*events, config={"temperature": 1.0, "draft_len": depth})


def _plain_step(rng: random.Random, index: int) -> Step:
    drawn = _draw(rng, P, "plain", 1.0)
    return step(index, lane="baseline", final=drawn, emitted=(drawn.token_id,))


def _sampled_step(rng: random.Random, index: int, start: int, depth: int, width: int, redraw_from_p: bool) -> Step:
    tokens, parents, proposals = _grow_tree(rng, depth, width)
    at, path, sites, tried, mass, any_rejected = ROOT, [], [], {}, 1.0, False
    while True:
        cur, trials, mass = list(P), [], 1.0
        for child in (i for i in proposals if parents[i] == at):
            token, u = tokens[child], rng.random()
            overlap, accepted = sum(map(min, cur, Q)), u * Q[token] < cur[token]
            odds = {"p_target": P[token], "cur": cur[token], "row": Q[token], "u": u, "overlap": overlap}
            trials.append(trial(child, accepted, **odds))
            tried[child] = accepted
            if accepted:
                break
            left = [max(0.0, c - q) for c, q in zip(cur, Q, strict=True)]
            mass = sum(left)
            cur = [part / mass for part in left]
        sites.append(site(at, *trials))
        any_rejected = bool(trials)
        if not trials or not trials[-1].accepted:
            break
        at = trials[-1].node
        path.append(at)
    kind = "corrected" if any_rejected else "bonus"
    drawn = _draw(rng, P if redraw_from_p else cur, kind, mass)
    verdicts = {None: "untested", True: "accepted", False: "rejected"}
    depths = _depths(parents)
    nodes = tuple(
        node(tokens[i], parents[i], depths[i], verdicts[tried.get(i)], q_draft=Q[tokens[i]])
        for i in range(len(tokens))
    )
    emitted = (*(tokens[i] for i in path), drawn.token_id)
    return step(index, start=start, nodes=nodes, sites=tuple(sites), final=drawn, emitted=emitted)


def _grow_tree(rng: random.Random, depth: int, width: int) -> tuple[list[int], list[int], list[int]]:
    """Ids and parents per node, and the node of every proposal; a repeated sibling is one node, two trials."""
    tokens: list[int] = []
    parents: list[int] = []
    proposals: list[int] = []
    parent = ROOT
    for _ in range(depth):
        children: dict[int, int] = {}
        for token in rng.choices(range(4), Q, k=width):
            if token not in children:
                children[token] = len(tokens)
                tokens.append(token)
                parents.append(parent)
            proposals.append(children[token])
        parent = min(children.values())
    return tokens, parents, proposals


def _depths(parents: Sequence[int]) -> list[int]:
    depths: list[int] = []
    for parent in parents:
        depths.append(1 if parent == ROOT else depths[parent] + 1)
    return depths


def _draw(rng: random.Random, row: Sequence[float], kind: Any, mass: float) -> FinalDraw:
    u, low = rng.random(), 0.0
    for token, share in enumerate(row):
        if u < low + share or token == 3:
            break
        low += share
    return final(token, kind, u=u, low=low, high=low + share, mass=mass, p_target=P[token])
