"""Expressions of a plan as Spark SQL."""

from __future__ import annotations

from sqlglot import exp

from penstock.cql.plan import Column


def spark_sql(node: exp.Expr, column: Column | None = None) -> str:
    """An expression over a plan's columns as Spark's SQL has it, cast to the type of a column if given one.

    A division by zero is NULL, where Spark's default is an error.
    """
    text: str = node.transform(_as_spark, copy=True).sql(dialect="spark")
    return text if column is None else f"CAST({text} AS {column.type})"


def _as_spark(node: exp.Expr) -> exp.Expr:
    if isinstance(node, exp.Div):
        sides = [exp.cast(side, "double") for side in (node.this, node.expression)]
        return exp.Anonymous(this="try_divide", expressions=sides)
    if isinstance(node, exp.Mod):
        return exp.Anonymous(this="try_mod", expressions=[node.this, node.expression])
    return node
