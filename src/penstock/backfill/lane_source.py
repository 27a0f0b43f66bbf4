"""Rows of a shed lane as a batch DataFrame: a Python data source whose tasks are in a file.

The source's option only names the file, because Spark copies options into plans and events, and many small
grants make a long text.

The source is not governed, because nobody waits for a backfill. It gives rows that grants dropped, or, to
compute windows anew, all rows of certain spans of event time.
"""

from __future__ import annotations

import atexit
import json
import shutil
import sys
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from penstock.grants.journal import Entry
from penstock.grants.offset import Offset
from penstock.grants.plans import KEEP_ALL
from penstock.grants.sampling_units import Drawn, drawn_column
from penstock.grants.selection import Piece, Range, read_range
from penstock.lanes.lane import NO_SEQ, offered_rows, shed_range
from penstock.lanes.windows import event_times, inside
from penstock.spark.daemon import hush
from penstock.spark.idle import register_source
from penstock.spark.source.metadata import coalesced, spark_schema, with_metadata
from penstock.spark.source.planner import LEAST_TASK_ROWS
from penstock.streams.opening import open_stream
from penstock.streams.protocol import StreamIndex, StreamRows

hush(sys.modules["__main__"])

FORMAT_NAME = "penstock_lane"
UNKNOWN = ("_seq", "_sic")
"""Metadata columns that are null in a backfill: a dropped row has no number, and a window spans grants."""


@dataclass(frozen=True, slots=True)
class LanePart:
    """A range of one partition: the rows in it that a grant dropped, or without a grant all its rows."""

    stretch: Range
    grant: int | None = None

    @property
    def rows(self) -> int:
        return self.stretch.end - self.stretch.first


@dataclass
class LaneTask(InputPartition):
    """The rows that one task reads.

    Attributes:
        stream: The stream's directory.
        parts: Parts of the stream that the task reads.
        entries: The grants that the parts name.
        metadata: Metadata columns, in order.
        column: The event-time column, if only some spans of event time are wanted.
        spans: Starts and ends of the wanted spans of event time.
    """

    stream: str
    parts: list[LanePart]
    entries: dict[int, Entry]
    metadata: tuple[str, ...] = ()
    column: str | None = None
    spans: tuple[list[int], list[int]] = field(default_factory=lambda: ([], []))

    def to_json(self) -> dict[str, Any]:
        ranges = [(p.stretch.partition, p.stretch.first, p.stretch.end, p.grant) for p in self.parts]
        entries = [(entry.offset.to_json(), entry.poison_rows) for entry in self.entries.values()]
        return {"parts": ranges, "entries": entries}


class LaneSource(DataSource):
    """`spark.read.format("penstock_lane")`; made by `read_parts`."""

    @classmethod
    def name(cls) -> str:
        return FORMAT_NAME

    def schema(self) -> StructType:
        options = json.loads(self.options["lane"])
        return spark_schema(open_stream(options["stream"]).user_schema, options["metadata"])

    def reader(self, schema: StructType) -> LaneReader:
        return LaneReader(self.options["lane"])


class LaneReader(DataSourceReader):
    """Gives Spark the tasks of the file. Spark plans a batch on the driver's host, where the file is."""

    def __init__(self, option: str) -> None:
        self.option = option

    def partitions(self) -> Sequence[InputPartition]:
        options = json.loads(self.option)
        written = json.loads(Path(options["file"]).read_bytes())
        shared = (tuple(options["metadata"]), options["column"], tuple(written["spans"]))
        found = []
        for task in written["tasks"]:
            offsets = [(Offset.from_json(offset), poison) for offset, poison in task["entries"]]
            entries = {offset.grant: Entry(offset, 1, poison) for offset, poison in offsets}
            parts = [LanePart(Range(p, first, end, NO_SEQ), grant) for p, first, end, grant in task["parts"]]
            found.append(LaneTask(options["stream"], parts, entries, *shared))
        return found or [LaneTask(options["stream"], [], {}, *shared)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, LaneTask)
        return read_task(partition)


def read_task(task: LaneTask) -> Iterator[pa.RecordBatch]:
    """The rows of one task, in batches of a useful size."""
    log = open_stream(task.stream)
    shown = (
        with_metadata(piece, task.metadata, weight=1.0, sic=0.0, drawn=_whole) for piece in _pieces(log, task)
    )
    return coalesced(_unnumbered(rows) for rows in shown)


def _whole(piece: Piece) -> pa.Array:
    """Says that rows were not drawn at all. An estimate over them is exact, unless they come from a shared
    stream whose writer had sampled them.
    """
    return drawn_column(Drawn(0.0, {}), 0, piece)


def _pieces(log: StreamRows, task: LaneTask) -> Iterator[Piece]:
    starts, ends = (np.array(edge, np.int64) for edge in task.spans)
    for part in task.parts:
        if part.grant is not None:
            yield from shed_range(log, task.entries[part.grant], part.stretch)
            continue
        for piece in read_range(log, KEEP_ALL, part.stretch):
            assert task.column is not None
            wanted = inside(event_times(piece.rows, task.column), starts, ends)
            if wanted.any():
                yield replace(
                    piece, rows=piece.rows.filter(pa.array(wanted)), positions=piece.positions[wanted]
                )


def _unnumbered(rows: pa.RecordBatch) -> pa.RecordBatch:
    for name in UNKNOWN:
        if name in rows.schema.names:
            at = rows.schema.get_field_index(name)
            rows = rows.set_column(at, name, pa.nulls(rows.num_rows, rows.schema.field(at).type))
    return rows


def shed_parts(log: StreamIndex, entries: Sequence[Entry]) -> list[LanePart]:
    """The rows that grants dropped, cut at borders of segments into parts of about a task's rows."""
    return [
        LanePart(stretch, entry.offset.grant)
        for entry in entries
        if offered_rows(entry)
        for p, end in sorted(entry.offset.end.items())
        for stretch in _cut(log, Range(p, max(entry.offset.start.get(p, 0), log.start(p)), end, NO_SEQ))
    ]


def all_parts(log: StreamIndex, ranges: Sequence[Range]) -> list[LanePart]:
    """All rows of ranges, cut at borders of segments into parts of about a task's rows."""
    return [LanePart(stretch) for whole in ranges for stretch in _cut(log, whole)]


def _cut(log: StreamIndex, whole: Range) -> Iterator[Range]:
    if whole.first >= whole.end:
        return
    headers = log.header_arrays(whole.partition, whole.first, whole.end, keys=False)
    first = whole.first
    for border in headers.first_position.tolist():
        if border - first >= LEAST_TASK_ROWS:
            yield replace(whole, first=first, end=border)
            first = border
    yield replace(whole, first=first)


def read_parts(
    spark: SparkSession,
    stream: str,
    parts: Sequence[LanePart],
    entries: Sequence[Entry],
    metadata: tuple[str, ...] = (),
    column: str | None = None,
    spans: tuple[list[int], list[int]] = ([], []),
    folder: Path | None = None,
) -> DataFrame:
    """A batch DataFrame of parts of a stream, with the stream's columns.

    Args:
        spark: The session.
        stream: The stream's directory, which executors can read too.
        parts: Parts of the stream to read.
        entries: The grants that the parts name.
        metadata: Metadata columns to add.
        column: The event-time column, if only some spans of event time are wanted.
        spans: Starts and ends of the wanted spans, in microseconds since the epoch.
        folder: Folder for the file of the tasks, which must exist while the DataFrame is used; by default a
            folder that exists as long as the process.
    """
    register_source(spark, LaneSource)
    by_grant = {entry.offset.grant: entry for entry in entries}
    shares = _shares(parts, 2 * spark.sparkContext.defaultParallelism)
    tasks = [
        LaneTask(stream, share, {p.grant: by_grant[p.grant] for p in share if p.grant is not None}).to_json()
        for share in shares
    ]
    file = (folder or _folder()) / f"{uuid.uuid4().hex}.json"
    file.write_text(json.dumps({"tasks": tasks, "spans": spans}))
    option = {"stream": stream, "metadata": metadata, "column": column, "file": str(file)}
    return spark.read.format(FORMAT_NAME).option("lane", json.dumps(option)).load()


@cache
def _folder() -> Path:
    """Folder for files of tasks, kept until the process ends: a DataFrame may be used until then."""
    folder = Path(tempfile.mkdtemp(prefix="penstock-lane-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _shares(parts: Sequence[LanePart], tasks: int) -> list[list[LanePart]]:
    """Divides parts, in order, into about equal shares."""
    size = max(LEAST_TASK_ROWS, -(-sum(part.rows for part in parts) // tasks))
    shares: list[list[LanePart]] = []
    rows = size
    for part in parts:
        if rows >= size:
            shares.append([])
            rows = 0
        shares[-1].append(part)
        rows += part.rows
    return shares
