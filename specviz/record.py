"""From a walk down the tree to the plain values of a `Step`.

Owns: what of the tensors is kept for the eye (tops, ranks, gaps). Must not know models or drafts.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from specviz.sampling import Sampler, top_candidates
from specviz.trace import Candidates, FinalDraw, FinalKind, Node, OwnDraw, Site, Trial, Verdict
from specviz.verify import Opinion, Proposal, Throw, TokenTree, Walk

NUM_SHOWN = 8
_MAX_GAP = 1e6  # where every other token is barred; JSON knows no infinity


@dataclass(frozen=True, slots=True)
class Rows:
    """The target's rows of a pass, each of shape (1 + nodes, vocab): shaped logits, and what was drawn from."""

    shaped: Tensor
    p: Tensor


def record_nodes(tree: TokenTree, walk: Walk) -> tuple[Node, ...]:
    """Every drafted node with its verdict and all who proposed it."""
    accepted = set(walk.path)
    tried = {throw.proposal.node for decision in walk.decisions for throw in decision.throws}
    proposals: dict[int, list[Proposal]] = {}
    for proposal in tree.proposals:
        proposals.setdefault(proposal.node, []).append(proposal)
    depths = tree.depths()
    nodes = []
    for i, (token_id, parent) in enumerate(zip(tree.token_ids, tree.parents, strict=True)):
        verdict: Verdict = "accepted" if i in accepted else "rejected" if i in tried else "untested"
        proposers = tuple(dict.fromkeys(proposal.proposer for proposal in proposals[i]))
        q_draft = _chance(_shown(proposals[i][0]), token_id)
        origin = next((proposal.origin for proposal in proposals[i] if proposal.origin), None)
        nodes.append(Node(token_id, parent, depths[i], verdict, proposers, q_draft, origin))
    return tuple(nodes)


def record_sites(tree: TokenTree, walk: Walk, rows: Rows, sampler: Sampler) -> tuple[Site, ...]:
    """Every decision on the walk, with the tops of the target, the first proposal and the residual."""
    places = [decision.node + 1 for decision in walk.decisions]
    shaped, p = _at(rows.shaped, places), _at(rows.p, places)
    logits, ids = top_candidates(shaped, NUM_SHOWN)
    p_tops = _pairs(sampler.confidence(shaped, p).gather(1, ids), ids)
    q_tops = _draft_tops(tree, walk)
    best = logits.tolist()
    sites = []
    for i, decision in enumerate(walk.decisions):
        gap = min(best[i][0] - best[i][1], _MAX_GAP) if len(best[i]) > 1 else _MAX_GAP
        trials = tuple(_trial(tree, throw, shaped[i], p[i], best[i]) for throw in decision.throws)
        rejected = trials and not trials[-1].accepted
        own = decision.drawn
        residual_top = _tops(decision.left[None])[0] if rejected and own is None else ()
        q_top = q_tops.get(decision.node, ())
        drawn = OwnDraw(own.token_id, own.u, own.low, own.high) if own else None
        sites.append(Site(decision.node, trials, p_tops[i], q_top, residual_top, gap, drawn))
    return tuple(sites)


def record_final(walk: Walk, rows: Rows) -> FinalDraw | None:
    """The final draw: `corrected` behind a rejection, `bonus` behind an accepted leaf, else `plain`."""
    if walk.final is None:
        return None
    last, drawn = walk.decisions[-1], walk.final
    kind: FinalKind = "corrected" if last.throws else "bonus" if walk.path else "plain"
    place = last.node + 1
    return FinalDraw(
        token_id=drawn.token_id,
        kind=kind,
        u=drawn.u,
        low=drawn.low,
        high=drawn.high,
        mass=last.mass,
        p_target=float(rows.p[place, drawn.token_id]),
        rank=int((rows.shaped[place] > rows.shaped[place, drawn.token_id]).sum()) + 1,
    )


def _trial(tree: TokenTree, throw: Throw, shaped: Tensor, p_row: Tensor, best: list[float]) -> Trial:
    token_id = tree.token_ids[throw.proposal.node]
    return Trial(
        node=throw.proposal.node,
        proposer=throw.proposal.proposer,
        p_target=float(p_row[token_id]),
        cur=throw.cur,
        row=throw.row,
        u=throw.u,
        overlap=throw.overlap,
        rank=_rank(shaped, token_id, best),
        accepted=throw.accepted,
    )


def _draft_tops(tree: TokenTree, walk: Walk) -> dict[int, Candidates]:
    """Site node → the top of its first proposal's opinion. Lists and one-hot rows need no search."""
    firsts = {d.node: d.throws[0].proposal for d in walk.decisions if d.throws}
    tops: dict[int, Candidates] = {}
    rows: dict[int, Tensor] = {}
    for node, first in firsts.items():
        shown = _shown(first)
        if not isinstance(shown, Tensor):
            tops[node] = tuple(shown[:NUM_SHOWN])
        elif first.shown is None and shown[tree.token_ids[first.node]] == 1:
            tops[node] = ((tree.token_ids[first.node], 1.0),)
        else:
            rows[node] = shown
    if rows:
        tops.update(zip(rows, _tops(torch.stack([*rows.values()])), strict=True))
    return tops


def _at(rows: Tensor, places: list[int]) -> Tensor:
    """The rows at these places; on a chain they are the first ones, and a view will do."""
    return rows[: len(places)] if places == list(range(len(places))) else rows[places]


def _shown(proposal: Proposal) -> Opinion:
    return proposal.row if proposal.shown is None else proposal.shown


def _chance(opinion: Opinion, token_id: int) -> float:
    return float(opinion[token_id]) if isinstance(opinion, Tensor) else dict(opinion).get(token_id, 0.0)


def _rank(shaped: Tensor, token_id: int, best: list[float]) -> int:
    """1 + the number of tokens with a larger logit; the whole row is searched only behind the best few."""
    logit = float(shaped[token_id])
    if logit >= best[-1]:
        return sum(other > logit for other in best) + 1
    return int((shaped > logit).sum()) + 1


def _tops(rows: Tensor) -> list[Candidates]:
    """The best few (id, probability) of each row."""
    return _pairs(*top_candidates(rows, NUM_SHOWN))


def _pairs(values: Tensor, ids: Tensor) -> list[Candidates]:
    """(id, probability) row by row, those of probability 0 left out."""
    rows = (zip(i, v, strict=True) for i, v in zip(ids.tolist(), values.tolist(), strict=True))
    return [tuple((token_id, value) for token_id, value in row if value > 0) for row in rows]
