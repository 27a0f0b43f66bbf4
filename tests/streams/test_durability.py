"""What happens to bytes: fsync, damage, and an index that forgets what was trimmed."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.segments import headers, read

from penstock.streams import files
from penstock.streams.embedded import compact as compaction
from penstock.streams.embedded.log import EmbeddedLog
from penstock.streams.embedded.writer import start_timer
from penstock.streams.layout import LogConfig
from penstock.streams.protocol import AppendKey
from penstock.vocabulary.errors import InvalidInputError, UnknownNameError

SCHEMA = pa.schema([("value", pa.int64())])


def rows(*values: int) -> pa.RecordBatch:
    return pa.record_batch([list(values)], schema=SCHEMA)


def values_in(log: EmbeddedLog) -> list[int]:
    found = headers(log, 0, log.start(), log.end())
    return [v for s in found for v in read(log, s).column("value").to_pylist()]


def one_file_a_row(directory: Path, count: int, **options: object) -> EmbeddedLog:
    log = EmbeddedLog.create(directory, SCHEMA, LogConfig(segment_rows=1, file_bytes=1), **options)
    for value in range(count):
        log.append(rows(value), key=AppendKey("even" if value % 2 == 0 else "odd", value))
    return log


class CountingFsync:
    """Counts by file name, and does it."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._fsync = os.fsync

    def __call__(self, handle: int) -> None:
        self.names.append(Path(os.readlink(f"/proc/self/fd/{handle}")).name)
        self._fsync(handle)


@pytest.mark.parametrize(
    ("fsync", "interval_s", "appends", "closes"),
    [("never", 1.0, 0, 0), ("always", 1.0, 3, 4), ("interval", 3600.0, 0, 1), ("interval", 1e-9, 3, 4)],
)
def test_the_fsync_policy_says_when_index_and_data_are_forced_to_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fsync: str, interval_s: float, appends: int, closes: int
) -> None:
    log = EmbeddedLog.create(tmp_path / "s", SCHEMA, fsync=fsync, fsync_interval_s=interval_s)
    counting = CountingFsync()
    monkeypatch.setattr(os, "fsync", counting)
    for value in range(3):
        log.append(rows(value))
    names = [] if fsync == "never" else ["p0000"]  # the directory first: its files may be new
    assert counting.names == names + ["00000000000000000000.data", "index"] * appends
    log.close()
    assert counting.names == names + ["00000000000000000000.data", "index"] * closes


class ManualTimers:
    """Timers that are due when a test says so."""

    def __init__(self) -> None:
        self.started: list[tuple[float, Callable[[], None]]] = []
        self.cancelled = 0

    def __call__(self, seconds: float, call: Callable[[], None]) -> ManualTimers:
        self.started.append((seconds, call))
        return self

    def cancel(self) -> None:
        self.cancelled += 1


def test_a_stream_that_falls_silent_is_forced_to_disk_within_the_interval(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    timers = ManualTimers()
    monkeypatch.setattr("penstock.streams.embedded.writer.start_timer", timers)
    log = EmbeddedLog.create(tmp_path / "s", SCHEMA, fsync="interval", fsync_interval_s=3600.0)
    log.append(rows(1))
    counting = CountingFsync()
    monkeypatch.setattr(os, "fsync", counting)
    log.append(rows(2))
    assert len(timers.started) == 1, "one for all that comes until it is due"
    seconds, sync = timers.started[0]
    assert 0 < seconds <= 3600
    sync()
    assert counting.names == ["00000000000000000000.data", "index"]
    log.append(rows(3))
    assert len(timers.started) == 2
    log.close()
    assert timers.cancelled == 1
    assert counting.names == ["00000000000000000000.data", "index"] * 2
    timers.started[1][1]()  # it was just about to be called
    assert counting.names == ["00000000000000000000.data", "index"] * 2
    assert values_in(log) == [1, 2, 3]


def test_rows_that_cannot_be_forced_to_disk_in_time_are_said_and_the_log_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    timers = ManualTimers()
    monkeypatch.setattr("penstock.streams.embedded.writer.start_timer", timers)
    log = EmbeddedLog.create(tmp_path / "s", SCHEMA, fsync="interval", fsync_interval_s=3600.0)
    log.append(rows(1))

    def failing(handle: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", failing)
        timers.started[0][1]()
    assert "s: rows were not forced to the disk" in caplog.text
    assert log.append(rows(2)) == 2
    log.close()


def test_a_timer_of_the_log_calls_once_and_not_when_it_is_cancelled() -> None:
    called = threading.Event()
    start_timer(0.0, called.set)
    assert called.wait(60)
    cancelled = start_timer(3600.0, called.clear)
    cancelled.cancel()
    cancelled.join(60)
    assert called.is_set()
    assert cancelled.daemon


def test_an_fsync_policy_that_cannot_be_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        UnknownNameError, match="fsync must be one of always, interval, never; got: 'allways'"
    ):
        EmbeddedLog.create(tmp_path / "s", SCHEMA, fsync="allways")
    with pytest.raises(InvalidInputError, match="fsync_interval_s must be a positive number; got: 0"):
        EmbeddedLog(tmp_path / "s", fsync="interval", fsync_interval_s=0)


@pytest.mark.parametrize("at", [-1, 40, 130])
def test_a_damaged_segment_is_named_and_the_others_are_read(tmp_path: Path, at: int) -> None:
    with EmbeddedLog.create(tmp_path / "readings", SCHEMA) as log:
        log.append(rows(1, 2, 3))
        log.append(rows(4, 5, 6))
    path = next(log.directory.glob("p0000/*.data"))
    first, second = headers(log, 0, 0, 6)
    content = bytearray(path.read_bytes())
    begins = int(log._indexes[0].records()[1]["offset"])
    content[begins + at if at > 0 else len(content) - 1] ^= 0x55
    path.write_bytes(content)
    assert read(log, first).column("value").to_pylist() == [1, 2, 3]
    with pytest.raises(InvalidInputError, match="damaged bytes in readings, partition 0, position 3"):
        read(log, second)


@pytest.mark.parametrize("verify", [True, False])
def test_a_segment_that_is_cut_off_is_named_with_and_without_verifying(tmp_path: Path, verify: bool) -> None:
    with EmbeddedLog.create(tmp_path / "readings", SCHEMA) as log:
        log.append(rows(*range(100)))
    path = next(log.directory.glob("p0000/*.data"))
    os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(InvalidInputError, match="damaged bytes in readings, partition 0, position 0"):
        read(EmbeddedLog(log.directory, verify=verify), headers(log, 0, 0, 1)[0])


def test_the_index_forgets_files_that_were_trimmed_and_nothing_else(tmp_path: Path) -> None:
    log = one_file_a_row(tmp_path / "s", 600)
    index = log.directory / "p0000" / "index"
    reader, size = EmbeddedLog(log.directory), index.stat().st_size
    assert reader.end() == 600
    log.trim(0, 200)
    assert index.stat().st_size == size  # not most of it yet
    log.trim(0, 500)
    assert index.stat().st_size == size // 6
    for seen in (log, reader, EmbeddedLog(log.directory)):
        assert (seen.start(), seen.end()) == (500, 600)
        assert values_in(seen) == list(range(500, 600))
        assert seen.header_arrays(0, 0, 600).first_position.tolist() == list(range(500, 600))
        assert seen.position_at(0, 0) == 500
    assert log.append(rows(600), key=AppendKey("even", 600)) == 601
    assert reader.end() == 601


def test_a_repeated_batch_is_known_after_its_record_is_gone(tmp_path: Path) -> None:
    log = one_file_a_row(tmp_path / "s", 600)
    assert log.append(rows(-1), key=AppendKey("early", 3)) == 601
    for value in range(300):
        log.append(rows(value))
    log.trim(0, 890)
    assert log.header_arrays(0, 0, 901).first_position[0] == 890
    for again in (log, EmbeddedLog(log.directory)):
        assert [again.last_batch(writer) for writer in ("even", "odd", "early", "none")] == [598, 599, 3, -1]
        assert again.append(rows(7), key=AppendKey("early", 3)) == 901
        assert again.append(rows(7), key=AppendKey("odd", 599)) == 901
        again.close()
    assert EmbeddedLog(log.directory).append(rows(7), key=AppendKey("odd", 601)) == 902


def test_a_writer_compacts_at_its_start_what_another_process_trimmed(tmp_path: Path) -> None:
    log = one_file_a_row(tmp_path / "s", 600)
    index = log.directory / "p0000" / "index"
    size = index.stat().st_size
    EmbeddedLog(log.directory).trim(0, 599)  # has no writer: only trims
    assert index.stat().st_size == size
    log.close()
    with EmbeddedLog(log.directory) as again:
        assert again.append(rows(600)) == 601
    assert index.stat().st_size == size // 600 * 2
    assert values_in(again) == [599, 600]


def test_the_file_of_the_last_row_stays_so_that_the_end_is_known(tmp_path: Path) -> None:
    with one_file_a_row(tmp_path / "s", 10) as log:
        assert log.trim(0, 10_000) == 9
        assert (log.start(), log.end(), values_in(log)) == (9, 10, [9])
    again = EmbeddedLog(log.directory)
    assert (again.end(), again.append(rows(10))) == (10, 11)


def test_positions_go_on_when_everything_after_a_trim_was_lost(tmp_path: Path) -> None:
    """A power cut without fsync: what was trimmed is known to be gone, what came after is lost."""
    with one_file_a_row(tmp_path / "s", 10) as log:
        log.trim(0, 8)
    for path in log.directory.glob("p0000/*.data"):
        os.truncate(path, 0)
    with EmbeddedLog(log.directory) as again:
        assert again.append(rows(99)) == 9
        assert (again.start(), again.end(), values_in(again)) == (8, 9, [99])
    os.truncate(log.directory / "p0000" / "index", 0)
    with EmbeddedLog(log.directory) as again:
        assert again.end() == 8
        assert again.append(rows(50, 51)) == 10
        assert values_in(again) == [50, 51]


@pytest.mark.parametrize("step", range(4))
def test_a_crash_at_any_step_of_a_compaction_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """The compaction of a copy is ended before its nth change on disk; what the disk then holds is opened."""
    log = one_file_a_row(tmp_path / "s", 600)
    done = 0

    class Crash(BaseException):
        pass

    def unless_crashed(real):
        def call(*arguments):
            nonlocal done
            if done == step:
                raise Crash
            done += 1
            return real(*arguments)

        return call

    monkeypatch.setattr(files, "write_beside", unless_crashed(files.write_beside))
    monkeypatch.setattr(Path, "replace", unless_crashed(Path.replace))
    folder = log.directory / "p0000"
    (folder / "trimmed").write_text("550")
    with pytest.raises(Crash):
        compaction.compact(folder, EmbeddedLog(log.directory)._indexes[0])
    monkeypatch.undo()
    log.close()
    with EmbeddedLog(log.directory) as again:
        assert again.append(rows(0), key=AppendKey("even", 598)) == 600
        assert again.append(rows(0), key=AppendKey("odd", 549)) == 600
        assert again.append(rows(600), key=AppendKey("even", 600)) == 601
        assert (again.start(), values_in(again)) == (550, list(range(550, 601)))


def test_a_compaction_that_fails_leaves_the_log_appending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    log = one_file_a_row(tmp_path / "s", 600)
    (log.directory / "p0000" / "batches").mkdir()  # the side file cannot take its place
    assert log.trim(0, 550) == 550
    assert "the index was not compacted" in caplog.text
    assert log.append(rows(600)) == 601
    (log.directory / "p0000" / "batches").rmdir()
    assert log.append(rows(601)) == 602
    assert values_in(EmbeddedLog(log.directory)) == list(range(550, 602))


def test_a_reader_does_not_keep_files_mapped_that_were_trimmed(tmp_path: Path) -> None:
    log = one_file_a_row(tmp_path / "s", 100)
    reader = EmbeddedLog(log.directory)
    assert values_in(reader) == list(range(100))
    assert len(reader._maps) == 16
    log.trim(0, 95)
    assert log.append(rows(100)) == 101
    assert values_in(reader) == list(range(95, 101))
    assert sorted(file for _, file in reader._maps) == list(range(95, 101))


def test_odd_numbers_of_key_buckets_are_counted_too(tmp_path: Path) -> None:
    schema = pa.schema([("k", pa.int32())])
    log = EmbeddedLog.create(tmp_path / "s", schema, LogConfig(key="k", key_buckets=7))
    for first in range(0, 50, 10):
        log.append(pa.record_batch([pa.array(range(first, first + 10), pa.int32())], schema=schema))
    counts = log.header_arrays(0, 0, 50).key_counts
    assert counts is not None
    assert (counts.shape, counts.sum()) == ((5, 7), 50)


def test_interrupted_appends_leave_nothing_half_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = EmbeddedLog.create(tmp_path / "s", SCHEMA, LogConfig(segment_rows=1), fsync="always")
    log.append(rows(1))
    real, calls = os.fsync, 0

    def interrupted(handle: int) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:  # the index is written, not yet synced
            raise KeyboardInterrupt
        real(handle)

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        log.append(rows(2, 3))
    assert log.end() == 1
    assert log.append(rows(4)) == 2
    assert values_in(EmbeddedLog(log.directory)) == [1, 4]


def test_nulls_where_none_may_be_and_keys_without_text_are_refused(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("value", pa.int64(), nullable=False)])
    log = EmbeddedLog.create(tmp_path / "s", schema)
    with pytest.raises(InvalidInputError, match="1 nulls in value, which has none"):
        log.append(pa.record_batch([pa.array([1, None])], schema=schema))
    assert log.end() == 0
    nested = pa.schema([("k", pa.struct([("a", pa.int32())]))])
    with pytest.raises(InvalidInputError, match="the key's values can be written as text; got: k is struct"):
        EmbeddedLog.create(tmp_path / "t", nested, LogConfig(key="k"))
    with pytest.raises(InvalidInputError, match="a column's name is used once"):
        EmbeddedLog.create(tmp_path / "t", pa.schema([("a", pa.int32()), ("a", pa.int32())]))


def test_threads_append_to_one_log_without_losing_rows(tmp_path: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    log = EmbeddedLog.create(tmp_path / "s", SCHEMA, LogConfig(segment_rows=3))
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda worker: [log.append(rows(worker * 50 + i)) for i in range(50)], range(4)))
    assert sorted(values_in(log)) == list(range(200))
    assert np.array_equal(log.header_arrays(0, 0, 200).first_position, np.arange(200))
