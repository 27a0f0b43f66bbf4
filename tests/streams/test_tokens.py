"""A log server without a token of its own: processes of its user call it, and nobody else does."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as fl
import pytest
from tests.segments import headers, read

from penstock.streams import open_stream
from penstock.streams.embedded.log import EmbeddedLog
from penstock.streams.flight.client import FlightLog
from penstock.streams.flight.server import FlightServer
from penstock.streams.flight.tokens import find_token
from penstock.vocabulary.errors import InvalidInputError

SCHEMA = pa.schema([("value", pa.int64())])
REFUSED = r"server's token; got: grpc://.*; hint: give the token in .*\.flight-\d+, if that file is yours"


def rows(*values: int) -> pa.RecordBatch:
    return pa.record_batch([list(values)], schema=SCHEMA)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    EmbeddedLog.create(tmp_path / "log" / "s", SCHEMA)
    return tmp_path / "log"


def token_file(server: FlightServer) -> Path:
    assert server.token_file is not None
    return server.token_file


def test_a_process_of_the_same_user_finds_the_token_by_itself(root: Path) -> None:
    with FlightServer(root) as server:
        path = token_file(server)
        assert (path.parent, path.stat().st_mode & 0o777) == (root, 0o600)
        with FlightLog(server.address, "s") as log:
            assert log.append(rows(1, 2)) == 2
            assert read(log, headers(log, 0, 0, 2)[0]).column("value").to_pylist() == [1, 2]
        assert open_stream(f"{server.address}/s").end() == 2
        with FlightServer(root) as second, FlightLog(second.address, "s") as log:
            assert (log.end(), token_file(second) != path) == (2, True)
        assert path.exists()
    assert not path.exists()


def test_a_caller_who_may_not_read_the_token_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with FlightServer(root) as server:
        client = fl.FlightClient(server.address)
        for call in (lambda: list(client.list_flights()), lambda: list(client.list_actions())):
            with pytest.raises(fl.FlightUnauthenticatedError):
                call()
        with pytest.raises(InvalidInputError, match=REFUSED):
            FlightLog(server.address, "s", "guess")
        with monkeypatch.context() as another:
            another.setattr(os, "getuid", lambda: 4_000_000)
            with pytest.raises(InvalidInputError, match=REFUSED):
                FlightLog(server.address, "s")
        token_file(server).chmod(0o640)
        with pytest.raises(InvalidInputError, match=REFUSED):
            FlightLog(server.address, "s")


def test_a_log_goes_on_with_a_server_that_was_started_again(root: Path) -> None:
    server = FlightServer(root)
    port = int(server.address.rpartition(":")[2])
    with FlightLog(server.address, "s") as log:
        log.append(rows(1))
        assert server.close()
        with FlightServer(root, port=port):
            assert log.append(rows(2)) == 2
            assert log.end() == 2


def test_a_token_is_sent_to_no_other_address_than_its_servers_own(root: Path, tmp_path: Path) -> None:
    with FlightServer(root) as server:
        path, token = token_file(server), json.loads(token_file(server).read_text())["token"]
        assert find_token(path, server.address) == token
        assert find_token(path, "grpc://127.0.0.1:1") is None
        (tmp_path / "link").symlink_to(path)
        os.mkfifo(tmp_path / "pipe", 0o600)
        for name in ("link", "pipe", "nothing", "."):
            assert find_token(tmp_path / name, server.address) is None
    for number, text in enumerate(("", "[]", "secret", '{"address": "a"}')):
        other = tmp_path / str(number)
        other.touch(0o600)
        other.write_text(text)
        assert find_token(other, "a") is None


def test_a_server_may_be_open_to_every_user_of_the_machine_if_it_is_told_to(root: Path) -> None:
    with FlightServer(root, authenticate=False) as server:
        assert server.token_file is None
        assert len(list(fl.FlightClient(server.address).list_flights())) == 1
    with FlightServer(root, token="secret") as server:
        assert server.token_file is None
        with pytest.raises(InvalidInputError, match="hint: give the token that the server was started with"):
            FlightLog(server.address, "s")


def test_a_server_that_cannot_keep_its_token_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("penstock.streams.flight.tokens.os.open", full)
    with pytest.raises(InvalidInputError, match=r"No space left .*; hint: give a token, or .* --no-token"):
        FlightServer(root)
