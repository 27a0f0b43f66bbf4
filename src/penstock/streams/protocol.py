"""The protocol of every stream log: a few methods over partitions, positions and segment headers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.vocabulary.errors import InvalidInputError

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


@dataclass(frozen=True, slots=True)
class Segment:
    """Header of a segment: what can be known of its rows without reading them."""

    partition: int
    first_position: int
    rows: int
    arrival_min_us: int
    arrival_max_us: int
    arrival_mean_us: float
    bytes: int
    sic: float
    writer: str
    key_counts: tuple[int, ...] = ()
    """Rows by bucket of the key's hash, where the stream declares a key."""

    @property
    def end_position(self) -> int:
        return self.first_position + self.rows


@dataclass(frozen=True, slots=True, eq=False)
class HeaderArrays:
    """The headers of many segments, an array a field: for planning over thousands of segments at once.

    Attributes:
        key_counts: A row a segment, a column a bucket; `None` without a key, or if the caller asked for none.
    """

    first_position: npt.NDArray[np.int64]
    rows: npt.NDArray[np.int64]
    arrival_min_us: npt.NDArray[np.int64]
    arrival_max_us: npt.NDArray[np.int64]
    arrival_mean_us: npt.NDArray[np.float64]
    key_counts: npt.NDArray[np.uint32] | None = None

    def __len__(self) -> int:
        return int(self.rows.size)


class ReadableStream(Protocol):
    """The part of a stream that planning needs: positions and arrival times of rows, not the rows."""

    @property
    def partitions(self) -> int: ...

    @property
    def key_column(self) -> str | None:
        """The column whose hash groups rows, if the stream declares one."""
        ...

    @property
    def key_buckets(self) -> int: ...

    def start(self, partition: int = 0) -> int:
        """The first position that has not been trimmed."""
        ...

    def end(self, partition: int = 0) -> int:
        """The position after the last row."""
        ...

    def position_at(self, partition: int, arrival_us: int) -> int:
        """First position of the first segment that ends after an arrival time; the end if there is none."""
        ...

    def header_arrays(self, partition: int, start: int, end: int, keys: bool = True) -> HeaderArrays:
        """Headers of the segments that hold rows in [start, end); without `keys` no counts by key bucket."""
        ...


class StreamLog(ReadableStream, Protocol):
    """One stream. Readers and the writer of a partition may be different processes."""

    @property
    def name(self) -> str: ...

    @property
    def directory(self) -> Path:
        """The stream's directory; an error if it is on another machine."""
        ...

    def clock(self) -> float:
        """Seconds since the epoch."""
        ...

    schema: pa.Schema
    """Columns of the rows as stored and read: the user's, `_arrival`, and those of a shared stream."""

    append_schema: pa.Schema
    """Columns of the rows as appended: all but `_arrival`."""

    user_schema: pa.Schema
    """Columns that queries see."""

    def append(
        self,
        rows: pa.RecordBatch,
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

    def headers(self, partition: int, start: int, end: int) -> Sequence[Segment]:
        """Headers of the segments that hold rows in [start, end), one object for each."""
        ...

    def read(self, segment: Segment) -> pa.RecordBatch:
        """The rows of a segment."""
        ...

    def trim(self, partition: int, before: int) -> int:
        """Forgets rows before a position, in whole files; returns the first position that is left."""
        ...

    def close(self) -> None:
        """Releases locks and files that appending took."""
        ...
