"""The queries of a family: a small table of their constants, which Spark joins with rows."""

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

    A streaming query that reads the table (`Members(..., file)`) has these queries from its next micro-batch.
    """
    names = [QUERY, *(f"{PARAMETER}{i}" for i in range(len(family.shape.types)))]
    rows = [dict(zip(names, (name, *values), strict=True)) for name, values in family.members.items()]
    file.parent.mkdir(parents=True, exist_ok=True)
    replace_text(file, json.dumps(rows))


def after_watermark(condition: str, time: str) -> str:
    """Rewrites a condition so that Spark evaluates it after the watermark, which needs the time of all rows.

    Spark moves a condition below the watermark unless the condition has the watermark's column. If no row of
    a stream then fulfilled the condition for a while, windows would stay open.
    """
    return f"CASE WHEN {time} IS NULL THEN FALSE ELSE {condition} END"


class Members:
    """Applies expressions that may have parameters, whose values differ between the queries of a family.

    Rows without a `query` column are for all queries. A condition with parameters gives each row to the
    queries whose constants fulfil it; equalities are looked up in a hash table.

    Args:
        spark: The session.
        family: The family; `None` for a single query, which has no parameters.
        file: File of `write_members`, if queries may come and go during the run; executors must reach it.
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
            # Spark lists a plan's files once, but reads a multi-line file again, and whole, in every batch
            reader = spark.read.schema(schema).option("multiLine", True).option("mode", "FAILFAST")
            self._table = reader.json(file.as_uri())

    def where(self, rows: DataFrame, condition: exp.Expr, time: str | None = None) -> DataFrame:
        """The rows that fulfil a condition.

        Args:
            rows: The rows to choose from.
            condition: A condition over the columns of the rows.
            time: The column with the watermark, if the rows are a stream's own; see `after_watermark`.
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
        """Computes columns from expressions over rows, beside columns that stay."""
        if parameters_in(items):
            rows = self._with_constants(rows)
        made = [
            F.expr(spark_sql(item, column)).alias(column.name)
            for column, item in zip(columns, items, strict=True)
        ]
        return rows.select(*made, *kept, *self.of(rows))

    def unite(self, plan: UnionAll, sides: Sequence[DataFrame], *kept: str) -> DataFrame:
        """The rows of both sides in the columns of their union, beside columns that stay."""
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
        """The column that says for which query a row is, if the rows have it."""
        return [QUERY] if QUERY in rows.columns else []

    def for_all(self, rows: DataFrame) -> DataFrame:
        """Rows with the query that each row is for; a row that is for all queries comes once for each.

        Rows that the state still has of a former member are left out. (By an inner join, because Spark moves
        a semi-join below the state.)
        """
        names = F.broadcast(self._table.select(QUERY))
        return rows.join(names, QUERY) if QUERY in rows.columns else rows.join(names)
