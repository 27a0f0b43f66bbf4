"""A log that tells in which threads it is called, and that fails or hangs when a test wants it to."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.streams.embedded.log import EmbeddedLog
from penstock.streams.layout import LogConfig
from penstock.streams.state import FileState

CALLS = ("start", "end", "header_arrays", "position_at", "read")


class Watched:
    """Stands before an embedded log.

    Attributes:
        called: The calls that were made, and by which threads.
        error: What all calls raise.
        free: Calls wait for it; it is set, unless the log hangs.
        inside: Set when a call waits.
        partitions: How many partitions of the log it shows.
    """

    def __init__(self, log: EmbeddedLog) -> None:
        self.log = log
        self.called: list[tuple[str, int]] = []
        self.error: BaseException | None = None
        self.free, self.inside = threading.Event(), threading.Event()
        self.free.set()
        self.partitions = log.partitions

    @property
    def state(self) -> FileState:
        return FileState(self.log.directory, self._watched("trim", self.log.trim), self.log.clock)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.log, name)
        return self._watched(name, found) if name in CALLS else found

    def _watched(self, name: str, call: Any) -> Any:
        def watched(*given: Any, **named: Any) -> Any:
            self.called.append((name, threading.get_ident()))
            if not self.free.is_set():
                self.inside.set()
                self.free.wait()
            if self.error is not None:
                raise self.error
            return call(*given, **named)

        return watched

    def hang(self) -> None:
        """Calls do not come back from now on."""
        self.inside.clear()
        self.free.clear()

    def write(self, rows: int, partition: int = 0) -> None:
        self.log.append(pa.record_batch({"v": pa.array(range(rows), pa.int64())}), partition)


def made(folder: Path, name: str, partitions: int = 1) -> Watched:
    """A new stream in a folder."""
    config = LogConfig(partitions=partitions, segment_rows=50)
    return Watched(EmbeddedLog.create(folder / name, pa.schema([("v", pa.int64())]), config))
