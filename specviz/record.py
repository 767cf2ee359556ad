"""From a walk down the tree to the plain values of a `Step`.

Owns: what of the tensors is kept for the eye (tops, ranks, gaps). Must not know models or drafts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from specviz.sampling import Sampler, top_candidates
from specviz.trace import Candidates, FinalDraw, FinalKind, Node, Site, Trial, Verdict
from specviz.verify import Decision, Proposal, TokenTree, Walk

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
        q_draft = float(_shown(proposals[i][0])[token_id])
        nodes.append(Node(token_id, parent, depths[i], verdict, proposers, q_draft))
    return tuple(nodes)


def record_sites(tree: TokenTree, walk: Walk, rows: Rows, sampler: Sampler) -> tuple[Site, ...]:
    """Every decision on the walk, with the tops of the target, the first proposal and the residual."""
    places = [decision.node + 1 for decision in walk.decisions]
    shaped, p = rows.shaped[places], rows.p[places]
    best = top_candidates(shaped, 2)[0].tolist()
    tops = _tops(sampler.confidence(shaped, p))
    sites = []
    for i, decision in enumerate(walk.decisions):
        gap = min(best[i][0] - best[i][1], _MAX_GAP) if len(best[i]) > 1 else _MAX_GAP
        first = decision.throws[0].proposal if decision.throws else None
        q_top = _tops(_shown(first)[None])[0] if first else ()
        final_here = decision.throws and not decision.throws[-1].accepted
        residual_top = _tops(decision.left[None])[0] if final_here else ()
        trials = tuple(_trials(tree, decision, shaped[i], p[i]))
        sites.append(Site(decision.node, trials, tops[i], q_top, residual_top, gap))
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
        rank=_rank(rows.shaped[place], drawn.token_id),
    )


def _trials(tree: TokenTree, decision: Decision, shaped: Tensor, p_row: Tensor) -> Sequence[Trial]:
    trials = []
    for throw in decision.throws:
        token_id = tree.token_ids[throw.proposal.node]
        trials.append(
            Trial(
                node=throw.proposal.node,
                proposer=throw.proposal.proposer,
                p_target=float(p_row[token_id]),
                cur=throw.cur,
                row=throw.row,
                u=throw.u,
                overlap=throw.overlap,
                rank=_rank(shaped, token_id),
                accepted=throw.accepted,
            )
        )
    return trials


def _shown(proposal: Proposal) -> Tensor:
    return proposal.row if proposal.shown is None else proposal.shown


def _rank(shaped: Tensor, token_id: int) -> int:
    return int((shaped > shaped[token_id]).sum()) + 1


def _tops(rows: Tensor) -> list[Candidates]:
    """The best few (id, probability) of each row, those of probability 0 left out."""
    values, ids = top_candidates(rows, NUM_SHOWN)
    pairs = (zip(i, v, strict=True) for i, v in zip(ids.tolist(), values.tolist(), strict=True))
    return [tuple((token_id, value) for token_id, value in row if value > 0) for row in pairs]
