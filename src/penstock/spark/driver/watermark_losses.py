"""Counts the rows of a micro-batch that Spark's watermark drops as late, from Spark's progress and the log.

Spark's own figure, `numRowsDroppedByWatermark`, counts rows for operators that get rows (joins, DISTINCT,
Python's state). Aggregates combine rows before they look at the watermark: there the figure counts groups,
however many rows a group has. So the figure only says *that* rows were dropped.

The number of rows is counted in the log, by the event time of the grant's rows. That is possible for a query
whose watermarks are columns of its streams and whose windows are of one kind. For other queries Spark's
figure itself is taken, as one row each: a lower bound.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any

from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import SparkSession

from penstock.grants.offset import Offset
from penstock.spark.driver.catalyst import EventTimes, event_times_of, window_of
from penstock.spark.driver.lateness import lost_of_grant
from penstock.spark.source.options import FORMAT_NAME
from penstock.streams.opening import open_stream

__all__ = ["EventTimes", "ProgressListener", "dropped_in", "dropped_rows", "watermark_of", "window_of"]

_log = logging.getLogger(__name__)

Dropped = dict[tuple[str, int], float]
"""Number of rows, by reader and number of the grant."""

AGGREGATES = "statestoresave"
"""Part of the names of operators that drop groups."""
NEARLY = 0.9
"""The log's count, which may be an estimate from a sample, must be at least this part of Spark's count."""


class ProgressListener:
    """Listens to Spark's reports on micro-batches. A report costs two calls and a text of some kilobytes.

    Args:
        spark: The session.
        ended: Called with the number of a micro-batch and, for each of its grants, the number of dropped
            rows. Called even if no rows were dropped: nobody else knows which grants a micro-batch has.
    """

    class Java:
        implements = ("org.apache.spark.sql.streaming.PythonStreamingQueryListener",)

    def __init__(self, spark: SparkSession, ended: Callable[[int, Dropped], None]) -> None:
        self._spark, self._ended = spark, ended
        self._watermarks: dict[str, int | None] = {}
        """Watermark of the last micro-batch, by run."""
        self._times: dict[str, EventTimes | None] = {}
        """What the plan says about event time, by run, for runs of which rows were dropped."""
        context = spark.sparkContext
        assert context._jvm is not None
        ensure_callback_server_started(context._gateway)
        wrapper = context._jvm.org.apache.spark.sql.streaming.PythonStreamingQueryListenerWrapper
        self._as_java = wrapper(self)
        spark.streams._jsqm.addListener(self._as_java)

    def stop(self) -> None:
        self._spark.streams._jsqm.removeListener(self._as_java)

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """Does nothing; the query waits for this call."""

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        """Does nothing."""

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        run = str(event.runId().toString())
        self._watermarks.pop(run, None)
        self._times.pop(run, None)

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        try:
            self._look(json.loads(event.progress().json()))
        except Exception as error:  # Spark may be stopping; the books then only lack this batch's loss
            _log.debug("a micro-batch's progress could not be read: %r", error)

    def _look(self, progress: Mapping[str, Any]) -> None:
        run = progress["runId"]
        # the watermark of the micro-batch before decides which rows are late
        watermark_us = self._watermarks.get(run)
        self._watermarks[run] = watermark_of(progress)
        rows = {(offset.reader, offset.grant): 0.0 for offset, _ in _grants(progress)}
        if not rows:
            return
        try:
            if dropped_in(progress) > 0:
                rows |= dropped_rows(progress, self._times_of(progress), watermark_us)
        finally:
            self._ended(progress["batchId"], rows)

    def _times_of(self, progress: Mapping[str, Any]) -> EventTimes | None:
        run = progress["runId"]
        if run not in self._times:
            query = self._spark.streams.get(progress["id"])
            self._times[run] = None if query is None else event_times_of(query)
        return self._times[run]


# -- progress ---------------------------------------------------------------------------------------


def dropped_in(progress: Mapping[str, Any], rows_alone: bool = False) -> int:
    """Number of rows or groups that Spark's operators report as dropped; without groups if `rows_alone`."""
    return sum(
        operator["numRowsDroppedByWatermark"]
        for operator in progress["stateOperators"]
        if not (rows_alone and AGGREGATES in operator["operatorName"].lower())
    )


def watermark_of(progress: Mapping[str, Any]) -> int | None:
    """A micro-batch's watermark in microseconds; `None` without one."""
    text = progress.get("eventTime", {}).get("watermark")
    return None if text is None else round(datetime.fromisoformat(text).timestamp() * 1e6)


def dropped_rows(progress: Mapping[str, Any], times: EventTimes | None, watermark_us: int | None) -> Dropped:
    """How many rows of each grant a micro-batch dropped.

    Args:
        progress: Spark's report on the micro-batch.
        times: Event times of the query's plan; `None` if the plan does not say when rows are late.
        watermark_us: The watermark by which rows were late.
    """
    grants = list(_grants(progress))
    if times is not None and watermark_us is not None and all(o.stream in times.rules for o, _ in grants):
        counted = {
            (offset.reader, offset.grant): lost_of_grant(
                open_stream(times.places[offset.stream]), offset, times.rules[offset.stream], watermark_us
            )
            for offset, _ in grants
        }
        found = sum(counted.values())
        # an operator before the windows may have dropped rows that are not late by the rule of the windows
        if found and found >= NEARLY * dropped_in(progress, rows_alone=True):
            return {key: rows for key, rows in counted.items() if rows}
    read = progress["numInputRows"]
    part = min(1.0, dropped_in(progress) / read) if read else 0.0
    return {(offset.reader, offset.grant): part * rows for offset, rows in grants if part * rows}


def _grants(progress: Mapping[str, Any]) -> Iterator[tuple[Offset, int]]:
    """The grants of a micro-batch's governed sources, and the number of rows that each grant admitted.

    Spark's own count of a source's rows is not used: it counts rows twice that two branches of a plan scan.
    """
    for source in progress["sources"]:
        start, end = _offset(source["startOffset"]), _offset(source["endOffset"])
        if isinstance(end, dict) and FORMAT_NAME in end and end != start:
            before = Offset.from_json(start).books.admitted if isinstance(start, dict) else 0
            offset = Offset.from_json(end)
            yield offset, offset.books.admitted - before


def _offset(found: Any) -> Any:
    return json.loads(found) if isinstance(found, str) else found
