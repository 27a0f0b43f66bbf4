"""Governed queries under AvailableNow: they wait for their turns and end with everything processed."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from tests.spark.helpers import (
    begin,
    committed,
    create,
    ended,
    every_row,
    fill,
    ids,
    journal_offsets,
    offsets,
    readings,
    run_now,
    to_files,
    to_memory,
    until,
    windows,
    windows_of,
)

import penstock

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

pytestmark = pytest.mark.spark


def to_files_now(frame: DataFrame, folder: Path) -> StreamingQuery:
    """Runs a query under AvailableNow to its end; its results are parquet files."""
    writer = frame.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
    return run_now(writer.option("path", str(folder / "results")))


def test_it_ends_with_all_that_was_there_and_closes_windows_and_the_next_run_takes_the_rest(
    spark: SparkSession, tmp_path: Path
) -> None:
    log = create(tmp_path / "readings", partitions=2, segment_rows=500)
    fill(log, range(3000))
    with penstock.attach(spark, {"log": tmp_path, "classes": {"gold": {"target": "1s"}}}) as flow:
        results = windows(flow.read_stream("readings", cls="gold"))
        first = to_files_now(results, tmp_path / "now")
        assert offsets(first)[-1].end == {0: 1500, 1: 1500}
        fill(log, range(3000, 4000))
        second = to_files_now(results, tmp_path / "now")
        assert sum(offsets(second)[-1].end.values()) == 4000
        third = to_files_now(results, tmp_path / "now")
        assert not any(report["numInputRows"] for report in third.recentProgress), "there was nothing new"
    assert every_row(spark.read.parquet(str(tmp_path / "now" / "results"))) == windows_of(range(4000))
    (grants,) = journal_offsets(tmp_path / "readings").values()
    assert grants[-1].books.admitted == 4000
    began, completed = committed(tmp_path / "now" / "checkpoint")
    assert began == completed


def test_it_takes_rows_that_are_older_than_the_target_and_stops_at_the_end_it_began_with(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A nightly run is for what has waited: shedding it as late would leave nothing to process."""
    log = create(tmp_path / "readings", segment_rows=500)
    hour_ago_us = int((time.time() - 3600) * 1e6)
    for part in np.array_split(np.arange(5000), 4):
        log.append(readings(part), arrival_us=np.full(part.size, hour_ago_us))
    with penstock.attach(spark, {"log": tmp_path, "classes": {"gold": {"target": "1s"}}}) as flow:
        stream = flow.read_stream("readings", cls="gold")
        writer = stream.writeStream.format("memory").queryName("old_rows").trigger(availableNow=True)
        query = begin(writer.start)
        fill(log, range(5000, 6000))
        ended(query)
        until(lambda: flow.status().classes["gold"].waiting == 1000, "what came later is left")
        status = flow.status().to_json()["classes"]["gold"]
    assert ids(spark.table("old_rows")) == list(range(5000))
    assert (status["admitted"], status["shed"]) == (5000, 0)


def test_it_waits_for_its_turn_beside_a_query_that_runs_on(spark: SparkSession, tmp_path: Path) -> None:
    fill(create(tmp_path / "readings", segment_rows=500), range(3000))
    classes = {"gold": {"target": "1s", "priority": 9}, "bulk": {"target": "30s"}}
    with penstock.attach(spark, {"log": tmp_path, "classes": classes}) as flow:
        running = to_memory(flow.read_stream("readings", cls="gold", query="running"), "runs_on")
        to_files_now(flow.read_stream("readings", cls="bulk", query="now"), tmp_path / "now")
        until(lambda: spark.table("runs_on").count() == 3000, "the other query's end", running)
        assert running.isActive
    assert ids(spark.read.parquet(str(tmp_path / "now" / "results"))) == list(range(3000))


def test_a_join_ends_although_one_stream_is_longer_and_the_other_grows_meanwhile(
    spark: SparkSession, tmp_path: Path
) -> None:
    short, long = create(tmp_path / "short"), create(tmp_path / "long", segment_rows=500)
    fill(short, range(200))
    fill(long, range(3000), appends=6)
    with penstock.attach(spark, {"log": tmp_path, "classes": {"gold": {"target": "1s"}}}) as flow:
        readers = flow.query("both", cls="gold")
        left, right = readers.read_stream("short"), readers.read_stream("long")
        joined = left.select("id").join(right.select("id", "k"), "id")
        writer = joined.writeStream.format("memory").queryName("now_joined").trigger(availableNow=True)
        query = begin(writer.start)
        fill(short, range(200, 1200))
        ended(query)
        until(lambda: flow.status().classes["gold"].waiting == 1000, "what came later is left")
    assert ids(spark.table("now_joined")) == list(range(200))


def test_flow_stop_ends_a_query_that_waits_for_its_turn(spark: SparkSession, tmp_path: Path) -> None:
    fill(create(tmp_path / "readings"), range(3000))
    flow = penstock.attach(spark, {"log": tmp_path, "classes": {"gold": {"target": "30s"}}})
    stream = flow.read_stream("readings", cls="gold")
    slow = stream.where("reflect('java.lang.Thread', 'sleep', bigint(1)) IS NULL")
    holding = to_files(slow, tmp_path / "holding")
    until(lambda: any(q["running"] for q in flow.status().to_json()["classes"]["gold"]["queries"].values()))
    waiting = begin(
        stream.writeStream.format("noop").trigger(availableNow=True).start,
        asked=lambda _: len(flow.status().to_json()["classes"]["gold"]["queries"]) == 2,
    )
    flow.stop()
    assert not holding.isActive
    assert not waiting.isActive
    began, completed = committed(tmp_path / "holding" / "checkpoint")
    assert began == completed
