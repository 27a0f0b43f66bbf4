"""Where a new reader begins."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from penstock.streams import LogConfig, create_stream
from penstock.streams.protocol import WritableLog
from penstock.streams.registry import ReaderRegistry
from penstock.streams.starting import Starting, check_starting, first_positions
from penstock.testing import ManualClock
from penstock.vocabulary.errors import InvalidInputError

SCHEMA = pa.schema([("value", pa.int64())])


@pytest.fixture
def log(tmp_path: Path) -> WritableLog:
    """Two partitions; segments of four rows arrive at 100, 101, ... seconds."""
    made = create_stream(
        tmp_path / "s", SCHEMA, LogConfig(partitions=2, segment_rows=4), clock=ManualClock(200.0)
    )
    for second in range(3):
        for p in range(2):
            rows = pa.record_batch([[1, 2, 3, 4]], schema=SCHEMA)
            made.append(rows, p, arrival_us=np.full(4, (100 + second) * 1_000_000))
    ReaderRegistry(made).advance("other-1", {0: 7})
    made.close()
    return made


@pytest.mark.parametrize(
    ("starting", "found"),
    [
        ("earliest", {0: 0, 1: 0}),
        ("latest", {0: 12, 1: 12}),
        ({"positions": {1: 5}}, {0: 0, 1: 5}),
        ({"positions": {"0": 12, "1": 0}}, {0: 12, 1: 0}),
        ({"positions": {np.int64(1): np.int64(5)}}, {0: 0, 1: 5}),
        ({"time": 100.5}, {0: 4, 1: 4}),
        ({"time": "1970-01-01T00:01:41.500"}, {0: 8, 1: 8}),
        ({"time": datetime.fromtimestamp(101.5, UTC)}, {0: 8, 1: 8}),
        ({"time": 500}, {0: 12, 1: 12}),
        ({"reader": "other-1"}, {0: 7, 1: 0}),
    ],
)
def test_a_new_reader_begins_where_it_is_told_to(
    log: WritableLog, starting: Starting, found: dict[int, int]
) -> None:
    assert first_positions(log, starting) == found
    assert first_positions(log, check_starting(starting)) == found, "also as it travels"


@pytest.mark.parametrize(
    ("starting", "said"),
    [
        ("soon", "starting must be one of earliest, latest; got: 'soon'"),
        ({"positions": {0: 13}}, "partition 0 of stream s has positions 0 to 12; got: 13"),
        ({"positions": {4: 1}}, "stream s has partitions 0 to 1; got: 4"),
        ({"positions": {"a": 1}}, "positions are whole numbers by partition"),
        ({"positions": 7}, "positions are whole numbers by partition"),
        ({"positions": {0: 1.9}}, "positions are whole numbers by partition"),
        ({"positions": {0: True}}, "positions are whole numbers by partition"),
        ({"positions": {0.5: 1}}, "positions are whole numbers by partition"),
        ({"positions": {True: 1}}, "positions are whole numbers by partition"),
        ({"time": "yesterday"}, "a time is in ISO 8601"),
        ({"time": float("nan")}, "seconds since the epoch; got: nan; hint: for example 2026-11-18T12:00:00Z"),
        ({"time": float("-inf")}, "seconds since the epoch; got: -inf; hint: for example"),
        ({"time": 1.8e12}, "seconds since the epoch; got: 1800000000000.0; hint: for example"),
        ({"time": 2026111800000}, "seconds since the epoch; got: 2026111800000; hint: for example"),
        ({"time": True}, "seconds since the epoch; got: True; hint: for example"),
        ({"reader": "nobody"}, "a reader of stream s must be one of other-1; got: 'nobody'"),
        ({"time": 1, "reader": "x"}, "starting is earliest or latest, or a mapping with one of"),
        ({"offset": 1}, "starting is earliest or latest, or a mapping with one of"),
    ],
)
def test_a_place_that_is_not_there_is_refused(log: WritableLog, starting: Starting, said: str) -> None:
    with pytest.raises(InvalidInputError, match=said):
        first_positions(log, starting)
