"""What every log promises, whoever keeps it: one test body over embedded, paced and Flight."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.segments import headers, read

from penstock.streams import open_stream
from penstock.streams.embedded.log import EmbeddedLog
from penstock.streams.flight.client import FlightLog
from penstock.streams.flight.server import FlightServer
from penstock.streams.hashing import key_buckets
from penstock.streams.layout import LogConfig
from penstock.streams.paced.stream import create_paced
from penstock.streams.producing.schedule import Schedule
from penstock.streams.protocol import StreamLog
from penstock.streams.registry import ReaderRegistry
from penstock.testing import ManualClock
from penstock.vocabulary.errors import InvalidInputError

SCHEMA = pa.schema([("sensor", pa.string()), ("value", pa.int64())])
BUCKETS = 8
SIZES = [4, 3, 4, 2, 4]
"""Rows of the segments; segment i arrives between i and i + 0.5 seconds after 100."""


def rows(first: int, count: int) -> pa.RecordBatch:
    numbers = range(first, first + count)
    return pa.record_batch([[f"s{n % 5}" for n in numbers], list(numbers)], schema=SCHEMA)


def embedded(directory: Path) -> EmbeddedLog:
    log = EmbeddedLog.create(directory, SCHEMA, LogConfig(key="sensor", key_buckets=BUCKETS, segment_rows=4))
    position = 0
    for i, size in enumerate(SIZES):
        log.append(rows(position, size), arrival_us=np.linspace(100e6 + i * 1e6, 100.5e6 + i * 1e6, size))
        position += size
    return log


@pytest.fixture(params=["embedded", "paced", "flight"])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StreamLog]:
    if request.param == "paced":
        starts = np.arange(5) * 1_000_000
        schedule = Schedule(np.array(SIZES), starts, starts + 500_000)
        with create_paced(
            tmp_path / "s", [rows(0, 8)], schedule, "sensor", BUCKETS, clock=ManualClock(200.0)
        ) as log:
            log.begin(100.0)
            yield log
    elif request.param == "embedded":
        with embedded(tmp_path / "s") as log:
            yield log
    else:
        embedded(tmp_path / "s").close()
        with FlightServer(tmp_path) as server, FlightLog(server.address, "s") as log:
            yield log


def test_headers_tell_positions_and_arrivals(log: StreamLog) -> None:
    assert (log.name, log.partitions, log.key_column, log.key_buckets) == ("s", 1, "sensor", BUCKETS)
    assert (log.start(), log.end()) == (0, sum(SIZES))
    arrays = log.header_arrays(0, 0, log.end())
    assert arrays.rows.tolist() == SIZES
    assert arrays.first_position.tolist() == [0, 4, 7, 11, 13]
    assert arrays.end_position.tolist() == [4, 7, 11, 13, 17]
    assert arrays.arrival_min_us.tolist() == [(100 + i) * 1_000_000 for i in range(5)]
    assert arrays.arrival_max_us.tolist() == [100_500_000 + i * 1_000_000 for i in range(5)]


def test_a_log_says_who_it_is(log: StreamLog) -> None:
    assert log.ref.name == log.name == "s"
    assert len(log.uid) == 32
    assert log.dense
    assert log.partition_name(0) == "0"


@pytest.mark.parametrize(("first", "end"), [(4, 7), (5, 7), (4, 6), (5, 6)])
def test_rows_come_with_their_positions(log: StreamLog, first: int, end: int) -> None:
    found = log.read(0, first, end)
    assert found.positions.tolist() == list(range(first, end))
    whole = log.read(0, 4, 7).batch
    assert found.batch.to_pylist() == whole.to_pylist()[first - 4 : end - 4]


def test_key_counts_are_those_of_the_rows(log: StreamLog) -> None:
    for segment in headers(log, 0, 0, log.end()):
        buckets = key_buckets(read(log, segment).column("sensor"), BUCKETS)
        assert list(segment.key_counts) == np.bincount(buckets, minlength=BUCKETS).tolist()
    assert log.header_arrays(0, 0, log.end(), keys=False).key_counts is None


@pytest.mark.parametrize(
    ("start", "end", "found"),
    [(0, 4, [0]), (3, 5, [0, 4]), (4, 5, [4]), (12, 99, [11, 13]), (17, 99, []), (5, 5, []), (6, 2, [])],
)
def test_headers_of_a_range_are_those_of_segments_that_touch_it(
    log: StreamLog, start: int, end: int, found: list[int]
) -> None:
    assert log.header_arrays(0, start, end).first_position.tolist() == found
    assert len(log.header_arrays(0, start, end)) == len(found)


@pytest.mark.parametrize(
    ("arrival_s", "position"),
    [
        (0.0, 0),
        (100.0, 0),
        (100.49, 0),
        (100.5, 4),
        (101.2, 4),
        (103.5, 13),
        (104.4, 13),
        (104.5, 17),
        (999.0, 17),
    ],
)
def test_a_position_is_found_by_arrival_time(log: StreamLog, arrival_s: float, position: int) -> None:
    assert log.position_at(0, round(arrival_s * 1e6)) == position


def test_rows_of_a_segment_have_arrivals_as_its_header_says(log: StreamLog) -> None:
    for segment in headers(log, 0, 0, log.end()):
        batch = read(log, segment)
        assert batch.schema == log.schema
        arrival_us = batch.column("_arrival").to_numpy()
        assert batch.num_rows == segment.rows
        assert (arrival_us[0], arrival_us[-1]) == (segment.arrival_min_us, segment.arrival_max_us)
        assert (np.diff(arrival_us) >= 0).all()


def test_a_partition_that_is_not_there_is_refused(log: StreamLog) -> None:
    for ask in (log.end, log.start, lambda p: log.header_arrays(p, 0, 1), lambda p: log.position_at(p, 0)):
        with pytest.raises(InvalidInputError, match="partitions 0 to 0; got: 3"):
            ask(3)


def test_an_open_stream_is_found_again_and_one_made_anew_is_another(tmp_path: Path) -> None:
    first = embedded(tmp_path / "s")
    assert open_stream(tmp_path / "s") is open_stream(tmp_path / "s")
    assert open_stream(tmp_path / "s").end() == first.end()
    assert open_stream(tmp_path / "s", verify=False) is not open_stream(tmp_path / "s")
    found = open_stream(tmp_path / "s")
    first.close()
    (tmp_path / "s").rename(tmp_path / "old")
    EmbeddedLog.create(tmp_path / "s", SCHEMA)
    assert open_stream(tmp_path / "s") is not found
    assert open_stream(tmp_path / "s").end() == 0


def test_a_stream_is_opened_by_its_kind_or_its_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedded(tmp_path / "e").close()
    create_paced(tmp_path / "p", [rows(0, 4)], Schedule(np.array([4]), np.array([0]), np.array([1])))
    assert type(open_stream(tmp_path / "e")).__name__ == "EmbeddedLog"
    assert type(open_stream(tmp_path / "p")).__name__ == "PacedLog"
    with FlightServer(tmp_path, token="secret") as server:
        log = open_stream(f"{server.address}/e", token="secret")
        assert log.end() == 17
        assert open_stream(f"{server.address}/e", token="secret") is log
        with pytest.raises(InvalidInputError, match="knows the server's token"):
            open_stream(f"{server.address}/e")
        monkeypatch.setenv("PENSTOCK_LOG_TOKEN", "secret")
        assert open_stream(f"{server.address}/e") is log
        log.close()
    with pytest.raises(InvalidInputError, match="the stream is embedded; got: p is paced"):
        EmbeddedLog(tmp_path / "p")
    with pytest.raises(InvalidInputError, match="no stream at 'nothing'"):
        open_stream(tmp_path / "nothing")
    (tmp_path / "e" / "stream.json").write_text('{"format": 1, "kind": "other"}')
    with pytest.raises(
        InvalidInputError, match="kind of a stream must be one of embedded, link, paced; got: 'other'"
    ):
        open_stream(tmp_path / "e")
    (tmp_path / "e" / "stream.json").write_text('{"form')
    with pytest.raises(InvalidInputError, match="format 1; got: no JSON"):
        open_stream(tmp_path / "e")


def test_readers_of_a_paced_stream_are_registered_and_nothing_is_trimmed(tmp_path: Path) -> None:
    schedule = Schedule(np.array([4, 4]), np.array([0, 5]), np.array([1, 6]))
    log = create_paced(tmp_path / "p", [rows(0, 4)], schedule, clock=ManualClock(7.0))
    log.begin(0.0)
    registry = ReaderRegistry(log)
    assert registry.advance("fraud", {0: 8}).seen_s == 7.0
    assert registry.trim() == {0: 0}
    assert log.end() == 8


def test_executors_import_the_log_without_grpc_or_the_command_line() -> None:
    """It is imported in every Python worker of Spark."""
    heavy = ("pyarrow.flight", "pydantic", "typer", "rich", "pyspark", "pandas", "numba")
    code = f"import sys, penstock.streams; print([m for m in {heavy!r} if m in sys.modules])"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"
