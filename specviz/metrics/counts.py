"""Counts of drafted, tested and accepted nodes, and the rates that follow from them.

Owns: the definition of every rate. They differ in what they count, so each has a name of its own:

- acceptance rate α: accepted ÷ tested
- overlap α̂: mean Σ min(p, q) at tested nodes, p what was left of the target's row at a node's first trial
- draft yield: accepted ÷ drafted
- tokens per pass τ: emitted ÷ passes, the target's own token included; plain decoding gives 1

Must not know time, lanes or where the counts came from: a step, a run, or another program's totals.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

from specviz.trace import Step


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What happened in some passes, in nodes. None says that the source of the counts does not tell.

    `drafted` counts nodes; `tested` those with at least one trial (siblings after an accepted node and all
    below a rejected one are untested); a node that two drafts proposed counts once. `accepted_at[i]` and
    `tested_at[i]` count nodes at depth i + 1. `overlap_sum` is Σ of the overlap of each tested node's
    first trial. `emitted` counts tokens, the target's own included. `undrafted` counts passes that could have
    held a draft, but for which nobody had one.
    """

    passes: int = 0
    drafted: int = 0
    accepted: int = 0
    emitted: int = 0
    accepted_at: tuple[int, ...] = ()
    tested: int | None = 0
    tested_at: tuple[int, ...] | None = ()
    overlap_sum: float | None = 0.0
    undrafted: int | None = 0

    @classmethod
    def from_totals(cls, *, passes: int, drafted: int, accepted_at: Sequence[int]) -> Counts:
        """Totals of another program that does not say what was tested, nor what was emitted.

        Each pass is taken to have ended with the target's own token, so emitted = accepted + passes.
        """
        accepted = sum(accepted_at)
        return cls(
            passes=passes,
            drafted=drafted,
            accepted=accepted,
            emitted=accepted + passes,
            accepted_at=tuple(accepted_at),
            tested=None,
            tested_at=None,
            overlap_sum=None,
            undrafted=None,
        )

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            passes=self.passes + other.passes,
            drafted=self.drafted + other.drafted,
            accepted=self.accepted + other.accepted,
            emitted=self.emitted + other.emitted,
            accepted_at=_add_by_depth(self.accepted_at, other.accepted_at),
            tested=None if self.tested is None or other.tested is None else self.tested + other.tested,
            tested_at=None
            if self.tested_at is None or other.tested_at is None
            else _add_by_depth(self.tested_at, other.tested_at),
            undrafted=None
            if self.undrafted is None or other.undrafted is None
            else self.undrafted + other.undrafted,
            overlap_sum=None
            if self.overlap_sum is None or other.overlap_sum is None
            else self.overlap_sum + other.overlap_sum,
        )

    @property
    def acceptance_rate(self) -> float | None:
        """α: accepted ÷ tested; None where nothing was tested or nobody counted."""
        return ratio(self.accepted, self.tested)

    @property
    def overlap(self) -> float | None:
        """α̂: mean over tested nodes of Σ min(cur, row) at the node's first trial (Corollary 3.6 of 2211.17192)."""
        return ratio(self.overlap_sum, self.tested)

    @property
    def draft_yield(self) -> float | None:
        """accepted ÷ drafted. For a tree, path length ÷ nodes verified."""
        return ratio(self.accepted, self.drafted)

    @property
    def tokens_per_pass(self) -> float | None:
        """τ: emitted ÷ passes, the target's own token included."""
        return ratio(self.emitted, self.passes)

    @property
    def accepted_per_pass(self) -> float | None:
        """Mean length of the accepted path, the target's own token not included."""
        return ratio(self.accepted, self.passes)

    @property
    def acceptance_of_passes(self) -> tuple[float | None, ...]:
        """By depth: the share of all passes that accepted a node there."""
        return tuple(ratio(accepted, self.passes) for accepted in self.accepted_at)

    @property
    def acceptance_of_tested(self) -> tuple[float | None, ...] | None:
        """By depth: the share of the nodes tested there that were accepted; None where nobody counted."""
        if self.tested_at is None:
            return None
        pairs = zip_longest(self.accepted_at, self.tested_at, fillvalue=0)
        return tuple(ratio(accepted, tested) for accepted, tested in pairs)


def count_step(step: Step) -> Counts:
    """The counts of one pass; runs add theirs up."""
    firsts: dict[int, float] = {}
    for site in step.sites:
        for trial in site.trials:
            firsts.setdefault(trial.node, trial.overlap)
    return Counts(
        passes=1,
        drafted=step.num_drafted,
        accepted=step.num_accepted,
        emitted=len(step.emitted),
        accepted_at=_by_depth([node.depth for node in step.nodes if node.verdict == "accepted"]),
        tested=step.num_tested,
        tested_at=_by_depth([node.depth for node in step.nodes if node.verdict != "untested"]),
        overlap_sum=sum(firsts.values()),
        undrafted=int(step.draft_len > 0 and not step.nodes),
    )


def ratio(part: float | None, whole: float | None) -> float | None:
    """part ÷ whole; None where either is unknown, the whole is not above 0, or the result beyond all numbers."""
    if part is None or whole is None or whole <= 0:
        return None
    result = part / whole
    return result if math.isfinite(result) else None


def _by_depth(depths: Sequence[int]) -> tuple[int, ...]:
    """How many of `depths` are 1, 2, … up to the deepest."""
    found = Counter(depths)
    return tuple(found[depth] for depth in range(1, max(depths, default=0) + 1))


def _add_by_depth(left: tuple[int, ...], right: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(a + b for a, b in zip_longest(left, right, fillvalue=0))
