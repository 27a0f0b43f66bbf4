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

from penstock.cql.bind import Binder
from penstock.cql.catalog import Catalog
from penstock.cql.dialect import parse_scalar
from penstock.cql.engine.vector import column_of
from penstock.cql.errors import CqlError
from penstock.cql.expressions import columns_of
from penstock.cql.types import is_numeric
from penstock.errors import InvalidInputError

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
    """Refuses a text that is no expression, whatever columns there are."""
    _parse(text)


@dataclass(frozen=True, slots=True)
class Number:
    """An expression that gives a number.

    Attributes:
        node: Bound to the columns of a schema.
        columns: Those that it needs, in the schema's order.
    """

    node: exp.Expr
    columns: tuple[str, ...]

    def of(self, rows: pa.RecordBatch) -> Numbers:
        """The number of each row; NaN where it is NULL."""
        found: Numbers = pc.fill_null(column_of(self.node, rows, "DOUBLE"), np.nan).to_numpy()
        return found


@functools.lru_cache(maxsize=256)
def compile_number(text: str, schema: pa.Schema, stream: str = "") -> Number:
    """Binds an expression to the columns of a schema.

    Args:
        text: The expression, in CQL.
        schema: The columns that it may name.
        stream: Their stream, for errors and qualified names.

    Raises:
        InvalidInputError: It names an unknown column, or gives no number.
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
    made = Number(node, tuple(name for name in schema.names if name in named))
    try:
        made.of(pa.RecordBatch.from_pylist([], schema=schema))
    except (pa.ArrowException, AttributeError, KeyError, TypeError) as error:
        raise InvalidInputError(
            "an expression that rows are weighed by can be computed in columns",
            f"{text!r}: {error}",
            "compute it in the stream's source",
        ) from None
    return made


def type_name(kind: pa.DataType) -> str:
    """A column's type as CQL compares it."""
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
