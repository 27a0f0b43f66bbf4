"""Backfill on Spark: results become those of all rows, and a kill adds nothing twice."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from tests.segments import headers, read
from tests.spark.helpers import begin, ids
from tests.waits import until

from penstock.backfill.query import backfill_query
from penstock.backfill.revisions import LogRevisions, ParquetRevisions, newest
from penstock.backfill.work import backfill, read_lane
from penstock.grants.journal import JournalWriter, read_journal
from penstock.grants.offset import Books, Offset
from penstock.grants.plans import KEEP_ALL, ShedPlan, plan_for
from penstock.grants.selection import grant_books, select
from penstock.lanes.lane import shed_rows
from penstock.lanes.progress import Stretch
from penstock.lanes.windows import Windows
from penstock.pipeline.spec.load import load_pipeline
from penstock.spark.driver.flow import Flow, attach
from penstock.streams.embedded.log import EmbeddedLog
from penstock.streams.layout import LogConfig
from penstock.streams.registry import ReaderRegistry
from penstock.vocabulary.errors import InvalidInputError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = pa.schema([("id", pa.int64()), ("device", pa.string()), ("at", pa.timestamp("us", tz="UTC"))])
RESULTS = pa.schema([("id", pa.int64()), ("twice", pa.int64()), ("revision", pa.int64())])
READER = "hot-0123456789ab"
DAY_S = 1_700_000_000 // 60 * 60


class Shedding:
    """A stream of two partitions and a reader whose grants are made by hand, as a source writes them."""

    def __init__(self, root: Path, file_bytes: int = 1 << 20) -> None:
        self.root, self.folder = root, root / "readings"
        config = LogConfig(partitions=2, key="device", segment_rows=500, file_bytes=file_bytes)
        self.log = EmbeddedLog.create(self.folder, SCHEMA, config)
        self.offset = Offset.initial(READER, {0: 0, 1: 0})
        self.journal = JournalWriter(self.folder / "plans", READER)
        self.rows, self.step_s = 0, 0.01

    def __enter__(self) -> Shedding:
        return self

    def __exit__(self, *_: object) -> None:
        self.journal.close()
        self.log.close()

    def append(self, rows: int) -> None:
        """Rows for both partitions, their event times a step apart."""
        for p in (0, 1):
            ids = np.arange(self.rows, self.rows + rows)
            at = (DAY_S * 1e6 + ids * self.step_s * 1e6).astype(np.int64)
            columns = [pa.array(ids), [f"d{i % 5}" for i in ids], pa.array(at, SCHEMA.field("at").type)]
            self.log.append(pa.record_batch(columns, schema=SCHEMA), p)
            self.rows += rows

    def grant(self, plan: ShedPlan = KEEP_ALL, late_rows: int = 0, poison: bool = False) -> None:
        end = {p: self.log.end(p) for p in (0, 1)}
        late = {p: min(self.offset.end[p] + late_rows, end[p]) for p in end}
        draft = self.offset.advanced(end, late, plan, Books())
        books = grant_books(self.log, draft, select(self.log, draft))
        self.offset = replace(draft, books=self.offset.books.plus(books))
        self.journal.proposed(self.offset)
        self.journal.planned(self.offset)
        if poison:
            self.journal.set_aside(self.offset, books.admitted)
        ReaderRegistry(self.log).advance(READER, self.offset.end, {0: 0, 1: 0})

    def grants(self) -> None:
        """Some of each kind; the last rows close all windows before them."""
        self.append(2000)
        self.grant(plan_for(0.4, "row", 1), late_rows=300)
        self.append(2000)
        self.grant()
        self.append(3000)
        self.grant(plan_for(0.1, "auto", 2))
        self.append(1000)
        self.grant(plan_for(0.5, "key", 3, 64), poison=True)
        self.append(100)
        self.grant()

    def shed(self) -> list[int]:
        """Ids of the rows in the lane."""
        entries = read_journal(self.journal.path).logged()
        pieces = [piece for entry in entries for piece in shed_rows(self.log, entry)]
        return sorted(i for piece in pieces for i in piece.rows.column("id").to_pylist())

    def counts(self, without: Sequence[int] = ()) -> dict[tuple[int, str], tuple[int, int]]:
        """By window of ten seconds and device, rows and the sum of their ids."""
        found: dict[tuple[int, str], tuple[int, int]] = {}
        for i in sorted(set(range(self.rows)) - set(without)):
            key = (DAY_S + int(i * self.step_s) // 10 * 10, f"d{i % 5}")
            rows, total = found.get(key, (0, 0))
            found[key] = (rows + 1, total + i)
        return found


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[Shedding]:
    """No rows yet."""
    with Shedding(tmp_path / "log", file_bytes=1) as made:
        yield made


@pytest.fixture
def shedding(tmp_path: Path) -> Iterator[Shedding]:
    with Shedding(tmp_path / "log") as made:
        made.grants()
        yield made


def twice(rows: DataFrame) -> DataFrame:
    return rows.selectExpr("id", "id * 2 AS twice")


def per_window(rows: DataFrame) -> DataFrame:
    from pyspark.sql.functions import count, window
    from pyspark.sql.functions import sum as total

    grouped = rows.withWatermark("at", "1 second").groupBy(window("at", "10 seconds"), "device")
    return grouped.agg(count("*").alias("rows"), total("id").alias("total"))


WINDOWS = Windows("at", 10, lateness_s=1)


def counts(frame: DataFrame) -> dict[tuple[int, str], tuple[int, int]]:
    """Results of `per_window`; a window twice would be lost here, so rows are counted too."""
    found = frame.selectExpr("unix_seconds(window.start)", "device", "rows", "total").collect()
    assert len({tuple(row[:2]) for row in found}) == len(found)
    return {(row[0], row[1]): (row[2], row[3]) for row in found}


def test_shed_rows_are_appended_with_their_revision(spark: SparkSession, shedding: Shedding) -> None:
    shed = shedding.shed()
    assert 0 < len(shed) < shedding.rows
    done = backfill(
        spark, shedding.root, "hot", twice, shedding.root.parent / "more", stretch_rows=2000, ended=True
    )
    results = spark.read.parquet(str(shedding.root.parent / "more"))
    assert ids(results) == shed
    assert {row.revision for row in results.select("revision").distinct().collect()} == set(done.revisions)
    assert (done.rows, done.result_rows, done.gone, done.left) == (len(shed), len(shed), 0, 0)
    assert len(done.revisions) > 1
    assert ReaderRegistry(shedding.log).readers()[0].pinned == {}
    again = backfill(spark, shedding.root, READER, twice, shedding.root.parent / "more", ended=True)
    assert (again.rows, again.revisions) == (0, ())


def test_the_newest_revision_of_each_window_is_the_aggregate_of_all_rows(
    spark: SparkSession, shedding: Shedding
) -> None:
    kept = shedding.counts(without=shedding.shed())
    rows = [({"start": at(k[0]), "end": at(k[0] + 10)}, k[1], *v) for k, v in kept.items()]
    kind = "window struct<start: timestamp, end: timestamp>, device string, rows bigint, total bigint"
    streamed = spark.createDataFrame(rows, kind)
    place = shedding.root.parent / "more"
    done = backfill(spark, shedding.root, "hot", per_window, place, WINDOWS)
    assert (done.windows, done.incomplete_windows, done.open_windows, done.left) == (12, 0, 0, 0)
    merged = newest(streamed, spark.read.parquet(str(place)))
    assert counts(merged) == shedding.counts()


def at(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def test_windows_that_overlap_are_computed_from_all_their_rows_and_others_left(
    spark: SparkSession, empty: Shedding, tmp_path: Path
) -> None:
    from pyspark.sql.functions import window

    shedding = empty
    shedding.append(10_000)  # up to second 200
    shedding.grant()
    shedding.append(10_000)  # to 400: the partitions begin at 200 and 300
    shedding.grant(late_rows=500)

    def sliding(rows: DataFrame) -> DataFrame:
        return rows.groupBy(window("at", "30 seconds", "10 seconds")).count()

    place = tmp_path / "more"
    done = backfill(spark, shedding.root, "hot", sliding, place, Windows("at", 30, 10), ended=True)
    results = spark.read.parquet(str(place)).selectExpr("unix_seconds(window.start)", "count").collect()
    starts = [DAY_S + s for s in (180, 190, 200, 280, 290, 300)]
    assert sorted(tuple(row) for row in results) == [(start, 3000) for start in starts]
    assert done.windows == 6
    with pytest.raises(InvalidInputError, match="has a column with the window"):
        backfill(spark, shedding.root, "hot", twice, place, Windows("at", 30, 10))


def test_open_windows_wait_and_their_rows_stay_pinned(spark: SparkSession, shedding: Shedding) -> None:
    shedding.append(1000)
    shedding.grant(late_rows=1000)
    place = shedding.root.parent / "more"
    done = backfill(spark, shedding.root, "hot", per_window, place, WINDOWS)
    assert (done.windows, done.open_windows, done.left) == (12, 3, 2000)
    pinned = ReaderRegistry(shedding.log).readers()[0].pinned
    assert all(0 < pinned[p] <= shedding.offset.start[p] for p in (0, 1))
    shedding.append(3000)
    shedding.grant()
    done = backfill(spark, shedding.root, "hot", per_window, place, WINDOWS)
    assert (done.windows, done.open_windows, done.left) == (3, 0, 0)
    results, wanted = counts(spark.read.parquet(str(place))), shedding.counts()
    assert len(results) == 15 * 5
    assert results == {key: wanted[key] for key in results}


def test_trimmed_rows_are_reported_as_gone(spark: SparkSession, empty: Shedding, tmp_path: Path) -> None:
    shedding = empty
    shedding.grants()
    shed = shedding.shed()
    for p in (0, 1):
        shedding.log.trim(p, 2000)
    left = shedding.shed()
    done = backfill(spark, shedding.root, "hot", twice, tmp_path / "more")
    assert (done.rows, done.gone) == (len(left), len(shed) - len(left))
    assert done.gone > 0
    assert ids(spark.read.parquet(str(tmp_path / "more"))) == left


class Interrupted(BaseException):
    """Stands for a process that ends at once."""


class DyingParquet(ParquetRevisions):
    def __init__(self, path: Path, when: str) -> None:
        super().__init__(path)
        self.when = when

    def publish(self, staged: Path, reader: str, stretch: Stretch) -> int:
        if self.when == "before":
            raise Interrupted
        super().publish(staged, reader, stretch)
        raise Interrupted


class DyingLog(LogRevisions):
    def _chunks(self, staged: Path) -> Iterator[pa.RecordBatch]:
        yield next(super()._chunks(staged))
        raise Interrupted


@pytest.mark.parametrize(("kind", "when"), [("parquet", "before"), ("parquet", "after"), ("stream", "after")])
def test_a_backfill_that_ended_in_the_middle_goes_on_and_adds_nothing_twice(
    spark: SparkSession, shedding: Shedding, tmp_path: Path, kind: str, when: str
) -> None:
    shed, place = shedding.shed(), tmp_path / "more"
    if kind == "stream":
        EmbeddedLog.create(place, RESULTS).close()
    dying = DyingParquet(place, when) if kind == "parquet" else DyingLog(place)
    with pytest.raises(Interrupted):
        backfill(spark, shedding.root, "hot", lambda rows: twice(rows).repartition(3), dying)
    with pytest.raises(InvalidInputError, match="a backfill that was begun is finished first"):
        backfill(spark, shedding.root, "hot", twice, tmp_path / "elsewhere")
    done = backfill(spark, shedding.root, "hot", twice, place)
    assert (done.rows, done.revisions, done.left) == (len(shed), (1,), 0)
    if kind == "parquet":
        assert ids(spark.read.parquet(str(place))) == shed
        assert not list(place.glob("_staging*"))
    else:
        log = EmbeddedLog(place)
        rows = pa.Table.from_batches([read(log, h) for h in headers(log, 0, 0, log.end())])
        assert sorted(rows["id"].to_pylist()) == shed
        assert set(rows["revision"].to_pylist()) == {1}
        assert not list((shedding.folder / "lanes").glob("*.staged"))


def test_a_pipelines_query_is_backfilled_into_its_stream(
    spark: SparkSession, shedding: Shedding, tmp_path: Path
) -> None:
    columns = {"id": "long", "device": "string", "at": "timestamp"}
    query = {"class": "gold", "sql": "SELECT id FROM readings WHERE id < 1000"}
    config = {
        "log": shedding.root,
        "classes": {"gold": {"target": "2s", "shed_lane": True}},
        "streams": {
            "readings": {"schema": columns, "event_time": "at"},
            "low": {"schema": {"id": "long"}},
        },
        "queries": {"hot": {**query, "sink": {"kind": "log", "stream": "low"}}},
    }
    low = EmbeddedLog.create(shedding.root / "low", pa.schema([("id", pa.int64())]))
    (done,) = backfill_query(spark, load_pipeline(config), "hot")
    assert done.left == 0
    (segment,) = headers(low, 0, 0, low.end())
    assert sorted(read(low, segment)["id"].to_pylist()) == [i for i in shedding.shed() if i < 1000]
    for broken, message in (
        ({"sink": "console"}, "results of a backfill go to files or a stream"),
        ({"sql": "SELECT nothing FROM readings"}, "query hot runs over a batch of rows"),
        ({"sql": "SELECT device, count(*) FROM readings GROUP BY device"}, "whose length is known"),
    ):
        config["queries"] = {"hot": {**query, **broken}}
        with pytest.raises(InvalidInputError, match=message):
            list(backfill_query(spark, load_pipeline(config), "hot"))


@pytest.mark.parametrize(
    ("query", "windows", "message"),
    [
        (per_window, None, "a backfill without windows is of a stateless query; got: a query with Aggregate"),
        (twice, Windows("device", 10), "event time is a timestamp column"),
        (per_window, Windows("at", 7), "the given windows are the windows of the query"),
    ],
)
def test_what_cannot_end_well_is_refused(
    spark: SparkSession, shedding: Shedding, query: object, windows: Windows | None, message: str
) -> None:
    with pytest.raises(InvalidInputError, match=message):
        backfill(spark, shedding.root, "hot", query, shedding.root.parent / "more", windows)  # type: ignore
    assert not list((shedding.root.parent / "more").glob("revision=*"))


def test_a_sink_that_cannot_take_results_is_refused(
    spark: SparkSession, shedding: Shedding, tmp_path: Path
) -> None:
    (tmp_path / "streamed" / "_spark_metadata").mkdir(parents=True)
    with pytest.raises(InvalidInputError, match="a directory of their own"):
        backfill(spark, shedding.root, "hot", twice, tmp_path / "streamed")
    with pytest.raises(InvalidInputError, match="a directory of this machine"):
        backfill(spark, shedding.root, "hot", twice, "hdfs://there/results")
    EmbeddedLog.create(tmp_path / "narrow", pa.schema([("id", pa.int64())])).close()
    with pytest.raises(InvalidInputError, match=r"unknown \['twice'\]"):
        backfill(spark, shedding.root, "hot", twice, tmp_path / "narrow")
    with pytest.raises(InvalidInputError, match="has a column revision"):
        backfill(spark, shedding.root, "hot", per_window, tmp_path / "narrow", WINDOWS)


def test_metadata_columns_are_there_and_null_where_they_are_unknown(
    spark: SparkSession, shedding: Shedding
) -> None:
    lane = read_lane(spark, shedding.root, "hot", metadata=True).collect()
    assert sorted(row.id for row in lane) == shedding.shed()
    row = min(lane, key=lambda row: row.id)
    assert (row["_position"], row["_seq"], row["_sic"], row["_weight"]) == (0, None, None, 1.0)
    assert row["_arrival"] is not None


def test_what_an_overloaded_query_sheds_is_made_good_by_a_backfill(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The whole way: rows older than the target are shed by the control plane, and run afterwards."""
    log = EmbeddedLog.create(tmp_path / "log" / "readings", SCHEMA, LogConfig(segment_rows=500))
    config = {"log": tmp_path / "log", "classes": {"gold": {"target": "5s", "shed_lane": True}}}
    with attach(spark, config) as flow:
        append_old(log)
        results = twice(flow.read_stream("readings", cls="gold", query="hot"))
        writer = results.writeStream.format("parquet").option("path", str(tmp_path / "results"))
        begin(writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start)

        def shed() -> bool:
            """Whether a row was shed; its cost is learned first, of what is kept."""
            if wait_until_read(flow, log.end())["shed"]:
                return True
            append_old(log)
            return False

        until(shed, "rows that are shed", flow.status)
    log.close()
    kept = ids(spark.read.parquet(str(tmp_path / "results")))
    assert ReaderRegistry(log).readers()[0].pinned
    done = backfill(spark, tmp_path / "log", "hot", twice, tmp_path / "more", ended=True)
    assert done.rows == log.end() - len(kept) > 0
    assert sorted(kept + ids(spark.read.parquet(str(tmp_path / "more")))) == list(range(log.end()))


def append_old(log: EmbeddedLog, rows: int = 5000) -> None:
    """Rows that arrived an hour ago: no target can be kept for them."""
    numbers = np.arange(log.end(), log.end() + rows)
    at = pa.array(numbers * 1000, SCHEMA.field("at").type)
    batch = pa.record_batch([pa.array(numbers), [f"d{i % 5}" for i in numbers], at], schema=SCHEMA)
    log.append(batch, arrival_us=np.full(rows, int((time.time() - 3600) * 1e6)))


def wait_until_read(flow: Flow, rows: int) -> dict[str, Any]:
    """The gold query's status, once it has read so many rows and rests."""

    def read() -> dict[str, Any] | None:
        query = next(iter(flow.status().to_json()["classes"]["gold"]["queries"].values()), None)
        if query is not None and query["offered"] >= rows and not (query["waiting"] or query["running"]):
            return dict(query)
        return None

    found = until(read, f"{rows} rows read", flow.status)
    assert found is not None
    return found
