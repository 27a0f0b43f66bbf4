"""The log over Arrow Flight: the same methods, and a server that no garbage stops."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.flight as fl
import pytest
from tests.gappy import KIND, Gappy, GappyKind, GappyLog
from tests.segments import headers, read
from tests.waits import PATIENCE_S

from penstock.streams import opening
from penstock.streams.embedded.log import EmbeddedLog
from penstock.streams.flight.client import FlightLog
from penstock.streams.flight.server import FlightServer
from penstock.streams.layout import LogConfig
from penstock.streams.producing.producer import Producer
from penstock.streams.protocol import AppendKey
from penstock.testing import ManualClock
from penstock.vocabulary.errors import InvalidInputError, PenstockError

SCHEMA = pa.schema([("sensor", pa.string()), ("value", pa.int64())])


def rows(*values: int) -> pa.RecordBatch:
    return pa.record_batch([[f"s{v % 7}" for v in values], list(values)], schema=SCHEMA)


def values_in(log: FlightLog | EmbeddedLog, partition: int = 0) -> list[int]:
    found = headers(log, partition, 0, log.end(partition))
    return [v for s in found for v in read(log, s).column("value").to_pylist()]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[FlightServer]:
    EmbeddedLog.create(tmp_path / "readings", SCHEMA, LogConfig(partitions=2, segment_rows=100))
    with FlightServer(tmp_path, authenticate=False) as server:  # for clients that are not Penstock's
        yield server


@pytest.fixture
def log(server: FlightServer) -> Iterator[FlightLog]:
    with FlightLog(server.address, "readings") as log:
        yield log
        # whatever a test did, the server still takes and gives rows, and nothing is half there
        before = values_in(log)
        assert log.append(rows(-1)) == len(before) + 1
        assert values_in(log) == [*before, -1]


def test_a_stream_that_is_opened_anew_is_another_log_of_the_same_stream(
    server: FlightServer, tmp_path: Path
) -> None:
    for place in (f"{server.address}/readings", tmp_path / "readings"):
        usual = opening.open_stream(place)
        assert opening.open_stream(place) is usual
        anew = opening.load_stream(place)
        assert anew is not usual
        assert (anew.ref, anew.uid) == (usual.ref, usual.uid)


def test_rows_are_appended_and_read_by_partition(log: FlightLog, tmp_path: Path) -> None:
    assert log.append(rows(*range(250))) == 250
    assert log.append(rows(7), partition=1) == 1
    assert values_in(log) == list(range(250))
    assert [s.rows for s in headers(log, 0, 0, 250)] == [100, 100, 50]
    assert values_in(EmbeddedLog(tmp_path / "readings"), 1) == [7]


def test_a_repeated_batch_is_appended_once(log: FlightLog) -> None:
    assert log.append(rows(1), key=AppendKey("w", 4)) == 1
    assert log.append(rows(1), key=AppendKey("w", 4)) == 1
    assert (log.last_batch("w"), log.last_batch("x")) == (4, -1)


def test_arrivals_of_a_producer_that_buffers_are_kept_but_never_later_than_now(log: FlightLog) -> None:
    log.append(rows(1, 2, 3), arrival_us=np.array([1_000_000, 2_000_000, 2**62]))
    arrived = read(log, headers(log, 0, 0, 3)[0]).column("_arrival").to_pylist()
    assert arrived[:2] == [1_000_000, 2_000_000]
    assert arrived[2] < 2**60
    with pytest.raises(InvalidInputError, match="one arrival time a row; got: 1 arrival times for 2 rows"):
        log.append(rows(1, 2), arrival_us=np.array([1]))


def test_a_producer_sends_over_flight(log: FlightLog) -> None:
    with Producer(log, batch_rows=10, linger_s=3600.0, writer="far") as producer:
        for value in range(25):
            producer.send({"sensor": ["a"], "value": [value]})
    assert sorted(values_in(log, 0) + values_in(log, 1)) == list(range(25))


def test_one_call_may_append_many_batches_each_answered_with_the_end(
    server: FlightServer, log: FlightLog
) -> None:
    client = fl.FlightClient(server.address)
    writer, answers = client.do_put(fl.FlightDescriptor.for_path("readings"), SCHEMA)
    with writer:
        for i in range(3):
            writer.write_with_metadata(rows(i, i), json.dumps({"writer": "w", "batch": i}).encode())
            assert json.loads(answers.read().to_pybytes()) == {"end": 2 * i + 2}
        writer.write(rows(9))
        assert json.loads(answers.read().to_pybytes()) == {"end": 7}
        writer.done_writing()
    assert values_in(log) == [0, 0, 1, 1, 2, 2, 9]


def test_streams_are_listed_with_their_columns(server: FlightServer, log: FlightLog) -> None:
    client = fl.FlightClient(server.address)
    log.append(rows(1, 2))
    (info,) = client.list_flights()
    assert (info.schema, info.total_records, info.descriptor.path) == (log.schema, 2, [b"readings"])
    assert client.get_flight_info(fl.FlightDescriptor.for_path("readings")).total_records == 2
    assert "header_arrays" in {action.type for action in client.list_actions()}


def put(server: FlightServer, batch: pa.RecordBatch, stream: str = "readings", metadata: bytes = b"") -> None:
    client = fl.FlightClient(server.address)
    writer, answers = client.do_put(fl.FlightDescriptor.for_path(stream), batch.schema)
    with writer:
        writer.write_with_metadata(batch, metadata)
        writer.done_writing()
        answers.read()


def broken_strings() -> pa.RecordBatch:
    offsets = np.array([0, 900_000_000, 3], np.int32)  # the first and the last are in order
    strings = pa.Array.from_buffers(pa.string(), 2, [None, pa.py_buffer(offsets), pa.py_buffer(b"abc")])
    return pa.RecordBatch.from_arrays([strings, pa.array([1, 2])], schema=SCHEMA)


@pytest.mark.parametrize(
    ("batch", "stream", "metadata", "said"),
    [
        pytest.param(pa.record_batch({"value": [1]}), "readings", b"", "missing", id="a_missing_column"),
        pytest.param(
            pa.record_batch({"sensor": ["a"], "value": [1.5]}),
            "readings",
            b"",
            "value is double, not int64",
            id="another_type",
        ),
        pytest.param(rows(1), "nothing", b"", "the stream exists", id="no_such_stream"),
        pytest.param(rows(1), "../readings", b"", "the stream exists", id="a_path_outside"),
        pytest.param(rows(1), "readings", b"\xff\x00junk", "a request is a JSON object", id="junk_beside_it"),
        pytest.param(rows(1), "readings", b"[1]", "a request is a JSON object", id="no_object"),
        pytest.param(rows(1), "readings", b'{"partition": "0"}', "partition is a int", id="no_number"),
        pytest.param(rows(1), "readings", b'{"partition": 2}', "partitions 0 to 1", id="no_such_partition"),
        pytest.param(
            rows(1), "readings", b'{"partition": 1' + b"0" * 30 + b"}", "partition is a int", id="huge"
        ),
        pytest.param(rows(1), "readings", b'{"writer": "w"}', "names its batch", id="half_a_key"),
        pytest.param(
            rows(1), "readings", b'{"writer": "", "batch": 1}', "1 to 40 bytes", id="an_empty_writer"
        ),
        pytest.param(broken_strings(), "readings", b"", "a call is whole", id="strings_that_point_outside"),
    ],
)
def test_garbage_from_a_producer_is_refused_and_the_server_goes_on(
    server: FlightServer, log: FlightLog, batch: pa.RecordBatch, stream: str, metadata: bytes, said: str
) -> None:
    with pytest.raises(fl.FlightError, match=said):
        put(server, batch, stream, metadata)
    assert (log.end(0), log.end(1)) == (0, 0)


@pytest.mark.parametrize(
    ("ticket", "said"),
    [
        (b"\x00\x01", "a request is a JSON object"),
        (b'{"stream": "readings"}', "names its partition"),
        (b'{"stream": "x", "partition": 0, "first": 0, "end": 1}', "the stream exists"),
        (b'{"stream": 3, "partition": 0, "first": 0, "end": 1}', "stream is a str"),
        (b'{"stream": "readings", "partition": 9, "first": 0, "end": 1}', "partitions 0 to 1"),
        (
            b'{"stream": "readings", "partition": 0, "first": 2, "end": 3}',
            "the segment to read is still in the log",
        ),
        (
            b'{"stream": "readings", "partition": 0, "first": -5, "end": 1}',
            "the segment to read is still in the log",
        ),
    ],
)
def test_a_junk_ticket_is_refused(server: FlightServer, log: FlightLog, ticket: bytes, said: str) -> None:
    log.append(rows(1, 2))
    with pytest.raises(fl.FlightError, match=said):
        fl.FlightClient(server.address).do_get(fl.Ticket(ticket)).read_all()


def test_junk_actions_and_descriptors_are_refused(server: FlightServer, log: FlightLog) -> None:
    client = fl.FlightClient(server.address)
    with pytest.raises(fl.FlightError, match="an action must be one of about"):
        list(client.do_action(fl.Action("format", b"{}")))
    with pytest.raises(fl.FlightError, match="names its stream"):
        list(client.do_action(fl.Action("end", b"")))
    with pytest.raises(fl.FlightError, match="path is a stream's name"):
        client.get_flight_info(fl.FlightDescriptor.for_command(b"drop"))


def test_random_bytes_on_the_port_do_not_stop_the_server(server: FlightServer, log: FlightLog) -> None:
    host, _, port = server.address.removeprefix("grpc://").partition(":")
    for seed in range(5):
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(np.random.default_rng(seed).bytes(5000))
            connection.shutdown(socket.SHUT_WR)


def forward_until(address: str, limit: int) -> tuple[str, threading.Thread]:
    """A line to the server that breaks after so many bytes of the caller."""
    host, _, port = address.removeprefix("grpc://").partition(":")
    listening = socket.create_server(("127.0.0.1", 0))

    def forward() -> None:
        caller, _ = listening.accept()
        listening.close()
        with caller, socket.create_connection((host, int(port))) as onward:
            back = threading.Thread(target=copy, args=(onward, caller, 1 << 40))
            back.start()
            copy(caller, onward, limit)
            for end in (caller, onward):
                end.shutdown(socket.SHUT_RDWR)
            back.join()

    def copy(source: socket.socket, sink: socket.socket, most: int) -> None:
        try:
            while most > 0 and (content := source.recv(min(most, 65536))):
                sink.sendall(content)
                most -= len(content)
        except OSError:
            pass

    thread = threading.Thread(target=forward)
    thread.start()
    return f"grpc://127.0.0.1:{listening.getsockname()[1]}", thread


@pytest.mark.parametrize("limit", [500, 3_000, 20_000, 200_000])
def test_a_line_that_breaks_in_the_middle_leaves_whole_batches_only(
    server: FlightServer, tmp_path: Path, limit: int
) -> None:
    address, thread = forward_until(server.address, limit)
    client = fl.FlightClient(address)

    def send_much() -> None:
        options = fl.FlightCallOptions(timeout=PATIENCE_S)
        writer, _ = client.do_put(fl.FlightDescriptor.for_path("readings"), SCHEMA, options)
        with writer:
            for i in range(50):
                writer.write(rows(*range(i * 1000, (i + 1) * 1000)))
            writer.done_writing()

    with pytest.raises((fl.FlightError, pa.ArrowException)):
        send_much()
    thread.join()
    client.close()
    with FlightLog(server.address, "readings") as log:
        assert log.append(rows(7), partition=1) == 1
    assert server.close(PATIENCE_S)  # what had reached the server has been dealt with
    kept = EmbeddedLog(tmp_path / "readings")
    assert kept.end() % 1000 == 0
    assert kept.end() < 50_000
    assert values_in(kept) == list(range(kept.end()))


def test_a_call_without_the_token_is_refused(tmp_path: Path) -> None:
    EmbeddedLog.create(tmp_path / "readings", SCHEMA)
    with FlightServer(tmp_path, token="secret") as server:
        for token in (None, "guess", "secret2"):
            with pytest.raises(InvalidInputError, match="knows the server's token"):
                FlightLog(server.address, "readings", token)
        with pytest.raises(fl.FlightUnauthenticatedError):
            put(server, rows(1))
        with FlightLog(server.address, "readings", "secret") as log:
            assert log.append(rows(1)) == 1


def test_errors_of_the_server_are_raised_as_they_are(
    server: FlightServer, log: FlightLog, tmp_path: Path
) -> None:
    with pytest.raises(
        InvalidInputError, match=r"^expected: the stream exists; got: 'other'; hint: one of \['readings'\]$"
    ):
        FlightLog(server.address, "other")
    with pytest.raises(InvalidInputError, match=r"missing \['sensor'\]"):
        log.append(pa.record_batch({"value": [1]}))
    with EmbeddedLog(tmp_path / "readings") as local:
        local.append(rows(1), partition=1)
        with pytest.raises(InvalidInputError, match=f"held by process {os.getpid()}"):
            log.append(rows(2), partition=1)
    with pytest.raises(InvalidInputError, match="has its readers and plans where it lies"):
        log.state


def test_a_server_that_is_gone_is_said(tmp_path: Path) -> None:
    EmbeddedLog.create(tmp_path / "readings", SCHEMA)
    server = FlightServer(tmp_path)
    log = FlightLog(server.address, "readings")
    log.append(rows(1))
    assert server.close()
    with pytest.raises(PenstockError, match=r"the log server answers; got: .*is penstock log serve running"):
        log.end()
    with EmbeddedLog(tmp_path / "readings") as local:  # the lock is given back
        assert local.append(rows(2)) == 2


def test_a_server_that_cannot_be_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="a log is a directory of streams"):
        FlightServer(tmp_path / "nothing")
    with pytest.raises(InvalidInputError, match=r"has a token; got: host 0\.0\.0\.0 without a token"):
        FlightServer(tmp_path, host="0.0.0.0")
    with pytest.raises(InvalidInputError, match="fsync must be one of"):
        FlightServer(tmp_path, fsync="sometimes")  # type: ignore[arg-type]
    with FlightServer(tmp_path) as server:
        port = int(server.address.rpartition(":")[2])
        with pytest.raises(InvalidInputError, match="the port is free"):
            FlightServer(tmp_path, port=port)


def test_a_log_with_gaps_is_served_with_its_positions_and_new_partitions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock(100.0)
    there = GappyLog.create(tmp_path / "s", Gappy(0.0, per_s=100.0, births_s=(0.0, 200.0), aborted=3), clock)
    monkeypatch.setitem(opening._DIRECTORIES, KIND, GappyKind(clock))
    with FlightServer(tmp_path) as server, FlightLog(server.address, "s") as log:
        assert (log.dense, log.partitions) == (False, 1)
        assert [info.total_records for info in log._client.list_flights(b"", log._options)] == [-1], (
            "some have no row"
        )
        for segment in headers(there, 0, 0, there.end(0)):
            place = 0, segment.first_position, segment.end_position
            found, same = log.read(*place), there.read(*place)
            assert found.positions.tolist() == same.positions.tolist()
            assert found.batch == same.batch
        assert log.read(0, 1024, 1536).positions.size == 0, "an aborted block"
        clock.advance(150.0)
        assert log.partitions == 2
        assert log.read(1, 0, 512).positions.tolist() == there.read(1, 0, 512).positions.tolist()
        clock.advance(1.0)
        with pytest.raises(InvalidInputError, match="stream s has partitions 0 to 1; got: 2"):
            log.partition_name(2)
