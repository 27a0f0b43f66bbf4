"""Queries whose answer is single tuples: they only drop and change tuples of one stream."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as every Spark program has it

from penstock.cql.analysis.windowing import SIC, tuple_by_tuple
from penstock.cql.engine.run import ORDER
from penstock.cql.meaning.plan import Query
from penstock.spark.cql.feeds import Feeds, leaf_rows
from penstock.spark.cql.members import Members
from penstock.spark.cql.text import TIME
from penstock.streams.protocol import KEPT


def rows_of(query: Query, feeds: Feeds) -> DataFrame:
    """A query's tuples under its names, with the further columns of their feed; `_kept` becomes `sic`.

    Raises:
        CqlError: The query does more than drop and change tuples one by one.
    """
    plan = tuple_by_tuple(query.plan)
    rows = leaf_rows(plan, feeds, Members(), watermarked=False)
    columns = [F.col(c.name).alias(name) for c, name in zip(plan.columns, query.names, strict=True)]
    kept = [name for name in rows.columns[len(columns) :] if name not in (TIME, ORDER)]
    return rows.select(*columns, *([F.col(KEPT).alias(SIC)] if kept == [KEPT] else kept))
