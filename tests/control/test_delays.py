"""Delays as weighted samples: the same numbers as from every single row."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from tests.queries import waiting_segments

from penstock.control.backlog.waiting import WaitingSegments
from penstock.control.measure.delays import DelayLedger, arrivals, stats
from penstock.vocabulary.model import DelayStats


def test_the_arrivals_of_a_part_of_what_waits_are_those_of_its_rows() -> None:
    times, rows = arrivals([waiting_segments((10, 0.0, 1.0), (20, 1.0, 3.0), first=100)], [105], [120])
    assert rows.sum() == 15
    every = np.concatenate([(np.arange(10) + 0.5) / 10, 1 + 2 * (np.arange(20) + 0.5) / 20])[5:20]
    assert times @ rows / 15 == pytest.approx(every.mean())
    assert (times.min(), times.max()) == (pytest.approx(0.5, abs=0.1), pytest.approx(2.0, abs=0.2))


@given(
    st.lists(st.tuples(st.integers(1, 50), st.floats(0, 1)), min_size=1, max_size=6),
    st.integers(90, 400),
    st.integers(0, 200),
)
def test_the_arrivals_of_any_part_have_all_of_its_rows_and_lie_inside(
    parts: list[tuple[int, float]], first: int, count: int
) -> None:
    at, segments = 0.0, []
    for size, length in parts:
        segments.append((size, at, at + length))
        at += length
    whole = waiting_segments(*segments, first=100)
    times, rows = arrivals([whole], [first], [first + count])
    inside = max(0, min(first + count, whole.end) - max(first, 100))
    assert rows.sum() == pytest.approx(inside)
    assert (rows > 0).all(), "no moment counts at which no row arrived: the longest delay is one of them"
    assert all((times >= -1e-9) & (times <= at + 1e-9))


def test_the_arrivals_of_several_partitions_are_those_of_each_one_after_the_other() -> None:
    parts = [waiting_segments((10, 0.0, 1.0), (20, 1.0, 3.0)), waiting_segments((5, 0.5, 0.7), first=100)]
    for firsts, ends in (([0, 100], [30, 105]), ([3, 105], [12, 105]), ([30, 102], [30, 103])):
        each = [arrivals([part], [f], [e]) for part, f, e in zip(parts, firsts, ends, strict=True)]
        times, rows = arrivals(parts, firsts, ends)
        assert times.tolist() == [time for times, _ in each for time in times.tolist()]
        assert rows.tolist() == [count for _, rows in each for count in rows.tolist()]


def test_of_a_million_segments_some_thousand_points_say_when_the_rows_arrived() -> None:
    count = 1_000_000
    ends, high_s = 3 * np.arange(1, count + 1), np.arange(1, count + 1) * 1e-3
    whole = WaitingSegments.of("r", 0, ends - 3, ends, high_s - 1e-3, high_s, 1)
    times, rows = arrivals([whole], [1], [2_000_000])
    assert times.size <= 4 * 1_024
    assert rows.sum() == 1_999_999
    assert times @ rows / rows.sum() == pytest.approx(2_000_000 / 3 / 2 * 1e-3, rel=1e-3)
    assert (np.diff(times) > 0).all()


def test_a_distribution_is_that_of_its_rows() -> None:
    delays = np.array([3.0, 1.0, 2.0])
    assert stats(delays, np.array([1.0, 98.0, 1.0])) == DelayStats(
        100, pytest.approx(1.03), 1.0, 1.0, 2.0, 3.0
    )
    assert stats(delays, np.array([6.0, 47.0, 47.0])).p95_s == 3.0
    assert stats(np.empty(0), np.empty(0)) == DelayStats()
    assert stats(np.array([1.0]), np.array([0.0])) == DelayStats()


@settings(max_examples=60)
@given(hnp.arrays(np.float64, st.integers(1, 300), elements=st.floats(0.002, 3600.0)), st.integers(1, 5))
def test_a_ledger_has_the_percentiles_to_two_percent_however_it_was_filled(
    delays_s: np.ndarray, parts: int
) -> None:
    ledger = DelayLedger()
    for part in np.array_split(delays_s, parts):
        ledger.add(part, np.ones(part.size))
    exact, kept = stats(delays_s, np.ones(delays_s.size)), ledger.stats()
    assert kept.count == exact.count
    assert kept.mean_s == pytest.approx(exact.mean_s)
    assert kept.max_s == exact.max_s
    for name in ("p50_s", "p95_s", "p99_s"):
        assert getattr(kept, name) == pytest.approx(getattr(exact, name), rel=0.021)


@pytest.mark.parametrize("days", [0.5, 3.0, 300.0, 4000.0])
def test_the_percentiles_of_a_catch_up_are_as_long_as_its_delays(days: float) -> None:
    ledger = DelayLedger()
    ledger.add(np.full(10, days * 86400), np.ones(10))
    ledger.add(np.array([0.5]), np.array([30.0]))
    kept = ledger.stats()
    assert kept.p50_s == pytest.approx(0.5, rel=0.021)
    assert (kept.p95_s, kept.p99_s) == pytest.approx((days * 86400, days * 86400), rel=0.021)


def test_a_ledger_takes_no_delay_below_its_first_bin_and_none_beyond_its_last_for_an_error() -> None:
    ledger = DelayLedger()
    assert ledger.stats() == DelayStats()
    ledger.add(np.array([0.0, 1e-9, 1e7]), np.array([1.0, 1.0, 2.0]))
    kept = ledger.stats()
    assert (kept.count, kept.max_s) == (4, 1e7)
    assert kept.p50_s == pytest.approx(1e-3)
