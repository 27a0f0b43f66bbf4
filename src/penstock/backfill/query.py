"""Backfills a pipeline's query: the SQL or function, windows and sink come from the pipeline."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from penstock.backfill.eligibility import has_windows, window_column
from penstock.backfill.work import Backfilled, Transform, backfill
from penstock.lanes.windows import Progress, Windows
from penstock.pipeline.run.build import load_functions
from penstock.pipeline.run.lanes import lanes_of
from penstock.pipeline.spec.pipeline import PipelineConfig
from penstock.pipeline.spec.sinks import LogSink, ParquetSink
from penstock.pipeline.spec.streams import StreamConfig
from penstock.pipeline.spec.windows import window_in
from penstock.spark.error_text import one_line
from penstock.spark.source.metadata import metadata_columns, spark_schema
from penstock.vocabulary.errors import InvalidInputError, PenstockError

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BackfillOptions:
    """A user's options of a backfill; the pipeline gives options that are left out.

    Attributes:
        to: A directory for the results.
        length_s: Length of the query's windows.
        slide_s: Slide of the query's windows.
        column: Event-time column of the query's windows.
        result: The result's column with the window or its start.
        until_s: Only rows that arrived up to this time are run.
        ended: The query will not run again.
    """

    to: Path | None = None
    length_s: float | None = None
    slide_s: float | None = None
    column: str | None = None
    result: str | None = None
    until_s: float | None = None
    ended: bool = False


def backfill_query(
    spark: SparkSession,
    config: PipelineConfig,
    name: str,
    options: BackfillOptions | None = None,
    progress: Progress = lambda *_: None,
) -> Iterator[Backfilled]:
    """Backfills a query's lanes, one after the other, each as `penstock.backfill.work.backfill` does.

    A lane that is refused, for example because the log lost rows of it, does not hold up the others. Its
    error is raised at the end.
    """
    options, query = options or BackfillOptions(), config.queries[name]
    transform, windows = transform_of(spark, config, name), None
    refused: list[InvalidInputError] = []
    for store in lanes_of(config, name):
        if windows is None:
            rows = spark.createDataFrame(
                [], spark_schema(store.log.user_schema, metadata_columns(query.metadata))
            )
            windows = _windows(config, name, transform(rows), options)
        sink = _sink(config, name, options.to)
        try:
            done = backfill(
                spark,
                config.log,
                store.reader,
                transform,
                sink,
                windows,
                options.until_s,
                query.metadata,
                options.ended,
                progress=progress,
            )
        except InvalidInputError as error:
            refused.append(error)
            continue
        yield done
    for other in refused[1:]:
        _log.warning("query %s: another lane is not backfilled: %s", name, other)
    if refused:
        raise refused[0]


def transform_of(spark: SparkSession, config: PipelineConfig, name: str) -> Transform:
    """A query over one stream as a function of the stream's rows."""
    query, (stream,) = config.queries[name], config.streams_of(name)
    if query.is_continuous:
        raise InvalidInputError(
            f"query {name} can be run over a batch of rows",
            f"a query in {query.kind}",
            "write it as sql or function",
        )
    function = load_functions(config.model_copy(update={"queries": {name: query}})).get(name)

    def transform(rows: DataFrame) -> DataFrame:
        try:
            if function is not None:
                return function(spark, {stream: rows})
            rows.createOrReplaceTempView(stream)
            return spark.sql(query.sql or "")
        except PenstockError:
            raise
        except Exception as error:  # the user's function may do anything
            raise InvalidInputError(
                f"query {name} runs over a batch of rows", one_line(error), "try it in a plain Spark session"
            ) from error

    return transform


def _windows(
    config: PipelineConfig, name: str, results: DataFrame, options: BackfillOptions
) -> Windows | None:
    """The windows that the user gives, else the windows of the SQL; `None` for a query without windows."""
    found = window_in(config.queries[name].sql or "")
    length_s = options.length_s or (found.length_s if found else None)
    stream: StreamConfig = config.streams[config.streams_of(name)[0]]
    column = options.column or (found.column if found else stream.event_time)
    if length_s is None or column is None:
        if has_windows(results):
            raise InvalidInputError(
                f"query {name} groups by windows of event time whose length is known",
                "no window(column, 'length') in its SQL",
                "give --window 10s, and --event-time and --slide if needed; other groups have no backfill",
            )
        return None
    slide_s = options.slide_s if options.length_s else options.slide_s or (found.slide_s if found else None)
    given = options.result or window_column(results) or (found.start if found else None)
    return Windows(column, length_s, slide_s, stream.lateness_s, given)


def _sink(config: PipelineConfig, name: str, to: Path | None) -> Path:
    """The sink of a backfill: the given directory, one beside the query's files, or the query's stream."""
    sink = config.queries[name].sink
    if to is not None:
        return to
    if isinstance(sink, ParquetSink):
        return Path(f"{sink.path.rstrip('/')}-backfill")
    if isinstance(sink, LogSink):
        return config.log / sink.stream
    raise InvalidInputError(
        "results of a backfill go to files or a stream",
        f"query {name} with a {sink.kind} sink",
        "give --to a directory",
    )
