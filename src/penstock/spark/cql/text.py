"""Expressions of a plan as Spark SQL."""

from __future__ import annotations

from sqlglot import exp

from penstock.cql.engine.run import ORDER
from penstock.cql.language.nodes import WholeDiv
from penstock.cql.meaning.expressions import place_of
from penstock.cql.meaning.plan import Column
from penstock.cql.meaning.types import KEPT

TIME = "_time"
"""The column with a tuple's instant, which has the watermark."""
DRAWS = 1_000_000
"""KEPT is exact to this many different fractions."""


def spark_sql(node: exp.Expr, column: Column | None = None) -> str:
    """An expression over a plan's columns in Spark SQL, cast to the type of a column if one is given.

    A division by zero gives NULL; Spark's default is an error.
    """
    text: str = _spark(node).sql(dialect="spark")
    return text if column is None else f"CAST({text} AS {column.type})"


def _spark(node: exp.Expr) -> exp.Expr:
    return node.transform(_as_spark, copy=True)


def _as_spark(node: exp.Expr) -> exp.Expr:
    # the inside of a replaced node is not visited again, so it is converted first
    if isinstance(node, exp.Anonymous) and str(node.this).upper() == KEPT:
        place = place_of(node)
        return _kept(0 if place is None else place.start, *(_spark(e).sql("spark") for e in node.expressions))
    if isinstance(node, exp.Div):
        floats = [exp.cast(_spark(side), "double") for side in (node.this, node.expression)]
        return exp.Anonymous(this="try_divide", expressions=floats)
    if isinstance(node, WholeDiv):
        texts = [_spark(side).sql("spark") for side in (node.this, node.expression)]
        return exp.Var(this=f"({texts[0]} div nullif({texts[1]}, 0L))")
    if isinstance(node, exp.Cast):  # NULL for a value that cannot be cast
        return exp.TryCast(this=_spark(node.this), to=node.to.copy())
    if isinstance(node, exp.Mod):
        sides = [_spark(side) for side in (node.this, node.expression)]
        return exp.Anonymous(this="try_mod", expressions=sides)
    if isinstance(node, exp.Literal) and not node.is_string and not node.name.isdigit():
        return exp.Var(this=f"{node.name}D")  # 0.1 would be a decimal
    return node


def _kept(salt: int, fraction: str, window_s: str | None = None) -> exp.Expr:
    """Decides by a tuple's place in its stream, or by its window: a batch that is run again keeps the same.

    The salt makes the calls of a text independent: two drops of a half, one after the other, leave a quarter.
    """
    drawn = f"{TIME}, {ORDER}"
    if window_s is not None:
        drawn = f"unix_micros({TIME}) div CAST({window_s} * 1000000 AS BIGINT)"
    return exp.Var(this=f"(pmod(xxhash64({drawn}, {salt}L), {DRAWS}L) < {fraction} * {DRAWS})")
