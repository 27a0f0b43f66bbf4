"""What a stream log is, whoever keeps it: a few methods over partitions, positions and segment headers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa

from penstock.errors import InvalidInputError

ARRIVAL = "_arrival"
"""Column that the log adds to every row: microseconds since the epoch, non-decreasing in a partition."""

RESERVED_COLUMNS = (ARRIVAL, "_position", "_seq", "_sic", "_weight")
"""Names of metadata columns; a user's column may not have them."""


@dataclass(frozen=True, slots=True)
class AppendKey:
    """Makes an append idempotent: a batch that its writer has appended already is not appended again.

    Attributes:
        writer: Name of the writer, at most 40 bytes.
        batch: Its batch number; numbers of one writer rise.
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
        if self.batch < 0:
            raise InvalidInputError("a batch number is 0 or more", self.batch, "count batches from 0")


WRITER_BYTES = 40


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


class StreamLog(Protocol):
    """One stream. Readers and the writer of a partition may be different processes."""

    @property
    def partitions(self) -> int: ...

    @property
    def schema(self) -> pa.Schema:
        """Columns of the rows as read: the user's and `_arrival`."""
        ...

    def append(
        self,
        rows: pa.RecordBatch,
        partition: int = 0,
        key: AppendKey | None = None,
        arrival_us: np.ndarray | None = None,
    ) -> int:
        """Appends rows, all or none; returns the partition's end. With a key already seen it is a no-op."""
        ...

    def end(self, partition: int = 0) -> int:
        """The position after the last row."""
        ...

    def headers(self, partition: int, start: int, end: int) -> Sequence[Segment]:
        """Headers of the segments that hold rows in [start, end)."""
        ...

    def read(self, segment: Segment) -> pa.RecordBatch:
        """The rows of a segment."""
        ...

    def trim(self, partition: int, before: int) -> int:
        """Forgets rows before a position, in whole files; returns the first position that is left."""
        ...
