"""Streams as Spark reads them, and the rows of a plan's leaves: what needs no state is plain Spark SQL."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as every Spark program has it

from penstock.cql.engine.run import ORDER
from penstock.cql.plan import Filter, Map, Plan, Scan, UnionAll
from penstock.cql.spark.members import Members, after_watermark
from penstock.cql.spark.text import TIME

BEAT = "_beat"


@dataclass(frozen=True, slots=True)
class Feed:
    """A stream as Spark reads it.

    Attributes:
        rows: A streaming DataFrame.
        columns: Its columns that are the stream's, in the stream's order.
        time: The column with a row's instant, a timestamp.
        order: Spark SQL of a number by which rows of one instant are in order.
        lateness_ms: How far behind the newest row others may come; what comes later is dropped.
        heartbeat: A column that is true in rows that only say how late it is; `None` if there are none.
    """

    rows: DataFrame
    columns: Sequence[str]
    time: str
    order: str = "0L"
    lateness_ms: int = 0
    heartbeat: str | None = None


Feeds = Callable[[str], Feed]
"""Gives the feed of a stream; a plan that reads it twice asks twice."""


def leaf_rows(leaf: Plan, feeds: Feeds, members: Members) -> DataFrame:
    """A leaf's tuples, with `_time` and their order."""
    if isinstance(leaf, Scan):
        return _scanned(leaf, feeds(leaf.stream))
    if isinstance(leaf, UnionAll):
        return members.unite(leaf, [leaf_rows(each, feeds, members) for each in leaf.inputs], TIME, ORDER)
    assert isinstance(leaf, Filter | Map)
    rows = leaf_rows(leaf.input, feeds, members)
    if isinstance(leaf, Filter):
        return members.where(rows, leaf.condition, TIME)
    return members.select(rows, leaf.columns, leaf.items, TIME, ORDER)


def _scanned(leaf: Scan, feed: Feed) -> DataFrame:
    # the watermark is of a column of its own: those of the stream stay without
    columns = [
        F.col(f"`{name}`").cast(column.type).alias(column.name)
        for name, column in zip(feed.columns, leaf.columns, strict=True)
    ]
    time, order = F.col(f"`{feed.time}`").alias(TIME), F.expr(feed.order).alias(ORDER)
    beats = [] if feed.heartbeat is None else [F.col(feed.heartbeat).alias(BEAT)]
    rows = feed.rows.select(*columns, time, order, *beats)
    rows = rows.withWatermark(TIME, f"{feed.lateness_ms} milliseconds")
    return rows.where(after_watermark(f"NOT {BEAT}", TIME)).drop(BEAT) if beats else rows
