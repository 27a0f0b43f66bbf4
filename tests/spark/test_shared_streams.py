"""Shared streams: a stream of one class's results, which classes below it read like the source."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from tests.segments import headers, read
from tests.spark.helpers import (
    LONGEST_S,
    READINGS,
    StopWhen,
    begin,
    create,
    drain,
    fill,
    has_admitted,
    ids,
    query_status,
    readings,
    to_memory,
    until,
)
from tests.waits import PATIENCE_S

import penstock
from penstock.grants.plans import KEEP_ALL
from penstock.grants.sampling_units import Drawn, drawn_column
from penstock.grants.selection import Range, read_range
from penstock.grants.sic import row_sic
from penstock.pipeline.run.runner import run_pipeline
from penstock.pipeline.spec.load import load_pipeline
from penstock.spark.source.metadata import with_metadata
from penstock.streams.embedded.log import EmbeddedLog
from penstock.streams.layout import LogConfig
from penstock.streams.protocol import ORIGIN
from penstock.vocabulary.errors import InvalidInputError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CLASSES = {"gold": {"target": "20s", "priority": 6}, "bulk": {"target": "30s"}}


def arrivals(log: EmbeddedLog, column: str = "id") -> dict[int, int]:
    """By id, when a row arrived."""
    found: dict[int, int] = {}
    for p in range(log.partitions):
        for segment in headers(log, p, 0, log.end(p)):
            rows = read(log, segment)
            found |= zip(rows.column(column).to_pylist(), rows.column("_arrival").to_pylist(), strict=True)
    return found


def test_weights_and_kept_parts_of_a_shared_stream_multiply_and_a_part_of_its_sic_counts(
    tmp_path: Path,
) -> None:
    with EmbeddedLog.create(tmp_path / "hot", READINGS, LogConfig(origin=True)) as log:
        rows = readings(range(3))
        kept = pa.RecordBatch.from_arrays(
            [*rows.columns, *(pa.array(v) for v in ([0.1, 0.2, 0.3], [2.0, 4.0, 1.0], [0.5, 0.25, 1.0]))],
            schema=log.append_schema,
        )
        log.append(kept, arrival_us=np.array([10, 20, 30]))
        (piece,) = read_range(log, KEEP_ALL, Range(0, 0, 3, 0))
        shown = with_metadata(piece, ORIGIN, weight=5.0, sic=0.5, kept=0.2)
        assert shown.column("_kept").to_pylist() == pytest.approx([0.1, 0.05, 0.2])
        assert shown.column("_weight").to_pylist() == [10.0, 20.0, 5.0]
        assert shown.column("_sic").to_pylist() == [0.05, 0.1, 0.15]
        assert shown.column("_arrival").cast(pa.int64()).to_pylist() == [10, 20, 30]
        assert with_metadata(piece, (), 5.0, 0.9).schema.names == READINGS.names
        with pytest.raises(InvalidInputError, match=r"missing \['_sic', '_weight', '_kept'\]"):
            log.append(rows)


def test_rows_of_a_shared_stream_and_of_one_that_a_query_joins_have_a_sic_of_one_together(
    tmp_path: Path,
) -> None:
    stw_us, total = 10_000_000, 0.0
    at = np.arange(1, 101) * stw_us // 100  # one source time window
    with (
        EmbeddedLog.create(tmp_path / "hot", READINGS, LogConfig(origin=True)) as shared,
        EmbeddedLog.create(tmp_path / "plain", READINGS) as plain,
    ):
        origin = [pa.array(np.full(100, value)) for value in (0.01, 1.0, 1.0)]
        rows = pa.RecordBatch.from_arrays(
            [*readings(range(100)).columns, *origin], schema=shared.append_schema
        )
        shared.append(rows, arrival_us=at)
        plain.append(readings(range(100)), arrival_us=at)
        for log in (shared, plain):
            sic = row_sic(log, {0: 100}, stw_us, sources=2)
            (piece,) = read_range(log, KEEP_ALL, Range(0, 0, 100, 0))
            shown = with_metadata(piece, ("_sic",), 1.0, sic)
            found = sum(shown.column("_sic").to_pylist())
            assert found == pytest.approx(0.5, rel=0.02)
            total += found
    assert total == pytest.approx(1.0, rel=0.02)


def test_rows_that_a_shedder_chose_have_no_weight_behind_a_shared_stream_either(tmp_path: Path) -> None:
    with EmbeddedLog.create(tmp_path / "hot", READINGS, LogConfig(origin=True)) as log:
        columns = ([0.1, 0.2, 0.3], [None, 4.0, 1.0], [0.5, 0.25, 1.0])
        kept = [*readings(range(3)).columns, *(pa.array(values, pa.float64()) for values in columns)]
        log.append(pa.RecordBatch.from_arrays(kept, schema=log.append_schema))
        (piece,) = read_range(log, KEEP_ALL, Range(0, 0, 3, 0))
        assert with_metadata(piece, ("_weight",), 5.0, 0.9).column("_weight").to_pylist() == [None, 20.0, 5.0]
        known = drawn_column(Drawn(0.0, {}), 0, piece).field("known").to_pylist()
        assert known == [False, False, True], "only the last was sure to be kept"


def test_rows_of_a_stream_without_kept_parts_have_that_of_their_grant(tmp_path: Path) -> None:
    with EmbeddedLog.create(tmp_path / "plain", READINGS) as log:
        log.append(readings(range(3)))
        (piece,) = read_range(log, KEEP_ALL, Range(0, 0, 3, 0))
        assert with_metadata(piece, ("_kept",), 5.0, 0.9, kept=0.2).column("_kept").to_pylist() == [0.2] * 3


@pytest.mark.spark
def test_a_lower_class_reads_rows_that_arrived_when_those_they_come_from_did(
    spark: SparkSession, tmp_path: Path
) -> None:
    log, table = create(tmp_path / "readings", partitions=3), "low_rows"
    fill(log, range(2000), appends=5)
    with penstock.attach(spark, {"log": tmp_path, "classes": CLASSES}) as flow:
        source = flow.read_stream("readings", cls="gold", metadata=ORIGIN, query="writer")
        hot = source.where("k = 1")
        writer = hot.writeStream.foreachBatch(flow.share("hot", hot))
        begin(writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start)
        low = flow.read_stream("hot", cls="bulk", metadata=ORIGIN)
        to_memory(low, table)
        assert low.columns == [*READINGS.names, *ORIGIN]
        drain(flow)
        fill(log, range(2000, 3000))
        drain(flow)  # what waits upstream is waited for downstream
        wanted = [n for n in range(3000) if n % 7 == 1]
        assert ids(spark.table(table)) == wanted
        seen = spark.sql(f"SELECT id, unix_micros(_arrival) AS us, _weight, _sic FROM {table}").collect()
        origin = arrivals(log)
        assert {row.id: row.us for row in seen} == {n: origin[n] for n in wanted}
        assert {row["_weight"] for row in seen} == {1.0}
        assert all(0 < row["_sic"] <= 1 for row in seen)
        found = query_status(flow, "hot")
        assert found is not None
        assert found["offered"] == found["admitted"] == len(wanted)


@pytest.mark.spark
def test_a_shared_stream_that_breaks_a_rule_is_refused_before_anything_is_made(
    spark: SparkSession, tmp_path: Path
) -> None:
    create(tmp_path / "readings")
    with penstock.attach(spark, {"log": tmp_path, "classes": CLASSES}) as flow:
        plain = flow.read_stream("readings", cls="bulk")
        with pytest.raises(InvalidInputError, match="without _arrival, _sic, _weight, _kept; hint: re"):
            flow.share("hot", plain)
        both = flow.read_stream("readings", cls="gold", metadata=ORIGIN).union(
            flow.read_stream("readings", cls="bulk", metadata=ORIGIN)
        )
        with pytest.raises(
            InvalidInputError, match="comes from governed streams of one class; got: bulk and"
        ):
            flow.share("hot", both)
        assert not (tmp_path / "hot").exists()
        low = flow.read_stream("readings", cls="bulk", metadata=ORIGIN)
        flow.share("hot", low)
        with pytest.raises(InvalidInputError, match=r"hot is owned by bulk \(priority 1\); got: class gold"):
            flow.read_stream("hot", cls="gold")


@pytest.mark.spark
def test_a_class_is_taken_out_once_its_queries_have_stopped(spark: SparkSession, tmp_path: Path) -> None:
    log = create(tmp_path / "readings")
    fill(log, range(1000))
    with penstock.attach(spark, {"log": tmp_path, "classes": CLASSES}) as flow:
        kept = to_memory(flow.read_stream("readings", cls="gold"), "kept_by_removal")
        gone = to_memory(flow.read_stream("readings", cls="bulk"), "gone_by_removal")
        drain(flow)
        with pytest.raises(InvalidInputError, match="has no running queries; got: readings"):
            flow.remove_class("bulk")
        assert kept.isActive
        assert gone.isActive
        gone.stop()

        def removed() -> bool:
            try:
                flow.remove_class("bulk")
            except InvalidInputError:  # its source has not left yet
                return False
            return True

        until(removed, "the removal")
        fill(log, range(1000, 2000))
        drain(flow)
        assert ids(spark.table("kept_by_removal")) == list(range(2000))
        assert flow.status().to_json()["removed"]["bulk"]["admitted"] == 1000
        with pytest.raises(InvalidInputError, match="class must be one of gold; got: 'bulk'"):
            flow.read_stream("readings", cls="bulk")


@pytest.mark.spark
def test_a_pipeline_writes_shared_streams_by_passing_on_where_rows_come_from(
    spark: SparkSession, tmp_path: Path
) -> None:
    def find(rest: int, stream: str) -> dict[str, Any]:
        return {
            "class": "gold",
            "sql": f"SELECT n, _arrival, _sic, _weight, _kept FROM numbers WHERE n % 2 = {rest}",
            "metadata": list(ORIGIN),
            "sink": {"kind": "log", "stream": stream},
        }

    raw = {
        "log": str(tmp_path / "log"),
        "classes": CLASSES,
        "streams": {
            "numbers": {"schema": {"n": "long"}, "source": {"kind": "generator", "rate": 500}},
            "even": {"schema": {"n": "long"}},
            "odd": {},  # with the columns of the result
        },
        "queries": {
            "low": {
                "class": "bulk",
                "sql": "SELECT n, _arrival FROM odd",
                "metadata": ["_arrival"],
                "sink": {"kind": "memory", "name": "low_odd"},
            },
            "find_even": find(0, "even"),
            "find_odd": find(1, "odd"),
        },
    }
    stop = StopWhen(has_admitted(200, "low", "find_even"))
    report = run_pipeline(
        load_pipeline(raw), LONGEST_S, True, tmp_path / "run", stop, spark=spark, drain_s=PATIENCE_S
    )
    assert report["ok"], report["errors"]
    assert report["drained"]
    source = arrivals(EmbeddedLog(tmp_path / "log" / "numbers"), "n")
    even = arrivals(EmbeddedLog(tmp_path / "log" / "even"), "n")
    assert even == {n: us for n, us in source.items() if n % 2 == 0}
    seen = spark.sql("SELECT n, unix_micros(_arrival) AS us FROM low_odd").collect()
    assert {row.n: row.us for row in seen} == {n: us for n, us in source.items() if n % 2 == 1}
    assert set(report["plan"]["classes"]) == {"gold", "bulk"}


@pytest.mark.spark
def test_a_control_plane_that_replaces_a_dead_one_knows_who_owns_a_shared_stream(
    spark: SparkSession, tmp_path: Path
) -> None:
    create(tmp_path / "readings")
    with penstock.attach(spark, {"log": tmp_path, "classes": CLASSES}) as flow:
        low = flow.read_stream("readings", cls="bulk", metadata=ORIGIN)
        flow.share("hot", low)
        assert flow.control is not None
        before = flow.control.pid
        os.kill(before, signal.SIGKILL)
        until(lambda: flow.control is not None and flow.control.pid != before, "another control plane")

        def refused() -> bool:
            try:
                flow.read_stream("hot", cls="gold")
            except InvalidInputError as error:
                return "hot is owned by bulk" in str(error)
            return False

        until(refused, "the owner")
        flow.share("hot", low)  # again, as after a query that failed
