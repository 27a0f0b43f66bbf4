"""Streams, queries and waits that the tests of governed queries share."""

from __future__ import annotations

import json
import signal
import threading
from collections import Counter, defaultdict
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as every Spark program has it
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery
from tests import waits

from penstock.grants.journal import read_journal
from penstock.grants.offset import Offset
from penstock.host.client import ControlSilentError
from penstock.spark.driver.flow import Flow
from penstock.spark.driver.starting import start_in_turn
from penstock.streams.embedded.log import EmbeddedLog
from penstock.streams.layout import LogConfig
from penstock.vocabulary.status import Status

READINGS = pa.schema([("id", pa.int64()), ("k", pa.int64()), ("ts", pa.timestamp("us", tz="UTC"))])
DAY_S = 1_700_000_000 // 60 * 60
STEP_US = 10_000
"""Event time from one id to the next."""

Found = TypeVar("Found")

# -- waiting ---------------------------------------------------------------------------------------


def until(done: Callable[[], Found], what: str = "it", query: StreamingQuery | None = None) -> Found:
    """What `done` gives, once it gives something; a query that must not fail meanwhile."""

    def found() -> Found | None:
        assert query is None or query.exception() is None, query.exception()
        try:
            return done()
        except ControlSilentError:  # a control plane that was killed comes back
            return None

    def state() -> object:
        return found() if query is None else (found(), query.status, query.lastProgress)

    return cast("Found", waits.until(found, what, state))


def drain(flow: Flow) -> None:
    """Waits until nothing of a flow waits any more."""
    assert flow.drain(waits.PATIENCE_S), flow.status()


TRIES = 5
NOT_CONNECTED = "failed to connect back"


def again(starts: Callable[[], Found]) -> Found:
    """What a call gives that starts queries and waits for them.

    Spark gives a query's planner ten seconds to connect. A busy machine may need longer to start a Python
    process: then, and only then, the call is made again.
    """
    for _ in range(TRIES - 1):
        try:
            return starts()
        except Exception as error:
            if NOT_CONNECTED not in f"{error} {error.__cause__}":
                raise
    return starts()


def begin(
    start: Callable[[], StreamingQuery], asked: Callable[[StreamingQuery], object] | None = None
) -> StreamingQuery:
    """Starts a query and waits until it has asked for rows, or failed; again, if its planner was too late."""
    if asked is None:
        return start_in_turn(start)
    return start_in_turn(start, asks=lambda query: lambda: bool(asked(query)))


def run_now(writer: DataStreamWriter) -> StreamingQuery:
    """Runs a query under AvailableNow to its end."""
    query = begin(writer.trigger(availableNow=True).start)
    ended(query)
    return query


def ended(query: StreamingQuery) -> None:
    """Waits until a query has ended by itself."""
    until(lambda: not query.isActive, "the end of a query", query)
    assert query.exception() is None


LONGEST_S = 3600.0
"""A run goes on until its condition holds, however slow the machine is."""


class StopWhen:
    """`on_status` of a run that ends it, as a signal of a user does, once a condition on the status holds."""

    def __init__(self, done: Callable[[Status], object]) -> None:
        self._done, self.held = done, False
        assert threading.current_thread() is threading.main_thread(), "signals reach the main thread alone"

    def __call__(self, status: Status, at_s: float) -> None:
        assert at_s < waits.PROCESS_S, status
        if not self.held and self._done(status):
            self.held = True
            signal.raise_signal(signal.SIGTERM)


def has_admitted(rows: int, *queries: str) -> Callable[[Status], bool]:
    """A condition: each of these queries has had so many rows."""

    def done(status: Status) -> bool:
        found: Counter[str] = Counter()
        for cls in status.classes.values():
            for query in cls.queries.values():
                found[query.name] += query.admitted
        return all(found[name] >= rows for name in queries)

    return done


class KeptSession:
    """The tests' session for a command, which does not stop it: starting one takes most of its time."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def __getattr__(self, name: str) -> Any:
        return getattr(self._spark, name)

    def stop(self) -> None:
        """It goes on."""


# -- streams and queries ---------------------------------------------------------------------------


def create(folder: Path, partitions: int = 1, **layout: Any) -> EmbeddedLog:
    """A stream of readings."""
    return EmbeddedLog.create(folder, READINGS, LogConfig(partitions=partitions, **layout))


def readings(ids: range | np.ndarray) -> pa.RecordBatch:
    numbers = np.asarray(ids, np.int64)
    at_us = DAY_S * 1_000_000 + numbers * STEP_US
    columns = [pa.array(numbers), pa.array(numbers % 7), pa.array(at_us, READINGS.field("ts").type)]
    return pa.record_batch(columns, schema=READINGS)


def fill(log: EmbeddedLog, ids: range, appends: int = 1) -> None:
    """Ids in turn to the log's partitions, in several appends."""
    for part in np.array_split(np.asarray(ids), appends):
        for p in range(log.partitions):
            log.append(readings(part[part % log.partitions == p]), p)


def to_memory(frame: DataFrame, name: str, **options: str) -> StreamingQuery:
    """A query whose results are the table `name`; it asks for rows, or has ended."""
    return begin(frame.writeStream.format("memory").queryName(name).options(**options).start)


def to_files(frame: DataFrame, folder: Path) -> StreamingQuery:
    """A query whose results are parquet files, each row once, also when it is started again."""
    writer = frame.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
    return begin(writer.option("path", str(folder / "results")).start)


def windows(frame: DataFrame) -> DataFrame:
    """Rows, their sum and their largest by window of ten seconds and key."""
    grouped = frame.withWatermark("ts", "1 second").groupBy(F.window("ts", "10 seconds"), "k")
    return grouped.agg(F.count("*").alias("n"), F.sum("id").alias("total"), F.max("id").alias("top"))


def windows_of(numbers: range) -> Counter[tuple]:
    """What `windows` gives of the readings with these ids: the windows that the last of them has closed."""
    size_us, found = 10_000_000, defaultdict(list)
    for number in numbers:
        found[number * STEP_US // size_us, number % 7].append(number)
    watermark_us = numbers[-1] * STEP_US - 1_000_000
    return Counter(
        ((at(10 * window), at(10 * window + 10)), k, len(mine), sum(mine), max(mine))
        for (window, k), mine in found.items()
        if (window + 1) * size_us <= watermark_us
    )


def at(seconds: int) -> datetime:
    """A moment of the readings, as Spark gives it: without a time zone, in this machine's."""
    return (datetime.fromtimestamp(DAY_S, UTC) + timedelta(seconds=seconds)).astimezone().replace(tzinfo=None)


def ids(frame: DataFrame) -> list[int]:
    return sorted(row.id for row in frame.select("id").collect())


def every_row(frame: DataFrame) -> Counter[tuple]:
    return Counter(tuple(row) for row in frame.collect())


def query_status(flow: Flow, name: str) -> dict[str, Any] | None:
    """The status of the only query of this name."""
    queries = [q for c in flow.status().to_json()["classes"].values() for q in c["queries"].values()]
    found = [q for q in queries if q["name"] == name]
    assert len(found) < 2
    return found[0] if found else None


def rows_of(flow: Flow, name: str, what: str = "admitted") -> int:
    found = query_status(flow, name)
    return 0 if found is None else int(found[what])


def check_books(flow: Flow, streams: dict[str, int]) -> None:
    """Every reader that began at the first row: offered = admitted + shed + waiting = the rows of its log."""
    seen = set()
    for cls in flow.status().to_json()["classes"].values():
        for query in cls["queries"].values():
            for reader in query["readers"].values():
                seen.add(reader["stream"])
                assert reader["offered"] == reader["admitted"] + reader["shed"] + reader["waiting"], reader
                assert reader["offered"] == streams[reader["stream"]], reader
    assert seen <= set(streams)


def offsets(query: StreamingQuery, source: int = 0) -> list[Offset]:
    """End offsets of the micro-batches in Spark's progress reports, oldest first."""
    return [offset for report in query.recentProgress if (offset := end_of(dict(report), source))]


def last_batch(query: StreamingQuery) -> tuple[int, Offset]:
    """Number and end of a query's last micro-batch; Spark also reports when it has nothing to do."""
    ran = [r for r in map(dict, query.recentProgress) if end_of(r) != end_of(r, which="startOffset")]
    end = end_of(ran[-1])
    assert end is not None
    return ran[-1]["batchId"], end


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
