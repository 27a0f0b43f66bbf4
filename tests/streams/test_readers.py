"""The registry of readers: durable progress, and retention that follows it."""

from __future__ import annotations

import fcntl
from pathlib import Path

import pyarrow as pa
import pytest
from tests.segments import headers

from penstock.streams.embedded.log import EmbeddedLog
from penstock.streams.layout import LogConfig
from penstock.streams.registry import Reader, ReaderRegistry
from penstock.testing import ManualClock
from penstock.vocabulary.errors import InvalidInputError, UnknownNameError

SCHEMA = pa.schema([("value", pa.int64())])


@pytest.fixture
def log(tmp_path: Path) -> EmbeddedLog:
    config = LogConfig(partitions=2, segment_rows=1, file_bytes=1)
    log = EmbeddedLog.create(tmp_path / "readings", SCHEMA, config, clock=ManualClock(5.0))
    for partition in (0, 1):
        for value in range(10):
            log.append(pa.record_batch([[value]], schema=SCHEMA), partition)
    return log


def test_progress_is_durable_and_never_goes_back(log: EmbeddedLog) -> None:
    registry = ReaderRegistry(log)
    registry.advance("fraud", {0: 4})
    registry.advance("fraud", {0: 3, 1: 2})
    (reader,) = ReaderRegistry(EmbeddedLog(log.directory)).readers()
    assert (reader.name, dict(reader.positions), reader.seen_s) == ("fraud", {0: 4, 1: 2}, 5.0)


def test_rows_go_when_every_reader_is_past_them(log: EmbeddedLog) -> None:
    registry = ReaderRegistry(log)
    registry.advance("fast", {0: 9, 1: 9})
    registry.advance("slow", {0: 3})
    assert registry.trim() == {0: 3, 1: 0}
    registry.advance("slow", {0: 6, 1: 6})
    assert registry.trim() == {0: 6, 1: 6}
    assert [s.first_position for s in headers(log, 0, log.start(0), log.end(0))] == [6, 7, 8, 9]


def test_a_pin_keeps_rows_that_the_reader_is_past(log: EmbeddedLog) -> None:
    registry = ReaderRegistry(log)
    registry.advance("lane", {0: 8, 1: 8}, pinned={0: 2})
    assert registry.trim() == {0: 2, 1: 8}
    registry.advance("lane", {0: 9})
    assert registry.trim()[0] == 2
    registry.advance("lane", {}, pinned={})
    assert registry.trim()[0] == 9


def test_without_a_reader_nothing_is_trimmed(log: EmbeddedLog) -> None:
    assert ReaderRegistry(log).trim() == {0: 0, 1: 0}


def test_a_reader_that_is_forgotten_holds_nothing_back(log: EmbeddedLog) -> None:
    registry = ReaderRegistry(log)
    registry.advance("gone", {0: 0})
    registry.advance("here", {0: 7, 1: 7})
    assert registry.trim()[0] == 0
    registry.forget("gone")
    assert registry.trim()[0] == 7
    with pytest.raises(UnknownNameError, match="did you mean 'here'"):
        registry.forget("her")


def test_names_and_partitions_that_cannot_be_are_refused(log: EmbeddedLog) -> None:
    registry = ReaderRegistry(log)
    with pytest.raises(InvalidInputError, match="a reader's name"):
        registry.advance("../elsewhere", {0: 0})
    with pytest.raises(InvalidInputError, match="partitions 0 to 1; got: 2"):
        registry.advance("ok", {2: 0})
    for name in ("../stream", "../readings", "", "."):
        with pytest.raises(InvalidInputError, match="a reader's name"):
            registry.forget(name)
    assert (log.directory / "stream.json").exists()
    assert registry.readers() == []


def test_progress_goes_back_where_that_is_asked_for(log: EmbeddedLog) -> None:
    registry = ReaderRegistry(log)
    registry.advance("fraud", {0: 8, 1: 8}, pinned={0: 3})
    registry.advance("fraud", {0: 5}, back=True)
    (reader,) = registry.readers()
    assert (dict(reader.positions), dict(reader.pinned)) == ({0: 5, 1: 8}, {0: 3})


def test_a_reader_that_ended_keeps_only_what_is_pinned_for_it(log: EmbeddedLog) -> None:
    registry = ReaderRegistry(log)
    registry.advance("ended", {0: 1, 1: 1}, pinned={0: 1})
    registry.advance("unpinned", {0: 0, 1: 0})
    registry.advance("here", {0: 9, 1: 9})
    registry.retire("ended")
    registry.retire("unpinned")
    registry.retire("nobody")
    assert [reader.name for reader in registry.readers()] == ["ended", "here"]
    assert registry.trim() == {0: 1, 1: 9}
    registry.advance("ended", {}, pinned={0: 4})
    assert registry.trim() == {0: 4, 1: 9}
    registry.advance("ended", {}, pinned={})
    assert registry.trim() == {0: 9, 1: 9}
    assert [reader.name for reader in registry.readers()] == ["here"], "its lane is empty: it is forgotten"


def test_a_reader_that_ended_and_comes_back_is_a_reader_again(log: EmbeddedLog) -> None:
    registry = ReaderRegistry(log)
    registry.advance("back", {0: 6, 1: 6}, pinned={0: 5})
    registry.retire("back")
    registry.advance("back", {0: 6}, pinned={})
    assert registry.trim() == {0: 6, 1: 6}
    assert [reader.name for reader in registry.readers()] == ["back"]


def test_a_change_reads_and_writes_while_nobody_else_changes(log: EmbeddedLog) -> None:
    """A planner tells progress and pins what it sheds, while a backfill moves the pins of the same reader."""
    registry, held = ReaderRegistry(log), []
    registry.advance("lane", {0: 0})
    load = registry._load

    def watched(name: str) -> Reader | None:
        with (registry.folder / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                held.append(False)
            except BlockingIOError:
                held.append(True)
        return load(name)

    registry._load = watched  # type: ignore[method-assign]
    registry.advance("lane", {0: 8, 1: 8}, pinned={0: 4})
    registry.pin("lane", {0: 2, 1: 7})
    registry.pin("lane", {0: 3})
    registry.retire("lane")
    assert held == [True] * 4
    (reader,) = ReaderRegistry(log).readers()
    assert (dict(reader.positions), dict(reader.pinned)) == ({0: 8, 1: 8}, {0: 2, 1: 7})
