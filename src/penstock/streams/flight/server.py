"""An Arrow Flight server over the streams of a directory, so that other processes and hosts append and read.

DoPut: the descriptor's path is the stream's name. Each batch is one append. JSON beside the batch has the
partition, and the writer and batch number if the append is to be idempotent. The answer to each append is the
partition's end. Rows of producers that buffer may have a column `_arrival`, never later than now.
DoGet: the ticket is JSON; the answer is the rows of a segment. If positions of the stream may have no row,
the rows have a column `_position`.
Actions: the body is JSON; about, start, end, last_batch, position_at, header_arrays.
"""

from __future__ import annotations

import base64
import functools
import hmac
import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl

from penstock.streams.columns import check_columns
from penstock.streams.descriptor import read_about
from penstock.streams.embedded.log import EmbeddedLog
from penstock.streams.flight.tokens import forget_token, mint_token
from penstock.streams.flight.wire import decode, encode, encode_error, encode_headers
from penstock.streams.layout import Fsync, FsyncPolicy
from penstock.streams.opening import load_stream, open_writer, streams_in
from penstock.streams.protocol import ARRIVAL, POSITION, AppendKey, StreamIndex, StreamLog
from penstock.vocabulary.errors import InvalidInputError, PenstockError, UnknownNameError, UnmetError

_LOOPBACK = ("127.0.0.1", "localhost", "::1")

_log = logging.getLogger(__name__)


class FlightServer:
    """Serves until closed; a context manager.

    Args:
        root: The directory that holds the streams.
        host: Address to listen on; an address that other machines reach needs a token.
        port: Port to listen on; 0 takes a free port, see `address`.
        token: Token that callers must know. It is sent in clear text: for networks that you trust. If none is
            given, the server mints one that clients of the same user on this machine find by themselves.
        fsync: When appended rows are synced, see `FsyncPolicy`.
        authenticate: Whether callers need a token at all. If not, every user of this machine may call.
    """

    def __init__(
        self,
        root: str | Path,
        host: str = "127.0.0.1",
        port: int = 0,
        token: str | None = None,
        fsync: Fsync = "never",
        authenticate: bool = True,
    ) -> None:
        root = Path(root)
        if not root.is_dir():
            raise InvalidInputError("a log is a directory of streams", root, "give an existing directory")
        if token is None and host not in _LOOPBACK:
            raise InvalidInputError(
                "a log that other machines can reach has a token",
                f"host {host} without a token",
                "give a token",
            )
        FsyncPolicy(fsync)
        self._streams = _Streams(root, fsync)
        check = _TokenCheck()
        middleware = {"token": check} if authenticate or token is not None else None
        try:
            self._server = _Server(f"grpc://{host}:{port}", self._streams, middleware)
        except (pa.ArrowException, OSError) as error:
            raise InvalidInputError("the port is free", f"{host}:{port}", "use another, or 0") from error
        self.address = f"grpc://{host}:{self._server.port}"
        self.token_file: Path | None = None
        """File with the minted token; `None` if no token was minted."""
        if token is None and authenticate:
            try:
                token, self.token_file = mint_token(root, self.address)
            except BaseException:
                self._server.shutdown()
                raise
        self._token = token
        if token is not None:
            check.expect(token, self.token_file)

    def close(self, patience_s: float = 5.0) -> bool:
        """Stops listening, waits a while for calls that are under way, and closes the streams.

        Returns whether all calls have ended. gRPC has no way to end a call that a caller keeps open; the
        interpreter would wait for that call at exit.
        """
        stopping = threading.Thread(target=self._server.shutdown, daemon=True)
        stopping.start()
        stopping.join(patience_s)
        self._streams.closed = True
        self._streams.close()
        if self.token_file is not None and self._token is not None:
            forget_token(self.token_file, self._token)
        return not stopping.is_alive()

    def __enter__(self) -> FlightServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Streams:
    """The streams of a directory, opened on first use."""

    def __init__(self, root: Path, fsync: Fsync) -> None:
        self.root, self.fsync, self.closed = root, fsync, False
        self._open: dict[str, tuple[int, StreamLog]] = {}
        self._lock = threading.Lock()

    def check_open(self) -> None:
        if self.closed:
            raise UnmetError("the server is running", "a call after it stopped", "start the server again")

    def names(self) -> list[str]:
        return [directory.name for directory in streams_in(self.root)]

    def get(self, name: str) -> StreamLog:
        with self._lock:
            self.check_open()
            if name not in self.names():  # this check also keeps a caller inside the directory
                raise InvalidInputError("the stream exists", repr(name), f"one of {self.names()}")
            inode = (self.root / name / "stream.json").stat().st_ino
            if name not in self._open or self._open[name][0] != inode:
                self._open[name] = (inode, self._load(name))
            return self._open[name][1]

    def _load(self, name: str) -> StreamLog:
        if read_about(self.root / name).get("kind", "embedded") == "embedded":
            return open_writer(self.root / name, self.fsync)
        return load_stream(self.root / name)

    def close(self) -> None:
        with self._lock:
            for _, log in self._open.values():
                log.close()


class _TokenCheck(fl.ServerMiddlewareFactory):  # type: ignore[misc]
    """Refuses calls without the token, and names the file of a minted token.

    Until the server has its token, every call is refused.
    """

    def __init__(self) -> None:
        super().__init__()
        self._expected: bytes | None = None
        self._where = b""

    def expect(self, token: str, file: Path | None) -> None:
        self._where = b"" if file is None else str(file).encode()
        self._expected = f"Bearer {token}".encode()

    def start_call(self, info: fl.CallInfo, headers: dict[str, list[Any]]) -> None:
        given = next(iter(headers.get("authorization", [])), "")
        given = given.encode() if isinstance(given, str) else given
        if self._expected is None or not hmac.compare_digest(given, self._expected):
            raise fl.FlightUnauthenticatedError("the caller knows the token", self._where)


def _answering(method: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates a method: its errors become answers, so that the server goes on."""

    @functools.wraps(method)
    def answer(self: _Server, context: fl.ServerCallContext, *arguments: Any) -> Any:
        try:
            return method(self, *arguments)
        except PenstockError as error:
            raise fl.FlightServerError(str(error), encode_error(error)) from None
        except (pa.ArrowException, fl.FlightError) as error:
            refused = InvalidInputError("a call is whole", f"{error}"[:200], "send it again")
            raise fl.FlightServerError(str(refused), encode_error(refused)) from None
        except Exception as error:
            _log.exception("a call failed")
            raise fl.FlightServerError(f"the server failed: {error}") from None

    return answer


class _Server(fl.FlightServerBase):  # type: ignore[misc]
    def __init__(self, location: str, streams: _Streams, middleware: dict[str, Any] | None) -> None:
        super().__init__(location, middleware=middleware)
        self.streams = streams

    def _stream(self, descriptor: fl.FlightDescriptor) -> StreamLog:
        path = descriptor.path or []
        if len(path) != 1:
            raise InvalidInputError("a descriptor's path is a stream's name", path, "give one name")
        return self.streams.get(path[0].decode(errors="replace"))

    @_answering
    def list_flights(self, criteria: bytes) -> Iterator[fl.FlightInfo]:
        found = []
        for name in self.streams.names():
            try:
                found.append(_info(self.streams.get(name)))
            except PenstockError as error:  # one broken stream must not hide the others
                self.streams.check_open()
                _log.warning("%s is not listed: %s", name, error)
        return iter(found)

    @_answering
    def get_flight_info(self, descriptor: fl.FlightDescriptor) -> fl.FlightInfo:
        return _info(self._stream(descriptor))

    @_answering
    def do_put(
        self,
        descriptor: fl.FlightDescriptor,
        reader: fl.MetadataRecordBatchReader,
        writer: fl.FlightMetadataWriter,
    ) -> None:
        log = _writable(self._stream(descriptor))
        stamped = ARRIVAL in reader.schema.names
        check_columns(reader.schema, log.schema if stamped else log.append_schema, log.name)
        while True:
            try:
                chunk = reader.read_chunk()
            except StopIteration:
                return
            content = b"" if chunk.app_metadata is None else chunk.app_metadata.to_pybytes()
            if chunk.data is not None:
                writer.write(pa.py_buffer(encode(end=self._append(log, chunk.data, content, stamped))))

    def _append(self, log: EmbeddedLog, rows: pa.RecordBatch, content: bytes, stamped: bool) -> int:
        self.streams.check_open()  # the call may have begun before the server was stopped
        rows.validate(full=True)  # a stranger's string offsets may point anywhere
        request = decode(content)
        key = None
        if "writer" in request or "batch" in request:
            decode(content, "writer", "batch")
            key = AppendKey(request["writer"], request["batch"])
        arrival_us = None
        if stamped:
            where = rows.schema.get_field_index(ARRIVAL)
            if rows.column(where).null_count:
                raise InvalidInputError(
                    "every row has an arrival", "a null", "stamp every row or leave the column out"
                )
            arrival_us = rows.column(where).to_numpy()
            rows = rows.remove_column(where)
        return log.append(rows, request.get("partition", 0), key, arrival_us)

    @_answering
    def do_get(self, ticket: fl.Ticket) -> fl.RecordBatchStream:
        request = decode(ticket.ticket, "stream", "partition", "first", "end")
        log = self.streams.get(request["stream"])
        found = log.read(request["partition"], request["first"], request["end"])
        rows = found.batch
        if not log.dense:
            rows = rows.append_column(pa.field(POSITION, pa.int64()), pa.array(found.positions, pa.int64()))
        return fl.RecordBatchStream(pa.RecordBatchReader.from_batches(rows.schema, [rows]))

    @_answering
    def do_action(self, action: fl.Action) -> Iterator[fl.Result]:
        answer = _ACTIONS.get(action.type)
        if answer is None:
            raise UnknownNameError("an action", action.type, _ACTIONS)
        needed, call = answer
        request = decode(action.body.to_pybytes(), "stream", *needed)
        log = self.streams.get(request.pop("stream"))
        return iter([fl.Result(pa.py_buffer(call(log, *(request[name] for name in needed))))])

    @_answering
    def list_actions(self) -> list[tuple[str, str]]:
        return [(name, f"needs stream {' '.join(needed)}".rstrip()) for name, (needed, _) in _ACTIONS.items()]


def _writable(log: StreamLog) -> EmbeddedLog:
    if not isinstance(log, EmbeddedLog):
        raise InvalidInputError(
            "rows are appended to an embedded stream",
            f"an append to {log.name}",
            "append where its rows are kept; a paced stream is written beforehand",
        )
    return log


def _info(log: StreamIndex) -> fl.FlightInfo:
    # Flight's -1: with gaps nobody knows how many rows there are
    rows = sum(log.end(p) - log.start(p) for p in range(log.partitions)) if log.dense else -1
    return fl.FlightInfo(log.schema, fl.FlightDescriptor.for_path(log.name), [], rows, -1)


def _about(log: StreamIndex) -> bytes:
    return encode(
        partitions=log.partitions,
        key_column=log.key_column,
        key_buckets=log.key_buckets,
        event_time=log.event_time,
        uid=log.uid,
        dense=log.dense,
        schema=base64.b64encode(log.schema.serialize().to_pybytes()).decode(),
    )


_ACTIONS: dict[str, tuple[tuple[str, ...], Callable[..., bytes]]] = {
    "about": ((), _about),
    "start": (("partition",), lambda log, p: encode(value=log.start(p))),
    "end": (("partition",), lambda log, p: encode(value=log.end(p))),
    "last_batch": (("writer", "partition"), lambda log, w, p: encode(value=_writable(log).last_batch(w, p))),
    "position_at": (("partition", "arrival_us"), lambda log, p, at: encode(value=log.position_at(p, at))),
    "header_arrays": (
        ("partition", "start", "end", "keys"),
        lambda log, p, start, end, keys: encode_headers(log.header_arrays(p, start, end, bool(keys))),
    ),
}
