"""How many tokens to draft in the next step: a fixed number, or what pays best so far.

Owns: the two policies. Must not know sources or the rule: they see only counts and times of past steps, so
the law of the output stays the target's.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from specviz.config import MAX_DRAFT_LEN
from specviz.theory import measured_verify_ratio
from specviz.trace import Step

FIRST_LEN = 4
PROBE_EVERY = 16
_WINDOW = 31
_IMAGINED = 2.0  # steps that the first share starts from, so that one step decides nothing
_CONTINUED = 10.0  # steps that a further share's guess from the one before stands for
_KEPT = 0.98


class LengthPolicy(Protocol):
    """Decides from past steps alone."""

    def next_len(self) -> int:
        """Tokens to draft in the coming step; 0 is a plain step."""

    def observe(self, step: Step) -> None:
        """Take a finished step into account."""


class FixedLength:
    """The user's number."""

    def __init__(self, draft_len: int) -> None:
        self._draft_len = draft_len

    def next_len(self) -> int:
        return self._draft_len

    def observe(self, step: Step) -> None:
        """Nothing to learn."""


class AutoLength:
    """The draft length with the most expected tokens per second, from this run so far.

    Counts by a node's number in the order drafted, so chains and trees alike: node i is drafted, and accepted, in
    some share of the steps that allowed more than i nodes. A length of n then gives 1 + Σ accepted[i], i < n,
    tokens for the pass time of Σ drafted[i] nodes (2211.17192, Thm. 3.8, with counts in place of a constant α).
    Shares not seen yet go on from the node before: α in the paper's case. Times are medians of the last steps; the
    pass time by block size was measured at load. The first step drafts 4; after choosing 0 every 16th tries 1.
    """

    def __init__(self, pass_times: Sequence[tuple[int, float]]) -> None:
        block_ratio = measured_verify_ratio(pass_times or [(1, 1.0)])
        self._block_ratios = [block_ratio(num) for num in range(MAX_DRAFT_LEN + 1)]
        self._num_allowed = [0.0] * MAX_DRAFT_LEN
        self._num_drafted = [0.0] * MAX_DRAFT_LEN
        self._num_accepted = [0.0] * MAX_DRAFT_LEN
        self._num_tested = self._num_right = 0.0
        self._draft_s: deque[float] = deque(maxlen=_WINDOW)
        self._single_s: deque[float] = deque(maxlen=_WINDOW)
        self._steps_off = 0

    def next_len(self) -> int:
        if not self._draft_s:
            return FIRST_LEN
        cost_ratio = statistics.median(self._draft_s) / statistics.median(self._single_s)
        chosen = self._best_len(cost_ratio)
        if chosen:
            return chosen
        return 1 if self._steps_off >= PROBE_EVERY - 1 else 0

    def _best_len(self, cost_ratio: float) -> int:
        """The length with the most tokens per plain pass's time; the shortest of equal ones."""
        best_len, best_rate = 0, 1.0
        tokens, nodes, accepted, drafted = 1.0, 0.0, 0.5, 1.0
        decay = (self._num_right + 1) / (self._num_tested + _IMAGINED)
        for place in range(MAX_DRAFT_LEN):
            prior, expected = (_CONTINUED, accepted * decay) if place else (_IMAGINED, accepted)
            allowed = self._num_allowed[place] + prior
            accepted = (self._num_accepted[place] + prior * expected) / allowed
            drafted = (self._num_drafted[place] + prior * drafted) / allowed
            tokens, nodes = tokens + accepted, nodes + drafted
            rate = tokens / (nodes * cost_ratio + self._block_ratio(nodes))
            if rate > best_rate:
                best_len, best_rate = place + 1, rate
        return best_len

    def _block_ratio(self, nodes: float) -> float:
        """v between two whole numbers of nodes."""
        below = min(int(nodes), MAX_DRAFT_LEN - 1)
        low, high = self._block_ratios[below], self._block_ratios[below + 1]
        return low + (high - low) * (nodes - below)

    def observe(self, step: Step) -> None:
        self._steps_off = 0 if step.draft_len else self._steps_off + 1
        self._forget()
        before = True
        for place in range(min(step.draft_len, MAX_DRAFT_LEN)):
            is_drafted = place < step.num_drafted
            is_right = is_drafted and step.nodes[place].verdict == "accepted"
            self._num_allowed[place] += 1
            self._num_drafted[place] += is_drafted
            self._num_accepted[place] += is_right
            self._num_tested += is_drafted and before
            self._num_right += is_right
            before = is_right
        self._single_s.append(step.verify_s / self._block_ratios[min(step.num_drafted, MAX_DRAFT_LEN)])
        if step.num_drafted:
            self._draft_s.append(step.draft_s / step.num_drafted)

    def _forget(self) -> None:
        """Let old steps fade, so that what was bad luck once, or another kind of text, is tried again."""
        for counts in (self._num_allowed, self._num_drafted, self._num_accepted):
            counts[:] = [_KEPT * count for count in counts]
        self._num_tested *= _KEPT
        self._num_right *= _KEPT
