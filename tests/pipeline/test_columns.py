"""Type texts of a schema as pyarrow types and as Spark's DDL."""

from __future__ import annotations

import pyarrow as pa
import pytest

from penstock.vocabulary.schema import arrow_schema, parse_type


@pytest.mark.parametrize(
    ("text", "ddl", "arrow"),
    [
        ("long", "BIGINT", pa.int64()),
        ("bigint", "BIGINT", pa.int64()),
        (" INT ", "INT", pa.int32()),
        ("integer", "INT", pa.int32()),
        ("short", "SMALLINT", pa.int16()),
        ("byte", "TINYINT", pa.int8()),
        ("double", "DOUBLE", pa.float64()),
        ("float", "FLOAT", pa.float32()),
        ("string", "STRING", pa.string()),
        ("boolean", "BOOLEAN", pa.bool_()),
        ("timestamp", "TIMESTAMP", pa.timestamp("us", tz="UTC")),
        ("date", "DATE", pa.date32()),
        ("binary", "BINARY", pa.binary()),
        ("decimal", "DECIMAL(10,0)", pa.decimal128(10, 0)),
        ("decimal(7)", "DECIMAL(7,0)", pa.decimal128(7, 0)),
        ("Decimal( 38 , 10 )", "DECIMAL(38,10)", pa.decimal128(38, 10)),
    ],
)
def test_a_type_text_means_what_it_means_in_spark(text: str, ddl: str, arrow: pa.DataType) -> None:
    assert parse_type(text) == (ddl, arrow)


def test_columns_keep_their_order_and_odd_names() -> None:
    columns = {"b": "long", "a `tick`": "string"}
    assert arrow_schema(columns) == pa.schema([("b", pa.int64()), ("a `tick`", pa.string())])
