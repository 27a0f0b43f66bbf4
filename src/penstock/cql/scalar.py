"""An expression over a stream's columns that gives a number for each row, computed in columns."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from penstock.cql.engine.vector import column_of
from penstock.cql.errors import CqlError
from penstock.cql.language.dialect import parse_scalar
from penstock.cql.language.nodes import WholeDiv
from penstock.cql.meaning.bind import Binder
from penstock.cql.meaning.catalog import Catalog
from penstock.cql.meaning.expressions import columns_of, rewritten
from penstock.cql.meaning.types import is_numeric
from penstock.vocabulary.errors import InvalidInputError

Numbers = npt.NDArray[np.float64]

_FAMILIES: list[tuple[Callable[[pa.DataType], bool], str]] = [
    (pa.types.is_integer, "BIGINT"),
    (pa.types.is_floating, "DOUBLE"),
    (pa.types.is_boolean, "BOOLEAN"),
    (pa.types.is_timestamp, "TIMESTAMP"),
    (pa.types.is_date, "DATE"),
    (pa.types.is_string, "STRING"),
    (pa.types.is_large_string, "STRING"),
]


def check_syntax(text: str) -> None:
    """Refuses a text that is no expression, whatever the columns are."""
    _parse(text)


@dataclass(frozen=True, slots=True)
class Number:
    """An expression that gives a number.

    Attributes:
        node: The expression, bound to the columns of a schema and computed in doubles: see `_in_doubles`.
        columns: Columns that the expression needs, in the schema's order.
    """

    node: exp.Expr
    columns: tuple[str, ...]

    def of(self, rows: pa.RecordBatch) -> Numbers:
        """The number of each row; NaN if it is NULL."""
        found: Numbers = pc.fill_null(column_of(self.node, rows, "DOUBLE"), np.nan).to_numpy()
        return found


@functools.lru_cache(maxsize=256)
def compile_number(text: str, schema: pa.Schema, stream: str = "") -> Number:
    """Binds an expression to the columns of a schema.

    Args:
        text: The expression, in CQL.
        schema: The columns that the expression may name.
        stream: Name of the stream, for errors and qualified names.

    Raises:
        InvalidInputError: The expression names an unknown column, or gives no number.
    """
    columns = {field.name: type_name(field.type) for field in schema}
    try:
        node, kind = Binder(Catalog(), text).scalar(_parse(text), columns, stream)
    except CqlError as error:
        error.rule = error.rule.replace("in FROM", f"of stream {stream}")
        raise _as_invalid(error, text) from None
    if not is_numeric(kind) and kind != "NULL":
        raise InvalidInputError(
            "an expression that rows are weighed by gives a number",
            f"{text!r} of type {kind}",
            "for example CASE WHEN urgent THEN 1 ELSE 0 END",
        )

    named = columns_of(node)
    made = Number(_in_doubles(node, schema), tuple(name for name in schema.names if name in named))
    try:
        made.of(pa.RecordBatch.from_pylist([], schema=schema))
    except (pa.ArrowException, AttributeError, KeyError, TypeError) as error:
        raise InvalidInputError(
            "an expression that rows are weighed by can be computed in columns",
            f"{text!r}: {error}",
            "compute it in the stream's source",
        ) from None
    return made


_EXACT = (exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.Between, exp.In)


def _in_doubles(node: exp.Expr, schema: pa.Schema) -> exp.Expr:
    """The expression with every number as a double.

    Products of integers could wrap, so that the best rows would be shed first; integers beyond 2^53 beside a
    double would be refused. The result is a double in any case. Integers that are compared with integers stay
    integers, so that comparisons are exact.
    """

    def with_doubles(each: exp.Expr) -> exp.Expr:
        if isinstance(each, _EXACT) and all(_is_whole(part, schema) for part in each.iter_expressions()):
            return each.copy()  # the inside of a copy is not visited
        if each.arg_key == "decimals":
            return each
        if isinstance(each, exp.Cast):
            return exp.cast(exp.cast(_in_doubles(each.this, schema), each.to), "DOUBLE")
        if isinstance(each, exp.Literal) and not each.is_string:
            return exp.Literal(this=repr(float(each.name)), is_string=False)
        named = isinstance(each, exp.Column) and is_numeric(type_name(schema.field(each.name).type))
        if named or _is_whole(each, schema):
            return exp.cast(each.copy(), "DOUBLE")
        return each

    return rewritten(node, with_doubles)


def _is_whole(node: exp.Expr, schema: pa.Schema) -> bool:
    """Whether an expression is an integer of 64 bits that no computation can have wrapped."""
    if isinstance(node, exp.Column):
        kind = schema.field(node.name).type
        return pa.types.is_integer(kind) and kind != pa.uint64()
    if isinstance(node, exp.Literal):
        return not node.is_string and node.name.isdigit() and int(node.name) < 2**63
    if isinstance(node, exp.Mod | WholeDiv):
        return _is_whole(node.this, schema) and _is_whole(node.expression, schema)
    if isinstance(node, exp.Paren):
        return _is_whole(node.this, schema)
    return isinstance(node, exp.Length) or (
        isinstance(node, exp.Neg) and isinstance(node.this, exp.Literal) and _is_whole(node.this, schema)
    )


def type_name(kind: pa.DataType) -> str:
    """The name of a column's type in CQL's comparisons."""
    if pa.types.is_decimal(kind):
        return f"DECIMAL({kind.precision},{kind.scale})"
    return next((name for is_one, name in _FAMILIES if is_one(kind)), str(kind).upper())


def quoted(name: str) -> str:
    """A column's name as an expression."""
    return '"' + name.replace('"', '""') + '"'


def _parse(text: str) -> exp.Expr:
    try:
        node = parse_scalar(text)
    except CqlError as error:
        raise _as_invalid(error, text) from None
    called = node.find(exp.Anonymous)
    if called is not None:
        raise InvalidInputError(
            "an expression that rows are weighed by calls functions of one row",
            f"{called.this} in {text!r}",
            "ABS, ROUND, FLOOR, CEIL, COALESCE, LENGTH",
        )
    return node


def _as_invalid(error: CqlError, text: str) -> InvalidInputError:
    return InvalidInputError(error.rule, f"{error.got} in {text!r}", error.hint)
