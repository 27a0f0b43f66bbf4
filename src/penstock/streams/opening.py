"""Opens and makes streams of any kind. Who keeps a stream is known here, and nowhere outside this package.

A directory has a `stream.json` that names its kind; an address (`grpc://host:port/stream`) is a Flight
server's. A kind that is not Penstock's own is an entry point of the group `penstock.streams`: its name is the
kind, its object is an `OpenKind`. So every process in which the kind's package is installed can open the
stream: the driver, planners, the control plane, executors.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import entry_points
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from penstock.streams.descriptor import read_about
from penstock.streams.embedded.log import EmbeddedLog
from penstock.streams.layout import Fsync, LogConfig
from penstock.streams.paced.stream import PacedLog
from penstock.streams.paced.stream import create_paced as _create_paced
from penstock.streams.producing.schedule import Schedule
from penstock.streams.protocol import PacedStream, StreamLog, WritableLog
from penstock.vocabulary.errors import InvalidInputError, UnknownNameError
from penstock.vocabulary.stream_ref import StreamRef

TOKEN_VARIABLE = "PENSTOCK_LOG_TOKEN"
"""Variable with the token. It is no option of a source, because Spark shows options in plans and pages."""
ENTRY_POINTS = "penstock.streams"
"""Group of the entry points of packages that keep streams."""
_CACHED = 64
_cache: dict[tuple[object, ...], StreamLog] = {}

Clock = Callable[[], float]


class OpenKind(Protocol):
    """Opens a stream of one kind for reading; the class of its logs may be one."""

    def __call__(self, directory: Path, clock: Clock, verify: bool) -> StreamLog: ...


def _embedded(directory: Path, clock: Clock, verify: bool) -> StreamLog:
    return EmbeddedLog(directory, clock=clock, verify=verify)


_KINDS: dict[str, OpenKind] = {"embedded": _embedded, "paced": PacedLog}


def _opener(kind: str) -> OpenKind:
    """What opens streams of a kind: Penstock itself, or an installed package."""
    if kind in _KINDS:
        return _KINDS[kind]
    installed = {found.name: found for found in entry_points(group=ENTRY_POINTS)}
    if kind not in installed:
        raise UnknownNameError("the kind of a stream", kind, [*_KINDS, *installed])
    try:
        opens: OpenKind = installed[kind].load()
    except (ImportError, AttributeError) as error:
        raise InvalidInputError(
            f"what opens streams of kind {kind} can be imported",
            f"{installed[kind].value}: {error}",
            f"install its package anew, or correct its entry point in the group {ENTRY_POINTS}",
        ) from error
    _KINDS[kind] = opens
    return opens


# -- reading --------------------------------------------------------------------------------------


def load_stream(directory: str | Path, *, clock: Clock = time.time, verify: bool = True) -> StreamLog:
    """Opens the stream in a directory, without the cache of `open_stream`."""
    with _explained(Path(directory)):
        kind = str(read_about(Path(directory)).get("kind", "embedded"))
    opens = _opener(kind)
    with _explained(Path(directory)):
        return opens(Path(directory), clock, verify)


@contextmanager
def _explained(directory: Path) -> Iterator[None]:
    """Says of damaged files which stream has them."""
    try:
        yield
    except (LookupError, TypeError, ValueError, OSError, pa.ArrowException) as error:
        raise InvalidInputError(
            f"stream {directory.name} is as it was created",
            f"{type(error).__name__}: {error}",
            "restore its stream.json and other files, or open it with the Penstock that made it",
        ) from error


def open_stream(
    place: str | Path | StreamRef,
    *,
    clock: Clock = time.time,
    verify: bool = True,
    token: str | None = None,
) -> StreamLog:
    """Opens a stream for reading, cheaply where this process has it open already.

    The log is shared by everyone in the process who opens it with the same options.

    Args:
        place: The stream's directory, or `grpc://host:port/stream` where `penstock log serve` runs.
        clock: Seconds since the epoch.
        verify: Whether a segment's bytes are checked when it is read.
        token: Token of the server at an address; by default the value of PENSTOCK_LOG_TOKEN.
    """
    ref = StreamRef.of(place)
    token = token or os.environ.get(TOKEN_VARIABLE) or None
    seen = (0, 0)
    if ref.scheme == "file":
        # of a stream that does not exist, load_stream will raise a clear error
        with suppress(FileNotFoundError):
            stat = (Path(ref.id) / "stream.json").stat()
            seen = (stat.st_ino, stat.st_mtime_ns)  # a stream made anew in the same place is another one
    key = (ref.id, token) if ref.scheme == "grpc" else (ref.id, seen, clock, verify)
    return _cached(key, lambda: open_anew(ref, clock=clock, verify=verify, token=token))


def open_anew(
    place: str | Path | StreamRef,
    *,
    clock: Clock = time.time,
    verify: bool = True,
    token: str | None = None,
) -> StreamLog:
    """Opens a stream for reading without the cache of `open_stream`: a log that hangs is not given again.

    Args:
        place: As for `open_stream`.
        clock: As for `open_stream`.
        verify: As for `open_stream`.
        token: As for `open_stream`.
    """
    ref = StreamRef.of(place)
    if ref.scheme == "grpc":
        return _flight(ref, token)
    if ref.scheme != "file":
        raise UnknownNameError("how a stream is reached", ref.scheme, ["a directory", "grpc://"])
    return load_stream(ref.id, clock=clock, verify=verify)


def _flight(ref: StreamRef, token: str | None) -> WritableLog:
    # gRPC takes a while to import; most readers need none
    from penstock.streams.flight.client import FlightLog

    return FlightLog(ref.address, ref.name, token or os.environ.get(TOKEN_VARIABLE) or None)


def _cached(key: tuple[object, ...], load: Callable[[], StreamLog]) -> StreamLog:
    found = _cache.get(key)
    if found is None:
        found = load()
        while len(_cache) >= _CACHED:
            _cache.pop(next(iter(_cache)), None)
        _cache[key] = found
    return found


def stream_exists(directory: str | Path) -> bool:
    """Whether a stream, of whatever kind, was made in a directory."""
    return (Path(directory) / "stream.json").exists()


def streams_in(root: str | Path) -> list[Path]:
    """The directories of all streams of a log, by name."""
    return sorted(about.parent for about in Path(root).glob("*/stream.json"))


# -- writing --------------------------------------------------------------------------------------


def open_writer(
    place: str | Path | StreamRef,
    fsync: Fsync = "never",
    clock: Clock = time.time,
    fsync_interval_s: float = 1.0,
    verify: bool = True,
    token: str | None = None,
) -> WritableLog:
    """Opens a stream for appending; the first append to a partition takes the partition's lock.

    A Flight server appends for its callers: what concerns files and clocks is the server's to choose.

    Args:
        place: The stream's directory, made by `create_stream`, or `grpc://host:port/stream`.
        fsync: When appended rows are synced, see `FsyncPolicy`.
        clock: Seconds since the epoch; stamps arrivals.
        fsync_interval_s: Interval of fsync="interval".
        verify: Whether a segment's bytes are checked when it is read.
        token: Token of the server at an address; by default the value of PENSTOCK_LOG_TOKEN.
    """
    ref = StreamRef.of(place)
    if ref.scheme == "grpc":
        return _flight(ref, token)
    with _explained(Path(ref.id)):
        return EmbeddedLog(ref.id, fsync, clock, fsync_interval_s, verify)


def create_stream(
    directory: str | Path,
    schema: pa.Schema,
    config: LogConfig | None = None,
    fsync: Fsync = "never",
    clock: Clock = time.time,
) -> WritableLog:
    """Makes a new stream in a directory and opens it for appending; an existing one is never overwritten.

    Args:
        directory: Where the stream will lie; its last part is the stream's name.
        schema: Columns of the rows.
        config: Partitions, key and sizes.
        fsync: When appended rows are synced, see `FsyncPolicy`.
        clock: Seconds since the epoch; stamps arrivals.
    """
    return EmbeddedLog.create(directory, schema, config, fsync=fsync, clock=clock)


def create_paced(
    directory: str | Path,
    pool: Sequence[pa.RecordBatch],
    schedules: Schedule | Sequence[Schedule],
    key: str | None = None,
    key_buckets: int = 64,
    event_time: str | None = None,
    clock: Clock = time.time,
) -> PacedStream:
    """Writes a paced stream, see `penstock.streams.paced.stream`; its `begin` lets it begin."""
    return _create_paced(directory, pool, schedules, key, key_buckets, event_time, clock)


def open_paced(directory: str | Path) -> PacedStream:
    """Opens a paced stream; another kind is refused."""
    return PacedLog(directory)
