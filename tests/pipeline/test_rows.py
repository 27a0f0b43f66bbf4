"""Rows of a generated stream."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from penstock.pipeline.feed.rows import generated_rows
from penstock.pipeline.spec.sources import ColumnValues
from penstock.vocabulary.schema import arrow_schema

SCHEMA = arrow_schema(
    {"n": "int", "x": "double", "state": "string", "price": "decimal(6,2)", "day": "date", "plain": "long"}
)
VALUES = {
    "n": ColumnValues(low=5, high=9),
    "x": ColumnValues(low=-1, high=1),
    "state": ColumnValues(choices=("ok", "hot", None)),
    "price": ColumnValues(low=1, high=2),
    "day": ColumnValues(choices=(0, 1)),
}


def test_columns_hold_what_the_pipeline_says() -> None:
    rows = generated_rows(SCHEMA, VALUES)(0, 5000)
    assert rows.schema == SCHEMA
    assert set(rows.column("n").to_pylist()) == {5, 6, 7, 8, 9}
    assert set(rows.column("state").to_pylist()) == {"ok", "hot", None}
    assert pc.count_distinct(rows.column("day")).as_py() == 2
    for name, low, high in (("x", -1.0, 1.0), ("price", 1.0, 2.0)):
        least, most = pc.min_max(rows.column(name).cast(pa.float64())).as_py().values()
        assert low <= least < low + 0.01
        assert high - 0.01 < most <= high


def test_a_row_is_the_same_in_whatever_batch_it_comes() -> None:
    make_rows = generated_rows(SCHEMA, VALUES, seed=3)
    assert make_rows(0, 100).slice(40, 10).equals(make_rows(40, 10))


def test_another_seed_gives_other_rows() -> None:
    assert not generated_rows(SCHEMA, VALUES, 1)(0, 10).equals(generated_rows(SCHEMA, VALUES, 2)(0, 10))


@pytest.mark.parametrize("values", [{}, VALUES], ids=["none_said", "all_said"])
def test_it_does_not_matter_how_many_columns_are_said(values: dict[str, ColumnValues]) -> None:
    schema = pa.schema([field for field in SCHEMA if not values or field.name in values][:3])
    kept = {name: value for name, value in values.items() if name in schema.names}
    assert generated_rows(schema, kept)(0, 7).num_rows == 7
