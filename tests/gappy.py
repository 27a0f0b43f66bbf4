"""A stream log that is all that a broker's may be: gappy, growing and slow.

Each position of a partition either has a row or has none, for ever. Partitions come while the log is read,
and have names of their own. What a log object has been told of the ends is some time old, and is looked up
again when a caller names a later end. Old rows go by the log's own retention. Nothing is stored: the log is a
function of its description and the clock, so that any number of log objects agree.
"""

from __future__ import annotations

import zlib
from bisect import bisect_right
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.streams.descriptor import check_partition, read_about, write_about
from penstock.streams.kinds.base import Clock, Opening
from penstock.streams.protocol import ARRIVAL, HeaderArrays, IntArray, PositionedRows
from penstock.streams.state import FileState
from penstock.vocabulary.errors import InvalidInputError
from penstock.vocabulary.mixing import mixed
from penstock.vocabulary.stream_ref import StreamRef

KIND, KEY = "gappy", "sensor"


@dataclass(frozen=True)
class Gappy:
    """What the log is like.

    Attributes:
        began_s: When its first partitions began.
        per_s: Positions a second of each partition.
        births_s: For each partition, how long after `began_s` it comes, in order.
        block: Positions of a segment.
        gap_percent: How many of a hundred positions have no row.
        aborted: Every so many blocks one has no row at all, as after an aborted transaction.
        retention_s: How old rows get.
        lag_s: How old a log object's knowledge of ends is, unless somebody names a later end.
        keyed: Whether rows have a key, `sensor`.
        counts_keys: Whether headers of a keyed log count rows by key bucket.
    """

    began_s: float
    per_s: float = 5_000.0
    births_s: tuple[float, ...] = (0.0, 0.0)
    block: int = 512
    gap_percent: int = 15
    aborted: int = 7
    retention_s: float = 1e9
    lag_s: float = 0.0
    keyed: bool = False
    counts_keys: bool = True


def key_of(position: int) -> str:
    """The key of a row."""
    return f"s{position % 97}"


def bucket_of(position: int, buckets: int) -> int:
    """The bucket of a row's key."""
    return zlib.crc32(key_of(position).encode()) % buckets


class GappyLog:
    """One such log, for reading."""

    dense = False
    key_buckets = 64
    event_time = None

    def __init__(self, directory: Path, clock: Clock, lag_s: float | None = None) -> None:
        about = read_about(directory, KIND)
        self.ref, self.uid, self._clock = StreamRef.of(directory), str(about["id"]), clock
        fields = about["gappy"]
        self.like = Gappy(**{**fields, "births_s": tuple(fields["births_s"])})
        self.lag_s = self.like.lag_s if lag_s is None else lag_s
        self.key_column = KEY if self.like.keyed else None
        key = [(KEY, pa.string())] if self.like.keyed else []
        self.user_schema = pa.schema([("value", pa.int64()), *key])
        self.schema = self.user_schema.append(pa.field(ARRIVAL, pa.int64()))
        self.state = FileState(directory, lambda partition, before: self.start(partition), clock)
        self._named: dict[int, int] = {}
        """By partition, the last end that somebody named."""

    @classmethod
    def create(cls, directory: Path, like: Gappy, clock: Clock) -> GappyLog:
        write_about(directory, {"kind": KIND, "gappy": asdict(like)}, lambda: None)
        return cls(directory, clock)

    @property
    def name(self) -> str:
        return self.ref.name

    @property
    def partitions(self) -> int:
        known = self._born(self._clock() - self.lag_s)
        return max(known, max(self._named) + 1) if self._named else known

    def _born(self, now_s: float) -> int:
        return bisect_right(self.like.births_s, now_s - self.like.began_s)

    def _check(self, partition: int) -> None:
        """A caller knows of a partition: this object looks again, if it does not."""
        if self.partitions <= partition < self._born(self._clock()):
            self._named[partition] = 0
        check_partition(self, partition)

    def partition_name(self, partition: int) -> str:
        self._check(partition)
        return f"{'orders' if partition % 2 else 'payments'}/{partition // 2}"

    def mark(self, partition: int, position: int) -> None:
        """The broker is trusted."""

    # -- positions ------------------------------------------------------------------------------

    def _at(self, partition: int, now_s: float) -> int:
        """Where a partition ends at a moment."""
        since_s = now_s - self.like.began_s - self.like.births_s[partition]
        return max(0, int(since_s * self.like.per_s))

    def _arrival_us(self, partition: int, positions: IntArray) -> IntArray:
        began_s = self.like.began_s + self.like.births_s[partition]
        found: IntArray = ((began_s + (positions + 1) / self.like.per_s) * 1e6).astype(np.int64)
        return found

    def start(self, partition: int = 0) -> int:
        self._check(partition)
        gone = self._at(partition, self._clock() - self.like.retention_s)
        return gone // self.like.block * self.like.block

    def end(self, partition: int = 0) -> int:
        self._check(partition)
        return max(self._at(partition, self._clock() - self.lag_s), self._named.get(partition, 0))

    def _name(self, partition: int, end: int) -> None:
        """A caller knows of an end: this object looks again, if it does not."""
        if end > self.end(partition):
            self._named[partition] = min(end, self._at(partition, self._clock()))

    def position_at(self, partition: int, arrival_us: int) -> int:
        end, block = self.end(partition), self.like.block
        began_s = self.like.began_s + self.like.births_s[partition]
        rows = int(np.floor((arrival_us / 1e6 - began_s) * self.like.per_s + 1e-6))
        return end if rows >= end else max(self.start(partition), rows // block * block)

    def header_arrays(self, partition: int, start: int, end: int, keys: bool = True) -> HeaderArrays:
        self._name(partition, end)
        block, start, end = self.like.block, max(start, self.start(partition)), min(end, self.end(partition))
        firsts = np.arange(start // block * block, end, block) if end > start else np.empty(0, np.int64)
        ends = np.minimum(firsts + block, self.end(partition))
        return HeaderArrays(
            firsts,
            ends - firsts,
            self._arrival_us(partition, firsts),
            self._arrival_us(partition, ends - 1),
            self._key_counts(partition, firsts, ends) if keys and self.like.counts_keys else None,
        )

    def _key_counts(self, partition: int, firsts: IntArray, ends: IntArray) -> np.ndarray | None:
        if not self.like.keyed:
            return None
        counts = np.zeros((firsts.size, self.key_buckets), np.uint32)
        for i, (first, end) in enumerate(zip(firsts.tolist(), ends.tolist(), strict=True)):
            there = np.arange(first, end)
            for at in there[self.has_row(partition, there)].tolist():
                counts[i, bucket_of(at, self.key_buckets)] += 1
        return counts

    # -- rows -----------------------------------------------------------------------------------

    def has_row(self, partition: int, positions: IntArray) -> np.ndarray:
        """Which positions have a row: the truth that tests compare with."""
        drawn = mixed(positions.astype(np.uint64) * np.uint64(64) + np.uint64(partition))
        aborted = positions // self.like.block % self.like.aborted == self.like.aborted - 1
        return (drawn % np.uint64(100) >= self.like.gap_percent) & ~aborted

    def read(self, partition: int, first: int, end: int) -> PositionedRows:
        self._name(partition, end)
        if first < self.start(partition) or end > self.end(partition):
            raise InvalidInputError("the segment to read is still in the log", f"{self.name}, {first}", "")
        positions = np.arange(first, end, dtype=np.int64)
        positions = positions[self.has_row(partition, positions)]
        columns = [pa.array(positions), pa.array(self._arrival_us(partition, positions))]
        if self.like.keyed:
            columns.insert(1, pa.array([key_of(at) for at in positions.tolist()], pa.string()))
        return PositionedRows(positions, pa.RecordBatch.from_arrays(columns, schema=self.schema))

    def close(self) -> None:
        """Nothing is open."""

    def __enter__(self) -> GappyLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Slow:
    """Stands before a log whose calls take virtual time: whoever makes calls has to let the time pass.

    Args:
        log: The log.
        call_s: How long a call takes.
    """

    CALLS = ("start", "end", "header_arrays", "position_at", "read")

    def __init__(self, log: GappyLog, call_s: float) -> None:
        self._log, self.call_s = log, call_s
        self._spent_s = 0.0

    def __getattr__(self, name: str) -> Any:
        if name in self.CALLS:
            self._spent_s += self.call_s
        return getattr(self._log, name)

    def spent_s(self) -> float:
        """How long the calls took since somebody asked last."""
        spent_s, self._spent_s = self._spent_s, 0.0
        return spent_s


class GappyKind:
    """Opens such logs in directories.

    Args:
        clock: The logs' clock, whatever others say.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock

    def open(self, ref: StreamRef, how: Opening) -> GappyLog:
        return GappyLog(Path(ref.id), self._clock or how.clock)


GAPPY = GappyKind()
