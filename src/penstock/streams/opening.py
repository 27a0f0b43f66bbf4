"""Opens a stream of any kind: a directory (embedded or paced) or an address (Flight)."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from penstock.streams.descriptor import read_about
from penstock.streams.embedded.log import EmbeddedLog
from penstock.streams.embedded.writer import Fsync
from penstock.streams.paced.stream import PacedLog
from penstock.streams.protocol import StreamLog
from penstock.vocabulary.errors import InvalidInputError, UnknownNameError

TOKEN_VARIABLE = "PENSTOCK_LOG_TOKEN"
"""Variable with the token. It is no option of a source, because Spark shows options in plans and pages."""
_CACHED = 64
_cache: dict[tuple[object, ...], StreamLog] = {}


def load_stream(
    directory: str | Path,
    *,
    clock: Callable[[], float] = time.time,
    fsync: Fsync = "never",
    fsync_interval_s: float = 1.0,
    verify: bool = True,
) -> EmbeddedLog | PacedLog:
    """Opens the stream in a directory, without the cache of `open_stream`."""
    try:
        kind = read_about(Path(directory)).get("kind", "embedded")
        if kind == "embedded":
            return EmbeddedLog(directory, fsync, clock, fsync_interval_s, verify)
        if kind == "paced":
            return PacedLog(directory, clock, verify)
    except (LookupError, TypeError, ValueError, OSError, pa.ArrowException) as error:
        raise InvalidInputError(
            f"stream {Path(directory).name} is as it was created",
            f"{type(error).__name__}: {error}",
            "restore its stream.json and other files, or open it with the Penstock that made it",
        ) from error
    raise UnknownNameError("the kind of a stream", str(kind), ["embedded", "paced"])


def open_stream(
    directory: str | Path,
    *,
    clock: Callable[[], float] = time.time,
    fsync: Fsync = "never",
    fsync_interval_s: float = 1.0,
    verify: bool = True,
    token: str | None = None,
) -> StreamLog:
    """Opens a stream, cheaply where this process has it open already.

    The log is shared by everyone in the process who opens it with the same options.

    Args:
        directory: The stream's directory, or `grpc://host:port/stream` where `penstock log serve` runs.
        clock: Seconds since the epoch.
        fsync: When appended rows are synced, see `FsyncPolicy`.
        fsync_interval_s: Interval of fsync="interval".
        verify: Whether a segment's bytes are checked when it is read.
        token: Token of the server at an address; by default the value of PENSTOCK_LOG_TOKEN.
    """
    if str(directory).startswith("grpc://"):
        from penstock.streams.flight.client import (
            FlightLog,  # gRPC takes a while to import; most readers need none
        )

        token = token or os.environ.get(TOKEN_VARIABLE) or None
        address, _, stream = str(directory).removeprefix("grpc://").partition("/")
        return _cached((str(directory), token), lambda: FlightLog(f"grpc://{address}", stream, token))
    try:
        stat = (Path(directory) / "stream.json").stat()
        seen = (stat.st_ino, stat.st_mtime_ns)  # a stream made anew in the same place is another one
    except FileNotFoundError:
        seen = (0, 0)  # load_stream will raise a clear error
    return _cached(
        (str(directory), seen, clock, fsync, fsync_interval_s, verify),
        lambda: load_stream(
            directory, clock=clock, fsync=fsync, fsync_interval_s=fsync_interval_s, verify=verify
        ),
    )


def _cached(key: tuple[object, ...], load: Callable[[], StreamLog]) -> StreamLog:
    found = _cache.get(key)
    if found is None:
        found = load()
        while len(_cache) >= _CACHED:
            _cache.pop(next(iter(_cache)), None)
        _cache[key] = found
    return found
