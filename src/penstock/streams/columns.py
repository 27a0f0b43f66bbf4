"""Checks rows against a stream's columns, makes batches of them, and writes event time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, TypeAlias

import numpy as np
import pyarrow as pa

from penstock.streams.protocol import ARRIVAL, ORIGIN, RESERVED_COLUMNS
from penstock.vocabulary.errors import InvalidInputError

Rows: TypeAlias = pa.RecordBatch | Mapping[str, Any] | Sequence[Mapping[str, object]]
"""What a producer may send: a batch, columns by name, or a list of rows."""


def stored_schema(user_schema: pa.Schema, origin: bool = False) -> pa.Schema:
    """The user's columns and the log's; with `origin` also the columns that rows of a shared stream keep."""
    # a row that a shedder chose has no known chance, so its weight is null
    kept = [pa.field(n, pa.float64(), nullable=n == "_weight") for n in ORIGIN if n != ARRIVAL]
    return pa.schema([*user_schema, *(kept if origin else ()), pa.field(ARRIVAL, pa.int64(), nullable=False)])


def append_schema(stored: pa.Schema) -> pa.Schema:
    """Columns that an append must bring: all but the arrival, which the log stamps."""
    return pa.schema([field for field in stored if field.name != ARRIVAL])


def is_shared(schema: pa.Schema) -> bool:
    """Whether a stream with these columns is a shared stream: its rows keep the SIC of their origin."""
    return "_sic" in schema.names


def user_schema(stored: pa.Schema) -> pa.Schema:
    """The user's columns alone."""
    return pa.schema([field for field in stored if field.name not in RESERVED_COLUMNS])


def check_schema(schema: pa.Schema, key: str | None) -> None:
    """Refuses columns that a stream cannot have."""
    if not schema.names:
        raise InvalidInputError("a stream has at least one column", "none", "give a pyarrow schema")
    if len(set(schema.names)) < len(schema.names):
        raise InvalidInputError("a column's name is used once", schema.names, "rename one")
    for name in schema.names:
        if name.lower() in RESERVED_COLUMNS:  # Spark ignores the case of column names
            raise InvalidInputError("no column has the name of a metadata column", repr(name), "rename it")
    check_can_be_stored(schema)
    if key is not None and key not in schema.names:
        raise InvalidInputError("the key is a column of the stream", repr(key), f"one of {schema.names}")
    if key is not None and not _has_text(schema.field(key).type):
        raise InvalidInputError(
            "the key's values can be written as text",
            f"{key} is {schema.field(key).type}",
            "use a number or a string",
        )


def check_can_be_stored(schema: pa.Schema) -> None:
    """Refuses columns whose rows could be appended and never read."""
    for field in schema:
        if _has_dictionary(field.type):  # a segment is a record batch alone, without dictionaries beside it
            raise InvalidInputError(
                "a column holds its values themselves, without a dictionary",
                f"{field.name} is {field.type}",
                "cast it to the type of its values, or decode it with .dictionary_decode()",
            )


def _has_dictionary(kind: pa.DataType) -> bool:
    """Whether a type is dictionary-encoded, or any type inside it is."""
    if pa.types.is_dictionary(kind):
        return True
    if isinstance(kind, pa.BaseExtensionType):
        return _has_dictionary(kind.storage_type)
    if pa.types.is_run_end_encoded(kind):
        return _has_dictionary(kind.value_type)
    return any(_has_dictionary(kind.field(i).type) for i in range(kind.num_fields))


def _has_text(kind: pa.DataType) -> bool:
    try:
        pa.nulls(0, kind).cast(pa.string())
    except pa.ArrowException:
        return False
    return True


def check_rows(rows: pa.RecordBatch, wanted: pa.Schema, stream: str) -> None:
    """Refuses rows whose columns or nulls differ from the stream's, and says what differs."""
    check_columns(rows.schema, wanted, stream)
    for field, column in zip(wanted, rows.columns, strict=True):
        if not field.nullable and column.null_count:
            _refuse(stream, f"{column.null_count} nulls in {field.name}, which has none")


def check_columns(got: pa.Schema, wanted: pa.Schema, stream: str) -> None:
    """Refuses columns that differ from the stream's, and says what differs."""
    if not got.equals(wanted):
        missing = [name for name in wanted.names if name not in got.names]
        extra = [name for name in got.names if name not in wanted.names]
        other = [
            f"{name} is {got.field(name).type}, not {wanted.field(name).type}"
            for name in wanted.names
            if got.names.count(name) == 1 and got.field(name).type != wanted.field(name).type
        ]
        parts = [f"missing {missing}"] * bool(missing) + [f"unknown {extra}"] * bool(extra) + other
        _refuse(stream, "; ".join(parts) or "another order or nullability")


def _refuse(stream: str, got: str) -> NoReturn:
    raise InvalidInputError(
        f"rows have the columns of stream {stream}", got, "cast or select them; nothing was appended"
    )


def to_batch(rows: Rows, schema: pa.Schema, stream: str) -> pa.RecordBatch:
    """Rows of any shape as a batch with exactly the stream's columns."""
    if isinstance(rows, pa.RecordBatch):
        batch = rows
    else:
        names = [set(rows)] if isinstance(rows, Mapping) else [set(row) for row in rows]
        for given in names:  # pyarrow would silently drop unknown columns and fill missing ones with nulls
            if given != set(schema.names):
                missing, extra = sorted(set(schema.names) - given), sorted(given - set(schema.names))
                _refuse(
                    stream,
                    "; ".join([f"missing {missing}"] * bool(missing) + [f"unknown {extra}"] * bool(extra)),
                )
        try:
            if isinstance(rows, Mapping):
                batch = pa.RecordBatch.from_pydict(dict(rows), schema=schema)
            else:
                batch = pa.RecordBatch.from_pylist(list(rows), schema=schema)
        except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
            _refuse(stream, f"values that do not fit: {error}")
    check_rows(batch, schema, stream)
    return batch


def check_event_time(schema: pa.Schema, name: str | None) -> None:
    """Refuses an event-time column that arrival cannot be written to."""
    if name is None:
        return
    if name not in schema.names or not pa.types.is_timestamp(schema.field(name).type):
        raise InvalidInputError(
            "event time is a timestamp column of the stream", repr(name), f"one of {schema}"
        )


def with_event_time(rows: pa.RecordBatch, name: str | None, arrival_us: np.ndarray) -> pa.RecordBatch:
    """The same rows, with the event-time column overwritten by their arrival."""
    if name is None:
        return rows
    field = rows.schema.field(name)
    stamps = pa.array(arrival_us, pa.timestamp("us", "UTC")).cast(field.type, safe=False)
    return rows.set_column(rows.schema.get_field_index(name), field, stamps)
