"""Expressions over whole columns, with NULL as SQL has it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from penstock.cql.language.nodes import WholeDiv

ARROW_TYPES: dict[str, pa.DataType] = {
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "STRING": pa.string(),
    "BOOLEAN": pa.bool_(),
    "TIMESTAMP": pa.timestamp("us", tz="UTC"),
    "DATE": pa.date32(),
    "BINARY": pa.binary(),
}

LARGEST = 2.0**63
"""A double below this, without its fraction, fits a whole number of 64 bits."""


def arrow_type(name: str) -> pa.DataType:
    """A type of a plan's column in Arrow."""
    if name.startswith("ARRAY<"):
        return pa.list_(arrow_type(name[len("ARRAY<") : -1]))
    if name.startswith("DECIMAL("):
        digits, scale = name[len("DECIMAL(") : -1].split(",")
        return pa.decimal128(int(digits), int(scale))
    return ARROW_TYPES[name]


def column_of(node: exp.Expr, rows: pa.Table, name: str) -> pa.ChunkedArray:
    """An expression as a column of a type."""
    made = evaluate(node, rows)
    if isinstance(made, pa.Scalar):
        made = pa.chunked_array([pa.repeat(made, rows.num_rows)])
    if not isinstance(made, pa.ChunkedArray):
        made = pa.chunked_array([made])
    return made.cast(arrow_type(name))


def is_true(node: exp.Expr, rows: pa.Table) -> pa.Array:
    """Which rows fulfil a condition: it is neither false nor NULL."""
    made = column_of(node, rows, "BOOLEAN")
    return pc.fill_null(made, False)


def evaluate(node: exp.Expr, rows: pa.Table) -> Any:
    """The value of an expression: a column, or a scalar if the expression has no columns."""
    if isinstance(node, exp.Column):
        return rows.column(node.name)
    if isinstance(node, exp.Literal):
        if node.args.get("is_string"):
            return pa.scalar(node.name)
        return pa.scalar(int(node.name) if node.name.isdigit() else float(node.name))
    if isinstance(node, exp.Null):
        return pa.scalar(None)
    if isinstance(node, exp.Boolean):
        return pa.scalar(bool(node.this))
    if isinstance(node, exp.Cast):
        made = evaluate(node.this, rows)
        return _whole(made) if node.to.this.value == "BIGINT" else pc.cast(made, pa.float64(), safe=False)
    if isinstance(node, exp.Case):
        return _case(node, rows)
    return _OPERATIONS[type(node)](*[evaluate(each, rows) for each in node.iter_expressions()])


def _case(node: exp.Case, rows: pa.Table) -> Any:
    default = node.args.get("default")
    conditions, values = [], []
    for branch in node.args["ifs"]:
        condition = (
            branch.this if node.this is None else exp.EQ(this=node.this.copy(), expression=branch.this.copy())
        )
        conditions.append(is_true(condition, rows))
        values.append(evaluate(branch.args["true"], rows))
    made = pa.scalar(None) if default is None else evaluate(default, rows)
    for condition, value in reversed(list(zip(conditions, values, strict=True))):
        made = pc.if_else(condition, value, made)
    return made


def _divide(a: Any, b: Any) -> Any:
    divisor = pc.cast(b, pa.float64())
    return pc.divide(
        pc.cast(a, pa.float64()), pc.if_else(pc.equal(divisor, 0.0), pa.scalar(None, pa.float64()), divisor)
    )


def _divide_whole(a: Any, b: Any) -> Any:
    """Division without the fraction; NULL for a zero. In doubles if whole numbers are computed in doubles."""
    b = pc.if_else(pc.equal(b, 0), pa.scalar(None, b.type), b)
    made = pc.divide(a, b)
    return pc.trunc(made) if pa.types.is_floating(made.type) else made


def _whole(value: Any) -> Any:
    """A number without its fraction; NULL for a value that no whole number can be."""
    if pa.types.is_integer(value.type):
        return pc.cast(value, pa.int64())
    value = pc.cast(value, pa.float64())
    fits = pc.less(pc.abs(value), LARGEST)  # false for NaN
    return pc.cast(pc.if_else(fits, value, pa.scalar(None, pa.float64())), pa.int64(), safe=False)


def _modulo(a: Any, b: Any) -> Any:
    """The remainder with the sign of the dividend, as in SQL; NULL for a zero."""
    whole = pa.types.is_integer(a.type) and pa.types.is_integer(b.type)
    b = pc.if_else(pc.equal(b, 0), pa.scalar(None, b.type), b)
    quotient = pc.divide(a, b)
    return pc.subtract(a, pc.multiply(b, quotient if whole else pc.trunc(quotient)))


def _in(wanted: Any, *values: Any) -> Any:
    made = pc.equal(wanted, values[0])
    for value in values[1:]:
        made = pc.or_kleene(made, pc.equal(wanted, value))
    return made


def _is(value: Any, other: Any) -> Any:
    if not other.is_valid:
        return pc.is_null(value)
    return pc.fill_null(pc.equal(value, other), False)


def _like(value: Any, pattern: Any) -> Any:
    return pc.match_like(value, pattern.as_py())


def _between(value: Any, low: Any, high: Any) -> Any:
    return pc.and_kleene(pc.greater_equal(value, low), pc.less_equal(value, high))


def _round(value: Any, digits: Any = None) -> Any:
    """Rounds; halves away from zero, as in SQL."""
    return pc.round(value, 0 if digits is None else digits.as_py(), round_mode="half_towards_infinity")


_OPERATIONS: dict[type, Callable[..., Any]] = {
    exp.Paren: lambda a: a,
    exp.Neg: pc.negate,
    exp.Not: pc.invert,
    exp.Add: pc.add,
    exp.Sub: pc.subtract,
    exp.Mul: pc.multiply,
    exp.Div: _divide,
    WholeDiv: _divide_whole,
    exp.Mod: _modulo,
    exp.EQ: pc.equal,
    exp.NEQ: pc.not_equal,
    exp.GT: pc.greater,
    exp.GTE: pc.greater_equal,
    exp.LT: pc.less,
    exp.LTE: pc.less_equal,
    exp.And: pc.and_kleene,
    exp.Or: pc.or_kleene,
    exp.Between: _between,
    exp.In: _in,
    exp.Like: _like,
    exp.Is: _is,
    exp.Coalesce: pc.coalesce,
    exp.Abs: pc.abs,
    exp.Round: _round,
    exp.Floor: pc.floor,
    exp.Ceil: pc.ceil,
    exp.Lower: pc.utf8_lower,
    exp.Upper: pc.utf8_upper,
    exp.Length: pc.utf8_length,
}
