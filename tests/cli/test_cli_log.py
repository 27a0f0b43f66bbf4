"""`penstock log` as a user types it."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.waits import PATIENCE_S

from penstock.cli import main
from penstock.streams.embedded.log import EmbeddedLog
from penstock.streams.flight.client import FlightLog
from penstock.streams.flight.server import FlightServer
from penstock.streams.layout import LogConfig
from penstock.streams.paced.stream import create_paced
from penstock.streams.producing.schedule import Schedule
from penstock.streams.registry import ReaderRegistry

SCHEMA = pa.schema([("value", pa.int64())])


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with EmbeddedLog.create(tmp_path / "log" / "readings", SCHEMA) as log:
        log.append(pa.record_batch([[1, 2, 3]], schema=SCHEMA))
        ReaderRegistry(log).advance("fraud", {0: 2})
    return tmp_path / "log"


def test_streams_are_listed_with_rows_and_readers(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["log", "streams", str(root), "--json", "-"]) == 0
    (stream,) = json.loads(capsys.readouterr().out)
    assert stream | {"bytes": 0} == {
        "stream": "readings",
        "partitions": 1,
        "dense": True,
        "rows": 3,
        "bytes": 0,
        "readers": 1,
    }
    assert stream["bytes"] > 0


def test_readers_are_listed_with_how_far_behind_they_are(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["log", "readers", str(root / "readings")]) == 0
    assert "fraud" in capsys.readouterr().out
    assert main(["log", "readers", str(root / "readings"), "--json", "-"]) == 0
    (reader,) = json.loads(capsys.readouterr().out)
    assert (reader["position"], reader["behind"], reader["keeps_from"]) == (2, 1, 2)


def test_a_reader_is_forgotten_by_name(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["log", "forget", str(root / "readings"), "fruad"]) == 2
    assert "did you mean 'fraud'" in capsys.readouterr().err
    assert main(["log", "forget", str(root / "readings"), "fraud"]) == 0
    assert ReaderRegistry(EmbeddedLog(root / "readings")).readers() == []


def test_rows_that_every_reader_is_past_are_trimmed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = LogConfig(segment_rows=10, file_bytes=200)
    with EmbeddedLog.create(tmp_path / "readings", SCHEMA, config) as log:
        for _ in range(20):
            log.append(pa.record_batch([list(range(10))], schema=SCHEMA))
        assert main(["log", "trim", str(tmp_path / "readings"), "--json", "-"]) == 0
        assert json.loads(capsys.readouterr().out)[0]["trimmed"] == 0, "no reader, nothing goes"
        ReaderRegistry(log).advance("fraud", {0: 150})
    assert main(["log", "trim", str(tmp_path / "readings"), "--json", "-"]) == 0
    (partition,) = json.loads(capsys.readouterr().out)
    assert 0 < partition["trimmed"] == partition["first"] <= 150
    assert partition["end"] == 200
    assert main(["log", "trim", str(tmp_path / "readings")]) == 0
    assert "trimmed" in capsys.readouterr().out


def test_a_place_that_is_no_log_is_one_line_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["log", "streams", str(tmp_path / "nothing")]) == 2
    assert main(["log", "readers", str(tmp_path)]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 2
    assert "a log is a directory of streams" in errors[0]
    assert "a stream has been created" in errors[1]


def test_a_paced_stream_is_listed_with_what_has_arrived(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    schedule = Schedule(np.array([2, 2]), np.array([0, 10**17]), np.array([0, 10**17]))
    paced = create_paced(root / "burst", [pa.record_batch([[1, 2]], schema=SCHEMA)], schedule)
    paced.begin(1.0)
    ReaderRegistry(paced).advance("fraud", {0: 1})
    assert main(["log", "streams", str(root), "--json", "-"]) == 0
    burst, readings = json.loads(capsys.readouterr().out)
    assert (burst["stream"], burst["rows"], burst["readers"], burst["bytes"] > 0) == ("burst", 2, 1, True)
    assert readings["stream"] == "readings"
    assert main(["log", "readers", str(root / "burst"), "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["behind"] == 1
    assert main(["log", "forget", str(root / "burst"), "fraud"]) == 0


@pytest.mark.briefly("15")
@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_a_log_is_served_until_it_is_told_to_stop(root: Path, tmp_path: Path, stop: signal.Signals) -> None:
    (tmp_path / "token").write_text("secret\n")
    command = ["log", "serve", str(root), "--token-file", str(tmp_path / "token")]
    code = f"import sys; from penstock.cli import main; sys.exit(main({command!r}))"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as served:
        assert served.stdout is not None
        said = served.stdout.readline()
        assert said.startswith(f"serving {root} at grpc://127.0.0.1:")
        with FlightLog(said.split()[-1], "readings", "secret") as log:
            assert log.append(pa.record_batch([[4]], schema=SCHEMA)) == 4
        served.send_signal(stop)
        assert served.stdout.read() == "stopped\n"
        assert served.wait(PATIENCE_S) == 0
    with EmbeddedLog(root / "readings") as log:
        assert log.append(pa.record_batch([[5]], schema=SCHEMA)) == 5


@pytest.mark.parametrize(
    ("option", "said"),
    [([], r", token in .*/\.flight-\d+\n"), (["--no-token"], ", to every user of this machine\n")],
)
def test_a_server_says_who_may_call_it(root: Path, option: list[str], said: str) -> None:
    command = ["log", "serve", str(root), *option]
    code = f"import sys; from penstock.cli import main; sys.exit(main({command!r}))"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as served:
        assert served.stdout is not None
        line = served.stdout.readline()
        try:
            assert re.fullmatch(rf"serving {root} at grpc://127\.0\.0\.1:\d+{said}", line)
            with FlightLog(line.split()[3].rstrip(","), "readings") as log:
                assert log.end() == 3
        finally:
            served.send_signal(signal.SIGTERM)
        assert served.wait(60) == 0
    assert not list(root.glob(".flight-*"))


def test_serving_what_cannot_be_served_is_one_line_and_exit_code_2(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").write_text("\n")
    assert main(["log", "serve", str(root), "--token-file", str(tmp_path / "empty")]) == 2
    assert main(["log", "serve", str(root), "--token-file", str(tmp_path / "missing")]) == 2
    assert main(["log", "serve", str(root), "--host", "0.0.0.0"]) == 2
    assert main(["log", "serve", str(root), "--fsync", "nevr"]) == 2
    (tmp_path / "token").write_text("secret\n")
    assert main(["log", "serve", str(root), "--no-token", "--token-file", str(tmp_path / "token")]) == 2
    assert main(["log", "serve", str(root), "--no-token", "--host", "0.0.0.0"]) == 2
    empty, missing, host, fsync, both, open_host = capsys.readouterr().err.splitlines()
    assert "a token file holds a token" in empty
    assert "No such file" in missing
    assert "a log that other machines can reach has a token" in host
    assert "did you mean 'never'" in fsync
    assert "a log is served with a token or without; got: both" in both
    assert "a log that other machines can reach has a token" in open_host


@pytest.mark.parametrize(
    "content", ["{", "[]", '{"format": 1}', '{"format": 1, "config": {"x": 1}}', "\udcff"]
)
def test_a_stream_that_cannot_be_opened_is_said_and_the_others_are_listed(
    root: Path, capsys: pytest.CaptureFixture[str], content: str
) -> None:
    (root / "broken").mkdir()
    (root / "broken" / "stream.json").write_bytes(content.encode(errors="surrogateescape"))
    assert main(["log", "streams", str(root), "--json", "-"]) == 0
    told = capsys.readouterr()
    broken, readings = json.loads(told.out)
    assert (broken["stream"], readings["stream"], readings["rows"]) == ("broken", "readings", 3)
    assert "hint:" in broken["error"]
    assert f"broken: {broken['error']}" in told.err
    with FlightServer(root) as server, FlightLog(server.address, "readings") as log:
        assert [info.descriptor.path for info in log._client.list_flights(b"", log._options)] == [
            [b"readings"]
        ]
