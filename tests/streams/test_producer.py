"""The producer: batches, stamps, flushes, and loses nothing silently."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.segments import headers, read
from tests.waits import PATIENCE_S

from penstock.streams.embedded.log import EmbeddedLog
from penstock.streams.layout import LogConfig
from penstock.streams.producing.producer import Producer
from penstock.streams.protocol import AppendKey
from penstock.testing import ManualClock
from penstock.vocabulary.errors import InvalidInputError, PenstockError

SCHEMA = pa.schema([("sensor", pa.string()), ("value", pa.int64())])
LONG_S = 3600.0
"""A linger that does not pass in a test."""


def rows(*values: int) -> dict[str, list]:
    return {"sensor": [f"s{v % 7}" for v in values], "value": list(values)}


def values_in(log: EmbeddedLog, partition: int = 0) -> list[int]:
    found = headers(log, partition, 0, log.end(partition))
    return [v for s in found for v in read(log, s).column("value").to_pylist()]


def all_values(log: EmbeddedLog) -> list[int]:
    return sorted(v for p in range(log.partitions) for v in values_in(log, p))


@pytest.fixture
def log(tmp_path: Path) -> EmbeddedLog:
    return EmbeddedLog.create(tmp_path / "readings", SCHEMA)


class Broken:
    """A log whose appends fail while `broken`; `tried` is set by an append."""

    def __init__(self, log: EmbeddedLog) -> None:
        self._log, self.broken, self.tried = log, True, threading.Event()

    def __getattr__(self, name: str) -> object:
        return getattr(self._log, name)

    def append(self, *arguments: object) -> int:
        self.tried.set()
        if self.broken:
            raise PenstockError("no space left")
        return self._log.append(*arguments)


def test_rows_of_any_shape_arrive_when_they_are_sent(log: EmbeddedLog) -> None:
    clock = ManualClock(10.0)
    with Producer(log, linger_s=LONG_S, clock=clock) as producer:
        producer.send(rows(1, 2))
        clock.advance(5)
        producer.send([{"value": 3, "sensor": "a"}, {"sensor": None, "value": 4}])
        clock.advance(5)
        producer.send(pa.record_batch([["b"], [5]], schema=SCHEMA))
        producer.send({"sensor": ["c"], "value": np.array([6])})
        producer.send([])
        assert (producer.waiting_rows, log.end()) == (6, 0)
        producer.flush()
        assert (producer.waiting_rows, log.end()) == (0, 6)
    (segment,) = headers(log, 0, 0, 6)
    batch = read(log, segment)
    assert batch.column("value").to_pylist() == [1, 2, 3, 4, 5, 6]
    assert batch.column("_arrival").to_pylist() == [10_000_000] * 2 + [15_000_000] * 2 + [20_000_000] * 2


def test_a_full_batch_is_appended_at_once(log: EmbeddedLog) -> None:
    with Producer(log, batch_rows=3, linger_s=LONG_S) as producer:
        producer.send(rows(1, 2))
        assert log.end() == 0
        producer.send(rows(3, 4))
        assert log.end() == 4
        producer.send(rows(5))
    assert values_in(log) == [1, 2, 3, 4, 5]


def test_rows_that_linger_are_appended_in_the_background(log: EmbeddedLog) -> None:
    watched = Broken(log)
    watched.broken = False
    with Producer(watched, linger_s=0.001) as producer:
        for value in range(3):
            watched.tried.clear()
            producer.send(rows(value))
            assert watched.tried.wait(PATIENCE_S)
    assert values_in(log) == [0, 1, 2]


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        ({"sensor": ["a"]}, r"missing \['value'\]"),
        ({"sensor": ["a"], "value": [1], "x": [2]}, r"unknown \['x'\]"),
        ([{"sensor": "a", "value": 1}, {"sensor": "a"}], r"missing \['value'\]"),
        ([{"sensor": "a", "value": 1, "y": 1}], r"unknown \['y'\]"),
        ({"sensor": ["a"], "value": ["many"]}, "values that do not fit"),
        ({"sensor": ["a", "b"], "value": [1]}, "values that do not fit"),
        ([{"sensor": "a", "value": 2**70}], "values that do not fit"),
        (pa.record_batch({"value": [1]}), r"missing \['sensor'\]"),
    ],
)
def test_rows_with_other_columns_are_refused_at_send(log: EmbeddedLog, sent: object, said: str) -> None:
    with Producer(log, linger_s=LONG_S) as producer:
        producer.send(rows(1))
        with pytest.raises(InvalidInputError, match=said):
            producer.send(sent)  # type: ignore[arg-type]
    assert values_in(log) == [1]


def test_an_error_of_the_background_is_raised_at_the_next_call_and_nothing_is_lost(log: EmbeddedLog) -> None:
    broken = Broken(log)
    producer = Producer(broken, linger_s=0.001)
    producer.send(rows(1))
    assert broken.tried.wait(PATIENCE_S)
    with pytest.raises(PenstockError, match="no space left"):
        producer.flush()
    with pytest.raises(PenstockError, match="no space left"):
        producer.send(rows(2))  # not taken
    assert producer.waiting_rows == 1
    broken.broken = False
    producer.send(rows(3))
    producer.close()
    assert values_in(log) == [1, 3]


def test_closing_says_how_many_rows_are_left_and_a_later_flush_appends_them(log: EmbeddedLog) -> None:
    broken = Broken(log)
    producer = Producer(broken, linger_s=LONG_S)
    producer.send(rows(1, 2))
    with pytest.raises(PenstockError, match="got: 2 rows left: no space left"):
        producer.close()
    producer.close()
    with pytest.raises(InvalidInputError, match="open producer; got: a closed one"):
        producer.send(rows(3))
    broken.broken = False
    producer.flush()
    assert values_in(log) == [1, 2]


def test_partitions_take_turns_or_keys_decide(tmp_path: Path) -> None:
    turns = EmbeddedLog.create(tmp_path / "turns", SCHEMA, LogConfig(partitions=3))
    with Producer(turns, batch_rows=2, linger_s=LONG_S) as producer:
        for value in range(12):
            producer.send(rows(value))
    assert [values_in(turns, p) for p in range(3)] == [[0, 1, 6, 7], [2, 3, 8, 9], [4, 5, 10, 11]]
    keyed = EmbeddedLog.create(tmp_path / "keyed", SCHEMA, LogConfig(partitions=3, key="sensor"))
    with Producer(keyed, batch_rows=5, linger_s=LONG_S) as producer:
        for value in range(0, 100, 10):
            producer.send(rows(*range(value, value + 10)))
    assert all_values(keyed) == list(range(100))
    sensors = [{v % 7 for v in values_in(keyed, p)} for p in range(3)]
    assert sum(map(len, sensors)) == 7  # a key lies in one partition
    with Producer(keyed, partition=2, linger_s=LONG_S) as producer:
        producer.send(rows(1000))
    assert values_in(keyed, 2)[-1] == 1000


@pytest.mark.parametrize("key", [None, "sensor"])
@pytest.mark.parametrize("partitions", [1, 3])
def test_a_producer_that_is_made_again_goes_on_where_the_log_is(
    tmp_path: Path, key: str | None, partitions: int
) -> None:
    """Every producer but the last is abandoned with rows not yet appended, as in a crash."""
    log = EmbeddedLog.create(tmp_path / "s", SCHEMA, LogConfig(partitions=partitions, key=key))
    sends = [rows(*range(first, first + 5)) for first in range(0, 100, 5)]
    for until in (3, 8, 9, 17):
        abandoned = Producer(log, batch_rows=7, linger_s=LONG_S, writer="collector")
        for send in sends[abandoned.next_batch : until]:
            abandoned.send(send)  # and is neither flushed nor closed
    with Producer(log, batch_rows=7, linger_s=LONG_S, writer="collector") as producer:
        for send in sends[producer.next_batch :]:
            producer.send(send)
        assert producer.next_batch == len(sends)
    assert all_values(log) == list(range(100))


def keyed(directory: Path, partitions: int = 4) -> EmbeddedLog:
    return EmbeddedLog.create(directory, SCHEMA, LogConfig(partitions=partitions, key="sensor"))


def one_key(*values: int) -> dict[str, list]:
    return {"sensor": ["s"] * len(values), "value": list(values)}


@pytest.mark.parametrize("flight", [False, True])
def test_a_partition_that_no_key_reaches_does_not_hold_back_the_next_batch(
    tmp_path: Path, flight: bool
) -> None:
    from penstock.streams.flight.client import FlightLog
    from penstock.streams.flight.server import FlightServer

    log = keyed(tmp_path / "s")
    with FlightServer(tmp_path) as server:
        for first in (0, 100):
            used = FlightLog(server.address, "s") if flight else EmbeddedLog(tmp_path / "s")
            with used, Producer(used, linger_s=LONG_S, writer="collector") as producer:
                assert producer.next_batch == first
                for value in range(first, first + 100):
                    producer.send(one_key(value))
    assert all_values(log) == list(range(200)), "an application that went on with new rows lost none"


def test_a_producer_that_was_ended_between_two_notes_sends_a_little_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    log = keyed(tmp_path / "s")
    monkeypatch.setattr("penstock.streams.producing.producer.NOTE_EVERY_S", 0.0)
    abandoned = Producer(log, batch_rows=1, linger_s=LONG_S, writer="collector")
    for value in range(50):
        abandoned.send(one_key(value))
    monkeypatch.setattr("penstock.streams.producing.producer.NOTE_EVERY_S", LONG_S)
    for value in range(50, 60):
        abandoned.send(one_key(value))
    caplog.clear()
    with Producer(log, linger_s=LONG_S, writer="collector") as again:
        assert again.next_batch == 50
        assert "sends 50 to 59 of collector are in the log in part; send the same rows again" in caplog.text
        for value in range(50, 70):
            again.send(one_key(value))
    assert all_values(log) == list(range(70))


def test_a_note_goes_with_rows_that_are_lost_and_they_are_sent_again(tmp_path: Path) -> None:
    with keyed(tmp_path / "s", 2) as log:
        with Producer(log, linger_s=LONG_S, writer="w") as producer:
            for value in range(14):
                producer.send(rows(value))
                producer.flush()
            producer.send(one_key(14))
        ends = [log.end(p) for p in (0, 1)]
    for p in (0, 1):
        index = tmp_path / "s" / f"p{p:04d}" / "index"
        os.truncate(index, index.stat().st_size // 2)
    for _ in range(2):  # also when others have filled the places of what was lost
        with EmbeddedLog(tmp_path / "s") as log, Producer(log, linger_s=LONG_S, writer="w") as producer:
            assert producer.next_batch < 10
        with EmbeddedLog(tmp_path / "s") as log:
            for p in (0, 1):
                while log.end(p) < ends[p]:
                    log.append(pa.record_batch([["x"], [-1]], schema=SCHEMA), p)
    with EmbeddedLog(tmp_path / "s") as log, Producer(log, linger_s=LONG_S, writer="w") as producer:
        for value in range(producer.next_batch, 14):
            producer.send(rows(value))
        producer.send(one_key(14))
    assert [v for v in all_values(log) if v >= 0] == list(range(15))


def test_sends_by_turns_go_on_after_the_last_one(tmp_path: Path) -> None:
    log = EmbeddedLog.create(tmp_path / "s", SCHEMA, LogConfig(partitions=3))
    for first in (0, 10, 20):
        with Producer(log, linger_s=LONG_S, writer="w") as producer:
            assert producer.next_batch == first
            for value in range(first, first + 10):
                producer.send(rows(value))
    assert all_values(log) == list(range(30))


def test_a_partition_that_another_process_writes_is_left_without_a_note(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = keyed(tmp_path / "s", 2)
    first, second = (pa.record_batch([["s"], [v]], schema=SCHEMA) for v in (1, 2))
    with Producer(EmbeddedLog(tmp_path / "s"), linger_s=LONG_S, writer="w") as producer:
        producer.send(first)
        (mine,) = producer._pending
        other.append(second, 1 - mine)
        for _ in range(3):
            producer.flush()
    assert caplog.text.count("is not noted: expected: a partition has one writer") == 1
    assert (values_in(other, mine), values_in(other, 1 - mine)) == ([1], [2])


def test_notes_of_many_sends_take_little_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.streams.embedded.noted.MOST_BYTES", 300)
    log = EmbeddedLog.create(tmp_path / "s", SCHEMA)
    nothing = pa.RecordBatch.from_pylist([], schema=SCHEMA)
    for batch in range(100):
        log.append(nothing, key=AppendKey(f"w{batch % 3}", batch))
    path = tmp_path / "s" / "p0000" / "noted"
    assert path.stat().st_size < 350
    path.write_bytes(path.read_bytes() + b'["w0", 10')  # torn
    assert [EmbeddedLog(tmp_path / "s").last_batch(f"w{i}") for i in range(4)] == [99, 97, 98, -1]
    log.close()


def test_a_producer_that_cannot_be_is_refused(log: EmbeddedLog) -> None:
    with pytest.raises(InvalidInputError, match="batch_rows must be at least 1"):
        Producer(log, batch_rows=0)
    with pytest.raises(InvalidInputError, match="linger_s must be a positive number"):
        Producer(log, linger_s=0)
    with pytest.raises(InvalidInputError, match="partitions 0 to 0; got: 1"):
        Producer(log, partition=1)


@pytest.mark.parametrize("most", [1, 100, 1000])
def test_more_than_one_batch_can_hold_is_appended_in_several_steps(
    log: EmbeddedLog, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr("penstock.streams.producing.producer.MOST_BYTES", most)
    clock = ManualClock(10.0)
    with Producer(log, linger_s=LONG_S, writer="w", clock=clock) as producer:
        for value in range(20):
            producer.send(rows(value, value))
            clock.advance(1.0)
        producer.flush()
        assert (producer.waiting_rows, log.last_batch("w")) == (0, 19)
        assert log.end() == 40
    segments = headers(log, 0, 0, 40)
    assert (len(segments) == 20) == (most == 1)
    arrived = [us for s in segments for us in read(log, s).column("_arrival").to_pylist()]
    assert arrived == [us for second in range(10, 30) for us in [second * 1_000_000] * 2]
    assert values_in(log) == [value for value in range(20) for _ in range(2)]


def test_steps_that_were_appended_before_an_error_are_not_appended_again(
    log: EmbeddedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.streams.producing.producer.MOST_BYTES", 1)
    real, left = log.append, 3

    def fails_once(*arguments: object) -> int:
        nonlocal left
        left -= 1
        if left == 0:
            raise PenstockError("no space left")
        return real(*arguments)

    monkeypatch.setattr(log, "append", fails_once)
    with Producer(log, linger_s=LONG_S) as producer:
        for value in range(5):
            producer.send(rows(value))
        with pytest.raises(PenstockError, match="no space left"):
            producer.flush()
        assert (producer.waiting_rows, log.end()) == (3, 2)
    assert values_in(log) == [0, 1, 2, 3, 4]
