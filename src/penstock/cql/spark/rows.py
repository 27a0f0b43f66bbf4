"""The tuples themselves, one by one: queries that only drop and change tuples of one stream."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as every Spark program has it

from penstock.cql.engine.run import ORDER
from penstock.cql.plan import Query
from penstock.cql.spark.feeds import Feeds, leaf_rows
from penstock.cql.spark.members import Members
from penstock.cql.spark.text import TIME
from penstock.cql.windowing import tuple_by_tuple


def rows_of(query: Query, feeds: Feeds) -> DataFrame:
    """A query's tuples under its names, with what their feed says to keep.

    Raises:
        CqlError: It does more than to drop and change tuples one by one.
    """
    plan = tuple_by_tuple(query.plan)
    rows = leaf_rows(plan, feeds, Members(), watermarked=False)
    columns = [F.col(c.name).alias(name) for c, name in zip(plan.columns, query.names, strict=True)]
    kept = rows.columns[len(columns) :]
    return rows.select(*columns, *(name for name in kept if name not in (TIME, ORDER)))
