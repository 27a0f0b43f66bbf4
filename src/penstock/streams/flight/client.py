"""A client for a stream that a Flight server keeps, with the same methods as any log."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.flight as fl

from penstock.streams.columns import append_schema, check_rows, user_schema
from penstock.streams.descriptor import check_partition
from penstock.streams.flight.tokens import find_token
from penstock.streams.flight.wire import decode_error, decode_headers, encode
from penstock.streams.protocol import ARRIVAL, POSITION, AppendKey, HeaderArrays, PositionedRows, StreamState
from penstock.vocabulary.errors import InvalidInputError, UnmetError
from penstock.vocabulary.stream_ref import StreamRef

_T = TypeVar("_T")


class FlightLog:
    """One stream of a `FlightServer`.

    Args:
        address: The address that the server prints: `grpc://host:port`.
        stream: The stream's name.
        token: The server's token, if the server was given one. A token that the server minted is found.
        timeout_s: Longest time that a call may take.
    """

    def __init__(self, address: str, stream: str, token: str | None = None, timeout_s: float = 30.0) -> None:
        self.address, self.name, self.ref = address, stream, StreamRef(f"{address}/{stream}")
        self._timeout_s, self._given = timeout_s, token is not None
        self._use(token)
        with self._call():
            self._client = fl.FlightClient(address)
        about = self._about()
        self._partitions: int = about["partitions"]
        self.dense: bool = about.get("dense", True)
        self.key_column: str | None = about["key_column"]
        self.key_buckets: int = about["key_buckets"]
        self.event_time: str | None = about["event_time"]
        self.uid: str = about["uid"]
        self.schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(about["schema"])))
        self.append_schema, self.user_schema = append_schema(self.schema), user_schema(self.schema)

    def _about(self) -> dict[str, Any]:
        about: dict[str, Any] = json.loads(self._action("about"))
        return about

    @property
    def partitions(self) -> int:
        """How many partitions the server says that there are."""
        self._partitions = self._about()["partitions"]
        return self._partitions

    def _check(self, partition: int) -> None:
        """Refuses a partition that is not there; the server is asked only about an unknown one."""
        if not 0 <= partition < self._partitions:
            check_partition(self, partition)

    @property
    def state(self) -> StreamState:
        """Refused: the state, with the registry of readers, is on the server's machine."""
        raise self._elsewhere("has its readers and plans where it lies")

    def partition_name(self, partition: int) -> str:
        """The partition's number."""
        self._check(partition)
        return str(partition)

    def mark(self, partition: int, position: int) -> None:
        """No mark: the server checks its own files."""

    def append(
        self,
        rows: pa.RecordBatch,
        partition: int = 0,
        key: AppendKey | None = None,
        arrival_us: np.ndarray | None = None,
    ) -> int:
        """Appends rows, all or none; returns the partition's end.

        If the connection breaks, it is unknown whether the rows were appended. With a key, repeat the call.
        """
        self._check(partition)
        check_rows(rows, self.append_schema, self.name)
        if arrival_us is not None:
            if len(arrival_us) != rows.num_rows:
                raise InvalidInputError(
                    "there is one arrival time a row",
                    f"{len(arrival_us)} arrival times for {rows.num_rows} rows",
                    "give one for each row",
                )
            rows = rows.append_column(self.schema.field(ARRIVAL), pa.array(arrival_us, pa.int64()))
        request: dict[str, Any] = {"partition": partition}
        if key is not None:
            request |= {"writer": key.writer, "batch": key.batch}
        with self._call():
            answer = self._authenticated(lambda: self._put(rows, encode(**request)))
        if answer is None:
            raise UnmetError(
                "the server answers an append", f"no answer from {self.address}", "look at the server's log"
            )
        return int(json.loads(answer.to_pybytes())["end"])

    def _put(self, rows: pa.RecordBatch, request: bytes) -> pa.Buffer | None:
        descriptor = fl.FlightDescriptor.for_path(self.name)
        writer, answers = self._client.do_put(descriptor, rows.schema, self._options)
        with writer:
            writer.write_with_metadata(rows, request)
            writer.done_writing()
            return answers.read()

    def last_batch(self, writer: str, partition: int = 0) -> int:
        """The last batch of a writer that is in the partition; -1 for none."""
        return int(self._value("last_batch", writer=writer, partition=partition))

    def start(self, partition: int = 0) -> int:
        """The first position that has not been trimmed."""
        return int(self._value("start", partition=partition))

    def end(self, partition: int = 0) -> int:
        """The position after the last row."""
        return int(self._value("end", partition=partition))

    def position_at(self, partition: int, arrival_us: int) -> int:
        """First position of the first segment that ends after an arrival time; the end if there is none."""
        return int(self._value("position_at", partition=partition, arrival_us=int(arrival_us)))

    def header_arrays(self, partition: int, start: int, end: int, keys: bool = True) -> HeaderArrays:
        """Headers of the segments that hold rows in [start, end); without `keys` no counts by key bucket."""
        request = {"partition": partition, "start": int(start), "end": int(end), "keys": keys}
        return decode_headers(self._action("header_arrays", **request))

    def read(self, partition: int, first: int, end: int) -> PositionedRows:
        """The rows of [first, end), which lie in one segment."""
        ticket = fl.Ticket(encode(stream=self.name, partition=partition, first=int(first), end=int(end)))
        with self._call():
            table = self._authenticated(lambda: self._client.do_get(ticket, self._options).read_all())
        # a table without rows has no batches
        batches = table.combine_chunks().to_batches()
        rows = batches[0] if batches else pa.RecordBatch.from_pylist([], schema=table.schema)
        where = rows.schema.get_field_index(POSITION)
        if where < 0:
            return PositionedRows(np.arange(first, first + rows.num_rows, dtype=np.int64), rows)
        return PositionedRows(rows.column(where).to_numpy(), rows.remove_column(where))

    def _elsewhere(self, what: str) -> InvalidInputError:
        return InvalidInputError(
            f"a stream of a server {what}", f"{self.name} at {self.address}", "open its directory there"
        )

    def close(self) -> None:
        self._client.close()

    def __enter__(self) -> FlightLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _value(self, action: str, **request: Any) -> Any:
        return json.loads(self._action(action, **request))["value"]

    def _action(self, action: str, **request: Any) -> bytes:
        with self._call():
            call = fl.Action(action, encode(stream=self.name, **request))
            (result,) = self._authenticated(lambda: list(self._client.do_action(call, self._options)))
        body: bytes = result.body.to_pybytes()
        return body

    def _use(self, token: str | None) -> None:
        headers = [] if token is None else [(b"authorization", f"Bearer {token}".encode())]
        self._options = fl.FlightCallOptions(timeout=self._timeout_s, headers=headers)

    def _authenticated(self, call: Callable[[], _T]) -> _T:
        """Makes a call; if the server refuses it and has minted a token, calls again with that token."""
        try:
            return call()
        except fl.FlightUnauthenticatedError as error:
            where = (getattr(error, "extra_info", b"") or b"").decode(errors="replace")
            token = find_token(Path(where), self.address) if where and not self._given else None
            if token is None:
                raise
            self._use(token)
            return call()

    @contextmanager
    def _call(self) -> Iterator[None]:
        """Turns errors of a call into the server's own error, or into one that names the server's address."""
        try:
            yield
        except fl.FlightUnauthenticatedError as error:
            where = (getattr(error, "extra_info", b"") or b"").decode(errors="replace")
            hint = (
                f"give the token in {where}, if that file is yours"
                if where
                else "give the token that the server was started with"
            )
            raise InvalidInputError("the caller knows the server's token", self.address, hint) from None
        except (fl.FlightError, pa.ArrowException) as error:
            server_error = decode_error(getattr(error, "extra_info", b"") or b"")
            if server_error is not None:
                raise server_error from None
            first_line = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise UnmetError(
                "the log server answers",
                f"'{first_line[:200]}' from {self.address}",
                "is penstock log serve running there?",
            ) from error
