"""A paced stream: written beforehand, its end advances with the clock. Load without the producer's cost.

<stream>/stream.json         kind, partitions, key, event time
<stream>/pool/               an embedded stream: the rows, written once
<stream>/p0000/schedule.npy  a column a segment: first position, rows, pool segment, arrivals; mapped
<stream>/key_counts.npy      for a stream with a key: rows by bucket in the first k rows of a pool segment
<stream>/started             when the stream began

A schedule uses a pool segment any number of times. A scheduled segment with fewer rows uses the first rows of
its pool segment. So minutes at twenty times capacity take little disk.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from penstock.streams.columns import check_event_time, check_rows, check_schema, with_event_time
from penstock.streams.descriptor import check_partition, read_about, write_about
from penstock.streams.embedded.log import EmbeddedLog
from penstock.streams.files import replace_text, sync_directory, write_beside
from penstock.streams.hashing import key_buckets
from penstock.streams.layout import LogConfig
from penstock.streams.producing.schedule import Schedule
from penstock.streams.protocol import ARRIVAL, HeaderArrays, PositionedRows
from penstock.streams.state import FileState
from penstock.vocabulary.errors import InvalidInputError
from penstock.vocabulary.stream_ref import StreamRef

_FIRST, _ROWS, _POOL, _MIN, _MAX = range(5)


class PacedLog:
    """One paced stream, for reading; see `create_paced`.

    `end` follows the clock. Positions that were once below the end can be read whatever the clock says. So a
    clock that goes back, or the clock of another machine, loses no rows.

    Args:
        directory: The stream's directory.
        clock: Seconds since the epoch.
        verify: Whether a pool segment's bytes are checked when the segment is first read.
    """

    def __init__(
        self, directory: str | Path, clock: Callable[[], float] = time.time, verify: bool = True
    ) -> None:
        self.directory, self.clock = Path(directory), clock
        self.ref = StreamRef.of(directory)
        about = read_about(self.directory, "paced")
        self.uid = str(about.get("id", ""))
        self.state = FileState(self.directory, self.trim, clock)
        self._pool = EmbeddedLog(self.directory / "pool", verify=verify)
        self.schema, self.user_schema = self._pool.schema, self._pool.user_schema
        self.partitions: int = about["partitions"]
        self.key_column: str | None = about["key"]
        self.key_buckets: int = about["key_buckets"]
        self.event_time: str | None = about["event_time"]
        self._schedules = [
            np.load(self.directory / f"p{p:04d}" / "schedule.npy", mmap_mode="r").view(np.ndarray)
            for p in range(self.partitions)
        ]
        self._counts = None
        if self.key_column is not None:
            self._counts = np.load(self.directory / "key_counts.npy", mmap_mode="r").view(np.ndarray)
        pool = self._pool.header_arrays(0, 0, self._pool.end())
        self._pool_segments = list(zip(pool.first_position.tolist(), pool.end_position.tolist(), strict=True))
        self._batches: dict[int, pa.RecordBatch] = {}
        self._started = str(self.directory / "started")
        self._began: tuple[tuple[int, int], int] | None = None

    dense = True

    @property
    def name(self) -> str:
        return self.directory.name

    def partition_name(self, partition: int) -> str:
        """The partition's number."""
        check_partition(self, partition)
        return str(partition)

    def mark(self, partition: int, position: int) -> None:
        """A paced stream has no marks: it is written beforehand."""

    @property
    def seconds(self) -> float:
        """Time from the beginning to the last arrival."""
        return max((float(s[_MAX, -1]) / 1e6 for s in self._schedules if s.size), default=0.0)

    def total_rows(self, partition: int = 0) -> int:
        """Number of rows that a partition has once the whole schedule has arrived."""
        check_partition(self, partition)
        return int(self._schedules[partition][_ROWS].sum())

    def begin(self, at_s: float | None = None, restart: bool = False) -> float:
        """Lets the stream begin, durably and for all processes; returns the time of the beginning.

        Args:
            at_s: Time of the beginning by the clock; by default now. It may lie in the future, or in the past
                for a backlog.
            restart: Whether a stream that has begun begins again, from position 0.
        """
        at_s = self.clock() if at_s is None else at_s
        text = json.dumps({"at_us": round(at_s * 1e6)})
        path = self.directory / "started"
        if restart:
            replace_text(path, text)
            return at_s
        beside = write_beside(path, text.encode())
        try:
            os.link(beside, path)  # unlike a rename, a link fails if the file exists
        except FileExistsError:
            raise InvalidInputError(
                "a paced stream begins once",
                f"{self.name} began at {self.began_s}",
                "give restart=True to begin again from position 0",
            ) from None
        finally:
            beside.unlink()
        sync_directory(self.directory)
        return at_s

    @property
    def began_s(self) -> float | None:
        """When the stream began; `None` if it has not."""
        began_us = self._began_us()
        return None if began_us is None else began_us / 1e6

    def _began_us(self) -> int | None:
        try:
            stat = os.stat(self._started)
            seen = (stat.st_ino, stat.st_mtime_ns)
            if self._began is None or self._began[0] != seen:
                at_us = int(json.loads(Path(self._started).read_text())["at_us"])
                self._began = (seen, at_us)
        except FileNotFoundError:
            return None
        return self._began[1]

    def end(self, partition: int = 0) -> int:
        """Position after the last segment whose rows have all arrived by now."""
        check_partition(self, partition)
        began_us, schedule = self._began_us(), self._schedules[partition]
        if began_us is None:
            return 0
        return self._first(schedule, self._arrived(schedule, int(self.clock() * 1e6) - began_us))

    @staticmethod
    def _arrived(schedule: np.ndarray, after_us: int) -> int:
        return int(schedule[_MAX].searchsorted(after_us, side="right"))

    @staticmethod
    def _first(schedule: np.ndarray, segment: int) -> int:
        """First position of a segment, or the end after the last one."""
        if segment < schedule.shape[1]:
            return int(schedule[_FIRST, segment])
        return int(schedule[_FIRST, -1] + schedule[_ROWS, -1]) if schedule.size else 0

    def start(self, partition: int = 0) -> int:
        """Always 0: a paced stream is never trimmed."""
        check_partition(self, partition)
        return 0

    def position_at(self, partition: int, arrival_us: int) -> int:
        """First position of the first segment that ends after an arrival time; the end if there is none."""
        end, began_us, schedule = self.end(partition), self._began_us(), self._schedules[partition]
        if began_us is None:
            return 0
        return min(end, self._first(schedule, self._arrived(schedule, arrival_us - began_us)))

    def header_arrays(self, partition: int, start: int, end: int, keys: bool = True) -> HeaderArrays:
        """Headers of the segments that hold rows in [start, end); without `keys` no counts by key bucket."""
        check_partition(self, partition)
        schedule, began_us = self._schedules[partition], self._began_us()
        begins = schedule[_FIRST]
        first = int(begins.searchsorted(max(start, 0), side="right")) - 1
        last = int(begins.searchsorted(end, side="left"))
        if began_us is None or end <= start or start >= self._first(schedule, schedule.shape[1]):
            first = last = 0
        first_position, rows, pool, low_us, high_us = schedule[:, max(first, 0) : last].copy()
        low_us += began_us or 0
        high_us += began_us or 0
        counts = self._counts[pool, rows] if keys and self._counts is not None else None
        return HeaderArrays(first_position, rows, low_us, high_us, counts)

    def read(self, partition: int, first: int, end: int) -> PositionedRows:
        """The rows of [first, end), in one segment: rows of the pool with arrivals of the schedule."""
        check_partition(self, partition)
        schedule, began_us = self._schedules[partition], self._began_us()
        if began_us is None or first >= self._first(schedule, schedule.shape[1]):
            raise InvalidInputError(
                "the segment to read exists",
                f"{self.name}, partition {partition}, position {first}",
                "read below end(); before begin() there is nothing",
            )
        at = max(int(schedule[_FIRST].searchsorted(max(first, 0), side="right")) - 1, 0)
        begins, rows, pool, low_us, high_us = schedule[:, at].tolist()
        low_us, high_us = low_us + began_us, high_us + began_us
        inside = np.arange(first - begins, min(end - begins, rows))
        stamps = low_us + inside * (high_us - low_us) // max(rows - 1, 1)
        batch = self._pool_batch(pool).slice(first - begins, inside.size)
        batch = with_event_time(batch, self.event_time, stamps)
        where = self.schema.get_field_index(ARRIVAL)
        batch = batch.set_column(where, self.schema.field(where), pa.array(stamps, pa.int64()))
        return PositionedRows(begins + inside, batch)

    def _pool_batch(self, which: int) -> pa.RecordBatch:
        if which not in self._batches:
            self._batches[which] = self._pool.read(0, *self._pool_segments[which]).batch
        return self._batches[which]

    def trim(self, partition: int, before: int) -> int:
        """Trims nothing and returns 0: the whole schedule shares the pool."""
        check_partition(self, partition)
        return 0

    def close(self) -> None:
        self._batches.clear()
        self._pool.close()

    def __enter__(self) -> PacedLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def create_paced(
    directory: str | Path,
    pool: Sequence[pa.RecordBatch],
    schedules: Schedule | Sequence[Schedule],
    key: str | None = None,
    key_buckets: int = 64,
    event_time: str | None = None,
    clock: Callable[[], float] = time.time,
) -> PacedLog:
    """Writes a paced stream; `PacedLog.begin` lets it begin.

    Args:
        directory: A new stream's directory.
        pool: Rows that the schedule repeats in turn; at least as many as the largest segment has. They are
            cut into pool segments of that size; a remainder is left out.
        schedules: One schedule a partition.
        key: Column whose hash groups rows, or none.
        key_buckets: Number of buckets of the key's hash; headers count rows by bucket.
        event_time: A timestamp column that is overwritten with the arrival, so that windows advance.
        clock: Seconds since the epoch.
    """
    directory = Path(directory)
    schedules = [schedules] if isinstance(schedules, Schedule) else list(schedules)
    size = max((int(s.rows.max()) for s in schedules if s.rows.size), default=0)
    available = sum(batch.num_rows for batch in pool)
    if size == 0:
        raise InvalidInputError("a paced stream has rows", "an empty schedule", "give a rate above 0")
    if available < size:
        raise InvalidInputError(
            "the pool fills the largest segment",
            f"{available} rows for {size}",
            "give more rows, or a schedule with smaller segments",
        )
    schema = pool[0].schema
    check_schema(schema, key)
    check_event_time(schema, event_time)
    for batch in pool:
        check_rows(batch, schema, directory.name)
    rows = pa.Table.from_batches(pool).slice(0, available // size * size).combine_chunks().to_batches()[0]

    def fill() -> None:
        with EmbeddedLog.create(directory / "pool", schema, LogConfig(segment_rows=size)) as stored:
            stored.append(rows)
        if key is not None:
            np.save(directory / "key_counts.npy", _counts_of_first(rows.column(key), key_buckets, size))
        for p, schedule in enumerate(schedules):
            folder = directory / f"p{p:04d}"
            folder.mkdir()
            count = schedule.rows.size
            table = np.zeros((5, count), np.int64)
            table[_FIRST] = np.cumsum(schedule.rows) - schedule.rows
            table[_ROWS] = schedule.rows
            table[_POOL] = (np.arange(count) + p) % (rows.num_rows // size)
            table[_MIN], table[_MAX] = schedule.arrival_min_us, schedule.arrival_max_us
            np.save(folder / "schedule.npy", table)

    about = {"partitions": len(schedules), "key": key, "key_buckets": key_buckets, "event_time": event_time}
    write_about(directory, {"kind": "paced", **about}, fill)
    return PacedLog(directory, clock)


def _counts_of_first(values: pa.Array, buckets: int, size: int) -> np.ndarray:
    """For each pool segment and each k: number of rows in each bucket among the segment's first k rows."""
    of_row = key_buckets(values, buckets).reshape(-1, size)
    counts = np.zeros((of_row.shape[0], size + 1, buckets), np.uint32)
    for which, segment in enumerate(of_row):
        counts[which, np.arange(1, size + 1), segment] = 1
        np.cumsum(counts[which], axis=0, out=counts[which])
    return counts
