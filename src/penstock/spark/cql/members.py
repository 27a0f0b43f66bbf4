"""The queries of a family, as a small table of their constants with which Spark joins rows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as every Spark program has it
from sqlglot import exp

from penstock.cql.analysis.families import PARAMETER, Family, parameters_in
from penstock.cql.analysis.windowing import QUERY
from penstock.cql.meaning.expressions import all_of, conjuncts
from penstock.cql.meaning.plan import Column, UnionAll
from penstock.spark.cql.text import spark_sql
from penstock.streams.files import replace_text


def write_members(file: Path, family: Family) -> None:
    """Writes the table of a family's queries, whole or not at all.

    A streaming query that reads it (`Members(..., file)`) has these queries from its next micro-batch on.
    """
    names = [QUERY, *(f"{PARAMETER}{i}" for i in range(len(family.shape.types)))]
    rows = [dict(zip(names, (name, *values), strict=True)) for name, values in family.members.items()]
    file.parent.mkdir(parents=True, exist_ok=True)
    replace_text(file, json.dumps(rows))


def after_watermark(condition: str, time: str) -> str:
    """A condition that Spark does not evaluate before the watermark, since that goes by the time of all rows.

    Spark moves conditions below the watermark unless they have its column. A stream of which nobody wants a
    row for a while would keep its windows open.
    """
    return f"CASE WHEN {time} IS NULL THEN FALSE ELSE {condition} END"


class Members:
    """What to do with expressions that may have parameters.

    Rows without a `query` column are for all of them. A condition with parameters gives each row to the
    queries whose constants fulfil it; equalities are looked up in a hash table.

    Args:
        spark: The session.
        family: Its queries; `None` for a query by itself, which has no parameters.
        file: From `write_members`, if queries may come and go while it runs; executors must reach it.
    """

    def __init__(
        self, spark: SparkSession | None = None, family: Family | None = None, file: Path | None = None
    ) -> None:
        if spark is None or family is None:
            return
        types = [f"{PARAMETER}{i} {kind}" for i, kind in enumerate(family.shape.types)]
        schema = ", ".join([f"{QUERY} STRING", *types])
        if file is None:
            rows = [(name, *constants) for name, constants in family.members.items()]
            self._table = spark.createDataFrame(rows, schema)
        else:
            # Spark lists a plan's files once, but reads one of several lines anew, and whole, in every batch
            reader = spark.read.schema(schema).option("multiLine", True).option("mode", "FAILFAST")
            self._table = reader.json(file.as_uri())

    def where(self, rows: DataFrame, condition: exp.Expr, time: str | None = None) -> DataFrame:
        """The rows that fulfil a condition.

        Args:
            rows: Which.
            condition: Over their columns.
            time: The column with the watermark, where a stream's own rows are chosen; see `after_watermark`.
        """
        terms = list(conjuncts(condition))
        for term in terms:
            if not parameters_in([term]):
                text = spark_sql(term)
                rows = rows.where(text if time is None else after_watermark(text, time))
        asked = all_of([term for term in terms if parameters_in([term])])
        if asked is None:
            return rows
        if QUERY in rows.columns:
            return self._with_constants(rows).where(spark_sql(asked)).select(*rows.columns)
        fulfilled = F.expr(spark_sql(asked))
        return rows.join(F.broadcast(self._table), fulfilled).select(*rows.columns, QUERY)

    def select(
        self, rows: DataFrame, columns: Sequence[Column], items: Sequence[exp.Expr], *kept: str
    ) -> DataFrame:
        """Expressions over rows as these columns, beside those that stay."""
        if parameters_in(items):
            rows = self._with_constants(rows)
        made = [
            F.expr(spark_sql(item, column)).alias(column.name)
            for column, item in zip(columns, items, strict=True)
        ]
        return rows.select(*made, *kept, *self.of(rows))

    def unite(self, plan: UnionAll, sides: Sequence[DataFrame], *kept: str) -> DataFrame:
        """The rows of both sides in the columns of their union, beside those that stay."""
        if any(map(self.of, sides)):
            sides = [self.for_all(rows) for rows in sides]
        alike = []
        for rows, side in zip(sides, plan.inputs, strict=True):
            columns = [
                F.col(column.name).cast(own.type).alias(own.name)
                for column, own in zip(side.columns, plan.columns, strict=True)
            ]
            alike.append(rows.select(*columns, *kept, *self.of(rows)))
        return alike[0].unionByName(alike[1])

    def _with_constants(self, rows: DataFrame) -> DataFrame:
        if QUERY in rows.columns:
            return rows.join(F.broadcast(self._table), QUERY)
        return rows.join(F.broadcast(self._table))

    @staticmethod
    def of(rows: DataFrame) -> list[str]:
        """The column that tells whose rows are, if it is there."""
        return [QUERY] if QUERY in rows.columns else []

    def for_all(self, rows: DataFrame) -> DataFrame:
        """Rows with the query that each is for: those that are for all of them, once for each.

        What the state still has of a query that is no member any more is left out. (By an inner join: Spark
        moves a semi-join below the state.)
        """
        names = F.broadcast(self._table.select(QUERY))
        return rows.join(names, QUERY) if QUERY in rows.columns else rows.join(names)
