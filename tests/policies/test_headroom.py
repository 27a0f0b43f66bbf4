"""Headroom estimators: SEaMLeSS's ratio, ALoMa's eq. 5.1, Deadline's busy time."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.policies.load.headroom import (
    LARGEST_HEADROOM,
    SMALLEST_HEADROOM,
    clamp_headroom,
    from_busy_time,
    from_converged_delay,
    toward_load,
)

within = st.floats(0.02, 8.0)


def test_a_delay_that_converges_to_twice_the_target_halves_the_headroom() -> None:
    assert from_converged_delay(0.97, delay_target_s=2.0, converged_delay_s=4.0) == pytest.approx(0.485)
    assert from_converged_delay(0.8, delay_target_s=2.0, converged_delay_s=1.6) == pytest.approx(1.0)
    assert from_converged_delay(0.8, delay_target_s=2.0, converged_delay_s=2.0) == pytest.approx(0.8)


def test_a_delay_of_nothing_says_nothing_about_the_headroom() -> None:
    assert from_converged_delay(0.8, 2.0, 0.0) == 0.8


def test_headroom_stays_within_its_bounds_against_runaway() -> None:
    assert clamp_headroom(1e-9) == from_converged_delay(0.8, 2.0, 1e9) == SMALLEST_HEADROOM
    assert clamp_headroom(1e9) == from_converged_delay(0.8, 2.0, 1e-9) == LARGEST_HEADROOM
    assert clamp_headroom(0.5) == 0.5


@pytest.mark.parametrize(
    ("headroom", "load", "expected"),
    [
        # z = 25: 0.8 + log2(26) / 25 * 0.2
        pytest.param(0.8, 1.0, 0.8 + 4.700439718 / 25 * 0.2, id="up_by_a_fifth_of_a_wide_gap"),
        # z = 50: 1 - log2(51) / 50 * 0.5
        pytest.param(1.0, 0.5, 1.0 - 5.672425342 / 50 * 0.5, id="down_by_a_tenth_of_a_wide_gap"),
        # z = 3: log2(4) / 3 = 2/3 of the gap
        pytest.param(1.0, 1.03, 1.02, id="up_by_two_thirds_of_three_percent"),
        pytest.param(1.0, 0.97, 0.98, id="down_by_two_thirds_of_three_percent"),
        # z = 100: log2(101) / 100
        pytest.param(0.5, 1.0, 0.5 + 6.658211483 / 100 * 0.5, id="up_by_a_fifteenth_of_the_gap_to_twice"),
        pytest.param(1.0, 1.005, 1.005, id="all_the_way_when_the_gap_is_under_one_percent"),
        pytest.param(1.0, 0.995, 0.995, id="all_the_way_down_when_the_gap_is_under_one_percent"),
        pytest.param(0.8, 0.8, 0.8, id="not_at_all_without_a_gap"),
    ],
)
def test_capacity_moves_toward_the_load_by_eq_5_1(headroom: float, load: float, expected: float) -> None:
    assert toward_load(headroom, load) == pytest.approx(expected)


@settings(max_examples=200, derandomize=True)
@given(within, within)
def test_capacity_never_overshoots_the_load(headroom: float, load: float) -> None:
    moved = toward_load(headroom, load)
    low, high = sorted((headroom, load))
    assert low * (1 - 1e-12) <= moved <= high * (1 + 1e-12)


@settings(max_examples=200, derandomize=True)
@given(within, st.floats(0.0, 5.0), st.floats(0.0, 5.0))
def test_a_wider_gap_moves_capacity_further_but_by_a_smaller_part(
    headroom: float, one: float, other: float
) -> None:
    near, far = sorted((one, other))
    steps = [toward_load(headroom, headroom + gap) - headroom for gap in (near, far)]
    assert steps[0] <= steps[1] + 1e-9
    if near > 1e-6:
        assert steps[1] / far <= steps[0] / near + 1e-9


def test_repeated_steps_reach_a_load_that_stays() -> None:
    capacity = 0.8
    for _ in range(100):
        capacity = toward_load(capacity, 1.6)
    assert capacity == pytest.approx(1.6)
    for _ in range(100):
        capacity = toward_load(capacity, 0.3)
    assert capacity == pytest.approx(0.3)


def test_the_first_busy_period_tells_the_headroom_at_once() -> None:
    assert from_busy_time(None, work_s=0.4, busy_s=0.5, period_s=1.0, memory_s=1.0) == pytest.approx(0.8)


def test_an_idle_period_tells_nothing() -> None:
    assert from_busy_time(None, 0.0, 0.0, 1.0, 1.0) is None
    assert from_busy_time(0.7, 0.0, 0.0, 1.0, 1.0) == 0.7
    assert from_busy_time(0.7, 0.0, 0.5, 1.0, 1.0) == 0.7, "only drops were processed: no work to measure"


def test_busy_time_forgets_by_the_memory_and_by_how_busy_it_was() -> None:
    forgotten = 1 - math.exp(-0.5 / 1.0)
    got = from_busy_time(1.0, work_s=0.25, busy_s=0.5, period_s=0.5, memory_s=1.0)
    assert got == pytest.approx(1.0 - forgotten * 0.5)
    half_idle = from_busy_time(1.0, work_s=0.125, busy_s=0.25, period_s=0.5, memory_s=1.0)
    assert half_idle == pytest.approx(1.0 - forgotten / 2 * 0.5)


@settings(max_examples=100, derandomize=True)
@given(within, st.floats(0.05, 1.0), st.floats(0.01, 1.0), st.floats(0.01, 2.0), st.floats(0.05, 5.0))
def test_busy_time_moves_toward_what_was_measured_and_never_past_it(
    headroom: float, pace: float, busy_part: float, period_s: float, memory_s: float
) -> None:
    busy_s = busy_part * period_s
    got = from_busy_time(headroom, pace * busy_s, busy_s, period_s, memory_s)
    assert got is not None
    low, high = sorted((headroom, clamp_headroom(pace)))
    assert low - 1e-9 <= got <= high + 1e-9
