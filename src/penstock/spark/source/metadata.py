"""Metadata columns of a governed stream, and the Spark schema of a log's rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import BooleanType, DoubleType, LongType, StructField, StructType, TimestampType

from penstock.grants.sampling_units import DRAWN_TYPE
from penstock.grants.selection import Piece
from penstock.streams.protocol import ARRIVAL, DRAWN, KEPT, METADATA_COLUMNS, POSITION, RESERVED_COLUMNS
from penstock.vocabulary.errors import InvalidInputError, UnknownNameError

_TYPES = {
    ARRIVAL: TimestampType(),
    POSITION: LongType(),
    "_seq": LongType(),
    "_sic": DoubleType(),
    "_weight": DoubleType(),
    KEPT: DoubleType(),
    DRAWN: StructType(
        [
            StructField("within", DoubleType(), True),
            StructField("unit", LongType(), True),
            StructField("contrast", DoubleType(), True),
            StructField("known", BooleanType(), True),
            StructField("expected", DoubleType(), True),
            StructField("doubt", DoubleType(), True),
        ]
    ),
}

BATCH_ROWS = 8192
"""Least rows handed to Spark at once, so that the few kept rows of many segments travel together."""


def metadata_columns(wanted: bool | Sequence[str]) -> tuple[str, ...]:
    """The metadata columns that `metadata=` asks for: all, none, or the named ones."""
    if isinstance(wanted, bool):
        return METADATA_COLUMNS if wanted else ()
    for name in wanted:
        if name not in RESERVED_COLUMNS:
            raise UnknownNameError("a metadata column", name, RESERVED_COLUMNS)
    return tuple(name for name in RESERVED_COLUMNS if name in wanted)


def spark_schema(user_schema: pa.Schema, metadata: Sequence[str]) -> StructType:
    """The schema that Spark sees: the user's columns, then the metadata columns asked for."""
    for name in user_schema.names:
        if name.lower() in RESERVED_COLUMNS:
            raise InvalidInputError("no column has the name of a metadata column", repr(name), "rename it")
    fields = from_arrow_schema(user_schema).fields
    return StructType([*fields, *(StructField(name, _TYPES[name], True) for name in metadata)])


def with_metadata(
    piece: Piece,
    metadata: Sequence[str],
    weight: float | None,
    sic: float,
    kept: float = 1.0,
    drawn: Callable[[Piece], pa.Array] | None = None,
) -> pa.RecordBatch:
    """The rows of a piece as Spark expects them.

    Rows of a shared stream have their own SIC, weight and kept fraction already. These are multiplied by the
    figures of this grant.

    Args:
        piece: The rows.
        metadata: Columns to add.
        weight: One over the chance with which rows were kept; `None` if unknown, then the column is null.
        sic: SIC of each row; for a shared stream the factor of the rows' own SIC, see `row_sic`.
        kept: Fraction of the grant's rows that was admitted.
        drawn: Says how rows were drawn; without it the column is null.
    """
    rows = piece.rows
    user = [field for field in rows.schema if field.name not in RESERVED_COLUMNS]
    columns = [(field, rows.column(field.name)) for field in user]
    count = rows.num_rows
    for name in metadata:
        if name == ARRIVAL:
            column = rows.column(ARRIVAL).cast(pa.timestamp("us", tz="UTC"))
        elif name == POSITION:
            column = pa.array(piece.positions)
        elif name == "_seq":
            numbers = None if piece.seq is None else np.arange(piece.seq, piece.seq + count, dtype=np.int64)
            column = pa.nulls(count, pa.int64()) if numbers is None else pa.array(numbers)
        elif name == "_sic":
            column = pa.array(np.full(count, sic))
            if name in rows.schema.names:
                column = pc.multiply(column, rows.column(name))
        elif name == KEPT:
            column = pa.array(np.full(count, kept))
            if name in rows.schema.names:
                column = pc.multiply(column, rows.column(name))
        elif name == DRAWN:
            column = pa.nulls(count, DRAWN_TYPE) if drawn is None else drawn(piece)
        else:
            column = pa.nulls(count, pa.float64()) if weight is None else pa.array(np.full(count, weight))
            if name in rows.schema.names:
                column = pc.multiply(column, rows.column(name))
        columns.append((pa.field(name, column.type), column))
    # by schema, not by names: Spark compares nullability too
    schema = pa.schema([field for field, _ in columns])
    return pa.RecordBatch.from_arrays([column for _, column in columns], schema=schema)


def coalesced(pieces: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of a useful size."""
    ready: list[pa.RecordBatch] = []
    rows = 0
    for piece in pieces:
        ready.append(piece)
        rows += piece.num_rows
        if rows >= BATCH_ROWS:
            yield pa.concat_batches(ready) if len(ready) > 1 else ready[0]
            ready, rows = [], 0
    if ready:
        yield pa.concat_batches(ready) if len(ready) > 1 else ready[0]
