"""How many tokens to draft in the next step: a fixed number, or what pays best so far.

Owns: the two policies. Must not know sources or the rule: they see only counts and times of past steps, so
the law of the output stays the target's.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Protocol

from specviz.config import MAX_DRAFT_LEN
from specviz.theory import best_draft_len, measured_verify_ratio
from specviz.trace import Step

FIRST_LEN = 4
PROBE_EVERY = 16


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
    """The length with the most expected tokens per second (2211.17192, Thm. 3.8), from this run so far.

    α counts this run's trials, starting from two imagined ones of which one was accepted; c is the median
    draft time per token over the time of a single pass; v comes from the pass times measured at load, scaled
    to this run by the median ratio seen. The first step drafts 4; after choosing 0 every 16th step tries 1.
    """

    def __init__(self, pass_times: Sequence[tuple[int, float]]) -> None:
        self._block_ratio = measured_verify_ratio(pass_times or [(1, 1.0)])
        self._num_tested = self._num_accepted = 0
        self._draft_s: list[float] = []
        self._single_s: list[float] = []
        self._steps_off = 0

    def next_len(self) -> int:
        if not self._draft_s:
            return FIRST_LEN if not self._single_s else 1
        alpha = (self._num_accepted + 1) / (self._num_tested + 2)
        cost_ratio = statistics.median(self._draft_s) / statistics.median(self._single_s)
        chosen, _ = best_draft_len(alpha, cost_ratio, MAX_DRAFT_LEN, self._block_ratio)
        if chosen:
            return chosen
        return 1 if self._steps_off >= PROBE_EVERY - 1 else 0

    def observe(self, step: Step) -> None:
        self._steps_off = 0 if step.draft_len else self._steps_off + 1
        self._num_tested += step.num_tested
        self._num_accepted += step.num_accepted
        self._single_s.append(step.verify_s / self._block_ratio(step.num_drafted))
        if step.num_drafted:
            self._draft_s.append(step.draft_s / step.num_drafted)
