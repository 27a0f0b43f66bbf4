"""The appending side of an embedded partition: one process at a time, all of a batch or nothing."""

from __future__ import annotations

import fcntl
import logging
import os
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import InvalidInputError, PenstockError
from penstock.log.index import Index, is_whole, record_type, seal
from penstock.log.protocol import ARRIVAL, AppendKey

Fsync = Literal["always", "never"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LogConfig:
    """How a stream is laid out.

    Attributes:
        partitions: Log partitions; each has one writer process.
        key: Column whose hash groups rows, or none.
        key_buckets: Buckets of the key's hash that headers count rows by.
        segment_rows: Most rows a segment holds: the unit that shedding can skip unread.
        file_bytes: Size at which a data file is closed and the next begun: the unit that trimming removes.
    """

    partitions: int = 1
    key: str | None = None
    key_buckets: int = 64
    segment_rows: int = 8192
    file_bytes: int = 64 << 20

    def __post_init__(self) -> None:
        for name in ("partitions", "key_buckets", "segment_rows", "file_bytes"):
            if getattr(self, name) < 1:
                raise InvalidInputError(f"{name} must be at least 1", getattr(self, name), "leave it out")


class Writer:
    """The appending side of one partition; holds its lock."""

    def __init__(self, stream: str, folder: Path, schema: pa.Schema, config: LogConfig, index: Index) -> None:
        self.stream, self.folder, self.schema, self.config, self.index = stream, folder, schema, config, index
        self._lock = _take_lock(folder / "writer", f"{stream}, {folder.name}")
        self.recovered_bytes = _recover(self.folder, index)
        records = index.records()
        self.end = int(records[-1]["first_position"] + records[-1]["rows"]) if records.size else 0
        self.last_arrival_us = int(records[-1]["arrival_max_us"]) if records.size else 0
        self.file = int(records[-1]["file"]) if records.size else 0
        self.batches = _last_batches(records)
        self._data = open(self._data_path(), "ab")  # noqa: SIM115 - closed by close()
        self._index = open(index.path, "ab")  # noqa: SIM115

    def append(
        self,
        rows: pa.RecordBatch,
        key: AppendKey | None,
        arrival_us: np.ndarray | None,
        clock: Callable[[], float],
        fsync: Fsync,
    ) -> int:
        """Appends rows with the log's columns; returns the partition's end."""
        if rows.num_rows == 0 or (key is not None and key.batch <= self.batches.get(key.writer, -1)):
            return self.end
        stamps = self._stamps(rows.num_rows, arrival_us, clock)
        stored = rows.append_column(self.schema.field(ARRIVAL), pa.array(stamps, pa.int64()))
        if self._data.tell() >= self.config.file_bytes:
            self._roll()
        sizes = self._data.tell(), self._index.tell()
        try:
            self._write(stored, stamps, key, fsync)
        except OSError as error:
            self._undo(*sizes)
            raise PenstockError(
                f"an append is written whole; got {error.strerror or error} on {self.stream}; "
                "hint: nothing was appended, free some space and try again"
            ) from error
        self.end += rows.num_rows
        self.last_arrival_us = int(stamps[-1])
        if key is not None:
            self.batches[key.writer] = key.batch
        return self.end

    def _stamps(self, count: int, arrival_us: np.ndarray | None, clock: Callable[[], float]) -> np.ndarray:
        now_us = int(clock() * 1e6)
        if now_us < self.last_arrival_us:
            _log.warning("%s: the clock went back by %d us", self.stream, self.last_arrival_us - now_us)
        stamps = np.full(count, now_us, np.int64) if arrival_us is None else np.asarray(arrival_us, np.int64)
        if stamps.size != count:
            raise InvalidInputError(
                "there is one arrival time a row", f"{stamps.size} for {count} rows", "give all"
            )
        return np.maximum.accumulate(np.maximum(stamps, self.last_arrival_us))

    def _write(self, stored: pa.RecordBatch, stamps: np.ndarray, key: AppendKey | None, fsync: Fsync) -> None:
        step, starts = self.config.segment_rows, range(0, stored.num_rows, self.config.segment_rows)
        buckets = self.config.key_buckets if self.config.key else 0
        records = np.zeros(len(starts), record_type(buckets))
        for record, first in zip(records, starts, strict=True):
            part = stored.slice(first, step)
            data = part.serialize().to_pybytes()
            arrived = stamps[first : first + step]
            record["first_position"], record["rows"] = self.end + first, part.num_rows
            record["arrival_min_us"], record["arrival_max_us"] = arrived[0], arrived[-1]
            record["arrival_mean_us"] = arrived[0] + (arrived - arrived[0]).mean()
            record["file"], record["offset"], record["length"] = self.file, self._data.tell(), len(data)
            record["data_crc"] = zlib.crc32(data)
            record["batch"], record["writer"] = (key.batch, key.writer.encode()) if key else (-1, b"")
            if buckets:
                record["key_counts"] = key_counts(part.column(self.config.key), buckets)
            self._data.write(data)
        records[-1]["last"] = 1
        _flush(self._data, fsync)
        self._index.write(seal(records))
        _flush(self._index, fsync)

    def _undo(self, data_size: int, index_size: int) -> None:
        for file in (self._data, self._index):
            with suppress(OSError):  # closing writes what is still buffered: on a full disk that fails again
                file.close()
        os.truncate(self.index.path, index_size)
        os.truncate(self._data_path(), data_size)
        self._data = open(self._data_path(), "ab")  # noqa: SIM115
        self._index = open(self.index.path, "ab")  # noqa: SIM115

    def _roll(self) -> None:
        self._data.close()
        self.file = self.end
        self._data = open(self._data_path(), "ab")  # noqa: SIM115

    def _data_path(self) -> Path:
        return self.folder / f"{self.file:020d}.data"

    def close(self) -> None:
        self._data.close()
        self._index.close()
        os.close(self._lock)


def _flush(file: IO[bytes], fsync: Fsync) -> None:
    file.flush()
    if fsync == "always":
        os.fsync(file.fileno())


def key_counts(values: pa.Array, buckets: int) -> np.ndarray:
    """Rows by bucket of the hash of their key."""
    return np.bincount(key_buckets(values, buckets), minlength=buckets)


def key_buckets(values: pa.Array, buckets: int) -> np.ndarray:
    """Bucket of each key: distinct values are hashed once, by their text, so that any process agrees."""
    encoded = pc.dictionary_encode(values.cast(pa.string()).fill_null(""))
    hashes = np.array([zlib.crc32(value.encode()) for value in encoded.dictionary.to_pylist()], np.int64)
    return (hashes % buckets)[encoded.indices.to_numpy(zero_copy_only=False)]


def _recover(folder: Path, index: Index) -> int:
    """Cuts off what a crash left half-written; returns how many bytes, and says so."""
    records = index.records()
    count = records.size
    while count > 0 and not _data_is_whole(folder, records[count - 1 : count]):
        count -= 1
        while count > 0 and not records[count - 1]["last"]:
            count -= 1
    size = count * index.dtype.itemsize
    cut = index.path.stat().st_size - size
    os.truncate(index.path, size)
    last = records[count - 1] if count else None
    for path in sorted(folder.glob("*.data")):
        first = int(path.stem)
        keep = 0
        if last is not None:
            if first < last["file"]:
                continue
            keep = int(last["offset"] + last["length"]) if first == last["file"] else 0
        cut += path.stat().st_size - keep
        os.truncate(path, keep)
        if keep == 0:
            path.unlink()
    if cut:
        _log.warning("%s: cut %d bytes of an unfinished append", folder.parent.name, cut)
    return cut


def _data_is_whole(folder: Path, record: np.ndarray) -> bool:
    path = folder / f"{int(record['file'][0]):020d}.data"
    if not is_whole(record) or not path.exists():
        return False
    with path.open("rb") as file:
        file.seek(int(record["offset"][0]))
        data = file.read(int(record["length"][0]))
    return zlib.crc32(data) == int(record["data_crc"][0])


def _last_batches(records: np.ndarray) -> dict[str, int]:
    """The last batch of each writer."""
    named = records[records["batch"] >= 0]
    return {
        bytes(writer).decode(): int(named["batch"][named["writer"] == writer].max())
        for writer in np.unique(named["writer"])
    }


def _take_lock(path: Path, where: str) -> int:
    lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.pread(lock, 32, 0).decode() or "unknown"
        os.close(lock)
        raise InvalidInputError(
            "a partition has one writer", f"{where} is held by process {owner}", "use another partition"
        ) from None
    os.ftruncate(lock, 0)
    os.pwrite(lock, str(os.getpid()).encode(), 0)
    return lock
