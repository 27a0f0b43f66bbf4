"""The embedded stream log: a directory a stream, Arrow IPC segments, a crash-safe index a partition.

<root>/<stream>/stream.json        schema, partitions, key; written once
<root>/<stream>/p0000/index        one record a segment, see `penstock.log.index`
<root>/<stream>/p0000/<n>.data     segments one after the other; n is the first position in the file
<root>/<stream>/p0000/trimmed      first position that is left, where rows have been forgotten
<root>/<stream>/p0000/writer       locked by the process that appends
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from penstock.errors import InvalidInputError
from penstock.log.files import replace_text
from penstock.log.index import Index, to_segment
from penstock.log.protocol import ARRIVAL, RESERVED_COLUMNS, AppendKey, Segment
from penstock.log.writer import Fsync, LogConfig, Writer

FORMAT = 1


class EmbeddedLog:
    """One stream of an embedded log, for reading; appending takes the partition's lock on first use.

    Args:
        directory: The stream's directory, made by `create`.
        fsync: "always" survives a power cut, "never" survives a crash of the process.
        clock: Seconds since the epoch; stamps arrivals.
    """

    def __init__(
        self, directory: str | Path, fsync: Fsync = "never", clock: Callable[[], float] = time.time
    ) -> None:
        self.directory = Path(directory)
        self._about = _read_about(self.directory)
        self.config = LogConfig(**self._about["config"])
        self.schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(self._about["schema"])))
        self.user_schema = self.schema.remove(self.schema.get_field_index(ARRIVAL))
        self.fsync, self.clock = fsync, clock
        buckets = self.config.key_buckets if self.config.key else 0
        self._indexes = [Index(self._folder(p) / "index", buckets) for p in range(self.config.partitions)]
        self._writers: dict[int, Writer] = {}
        self._maps: dict[tuple[int, int], pa.Buffer] = {}

    @classmethod
    def create(
        cls, directory: str | Path, schema: pa.Schema, config: LogConfig | None = None, **options: object
    ) -> EmbeddedLog:
        """Makes a new stream; an existing one is never overwritten."""
        directory, config = Path(directory), config or LogConfig()
        _check_schema(schema, config)
        if (directory / "stream.json").exists():
            raise InvalidInputError(
                "a stream is created once", f"'{directory.name}' exists", "open it instead"
            )
        for p in range(config.partitions):
            folder = directory / f"p{p:04d}"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "index").touch()
        stored = schema.append(pa.field(ARRIVAL, pa.int64(), nullable=False))
        about = {
            "format": FORMAT,
            "config": {name: getattr(config, name) for name in LogConfig.__slots__},
            "schema": base64.b64encode(stored.serialize().to_pybytes()).decode(),
        }
        replace_text(directory / "stream.json", json.dumps(about, indent=2))
        return cls(directory, **options)  # type: ignore[arg-type]

    @property
    def partitions(self) -> int:
        return self.config.partitions

    def append(
        self,
        rows: pa.RecordBatch,
        partition: int = 0,
        key: AppendKey | None = None,
        arrival_us: np.ndarray | None = None,
    ) -> int:
        """Appends rows, all or none; returns the partition's end.

        Args:
            rows: With exactly the stream's columns.
            partition: Where to.
            key: A repeat of the writer's batch, or an older one, is a no-op.
            arrival_us: When each row arrived, for producers that buffer; else now. Never before the last row.
        """
        self._check_partition(partition)
        _check_columns(rows.schema, self.user_schema, self.directory.name)
        if partition not in self._writers:
            self._writers[partition] = Writer(
                self.directory.name,
                self._folder(partition),
                self.schema,
                self.config,
                self._indexes[partition],
            )
        return self._writers[partition].append(rows, key, arrival_us, self.clock, self.fsync)

    def end(self, partition: int = 0) -> int:
        self._check_partition(partition)
        records = self._indexes[partition].records()
        return int(records[-1]["first_position"] + records[-1]["rows"]) if records.size else 0

    def start(self, partition: int = 0) -> int:
        """The first position that has not been trimmed."""
        self._check_partition(partition)
        path = self._folder(partition) / "trimmed"
        return int(path.read_text()) if path.exists() else 0

    def headers(self, partition: int, start: int, end: int) -> Sequence[Segment]:
        self._check_partition(partition)
        return [to_segment(record, partition) for record in self._indexes[partition].between(start, end)]

    def read(self, segment: Segment) -> pa.RecordBatch:
        """The rows of a segment, mapped from its file."""
        found = self._indexes[segment.partition].between(segment.first_position, segment.first_position + 1)
        where = f"{self.directory.name}, partition {segment.partition}, position {segment.first_position}"
        if segment.first_position < self.start(segment.partition) or found.size == 0:
            raise InvalidInputError(
                "a segment that is read is still there", where, "it was trimmed; read on from start()"
            )
        record = found[0]
        buffer = self._mapped(
            segment.partition, int(record["file"]), int(record["offset"] + record["length"])
        )
        return pa.ipc.read_record_batch(
            buffer.slice(int(record["offset"]), int(record["length"])), self.schema
        )

    def trim(self, partition: int, before: int) -> int:
        """Forgets rows before a position, in whole data files; returns the first position that is left."""
        self._check_partition(partition)
        files = sorted(int(path.stem) for path in self._folder(partition).glob("*.data"))
        keep_from = max((first for first in files if first <= before), default=0)
        first_left = max(keep_from, self.start(partition))
        if first_left > self.start(partition):
            replace_text(self._folder(partition) / "trimmed", str(first_left))  # said first, then done
        for first in files:
            if first < first_left:
                self._maps.pop((partition, first), None)
                (self._folder(partition) / f"{first:020d}.data").unlink(missing_ok=True)
        return first_left

    def close(self) -> None:
        """Releases the locks of partitions that this process appended to."""
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()
        self._maps.clear()

    def __enter__(self) -> EmbeddedLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _folder(self, partition: int) -> Path:
        return self.directory / f"p{partition:04d}"

    def _check_partition(self, partition: int) -> None:
        if not 0 <= partition < self.config.partitions:
            raise InvalidInputError(
                f"stream {self.directory.name} has partitions 0 to {self.config.partitions - 1}",
                partition,
                "use one",
            )

    def _mapped(self, partition: int, file: int, at_least: int) -> pa.Buffer:
        mapped = self._maps.get((partition, file))
        if mapped is None or mapped.size < at_least:
            path = self._folder(partition) / f"{file:020d}.data"
            try:
                with pa.memory_map(str(path), "r") as source:
                    mapped = source.read_buffer()
            except FileNotFoundError:
                raise InvalidInputError(
                    "a data file of the index is there",
                    f"{path.name} is missing",
                    "restore it, or trim past it",
                ) from None
            self._maps[partition, file] = mapped
        return mapped


def _read_about(directory: Path) -> dict:
    path = directory / "stream.json"
    if not path.exists():
        raise InvalidInputError(
            "a stream has been created", f"no stream at '{directory.name}'", "create it first"
        )
    about = json.loads(path.read_text())
    if about.get("format") != FORMAT:
        raise InvalidInputError(
            f"a stream has format {FORMAT}", about.get("format"), "read it with its own version"
        )
    return about


def _check_schema(schema: pa.Schema, config: LogConfig) -> None:
    if not schema.names:
        raise InvalidInputError("a stream has at least one column", "none", "give a pyarrow schema")
    for name in schema.names:
        if name in RESERVED_COLUMNS:
            raise InvalidInputError("a column is not named as metadata", repr(name), "rename it")
    if config.key is not None and config.key not in schema.names:
        raise InvalidInputError(
            "the key is a column of the stream", repr(config.key), f"one of {schema.names}"
        )


def _check_columns(got: pa.Schema, wanted: pa.Schema, stream: str) -> None:
    """Refuses rows whose columns are not the stream's, saying which differ."""
    if got.equals(wanted):
        return
    missing = [name for name in wanted.names if name not in got.names]
    extra = [name for name in got.names if name not in wanted.names]
    other = [
        f"{name} is {got.field(name).type}, not {wanted.field(name).type}"
        for name in wanted.names
        if name in got.names and got.field(name).type != wanted.field(name).type
    ]
    parts = [f"missing {missing}"] * bool(missing) + [f"unknown {extra}"] * bool(extra) + other
    raise InvalidInputError(
        f"rows have the columns of stream {stream}",
        "; ".join(parts) or "another order or nullability",
        "cast or select them; nothing was appended",
    )
