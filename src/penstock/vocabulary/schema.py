"""Types of a stream's columns: texts of Spark's DDL and pyarrow types."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pyarrow as pa

from penstock.vocabulary.errors import InvalidInputError, UnknownNameError

_TYPES: dict[str, tuple[str, pa.DataType]] = {
    "tinyint": ("TINYINT", pa.int8()),
    "smallint": ("SMALLINT", pa.int16()),
    "int": ("INT", pa.int32()),
    "bigint": ("BIGINT", pa.int64()),
    "float": ("FLOAT", pa.float32()),
    "double": ("DOUBLE", pa.float64()),
    "string": ("STRING", pa.string()),
    "boolean": ("BOOLEAN", pa.bool_()),
    "timestamp": ("TIMESTAMP", pa.timestamp("us", tz="UTC")),
    "date": ("DATE", pa.date32()),
    "binary": ("BINARY", pa.binary()),
}
_OTHER_NAMES = {"byte": "tinyint", "short": "smallint", "integer": "int", "long": "bigint", "real": "float"}
_DECIMAL = re.compile(r"(?:decimal|dec|numeric)\s*(?:\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\))?")
_HINT = "long, int, double, float, string, boolean, timestamp, date, binary or decimal(p,s)"
_DECIMAL_DIGITS = 38
"""Most digits of a decimal in Spark and Arrow."""


def parse_type(text: str) -> tuple[str, pa.DataType]:
    """A type text such as `bigint` or `decimal(10,2)` as Spark's DDL and as a pyarrow type."""
    name = text.strip().lower()
    name = _OTHER_NAMES.get(name, name)
    if name in _TYPES:
        return _TYPES[name]
    decimal = _DECIMAL.fullmatch(name)
    if decimal is None:
        known = UnknownNameError("a column's type", name, [*_TYPES, *_OTHER_NAMES, "decimal(10,2)"])
        near = known.hint if known.hint.startswith("did") else _HINT
        raise InvalidInputError("a column's type must be one of Spark's simple types", repr(text), near)
    digits, scale = int(decimal[1] or 10), int(decimal[2] or 0)
    if not (1 <= digits <= _DECIMAL_DIGITS and scale <= digits):
        raise InvalidInputError(
            f"decimal(p,s) must have 1 to {_DECIMAL_DIGITS} digits p and s of at most p",
            repr(text),
            "for example decimal(10,2)",
        )
    return f"DECIMAL({digits},{scale})", pa.decimal128(digits, scale)


def arrow_schema(columns: Mapping[str, str]) -> pa.Schema:
    """The columns as a pyarrow schema; all may be null, as in Spark's DDL."""
    return pa.schema([pa.field(name, parse_type(text)[1]) for name, text in columns.items()])
