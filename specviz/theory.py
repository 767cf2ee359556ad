"""The formulas of Leviathan et al. (2211.17192): what acceptance and costs promise.

Owns: expected tokens, wall-clock and operations factors, the best draft length. Numbers in, numbers out.
Must not know traces, models or measurements; what a run really did is said by `metrics`.

Everything here assumes that each drafted token is accepted with the same probability `alpha`,
whatever came before (the paper's i.i.d. simplification), that the draft is a chain, and that the draft runs one
pass per token. Tables in the paper are rounded to two decimals.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

from specviz.errors import ConfigError

VerifyRatio: TypeAlias = float | Callable[[float], float]
MAX_CURVE_LEN = 1000


def expected_tokens(alpha: float, draft_len: int) -> float:
    """Mean tokens per target pass, the target's own included: (1 − α^(γ+1)) / (1 − α), eq. 1.

    Computed as the sum 1 + α + … + α^γ, so that α = 1 gives γ + 1 and α = 0 gives 1, both exactly.

    Raises:
        ConfigError: `alpha` outside 0 to 1, or a `draft_len` that is no whole number from 0.
    """
    _check("acceptance rate α", alpha, 0.0, 1.0)
    _check_length(draft_len)
    return math.fsum(alpha**power for power in range(draft_len + 1))


def pass_cost(draft_len: int, cost_ratio: float, verify_ratio: VerifyRatio = 1.0) -> float:
    """Seconds of one draft-then-verify pass, in plain target passes: γc + v.

    `cost_ratio` is c, the draft's pass ÷ the target's pass (Def. 3.7). `verify_ratio` is v, a verifying pass
    ÷ a plain one: a number, or a function of the draft length. The paper takes v = 1, checking γ + 1 tokens
    in the time of one; that is the default here, and a result that leaves v out leaves that cost out.

    Raises:
        ConfigError: a negative c, or a v that is not above 0.
    """
    _check_length(draft_len)
    _check("cost ratio c", cost_ratio, 0.0, math.inf)
    ratio = verify_ratio(draft_len) if callable(verify_ratio) else verify_ratio
    _check("verify ratio v", ratio, math.ulp(0.0), math.inf)
    return draft_len * cost_ratio + ratio


def speedup_factor(alpha: float, draft_len: int, cost_ratio: float, verify_ratio: VerifyRatio = 1.0) -> float:
    """Expected wall-clock factor over plain decoding: (1 − α^(γ+1)) / ((1 − α)(γc + v)), Theorem 3.8.

    Below 1 is a slow-down. Draft length 0 is plain decoding, so its factor is 1 whatever v is.

    Raises:
        ConfigError: see `expected_tokens` and `pass_cost`.
    """
    tokens = expected_tokens(alpha, draft_len)
    cost = pass_cost(draft_len, cost_ratio, verify_ratio)
    return 1.0 if draft_len == 0 else tokens / cost


def operations_factor(alpha: float, draft_len: int, operations_ratio: float = 0.0) -> float:
    """Arithmetic per token over plain decoding: (1 − α)(γĉ + γ + 1) / (1 − α^(γ+1)), Theorem 3.11.

    `operations_ratio` is ĉ, operations per token of the draft ÷ the target's. 1 is the least there is: what
    speculation saves in time it pays in arithmetic.

    Raises:
        ConfigError: see `expected_tokens`; a negative ĉ.
    """
    _check("operations ratio ĉ", operations_ratio, 0.0, math.inf)
    return (draft_len * operations_ratio + draft_len + 1) / expected_tokens(alpha, draft_len)


def speedup_curve(
    alpha: float, limit: int, cost_ratio: float, verify_ratio: VerifyRatio = 1.0
) -> list[tuple[int, float]]:
    """(draft length, wall-clock factor) for the lengths 0 to `limit`; 0 is "off".

    Raises:
        ConfigError: see `speedup_factor`; a `limit` beyond `MAX_CURVE_LEN`.
    """
    _check("limit of the draft length", limit, 0, MAX_CURVE_LEN)
    return [(n, speedup_factor(alpha, n, cost_ratio, verify_ratio)) for n in range(limit + 1)]


def best_draft_len(
    alpha: float, cost_ratio: float, limit: int, verify_ratio: VerifyRatio = 1.0
) -> tuple[int, float]:
    """The draft length from 0 to `limit` with the greatest wall-clock factor, and that factor.

    (0, 1.0) says that speculation does not pay; with v = 1 some length pays exactly when α > c
    (Corollary 3.9). Among equal factors the shortest length wins.

    Raises:
        ConfigError: see `speedup_factor`.
    """
    curve = speedup_curve(alpha, limit, cost_ratio, verify_ratio)
    return max(curve, key=lambda point: (point[1], -point[0]))


def measured_verify_ratio(pass_times: Sequence[tuple[int, float]]) -> Callable[[float], float]:
    """v as a function of the draft length (or its mean), from measured (block size, seconds) of a target pass.

    A draft of γ tokens is verified by a block of γ + 1. Between two measured sizes the time is interpolated;
    beyond the last it goes on along the last two (never below the last time).

    Raises:
        ConfigError: no positive time for a block of one token.
    """
    times = sorted(pass_times)
    if not times or times[0][0] != 1 or times[0][1] <= 0:
        raise ConfigError("Pass times must begin with a positive time for a block of one token.")
    single_s = times[0][1]
    return lambda draft_len: _seconds_at(times, draft_len + 1) / single_s


def _seconds_at(times: Sequence[tuple[int, float]], size: float) -> float:
    """Seconds of a block of `size` tokens on the broken line through `times`, sorted by size from 1."""
    if len(times) == 1:
        return times[0][1]
    right = next((i for i in range(1, len(times)) if times[i][0] >= size), len(times) - 1)
    (size_a, time_a), (size_b, time_b) = times[right - 1], times[right]
    time = time_a + (time_b - time_a) * (size - size_a) / (size_b - size_a)
    return max(time, time_b) if size > size_b else time


def _check_length(draft_len: int) -> None:
    if not isinstance(draft_len, int) or draft_len < 0:
        raise ConfigError(f"draft length is {draft_len!r}, but must be a whole number, 0 or more.")


def _check(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high or value == math.inf:
        raise ConfigError(f"{name} is {value!r}, but must be {_range(low, high)}.")


def _range(low: float, high: float) -> str:
    if high != math.inf:
        return f"from {low:g} to {high:g}"
    return "0 or more" if low == 0 else "above 0"
