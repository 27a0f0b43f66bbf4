"""Each window's result once, when it closes: Spark's own windows, in append mode.

A query over time windows is a plain Spark plan here, with `window_start` and `window_end` beside its columns,
and `sic` if its feeds say which fraction of their rows was admitted. A window has the tuples from its start
until before its end, and closes when the watermark passes its end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as every Spark program has it

from penstock.cql.analysis.families import Family
from penstock.cql.analysis.windowing import QUERY, SIC, WINDOW_COLUMNS, closing_windows
from penstock.cql.meaning.plan import (
    Aggregate,
    Aggregation,
    Distinct,
    Filter,
    Join,
    Map,
    Plan,
    Query,
    Scan,
    UnionAll,
    Windowed,
)
from penstock.spark.cql.feeds import Feeds, leaf_rows
from penstock.spark.cql.members import Members
from penstock.spark.cql.text import TIME, spark_sql
from penstock.streams.protocol import KEPT

WINDOW = "_window"


def windows_of(query: Query, feeds: Feeds) -> DataFrame:
    """A query's results by window: `window_start`, `window_end` and its columns.

    Args:
        query: The query to compute.
        feeds: Gives the streams.

    Raises:
        CqlError: The query's windows do not close; see `penstock.cql.analysis.windowing`.
    """
    plan = closing_windows(query.plan)
    return _named(Compiler(feeds, Members()).rows(plan), plan, query.names)


def family_windows_of(
    spark: SparkSession, family: Family, feeds: Feeds, file: Path | None = None
) -> DataFrame:
    """The results of all queries of a family; column `query` has the name of the query that a row is for.

    Args:
        spark: The session.
        family: The family to compute.
        feeds: Gives the streams.
        file: File with the table of the family's queries, read again in each micro-batch; `write_members`.
    """
    members, plan = Members(spark, family, file), closing_windows(family.shape.plan)
    made = members.for_all(Compiler(feeds, members).rows(plan))
    return _named(made, plan, family.shape.names)


def _named(made: DataFrame, plan: Plan, names: Sequence[str]) -> DataFrame:
    columns = [F.col(column.name).alias(name) for column, name in zip(plan.columns, names, strict=True)]
    sic = [F.col(name).alias(SIC) for name in kept_column(made)]
    return made.select(*Members.of(made), *window_columns(WINDOW), *columns, *sic)


def window_columns(window: str) -> list[SparkColumn]:
    """`window_start` and `window_end` of a column with a window."""
    start, end = WINDOW_COLUMNS
    return [F.col(f"{window}.start").alias(start), F.col(f"{window}.end").alias(end)]


def kept_column(rows: DataFrame) -> list[str]:
    """The column `_kept`, if the rows have it."""
    return [KEPT] if KEPT in rows.columns else []


class Compiler:
    """Makes DataFrames of plans whose windows close together.

    Args:
        feeds: Gives the streams.
        members: The family's queries.
    """

    def __init__(self, feeds: Feeds, members: Members) -> None:
        self._feeds, self._members = feeds, members

    def rows(self, plan: Plan) -> DataFrame:
        """The tuples of a plan with their window; also with their query, if not for the whole family."""
        if isinstance(plan, Windowed):
            window = F.window(TIME, micros(plan.window.size), micros(plan.window.slide or plan.window.size))
            rows = leaf_rows(plan.input, self._feeds, self._members)
            names = [column.name for column in plan.columns]
            return rows.select(window.alias(WINDOW), *names, *kept_column(rows), *Members.of(rows))
        inputs = [self.rows(each) for each in plan.inputs]
        if isinstance(plan, Filter):
            return self._members.where(inputs[0], plan.condition)
        if isinstance(plan, Map):
            return self._members.select(inputs[0], plan.columns, plan.items, WINDOW, *kept_column(inputs[0]))
        if isinstance(plan, Aggregate):
            aggregates = zip(plan.columns[len(plan.keys) :], plan.aggregates, strict=True)
            made = [_aggregate(each).cast(column.type).alias(column.name) for column, each in aggregates]
            # each row represents 1 / kept rows
            made += [F.expr(f"count(*) / sum(1 / {name})").alias(name) for name in kept_column(inputs[0])]
            return inputs[0].groupBy(WINDOW, *Members.of(inputs[0]), *plan.keys).agg(*made)
        if isinstance(plan, Distinct):
            names = [column.name for column in plan.columns]
            return inputs[0].dropDuplicates([WINDOW, *Members.of(inputs[0]), *names])
        if isinstance(plan, UnionAll):
            kept = kept_column(inputs[0]) if all(map(kept_column, inputs)) else []
            return self._members.unite(plan, inputs, WINDOW, *kept)
        assert isinstance(plan, Join)
        return self._joined(plan, *inputs)

    def _joined(self, plan: Join, left: DataFrame, right: DataFrame) -> DataFrame:
        other = right.withColumnRenamed(WINDOW, "_other")
        condition = F.col(WINDOW) == F.col("_other")
        if Members.of(left) and Members.of(right):
            other = other.withColumnRenamed(QUERY, "_others")
            condition &= F.col(QUERY) == F.col("_others")
        for a, b in plan.equal:
            condition &= F.col(a) == F.col(b)
        if plan.condition is not None:
            condition &= F.expr(spark_sql(plan.condition))
        if not (kept_column(left) and kept_column(right)):
            return left.join(other, condition).drop("_other", "_others", KEPT)
        joined = left.join(other.withColumnRenamed(KEPT, "_other_kept"), condition)
        both = [sum(isinstance(leaf, Scan) for leaf in side.walk()) for side in plan.inputs]
        mean = f"({KEPT} * {both[0]} + _other_kept * {both[1]}) / {sum(both)}"
        return joined.withColumn(KEPT, F.expr(mean)).drop("_other", "_others", "_other_kept")


def _aggregate(each: Aggregation) -> SparkColumn:
    columns = [F.col(name) for name in each.arguments]
    if each.function == "COUNT":
        return F.count(columns[0] if columns else F.lit(1))
    if each.function == "TOP":  # ties are ordered by the shown value, as in relation mode
        shown, by = columns[0], columns[-1]
        both = F.when(shown.isNotNull() & by.isNotNull(), F.struct(by, shown))
        return F.max_by(shown, both, each.k)
    functions: dict[str, Callable[..., SparkColumn]] = {
        "SUM": F.sum,
        "AVG": F.avg,
        "MIN": F.min,
        "MAX": F.max,
        "STDDEV": F.stddev_samp,
        "COV": F.covar_samp,
    }
    return functions[each.function](*columns)


def micros(size: int) -> str:
    """A length of time as Spark's windows want it."""
    return f"{size} microseconds"
