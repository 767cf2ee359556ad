"""The papers' formulas against the papers' numbers, and at the ends of their ranges."""

import math

import pytest

from specviz.errors import ConfigError
from specviz.theory import (
    best_draft_len,
    expected_tokens,
    measured_verify_ratio,
    operations_factor,
    pass_cost,
    speedup_curve,
    speedup_factor,
)

PRINTED = 0.0051  # tables in the papers are rounded to two decimals


@pytest.mark.parametrize(
    ("alpha", "draft_len", "operations", "speedup"),
    [
        (0.6, 2, 1.53, 1.96),
        (0.7, 3, 1.58, 2.53),
        (0.8, 2, 1.23, 2.44),
        (0.8, 5, 1.63, 3.69),
        (0.9, 2, 1.11, 2.71),
        (0.9, 10, 1.60, 6.86),
    ],
)
def test_table_1_of_leviathan_is_reproduced(alpha, draft_len, operations, speedup):
    assert operations_factor(alpha, draft_len) == pytest.approx(operations, abs=PRINTED)
    assert speedup_factor(alpha, draft_len, 0.0) == pytest.approx(speedup, abs=PRINTED)


@pytest.mark.parametrize(("alpha", "draft_len", "factor"), [(0.6, 4, 1.92), (0.8, 8, 3.09), (0.9, 13, 4.67)])
def test_best_draft_lengths_at_a_twentieth_of_the_cost(alpha, draft_len, factor):
    assert best_draft_len(alpha, 0.05, 32) == (draft_len, pytest.approx(factor, abs=PRINTED))


def test_case_65_cost_goes_into_the_denominator_once_per_drafted_token():
    assert speedup_factor(0.44, 5, 0.11) == pytest.approx(1.14, abs=PRINTED)
    misread = expected_tokens(0.44, 5) / (0.11 + 1)  # the draft's cost once per block
    assert misread != pytest.approx(1.14, abs=0.1)


def test_case_65_tokens_per_pass_at_the_ends_of_the_range():
    assert expected_tokens(0.8, 5) == pytest.approx(3.69, abs=PRINTED)
    for draft_len in (0, 1, 5, 32):
        assert expected_tokens(0.0, draft_len) == 1.0
        assert expected_tokens(1.0, draft_len) == draft_len + 1
        assert operations_factor(1.0, draft_len) == 1.0
    assert speedup_factor(1.0, 5, 0.0) == 6.0
    assert speedup_factor(0.0, 5, 0.1) == pytest.approx(1 / 1.5)


@pytest.mark.parametrize("alpha", [0.01, 0.3, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("draft_len", [0, 1, 7, 32])
def test_the_sum_equals_the_closed_form(alpha, draft_len):
    closed = (1 - alpha ** (draft_len + 1)) / (1 - alpha)
    assert expected_tokens(alpha, draft_len) == pytest.approx(closed, rel=1e-9)


@pytest.mark.parametrize(
    ("alpha", "c"), [(0.3, 0.29), (0.5, 0.1), (0.9, 0.89), (0.3, 0.31), (0.1, 0.5), (0.0, 0.01)]
)
def test_some_length_pays_exactly_when_alpha_is_above_c(alpha, c):
    draft_len, factor = best_draft_len(alpha, c, 32)
    assert (factor > 1) == (draft_len > 0) == (alpha > c)


def test_a_draft_that_does_not_pay_is_best_switched_off():
    assert best_draft_len(0.2, 0.3, 32) == (0, 1.0)
    assert best_draft_len(0.9, 0.05, 0) == (0, 1.0)
    assert best_draft_len(0.0, 0.0, 8) == (0, 1.0), "of equal factors the shortest length"


def test_a_better_draft_can_be_the_slower_one():
    """Table 2, T5-XXL EnDe: α .75 / .80 / .82 with ever larger drafts gave 3.4 / 2.8 / 1.7."""
    small, base, large = (best_draft_len(a, c, 32)[1] for a, c in [(0.75, 0.02), (0.80, 0.04), (0.82, 0.11)])
    assert small > large
    assert base > large


def test_draft_length_0_is_plain_decoding_whatever_verifying_costs():
    assert speedup_factor(0.9, 0, 0.5, 1.7) == 1.0
    assert speedup_curve(0.9, 3, 0.5, 1.7)[0] == (0, 1.0)


def test_a_measured_verify_ratio_takes_the_place_of_the_papers_one():
    assert pass_cost(4, 0.1) == pytest.approx(1.4)
    assert pass_cost(4, 0.1, 1.3) == pytest.approx(1.7)
    assert speedup_factor(0.8, 4, 0.1, 1.3) == pytest.approx(expected_tokens(0.8, 4) / 1.7)


def test_the_curve_holds_one_point_per_length():
    curve = speedup_curve(0.8, 6, 0.05, lambda draft_len: 1 + 0.01 * draft_len)
    assert [draft_len for draft_len, _ in curve] == list(range(7))
    assert curve[4][1] == pytest.approx(expected_tokens(0.8, 4) / (0.2 + 1.04))


@pytest.mark.parametrize(("draft_len", "ratio"), [(0, 1.0), (1, 1.1), (2, 1.2), (3, 1.3), (7, 2.1), (8, 2.3)])
def test_measured_pass_times_are_interpolated_by_block_size(draft_len, ratio):
    times = [(4, 0.13), (1, 0.10), (2, 0.11), (8, 0.21)]
    assert measured_verify_ratio(times)(draft_len) == pytest.approx(ratio)


def test_pass_times_of_one_size_or_falling_ones_never_extrapolate_below_the_last():
    assert measured_verify_ratio([(1, 0.2)])(9) == 1.0
    assert measured_verify_ratio([(1, 0.2), (2, 0.1)])(9) == 0.5


@pytest.mark.parametrize(
    "call",
    [
        lambda: expected_tokens(-0.1, 4),
        lambda: expected_tokens(1.1, 4),
        lambda: expected_tokens(math.nan, 4),
        lambda: expected_tokens(0.5, -1),
        lambda: expected_tokens(0.5, 2.5),
        lambda: speedup_factor(0.5, 4, -0.1),
        lambda: speedup_factor(0.5, 4, math.inf),
        lambda: speedup_factor(0.5, 4, 0.1, 0.0),
        lambda: operations_factor(0.5, 4, -1.0),
        lambda: speedup_curve(0.5, 10**9, 0.1),
        lambda: measured_verify_ratio([]),
        lambda: measured_verify_ratio([(2, 0.1)]),
        lambda: measured_verify_ratio([(1, 0.0)]),
    ],
)
def test_what_is_out_of_range_is_refused_in_one_sentence(call):
    with pytest.raises(ConfigError) as refused:
        call()
    assert str(refused.value).endswith(".")
    assert "\n" not in str(refused.value)
