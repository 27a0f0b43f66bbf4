"""What every log promises, whoever keeps it: one test body over all kinds, and a log with gaps."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.gappy import Gappy, GappyLog
from tests.segments import headers, read

from penstock.streams import open_stream
from penstock.streams.embedded.log import EmbeddedLog
from penstock.streams.flight.server import FlightServer
from penstock.streams.hashing import key_buckets
from penstock.streams.kinds.linked import make_link
from penstock.streams.layout import LogConfig
from penstock.streams.opening import load_stream
from penstock.streams.paced.stream import create_paced
from penstock.streams.producing.schedule import Schedule
from penstock.streams.protocol import StreamLog
from penstock.streams.registry import ReaderRegistry
from penstock.testing import ManualClock
from penstock.vocabulary.errors import InvalidInputError
from penstock.vocabulary.stream_ref import StreamRef

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


@dataclass(frozen=True)
class Made:
    """A log, and what is in it by its description.

    Attributes:
        log: The log.
        sizes: Positions of the segments.
        lasts_s: How long after its first row the last row of each segment arrives, at most.
        partition: What the log calls its partition.
        buckets: Of its key's hash.
        has_row: Which positions have a row; `None` for all.
    """

    log: StreamLog
    sizes: list[int]
    lasts_s: float = 0.5
    partition: str = "0"
    buckets: int = BUCKETS
    has_row: Callable[[int, np.ndarray], np.ndarray] | None = None

    @property
    def firsts(self) -> list[int]:
        return [0, *np.cumsum(self.sizes).tolist()[:-1]]

    def positions(self, first: int, end: int) -> list[int]:
        """Those of [first, end) that have a row."""
        found = np.arange(first, end)
        return (found if self.has_row is None else found[self.has_row(0, found)]).tolist()

    def last_us(self, segment: int) -> int:
        return round((100 + segment + self.lasts_s * (1 if self.sizes[segment] > 1 else 0)) * 1e6)


def gappy(directory: Path) -> Made:
    """A row each quarter of a second, but for the positions that have none; the last segment may grow."""
    like = Gappy(99.75, per_s=4.0, births_s=(0.0,), block=4, gap_percent=30, aborted=3, keyed=True)
    log = GappyLog.create(directory, like, ManualClock(104.1))
    return Made(log, [4, 4, 4, 4, 1], 0.75, "payments/0", GappyLog.key_buckets, log.has_row)


@pytest.fixture(params=["embedded", "paced", "flight", "link", "gappy"])
def made(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Made]:
    if request.param == "paced":
        starts = np.arange(5) * 1_000_000
        schedule = Schedule(np.array(SIZES), starts, starts + 500_000)
        with create_paced(
            tmp_path / "s", [rows(0, 8)], schedule, "sensor", BUCKETS, clock=ManualClock(200.0)
        ) as log:
            log.begin(100.0)
            yield Made(log, SIZES)
    elif request.param == "embedded":
        with embedded(tmp_path / "s") as log:
            yield Made(log, SIZES)
    elif request.param == "gappy":
        found = gappy(tmp_path / "s")
        with found.log:
            yield found
    else:
        embedded(tmp_path / "there" / "s").close()
        with FlightServer(tmp_path / "there") as server:
            place = f"{server.address}/s"
            if request.param == "link":
                make_link(tmp_path / "s", StreamRef(place))
                place = str(tmp_path / "s")
            with load_stream(place) as log:
                yield Made(log, SIZES)


@pytest.fixture
def log(made: Made) -> StreamLog:
    return made.log


def test_headers_tell_positions_and_arrivals(made: Made) -> None:
    log, count = made.log, len(made.sizes)
    assert (log.name, log.partitions, log.key_column, log.key_buckets) == ("s", 1, "sensor", made.buckets)
    assert set(log.user_schema.names) == {"sensor", "value"}
    assert (log.start(), log.end()) == (0, sum(made.sizes))
    arrays = log.header_arrays(0, 0, log.end())
    assert arrays.rows.tolist() == made.sizes
    assert arrays.first_position.tolist() == made.firsts
    assert arrays.end_position.tolist() == np.cumsum(made.sizes).tolist()
    assert arrays.arrival_min_us.tolist() == [(100 + i) * 1_000_000 for i in range(count)]
    assert arrays.arrival_max_us.tolist() == [made.last_us(i) for i in range(count)]


def test_a_log_says_who_it_is(made: Made) -> None:
    log = made.log
    assert log.ref.name == log.name == "s"
    assert len(log.uid) == 32
    assert log.dense == (made.has_row is None)
    assert log.partition_name(0) == made.partition


@pytest.mark.parametrize(("first", "end"), [(4, 7), (5, 7), (4, 6), (5, 6), (8, 11)])
def test_rows_come_with_their_positions(made: Made, first: int, end: int) -> None:
    found = made.log.read(0, first, end)
    assert found.positions.tolist() == made.positions(first, end)
    before, whole = made.positions(first // 4 * 4, first), made.log.read(0, first // 4 * 4, end).batch
    assert found.batch.to_pylist() == whole.to_pylist()[len(before) :]
    assert found.batch.schema == made.log.schema


def test_key_counts_are_those_of_the_rows(log: StreamLog) -> None:
    for segment in headers(log, 0, 0, log.end()):
        buckets = key_buckets(read(log, segment).column("sensor"), log.key_buckets)
        assert list(segment.key_counts) == np.bincount(buckets, minlength=log.key_buckets).tolist()
    assert log.header_arrays(0, 0, log.end(), keys=False).key_counts is None


@pytest.mark.parametrize(
    ("start", "end"), [(0, 4), (3, 5), (4, 5), (4, 8), (12, 99), (16, 99), (17, 99), (5, 5), (6, 2)]
)
def test_headers_of_a_range_are_those_of_segments_that_touch_it(made: Made, start: int, end: int) -> None:
    segments = zip(made.firsts, made.sizes, strict=True)
    touched = [first for first, size in segments if start < min(end, first + size) and first < end]
    found = made.log.header_arrays(0, start, end)
    assert found.first_position.tolist() == (touched if start < end else [])
    assert len(found) == len(found.first_position)


@pytest.mark.parametrize(
    "arrival_s", [0.0, 100.0, 100.49, 100.5, 100.75, 101.2, 103.5, 103.75, 104.0, 104.4, 104.5, 999.0]
)
def test_a_position_is_found_by_arrival_time(made: Made, arrival_s: float) -> None:
    later = [first for i, first in enumerate(made.firsts) if made.last_us(i) > round(arrival_s * 1e6)]
    assert made.log.position_at(0, round(arrival_s * 1e6)) == (later or [sum(made.sizes)])[0]


def test_rows_of_a_segment_have_arrivals_as_its_header_says(made: Made) -> None:
    log = made.log
    for segment in headers(log, 0, 0, log.end()):
        batch = read(log, segment)
        assert batch.schema == log.schema
        arrival_us = batch.column("_arrival").to_numpy()
        assert batch.num_rows == len(made.positions(segment.first_position, segment.end_position))
        if log.dense:
            assert (arrival_us[0], arrival_us[-1]) == (segment.arrival_min_us, segment.arrival_max_us)
        assert ((segment.arrival_min_us <= arrival_us) & (arrival_us <= segment.arrival_max_us)).all()
        assert (np.diff(arrival_us) >= 0).all()


def test_segments_keep_their_borders_whoever_asks_and_the_log_is_read_in_any_order(made: Made) -> None:
    whole = made.log.header_arrays(0, 0, made.log.end()).first_position.tolist()
    for first, end in reversed(list(zip(whole, [*whole[1:], made.log.end()], strict=True))):
        assert made.log.header_arrays(0, first, end, keys=False).first_position.tolist() == [first]
        assert made.log.read(0, first, end).positions.tolist() == made.positions(first, end)


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
