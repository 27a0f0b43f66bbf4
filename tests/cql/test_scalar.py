"""Expressions that stand alone and give a number for each row."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from penstock.cql.scalar import check_syntax, compile_number, quoted
from penstock.vocabulary.errors import InvalidInputError

ROWS = pa.record_batch(
    {
        "v": pa.array([1, 2, None, 4], pa.int32()),
        "x": [1.5, float("nan"), 2.0, None],
        "s": ["a", "b", "c", "d"],
        'odd "name"': [1, 2, 3, 4],
        "cents": pa.array([Decimal(i) for i in (1, 2, 3, 4)], pa.decimal128(10, 2)),
        "urgent": [True, False, True, None],
        "at": pa.array([1, 2, 3, 4], pa.timestamp("us")),
        "tags": [[1], [2], [3], [4]],
    }
)
NAN = np.nan


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("v", [1, 2, NAN, 4]),
        ("V * 2 + x", [3.5, NAN, NAN, NAN]),
        ("readings.v % 2", [1, 0, NAN, 0]),
        ("CASE WHEN s = 'a' THEN 10 ELSE v END", [10, 2, NAN, 4]),
        ("CASE WHEN urgent THEN 1 ELSE 0 END", [1, 0, 1, 0]),
        ("coalesce(v, -1) / 2", [0, 1, 0, 2]),
        ("(v * 3) / 2", [1, 3, NAN, 6]),
        ("CAST(v AS float) / 2", [0.5, 1, NAN, 2]),
        ("CAST(x * 2.9 AS int) / 2 + v / 3", [2, NAN, NAN, NAN]),
        ("CASE WHEN v / 2 = 1 THEN 5 ELSE 0 END", [0, 5, 0, 0]),
        ("cents", [1, 2, 3, 4]),
        ("length(s)", [1, 1, 1, 1]),
        ("7", [7, 7, 7, 7]),
        ("v / 0", [NAN] * 4),
        (quoted('odd "name"'), [1, 2, 3, 4]),
    ],
)
def test_a_number_for_each_row_and_nan_for_null(text: str, numbers: list[float]) -> None:
    number = compile_number(text, ROWS.schema, "readings")
    np.testing.assert_array_equal(number.of(ROWS), numbers)
    if number.columns:
        np.testing.assert_array_equal(number.of(ROWS.select(list(number.columns))), numbers)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("vv", "a column is one of those of stream readings; got: 'vv' in 'vv'; hint: did you mean"),
        ("s", "gives a number; got: 's' of type STRING; hint: for example CASE"),
        ("at", "gives a number; got: 'at' of type TIMESTAMP"),
        ("v > 1", "gives a number; got: 'v > 1' of type BOOLEAN"),
        ("tags", "gives a number; got: 'tags' of type LIST"),
        ("v + s", "a number; got: s of type STRING"),
        ("sum(v)", "an expression has columns"),
    ],
)
def test_what_is_no_number_or_no_column_is_refused(text: str, message: str) -> None:
    check_syntax(text)
    with pytest.raises(InvalidInputError, match=message):
        compile_number(text, ROWS.schema, "readings")


@pytest.mark.parametrize(
    "text", ["", "v +", "(v", "'x", "v v", "v, x", "v FROM s", "v; x", "KEPT(0.3)", "foo(v)"]
)
def test_what_is_no_expression_is_refused_without_columns(text: str) -> None:
    with pytest.raises(InvalidInputError, match=r"expression|quotes"):
        check_syntax(text)
