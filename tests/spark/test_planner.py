"""The planner of a governed source: its journal, its place in the reader registry, who owns them. No JVM."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.grants.grant import Grant
from penstock.grants.journal import read_journal
from penstock.grants.offset import Books, Offset
from penstock.grants.plans import KEEP_ALL, SCALE, SamplePlan, ShedPlan
from penstock.lanes.progress import LaneProgress, LaneStore, Stretch
from penstock.spark.source.options import SourceOptions
from penstock.spark.source.planner import Planner
from penstock.spark.source.tasks import ReadTask, read_task
from penstock.streams.embedded.log import EmbeddedLog
from penstock.streams.layout import LogConfig
from penstock.streams.registry import ReaderRegistry
from penstock.vocabulary.errors import InvalidInputError

HALF = SamplePlan("row", row_keep=SCALE // 2, seed=3)

Plans = Callable[..., Planner]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EmbeddedLog]:
    """A thousand rows, a data file for every ten."""
    config = LogConfig(segment_rows=10, file_bytes=1)
    with EmbeddedLog.create(tmp_path / "s", pa.schema([("v", pa.int64())]), config) as log:
        for first in range(0, 1000, 10):
            log.append(pa.record_batch({"v": list(range(first, first + 10))}))
        yield log


@pytest.fixture
def plans(log: EmbeddedLog, monkeypatch: pytest.MonkeyPatch) -> Iterator[Plans]:
    """Planners as Spark starts them, each a process of its own in truth."""
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # a planner sets its own
    monkeypatch.setattr("penstock.spark.source.planner.PROGRESS_EVERY_S", 0.0)
    monkeypatch.setattr("penstock.grants.journal.WAIT_S", 0.0, raising=False)
    made: list[Planner] = []

    def start(**options: object) -> Planner:
        place = str(log.directory)
        made.append(Planner(replace(SourceOptions(place, place, query="hot"), **options)))
        return made[-1]

    yield start
    for planner in made:
        planner.close()


def batch(
    planner: Planner, start: Offset, end: int, plan: ShedPlan = KEEP_ALL, late: int = 0
) -> tuple[Offset, list[int]]:
    """A micro-batch as Spark runs it: the offset, and the values read."""
    planner._journal_of(start)
    planner.progress(start)
    offset = planner._propose(start, Grant({0: end}, {0: late}, plan))
    return offset, run(planner, start, offset)


def run(planner: Planner, start: Offset, offset: Offset) -> list[int]:
    tasks = planner.tasks(offset, start)
    found = [rows for task in tasks if isinstance(task, ReadTask) for rows in read_task(task)]
    return [value for rows in found for value in rows.column("v").to_pylist()]


# -- journals ---------------------------------------------------------------------------------------


def test_a_journal_stays_short_however_many_grants_there_are(
    plans: Plans, log: EmbeddedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.grants.journal.CUT_BYTES", 2000, raising=False)
    monkeypatch.setattr("os.fsync", lambda _: None)
    planner = plans()
    offset = planner.initial()
    sizes = []
    for end in range(5, 1001, 5):
        offset, _ = batch(planner, offset, end, HALF)
        sizes.append((log.directory / "plans" / f"{offset.reader}.jsonl").stat().st_size)
    assert max(sizes) < 5000
    planner.close()
    assert len(run(plans(), offset, offset)) > 0, "the planner after it knows its last grant"
    entries = read_journal(log.directory / "plans" / f"{offset.reader}.jsonl").entries
    assert entries[200].attempts == 2
    assert 199 in entries


def test_a_lane_keeps_the_grants_it_needs_until_they_are_backfilled(
    plans: Plans, log: EmbeddedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.grants.journal.CUT_BYTES", 2000, raising=False)
    monkeypatch.setattr("os.fsync", lambda _: None)
    planner = plans(shed_lane=True)
    offset = planner.initial()
    admitted: list[int] = []
    for end in range(5, 501, 5):
        offset, read = batch(planner, offset, end, HALF if end > 250 else KEEP_ALL)
        admitted += read
    store = LaneStore(log.directory, offset.reader)
    journal = store.journal()
    assert min(journal.entries) > 20, "grants that shed nothing are not needed"
    assert min(journal.entries) <= 51
    assert store.lane(ended=True).rows == offset.books.sampled == 500 - len(admitted)
    store.folder.mkdir()
    store.finish(LaneProgress(), journal, Stretch(1, 1, 100, "here"), store.lane(True).rows, 0, {})
    for end in range(505, 1001, 5):
        offset, _ = batch(planner, offset, end)
    journal = store.journal()
    assert min(journal.entries) > 150
    assert store.load(journal).done == 100, "it was the same grant when it was cut off"
    assert store.lane(ended=True).rows == 0


# -- owners -----------------------------------------------------------------------------------------


def test_a_copied_checkpoint_is_refused_while_the_query_it_was_copied_from_runs(
    plans: Plans, log: EmbeddedLog
) -> None:
    planner = plans()
    first, _ = batch(planner, planner.initial(), 100)
    second, _ = batch(planner, first, 300)
    planner.progress(first)
    copy = plans()
    for ask in (copy.next, copy.tasks):
        with pytest.raises(InvalidInputError, match=r"used by one query at a time.*new checkpointLocation"):
            ask(second)
    assert ReaderRegistry(log).readers()[0].positions == {0: 100}, "the copy moved nothing"
    planner.close()
    assert copy.next(second) is not None, "the query may go on elsewhere once it has ended"


# -- a checkpoint that is put back ------------------------------------------------------------------


def test_rows_that_a_checkpoint_put_back_needs_again_are_not_trimmed(plans: Plans, log: EmbeddedLog) -> None:
    planner = plans()
    first, _ = batch(planner, planner.initial(), 200)
    second, _ = batch(planner, first, 600)
    planner.progress(second)
    planner.close()
    again = plans()
    third, read = batch(again, first, 600)
    assert read == list(range(200, 600))
    ReaderRegistry(log).trim()
    assert run(again, first, third) == list(range(200, 600))
    assert third.books == Books(admitted=600)
    again.progress(third)
    again.progress(first)
    assert ReaderRegistry(log).readers()[0].positions == {0: 600}, "only the first word goes back"


def test_a_batch_that_is_run_again_keeps_its_rows_before_it_is_planned(
    plans: Plans, log: EmbeddedLog
) -> None:
    planner = plans()
    first, _ = batch(planner, planner.initial(), 200)
    second, _ = batch(planner, first, 600)
    planner.progress(second)
    planner.close()
    again = plans()
    again.tasks(second, first)
    ReaderRegistry(log).trim()
    assert run(again, first, second) == list(range(200, 600))


def test_admitted_rows_that_were_trimmed_before_their_batch_count_as_expired(
    plans: Plans, log: EmbeddedLog, caplog: pytest.LogCaptureFixture
) -> None:
    planner = plans()
    first, _ = batch(planner, planner.initial(), 200, HALF)
    second, whole = batch(planner, first, 600, HALF, late=250)
    planner.progress(second)
    planner.close()
    ReaderRegistry(log).trim()
    log.trim(0, 400)
    again = plans()
    read = run(again, first, second)
    assert read == [value for value in whole if value >= log.start(0)]
    assert "count as expired" in caplog.text
    third, more = batch(again, second, 700, HALF)
    lost = len(whole) - len(read)
    assert lost > 0
    assert third.books.expired == second.books.expired + lost
    assert third.books.admitted == second.books.admitted - lost + len(more)
    assert third.books.offered == 700
    again.close()
    later = plans()
    assert run(later, second, third) == more
    assert batch(later, third, 800)[0].books.expired == third.books.expired, "they are counted once"
