"""Reads files (Parquet, CSV, JSON lines, Arrow) as rows of a stream, in batches with the stream's columns."""

from __future__ import annotations

import io
from collections.abc import Iterator
from glob import glob
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from penstock.pipeline.spec.sources import FileFormat
from penstock.vocabulary.errors import InvalidInputError

BATCH_ROWS = 65536
_COMPRESSED = (".gz", ".bz2", ".lz4", ".zst", ".br")
_ZONE = r"(Z|[+-]\d\d:?\d\d)$"


def files_of(pattern: str) -> list[Path]:
    """The files that a path or a pattern names, in order, without hidden and unfinished files."""
    found = (Path(name) for name in sorted(glob(pattern, recursive=True)))
    return [path for path in found if path.is_file() and path.name[0] not in "._"]


def has_lines(path: Path, kind: FileFormat) -> bool:
    """Whether a row is a line of the file, so that some of the lines can be read."""
    return kind in ("csv", "json") and path.suffix not in _COMPRESSED


class ByteRange(NamedTuple):
    """A range of a file's bytes that begins at the beginning of a line."""

    first: int
    end: int


def read_rows(
    path: Path, kind: FileFormat, schema: pa.Schema, stream: str, part: ByteRange | None = None
) -> Iterator[pa.RecordBatch]:
    """A file's rows with exactly the stream's columns; every reading gives the same batches.

    Args:
        path: The file.
        kind: The file's format.
        schema: Columns of the stream.
        stream: Name of the stream.
        part: Only the rows of these bytes, for a file that `has_lines`; `None` for all rows.
    """
    try:
        for batch in _batches(path, kind, schema, part):
            yield _fitted(batch, schema)
    except (pa.ArrowException, OSError, KeyError, UnicodeDecodeError) as error:
        what = " ".join(str(error).split())[:200]
        raise InvalidInputError(
            f"a file for stream {stream} holds {kind} rows with the stream's columns",
            f"{path}: {what}",
            "see the stream's schema",
        ) from None


class _RangeFile(io.RawIOBase):
    """A range of a file as a file; with `header`, the file's first line comes before a later range."""

    def __init__(self, path: Path, part: ByteRange, header: bool) -> None:
        super().__init__()
        self._file = path.open("rb")
        first_line = len(self._file.readline()) if header and part.first else 0
        self._parts = [ByteRange(0, first_line), part]
        self._file.seek(0)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        view = memoryview(buffer).cast("B")  # type: ignore[arg-type]
        while self._parts:
            left = self._parts[0].end - self._file.tell()
            if left > 0:
                return self._file.readinto(view[: min(left, len(view))])
            del self._parts[0]
            if self._parts:
                self._file.seek(self._parts[0].first)
        return 0

    def close(self) -> None:
        self._file.close()
        super().close()


def _blank(path: Path, part: ByteRange) -> bool:
    """Whether a range has no row, only a few ends of lines."""
    with path.open("rb") as file:
        file.seek(part.first)
        return part.end - part.first < 4096 and not file.read(part.end - part.first).strip()


def _batches(
    path: Path, kind: FileFormat, schema: pa.Schema, part: ByteRange | None
) -> Iterator[pa.RecordBatch]:
    if part is None:
        yield from _batches_from(path, kind, schema)
    elif not _blank(path, part):
        with io.BufferedReader(_RangeFile(path, part, header=kind == "csv"), 1 << 20) as lines:
            yield from _batches_from(lines, kind, schema)


def _batches_from(
    path: Path | io.BufferedIOBase, kind: FileFormat, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    # Times are read as text first: Arrow's readers do not take times with and without a zone together.
    plain = pa.schema([(f.name, pa.string() if pa.types.is_timestamp(f.type) else f.type) for f in schema])
    if kind == "parquet":
        import pyarrow.parquet as pq

        with pq.ParquetFile(path) as file:
            yield from file.iter_batches(BATCH_ROWS, columns=_there(file.schema_arrow, schema))
    elif kind == "csv":
        from pyarrow import csv

        options = csv.ConvertOptions(
            column_types=plain,
            include_columns=schema.names,
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        )
        with csv.open_csv(path, convert_options=options) as file:
            yield from file
    elif kind == "json":
        from pyarrow import json

        options = json.ParseOptions(explicit_schema=plain, unexpected_field_behavior="ignore")
        yield from json.read_json(path, parse_options=options).to_batches(BATCH_ROWS)
    else:
        with pa.OSFile(str(path)) as source:
            try:
                file = pa.ipc.open_file(source)
                yield from (file.get_batch(i) for i in range(file.num_record_batches))
            except pa.ArrowInvalid:
                source.seek(0)
                yield from pa.ipc.open_stream(source)


def _there(got: pa.Schema, wanted: pa.Schema) -> list[str]:
    missing = [name for name in wanted.names if name not in got.names]
    if missing:
        raise KeyError(f"no column {', '.join(missing)}")
    return list(wanted.names)


def _fitted(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    _there(batch.schema, schema)
    return pa.record_batch([_column(batch.column(field.name), field) for field in schema], schema=schema)


def _column(values: pa.Array, field: pa.Field) -> pa.Array:
    if pa.types.is_timestamp(field.type) and pa.types.is_string(values.type):
        zoned = pc.if_else(pc.match_substring_regex(values, _ZONE), values, _with_utc(values))
        return zoned.cast(pa.timestamp("us", "UTC")).cast(field.type)
    return values.cast(field.type)


def _with_utc(values: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(values, "Z", "")
