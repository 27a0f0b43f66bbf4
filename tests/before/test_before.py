"""What an earlier Penstock wrote goes on: small files that were made before control and plans were rebuilt.

`data` has a log with a reader's journal, offsets of every kind of plan with the rows that they kept, a run
directory, and the checkpoint of a query that had read all 1,000 rows.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.segments import headers, read

from penstock.cli import main
from penstock.grants.journal import read_journal
from penstock.grants.offset import Offset
from penstock.grants.selection import grant_books, read_range, select, split_among_tasks
from penstock.streams.embedded.log import EmbeddedLog
from penstock.streams.opening import open_stream
from penstock.vocabulary.status import Status

DATA = Path(__file__).parent / "data"
OFFSETS = [json.loads(line) for line in (DATA / "offsets.jsonl").read_text().splitlines()]


@pytest.fixture
def log(tmp_path: Path) -> EmbeddedLog:
    shutil.copytree(DATA / "log", tmp_path / "log")
    return EmbeddedLog(tmp_path / "log" / "readings")


@pytest.mark.parametrize("made", OFFSETS, ids=[made["plan"] for made in OFFSETS])
def test_an_offset_keeps_the_rows_that_it_kept(log: EmbeddedLog, made: dict[str, Any]) -> None:
    offset = Offset.from_json(made["offset"])
    assert json.dumps(offset.to_json()) == json.dumps(made["offset"]), "byte for byte"
    selections = select(log, offset)
    assert grant_books(log, offset, selections) == offset.books
    pieces = (
        piece
        for share in split_among_tasks(selections, 0, 1, 1)
        for stretch in share
        for piece in read_range(log, offset.plan, stretch)
    )
    assert [position for piece in pieces for position in piece.positions.tolist()] == made["kept"]


def test_every_kind_of_plan_is_among_them() -> None:
    units = {made["offset"]["plan"].get("unit", "row") for made in OFFSETS}
    assert units == {"row", "segment", "key", "chosen", "utility", "window"}


def test_a_journal_is_read(log: EmbeddedLog) -> None:
    (journal,) = (log.directory / "plans").glob("*.jsonl")
    entries = read_journal(journal).logged()
    assert max(entry.offset.end[0] for entry in entries) == 1000


def test_a_run_is_replayed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(DATA / "run"), "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["decisions"] == found["identical"] > 0


def test_the_log_is_opened_and_appended_to(log: EmbeddedLog) -> None:
    reopened = open_stream(log.directory)
    assert (reopened.end(), reopened.key_column, reopened.key_buckets) == (1000, "device", log.key_buckets)
    with log:
        log.append(read(log, headers(log, 0, 0, 1)[0]).drop_columns(["_arrival"]))
        assert log.end() == 1050


def kept(found: Any, said: Any) -> Any:
    """What was found, without keys that the earlier report did not have."""
    if not isinstance(said, dict):
        return found
    return {key: kept(found[key], value) for key, value in said.items() if key in found}


def test_a_report_is_read_and_keeps_all_that_it_says() -> None:
    report = json.loads((DATA / "run" / "report.json").read_text())
    found = Status.from_json(report).to_json()["classes"]["gold"]
    for key, value in report["classes"]["gold"].items():
        if "delay" not in key and "since_mark" not in key:  # of percentiles the bins are made up
            assert kept(found[key], value) == value, key
    assert found["delay"]["count"] == report["classes"]["gold"]["delay"]["count"] == 1000
