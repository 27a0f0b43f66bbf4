"""Creates a pipeline's streams, builds and starts its queries on Spark, or refuses them in one line."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

from penstock.cql.datafiles import SIGNS
from penstock.pipeline.run.statistics import counted
from penstock.pipeline.spec.cql import answers_of
from penstock.pipeline.spec.families import LiveFamily
from penstock.pipeline.spec.pipeline import PipelineConfig
from penstock.pipeline.spec.sinks import LogSink, MemorySink, NoopSink, ParquetSink, sink_guarantee
from penstock.pipeline.spec.sources import GeneratorSource, ReplaySource
from penstock.pipeline.spec.streams import StreamConfig
from penstock.spark.cql.estimates import estimates_of
from penstock.spark.cql.feeds import Feed
from penstock.spark.cql.members import write_members
from penstock.spark.cql.relation import changes_of
from penstock.spark.cql.rows import rows_of
from penstock.spark.cql.windows import family_windows_of, windows_of
from penstock.spark.driver.flow import Flow
from penstock.spark.error_text import errors_in_one_line, one_line
from penstock.spark.sink import LogStreamSink, check_fit, log_sink
from penstock.streams.layout import LogConfig
from penstock.streams.opening import create_stream, load_stream, stream_exists
from penstock.streams.protocol import ARRIVAL, ESTIMATE, KEPT, ORIGIN, POSITION
from penstock.vocabulary.errors import InvalidInputError

Function = Callable[[SparkSession, dict[str, DataFrame]], DataFrame]
"""Function that `function: module:name` names; it gets the session and the streams by name."""

PARTITIONS_APART_MS = 1000
"""How far apart, by arrival, a grant may end in the partitions of a stream: a grant cuts segments as if their
rows had come evenly."""
FAMILY_FILE = "family.json"
"""File in a checkpoint with the queries of a family, which every micro-batch reads."""
SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"


# -- streams --------------------------------------------------------------------------------------


def prepare_streams(config: PipelineConfig) -> None:
    """Creates streams that do not exist; refuses an existing stream that differs from the pipeline's."""
    written = {q.sink.stream for q in config.queries.values() if isinstance(q.sink, LogSink)}
    for name, stream in config.streams.items():
        directory, schema = config.log / name, stream.arrow_schema()
        if stream_exists(directory):
            _check_stream(name, stream, directory)
        elif name in written:
            continue  # created with the query that writes it, which knows whether it is a shared stream
        elif schema is not None:
            create_stream(directory, schema, _log_config(stream)).close()
        else:
            raise InvalidInputError(
                f"stream {name} is in the log, or has a schema",
                f"no stream at {directory}",
                f"add streams.{name}.schema, or create it first",
            )


def _log_config(stream: StreamConfig) -> LogConfig:
    return LogConfig(partitions=stream.partitions, key=stream.key)


def _check_stream(name: str, stream: StreamConfig, directory: Path) -> None:
    log, schema = load_stream(directory), stream.arrow_schema()
    if schema is not None and not log.user_schema.equals(schema):
        try:
            check_fit(schema, log.user_schema, name)
            differs = "another order or nullability"
        except InvalidInputError as error:
            differs = str(error.got)
        raise InvalidInputError(
            f"stream {name} has the schema that the log at {directory} was created with",
            differs,
            "change the schema, or use another log",
        )
    for what, wanted, got in (
        ("partitions", stream.partitions, log.partitions),
        ("key", stream.key, log.key_column),
    ):
        if what in stream.model_fields_set and wanted != got:
            raise InvalidInputError(
                f"stream {name} has {what} {got} since it was created", wanted, "use another log"
            )


# -- queries --------------------------------------------------------------------------------------


@dataclass(slots=True)
class Built:
    """A query that can be started."""

    name: str
    result: DataFrame
    sink: LogStreamSink | None
    checkpoint: str
    guarantee: str
    live: LiveFamily | None = None
    """The family, if its queries come and go with its file."""


def load_functions(config: PipelineConfig) -> dict[str, Function]:
    """The Python functions of queries, imported."""
    return {name: _load(name, q.function) for name, q in config.queries.items() if q.function is not None}


def _load(query: str, function: str) -> Function:
    module, _, attribute = function.partition(":")
    try:
        found: Any = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # the user's module may do anything
        raise InvalidInputError(
            f"queries.{query}.function names a function that can be imported",
            f"{function!r}: {one_line(error)}",
            "modules beside the pipeline's file can be imported",
        ) from error
    if not callable(found):
        raise InvalidInputError(f"queries.{query}.function names a function", repr(found)[:60], "module:name")
    loaded: Function = found
    return loaded


def build_queries(
    flow: Flow, config: PipelineConfig, functions: dict[str, Function], run: Path
) -> Iterator[Built]:
    """Builds the queries; a query that writes a stream comes before queries that read it."""
    left = list(config.queries)
    while left:
        ready = [n for n in left if all(_there(config, stream) for stream in config.streams_of(n))]
        if not ready:
            _create_declared(config, [s for n in left for s in config.streams_of(n) if not _there(config, s)])
            continue
        for name in sorted(ready, key=lambda n: not isinstance(config.queries[n].sink, LogSink)):
            left.remove(name)  # writers of shared streams first: their class decides who may read
            yield _build(flow, config, name, functions.get(name), run)


def _create_declared(config: PipelineConfig, streams: list[str]) -> None:
    """Creates a stream with a declared schema, so that queries that wait for each other can begin."""
    for name in streams:
        schema = config.streams[name].arrow_schema()
        if schema is not None:
            create_stream(config.log / name, schema, _log_config(config.streams[name])).close()
            return
    raise InvalidInputError(
        f"streams.{streams[0]}.schema is required",
        "queries that wait for each other's streams",
        "give the schema",
    )


def _there(config: PipelineConfig, stream: str) -> bool:
    return stream_exists(config.log / stream)


def _build(flow: Flow, config: PipelineConfig, name: str, function: Function | None, run: Path) -> Built:
    query, live = config.queries[name], None
    checkpoint = config.checkpoint_of(name, run)
    with errors_in_one_line(f"queries.{name}.{query.kind} gives a result"):
        if query.is_continuous:
            result, live = _continuous(flow, config, name, checkpoint)
        else:
            streams = _read_streams(flow, config, name)
            if function is None:
                for stream, df in streams.items():
                    df.createOrReplaceTempView(stream)
                result = flow.spark.sql(query.sql or "")
            else:
                result = function(flow.spark, streams)
    if not isinstance(result, DataFrame) or not result.isStreaming:
        raise InvalidInputError(
            f"queries.{name} gives a streaming DataFrame",
            type(result).__name__ if not isinstance(result, DataFrame) else "a DataFrame of a batch",
            "read one of the query's streams",
        )
    sink = None
    if isinstance(query.sink, LogSink):
        sink = _log_sink(flow, config, query.sink.stream, result)
    elif isinstance(query.sink, ParquetSink):
        _check_files(name, Path(query.sink.path), Path(checkpoint))
    return Built(name, result, sink, checkpoint, sink_guarantee(query.sink), live)


def _log_sink(flow: Flow, config: PipelineConfig, stream: str, result: DataFrame) -> LogStreamSink:
    """A log sink; a result with the columns of `ORIGIN` becomes a shared stream."""
    origin = all(column in result.columns for column in ORIGIN)
    spec = config.streams[stream]
    layout, schema = _log_config(spec), spec.arrow_schema()
    if schema is not None and not _there(config, stream):
        create_stream(config.log / stream, schema, replace(layout, origin=origin)).close()
    if origin:
        return flow.share(stream, result, layout, spec.fsync)
    return log_sink(config.log / stream, result.schema, layout, spec.fsync)


def _check_files(name: str, path: Path, checkpoint: Path) -> None:
    """Refuses a directory with results of another run.

    Spark would take a new query's first batches for repeats of batches in the directory, and drop them.
    """
    if (path / "_spark_metadata").exists() and not (checkpoint / "metadata").exists():
        raise InvalidInputError(
            f"queries.{name} writes to a new directory, or goes on from its checkpoint",
            f"results of another run in {path}",
            "name another path, or set the query's checkpoint so that runs continue",
        )


def _continuous(
    flow: Flow, config: PipelineConfig, name: str, checkpoint: str
) -> tuple[DataFrame, LiveFamily | None]:
    """A query in CQL: every leaf of its plan has a reader of its own, and all readers have one cut."""
    meant, cls = config.continuous(name), config.queries[name].cls
    readers = flow.query(name, cls)
    answers = answers_of(meant, config.queries[name].answers)
    # single tuples that go into the log become a shared stream, so they keep the columns of `ORIGIN`
    estimates = config.queries[name].estimates
    kept: tuple[str, ...] = ESTIMATE if estimates else (KEPT,)
    if answers == "rows" and isinstance(config.queries[name].sink, LogSink):
        kept = ORIGIN

    def changes(stream: str, spec: StreamConfig, sign: str) -> Feed:
        """The feed of a stream of changes, ungoverned: after a shed change the relation would be wrong."""
        time = spec.event_time or ARRIVAL
        metadata = [POSITION, *([ARRIVAL] if spec.event_time is None else [])]
        rows = readers.read_changes(stream, metadata, _starting(spec))
        signs = " ".join(f"WHEN '{text}' THEN {number}L" for text, number in SIGNS.items())
        columns = [name for name in spec.columns or () if name not in (sign, spec.event_time)]
        return Feed(rows, columns, time, POSITION, None, sign=f"CASE `{sign}` {signs} END")

    def feed(stream: str) -> Feed:
        spec = config.streams[stream]
        if spec.changes is not None:
            return changes(stream, spec, spec.changes.sign)
        time, late_ms = spec.event_time or ARRIVAL, round(spec.lateness_s * 1000)
        if spec.event_time is None and spec.partitions > 1:
            late_ms = PARTITIONS_APART_MS
        arrival = [ARRIVAL] if spec.event_time is None and ARRIVAL not in kept else []
        metadata = [*kept, *arrival, POSITION]
        rows = readers.read_stream(stream, metadata, _starting(spec))
        # one more: Spark takes rows at the watermark for late, but a row as old as the newest is not
        return Feed(rows, list(spec.columns or ()), time, POSITION, late_ms + 1, kept=kept)

    if meant.family is not None:
        if config.queries[name].cql_file is None:
            return family_windows_of(flow.spark, meant.family, feed), None
        publish = partial(write_members, Path(checkpoint).absolute() / FAMILY_FILE)
        publish(meant.family)
        live = LiveFamily(config, name, meant.family, publish)
        return family_windows_of(flow.spark, meant.family, feed, *publish.args), live
    if estimates:
        return estimates_of(meant.query, feed), None
    compiled = {"windows": windows_of, "relation": changes_of, "rows": rows_of}[answers]
    return compiled(meant.query, feed), None


def _starting(stream: StreamConfig) -> str:
    """Where reading starts: after rows that an earlier run generated; else at the earliest row."""
    return "latest" if isinstance(stream.source, ReplaySource | GeneratorSource) else "earliest"


def _read_streams(flow: Flow, config: PipelineConfig, name: str) -> dict[str, DataFrame]:
    query, names = config.queries[name], config.streams_of(name)
    readers = flow.query(name, query.cls) if len(names) > 1 else None
    streams: dict[str, DataFrame] = {}
    for stream in names:
        spec = config.streams[stream]
        starting = _starting(spec)
        if readers is None:
            df = flow.read_stream(stream, query.cls, query.metadata, name, starting)
        else:
            df = readers.read_stream(stream, query.metadata, starting)
        if spec.event_time is not None:
            with errors_in_one_line(f"streams.{stream}.event_time is a timestamp column"):
                df = df.withWatermark(spec.event_time, f"{round(spec.lateness_s * 1000)} milliseconds")
        streams[stream] = df
    return streams


def start_query(spark: SparkSession, config: PipelineConfig, built: Built) -> StreamingQuery:
    """Starts a query; if Spark refuses it, the error has one line."""
    query = config.queries[built.name]
    writer = counted(built.result).writeStream.outputMode(query.mode).queryName(built.name)
    writer = writer.option("checkpointLocation", built.checkpoint)
    rule = f"queries.{built.name} can be started"
    with errors_in_one_line(rule), _shuffled(spark, query.shuffle_partitions):
        return _to_sink(writer, config, built).start()


def _to_sink(writer: DataStreamWriter, config: PipelineConfig, built: Built) -> DataStreamWriter:
    sink = config.queries[built.name].sink
    if built.sink is not None:
        return writer.foreachBatch(built.sink)
    if isinstance(sink, ParquetSink):
        return writer.format("parquet").option("path", sink.path)
    if isinstance(sink, MemorySink):
        return writer.format("memory").queryName(sink.name or built.name)
    if isinstance(sink, NoopSink):
        return writer.format("noop")
    return writer.format("console").option("truncate", "false")


@contextmanager
def _shuffled(spark: SparkSession, partitions: int | None) -> Iterator[None]:
    """Sets the session's shuffle partitions for a query that starts inside."""
    if partitions is None:
        yield
        return
    before = spark.conf.get(SHUFFLE_PARTITIONS) or "200"
    spark.conf.set(SHUFFLE_PARTITIONS, partitions)
    try:
        yield
    finally:
        spark.conf.set(SHUFFLE_PARTITIONS, before)
