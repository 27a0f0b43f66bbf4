"""Makes rows of a generated stream: columns have values that the pipeline gives, or values of their type."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.pipeline.spec.sources import ColumnValues
from penstock.streams.producing.synthetic import MakeRows, synthetic_rows

_APART = 1_000_003
"""Difference between the seeds of columns with and without given values; else both have the same numbers."""


def generated_rows(schema: pa.Schema, values: Mapping[str, ColumnValues], seed: int = 0) -> MakeRows:
    """Makes a stream's rows; row n has the same values in whatever batch it is.

    Args:
        schema: The user's columns.
        values: Given values of some columns; checked by `StreamConfig`.
        seed: Another seed gives other rows.
    """
    plain = synthetic_rows(pa.schema([field for field in schema if field.name not in values]), seed)
    uniform = synthetic_rows(pa.schema([(name, pa.float64()) for name in values]), seed + _APART)

    def make_rows(first: int, count: int) -> pa.RecordBatch:
        made, drawn = plain(first, count), uniform(first, count)
        columns = [
            _column(field.type, values[field.name], drawn.column(field.name).to_numpy())
            if field.name in values
            else made.column(field.name)
            for field in schema
        ]
        return pa.record_batch(columns, schema=schema)

    return make_rows


def _column(kind: pa.DataType, values: ColumnValues, drawn: npt.NDArray[np.float64]) -> pa.Array:
    """Turns numbers in [0, 1) into the column's values."""
    if values.choices is not None:
        return pa.array(values.choices, kind).take(pa.array((drawn * len(values.choices)).astype(np.int64)))
    low, high = values.low or 0.0, values.high or 0.0
    if pa.types.is_integer(kind):
        return pa.array((np.floor(low + drawn * (high - low + 1))).astype(np.int64)).cast(kind)
    if pa.types.is_decimal(kind):
        return pa.array(np.round(low + drawn * (high - low), kind.scale)).cast(kind, safe=False)
    return pa.array(low + drawn * (high - low)).cast(kind)
