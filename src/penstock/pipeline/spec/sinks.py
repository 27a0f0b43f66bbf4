"""Sinks of a query's results, and what each guarantees after a crash."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from penstock.config.mistakes import Part
from penstock.config.places import Place


class ConsoleSink(Part):
    """Prints results."""

    kind: Literal["console"] = "console"


class ParquetSink(Part):
    """Writes Parquet files into a directory."""

    kind: Literal["parquet"] = "parquet"
    path: Place = Field(description="a directory, e.g. results/averages")


class LogSink(Part):
    """Appends to a stream, which other queries may read."""

    kind: Literal["log"] = "log"
    stream: str = Field(description="a stream of this pipeline whose source is log")


class MemorySink(Part):
    """Keeps results in a table of the Spark session."""

    kind: Literal["memory"] = "memory"
    name: str | None = Field(None, description="the table's name; the query's by default")


class NoopSink(Part):
    """Computes results and throws them away: for measuring."""

    kind: Literal["noop"] = "noop"


AnySink = Annotated[ConsoleSink | ParquetSink | LogSink | MemorySink | NoopSink, Field(discriminator="kind")]

_GUARANTEES = {
    "parquet": "exactly once: Spark lists a micro-batch's files in one step, and a repeated one is not "
    "listed again (read the directory with Spark, which honours that list)",
    "log": "exactly once: an append carries the query and its batch number, so a repeated one is a no-op",
    "console": "at least once: a micro-batch that is repeated after a crash is printed again",
    "memory": "at least once: the table is the session's, and a micro-batch that is repeated is added again",
    "noop": "nothing is kept: results are computed and thrown away",
}


def sink_guarantee(sink: ConsoleSink | ParquetSink | LogSink | MemorySink | NoopSink) -> str:
    """A sentence on what a sink guarantees for each result after a crash, and why."""
    return _GUARANTEES[sink.kind]
