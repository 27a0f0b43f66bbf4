"""A log that lost rows which it had acknowledged: the log says so, and marks tell readers that read them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from penstock.streams.embedded.log import EmbeddedLog
from penstock.streams.layout import LogConfig
from penstock.streams.marks import check_marks, marks_at
from penstock.streams.paced.stream import create_paced
from penstock.streams.producing.schedule import Schedule
from penstock.testing import ManualClock
from penstock.vocabulary.errors import InvalidInputError

SCHEMA = pa.schema([("value", pa.int64())])


def rows(first: int, count: int) -> pa.RecordBatch:
    return pa.record_batch([list(range(first, first + count))], schema=SCHEMA)


def filled(directory: Path, appends: int = 10, **config: int) -> EmbeddedLog:
    """Appends of 100 rows each, in segments of 50."""
    log = EmbeddedLog.create(directory, SCHEMA, LogConfig(segment_rows=50, **config))
    for i in range(appends):
        log.append(rows(100 * i, 100))
    return log


def test_recovery_says_how_many_complete_appends_and_rows_were_lost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    filled(tmp_path / "readings").close()
    path = next(tmp_path.glob("readings/p0000/*.data"))
    os.truncate(path, path.stat().st_size * 3 // 4)
    with EmbeddedLog(tmp_path / "readings") as log:
        assert log.append(rows(0, 1)) == 701
    assert "readings, partition 0: cut" in caplog.text
    assert "rows that were acknowledged are lost, " in caplog.text
    assert "3 complete appends with 300 rows, from position 700 on" in caplog.text
    assert "unfinished" not in caplog.text


def test_a_trim_while_marks_are_checked_is_no_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = EmbeddedLog.create(tmp_path / "s", SCHEMA, LogConfig(segment_rows=1, file_bytes=1))
    for value in range(600):
        log.append(rows(value, 1))
    positions = {0: 560}
    marks, look = marks_at(log, positions), log.mark

    def trimmed_just_now(partition: int, position: int) -> int:
        assert log.trim(partition, position) == position
        return look(partition, position)

    monkeypatch.setattr(log, "mark", trimmed_just_now)
    check_marks(log, positions, marks)
    assert look(0, 560) == 0, "its index is compacted"
    log.close()


def test_a_mark_lasts_through_appends_restarts_trims_and_compactions(tmp_path: Path) -> None:
    log = EmbeddedLog.create(tmp_path / "s", SCHEMA, LogConfig(segment_rows=1, file_bytes=1))
    for value in range(600):
        log.append(rows(value, 1))
    positions = {0: 560}
    marks = marks_at(log, positions)
    assert list(marks) == [0]
    log.append(rows(600, 1))
    log.close()
    again = EmbeddedLog(tmp_path / "s")
    again.append(rows(601, 1))
    again.trim(0, 500)
    check_marks(again, positions, marks)
    again.trim(0, 560)
    check_marks(again, positions, marks)
    again.trim(0, 600)
    check_marks(again, positions, marks)
    assert marks_at(again, {0: 0}) == {}


def test_another_row_at_the_same_position_has_another_mark(tmp_path: Path) -> None:
    with filled(tmp_path / "s", 7) as log:
        backup = tmp_path / "backup"
        shutil.copytree(log.directory, backup)
        for i in range(7, 10):
            log.append(rows(100 * i, 100))
        marks = marks_at(log, {0: 930})
        check_marks(log, {0: 930}, marks)
    with EmbeddedLog(backup) as log:
        with pytest.raises(InvalidInputError, match="checkpoint is at position 930, the log ends at 700;"):
            check_marks(log, {0: 930}, marks)
        for i in range(7, 12):
            log.append(rows(100 * i, 100))  # the same values, at another time
        with pytest.raises(InvalidInputError, match="at position 930, the rows before it are others now;"):
            check_marks(log, {0: 930}, marks)
        check_marks(log, {0: 930}, {})  # an offset of format 1 cannot know


def test_a_paced_stream_has_no_marks_and_may_end_before_a_position(tmp_path: Path) -> None:
    """Its end follows the clock, which may go back; its rows stay what they are."""
    clock = ManualClock(100.0)
    schedule = Schedule(np.array([4, 4]), np.array([0, 10**6]), np.array([1, 10**6 + 1]))
    with create_paced(tmp_path / "p", [rows(0, 4)], schedule, clock=clock) as log:
        log.begin(101.0)
        assert (log.end(), marks_at(log, {0: 8})) == (0, {})
        check_marks(log, {0: 8}, {})


def test_a_partition_that_cannot_tell_does_not_hide_another_that_lost_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with filled(tmp_path / "s", 1, partitions=2) as log:
        look = log.mark
        monkeypatch.setattr(log, "mark", lambda p, position: look(p, position) if p else None)
        with pytest.raises(InvalidInputError, match="partition 1: the checkpoint is at position 20, the log"):
            check_marks(log, {0: 100, 1: 20}, {})


def test_one_of_several_partitions_that_lost_rows_is_named(tmp_path: Path) -> None:
    with EmbeddedLog.create(tmp_path / "s", SCHEMA, LogConfig(partitions=2)) as log:
        for p in (0, 1):
            log.append(rows(0, 10), p)
            log.append(rows(10, 10), p)
        positions = {0: 20, 1: 20}
        marks = marks_at(log, positions)
    (path,) = (tmp_path / "s" / "p0001").glob("*.data")
    os.truncate(path, path.stat().st_size - 1)
    with EmbeddedLog(tmp_path / "s") as log:
        log.append(rows(0, 1), 1)
        with pytest.raises(InvalidInputError, match="partition 1: the checkpoint is at position 20, the log"):
            check_marks(log, positions, marks)
        check_marks(log, {0: 20, 1: 10}, marks_at(log, {0: 20, 1: 10}))
