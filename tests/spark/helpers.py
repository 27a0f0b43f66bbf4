"""Streams, queries and waits that the tests of governed queries share."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as every Spark program has it
from pyspark.sql.streaming import StreamingQuery
from tests import waits

from penstock.control.client import ControlSilentError
from penstock.grants.journal import read_journal
from penstock.grants.offset import Offset
from penstock.log.embedded import EmbeddedLog
from penstock.log.writer import LogConfig
from penstock.spark.flow import Flow
from penstock.spark.starting import start_in_turn

READINGS = pa.schema([("id", pa.int64()), ("k", pa.int64()), ("ts", pa.timestamp("us", tz="UTC"))])
DAY_S = 1_700_000_000 // 60 * 60
STEP_S = 0.01
"""Event time from one id to the next."""

Found = TypeVar("Found")


def until(done: Callable[[], Found], what: str = "it", query: StreamingQuery | None = None) -> Found:
    """What `done` gives, once it gives something; a query that must not fail meanwhile."""

    def found() -> Found | None:
        assert query is None or query.exception() is None, query.exception()
        try:
            return done()
        except ControlSilentError:  # a control plane that was killed comes back
            return None

    return cast("Found", waits.until(found, what))


def create(folder: Path, partitions: int = 1, **layout: Any) -> EmbeddedLog:
    """A stream of readings."""
    return EmbeddedLog.create(folder, READINGS, LogConfig(partitions=partitions, **layout))


def readings(ids: range | np.ndarray) -> pa.RecordBatch:
    numbers = np.asarray(ids, np.int64)
    at_us = (DAY_S * 1e6 + numbers * STEP_S * 1e6).astype(np.int64)
    columns = [pa.array(numbers), pa.array(numbers % 7), pa.array(at_us, READINGS.field("ts").type)]
    return pa.record_batch(columns, schema=READINGS)


def fill(log: EmbeddedLog, ids: range, appends: int = 1) -> None:
    """Ids in turn to the log's partitions, in several appends."""
    for part in np.array_split(np.asarray(ids), appends):
        for p in range(log.partitions):
            log.append(readings(part[part % log.partitions == p]), p)


def to_memory(frame: DataFrame, name: str, **options: str) -> StreamingQuery:
    """A query whose results are the table `name`; it asks for rows, or has ended."""
    return start_in_turn(frame.writeStream.format("memory").queryName(name).options(**options).start)


def to_files(frame: DataFrame, folder: Path) -> StreamingQuery:
    """A query whose results are parquet files, each row once, also when it is started again."""
    writer = frame.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
    return start_in_turn(writer.option("path", str(folder / "results")).start)


def windows(frame: DataFrame) -> DataFrame:
    """Rows, their sum and their largest by window of ten seconds and key; also of a plain batch."""
    late = frame.withWatermark("ts", "1 second") if frame.isStreaming else frame
    grouped = late.groupBy(F.window("ts", "10 seconds"), "k")
    return grouped.agg(F.count("*").alias("n"), F.sum("id").alias("total"), F.max("id").alias("top"))


def ids(frame: DataFrame) -> list[int]:
    return sorted(row.id for row in frame.select("id").collect())


def every_row(frame: DataFrame) -> Counter[tuple]:
    return Counter(tuple(row) for row in frame.collect())


def query_status(flow: Flow, name: str) -> dict[str, Any] | None:
    """The status of the only query of this name."""
    queries = [q for c in flow.status()["classes"].values() for q in c["queries"].values()]
    found = [q for q in queries if q["name"] == name]
    assert len(found) < 2
    return found[0] if found else None


def rows_of(flow: Flow, name: str, what: str = "admitted") -> int:
    found = query_status(flow, name)
    return 0 if found is None else int(found[what])


def check_books(flow: Flow, streams: dict[str, int]) -> None:
    """Every reader that began at the first row: offered = admitted + shed + waiting = the rows of its log."""
    seen = set()
    for cls in flow.status()["classes"].values():
        for query in cls["queries"].values():
            for reader in query["readers"].values():
                seen.add(reader["stream"])
                assert reader["offered"] == reader["admitted"] + reader["shed"] + reader["waiting"], reader
                assert reader["offered"] == streams[reader["stream"]], reader
    assert seen <= set(streams)


def offsets(query: StreamingQuery, source: int = 0) -> list[Offset]:
    """End offsets of the micro-batches in Spark's progress reports, oldest first."""
    return [offset for report in query.recentProgress if (offset := end_of(dict(report), source))]


def end_of(report: dict[str, Any], source: int = 0, which: str = "endOffset") -> Offset | None:
    found = report["sources"][source][which]
    found = json.loads(found) if isinstance(found, str) else found
    return None if found is None else Offset.from_json(found)


def journal_offsets(stream: Path) -> dict[str, list[Offset]]:
    """By reader, the grants that Spark ran, from the plan journals."""
    found = {path.stem: read_journal(path).logged() for path in sorted((stream / "plans").glob("*.jsonl"))}
    return {reader: [entry.offset for entry in entries] for reader, entries in found.items()}


def committed(checkpoint: Path) -> tuple[set[str], set[str]]:
    """Batches that Spark began and batches that it completed, by its own logs."""

    def numbers(folder: str) -> set[str]:
        return {path.name for path in (checkpoint / folder).iterdir() if path.name.isdigit()}

    return numbers("offsets"), numbers("commits")


def alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()
