"""`penstock backfill` as a user types it: what lies in the lanes, and what it refuses."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from penstock.cli import main
from penstock.cli.backfill import summary
from penstock.grants.journal import JournalWriter
from penstock.grants.offset import Books, Offset
from penstock.grants.plans import KEEP_ALL
from penstock.grants.selection import grant_books, select
from penstock.pipeline.spec.windows import SqlWindow, window_in
from penstock.streams.embedded.log import EmbeddedLog
from penstock.streams.registry import ReaderRegistry

SCHEMA = pa.schema([("device", pa.int64()), ("at", pa.timestamp("us", tz="UTC"))])
READER = "counts-0123456789ab"

PIPELINE = """
log: log
classes: {gold: {target: 2s, shed_lane: true}}
streams:
  readings: {schema: {device: long, at: timestamp}, event_time: at, lateness: 1s}
  others: {schema: {device: long, at: timestamp}, event_time: at}
queries:
  counts:
    class: gold
    sql: SELECT window, device, count(*) AS rows FROM readings GROUP BY window(at, '10 seconds'), device
    sink: {kind: parquet, path: results/counts}
  shown: {class: gold, sql: SELECT device FROM readings}
  joined: {class: gold, sql: SELECT r.device FROM readings r JOIN others o ON r.device = o.device}
"""


def shed_pipeline(tmp_path: Path) -> Path:
    """A pipeline whose query `counts` has shed its first 100 rows of 400 as late, a row a second."""
    (tmp_path / "pipeline.yaml").write_text(PIPELINE)
    with EmbeddedLog.create(tmp_path / "log" / "readings", SCHEMA) as log:
        at = pa.array(np.arange(400) * 1_000_000, SCHEMA.field("at").type)
        log.append(pa.record_batch([pa.array(np.arange(400) % 2), at], schema=SCHEMA))
        draft = Offset.initial(READER, {0: 0}).advanced({0: 400}, {0: 100}, KEEP_ALL, Books())
        offset = replace(draft, books=grant_books(log, draft, select(log, draft)))
        journal = JournalWriter(tmp_path / "log" / "readings" / "plans", READER)
        journal.proposed(offset)
        journal.planned(offset)
        journal.close()
        ReaderRegistry(log).advance(READER, {0: 400}, {0: 0})
    return tmp_path / "pipeline.yaml"


@pytest.fixture
def pipeline(tmp_path: Path) -> Path:
    return shed_pipeline(tmp_path)


def test_lanes_are_listed_with_rows_and_age(pipeline: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["backfill", "--log", str(pipeline.parent / "log"), "--list", "--json", "-"]) == 0
    (lane,) = json.loads(capsys.readouterr().out)
    assert (lane["stream"], lane["reader"], lane["rows"], lane["late"]) == ("readings", READER, 100, 100)
    assert (lane["gone"], lane["pinned"], lane["backfilled"], lane["unfinished"]) == (0, True, 0, False)
    assert (lane["lost"], lane["age_s"] >= 0) == (0, True)


def test_a_lane_that_lost_rows_is_listed(pipeline: Path, capsys: pytest.CaptureFixture[str]) -> None:
    index = pipeline.parent / "log" / "readings" / "p0000" / "index"
    os.truncate(index, 0)
    assert main(["backfill", "--log", str(pipeline.parent / "log"), "--list", "--json", "-"]) == 0
    (lane,) = json.loads(capsys.readouterr().out)
    assert (lane["rows"], lane["lost"], lane["gone"], lane["age_s"]) == (100, 100, 0, None)


@pytest.mark.parametrize("bad", ["lanes", "plans"])
def test_a_lane_that_cannot_be_read_does_not_hide_the_others(
    pipeline: Path, capsys: pytest.CaptureFixture[str], bad: str
) -> None:
    stream = pipeline.parent / "log" / "readings"
    for kind in ("plans/{}.jsonl", "readers/{}.json"):
        shutil.copy(stream / kind.format(READER), stream / kind.format("other-0123456789ab"))
    (stream / "lanes").mkdir()
    (stream / "lanes" / f"{READER}.json").write_text("{")
    if bad == "plans":
        (stream / "plans" / f"{READER}.jsonl").write_text('{"proposed": {"penstock": 99}}\n')
    assert main(["backfill", "--log", str(stream.parent), "--list", "--json", "-"]) == 0
    shown = capsys.readouterr()
    refused, other = json.loads(shown.out)
    assert (refused["reader"], refused["rows"]) == (READER, None)
    assert refused["error"].startswith("expected: ")
    assert (other["reader"], other["rows"], other["error"]) == ("other-0123456789ab", 100, None)
    assert refused.keys() == other.keys()
    assert f"readings, {READER}: expected: " in shown.err


def test_a_dry_run_says_what_is_in_the_lane(pipeline: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["backfill", str(pipeline), "--query", "counts", "--dry-run"]) == 0
    assert READER in capsys.readouterr().out
    assert not (pipeline.parent / "results").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--list"], "--list needs a log"),
        (["--log", "nowhere", "--list"], "a log is a directory of streams"),
        (["PIPELINE"], "got: no query"),
        (["--query", "counts"], "got: no pipeline"),
        (["PIPELINE", "--query", "count"], "did you mean 'counts'"),
        (["PIPELINE", "--query", "joined"], "reads one stream; got: joined, which reads readings, others"),
        (["PIPELINE", "--query", "shown", "--dry-run"], "a query or reader of the log"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    pipeline: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    given = [str(pipeline) if argument == "PIPELINE" else argument for argument in arguments]
    assert main(["backfill", *given]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("sql", "window"),
    [
        ("SELECT device FROM readings", None),
        ("SELECT 1 FROM r GROUP BY window(at, '10 seconds'), x", SqlWindow("at", 10)),
        (
            "SELECT window.start AS s FROM r GROUP BY WINDOW ( r.`at`, '1 minute', '500 milliseconds' )",
            SqlWindow("at", 60, 0.5, "s"),
        ),
        (
            "SELECT 1 FROM r -- window(at, '1 day')\nGROUP BY window(at, '1 hour 30 minutes')",
            SqlWindow("at", 5400),
        ),
        ("SELECT window(at, '1 day'), window(at, '1 hour') FROM r", None),
    ],
)
def test_the_windows_of_a_query_are_told_by_its_sql(sql: str, window: SqlWindow | None) -> None:
    assert window_in(sql) == window


def test_the_summary_says_what_is_gone_and_what_stays() -> None:
    from penstock.backfill.work import Backfilled

    assert summary(Backfilled("hot-1", "parquet here")) == "hot-1: nothing in the lane"
    done = Backfilled("hot-1", "parquet here", 10, 5, 3, (2,), 4, 1, 6, 7)
    assert summary(done) == (
        "hot-1: 10 rows run, 3 results to parquet here; revision 2; 4 windows computed anew; "
        "5 rows are gone: they were trimmed before; 1 windows left as they were: rows of them were trimmed; "
        "7 rows stay in the lane: 6 windows are still open; --ended takes them too"
    )
