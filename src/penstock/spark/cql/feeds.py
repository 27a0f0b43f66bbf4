"""Streams as Spark reads them, and the rows of a plan's leaves: plain Spark SQL, as they need no state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as every Spark program has it

from penstock.cql.analysis.windowing import QUERY
from penstock.cql.engine.bag import SIGN
from penstock.cql.engine.run import ORDER
from penstock.cql.meaning.plan import Base, Filter, Map, Plan, Scan, UnionAll
from penstock.spark.cql.members import Members, after_watermark
from penstock.spark.cql.text import TIME
from penstock.streams.protocol import KEPT

BEAT = "_beat"


@dataclass(frozen=True, slots=True)
class Feed:
    """A stream as Spark reads it.

    Attributes:
        rows: A streaming DataFrame.
        columns: Columns of the DataFrame that are the stream's, in the stream's order.
        time: The column with a row's instant, a timestamp.
        order: Spark SQL of a number that orders rows of one instant.
        lateness_ms: How far a row may be behind the newest row; later rows are dropped. `None` for a
            relation whose changes are never late, and for which no answer waits.
        heartbeat: A column that is true in rows that only say how late it is; `None` if there are none.
        kept: Further columns of the rows, which stay beside the stream's columns if tuples are given singly.
        sign: For a relation, Spark SQL that is 1 for a row that inserts, -1 for a row that deletes. Rows for
            which it is NULL are left out.
    """

    rows: DataFrame
    columns: Sequence[str]
    time: str
    order: str = "0L"
    lateness_ms: int | None = 0
    heartbeat: str | None = None
    kept: Sequence[str] = ()
    sign: str | None = None


Feeds = Callable[[str], Feed]
"""Gives the feed of a stream; a plan that reads a stream twice asks twice."""


def leaf_rows(leaf: Plan, feeds: Feeds, members: Members, watermarked: bool = True) -> DataFrame:
    """A leaf's tuples, with `_time`, their order, and the further columns of their feed.

    Args:
        leaf: The leaf.
        feeds: Gives the streams.
        members: The family's queries.
        watermarked: Whether later operators use the watermark.
    """
    if isinstance(leaf, Scan):
        return scanned(leaf, feeds(leaf.stream), watermarked)
    if isinstance(leaf, UnionAll):
        sides = [leaf_rows(each, feeds, members) for each in leaf.inputs]
        kept = [KEPT] if all(KEPT in rows.columns for rows in sides) else []
        return members.unite(leaf, sides, TIME, ORDER, *kept)
    assert isinstance(leaf, Filter | Map)
    rows = leaf_rows(leaf.input, feeds, members, watermarked)
    if isinstance(leaf, Filter):
        return members.where(rows, leaf.condition, TIME if watermarked else None)
    columns = {column.name for column in leaf.input.columns}
    kept = [name for name in rows.columns if name not in columns and name != QUERY]
    return members.select(rows, leaf.columns, leaf.items, *kept)


def scanned(leaf: Scan | Base, feed: Feed, watermarked: bool = True) -> DataFrame:
    """The rows of a stream, see `leaf_rows`; for a relation its changes, with their sign as `_d`."""
    # the watermark is on a column of its own, so that the stream's columns have none
    columns = [
        F.col(f"`{name}`").cast(column.type).alias(column.name)
        for name, column in zip(feed.columns, leaf.columns, strict=True)
    ]
    time, order = F.col(f"`{feed.time}`").alias(TIME), F.expr(feed.order).alias(ORDER)
    beats = [] if feed.heartbeat is None else [F.col(feed.heartbeat).alias(BEAT)]
    signs = [] if feed.sign is None else [F.expr(feed.sign).alias(SIGN)]
    rows = feed.rows.select(*columns, time, order, *feed.kept, *signs, *beats)
    if signs:
        rows = rows.where(f"{SIGN} IS NOT NULL")
    if watermarked and feed.lateness_ms is not None:
        rows = rows.withWatermark(TIME, f"{feed.lateness_ms} milliseconds")
    return rows.where(after_watermark(f"NOT {BEAT}", TIME)).drop(BEAT) if beats else rows
