"""How the tree of a draft model grows: one child each, a fixed profile, or as far as it is expected to pay.

Owns: `Shape` and the three shapes. Must not know models, rows or the rule: they see probabilities and counts. How
many children a node gets is settled before any of them is drawn, so nothing drawn is ever dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

from specviz.theory import measured_verify_ratio

MAX_WIDTH = 8
"""Children of a node that `auto` considers."""
MAX_DEPTH = 16
PROBE_EVERY = 16
_EDGES = (0.95, 0.85, 0.7, 0.5, 0.3, 0.15, 0.07, 0.03, 0.0)
_TRUST = 4.0  # imagined trials behind a draft's own word for its probabilities
_MEMORY = 0.97  # of a step, in the next; so it follows a text that gets easier or harder within some 30 steps
_LEAST_SLOPE = 0.01  # of a plain pass for one more node; measured times may well not rise at all
_SPAN = 8  # nodes over which the slope of the pass times is taken, so that their noise does not decide
_SLOWEST = 2.0  # the longest verifying pass that `auto` plans for, in plain ones


class Hope(NamedTuple):
    """What is expected of a node before it is drawn: its `chance` to be accepted, and what that rests on: the
    draft's `own` word for it, and the experience of its `cell`, (rank among its siblings, class of `own`).
    """

    chance: float
    cell: tuple[int, int] = (0, 0)
    own: float = 1.0


Outcome: TypeAlias = tuple[Hope, bool]
"""A proposal, and whether its token came to be."""
SURE = Hope(1.0)


class Shape(Protocol):
    """Says where a tree grows. `wants_tops` asks for the draft's best probabilities at each node."""

    wants_tops: bool

    def start(self, *, greedy: bool) -> None:
        """Forget the last run; at temperature 0 (`greedy`) children are a list, above it they are drawn."""

    def expand(self, level: dict[int, Hope], depth: int) -> dict[int, Hope]:
        """Which nodes of the newest level get children; they go through the draft in one pass.

        `depth` is that of the children. The first level is the root alone.
        """

    def children(
        self, level: Sequence[Hope], tops: Sequence[Sequence[float]], depth: int, room: int
    ) -> list[list[Hope]]:
        """For each node of the level what is hoped of each child it gets, at most `room` in all.

        `tops[i]` are the draft's best probabilities at node i, best first; empty unless `wants_tops`.
        """

    def observe(self, places: Sequence[Sequence[Outcome]], num_emitted: int) -> None:
        """Learn from a pass: own children at each place it came to, and the tokens that it gave."""


class Profile:
    """`widths[d]` children under every node of depth d (SpecInfer's expansion configuration, 2305.09781, §3).

    With less room than it takes, the nodes first in order get theirs.
    """

    wants_tops = False

    def __init__(self, widths: Sequence[int]) -> None:
        self._widths = tuple(widths)

    def start(self, *, greedy: bool) -> None:
        """Nothing to forget."""

    def expand(self, level: dict[int, Hope], depth: int) -> dict[int, Hope]:
        return level if depth <= len(self._widths) else {}

    def children(
        self, level: Sequence[Hope], tops: Sequence[Sequence[float]], depth: int, room: int
    ) -> list[list[Hope]]:
        del tops
        width, planned = self._widths[depth - 1], []
        for _ in level:
            planned.append([SURE] * min(width, room))
            room -= len(planned[-1])
        return planned

    def observe(self, places: Sequence[Sequence[Outcome]], num_emitted: int) -> None:
        """Nothing to learn."""


class Chain(Profile):
    """One child each, as far as there is room."""

    def __init__(self) -> None:
        super().__init__(())

    def expand(self, level: dict[int, Hope], depth: int) -> dict[int, Hope]:
        del depth
        return level

    def children(
        self, level: Sequence[Hope], tops: Sequence[Sequence[float]], depth: int, room: int
    ) -> list[list[Hope]]:
        del tops, depth
        return [[SURE] * min(1, room)] * len(level)


@dataclass(frozen=True)
class Costs:
    """Times in plain target passes, from what was measured at load: (rows, seconds) of each model."""

    target_times: Sequence[tuple[int, float]]
    draft_times: Sequence[tuple[int, float]]

    def verify(self, num_nodes: int) -> float:
        """The target's pass over the last token and so many nodes."""
        return measured_verify_ratio(self.target_times)(num_nodes)

    def draft(self, num_rows: int) -> float:
        """The draft's pass over a level of so many nodes."""
        single = self.draft_times[0][1] / self.target_times[0][1]
        return single * measured_verify_ratio(self.draft_times)(num_rows - 1)

    def slope(self, num_nodes: int) -> float:
        """What one node more costs to verify."""
        rise = self.verify(num_nodes + _SPAN) - self.verify(num_nodes)
        return max(rise / _SPAN, _LEAST_SLOPE)


def affordable_nodes(target_times: Sequence[tuple[int, float]], limit: int) -> int:
    """The largest tree, up to `limit` nodes, whose pass takes at most twice as long as a plain one; at least 1."""
    verify = measured_verify_ratio(target_times or [(1, 1.0)])
    return next((num for num in range(limit, 1, -1) if verify(num) <= _SLOWEST), 1)


class AutoShape:
    """Grows where a node is expected to give more tokens than its time would give elsewhere.

    With R the tokens per time that the run reaches, a node pays if its chance is above R · (time to verify it),
    and a level if its nodes' chances add up to more than R · (the draft's pass + their verifying): Dinkelbach's
    rule for the largest ratio of tokens to time. Chances are the draft's own probabilities, corrected by what came
    of such nodes in this run. A root that does not pay is left alone (a plain pass) but for every 16th step.
    """

    wants_tops = True

    def __init__(self, costs: Costs) -> None:
        self._costs = costs
        self.start(greedy=True)

    def start(self, *, greedy: bool) -> None:
        self._greedy = greedy
        self._cells: dict[tuple[int, int], tuple[float, float]] = {}  # (tested, accepted)
        self._words: dict[
            int, tuple[float, float]
        ] = {}  # by rank: (accepted as the draft would have it, accepted)
        self._tokens = self._time = 0.0
        self._places, self._hits = 2.0, 1.0
        self._steps_off = 0
        self._num_nodes = 0
        self._drafting = 0.0

    @property
    def _rate(self) -> float:
        """R: tokens per plain pass's time; plain decoding gives 1."""
        return max(1.0, (self._tokens + 1) / (self._time + 1))

    def expand(self, level: dict[int, Hope], depth: int) -> dict[int, Hope]:
        best = sorted(level.items(), key=lambda item: -item[1].chance)
        number = self._most_paying([hope.chance for _, hope in best]) if depth <= MAX_DEPTH else 0
        if depth == 1 and not number:
            self._steps_off += 1
            number = int(self._steps_off % PROBE_EVERY == 0)
        if number:
            self._drafting += self._costs.draft(number)
        chosen = dict(best[:number])
        return {node: hope for node, hope in level.items() if node in chosen}

    def _most_paying(self, chances: Sequence[float]) -> int:
        """How many of these nodes, best first, should get children; 0 where none pays for the draft's pass."""
        slope, hit_rate = self._costs.slope(self._num_nodes), self._hits / self._places
        best_gain, best_number, total = 0.0, 0, 0.0
        for number, chance in enumerate(chances, start=1):
            total += chance * hit_rate
            gain = total - self._rate * (self._costs.draft(number) + slope * number)
            if gain > best_gain:
                best_gain, best_number = gain, number
        return best_number

    def children(
        self, level: Sequence[Hope], tops: Sequence[Sequence[float]], depth: int, room: int
    ) -> list[list[Hope]]:
        hopes = [self._hopes(parent, top) for parent, top in zip(level, tops, strict=True)]
        least = self._rate * self._costs.slope(self._num_nodes)
        if depth == 1 and hopes:  # a root that was expanded has a child, also where it is only a probe
            least = min(least, hopes[0][0].chance)
        paying = sorted((hope.chance for own in hopes for hope in own if hope.chance >= least), reverse=True)
        if len(paying) > room:
            least = paying[room - 1]
        planned = []
        for own in hopes:
            planned.append([hope for hope in own if hope.chance >= least][: max(room, 0)])
            room -= len(planned[-1])
        self._num_nodes += sum(map(len, planned))
        return planned

    def _hopes(self, parent: Hope, tops: Sequence[float]) -> list[Hope]:
        """Of each possible child: chance falls with the order, so a cut keeps the first ones.

        A list's tokens exclude each other. Of tokens drawn without replacement the next is tried if all before
        were rejected; it is judged by the best of what is then left of the row.
        """
        hopes: list[Hope] = []
        reach, left = parent.chance, 1.0
        for rank, top in enumerate(tops):
            own = top if self._greedy else min(1.0, top / max(left, 1e-6))
            left -= top
            cell = (min(rank, 3), next(i for i, edge in enumerate(_EDGES) if own >= edge))
            expected = self._expected(cell, own)
            chance = min(reach * expected, hopes[-1].chance if hopes else 1.0)
            hopes.append(Hope(chance, cell, own))
            if not self._greedy:
                reach *= 1 - expected
        return hopes

    def _expected(self, cell: tuple[int, int], own: float) -> float:
        """The draft's own word, corrected by what came of its word at this rank, and of nodes like this one."""
        said, came = self._words.get(cell[0], (0.0, 0.0))
        prior = min(1.0, own * (came + _TRUST) / (said + _TRUST))
        num, hits = self._cells.get(cell, (0.0, 0.0))
        return (hits + _TRUST * prior) / (num + _TRUST)

    def observe(self, places: Sequence[Sequence[Outcome]], num_emitted: int) -> None:
        self._cells = {cell: (_MEMORY * n, _MEMORY * hits) for cell, (n, hits) in self._cells.items()}
        self._words = {rank: (_MEMORY * n, _MEMORY * hits) for rank, (n, hits) in self._words.items()}
        for hope, hit in (outcome for place in places for outcome in place):
            num, hits = self._cells.get(hope.cell, (0.0, 0.0))
            self._cells[hope.cell] = (num + 1, hits + hit)
            said, came = self._words.get(hope.cell[0], (0.0, 0.0))
            self._words[hope.cell[0]] = (said + hope.own, came + hit)
        for place in filter(None, places):
            self._places = _MEMORY * self._places + 1
            self._hits = _MEMORY * self._hits + any(hit for _, hit in place)
        self._tokens = _MEMORY * self._tokens + num_emitted
        self._time = _MEMORY * self._time + self._drafting + self._costs.verify(self._num_nodes)
        self._num_nodes, self._drafting = 0, 0.0
