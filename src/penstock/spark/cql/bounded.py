"""Queries over streams that end: their tuples are in logs, and are read in micro-batches of a chosen size."""

from __future__ import annotations

import io
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from penstock.cql.analysis.families import Family
from penstock.cql.datafiles import INSTANT_COLUMN, SIGN_COLUMN
from penstock.cql.engine.bag import INSTANT
from penstock.cql.meaning.plan import Query
from penstock.spark.cql.feeds import Feed
from penstock.spark.cql.relation import changes_of
from penstock.spark.cql.rows import rows_of
from penstock.spark.cql.windows import family_windows_of, windows_of
from penstock.spark.error_text import errors_in_one_line
from penstock.spark.source.ungoverned import read_ungoverned
from penstock.streams.layout import LogConfig
from penstock.streams.opening import create_stream

HEARTBEAT_BATCHES = 2
"""Micro-batches at the end that only advance the time: in a chain, each operator closes a batch later."""
AFTER_US = 2000
"""The watermark ends this much after the last instant (Spark takes a millisecond off it)."""
AHEAD_US = 604_800_000_000
"""Times are ahead of instants by a week, if Spark's watermark would else take the first instants for late."""


@dataclass(frozen=True, slots=True)
class Bounded:
    """Streams with an end.

    Attributes:
        spark: The session.
        folder: Folder for logs, checkpoints and answers.
        feeds: Feeds by stream.
        partitions: Partitions of the state.
        last_us: The instant up to which answers are computed.
    """

    spark: SparkSession
    folder: Path
    feeds: Mapping[str, Feed]
    partitions: int
    last_us: int

    def frame(self, query: Query, mode: str) -> DataFrame:
        """A query's answer as a streaming DataFrame: `windows`, `relation` or `rows`."""
        if mode == "windows":
            return windows_of(query, self.feeds.__getitem__)
        if mode == "rows":
            return rows_of(query, self.feeds.__getitem__)
        ahead = {name: replace(feed, time="ahead") for name, feed in self.feeds.items()}
        changes = changes_of(query, ahead.__getitem__, self.partitions, AHEAD_US)
        return changes.where(f"{INSTANT} <= {self.last_us}")  # later ones are tuples leaving a window

    def plan(self, query: Query, mode: str) -> str:
        """Spark's physical plan of a query."""
        shown = io.StringIO()
        with errors_in_one_line("a query runs on Spark"), self._settings(), redirect_stdout(shown):
            self.frame(query, mode).explain()
        return shown.getvalue().strip()

    def answer(self, query: Query, mode: str) -> tuple[pa.Table, int]:
        """A query's answer until the streams' end, and how many micro-batches it took."""
        with self._settings():
            return self._run(self.frame(query, mode))

    def family(self, family: Family) -> tuple[pa.Table, int]:
        """The answers of all queries of a family, by window, and how many micro-batches it took."""
        with self._settings():
            return self._run(family_windows_of(self.spark, family, self.feeds.__getitem__))

    def _run(self, result: DataFrame) -> tuple[pa.Table, int]:
        with errors_in_one_line("a query runs on Spark"):
            return self._ran(result)

    def _ran(self, result: DataFrame) -> tuple[pa.Table, int]:
        running = (
            result.writeStream.format("parquet")
            .option("path", str(self.folder / "answer"))
            .option("checkpointLocation", str(self.folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        running.awaitTermination()
        last = running.lastProgress
        answer = self.spark.read.schema(result.schema).parquet(str(self.folder / "answer"))
        return answer.toArrow(), 0 if last is None else last["batchId"] + 1

    @contextmanager
    def _settings(self) -> Iterator[None]:
        """Settings for a query that starts inside: partitions of the state; empty batches as time moves."""
        wanted = {
            "spark.sql.shuffle.partitions": str(self.partitions),
            "spark.sql.streaming.noDataMicroBatches.enabled": "true",
        }
        before = {name: self.spark.conf.get(name) or "" for name in wanted}
        for name, value in wanted.items():
            self.spark.conf.set(name, value)
        try:
            yield
        finally:
            for name, value in before.items():
                self.spark.conf.set(name, value)


@contextmanager
def bounded(
    spark: SparkSession,
    tuples: Mapping[str, pa.Table],
    partitions: int = 1,
    batches: int = 10,
    until_us: int | None = None,
    keep: Path | None = None,
) -> Iterator[Bounded]:
    """Streams of the given tuples, in logs of their own.

    Args:
        spark: The session.
        tuples: By stream, `_instant` in microseconds and the stream's columns, in the order of instants; for
            a relation also `_sign`, see `penstock.cql.datafiles`.
        partitions: Partitions of the logs, which get tuples in turn, and of the state.
        batches: Least micro-batches in which the tuples are read.
        until_us: The instant up to which answers are computed; by default the last instant of a tuple.
        keep: A folder for logs, checkpoint and answer, from which a killed run can be continued. Without it
            these files are removed at the end.
    """
    folder = keep or Path(tempfile.mkdtemp(prefix="penstock-cql-"))
    try:
        ends = [int(table.column(INSTANT_COLUMN)[-1].as_py()) for table in tuples.values() if len(table)]
        last_us = max(ends, default=0) if until_us is None else until_us
        lateness_ms = max(_disorder_us(table, partitions) for table in tuples.values()) // 1000 + 1
        feeds = {}
        for name, table in tuples.items():
            per_batch = max(1, -(-table.num_rows // batches) // partitions) * partitions
            end_us = last_us + lateness_ms * 1000 + AFTER_US - 1000
            beats = max(HEARTBEAT_BATCHES, batches - table.num_rows // per_batch) * per_batch
            rows = _with_heartbeats(table, end_us, beats, partitions)
            stream = folder / "streams" / name
            if not stream.exists():
                _write(stream, rows, partitions)
            read = read_ungoverned(spark, stream, per_batch)
            columns = [column for column in rows.column_names if column.startswith("c")]
            sign = SIGN_COLUMN if SIGN_COLUMN in table.column_names else None
            feeds[name] = Feed(read, columns, "ts", "n", lateness_ms, "heartbeat", sign=sign)
        yield Bounded(spark, folder, feeds, partitions, last_us)
    finally:
        if keep is None:
            shutil.rmtree(folder, ignore_errors=True)


def _write(stream: Path, rows: pa.Table, partitions: int) -> None:
    with create_stream(stream, rows.schema, LogConfig(partitions=partitions)) as log:
        for p in range(partitions):
            part = rows.take(pa.array(np.arange(p, rows.num_rows, partitions)))
            log.append(part.combine_chunks().to_batches()[0], p)


def _disorder_us(table: pa.Table, partitions: int) -> int:
    """Most time between a row of one batch and an earlier row of the next, if partitions are read evenly."""
    instants, apart = table.column(INSTANT_COLUMN).to_numpy(), 2 * partitions
    if len(instants) <= apart:
        return int(np.ptp(instants)) if len(instants) else 0
    return int((instants[apart:] - instants[:-apart]).max())


def _with_heartbeats(table: pa.Table, end_us: int, beats: int, partitions: int) -> pa.Table:
    """A stream's rows, numbered, with further rows that only advance the time, or fill up partitions."""
    count, extra = table.num_rows, beats + (-table.num_rows) % partitions
    at = np.concatenate([table.column(INSTANT_COLUMN).to_numpy(), np.full(extra, end_us)]).astype(np.int64)
    heartbeat = np.arange(count + extra) >= count
    names = [name for name in table.column_names if name not in (INSTANT_COLUMN, SIGN_COLUMN)]
    called = {f"c{i}": name for i, name in enumerate(names)}
    if SIGN_COLUMN in table.column_names:
        called[SIGN_COLUMN] = SIGN_COLUMN
    columns = {
        name: pa.chunked_array([*table.column(own).chunks, _filling(table.column(own).type, extra)])
        for name, own in called.items()
    }
    stamp = pa.timestamp("us", "UTC")
    times = {"ts": pa.array(at).cast(stamp), "ahead": pa.array(at + AHEAD_US).cast(stamp)}
    return pa.table({**columns, **times, "n": np.arange(count + extra), "heartbeat": heartbeat})


def _filling(kind: pa.DataType, count: int) -> pa.Array:
    """Values of heartbeat rows. They are not NULL: Spark drops rows without a join's key before it looks at
    their time.
    """
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return pa.array([""] * count, kind)
    nothing = Decimal(0) if pa.types.is_decimal(kind) else False if pa.types.is_boolean(kind) else 0
    return pa.array([nothing] * count, kind)
