"""The producer: batches, stamps, flushes, and loses nothing silently."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.waits import PATIENCE_S

from penstock.errors import InvalidInputError, PenstockError
from penstock.log.embedded import EmbeddedLog
from penstock.log.producer import Producer
from penstock.log.writer import LogConfig
from penstock.testing import ManualClock

SCHEMA = pa.schema([("sensor", pa.string()), ("value", pa.int64())])
LONG_S = 3600.0
"""A linger that does not pass in a test."""


def rows(*values: int) -> dict[str, list]:
    return {"sensor": [f"s{v % 7}" for v in values], "value": list(values)}


def values_in(log: EmbeddedLog, partition: int = 0) -> list[int]:
    found = log.headers(partition, 0, log.end(partition))
    return [v for s in found for v in log.read(s).column("value").to_pylist()]


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
    (segment,) = log.headers(0, 0, 6)
    batch = log.read(segment)
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
    with pytest.raises(PenstockError, match="got 2 rows left: no space left"):
        producer.close()
    producer.close()
    with pytest.raises(InvalidInputError, match="open producer; got a closed one"):
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
            abandoned.send(send)
        abandoned._pending.clear()
        abandoned.close()
    with Producer(log, batch_rows=7, linger_s=LONG_S, writer="collector") as producer:
        for send in sends[producer.next_batch :]:
            producer.send(send)
        assert producer.next_batch == len(sends)
    assert all_values(log) == list(range(100))


def test_a_producer_that_cannot_be_is_refused(log: EmbeddedLog) -> None:
    with pytest.raises(InvalidInputError, match="batch_rows must be at least 1"):
        Producer(log, batch_rows=0)
    with pytest.raises(InvalidInputError, match="linger_s must be a positive number"):
        Producer(log, linger_s=0)
    with pytest.raises(InvalidInputError, match="partitions 0 to 0; got 1"):
        Producer(log, partition=1)
