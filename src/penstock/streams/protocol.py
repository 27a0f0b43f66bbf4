"""What a stream log is: four small protocols over partitions, positions and segments.

A stream has partitions, numbered from 0. Their number may grow, and a partition keeps its number for ever. A
partition has positions, and the log gives each appended row a position of its own, in order. A position may
have no row: a transaction was aborted, or the log was compacted. So positions are what Penstock counts. Where
a log is dense, each position has a row, and a count of positions is a count of rows.

Segments divide the positions of a partition: each segment begins where the one before it ends. Their borders
depend on the log alone, whoever asks and whenever, because a shed plan opens segments by their first
positions, and a batch that is run again must open the same ones. Only the last segment may grow.

A call may take long, and what one process has been told of a partition's end may be older than what another
process knows. So an end that a caller names is knowledge: the log looks again before it answers with less.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.vocabulary.errors import InvalidInputError
from penstock.vocabulary.stream_ref import StreamRef

ARRIVAL = "_arrival"
"""Column that the log adds to every row: microseconds since the epoch, non-decreasing in a partition."""

POSITION = "_position"
"""Column with a row's position in its partition."""

DRAWN = "_drawn"
"""Column that says how a row was drawn; an estimate's error is computed from it."""

KEPT = "_kept"
"""Column with the fraction of its grant's rows that was admitted, however the others were shed."""

METADATA_COLUMNS = (ARRIVAL, POSITION, "_seq", "_sic", "_weight")
"""Columns that `metadata=True` adds."""

RESERVED_COLUMNS = (*METADATA_COLUMNS, KEPT, DRAWN)
"""Names of metadata columns; a user's column may not have them."""

ESTIMATE = ("_weight", KEPT, DRAWN)
"""Columns that `penstock.estimate` needs."""

ORIGIN = (ARRIVAL, "_sic", "_weight", KEPT)
"""Columns that rows of a shared stream take over from the rows they were computed from."""

WRITER_BYTES = 40

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class AppendKey:
    """Makes an append idempotent: a batch that its writer has appended already is not appended again.

    Attributes:
        writer: Name of the writer, at most 40 bytes.
        batch: Number of the batch; numbers of one writer rise.
    """

    writer: str
    batch: int

    def __post_init__(self) -> None:
        if not 0 < len(self.writer.encode()) <= WRITER_BYTES:
            raise InvalidInputError(
                f"a writer's name has 1 to {WRITER_BYTES} bytes",
                repr(self.writer),
                "use a short name or a hash",
            )
        if "\0" in self.writer:
            raise InvalidInputError(  # the index pads names with NUL
                "a writer's name has no NUL character", repr(self.writer), "leave it out"
            )
        if self.batch < 0:
            raise InvalidInputError("a batch number is 0 or more", self.batch, "count batches from 0")


@dataclass(frozen=True, slots=True, eq=False)
class HeaderArrays:
    """The headers of segments, an array a field: for planning over thousands of segments at once.

    Attributes:
        first_position: First position of each segment.
        rows: How many positions each segment has; each of them has a row, if the log is dense.
        arrival_min_us: When the first row of each segment arrived.
        arrival_max_us: When the last row of each segment arrived.
        key_counts: Rows by bucket of the key's hash: an array row a segment, a column a bucket. `None`
            without a key, or if the caller asked for none.
    """

    first_position: IntArray
    rows: IntArray
    arrival_min_us: IntArray
    arrival_max_us: IntArray
    key_counts: npt.NDArray[np.uint32] | None = None

    def __len__(self) -> int:
        return int(self.rows.size)

    @property
    def end_position(self) -> IntArray:
        """For each segment, the position after its last one."""
        ends: IntArray = self.first_position + self.rows
        return ends


@dataclass(frozen=True, slots=True, eq=False)
class PositionedRows:
    """Rows with their positions, which rise from row to row. Positions between them may have no row.

    Attributes:
        positions: One for each row.
        batch: The rows.
    """

    positions: IntArray
    batch: pa.RecordBatch


class StreamIndex(Protocol):
    """What planning needs: which positions there are and when their rows arrived, without the rows."""

    @property
    def ref(self) -> StreamRef:
        """By which everybody names the stream."""
        ...

    @property
    def name(self) -> str:
        """What a user calls the stream."""
        ...

    @property
    def uid(self) -> str:
        """Tells the stream from another one that is made later in the same place; empty if nobody can."""
        ...

    @property
    def partitions(self) -> int:
        """How many partitions there are; more may come."""
        ...

    def partition_name(self, partition: int) -> str:
        """What the log itself calls a partition, such as a topic and a number; it never changes.

        Messages to users have it beside the number, unless it is the number.
        """
        ...

    @property
    def dense(self) -> bool:
        """Whether each position has a row."""
        ...

    @property
    def key_column(self) -> str | None:
        """The column whose hash groups rows, if the stream declares one."""
        ...

    @property
    def key_buckets(self) -> int:
        """How many values the hash of the key has; a count of rows by key has so many columns."""
        ...

    @property
    def event_time(self) -> str | None:
        """The column with the time of a row's event, if the stream declares one."""
        ...

    schema: pa.Schema
    """Columns of the rows as stored and read: the user's, `_arrival`, and those of a shared stream."""

    user_schema: pa.Schema
    """Columns that queries see."""

    def start(self, partition: int = 0) -> int:
        """The first position that has not been trimmed."""
        ...

    def end(self, partition: int = 0) -> int:
        """The position after the last one that can be read."""
        ...

    def position_at(self, partition: int, arrival_us: int) -> int:
        """First position of the first segment that ends after an arrival time; the end if there is none."""
        ...

    def header_arrays(self, partition: int, start: int, end: int, keys: bool = True) -> HeaderArrays:
        """Headers of the segments with positions in [start, end); without `keys` no counts by key bucket."""
        ...

    def mark(self, partition: int, position: int) -> int | None:
        """A checksum of what lies right before a position, see `streams.marks`.

        0 if nothing lies there. `None` from a log that cannot tell, or cannot lose what it has told.
        """
        ...


class SegmentReader(Protocol):
    """What executors need: the rows."""

    def read(self, partition: int, first: int, end: int) -> PositionedRows:
        """The rows of positions [first, end), which lie in one segment.

        Raises:
            InvalidInputError: The segment has been trimmed, or is damaged.
        """
        ...

    def close(self) -> None:
        """Lets go of connections, files and locks."""
        ...


class StreamRows(StreamIndex, SegmentReader, Protocol):
    """Headers and rows of one stream: for plans that look into rows, and for lanes.

    Where Penstock keeps its own files about the stream does not matter here.
    """


class StreamWriter(Protocol):
    """What producers and sinks need."""

    @property
    def name(self) -> str:
        """What a user calls the stream."""
        ...

    @property
    def partitions(self) -> int:
        """How many partitions there are; more may come."""
        ...

    @property
    def key_column(self) -> str | None:
        """The column by whose hash a producer chooses partitions, if the stream declares one."""
        ...

    @property
    def key_buckets(self) -> int:
        """How many values that hash has."""
        ...

    append_schema: pa.Schema
    """Columns of the rows as appended: all but `_arrival`."""

    def append(
        self,
        rows: pa.RecordBatch | pa.Table,
        partition: int = 0,
        key: AppendKey | None = None,
        arrival_us: np.ndarray | None = None,
    ) -> int:
        """Appends rows, all or none; returns the partition's end. With a key already seen it is a no-op.

        An append without rows, but with a key, is a note: the partition has all that it will have of the
        writer's batches up to this one.
        """
        ...

    def last_batch(self, writer: str, partition: int = 0) -> int:
        """The last batch of a writer that is in the partition; -1 for none."""
        ...

    def close(self) -> None:
        """Releases locks and files that appending took."""
        ...


StateKind = Literal["plans", "readers", "lanes", "files"]
"""Plan journals, progress of readers, progress of backfills, progress of files that a feed has read."""


class StreamState(Protocol):
    """What Penstock keeps about a stream on the machine of its drivers, wherever the stream's rows are.

    The state is folders, not a journal and a registry with methods of their own. The files are part of the
    design: planners, the control plane, backfills and commands are different processes, and they agree by
    renaming and locking files in these folders. `grants/journal.py`, `streams/registry.py` and
    `lanes/progress.py` know what is in the files. A state that is no directory, such as a topic, would need
    other locks: another implementation of these modules, and not of this protocol alone.
    """

    def folder(self, kind: StateKind) -> Path:
        """The folder with one kind of files; it may not exist yet."""
        ...

    def trim(self, partition: int, before: int) -> int:
        """Forgets rows before a position, if that is for Penstock to do; returns the first position left."""
        ...

    def clock(self) -> float:
        """Seconds since the epoch."""
        ...


class StreamLog(StreamRows, Protocol):
    """One stream for reading, with its state. Readers and writers may be different processes."""

    @property
    def state(self) -> StreamState:
        """Refused where the state is on another machine."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


class WritableLog(StreamLog, StreamWriter, Protocol):
    """One stream for reading and appending."""


class PacedStream(StreamLog, Protocol):
    """A stream that is written beforehand and arrives by a schedule."""

    @property
    def seconds(self) -> float:
        """Time from the beginning to the last arrival."""
        ...

    @property
    def began_s(self) -> float | None:
        """When the stream began; `None` if it has not."""
        ...

    def total_rows(self, partition: int = 0) -> int:
        """Number of rows that a partition has once the whole schedule has arrived."""
        ...

    def begin(self, at_s: float | None = None, restart: bool = False) -> float:
        """Lets the stream begin, durably and for all processes; returns the time of the beginning."""
        ...
