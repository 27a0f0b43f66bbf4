"""Measures the capacity of a query, which drains a filled log, ungoverned, in batches of a chosen length."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from penstock.calibration.judging import (
    Capacity,
    Judged,
    Probe,
    TooFewBatchesError,
    find_capacity,
    search,
    spread,
)
from penstock.calibration.measured import Batch, batches
from penstock.spark.source.ungoverned import Metadata, read_ungoverned
from penstock.streams.opening import open_stream
from penstock.vocabulary.errors import PenstockError, UnmetError

Start = Callable[[DataFrame, str], StreamingQuery]
"""Starts a query on a stream with a checkpoint."""

WARM_BATCHES = 2
"""First batches of a probe that do not count, because a new query compiles its plan."""
_FULL = 0.99
"""A batch is full from this part of the rows of the first one on."""
SEARCH_BATCHES = 4
"""Batches of each probe in a search: two halves of two."""


def warm_up(
    spark: SparkSession,
    stream: str | Path,
    start: Start,
    checkpoint: Path,
    seconds: float,
    rows: int = 10_000,
    metadata: Metadata = False,
) -> float:
    """Runs a query ungoverned until the JVM has compiled it; returns rows a second of its last batches."""
    log = open_stream(stream)
    query = start(read_ungoverned(spark, stream, rows, metadata=metadata), str(checkpoint))
    try:
        time.sleep(seconds)
        while len(query.recentProgress) < 4 and query.exception() is None:
            time.sleep(0.1)
        if (error := query.exception()) is not None:
            raise _failed(error)
        done = batches([dict(report) for report in query.recentProgress[-4:]], log)
    finally:
        stop_quietly(query)
    return sum(batch.rows for batch in done) / sum(batch.duration_s for batch in done)


def _failed(error: Exception) -> PenstockError:
    return UnmetError("the probed query runs", error, "try it in a plain Spark session")


def stop_quietly(query: StreamingQuery) -> None:
    """Stops a query, without the errors that Spark logs if the query is inside a batch."""
    context = query._jsq.sparkSession().sparkContext() if query.isActive else None
    if context is not None:
        context.setLogLevel("OFF")
    query.stop()
    if context is not None:
        context.setLogLevel("ERROR")


def probe(
    spark: SparkSession,
    stream: str | Path,
    start: Start,
    checkpoint: Path,
    batch_rows: int,
    count: int = 5,
    metadata: Metadata = False,
) -> Capacity:
    """Drains a filled log for a few batches of `batch_rows` rows, and measures them.

    If the log has too few rows, the full batches of what it has are measured.

    Args:
        spark: A session that has warmed up.
        stream: A log with enough rows waiting.
        start: Starts the query.
        checkpoint: A new directory.
        batch_rows: Rows of a batch.
        count: Number of batches to measure, after the warm-up batches.
        metadata: Metadata columns that the query needs.

    Raises:
        TooFewBatchesError: The log has too few rows for a full batch after the warm-up.
        UnmetError: The query fails.
    """
    log, wanted = open_stream(stream), WARM_BATCHES + count
    rows = read_ungoverned(spark, stream, batch_rows, wanted * batch_rows, metadata)
    query = start(rows, str(checkpoint))
    try:
        while not _is_over(query, wanted):
            time.sleep(0.02)
            if (error := query.exception()) is not None:
                raise _failed(error)
        done = batches([dict(report) for report in query.recentProgress], log)
    finally:
        query.stop()
    return _capacity(done)


def _is_over(query: StreamingQuery, wanted: int) -> bool:
    """Whether a query has had the wanted number of batches, or has drained its stream before.

    Spark also reports when it has nothing to do, every ten seconds: such a report is no batch.
    """
    rows = [report["numInputRows"] for report in query.recentProgress]
    count = sum(n > 0 for n in rows)
    idle = len(rows) - count  # the first report may come before the first batch
    return count >= wanted or (idle > 0 and not rows[-1] and (count > 0 or idle > 1))


def _capacity(done: list[Batch]) -> Capacity:
    """The capacity from the end of the last batch of the warm-up to the end of the last full batch."""
    full = [b for b in done if b.rows >= _FULL * done[0].rows]  # the log's last batch may have fewer rows
    if len(full) <= WARM_BATCHES:
        raise TooFewBatchesError(
            f"a probe has more than {WARM_BATCHES} full batches", len(full), "fill the stream with more rows"
        )
    done = full[WARM_BATCHES - 1 :]
    ends = np.array([batch.ended_s for batch in done])
    lengths_s = np.diff(ends)
    rows = sum(batch.rows for batch in done[1:])
    wall_s = float(ends[-1] - ends[0])
    busy_s = sum(batch.duration_s for batch in done[1:])
    return Capacity(
        rows / wall_s,
        done[-1].rows,
        float(np.median(lengths_s)),
        min(1.0, busy_s / wall_s),
        spread(lengths_s.tolist()),
    )


def find_batch_rows(
    spark: SparkSession,
    stream: str | Path,
    start: Start,
    folder: Path,
    batch_s: float,
    first_rows: int = 20_000,
    tries: int = 6,
    metadata: Metadata = False,
) -> Capacity:
    """The capacity in batches of about `batch_s`: probes with growing batches until they take that long."""
    return search(_probes(spark, stream, start, folder, metadata), batch_s, first_rows, tries)[-1]


def find_plausible(
    spark: SparkSession,
    stream: str | Path,
    start: Start,
    folder: Path,
    batch_s: float,
    first_rows: int,
    metadata: Metadata = False,
) -> Judged:
    """The capacity as `find_batch_rows` finds it; searches again if the result is not plausible."""
    return find_capacity(_probes(spark, stream, start, folder, metadata), batch_s, first_rows)


def _probes(spark: SparkSession, stream: str | Path, start: Start, folder: Path, metadata: Metadata) -> Probe:
    """Probes of one query, each with a new checkpoint in a folder."""
    number = itertools.count()

    def measure(rows: int) -> Capacity:
        checkpoint = folder / f"try{next(number)}"
        return probe(spark, stream, start, checkpoint, rows, SEARCH_BATCHES, metadata)

    return measure
