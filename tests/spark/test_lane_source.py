"""Rows of a shed lane say of themselves that they were not drawn: all of them are there."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import MagicMock

import pyarrow as pa
import pytest
from tests.spark.test_backfill import READER, WINDOWS, Shedding

import penstock
from penstock.backfill.lane_source import LanePart, LaneReader, LaneTask, read_parts, read_task, shed_parts
from penstock.backfill.work import backfill
from penstock.grants.journal import Entry
from penstock.grants.offset import Offset
from penstock.grants.plans import plan_for
from penstock.grants.selection import Range, read_range
from penstock.lanes.lane import shed_rows
from penstock.spark.source.metadata import spark_schema
from penstock.streams.embedded.log import EmbeddedLog
from penstock.streams.layout import LogConfig
from penstock.streams.protocol import DRAWN, KEPT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = pa.schema([("v", pa.int64()), ("at", pa.timestamp("us", tz="UTC"))])
METADATA = ("_sic", "_weight", KEPT, DRAWN)
EXACT = {"within": 0.0, "unit": None, "contrast": 0.0, "known": True, "expected": 0.0, "doubt": 0.0}
ALL = Range(0, 0, 100, 0)


def rows() -> list[pa.Array]:
    return [pa.array(range(100), pa.int64()), pa.array(range(100), SCHEMA.field("at").type)]


def read(task: LaneTask) -> pa.Table:
    return pa.Table.from_batches(list(read_task(task)))


def test_windows_that_are_computed_anew_have_an_exact_estimate(tmp_path: Path) -> None:
    with EmbeddedLog.create(tmp_path / "s", SCHEMA) as log:
        log.append(pa.record_batch(rows(), schema=SCHEMA))
    found = read(LaneTask(str(tmp_path / "s"), [LanePart(ALL)], {}, METADATA, "at", ([20], [60])))
    assert found.column("v").to_pylist() == list(range(20, 60))
    assert found.column(DRAWN).to_pylist() == [EXACT] * 40
    assert set(found.column("_weight").to_pylist()) == set(found.column(KEPT).to_pylist()) == {1.0}
    assert found.column("_sic").null_count == 40, "a window spans grants"
    assert found.schema.names == spark_schema(SCHEMA, METADATA).fieldNames()


def test_what_a_grant_dropped_was_not_drawn_either(tmp_path: Path) -> None:
    plan = plan_for(0.4, "row", 1)
    offset = Offset("r", {0: 0}, {0: 100}, grant=1, plan=plan)
    with EmbeddedLog.create(tmp_path / "s", SCHEMA) as log:
        log.append(pa.record_batch(rows(), schema=SCHEMA))
        kept = {v for piece in read_range(log, plan, ALL) for v in piece.rows.column("v").to_pylist()}
    found = read(LaneTask(str(tmp_path / "s"), [LanePart(ALL, 1)], {1: Entry(offset, 1)}, METADATA))
    assert 0 < found.num_rows < 100
    assert set(found.column("v").to_pylist()) == set(range(100)) - kept
    assert found.column(DRAWN).to_pylist() == [EXACT] * found.num_rows


def test_what_the_writer_of_a_shared_stream_had_sampled_stays_without_an_interval(tmp_path: Path) -> None:
    weights = [1.0 if i < 30 else 4.0 for i in range(100)]
    with EmbeddedLog.create(tmp_path / "s", SCHEMA, LogConfig(origin=True)) as log:
        origin = [pa.array(values) for values in ([0.01] * 100, weights, [0.5] * 100)]
        log.append(pa.RecordBatch.from_arrays([*rows(), *origin], schema=log.append_schema))
    found = read(LaneTask(str(tmp_path / "s"), [LanePart(ALL)], {}, METADATA, "at", ([0], [100])))
    assert [drawn["known"] for drawn in found.column(DRAWN).to_pylist()] == [w == 1.0 for w in weights]
    assert found.column("_weight").to_pylist() == weights
    assert set(found.column(KEPT).to_pylist()) == {0.5}, "the backfill adds what was shed here, not there"


def test_many_small_grants_make_no_long_option(tmp_path: Path) -> None:
    """Spark copies options into its plans and events."""
    with EmbeddedLog.create(tmp_path / "s", SCHEMA) as log:
        log.append(pa.record_batch(rows(), schema=SCHEMA))
        entries = [
            Entry(Offset("r", {0: at}, {0: at + 1}, grant=at + 1, plan=plan_for(0.5, "row", at)), 1)
            for at in range(100)
        ]
        parts = shed_parts(log, entries)
        dropped = [
            v for e in entries for piece in shed_rows(log, e) for v in piece.rows.column("v").to_pylist()
        ]
    assert 10 < len(dropped) < 90
    spark = MagicMock()
    spark.sparkContext.defaultParallelism = 2
    (tmp_path / "tasks").mkdir()
    read_parts(spark, str(tmp_path / "s"), parts, entries, folder=tmp_path / "tasks")
    ((name, option),) = [call.args for call in spark.read.format.return_value.option.call_args_list]
    assert name == "lane"
    assert len(option) < 1000
    tasks = LaneReader(option).partitions()
    found = [read(task) for task in tasks if isinstance(task, LaneTask)]
    assert [v for table in found for v in table.column("v").to_pylist()] == dropped


@pytest.mark.spark
def test_a_backfill_of_a_query_with_estimates_makes_them_exact(spark: SparkSession, tmp_path: Path) -> None:
    with Shedding(tmp_path / "log") as shedding:
        shedding.grants()

    def estimated(rows: DataFrame) -> DataFrame:
        from pyspark.sql.functions import window

        by = [window("at", "10 seconds"), "device"]
        return penstock.estimate(rows.withWatermark("at", "1 second"), "id", by, ["count", "sum"])

    place = tmp_path / "more"
    done = backfill(spark, shedding.root, READER, estimated, place, WINDOWS, metadata=METADATA)
    assert done.windows > 0
    found = spark.read.parquet(str(place)).selectExpr("unix_seconds(window.start) AS start", "*").collect()
    truth = shedding.counts()
    assert len(found) >= done.windows
    for row in found:
        rows, total = truth[row["start"], row["device"]]
        assert (row["count_low"], row["count"], row["count_high"]) == (rows, rows, rows)
        assert (row["sum_low"], row["sum"], row["sum_high"]) == (total, total, total)
        assert (row["count_error"], row["sic"], row["interval"]) == (0.0, 1.0, "nothing was shed")
