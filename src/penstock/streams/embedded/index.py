"""The index of an embedded partition: one fixed-size record a segment, so that headers need no parsing.

A record is checked by a CRC of its own and holds the CRC of its segment's bytes. Records of one append
end with one that has `last` set: an append counts only once that record is there, so a crash in the middle
leaves nothing behind. The file is memory mapped and searched, never loaded.
"""

from __future__ import annotations

import mmap
import os
import zlib
from pathlib import Path

import numpy as np

from penstock.streams.protocol import WRITER_BYTES, HeaderArrays

MAGIC = 0x504E534B  # "PNSK"


def record_type(key_buckets: int) -> np.dtype:
    """Layout of a record; `crc` covers everything after it."""
    fields: list[tuple[object, ...]] = [
        ("magic", "<u4"),
        ("crc", "<u4"),
        ("first_position", "<i8"),
        ("rows", "<i8"),
        ("arrival_min_us", "<i8"),
        ("arrival_max_us", "<i8"),
        ("arrival_mean_us", "<f8"),
        ("file", "<i8"),
        ("offset", "<i8"),
        ("length", "<i8"),
        ("data_crc", "<u4"),
        ("last", "<u4"),
        ("batch", "<i8"),
        ("sic", "<f8"),
        ("writer", f"S{WRITER_BYTES}"),
    ]
    if key_buckets:
        fields.append(("key_counts", "<u4", (key_buckets,)))
    if key_buckets % 2:
        fields.append(("padding", "<u4"))  # NumPy searches in place only where numbers are aligned
    return np.dtype(fields)


def seal(records: np.ndarray) -> bytes:
    """Bytes of records with magic and CRC filled in."""
    records["magic"] = MAGIC
    for i in range(records.size):
        records[i]["crc"] = _crc(records[i : i + 1])
    return records.tobytes()


def _crc(record: np.ndarray) -> int:
    return zlib.crc32(record.tobytes()[8:])


def is_whole(record: np.ndarray) -> bool:
    """Whether a record (an array of one) is undamaged."""
    return int(record["magic"][0]) == MAGIC and int(record["crc"][0]) == _crc(record)


class Index:
    """Records of one partition, read through a memory map that follows the growing file."""

    def __init__(self, path: Path, key_buckets: int) -> None:
        self.path = path
        self.dtype = record_type(key_buckets)
        # the file's inode and size, and its records; one attribute, so that threads see both or neither
        self._state: tuple[tuple[int, int], np.ndarray] = ((0, 0), np.empty(0, self.dtype))

    def records(self) -> np.ndarray:
        """All records of complete appends, in order of position."""
        seen, records = self._state
        stat = self.path.stat()
        if (stat.st_ino, stat.st_size) != seen:
            with self.path.open("rb") as file:
                stat = os.fstat(file.fileno())  # again: a compaction may have replaced the file meanwhile
                records = self._map(file.fileno(), stat.st_size)
            # a writer may undo a torn tail and write another of the same size: map the file again next time
            torn = records.size * self.dtype.itemsize < stat.st_size
            self._state = ((stat.st_ino, -1 if torn else stat.st_size), records)
        return records

    def _map(self, handle: int, size: int) -> np.ndarray:
        whole = size // self.dtype.itemsize
        if not whole:
            return np.empty(0, self.dtype)
        mapped = mmap.mmap(handle, whole * self.dtype.itemsize, access=mmap.ACCESS_READ)
        records = np.frombuffer(mapped, self.dtype)
        while whole > 0:  # leaves out a torn tail, and records of an append whose last record is missing
            record = records[whole - 1 : whole]
            if is_whole(record) and record["last"][0]:
                break
            whole -= 1
        return records[:whole]

    def between(self, start: int, end: int) -> np.ndarray:
        """Records of segments that hold rows in [start, end)."""
        records = self.records()
        first = int(np.searchsorted(records["first_position"], start, side="right")) - 1
        first = max(first, 0)
        last = int(np.searchsorted(records["first_position"], end, side="left")) if end > start else 0
        found = records[first:last]
        if found.size and found[0]["first_position"] + found[0]["rows"] <= start:
            found = found[1:]
        return found

    def position_at(self, arrival_us: int) -> int | None:
        """First position of the first segment whose last row arrived after a time."""
        records = self.records()
        at = int(np.searchsorted(records["arrival_max_us"], arrival_us, side="right"))
        return int(records[at]["first_position"]) if at < records.size else None


def last_batches(records: np.ndarray) -> dict[str, int]:
    """The last batch of each writer in these records."""
    named = records[records["batch"] >= 0]
    writers, which = np.unique(named["writer"], return_inverse=True)
    last = np.full(writers.size, -1, np.int64)
    np.maximum.at(last, which, named["batch"])
    return {bytes(writer).decode(): int(batch) for writer, batch in zip(writers, last, strict=True)}


def to_arrays(records: np.ndarray, keys: bool) -> HeaderArrays:
    """Copies records into arrays; only the counts by key bucket, which are many, stay a view of the map."""
    with_keys = keys and "key_counts" in (records.dtype.names or ())
    return HeaderArrays(
        first_position=records["first_position"].copy(),
        rows=records["rows"].copy(),
        arrival_min_us=records["arrival_min_us"].copy(),
        arrival_max_us=records["arrival_max_us"].copy(),
        key_counts=records["key_counts"] if with_keys else None,
    )
