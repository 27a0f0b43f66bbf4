"""Rows that Spark's watermark drops as late lower the query's SIC."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from tests.spark.helpers import (
    begin,
    create,
    drain,
    fill,
    last_batch,
    query_status,
    readings,
    to_memory,
    until,
    windows,
)

import penstock
from penstock.grants.offset import Books, Offset
from penstock.spark.driver.lateness import LateRule
from penstock.spark.driver.watermark_losses import (
    EventTimes,
    ProgressListener,
    dropped_rows,
    watermark_of,
    window_of,
)
from penstock.streams.embedded.log import EmbeddedLog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CLASSES = {"gold": {"target": "60s"}}


def report(log: EmbeddedLog, dropped: int, rows: int, operator: str = "stateStoreSave") -> dict[str, Any]:
    start = Offset.initial("r", {0: 0}, "s")
    end = start.advanced({0: log.end(0)}, {}, start.plan, Books(rows))
    source = {"startOffset": start.to_json(), "endOffset": json.dumps(end.to_json())}
    other = {"startOffset": 3, "endOffset": 7}
    return {
        "stateOperators": [{"operatorName": operator, "numRowsDroppedByWatermark": dropped}],
        "sources": [source, other],
        "numInputRows": rows,
        "eventTime": {"watermark": "1970-01-01T00:00:10.500Z"},
    }


def test_rows_are_counted_in_the_log_where_the_plan_says_when_they_are_late(tmp_path: Path) -> None:
    log = create(tmp_path / "readings")
    log.append(readings(range(100)))
    progress = report(log, 1, 100)
    middle_us = int(readings(range(50, 51)).column("ts").cast(pa.int64())[0].as_py())
    times = EventTimes({"s": LateRule("ts")}, {"s": str(log.directory)})
    assert dropped_rows(progress, times, middle_us) == {("r", 1): 51}
    assert dropped_rows(progress, None, middle_us) == {("r", 1): 1}, "at least the one that Spark saw"
    assert dropped_rows(progress, times, None) == {("r", 1): 1}
    assert dropped_rows(progress, times, 0) == {("r", 1): 1}, "Spark knows better than the rule"
    assert dropped_rows(report(log, 500, 100), None, None) == {("r", 1): 100}
    by_row = report(log, 80, 100, "dedupe")
    assert dropped_rows(by_row, times, middle_us) == {("r", 1): 80}, "it drops by another rule"
    twice = {**report(log, 80, 100), "numInputRows": 200}
    assert dropped_rows(twice, None, None) == {("r", 1): 40}, "two branches of a plan read the stream"
    assert watermark_of(progress) == 10_500_000
    assert watermark_of({"eventTime": {}}) is None


def window(size: int, slide: int, back: int = 0, start: int = 0) -> str:
    """A window as Spark's plans have it."""
    micros = "precisetimestampconversion(ts#0-T1000ms, TimestampType, LongType)"
    rest = f"(({micros} - {start}) % {slide})"
    begin = f"(({micros} - CASE WHEN ({rest} < 0) THEN ({rest} + {slide}) ELSE {rest} END) - {back})"
    both = (begin, f"({begin} + {size})")
    start_at, end_at = (f"precisetimestampconversion({text}, LongType, TimestampType)" for text in both)
    return f"named_struct(start, knownnullable({start_at}), end, knownnullable({end_at}))"


@pytest.mark.parametrize(
    ("texts", "found"),
    [
        ({"k#1", "(k#1 > 3)"}, (0, 0, 0)),
        ({"k#1", window(10, 10)}, (10, 10, 0)),
        ({window(10, 10, start=3)}, (10, 10, 3)),
        ({window(10, 5), window(10, 5, back=5)}, (10, 5, 0)),
        ({window(10, 10), window(60, 60)}, None),
        ({"session_window#3"}, None),
        ({"precisetimestampconversion(ts#0, TimestampType, LongType)"}, None),
    ],
)
def test_windows_are_known_from_the_plan_if_they_are_of_one_kind(
    texts: set[str], found: tuple[int, int, int] | None
) -> None:
    assert window_of(texts) == found


def test_a_report_tells_the_grants_of_its_batch_also_if_nothing_was_dropped_or_it_cannot_be_counted(
    spark: SparkSession, tmp_path: Path
) -> None:
    log = create(tmp_path / "readings")
    log.append(readings(range(100)))
    heard: list[tuple[int, dict[tuple[str, int], float]]] = []
    listener = ProgressListener(spark, lambda *ended: heard.append(ended))
    try:
        names = {"id": "not an id of Spark's", "runId": "run", "batchId": 3}
        listener._look({**report(log, 0, 100), **names})
        assert heard.pop() == (3, {("r", 1): 0.0})
        with pytest.raises(Exception, match="UUID"):
            listener._look({**report(log, 40, 100), **names})
        assert heard.pop() == (3, {("r", 1): 0.0})
        listener._look({**report(log, 0, 100), **names, "sources": []})
        assert not heard, "a query that nobody governs"
    finally:
        listener.stop()


def of_batches(run: Path, query: str) -> list[dict[str, Any]]:
    """The lines of a query's micro-batches; of two with the same grants the later one holds."""
    written, _, _ = (run / "sic.jsonl").read_text().rpartition("\n")  # one may be under way
    lines = map(json.loads, written.splitlines())
    return list({str(line["grants"]): line for line in lines if line["query"] == query}.values())


def lines_of(run: Path, query: str, last: int, reader: str) -> dict[int, dict[str, Any]]:
    """By grant, the lines of a reader's micro-batches, once each up to the last has Spark's number."""

    def found() -> dict[int, dict[str, Any]]:
        return {line["grants"][reader]: line for line in of_batches(run, query) if line["key"] == reader}

    def numbers() -> list[int]:
        return [line["batch"] for line in found().values()]

    until(lambda: numbers() == list(range(last + 1)), f"numbers up to {last}")
    return found()


def test_two_queries_of_one_dataframe_have_lines_by_the_batch_ids_of_each(
    spark: SparkSession, tmp_path: Path
) -> None:
    log = create(tmp_path / "readings")
    config = {"log": tmp_path, "classes": CLASSES, "run": tmp_path / "run"}
    with penstock.attach(spark, config) as flow:
        both = flow.read_stream("readings", cls="gold", query="both")
        queries = [to_memory(both, "one_of_both"), to_memory(both.where("k = 1"), "other_of_both")]
        for first in (0, 500):
            fill(log, range(first, first + 500))
            drain(flow)
        for query in queries:
            last, end = last_batch(query)
            mine = lines_of(tmp_path / "run", "both", last, end.reader)
            assert mine[end.grant]["batch"] == last
            assert sum(line["rows"] for line in mine.values()) == 1000


def test_a_batch_that_failed_and_is_run_again_has_a_line_as_all_others(
    spark: SparkSession, tmp_path: Path
) -> None:
    log = create(tmp_path / "readings")
    config = {"log": tmp_path, "classes": CLASSES, "run": tmp_path / "run"}
    failed: list[int] = []

    def fail_once(_: object, batch: int) -> None:
        if batch == 1 and not failed:
            failed.append(batch)
            raise ValueError("once")

    with penstock.attach(spark, config) as flow:
        stream = flow.read_stream("readings", cls="gold", query="again")
        writer = stream.writeStream.foreachBatch(fail_once).option("checkpointLocation", str(tmp_path / "c"))
        query = begin(writer.start)
        fill(log, range(100))
        drain(flow)
        fill(log, range(100, 300))
        until(lambda: query.exception() is not None, "the failure")
        query = begin(writer.start)
        fill(log, range(300, 400))
        drain(flow)
        last, end = last_batch(query)
        lines = lines_of(tmp_path / "run", "again", last, end.reader)
    assert sum(line["rows"] for line in lines.values()) == 400


def test_late_rows_are_missing_and_rows_of_open_windows_are_not(spark: SparkSession, tmp_path: Path) -> None:
    log = create(tmp_path / "readings")
    config = {"log": tmp_path, "classes": CLASSES, "stw": "10min", "run": tmp_path / "run"}
    with penstock.attach(spark, config) as flow:
        by_window = flow.read_stream("readings", cls="gold", query="by_window")
        by_row = flow.read_stream("readings", cls="gold", query="by_row")
        to_memory(windows(by_window), "late_by_window")
        renamed = by_row.withColumnRenamed("ts", "at").withWatermark("at", "1 second")
        to_memory(renamed.dropDuplicates(["id", "at"]), "late_by_row")
        for ids in (range(3000), range(3000, 4000)):
            fill(log, ids)
            drain(flow)
        for name in ("by_window", "by_row"):
            found = query_status(flow, name)
            assert found is not None
            assert (found["sic"], found["dropped_by_watermark"]) == (1.0, 0)
        late = np.concatenate([np.arange(4000, 4400), np.arange(500), np.arange(3000, 3100)])
        log.append(readings(late))
        drain(flow)

        def booked(name: str, lost: int) -> bool:
            found = query_status(flow, name)
            assert found is not None
            sic = found["sic"]
            return bool(found["dropped_by_watermark"] == lost and sic == pytest.approx(1 - lost / 5000))

        until(lambda: booked("by_window", 500), "the windows before the watermark are closed")
        until(lambda: booked("by_row", 600), "every row before the watermark is late")
    for name, lost in (("by_window", 500), ("by_row", 600)):
        lines = of_batches(tmp_path / "run", name)
        assert sum(line["dropped_by_watermark"] for line in lines) == lost
        fell = [line for line in lines if line["dropped_by_watermark"]]
        for line in fell:
            assert line["sic_batch"] == pytest.approx(1 - line["dropped_by_watermark"] / line["rows"])
        assert all(line["sic_batch"] == 1.0 for line in lines if line not in fell)
