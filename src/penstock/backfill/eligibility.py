"""Which queries can be backfilled, and which of their results count when windows are computed anew."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql.functions import assert_true, broadcast, col, expr, timestamp_diff, unix_micros
from pyspark.sql.types import DataType, StructType, TimestampNTZType, TimestampType

from penstock.lanes.windows import Times, Windows, event_times
from penstock.spark.driver.catalyst import check_version, operators_of
from penstock.vocabulary.errors import InvalidInputError

_STATEFUL = frozenset(
    ("Aggregate", "Distinct", "Deduplicate", "DeduplicateWithinWatermark", "Window", "GlobalLimit", "Limit")
)
_MISFIT = "penstock: a result's window is not one of the windows given"


def check_stateless(results: DataFrame) -> None:
    """Refuses a query with state: its results over shed rows alone differ from what the query left out."""
    check_version(results.sparkSession.version)
    found = next((name for name in operators_of(results) if name in _STATEFUL), None)
    if found is not None:
        raise InvalidInputError(
            "a backfill without windows is of a stateless query",
            f"a query with {found}",
            "give windows=Windows(...), so that whole windows are computed anew",
        )


def has_windows(results: DataFrame) -> bool:
    """Whether a query aggregates rows."""
    return "Aggregate" in operators_of(results)


def check_windows(schema: pa.Schema, results: DataFrame, windows: Windows) -> None:
    """Refuses windows that the stream or the results do not have."""
    event_times(pa.RecordBatch.from_pylist([], schema=schema), windows.column)
    if _start_of(results, windows) is None and windows.overlap:
        raise InvalidInputError(
            "a result with windows that overlap has a column with the window or its start",
            f"{windows.result!r} among {results.columns}",
            "select it, and name it in Windows(result=...)",
        )


def only_touched(results: DataFrame, windows: Windows, touched: Times) -> DataFrame:
    """Results of the touched windows alone.

    If windows overlap, rows of touched windows are also in other windows; results of these are incomplete and
    left out. A window of another length or beginning is an error while the query runs.
    """
    start = _start_of(results, windows)
    if start is None:
        return results
    fits = start % windows.slide_us == 0
    kind = results.schema[windows.result or ""].dataType
    if isinstance(kind, StructType):
        end = _micros(col(f"`{windows.result}`.end"), kind["end"].dataType)
        fits = fits & (end - start == windows.length_us)
    checked = results.where(assert_true(fits, _MISFIT).isNull())
    if not windows.overlap:
        return checked
    starts = results.sparkSession.createDataFrame([(int(s),) for s in touched], "_touched bigint")
    return checked.join(broadcast(starts), start == col("_touched"), "left_semi")


def _start_of(results: DataFrame, windows: Windows) -> Column | None:
    """A result's window start in microseconds; `None` if the result has no column with it."""
    if windows.result is None or windows.result not in results.columns:
        return None
    kind = results.schema[windows.result].dataType
    if isinstance(kind, StructType) and {"start", "end"} <= set(kind.names):
        return _micros(col(f"`{windows.result}`.start"), kind["start"].dataType)
    if isinstance(kind, TimestampType | TimestampNTZType):
        return _micros(col(f"`{windows.result}`"), kind)
    return None


def window_column(results: DataFrame) -> str | None:
    """The result's column with a window of Spark's `window` function, if there is one."""
    for field in results.schema.fields:
        if isinstance(field.dataType, StructType) and field.dataType.names == ["start", "end"]:
            return field.name
    return None


def _micros(time: Column, kind: DataType) -> Column:
    if isinstance(kind, TimestampNTZType):  # taken literally, whatever the session's time zone
        return timestamp_diff("MICROSECOND", expr("TIMESTAMP_NTZ'1970-01-01 00:00:00'"), time)
    return unix_micros(time)


@contextmanager
def clear_window_errors() -> Iterator[None]:
    """Turns Spark's error about a window that does not fit into a clear one."""
    try:
        yield
    except PySparkException as error:
        if _MISFIT not in str(error):
            raise
        raise InvalidInputError(
            "the given windows are the windows of the query",
            "a result of another window",
            "give the query's event-time column, length and slide; windows begin at multiples of the slide",
        ) from None
