"""A begun backfill is finished, or given up, if the log has lost rows since. Needs PySpark, but no JVM."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote, urlparse

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.lanes.test_lane import READER, Shedding, lose_the_last_append, shed_three_times
from tests.segments import headers

from penstock.lanes.progress import LaneProgress, Stretch
from penstock.lanes.windows import Windows
from penstock.streams.registry import ReaderRegistry
from penstock.vocabulary.errors import InvalidInputError

pytest.importorskip("pyspark")

from penstock.backfill import work
from penstock.backfill.revisions import ParquetRevisions, stage
from penstock.backfill.work import Backfilled, backfill

WINDOWS = Windows("at", 10)


class Results:
    """Stands for results of Spark: always the same three rows."""

    @property
    def write(self) -> Any:
        return SimpleNamespace(parquet=self._write)

    def drop(self, column: str) -> Results:
        return self

    def _write(self, place: str) -> None:
        folder = Path(unquote(urlparse(place).path))
        folder.mkdir(parents=True)
        pq.write_table(pa.table({"id": [1, 2, 3]}), folder / "part.parquet")


@pytest.fixture(autouse=True)
def no_jvm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "read_parts", lambda *_, **__: Results())
    for name in ("check_stateless", "check_windows"):
        monkeypatch.setattr(work, name, lambda *_: None)


@pytest.fixture
def shedding(tmp_path: Path) -> Iterator[Shedding]:
    made = Shedding(tmp_path / "log", file_bytes=1)
    yield made
    made.close()


@pytest.fixture
def sink(tmp_path: Path) -> ParquetRevisions:
    return ParquetRevisions(tmp_path / "more")


def begun(shedding: Shedding, sink: ParquetRevisions, last: int, windowed: bool = False) -> Stretch:
    stretch = Stretch(1, 1, last, sink.name, windowed)
    with shedding.store.held():
        shedding.store.begin(LaneProgress(), stretch)
    return stretch


def staged(shedding: Shedding, sink: ParquetRevisions, stretch: Stretch) -> Path:
    results: Any = Results()
    folder = sink.staging(READER, shedding.store.folder)
    stage(results, folder, READER, stretch)
    return folder


def run(
    shedding: Shedding, sink: ParquetRevisions, windows: Windows | None = None, **more: Any
) -> Backfilled:
    spark: Any = None
    return backfill(spark, shedding.folder, READER, lambda rows: rows, sink, windows, **more)


@pytest.mark.parametrize("windows", [None, WINDOWS], ids=["stateless", "windowed"])
@pytest.mark.parametrize("published", [False, True], ids=["staged", "published"])
def test_results_that_are_there_are_finished_although_the_log_has_lost_their_rows(
    shedding: Shedding, sink: ParquetRevisions, windows: Windows | None, published: bool
) -> None:
    shed_three_times(shedding)
    stretch = begun(shedding, sink, 3, windows is not None)
    folder = staged(shedding, sink, stretch)
    if published:
        sink.publish(folder, READER, stretch)
    lose_the_last_append(shedding)
    shedding.append(50)
    done = run(shedding, sink, windows)
    assert (done.revisions, done.rows, done.left) == ((1,), 90, 0)
    assert pq.read_table(sink.path / "revision=1" / "part.parquet")["id"].to_pylist() == [1, 2, 3]
    progress = shedding.store.load(shedding.read_journal())
    assert (progress.done, progress.pending, progress.revision) == (3, None, 1)
    assert not folder.exists()


def test_grants_after_a_finished_one_are_still_refused(shedding: Shedding, sink: ParquetRevisions) -> None:
    shed_three_times(shedding)
    staged(shedding, sink, begun(shedding, sink, 2))
    lose_the_last_append(shedding)
    with pytest.raises(InvalidInputError, match=f"grant 3 of {READER} ends at position 150"):
        run(shedding, sink, ended=True)
    assert shedding.store.load(shedding.read_journal()).done == 2


def test_rows_that_were_run_count_although_some_are_trimmed_and_others_lost(
    shedding: Shedding, sink: ParquetRevisions
) -> None:
    for _ in range(3):
        shedding.append(50)
    shedding.grant(late={0: 150})
    staged(shedding, sink, begun(shedding, sink, 1))
    shedding.log.trim(0, 50)
    lose_the_last_append(shedding)
    done = run(shedding, sink)
    assert (done.rows, done.gone, done.left) == (150, 0, 0)


@pytest.mark.parametrize("windows", [None, WINDOWS], ids=["stateless", "windowed"])
def test_a_backfill_whose_rows_are_lost_before_it_has_results_is_given_up_so_that_earlier_rows_can_be_run(
    shedding: Shedding, sink: ParquetRevisions, windows: Windows | None
) -> None:
    shed_three_times(shedding)
    begun(shedding, sink, 3, windows is not None)
    until_s = headers(shedding.log, 0, 50, 100)[0].arrival_max_us / 1e6
    lose_the_last_append(shedding)
    with pytest.raises(InvalidInputError, match=r"grant 3 of .*\(--until\)"):
        run(shedding, sink, windows, ended=True)
    assert shedding.store.load(shedding.read_journal()) == LaneProgress(revision=1)
    if windows is None:
        done = run(shedding, sink, until_s=until_s)
        assert (done.revisions, done.rows, done.left) == ((2,), 60, 30)


def test_a_backfill_that_was_begun_comes_first_while_its_rows_are_there(
    shedding: Shedding, sink: ParquetRevisions
) -> None:
    shed_three_times(shedding)
    begun(shedding, sink, 2)
    done = run(shedding, sink, until_s=0.0)
    assert (done.revisions, done.rows, done.left) == ((1,), 60, 30)


def test_the_journal_of_a_reader_that_ended_goes_with_the_last_rows_of_its_lane(
    shedding: Shedding, sink: ParquetRevisions
) -> None:
    shed_three_times(shedding)
    shedding.journal.close()
    registry = ReaderRegistry(shedding.log)
    registry.advance(READER, {0: 150}, {0: 0})
    registry.retire(READER)
    until_s = headers(shedding.log, 0, 50, 100)[0].arrival_max_us / 1e6
    assert run(shedding, sink, until_s=until_s).left == 30
    assert shedding.store.has_journal
    assert run(shedding, sink).left == 0
    assert not shedding.store.has_journal
    assert registry.readers() == []
