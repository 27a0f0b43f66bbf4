"""The log-stream sink: a query's results become a stream, exactly once.

    with log_sink("logs/hot", result.schema) as hot:
        result.writeStream.foreachBatch(hot).option("checkpointLocation", ...).start()

A micro-batch is one append, keyed by the id that Spark minted in the query's checkpoint and the batch's
number: a batch that is run again after a crash is a no-op, or completes. The driver appends, so it is the
driver that holds the partitions' locks; the operating system frees them when it dies, however it does.

Measured against a Python stream writer (executors send Arrow in commit messages, a worker appends): that
costs 60 ms more than noop a small micro-batch, this one 25, and Spark refuses it in update mode.
"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from penstock.errors import InvalidInputError
from penstock.log.embedded import EmbeddedLog
from penstock.log.protocol import RESERVED_COLUMNS, AppendKey
from penstock.log.writer import Fsync, LogConfig

QUERY_ID = "sql.streaming.queryId"
"""Spark's name for the id of a streaming query, which lies in its checkpoint."""


def log_sink(
    stream: str | Path, schema: StructType, config: LogConfig | None = None, fsync: Fsync = "never"
) -> LogStreamSink:
    """A sink for `writeStream.foreachBatch` that appends results to a stream.

    Args:
        stream: The stream's directory; it is created with the result's columns if it is not there.
        schema: Of the result: `df.schema`.
        config: Of a stream that is created.
        fsync: When appends reach the disk; "never" survives a crash of the process, not a power cut.

    Raises:
        InvalidInputError: The result does not fit the stream, or another process writes to it.
    """
    directory = Path(stream)
    wanted = _result_columns(schema, directory.name)
    if not (directory / "stream.json").exists():
        EmbeddedLog.create(directory, wanted, config or LogConfig()).close()
    log = EmbeddedLog(directory, fsync)
    check_fit(wanted, log.user_schema, log.name)
    try:
        nothing = pa.RecordBatch.from_pylist([], schema=log.user_schema)
        for partition in range(log.partitions):  # takes the lock now, not with the first result
            log.append(nothing, partition)
    except BaseException:
        log.close()
        raise
    return LogStreamSink(log)


class LogStreamSink:
    """Appends micro-batches to a stream; holds its locks until `close`."""

    def __init__(self, log: EmbeddedLog) -> None:
        self.log = log

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Appends a micro-batch in one step, to the partition of its number: a repeat goes where it went."""
        query = batch.sparkSession.sparkContext.getLocalProperty(QUERY_ID)
        if query is None:
            raise InvalidInputError(
                "the log-stream sink is called by Spark", "no streaming query", "pass it to foreachBatch"
            )
        rows = batch.toArrow().select(self.log.user_schema.names).cast(self.log.user_schema)
        if rows.num_rows:
            whole = rows.combine_chunks().to_batches()[0]
            self.log.append(whole, batch_id % self.log.partitions, AppendKey(query, batch_id))

    def close(self) -> None:
        """Gives the locks back; do it when the query has stopped."""
        self.log.close()

    def __enter__(self) -> LogStreamSink:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _result_columns(schema: StructType, stream: str) -> pa.Schema:
    """The result's columns as a stream has them: all may be null, as in files that Spark writes."""
    for name in schema.names:
        if schema.names.count(name) > 1:
            raise InvalidInputError(
                f"a result that goes to stream {stream} has each column once", repr(name), "rename one"
            )
        if name.lower() in RESERVED_COLUMNS:
            raise InvalidInputError(
                f"a result that goes to stream {stream} has no metadata columns",
                repr(name),
                f"leave it out or rename it, e.g. {name} AS {name.strip('_')}",
            )
    return pa.schema([field.with_nullable(True) for field in to_arrow_schema(schema, timezone="UTC")])


def check_fit(result: pa.Schema, stream: pa.Schema, name: str) -> None:
    """Refuses a result whose columns are not the stream's; their order does not matter."""
    missing = [column for column in stream.names if column not in result.names]
    extra = [column for column in result.names if column not in stream.names]
    other = [
        f"{column} is {result.field(column).type}, not {stream.field(column).type}"
        for column in stream.names
        if column in result.names and result.field(column).type != stream.field(column).type
    ]
    parts = [f"missing {missing}"] * bool(missing) + [f"unknown {extra}"] * bool(extra) + other
    if parts:
        raise InvalidInputError(
            f"a result that goes to stream {name} has its columns", "; ".join(parts), "cast or select them"
        )
