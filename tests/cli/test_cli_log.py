"""`penstock log` as a user types it."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.cli import main
from penstock.log.embedded import EmbeddedLog
from penstock.log.readers import ReaderRegistry

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


def test_a_place_that_is_no_log_is_one_line_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["log", "streams", str(tmp_path / "nothing")]) == 2
    assert main(["log", "readers", str(tmp_path)]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 2
    assert "a log is a directory of streams" in errors[0]
    assert "a stream has been created" in errors[1]
