"""The appending side of an embedded partition: one process at a time, all of a batch or nothing."""

from __future__ import annotations

import fcntl
import logging
import os
import threading
import time
import weakref
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO

import numpy as np
import pyarrow as pa

from penstock.streams.embedded.compact import compact, known_batches, trimmed_before
from penstock.streams.embedded.index import Index, record_type, seal
from penstock.streams.embedded.noted import drop_notes_beyond, note_batch
from penstock.streams.embedded.recovery import recover
from penstock.streams.files import sync_directory
from penstock.streams.hashing import key_buckets
from penstock.streams.layout import FsyncPolicy, LogConfig
from penstock.streams.protocol import ARRIVAL, AppendKey
from penstock.vocabulary.errors import InvalidInputError, PenstockError, UnmetError

_log = logging.getLogger(__name__)

_JITTER_US = 10_000
"""Clocks that differ by less cause no warning: stamps are rounded, and hosts never agree exactly."""

_warned: set[tuple[Path, str]] = set()
"""Warnings that this process has given: the stream's directory and the text."""


class Writer:
    """The appending side of one partition; holds the partition's lock."""

    def __init__(
        self,
        stream: str,
        folder: Path,
        schema: pa.Schema,
        config: LogConfig,
        index: Index,
        policy: FsyncPolicy | None = None,
    ) -> None:
        self.stream, self.folder, self.schema, self.config, self.index = stream, folder, schema, config, index
        self.policy = policy or FsyncPolicy()
        self._process = os.getpid()
        self._busy = threading.RLock()
        self._timer: threading.Timer | None = None
        self._lock = _take_lock(folder / "writer", f"{stream}, {folder.name}")
        try:
            self._open()
        except BaseException:
            os.close(self._lock)
            raise
        _writers.add(self)

    def _open(self) -> None:
        self.recovered_bytes = recover(self.folder, self.index)
        records, trimmed = self.index.records(), trimmed_before(self.folder)
        self.end = int(records[-1]["first_position"] + records[-1]["rows"]) if records.size else 0
        self.end = max(self.end, trimmed)  # positions of trimmed rows are not given to other rows
        self.last_arrival_us = int(records[-1]["arrival_max_us"]) if records.size else 0
        last_file = int(records[-1]["file"]) if records.size else -1
        self.file = last_file if last_file >= trimmed else self.end
        drop_notes_beyond(self.folder, self.end)
        self.batches = known_batches(self.folder, records)
        self._synced_s = time.monotonic()
        self._data = open(self._data_path(), "ab")  # noqa: SIM115 - closed by close()
        self._index = open(self.index.path, "ab")  # noqa: SIM115
        if self.policy.fsync != "never":
            sync_directory(self.folder)  # both files may be new
        self.compact()

    def append(
        self,
        rows: pa.RecordBatch | pa.Table,
        key: AppendKey | None,
        arrival_us: np.ndarray | None,
        clock: Callable[[], float],
    ) -> int:
        """Appends rows with the columns of an append; returns the partition's end.

        Without rows, a key is only noted.
        """
        self.check_process()
        with self._busy:
            return self._append(rows, key, arrival_us, clock)

    def _append(
        self,
        rows: pa.RecordBatch | pa.Table,
        key: AppendKey | None,
        arrival_us: np.ndarray | None,
        clock: Callable[[], float],
    ) -> int:
        if key is not None and key.batch <= self.batches.get(key.writer, -1):
            return self.end
        if rows.num_rows == 0:
            if key is not None:
                self._note(key)
            return self.end
        stamps = self._stamps(rows.num_rows, arrival_us, clock)
        stored = rows.append_column(self.schema.field(ARRIVAL), pa.array(stamps, pa.int64()))
        try:
            self._write_or_undo(stored, stamps, key)
        except OSError as error:
            raise self._not_written(error) from error
        self.end += rows.num_rows
        self.last_arrival_us = int(stamps[-1])
        if key is not None:
            self.batches[key.writer] = key.batch
        return self.end

    def _note(self, key: AppendKey) -> None:
        try:
            note_batch(self.folder, key.writer, key.batch, self.end, self.policy.fsync == "always")
        except OSError as error:
            raise self._not_written(error) from error
        self.batches[key.writer] = key.batch

    def _not_written(self, error: OSError) -> PenstockError:
        return UnmetError(
            "an append is written whole",
            f"{error.strerror or error} on {self.stream}",
            "nothing was appended, free some space and try again",
        )

    @property
    def is_here(self) -> bool:
        """Whether this process itself took the lock, not a process that it was forked from."""
        return os.getpid() == self._process

    def check_process(self) -> None:
        """Refuses a process forked from the one that took the lock: two processes would write one file."""
        if not self.is_here:
            raise InvalidInputError(
                "a partition has one writer",
                f"{self.stream}, {self.folder.name} is held by process {self._process}, from which this one "
                "was forked",
                "open the stream after the fork, in the process that appends",
            )

    def _stamps(self, count: int, arrival_us: np.ndarray | None, clock: Callable[[], float]) -> np.ndarray:
        now_us = int(clock() * 1e6)
        if now_us < self.last_arrival_us - _JITTER_US:
            self._warn_once(
                "the clock went back by %d us; until it has caught up, new rows of a partition count as "
                "arrived together with its last row",
                self.last_arrival_us - now_us,
            )
        stamps = np.full(count, now_us, np.int64) if arrival_us is None else np.asarray(arrival_us, np.int64)
        if stamps.size != count:
            raise InvalidInputError(
                "there is one arrival time a row",
                f"{stamps.size} arrival times for {count} rows",
                "give one for each row",
            )
        if count and int(stamps.max()) > now_us + _JITTER_US:
            self._warn_once(
                "rows are stamped up to %d us in the future; they count as arrived now",
                int(stamps.max()) - now_us,
            )
        # a stamp in the future is cut to now: arrival never goes back, so later rows would get it too
        return np.maximum.accumulate(np.maximum(np.minimum(stamps, now_us), self.last_arrival_us))

    def _warn_once(self, warning: str, lead_us: int) -> None:
        """Warns once for each stream and process, because a wrong clock is wrong at every append."""
        about = self.folder.parent.absolute(), warning
        if about not in _warned:
            _warned.add(about)
            _log.warning(f"%s: {warning}", self.stream, lead_us)

    def _write_or_undo(
        self, stored: pa.RecordBatch | pa.Table, stamps: np.ndarray, key: AppendKey | None
    ) -> None:
        if self._data.tell() >= self.config.file_bytes:
            self._roll()
        sizes = self._data.tell(), self._index.tell()
        try:
            self._write(stored, stamps, key)
        except BaseException:  # also Ctrl-C: the index file and this object's state must agree
            self._undo(*sizes)
            raise

    def _write(self, stored: pa.RecordBatch | pa.Table, stamps: np.ndarray, key: AppendKey | None) -> None:
        parts, first = _segments(stored, self.config.segment_rows), 0
        buckets = self.config.key_buckets if self.config.key else 0
        records = np.zeros(len(parts), record_type(buckets))
        for record, part in zip(records, parts, strict=True):
            data = part.serialize().to_pybytes()
            arrived = stamps[first : first + part.num_rows]
            record["first_position"], record["rows"] = self.end + first, part.num_rows
            first += part.num_rows
            record["arrival_min_us"], record["arrival_max_us"] = arrived[0], arrived[-1]
            record["arrival_mean_us"] = arrived[0] + (arrived - arrived[0]).mean()
            record["file"], record["offset"], record["length"] = self.file, self._data.tell(), len(data)
            record["data_crc"] = zlib.crc32(data)
            record["batch"], record["writer"] = (key.batch, key.writer.encode()) if key else (-1, b"")
            if buckets:
                record["key_counts"] = key_counts(part.column(self.config.key), buckets)
            self._data.write(data)
        records[-1]["last"] = 1
        sync = self._sync_is_due()
        _flush(self._data, sync)
        self._index.write(seal(records))
        _flush(self._index, sync)
        if sync:
            self._synced_s = time.monotonic()
        elif self.policy.fsync == "interval" and self._timer is None:
            left_s = max(0.0, self._synced_s + self.policy.interval_s - time.monotonic())
            self._timer = start_timer(left_s, self._sync_in_time)

    def _sync_in_time(self) -> None:
        """Syncs rows that no later append has synced, because the stream fell silent."""
        with self._busy:
            if self._timer is None:
                return  # the writer was closed meanwhile
            self._timer = None
            try:
                _flush(self._data, True)
                _flush(self._index, True)
            except OSError as error:
                _log.warning("%s: rows were not forced to the disk: %s", self.stream, error)
            self._synced_s = time.monotonic()

    def _sync_is_due(self) -> bool:
        if self.policy.fsync == "interval":
            return time.monotonic() - self._synced_s >= self.policy.interval_s
        return self.policy.fsync == "always"

    def _undo(self, data_size: int, index_size: int) -> None:
        for file in (self._data, self._index):
            with suppress(OSError):  # closing flushes the buffer, which fails again on a full disk
                file.close()
        os.truncate(self.index.path, index_size)
        os.truncate(self._data_path(), data_size)
        self._data = open(self._data_path(), "ab")  # noqa: SIM115
        self._index = open(self.index.path, "ab")  # noqa: SIM115

    def _roll(self) -> None:
        _flush(self._data, self.policy.fsync != "never")
        following = open(self._data_path(self.end), "ab")  # noqa: SIM115 - if it fails, the old one is open
        self._data.close()
        self._data, self.file = following, self.end
        if self.policy.fsync != "never":
            sync_directory(self.folder)
        self.compact()

    def compact(self) -> None:
        """Drops index records of trimmed files, once they are most of the index."""
        with self._busy:
            try:
                changed = compact(self.folder, self.index)
            except OSError as error:  # a full disk: the log goes on with its long index
                _log.warning("%s: the index was not compacted: %s", self.stream, error)
                changed = True
            if changed:
                self._index.close()
                self._index = open(self.index.path, "ab")  # noqa: SIM115

    def _data_path(self, first: int | None = None) -> Path:
        return self.folder / f"{self.file if first is None else first:020d}.data"

    def close(self) -> None:
        """Syncs unless the policy is "never", and releases the lock."""
        if not self.is_here:
            return  # `forked` has closed the files of this process
        with self._busy:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            try:
                if not self._data.closed:
                    _flush(self._data, self.policy.fsync != "never")
                    _flush(self._index, self.policy.fsync != "never")
            finally:
                _writers.discard(self)
                self._data.close()
                self._index.close()
                os.close(self._lock)

    def forked(self) -> None:
        """Closes, in a forked process, the parent's files without flushing them, and the parent's lock.

        A lock lasts until the last process has closed it. This process would still hold it after the parent
        has died.
        """
        self._data.raw.close()  # bypasses the buffers: a thread of the parent may have filled them half
        self._index.raw.close()
        os.close(self._lock)


_writers: weakref.WeakSet[Writer] = weakref.WeakSet()
"""Writers of this process that hold a lock."""


def _after_fork() -> None:
    for writer in list(_writers):
        writer.forked()
    _writers.clear()


os.register_at_fork(after_in_child=_after_fork)


def start_timer(seconds: float, call: Callable[[], None]) -> threading.Timer:
    """Calls a function after some seconds, unless cancelled; the thread does not delay the process's exit."""
    timer = threading.Timer(seconds, call)
    timer.daemon = True
    timer.start()
    return timer


def _flush(file: IO[bytes], sync: bool) -> None:
    file.flush()
    if sync:
        os.fsync(file.fileno())


def _segments(rows: pa.RecordBatch | pa.Table, most: int) -> list[pa.RecordBatch]:
    """Rows cut into segments of at most `most` rows; a table is also cut where one array cannot hold them."""
    if isinstance(rows, pa.Table):
        return [part for part in rows.to_batches(max_chunksize=most) if part.num_rows]
    return [rows.slice(first, most) for first in range(0, rows.num_rows, most)]


def key_counts(values: pa.Array, buckets: int) -> np.ndarray:
    """Number of rows in each bucket of the key's hash."""
    return np.bincount(key_buckets(values, buckets), minlength=buckets)


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
