"""Opens and makes streams of any kind. Who keeps a stream is known here, and nowhere outside this package.

`streams/kinds/base.py` says what a kind is, and how an installed package adds one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from penstock.streams.descriptor import read_about
from penstock.streams.embedded.log import EmbeddedLog
from penstock.streams.kinds.base import Clock, Opening, StreamKind, WritableKind, Writing, find_kind, schemes
from penstock.streams.kinds.linked import KIND as LINK
from penstock.streams.kinds.linked import LinkedLog, address_of
from penstock.streams.layout import Fsync, LogConfig
from penstock.streams.paced.stream import PacedLog
from penstock.streams.paced.stream import create_paced as _create_paced
from penstock.streams.producing.schedule import Schedule
from penstock.streams.protocol import PacedStream, StreamLog, WritableLog
from penstock.vocabulary.errors import InvalidInputError
from penstock.vocabulary.stream_ref import StreamRef

TOKEN_VARIABLE = "PENSTOCK_LOG_TOKEN"
"""Variable with the token. It is no option of a source, because Spark shows options in plans and pages."""
_CACHED = 64
_cache: dict[tuple[object, ...], StreamLog] = {}


# -- Penstock's own kinds -------------------------------------------------------------------------


class _Embedded:
    """Streams of this machine, for reading and appending."""

    def open(self, ref: StreamRef, how: Opening) -> StreamLog:
        return EmbeddedLog(ref.id, clock=how.clock, verify=how.verify)

    def open_writer(self, ref: StreamRef, how: Opening, writing: Writing) -> WritableLog:
        return EmbeddedLog(ref.id, writing.fsync, how.clock, writing.fsync_interval_s, how.verify)


class _Paced:
    """Streams of this machine that were written beforehand."""

    def open(self, ref: StreamRef, how: Opening) -> StreamLog:
        return PacedLog(ref.id, how.clock, how.verify)


class _Flight:
    """Streams of a Flight server, which appends for its callers."""

    def open(self, ref: StreamRef, how: Opening) -> WritableLog:
        # gRPC takes a while to import; most readers need none
        from penstock.streams.flight.client import FlightLog

        return FlightLog(ref.address, ref.name, how.token)

    def open_writer(self, ref: StreamRef, how: Opening, writing: Writing) -> WritableLog:
        return self.open(ref, how)


class _Link:
    """Directories of this machine that stand for streams at addresses."""

    def open(self, ref: StreamRef, how: Opening) -> StreamLog:
        directory = Path(ref.id)
        return LinkedLog(directory, _load(address_of(directory), how), how.clock)

    def open_writer(self, ref: StreamRef, how: Opening, writing: Writing) -> WritableLog:
        return _open_writer(address_of(Path(ref.id)), how, writing)


_DIRECTORIES: dict[str, StreamKind] = {"embedded": _Embedded(), "paced": _Paced(), LINK: _Link()}
"""Kinds in `stream.json`."""
_ADDRESSES: dict[str, StreamKind] = {"grpc": _Flight()}
"""Kinds by the schemes of addresses."""


def _kind_of(ref: StreamRef) -> tuple[str, StreamKind]:
    """The name and the object of a stream's kind."""
    if ref.scheme != "file":
        return ref.scheme, find_kind(ref.scheme, _ADDRESSES, "the scheme of a stream's address")
    with _explained(ref):
        name = str(read_about(Path(ref.id)).get("kind", "embedded"))
    return name, find_kind(name, _DIRECTORIES, "the kind of a stream")


def address_schemes() -> list[str]:
    """Schemes that the address of a stream may have here."""
    return schemes(_ADDRESSES)


# -- reading --------------------------------------------------------------------------------------


def load_stream(
    place: str | Path | StreamRef,
    *,
    clock: Clock = time.time,
    verify: bool = True,
    token: str | None = None,
) -> StreamLog:
    """Opens a stream without the cache of `open_stream`: a log that hangs is not given again.

    It has the arguments of `open_stream`.
    """
    return _load(StreamRef.of(place), Opening(clock, verify, _token(token)))


def _load(ref: StreamRef, how: Opening) -> StreamLog:
    _, kind = _kind_of(ref)
    with _explained(ref):
        return kind.open(ref, how)


def _token(given: str | None) -> str | None:
    return given or os.environ.get(TOKEN_VARIABLE) or None


@contextmanager
def _explained(ref: StreamRef) -> Iterator[None]:
    """Says of damaged files which stream has them."""
    try:
        yield
    except (LookupError, TypeError, ValueError, OSError, pa.ArrowException) as error:
        if ref.scheme != "file":
            raise
        raise InvalidInputError(
            f"stream {ref.name} is as it was created",
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
        place: The stream's directory, or its address: `grpc://host:port/stream` where `penstock log serve`
            runs, or one whose scheme an installed package knows.
        clock: Seconds since the epoch.
        verify: Whether a segment's bytes are checked when it is read.
        token: Token of the server at an address; by default the value of PENSTOCK_LOG_TOKEN.
    """
    ref, how = StreamRef.of(place), Opening(clock, verify, _token(token))
    return _cached((ref.id, _seen(ref), how), lambda: _load(ref, how))


def _seen(ref: StreamRef) -> tuple[int, int]:
    """Tells a directory's stream from one that is made anew in the same place."""
    if ref.scheme != "file":
        return 0, 0
    try:
        stat = (Path(ref.id) / "stream.json").stat()
    except FileNotFoundError:
        return 0, 0  # loading the stream raises a clear error
    return stat.st_ino, stat.st_mtime_ns


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
        place: The stream's directory, made by `create_stream`, or its address, as `open_stream` has it.
        fsync: When appended rows are synced, see `FsyncPolicy`.
        clock: Seconds since the epoch; stamps arrivals.
        fsync_interval_s: Interval of fsync="interval".
        verify: Whether a segment's bytes are checked when it is read.
        token: Token of the server at an address; by default the value of PENSTOCK_LOG_TOKEN.
    """
    return _open_writer(
        StreamRef.of(place), Opening(clock, verify, _token(token)), Writing(fsync, fsync_interval_s)
    )


def _open_writer(ref: StreamRef, how: Opening, writing: Writing) -> WritableLog:
    name, kind = _kind_of(ref)
    if not isinstance(kind, WritableKind):
        raise InvalidInputError(
            f"stream {ref.name} can be written",
            f"a stream of kind {name}, which is only read",
            "append where its rows are kept, or to a stream that create_stream made",
        )
    with _explained(ref):
        return kind.open_writer(ref, how, writing)


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
    ref = StreamRef.of(directory)
    if ref.scheme != "file":
        raise InvalidInputError(
            "a stream is made in a directory of this machine",
            ref,
            "make it where its rows are kept, then open it by its address",
        )
    return EmbeddedLog.create(ref.id, schema, config, fsync=fsync, clock=clock)


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
