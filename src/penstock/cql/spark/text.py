"""Expressions of a plan as Spark SQL."""

from __future__ import annotations

from sqlglot import exp

from penstock.cql.engine.run import ORDER
from penstock.cql.plan import Column
from penstock.cql.types import KEPT

TIME = "_time"
"""The column with a tuple's instant, which has the watermark."""
DRAWS = 1_000_000
"""To so many different fractions KEPT is exact."""


def spark_sql(node: exp.Expr, column: Column | None = None) -> str:
    """An expression over a plan's columns as Spark's SQL has it, cast to the type of a column if given one.

    A division by zero is NULL, where Spark's default is an error.
    """
    text: str = node.transform(_as_spark, copy=True).sql(dialect="spark")
    return text if column is None else f"CAST({text} AS {column.type})"


def _as_spark(node: exp.Expr) -> exp.Expr:
    if isinstance(node, exp.Anonymous) and str(node.this).upper() == KEPT:
        return _kept(*(each.sql(dialect="spark") for each in node.expressions))
    if isinstance(node, exp.Div):
        sides = [exp.cast(side, "double") for side in (node.this, node.expression)]
        return exp.Anonymous(this="try_divide", expressions=sides)
    if isinstance(node, exp.Mod):
        return exp.Anonymous(this="try_mod", expressions=[node.this, node.expression])
    return node


def _kept(fraction: str, window_s: str | None = None) -> exp.Expr:
    """A tuple's place in its stream decides, or its window: the same are kept when a batch is run again."""
    drawn = f"{TIME}, {ORDER}"
    if window_s is not None:
        drawn = f"unix_micros({TIME}) div CAST({window_s} * 1000000 AS BIGINT)"
    return exp.Var(this=f"(pmod(xxhash64({drawn}), {DRAWS}L) < {fraction} * {DRAWS})")
