"""A run's numbers while it runs: events go in one by one, courses for plots grow.

Owns: what accumulates over a run, in constant time per step, so that a page can redraw ten times a second
however long the run is. A recorded trace goes the same way. Must not know how numbers are shown.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from specviz.metrics.counts import Counts, count_step, ratio
from specviz.metrics.provenance import Copies
from specviz.trace import Event, Lane, RunFinished, RunStarted, Step

ACCEPTANCE_WINDOW = 16
"""Passes that the rolling acceptance rate looks back on."""


@dataclass
class Course:
    """Points of one curve in the order they came; y None where the value is undefined at x."""

    x: list[float] = field(default_factory=list)
    y: list[float | None] = field(default_factory=list)

    def add(self, x: float, y: float | None) -> None:
        self.x.append(x)
        self.y.append(y)

    def since(self, num_seen: int) -> Course:
        """The points behind the first `num_seen`: what a page that drew those still lacks."""
        return Course(self.x[num_seen:], self.y[num_seen:])

    def __len__(self) -> int:
        return len(self.x)


@dataclass(frozen=True, slots=True)
class TimeSplit:
    """Decode seconds of a lane by what they went into; `rest_s` is sampling and bookkeeping."""

    draft_s: float
    verify_s: float
    rest_s: float


@dataclass
class ProposerCounts:
    """Nodes that one draft source proposed, had tried, and had accepted.

    A node that two sources proposed counts for both as proposed, and for each of them as tested only where
    its own trial took place, so these columns may add up to more than the run's counts. `unique` are accepted
    nodes that no other source proposed: what the run would have lost without this one.
    """

    name: str
    proposed: int = 0
    tested: int = 0
    accepted: int = 0
    unique: int = 0


@dataclass
class LaneTally:
    """One lane so far. `top2_gaps[i]` is the target's logit gap where token i was decided."""

    started: RunStarted | None = None
    finished: RunFinished | None = None
    counts: Counts = field(default_factory=Counts)
    token_ids: list[int] = field(default_factory=list)
    top2_gaps: list[float | None] = field(default_factory=list)
    draft_s: float = 0.0
    verify_s: float = 0.0
    clock_s: float = 0.0
    tokens: Course = field(default_factory=lambda: Course([0.0], [0.0]))

    @property
    def seconds_per_token(self) -> float | None:
        return ratio(self.clock_s, len(self.token_ids))

    @property
    def tokens_per_s(self) -> float | None:
        """Decode rate; the prompt pass is not in it."""
        return ratio(len(self.token_ids), self.clock_s)

    @property
    def time_split(self) -> TimeSplit:
        return TimeSplit(self.draft_s, self.verify_s, max(0.0, self.clock_s - self.draft_s - self.verify_s))

    @property
    def is_cut_short(self) -> bool:
        """Whether the lane is still running or ended before it met its own stop condition."""
        return self.finished is None or self.finished.reason in ("cancelled", "error")

    def add(self, step: Step) -> None:
        self.counts += count_step(step)
        self.token_ids.extend(step.emitted)
        gaps = [site.top2_gap for site in step.sites[: len(step.emitted)]]
        self.top2_gaps.extend(gaps + [None] * (len(step.emitted) - len(gaps)))
        self.draft_s += step.draft_s
        self.verify_s += step.verify_s
        self.clock_s = step.clock_s
        self.tokens.add(step.clock_s, len(self.token_ids))


class Tally:
    """Everything `summarize` and the plots need, kept up to date by `add`.

    Courses of the speculative lane: `rolling_acceptance` (α over the last `ACCEPTANCE_WINDOW` passes) and
    `cumulative_acceptance`, both over the pass number from 1. `speedup` runs over lane time (the later of
    the two clocks) and begins once both lanes have a token. `accepted_lengths` counts passes by the length
    of their accepted path, `draft_lengths` by the number of drafted nodes.
    """

    def __init__(self, config: Mapping[str, Any] | None = None) -> None:
        self.config = dict(config or {})
        self.lanes: dict[Lane, LaneTally] = {"speculative": LaneTally(), "baseline": LaneTally()}
        self.rolling_acceptance = Course()
        self.cumulative_acceptance = Course()
        self.speedup = Course()
        self.accepted_lengths: Counter[int] = Counter()
        self.draft_lengths: Counter[int] = Counter()
        self.only_chains = True
        self.copies = Copies()
        self.num_equal = 0
        self._proposers: dict[int, ProposerCounts] = {}
        self._window: deque[tuple[int, int]] = deque(maxlen=ACCEPTANCE_WINDOW)

    def add(self, event: Event) -> None:
        """Take one event of either lane into account."""
        lane = self.lanes[event.lane]
        if isinstance(event, RunStarted):
            lane.started = lane.started or event
        elif isinstance(event, RunFinished):
            lane.finished = lane.finished or event
        else:
            lane.add(event)
            if event.lane == "speculative":
                self._add_speculative(event)
            self._compare_lanes()

    @property
    def speculative(self) -> LaneTally:
        return self.lanes["speculative"]

    @property
    def baseline(self) -> LaneTally:
        return self.lanes["baseline"]

    @property
    def main(self) -> LaneTally:
        """The lane that a summary is of: the speculative one, or the only one where nobody drafts."""
        return self.speculative if self.speculative.started or self.speculative.counts.passes else self.baseline

    @property
    def proposers(self) -> list[ProposerCounts]:
        """Counts per draft source, in the order of the run's proposers; those that proposed nothing, too."""
        started = self.speculative.started
        for proposer in range(len(started.proposers) if started else 0):
            self._counts_of(proposer)
        return [counts for _, counts in sorted(self._proposers.items())]

    def current_speedup(self) -> float | None:
        """Baseline seconds per token ÷ speculative seconds per token, each lane over what it has done."""
        return ratio(self.baseline.seconds_per_token, self.speculative.seconds_per_token)

    def _add_speculative(self, step: Step) -> None:
        self.accepted_lengths[step.num_accepted] += 1
        self.draft_lengths[step.num_drafted] += 1
        self.only_chains &= all(node.parent == index - 1 for index, node in enumerate(step.nodes))
        self._window.append((step.num_accepted, step.num_tested))
        accepted, tested = (sum(column) for column in zip(*self._window, strict=True))
        counts = self.speculative.counts
        self.rolling_acceptance.add(counts.passes, ratio(accepted, tested))
        self.cumulative_acceptance.add(counts.passes, counts.acceptance_rate)
        self._add_proposers(step)
        self.copies.add(step)

    def _add_proposers(self, step: Step) -> None:
        trials = [trial for site in step.sites for trial in site.trials]
        proposed = {(proposer, node) for node, n in enumerate(step.nodes) for proposer in n.proposers}
        tested = {(trial.proposer, trial.node) for trial in trials}
        accepted = {(trial.proposer, trial.node) for trial in trials if trial.accepted}
        for proposer, _ in proposed:
            self._counts_of(proposer).proposed += 1
        for proposer, _ in tested:
            self._counts_of(proposer).tested += 1
        for proposer, _ in accepted:
            self._counts_of(proposer).accepted += 1
        for node in step.nodes:
            if node.verdict == "accepted" and len(node.proposers) == 1:
                self._counts_of(node.proposers[0]).unique += 1

    def _counts_of(self, proposer: int) -> ProposerCounts:
        if proposer not in self._proposers:
            names = self.speculative.started.proposers if self.speculative.started else ()
            known = 0 <= proposer < len(names)
            self._proposers[proposer] = ProposerCounts(names[proposer] if known else f"draft {proposer + 1}")
        return self._proposers[proposer]

    def _compare_lanes(self) -> None:
        """Move on to where the lanes' ids first differ, and extend the course of the speedup."""
        ours, plain = self.speculative.token_ids, self.baseline.token_ids
        shorter = min(len(ours), len(plain))
        while self.num_equal < shorter and ours[self.num_equal] == plain[self.num_equal]:
            self.num_equal += 1
        if shorter:
            clock_s = max(self.speculative.clock_s, self.baseline.clock_s)
            self.speedup.add(clock_s, self.current_speedup())
