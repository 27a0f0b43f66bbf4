"""When rows are due: traces multiplied and looped, rates that change, the same however often one asks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.pipeline.feed.arrivals import ArrivalSchedule, RateSchedule, TraceSchedule, schedule_of
from penstock.pipeline.spec.sources import GeneratorSource, ReplaySource


def all_times(due: ArrivalSchedule, until_s: float, step_s: float) -> np.ndarray:
    """The times until a moment, asked for step by step."""
    parts, done, from_s = [], 0, 0.0
    while from_s < until_s:
        to_s = min(from_s + step_s, until_s)
        parts.append(due.between(done, from_s, to_s))
        done, from_s = done + parts[-1].size, to_s
    return np.concatenate(parts)


def test_a_trace_that_is_not_scaled_keeps_its_times() -> None:
    due = TraceSchedule([0.5, 1.0, 1.0, 2.5], 3.0, scale=1, speed=1, loop=False)
    assert all_times(due, 5.0, 0.02).tolist() == [0.5, 1.0, 1.0, 2.5]
    assert due.ended(4)
    assert not due.ended(3)


def test_copies_of_a_row_lie_in_the_gap_before_the_next_one() -> None:
    due = TraceSchedule([0.0, 1.0], 2.0, scale=4, speed=1, loop=False)
    assert all_times(due, 2.0, 0.3).tolist() == [0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75]


def test_a_loop_begins_again_at_the_end_and_speed_shortens_it() -> None:
    due = TraceSchedule([0.0, 1.0], 2.0, scale=1, speed=2, loop=True)
    assert all_times(due, 2.9, 0.7).tolist() == [0.0, 0.5, 1.0, 1.5, 2.0, 2.5]
    assert not due.ended(1_000_000)


def test_a_generator_has_the_rows_of_its_rate_and_stamps_them_evenly() -> None:
    times = all_times(RateSchedule(GeneratorSource(rate=100)), 2.0, 0.02)
    assert times.size == 200
    assert np.diff(times) == pytest.approx(0.01)


def test_bursts_begin_and_end_to_the_row() -> None:
    rate = {"kind": "on_off", "high_per_s": 1000, "low_per_s": 10, "high_for": "1s", "low_for": "1s"}
    times = all_times(RateSchedule(GeneratorSource(rate=rate)), 4.0, 0.03)
    assert np.histogram(times, [0, 1 + 1e-6, 2 + 1e-6, 3 + 1e-6, 4 + 1e-6])[0].tolist() == [
        1000,
        10,
        1000,
        10,
    ]


def test_a_rate_of_nothing_gives_nothing_until_it_changes() -> None:
    rate = {"kind": "steps", "steps": [{"from": "0s", "rate_per_s": 0}, {"from": "1s", "rate_per_s": 10}]}
    times = all_times(RateSchedule(GeneratorSource(rate=rate)), 2.0, 0.02)
    assert times == pytest.approx(1 + np.arange(1, 11) / 10)


@given(
    st.lists(st.floats(0, 9.5), min_size=1, max_size=40).map(sorted),
    st.floats(0.1, 7),
    st.booleans(),
    st.floats(0.05, 3),
)
def test_times_are_the_same_however_often_one_asks(
    times: list[float], scale: float, loop: bool, step_s: float
) -> None:
    due = TraceSchedule(times, 10.0, scale, 1.0, loop)
    often, once = all_times(due, 25.0, step_s), due.between(0, 0.0, 25.0)
    assert often.tolist() == once.tolist()
    assert (np.diff(once) >= 0).all()
    rounds = 2 if loop else 1
    assert rounds * max(1, round(len(times) * scale)) <= once.size or not loop


def test_the_synthetic_trace_has_the_rows_of_network_traffic() -> None:
    due = schedule_of(ReplaySource(scale=2))
    assert due.between(0, 0.0, 400.0).size == 2 * 105_600


def test_a_trace_file_begins_at_its_first_second(tmp_path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "trace.txt").write_text("100.25\n100.5\n101.75\n")
    due = schedule_of(ReplaySource(trace=str(tmp_path / "trace.txt")))
    assert due.between(0, 0.0, 10.0).tolist() == [0.25, 0.5, 1.75]
