"""Converts rows between Spark and the engine, and the engine's tables to and from Spark's state.

Spark hands over rows of a group as pandas frames, in which whole numbers become floats if one is NULL. So
NULLs travel as bits of a number beside the values, and times travel as numbers.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pandas as pd
import pyarrow as pa

from penstock.cql.engine.bag import INSTANT, SIGN, Changes
from penstock.cql.engine.run import ORDER, schema_of
from penstock.cql.engine.vector import arrow_type
from penstock.cql.meaning.plan import Base, Column, Plan

LEAF, BUCKET, NULLS = "_leaf", "_bucket", "_nulls"
"""Columns of the rows that go to the engine, beside columns of the leaves, `INSTANT`, `ORDER` and `TIME`: the
row's leaf, the bucket that computes it, and which columns are NULL. Rows of relations also have `SIGN`."""
BITS = 63
"""Number of columns whose NULLs fit into one number."""

_AS_NUMBER = {
    "TINYINT": "CAST({} AS BIGINT)",
    "SMALLINT": "CAST({} AS BIGINT)",
    "INT": "CAST({} AS BIGINT)",
    "BIGINT": "{}",
    "FLOAT": "CAST({} AS DOUBLE)",
    "DOUBLE": "{}",
    "BOOLEAN": "CAST({} AS BIGINT)",
    "TIMESTAMP": "unix_micros({})",
    "DATE": "CAST(unix_date({}) AS BIGINT)",
}

_WITH_NULL = {
    pa.int8(): pd.Int8Dtype(),
    pa.int16(): pd.Int16Dtype(),
    pa.int32(): pd.Int32Dtype(),
    pa.int64(): pd.Int64Dtype(),
    pa.float32(): pd.Float32Dtype(),
    pa.float64(): pd.Float64Dtype(),
    pa.bool_(): pd.BooleanDtype(),
}


def carried_form(column: Column) -> tuple[str, str]:
    """Spark SQL of the form in which a column travels, with {} for the column, and the type of that form."""
    if column.type not in _AS_NUMBER:
        return "{}", column.type
    number, zero = _AS_NUMBER[column.type], "0.0D" if column.type in ("FLOAT", "DOUBLE") else "0L"
    return f"coalesce({number}, {zero})", "DOUBLE" if zero == "0.0D" else "BIGINT"


def null_names(count: int) -> list[str]:
    """Names of the numbers whose bits say which of `count` columns are NULL."""
    return [f"{NULLS}{i}" for i in range(-(-count // BITS))]


def null_bits(texts: Sequence[str]) -> list[str]:
    """Spark SQL of the numbers of `null_names`, for columns given as SQL."""
    made = []
    for first in range(0, len(texts), BITS):
        bits = [f"IF({text} IS NULL, {1 << i}L, 0L)" for i, text in enumerate(texts[first : first + BITS])]
        made.append(" + ".join(bits))
    return made


def received(frames: Iterable[pd.DataFrame], leaves: Sequence[Plan]) -> list[Changes]:
    """The changes that came for each leaf."""
    parts: list[list[pa.Table]] = [[] for _ in leaves]
    for frame in frames:
        which = frame[LEAF].to_numpy()
        for i, leaf in enumerate(leaves):
            mine = frame[which == i]
            if len(mine):
                parts[i].append(_table(mine, leaf))
    return [_changes(part, leaf) for part, leaf in zip(parts, leaves, strict=True)]


def _table(frame: pd.DataFrame, leaf: Plan) -> pa.Table:
    nulls = [frame[name].to_numpy() for name in null_names(len(leaf.columns))]
    columns = []
    for i, column in enumerate(leaf.columns):
        kind, values = arrow_type(column.type), frame[column.name]
        missing = (nulls[i // BITS] >> (i % BITS)) & 1 == 1
        if column.type in _AS_NUMBER:
            narrow = pa.int32() if column.type == "DATE" else None
            array = pa.array(values.to_numpy(), mask=missing)
            columns.append(array.cast(narrow).cast(kind) if narrow else array.cast(kind))
        else:
            columns.append(pa.array(values.to_numpy(), kind, mask=missing, from_pandas=False))
    order = pa.array(frame[ORDER].to_numpy(), pa.int64())
    instants = pa.array(frame[INSTANT].to_numpy(), pa.int64())
    names = [*(column.name for column in leaf.columns), ORDER, INSTANT, SIGN]
    signs = pa.array(frame[SIGN].to_numpy() if isinstance(leaf, Base) else np.ones(len(frame), np.int64))
    return pa.table([*columns, order, instants, signs], names=names)


def _changes(parts: Sequence[pa.Table], leaf: Plan) -> Changes:
    schema = schema_of(leaf).append(pa.field(ORDER, pa.int64()))
    if not parts:
        return Changes.none(schema)
    return Changes.from_table(pa.concat_tables(parts).combine_chunks())


def sent(changes: Changes) -> pd.DataFrame:
    """Changes as a frame for Spark, with column types that have a NULL."""
    return changes.to_table().to_pandas(types_mapper=_WITH_NULL.get)


def answer_schema(plan: Plan) -> str:
    """The DDL of the frames of `sent`."""
    columns = [f"{column.name} {column.type}" for column in plan.columns]
    return ", ".join([*columns, f"{INSTANT} BIGINT", f"{SIGN} BIGINT"])


def packed(tables: Sequence[pa.Table]) -> bytes:
    """Tables as bytes: each table has its length before it."""
    return b"".join(_framed(table) for table in tables)


def _framed(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    data: bytes = sink.getvalue().to_pybytes()
    return struct.pack("<q", len(data)) + data


def unpacked(data: bytes) -> Iterator[pa.Table]:
    """The tables in bytes of `packed`."""
    place = 0
    while place < len(data):
        (length,) = struct.unpack_from("<q", data, place)
        place += 8
        with pa.ipc.open_stream(pa.py_buffer(data)[place : place + length]) as reader:
            yield reader.read_all()
        place += length
