"""Traces played into a stream, and synthetic rows."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.segments import headers, read

from penstock.streams.embedded.log import EmbeddedLog
from penstock.streams.producing.synthetic import arrivals_constant, arrivals_poisson, play, synthetic_rows
from penstock.testing import ManualClock
from penstock.vocabulary.errors import InvalidInputError

SCHEMA = pa.schema([("value", pa.int64()), ("ts", pa.timestamp("ms"))])


def numbered(first: int, count: int) -> pa.RecordBatch:
    return pa.record_batch([range(first, first + count), [None] * count], schema=SCHEMA)


def column(log: EmbeddedLog, name: str) -> list:
    return [v for s in headers(log, 0, 0, log.end()) for v in read(log, s).column(name).to_pylist()]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1000.0)


@pytest.fixture
def log(tmp_path: Path, clock: ManualClock) -> EmbeddedLog:
    return EmbeddedLog.create(tmp_path / "s", SCHEMA, clock=clock)


@pytest.mark.parametrize("speed", [1.0, 4.0])
def test_rows_are_played_at_their_times_with_exact_stamps(
    log: EmbeddedLog, clock: ManualClock, speed: float
) -> None:
    arrival_s = np.sort(np.random.default_rng(3).uniform(0, 2, 500))
    played = play(log, arrival_s, numbered, speed=speed, event_time="ts", clock=clock, sleep=clock.advance)
    assert column(log, "value") == list(range(500))
    wanted_us = np.rint((1000.0 + arrival_s / speed) * 1e6)
    assert column(log, "_arrival") == wanted_us.tolist()
    stamps_ms = [
        int(ts.timestamp() * 1000)
        for ts in pa.array(column(log, "ts")).cast(pa.timestamp("ms", "UTC")).to_pylist()
    ]
    assert np.abs(np.array(stamps_ms) - wanted_us / 1000).max() <= 1
    assert (played.rows, played.stopped) == (500, False)
    assert played.late_mean_s <= played.late_max_s <= 0.0201
    assert played.seconds == pytest.approx(2 / speed, abs=0.05)
    assert len(headers(log, 0, 0, 500)) <= played.seconds / 0.02 + 2


def test_a_play_that_is_late_catches_up_and_says_how_late(log: EmbeddedLog, clock: ManualClock) -> None:
    stalled = False

    def stall_once(first: int, count: int) -> pa.RecordBatch:
        nonlocal stalled
        if first > 50 and not stalled:
            stalled = True
            clock.advance(3.0)
        return numbered(first, count)

    arrival_s = arrivals_constant(100, 5)
    played = play(log, arrival_s, stall_once, batch_rows=64, clock=clock, sleep=clock.advance)
    assert column(log, "value") == list(range(500))
    assert column(log, "_arrival") == np.rint((1000.0 + arrival_s) * 1e6).tolist()
    assert played.late_max_s == pytest.approx(3.0, abs=0.05)
    assert played.seconds == pytest.approx(5.0, abs=0.05)
    assert max(s.rows for s in headers(log, 0, 0, 500)) == 64


def test_a_play_stops_when_told(log: EmbeddedLog, clock: ManualClock) -> None:
    stop = threading.Event()

    def sleep(by_s: float) -> None:
        clock.advance(by_s)
        if clock() >= 1001.0:
            stop.set()

    played = play(log, [0.0, 0.5, 50.0], numbered, clock=clock, sleep=sleep, stop=stop)
    assert (played.rows, played.stopped, log.end()) == (2, True, 2)
    assert played.seconds < 1.2


def test_arrivals_that_cannot_be_are_refused(log: EmbeddedLog) -> None:
    for arrival_s in ([2.0, 1.0], [-1.0], [float("nan")]):
        with pytest.raises(InvalidInputError, match="seconds, 0 or more, in order"):
            play(log, arrival_s, numbered)
    with pytest.raises(InvalidInputError, match="speed must be a positive number"):
        play(log, [0.0], numbered, speed=0)
    with pytest.raises(InvalidInputError, match="event time is a timestamp column"):
        play(log, [0.0], numbered, event_time="value")
    assert play(log, [], numbered).rows == 0


def test_synthetic_rows_are_the_same_in_whatever_batch_they_come() -> None:
    kinds = [pa.bool_(), pa.int8(), pa.int32(), pa.uint64(), pa.float32(), pa.float64(), pa.string()]
    kinds += [pa.large_string(), pa.timestamp("us", "UTC"), pa.timestamp("s")]
    schema = pa.schema([(f"c{i}", kind) for i, kind in enumerate(kinds)])
    make_rows = synthetic_rows(schema, seed=5, keys=10, clock=ManualClock(7.0))
    whole = make_rows(0, 1000)
    assert whole.schema == schema
    parts = pa.Table.from_batches([make_rows(0, 1), make_rows(1, 600), make_rows(601, 399)])
    assert parts.equals(pa.Table.from_batches([whole]))
    assert set(whole.column("c6").to_pylist()) == {f"k{i}" for i in range(10)}
    assert set(whole.column("c8").cast(pa.int64()).to_pylist()) == {7_000_000}
    other = synthetic_rows(schema, seed=6, keys=10)(0, 1000)
    assert not other.column("c5").equals(whole.column("c5"))


def test_synthetic_numbers_are_even_and_columns_are_unrelated() -> None:
    schema = pa.schema([("a", pa.float64()), ("b", pa.float64()), ("n", pa.int64())])
    rows = synthetic_rows(schema)(0, 20_000)
    a, b = rows.column("a").to_numpy(), rows.column("b").to_numpy()
    assert (a.min() >= 0, a.max() < 1) == (True, True)
    assert (a.mean(), a.var()) == pytest.approx((0.5, 1 / 12), abs=0.01)
    for shift in (0, 1, 2):
        assert abs(np.corrcoef(a[: a.size - shift], b[shift:])[0, 1]) < 0.03
        assert abs(np.corrcoef(a[shift:], b[: b.size - shift])[0, 1]) < 0.03
    assert np.bincount(rows.column("n").to_numpy(), minlength=1000).min() > 0


def test_a_schema_that_cannot_be_made_up_is_refused_at_once() -> None:
    with pytest.raises(InvalidInputError, match="synthetic rows have numbers"):
        synthetic_rows(pa.schema([("x", pa.list_(pa.int32()))]))


def test_poisson_arrivals_are_seeded_sorted_and_of_the_rate() -> None:
    arrival_s = arrivals_poisson(1000, 10, seed=1)
    assert arrival_s.size == pytest.approx(10_000, rel=0.05)
    assert (np.diff(arrival_s) >= 0).all()
    assert np.array_equal(arrival_s, arrivals_poisson(1000, 10, seed=1))
