"""The accept rule: one walk down one token tree, for every kind of draft.

Owns: `TokenTree`, `Proposal`, the rule, and a second one for teaching (`verify_naively`). Must not know models,
caches, text, stop conditions or what a trace looks like. A chain is a tree with one child each; greedy decoding
is rows that are one-hot. There is no other place in the project that decides acceptance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import torch
from torch import Tensor

from specviz.sampling import draw, uniform
from specviz.trace import Origin

ROOT = -1
Opinion: TypeAlias = Tensor | Sequence[tuple[int, float]]


@dataclass(frozen=True, slots=True)
class Proposal:
    """One trial to be made: `node` was drawn from `row` (shape (vocab,)) by source number `proposer`.

    `shown` is the draft's own opinion where the row is one-hot (greedy drafting), a row or its few best (id,
    probability), best first; `origin` is where a copied token comes from: for the eye, never the rule.
    """

    node: int
    row: Tensor
    proposer: int = 0
    shown: Opinion | None = None
    origin: Origin | None = None


@dataclass
class TokenTree:
    """Drafted tokens as a tree, with every proposal in the order in which it was drawn.

    `parents[i] < i` is a node's parent, `ROOT` for the children of the last committed token. A token proposed
    twice under one parent is one node (one row of the forward pass) and two proposals (two trials).
    """

    token_ids: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    proposals: list[Proposal] = field(default_factory=list)

    def add(
        self,
        token_id: int,
        parent: int,
        row: Tensor,
        proposer: int = 0,
        shown: Opinion | None = None,
        origin: Origin | None = None,
    ) -> int:
        """Add one proposal and return its node: a new one, or the sibling that holds the same token."""
        node = self.child(parent, token_id)
        if node is None:
            node = len(self.token_ids)
            self.token_ids.append(token_id)
            self.parents.append(parent)
        self.proposals.append(Proposal(node, row, proposer, shown, origin))
        return node

    def child(self, parent: int, token_id: int) -> int | None:
        """The child of `parent` that holds the token, if there is one."""
        pairs = enumerate(zip(self.parents, self.token_ids, strict=True))
        return next((node for node, pair in pairs if pair == (parent, token_id)), None)

    def path(self, node: int) -> list[int]:
        """Token ids from the root to `node`, itself included; empty for `ROOT`."""
        ids: list[int] = []
        while node != ROOT:
            ids.append(self.token_ids[node])
            node = self.parents[node]
        return ids[::-1]

    def depths(self) -> list[int]:
        """Depth of each node; a child of the root has depth 1."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(1 if parent == ROOT else depths[parent] + 1)
        return depths

    def cut(self, depth: int) -> TokenTree:
        """The tree down to this depth, which may not depend on what was drawn: a sampled node is never dropped."""
        depths, kept = self.depths(), TokenTree()
        if max(depths, default=0) <= depth:
            return self
        places = {ROOT: ROOT}
        for proposal in self.proposals:
            if depths[proposal.node] <= depth:
                parent, token_id = places[self.parents[proposal.node]], self.token_ids[proposal.node]
                places[proposal.node] = kept.add(
                    token_id, parent, proposal.row, proposal.proposer, proposal.shown, proposal.origin
                )
        return kept

    def proposals_under(self, parent: int) -> Iterator[Proposal]:
        """The proposals for the children of `parent`, in the order drawn."""
        return (p for p in self.proposals if self.parents[p.node] == parent)

    def __len__(self) -> int:
        return len(self.token_ids)


@dataclass(frozen=True, slots=True)
class Throw:
    """One trial as it went: `cur` is the token's probability when it was tried, `overlap` Σ min(cur, row)."""

    proposal: Proposal
    cur: float
    row: float
    u: float
    overlap: float
    accepted: bool


@dataclass(frozen=True, slots=True)
class Drawn:
    """The target's own token, with the interval [low, high) that held `u`."""

    token_id: int
    u: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Decision:
    """What happened behind `node`: its throws, and what was left (shape (vocab,)) after the last of them.

    `drawn` is the token that the naive rule drew before it looked at the tree; None under the standard rule.
    """

    node: int
    throws: tuple[Throw, ...]
    left: Tensor
    mass: float
    drawn: Drawn | None = None


@dataclass(frozen=True, slots=True)
class Walk:
    """The accepted path (node indices, root side first), each decision on it, and the final draw.

    `final` is None where a stop condition met inside the path.
    """

    path: tuple[int, ...]
    decisions: tuple[Decision, ...]
    final: Drawn | None


Decide: TypeAlias = Callable[[TokenTree, int, Tensor, torch.Generator], tuple[Decision, int | None]]


def verify(
    tree: TokenTree,
    p_rows: Tensor,
    generator: torch.Generator,
    stops: Callable[[int], bool] = lambda _: False,
) -> Walk:
    """Walk down the tree: at each node try its proposals in order, follow the accepted one, else draw.

    The output has exactly the law of `p_rows`: speculative sampling (Leviathan et al. 2211.17192, Alg. 1 and
    App. A.1) for a chain, multi-step speculative sampling (Miao et al. 2305.09781, Alg. 2) for a tree.

    Args:
        tree: the draft, each proposal with the row it was drawn from.
        p_rows: target probabilities of shape (1 + nodes, vocab): row 0 behind the root, row i + 1 behind node i.
        generator: the lane's own; each throw and the final draw take one fresh uniform.
        stops: told every accepted token in order; true ends the walk behind that token.
    """
    return _walk(_try, tree, p_rows, generator, stops)


def verify_naively(
    tree: TokenTree,
    p_rows: Tensor,
    generator: torch.Generator,
    stops: Callable[[int], bool] = lambda _: False,
) -> Walk:
    """For teaching: draw the target's token at each node, then look whether the tree holds it.

    Naive sampling of 2305.09781, §4.3. Arguments and law are those of `verify`: what is emitted is the target's
    own draw. But a proposal is accepted with Σ p·q instead of Σ min(p, q), so fewer are (its Thm. 4.3).
    """
    return _walk(_look_up, tree, p_rows, generator, stops)


Rule: TypeAlias = Callable[[TokenTree, Tensor, torch.Generator, Callable[[int], bool]], Walk]
RULES: dict[str, Rule] = {"standard": verify, "naive": verify_naively}


def _walk(
    decide: Decide,
    tree: TokenTree,
    p_rows: Tensor,
    generator: torch.Generator,
    stops: Callable[[int], bool],
) -> Walk:
    path: list[int] = []
    decisions: list[Decision] = []
    while True:
        node = path[-1] if path else ROOT
        decision, chosen = decide(tree, node, p_rows[node + 1], generator)
        decisions.append(decision)
        if chosen is None:
            final = decision.drawn or _drawn(decision.left, generator)
            return Walk(tuple(path), tuple(decisions), final)
        path.append(chosen)
        if stops(tree.token_ids[chosen]):
            return Walk(tuple(path), tuple(decisions), None)


def _drawn(row: Tensor, generator: torch.Generator) -> Drawn:
    u = uniform(generator)
    token_id, low, high = draw(row, u)
    return Drawn(token_id, u, low, high)


def _try(tree: TokenTree, node: int, p_row: Tensor, generator: torch.Generator) -> tuple[Decision, int | None]:
    """Try the proposals behind `node`: accept x with probability min(1, cur[x] / row[x])."""
    cur, mass = p_row, 1.0
    throws: list[Throw] = []
    for proposal in tree.proposals_under(node):
        token_id, row = tree.token_ids[proposal.node], proposal.row
        u, p_token, q_token = uniform(generator), float(cur[token_id]), float(row[token_id])
        accepted = u * q_token < p_token
        throws.append(Throw(proposal, p_token, q_token, u, _overlap(cur, row, token_id), accepted))
        if accepted:
            return Decision(node, tuple(throws), cur, mass), proposal.node
        cur, mass = _without(cur, token_id, p_token) if q_token == 1 else residual(cur, row)
    return Decision(node, tuple(throws), cur, mass), None


def _look_up(tree: TokenTree, node: int, p_row: Tensor, generator: torch.Generator) -> tuple[Decision, int | None]:
    """Draw the target's token and compare it with the proposals behind `node`, one after another."""
    drawn = _drawn(p_row, generator)
    throws: list[Throw] = []
    for proposal in tree.proposals_under(node):
        token_id, row = tree.token_ids[proposal.node], proposal.row
        p_token, q_token, accepted = float(p_row[token_id]), float(row[token_id]), token_id == drawn.token_id
        throws.append(Throw(proposal, p_token, q_token, drawn.u, _overlap(p_row, row, token_id), accepted))
        if accepted:
            return Decision(node, tuple(throws), p_row, 1.0, drawn), proposal.node
    return Decision(node, tuple(throws), p_row, 1.0, drawn), None


def _overlap(cur: Tensor, row: Tensor, token_id: int) -> float:
    """Σ min(cur, row); a row that is one-hot at `token_id` needs no sweep over the vocabulary."""
    if row[token_id] == 1:
        return min(float(cur[token_id]), 1.0)
    return float(torch.minimum(cur, row).sum())


def _without(cur: Tensor, token_id: int, p_token: float) -> tuple[Tensor, float]:
    """`residual` for a row that is one-hot at `token_id`, where `cur` has `p_token`."""
    if p_token == 0:
        return cur, 1.0
    left = cur.clone()
    left[token_id] = 0.0
    mass = float(left.sum())
    return (left / mass, mass) if mass > 0 else (cur, mass)


def residual(cur: Tensor, row: Tensor) -> tuple[Tensor, float]:
    """norm(max(0, cur − row)) and its mass before normalising (Leviathan et al. 2211.17192, §2.3).

    Two equal rows leave nothing; rounding may then still have rejected, and what stood before is kept.
    """
    left = torch.clamp(cur - row, min=0)
    mass = float(left.sum())
    return (left / mass, mass) if mass > 0 else (cur, mass)
