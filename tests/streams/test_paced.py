"""Paced streams: written beforehand, the end advances with the clock."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.segments import headers, read

from penstock.streams.paced.stream import PacedLog, create_paced
from penstock.streams.producing.schedule import (
    Schedule,
    schedule_constant,
    schedule_from_arrivals,
    schedule_from_counts,
)
from penstock.testing import ManualClock
from penstock.vocabulary.errors import InvalidInputError

SCHEMA = pa.schema([("value", pa.int64()), ("ts", pa.timestamp("us", "UTC"))])


def pool(count: int) -> list[pa.RecordBatch]:
    return [pa.record_batch([range(count), [0] * count], schema=SCHEMA)]


def test_the_end_advances_with_the_clock_in_whole_segments(tmp_path: Path) -> None:
    clock = ManualClock(1000.0)
    schedule = schedule_constant(rate_per_s=100, seconds=1, segment_rows=10, span_s=1.0)
    log = create_paced(tmp_path / "s", pool(20), schedule, clock=clock)
    assert (log.end(), headers(log, 0, 0, 100), log.position_at(0, 0), log.began_s) == (0, [], 0, None)
    assert log.begin() == 1000.0
    assert log.end() == 0
    clock.advance(0.09)
    assert log.end() == 10
    clock.advance(0.5)
    assert log.end() == 60
    assert log.position_at(0, 10**18) == 60
    clock.advance(100)
    assert (log.end(), log.total_rows(), log.seconds) == (100, 100, 0.99)
    assert log.start() == log.trim(0, 50) == 0


def test_rows_are_the_pools_with_the_arrivals_of_the_schedule(tmp_path: Path) -> None:
    schedule = Schedule(np.array([4, 2, 3]), np.array([0, 50, 90]), np.array([30, 60, 90]))
    log = create_paced(tmp_path / "s", pool(9), schedule, event_time="ts", clock=ManualClock(9.0))
    log.begin(5.0)
    first, second, third = (read(log, segment) for segment in headers(log, 0, 0, 9))
    assert first.column("value").to_pylist() == [0, 1, 2, 3]
    assert second.column("value").to_pylist() == [4, 5]  # the next pool segment, its first rows
    assert third.column("value").to_pylist() == [0, 1, 2]
    assert first.column("_arrival").to_pylist() == [5_000_000, 5_000_010, 5_000_020, 5_000_030]
    assert second.column("_arrival").to_pylist() == [5_000_050, 5_000_060]
    assert third.column("_arrival").to_pylist() == [5_000_090] * 3
    assert first.column("ts").cast(pa.int64()).equals(first.column("_arrival"))
    assert first.schema == log.schema


def test_a_stream_begins_once_for_all_processes_unless_told(tmp_path: Path) -> None:
    clock = ManualClock(50.0)
    log = create_paced(tmp_path / "s", pool(5), schedule_constant(10, 1, 5, 1.0), clock=clock)
    other = PacedLog(log.directory, clock)
    log.begin(at_s=40.0)
    assert (other.began_s, other.end()) == (40.0, 10)
    with pytest.raises(InvalidInputError, match=r"begins once; got: s began at 40\.0"):
        other.begin()
    other.begin(restart=True)
    assert (log.began_s, log.end()) == (50.0, 0)
    assert sorted(path.name for path in log.directory.iterdir()) == [
        "p0000",
        "pool",
        "started",
        "stream.json",
    ]


def test_rows_that_were_seen_are_read_even_if_the_clock_goes_back(tmp_path: Path) -> None:
    clock = ManualClock(100.0)
    log = create_paced(tmp_path / "s", pool(10), schedule_constant(10, 1, 10, 2.0), clock=clock)
    log.begin(10.0)
    assert log.end() == 10
    clock.now_s = 0.0
    assert log.end() == 0
    assert log.header_arrays(0, 0, 10).rows.tolist() == [10]
    assert read(log, headers(log, 0, 0, 10)[0]).num_rows == 10


def test_partitions_have_schedules_of_their_own(tmp_path: Path) -> None:
    schedules = [schedule_constant(100, 1, 10), schedule_constant(200, 1, 10)]
    log = create_paced(tmp_path / "s", pool(10), schedules, clock=ManualClock(10.0))
    log.begin(0.0)
    assert [log.end(p) for p in range(log.partitions)] == [100, 200]
    assert PacedLog(log.directory).partitions == 2


def test_what_a_paced_stream_cannot_do_is_refused(tmp_path: Path) -> None:
    schedule = schedule_constant(100, 1, 10, 1.0)
    with pytest.raises(InvalidInputError, match="pool fills the largest segment; got: 5 rows for 10"):
        create_paced(tmp_path / "s", pool(5), schedule)
    with pytest.raises(
        InvalidInputError, match="event time is a timestamp column of the stream; got: 'value'"
    ):
        create_paced(tmp_path / "s", pool(10), schedule, event_time="value")
    with pytest.raises(InvalidInputError, match="an empty schedule"):
        create_paced(tmp_path / "s", pool(10), [])
    with pytest.raises(InvalidInputError, match="key is a column of the stream; got: 'nope'"):
        create_paced(tmp_path / "s", pool(10), schedule, key="nope")
    assert not (tmp_path / "s").exists()
    log = create_paced(tmp_path / "s", pool(10), schedule)
    with pytest.raises(InvalidInputError, match="created once"):
        create_paced(tmp_path / "s", pool(10), schedule)
    log.begin(0.0)
    segment = headers(log, 0, 0, 1)[0]
    (log.directory / "started").unlink()
    with pytest.raises(InvalidInputError, match="segment to read exists; got: s, partition 0, position 0"):
        read(log, segment)
    log.close()


@given(
    rate=st.floats(0.5, 5e6),
    seconds=st.floats(0.01, 3.0),
    segment_rows=st.integers(1, 10_000),
    span_s=st.sampled_from([0.005, 0.02, 0.1]),
)
@settings(max_examples=60, derandomize=True)
def test_a_constant_rate_is_constant(rate: float, seconds: float, segment_rows: int, span_s: float) -> None:
    if rate * seconds / segment_rows > 1e5:
        segment_rows = 10_000
    schedule = schedule_constant(rate, seconds, segment_rows, span_s)
    assert schedule.total_rows == max(1, round(rate * seconds))
    assert schedule.rows.max() <= segment_rows
    assert (schedule.arrival_max_us - schedule.arrival_min_us).max() <= span_s * 1e6 + 1
    first = np.cumsum(schedule.rows) - schedule.rows
    assert schedule.arrival_min_us == pytest.approx(first / rate * 1e6, abs=1)


@given(
    counts=st.lists(st.integers(0, 50_000), max_size=30),
    bin_s=st.sampled_from([0.01, 0.02, 0.05, 1.0]),
    scale=st.sampled_from([0.1, 1.0, 2.5]),
    segment_rows=st.sampled_from([1000, 8192]),
)
@settings(max_examples=60, derandomize=True)
def test_a_schedule_of_counts_has_them_bin_by_bin(
    counts: list[int], bin_s: float, scale: float, segment_rows: int
) -> None:
    schedule = schedule_from_counts(counts, bin_s, scale, segment_rows)
    assert schedule.total_rows == round(sum(counts) * scale)
    assert schedule.rows.size == 0 or schedule.rows.max() <= segment_rows
    assert ((schedule.arrival_max_us - schedule.arrival_min_us) <= 20_001).all()
    bins = np.floor((schedule.arrival_min_us + schedule.arrival_max_us) / 2e6 / bin_s + 1e-3).astype(int)
    by_bin = np.bincount(bins, weights=schedule.rows, minlength=len(counts))
    assert np.cumsum(by_bin) == pytest.approx(np.cumsum(counts) * scale, abs=1.01)


def test_single_arrivals_are_multiplied() -> None:
    arrival_s = np.sort(np.random.default_rng(1).uniform(0, 5, 1000))
    schedule = schedule_from_arrivals(arrival_s, scale=20)
    assert schedule.total_rows == 20_000
    middle = np.searchsorted(schedule.arrival_max_us, 2_500_000)
    assert schedule.rows[:middle].sum() == pytest.approx(20 * np.searchsorted(arrival_s, 2.5), abs=200)
    assert schedule_from_arrivals([]).total_rows == 0


def test_schedules_that_cannot_be_are_refused() -> None:
    one = np.array([1])
    with pytest.raises(InvalidInputError, match="rows and two arrival times"):
        Schedule(one, one, np.array([1, 2]))
    with pytest.raises(InvalidInputError, match="at least 1 row; got: 0"):
        Schedule(np.array([0]), one, one)
    with pytest.raises(InvalidInputError, match="arrival never goes back"):
        Schedule(np.array([1, 1]), np.array([0, 5]), np.array([6, 7]))
    with pytest.raises(InvalidInputError, match="rate_per_s must be a positive number"):
        schedule_constant(0, 1)
    with pytest.raises(InvalidInputError, match="segment_rows must be at least 1"):
        schedule_constant(1, 1, 0)
    with pytest.raises(InvalidInputError, match="counts are rows by bin"):
        schedule_from_counts([1, -1])
    with pytest.raises(InvalidInputError, match="arrivals are seconds, 0 or more"):
        schedule_from_arrivals([-1.0])
