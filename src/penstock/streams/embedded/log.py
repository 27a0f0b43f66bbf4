"""The embedded stream log: a directory a stream, Arrow IPC segments, a crash-safe index a partition.

<root>/<stream>/stream.json        schema, partitions, key; written once
<root>/<stream>/p0000/index        one record a segment, see `penstock.streams.embedded.index`
<root>/<stream>/p0000/<n>.data     segments one after the other; n is the first position in the file
<root>/<stream>/p0000/trimmed      first position that is left, once rows have been trimmed
<root>/<stream>/p0000/batches      last batch of each writer among index records that were dropped
<root>/<stream>/p0000/noted        batches of writers that had no rows for the partition
<root>/<stream>/p0000/writer       locked by the process that appends
"""

from __future__ import annotations

import base64
import threading
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa

from penstock.streams.columns import (
    append_schema,
    check_can_be_stored,
    check_rows,
    check_schema,
    stored_schema,
    user_schema,
)
from penstock.streams.descriptor import check_partition, read_about, write_about
from penstock.streams.embedded.compact import data_files, known_batches, trimmed_before
from penstock.streams.embedded.index import Index, to_arrays
from penstock.streams.embedded.writer import Writer
from penstock.streams.files import locked, replace_text
from penstock.streams.layout import Fsync, FsyncPolicy, LogConfig
from penstock.streams.protocol import AppendKey, HeaderArrays, PositionedRows
from penstock.streams.state import FileState
from penstock.vocabulary.errors import InvalidInputError
from penstock.vocabulary.stream_ref import StreamRef

MAPPED_FILES = 16
"""Most data files that a reader keeps mapped: a trimmed file takes disk space while it is mapped."""


class EmbeddedLog:
    """One stream of an embedded log, for reading and appending. Threads may share it.

    The first append to a partition takes the partition's lock.

    Args:
        directory: The stream's directory, made by `create`.
        fsync: "always", "interval" or "never", see `FsyncPolicy`.
        clock: Seconds since the epoch; stamps arrivals.
        fsync_interval_s: Interval of fsync="interval".
        verify: Whether a segment's bytes are checked when it is read.
    """

    def __init__(
        self,
        directory: str | Path,
        fsync: Fsync = "never",
        clock: Callable[[], float] = time.time,
        fsync_interval_s: float = 1.0,
        verify: bool = True,
    ) -> None:
        self.directory = Path(directory)
        self.ref = StreamRef.of(directory)
        about = read_about(self.directory, "embedded")
        self.uid = str(about.get("id", ""))
        self.config = LogConfig(**about["config"])
        self.schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(about["schema"])))
        self.append_schema, self.user_schema = append_schema(self.schema), user_schema(self.schema)
        self.policy, self.clock, self.verify = FsyncPolicy(fsync, fsync_interval_s), clock, verify
        buckets = self.config.key_buckets if self.config.key else 0
        self.state = FileState(self.directory, self.trim, clock)
        self._indexes = [Index(self._folder(p) / "index", buckets) for p in range(self.config.partitions)]
        self._writers: dict[int, Writer] = {}
        self._maps: dict[tuple[int, int], pa.Buffer] = {}
        self._lock = threading.RLock()

    @classmethod
    def create(
        cls, directory: str | Path, schema: pa.Schema, config: LogConfig | None = None, **options: object
    ) -> EmbeddedLog:
        """Makes a new stream; an existing one is never overwritten."""
        directory, config = Path(directory), config or LogConfig()
        check_schema(schema, config.key)
        about = {
            "kind": "embedded",
            "config": {name: getattr(config, name) for name in LogConfig.__slots__},
            "schema": base64.b64encode(
                stored_schema(schema, config.origin).serialize().to_pybytes()
            ).decode(),
        }

        def fill() -> None:
            for p in range(config.partitions):
                folder = directory / f"p{p:04d}"
                folder.mkdir(parents=True, exist_ok=True)
                (folder / "index").touch()

        write_about(directory, about, fill)
        return cls(directory, **options)  # type: ignore[arg-type]

    dense = True
    event_time = None

    @property
    def name(self) -> str:
        return self.directory.name

    def partition_name(self, partition: int) -> str:
        """The partition's number."""
        check_partition(self, partition)
        return str(partition)

    @property
    def partitions(self) -> int:
        return self.config.partitions

    @property
    def key_column(self) -> str | None:
        return self.config.key

    @property
    def key_buckets(self) -> int:
        return self.config.key_buckets

    def append(
        self,
        rows: pa.RecordBatch | pa.Table,
        partition: int = 0,
        key: AppendKey | None = None,
        arrival_us: np.ndarray | None = None,
    ) -> int:
        """Appends rows, all or none; returns the partition's end.

        Args:
            rows: Rows with exactly the columns of `append_schema`. A table is for rows that no batch can
                hold: more than two GiB of text or bytes in a column.
            partition: Partition that gets the rows.
            key: Writer and batch number. A batch that this writer has appended already, or an older one, is
                a no-op. Without rows the partition only notes that it has the batch.
            arrival_us: When each row arrived, for producers that buffer; by default now. A time before the
                partition's last arrival counts as that arrival, a time in the future counts as now.
        """
        check_partition(self, partition)
        check_rows(rows, self.append_schema, self.name)
        if partition in self._writers:
            # before the lock is waited for: after a fork no thread may be left to free it
            self._writers[partition].check_process()
        with self._lock:
            if partition not in self._writers:
                check_can_be_stored(self.schema)  # an earlier Penstock created streams with such columns
                self._writers[partition] = Writer(
                    self.name,
                    self._folder(partition),
                    self.schema,
                    self.config,
                    self._indexes[partition],
                    self.policy,
                )
            return self._writers[partition].append(rows, key, arrival_us, self.clock)

    def last_batch(self, writer: str, partition: int = 0) -> int:
        """The last batch of a writer that is in the partition; -1 for none."""
        check_partition(self, partition)
        appender = self._writers.get(partition)
        if appender is not None and appender.is_here:  # nobody else appends, and the index may be long
            return appender.batches.get(writer, -1)
        records = self._indexes[partition].records()
        return known_batches(self._folder(partition), records).get(writer, -1)

    def end(self, partition: int = 0) -> int:
        check_partition(self, partition)
        records = self._indexes[partition].records()
        if records.size:
            return int(records[-1]["first_position"] + records[-1]["rows"])
        return self.start(partition)

    def start(self, partition: int = 0) -> int:
        """The first position that has not been trimmed."""
        check_partition(self, partition)
        return trimmed_before(self._folder(partition))

    def position_at(self, partition: int, arrival_us: int) -> int:
        """First position of the first segment that ends after an arrival time; the end if there is none."""
        check_partition(self, partition)
        found = self._indexes[partition].position_at(arrival_us)
        return self.end(partition) if found is None else max(found, self.start(partition))

    def mark(self, partition: int, position: int) -> int:
        """Checksum that identifies the row before a position; 0 if there is no such row."""
        check_partition(self, partition)
        found = self._indexes[partition].between(position - 1, position)
        return int(found[0]["crc"]) if found.size else 0

    def header_arrays(self, partition: int, start: int, end: int, keys: bool = True) -> HeaderArrays:
        """Headers of the segments that hold rows in [start, end); trimmed rows have none."""
        return to_arrays(self._between(partition, start, end), keys)

    def _between(self, partition: int, start: int, end: int) -> np.ndarray:
        check_partition(self, partition)
        return self._indexes[partition].between(max(start, self.start(partition)), end)

    def read(self, partition: int, first: int, end: int) -> PositionedRows:
        """The rows of [first, end), which lie in one segment, mapped from the segment's file."""
        check_partition(self, partition)
        first_left = self.start(partition)
        found = self._indexes[partition].between(first, first + 1)
        where = f"{self.name}, partition {partition}, position {first}"
        if first < first_left or found.size == 0:
            raise InvalidInputError(
                "the segment to read is still in the log", where, "it was trimmed; read on from start()"
            )
        offset, length, begins = (int(found[0][name]) for name in ("offset", "length", "first_position"))
        mapped = self._mapped(partition, int(found[0]["file"]), offset + length, first_left)
        try:
            data = mapped.slice(offset, length)
            if not self.verify or zlib.crc32(data) == int(found[0]["data_crc"]):
                rows = pa.ipc.read_record_batch(data, self.schema).slice(first - begins, end - first)
                return PositionedRows(np.arange(first, first + rows.num_rows, dtype=np.int64), rows)
        except (pa.ArrowException, OSError):
            pass  # the file is too short, or (without `verify`) the bytes are no record batch
        raise InvalidInputError(
            "a segment is read as it was written", f"damaged bytes in {where}", "restore the file, or skip it"
        )

    def trim(self, partition: int, before: int) -> int:
        """Forgets rows before a position, in whole data files; returns the first position that is left.

        The data file with the last row always stays, because the partition's end is known from it.
        """
        check_partition(self, partition)
        folder = self._folder(partition)
        with self._lock, locked(folder / "trimming"):
            records = self._indexes[partition].records()
            files = data_files(folder)
            last = int(records[-1]["file"]) if records.size else 0
            keep_from = max((first for first in files if first <= min(before, last)), default=0)
            first_left = max(keep_from, self.start(partition))
            if first_left > self.start(partition):
                replace_text(folder / "trimmed", str(first_left))  # before the files go: a crash may follow
            for first in files:
                if first < first_left:
                    (folder / f"{first:020d}.data").unlink(missing_ok=True)
            self._forget_maps(partition, first_left)
            if partition in self._writers:
                self._writers[partition].compact()
        return first_left

    def close(self) -> None:
        """Releases the locks of partitions that this process appended to."""
        with self._lock:
            writers = list(self._writers.values())
            self._writers.clear()
            self._maps.clear()
            for writer in writers:
                writer.close()

    def __enter__(self) -> EmbeddedLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _folder(self, partition: int) -> Path:
        return self.directory / f"p{partition:04d}"

    def _mapped(self, partition: int, file: int, at_least: int, first_left: int) -> pa.Buffer:
        mapped = self._maps.get((partition, file))
        if mapped is None or mapped.size < at_least:
            path = self._folder(partition) / f"{file:020d}.data"
            try:
                with pa.memory_map(str(path), "r") as source:
                    mapped = source.read_buffer()
            except FileNotFoundError:
                raise InvalidInputError(
                    "every data file in the index exists",
                    f"{path.name} is missing",
                    "restore it, or trim past it",
                ) from None
            with self._lock:
                self._forget_maps(partition, first_left)
                while len(self._maps) >= MAPPED_FILES:
                    self._maps.pop(next(iter(self._maps)))
                self._maps[partition, file] = mapped
        return mapped

    def _forget_maps(self, partition: int, first_left: int) -> None:
        for p, file in list(self._maps):
            if p == partition and file < first_left:
                del self._maps[p, file]
