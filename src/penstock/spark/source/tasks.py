"""Read tasks: the part of a grant that one executor reads, and the rows of that part."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from penstock.grants.plans import ShedPlan
from penstock.grants.sampling_units import Drawn, drawn_column
from penstock.grants.selection import Piece, Range, read_range
from penstock.spark.source.metadata import coalesced, with_metadata
from penstock.streams.descriptor import partition_label
from penstock.streams.hashing import key_buckets
from penstock.streams.opening import open_stream
from penstock.streams.protocol import StreamIndex, StreamRows
from penstock.vocabulary.errors import PenstockError


@dataclass
class ReadTask(InputPartition):
    """The part of a grant that one task reads."""

    stream: str
    plan: ShedPlan
    ranges: list[Range]
    metadata: tuple[str, ...]
    weight: float | None
    sic: float
    kept: float = 1.0
    drawn: Drawn | None = None


def read_task(task: ReadTask) -> Iterator[pa.RecordBatch]:
    """The rows of one task, in batches of a useful size."""
    log = open_stream(task.stream)
    return coalesced(
        with_metadata(
            piece if log.dense else replace(piece, seq=None),
            task.metadata,
            task.weight,
            task.sic,
            task.kept,
            _drawing(task, log, part.partition),
        )
        for part in task.ranges
        for piece in _pieces(log, task.plan, part)
    )


def _drawing(task: ReadTask, log: StreamIndex, partition: int) -> Callable[[Piece], pa.Array] | None:
    """Makes the column that says how rows were drawn; `None` if the query does not need it."""
    drawn = task.drawn
    if drawn is None:
        return None

    def column(piece: Piece) -> pa.Array:
        by_key = drawn.buckets is not None and log.key_column is not None
        buckets = key_buckets(piece.rows.column(log.key_column), log.key_buckets) if by_key else None
        return drawn_column(drawn, partition, piece, buckets)

    return column


def _pieces(log: StreamRows, plan: ShedPlan, part: Range) -> Iterator[Piece]:
    """The kept rows of a range; an error names the stream, the partition and the position."""
    at = part.first
    try:
        for piece in read_range(log, plan, part):
            yield piece
            at = int(piece.positions[-1]) + 1
    except PenstockError as error:
        where = f"stream {log.name}, {partition_label(log, part.partition)}, from position {at}"
        raise PenstockError(f"{where}: {error}") from error
