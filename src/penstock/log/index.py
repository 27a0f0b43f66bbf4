"""The index of an embedded partition: one fixed-size record a segment, so that headers need no parsing.

A record is checked by a CRC of its own and holds the CRC of its segment's bytes. Records of one append
end with one that has `last` set: an append counts only once that record is there, so a crash in the middle
leaves nothing behind. The file is memory mapped and searched, never loaded.
"""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np

from penstock.log.protocol import WRITER_BYTES, Segment

MAGIC = 0x504E534B  # "PNSK"


def record_type(key_buckets: int) -> np.dtype:
    """Layout of a record; `crc` covers everything after it."""
    fields: list[tuple] = [
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
    """Whether a record (an array of one) is as it was written."""
    return int(record["magic"][0]) == MAGIC and int(record["crc"][0]) == _crc(record)


class Index:
    """Records of one partition, read through a memory map that follows the growing file."""

    def __init__(self, path: Path, key_buckets: int) -> None:
        self.path = path
        self.dtype = record_type(key_buckets)
        self._mapped = np.empty(0, self.dtype)
        self._seen = (0, 0)
        self._count = 0

    def records(self) -> np.ndarray:
        """All records of complete appends, in order of position."""
        stat = self.path.stat()
        if (stat.st_ino, stat.st_size) != self._seen:
            whole = stat.st_size // self.dtype.itemsize
            self._mapped = (
                np.memmap(self.path, self.dtype, "r", shape=(whole,)) if whole else self._mapped[:0]
            )
            self._seen = (stat.st_ino, stat.st_size)
            self._count = self._complete(whole)
        return self._mapped[: self._count]

    def _complete(self, count: int) -> int:
        """Drops a tail that is torn or belongs to an append whose last record is missing."""
        while count > 0:
            record = self._mapped[count - 1 : count]
            if is_whole(record) and record["last"][0]:
                break
            count -= 1
        return count

    def between(self, start: int, end: int) -> np.ndarray:
        """Records of segments that hold rows in [start, end)."""
        records = self.records()
        first = int(np.searchsorted(records["first_position"], start, side="right")) - 1
        first = max(first, 0)
        last = int(np.searchsorted(records["first_position"], end, side="left"))
        found = records[first:last]
        return found[found["first_position"] + found["rows"] > start]


def to_segment(record: np.void, partition: int) -> Segment:
    """A record as the header that readers see."""
    names = record.dtype.names or ()
    return Segment(
        partition=partition,
        first_position=int(record["first_position"]),
        rows=int(record["rows"]),
        arrival_min_us=int(record["arrival_min_us"]),
        arrival_max_us=int(record["arrival_max_us"]),
        arrival_mean_us=float(record["arrival_mean_us"]),
        bytes=int(record["length"]),
        sic=float(record["sic"]),
        writer=bytes(record["writer"]).decode(),
        key_counts=tuple(record["key_counts"].tolist()) if "key_counts" in names else (),
    )
