"""`penstock cql run`, `explain --spark` and `conformance`, on the tests' session."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.spark.helpers import KeptSession

from penstock.cli import main

pytestmark = pytest.mark.spark

CASES = {
    "last": ("SELECT * FROM S [PARTITION BY G ROWS 1]", "[1]:+:1, 5\n[2]:+:2, 5\n[3]:-:1, 5\n[3]:+:1, 7\n"),
    "sums": ("SELECT G, sum(A) FROM S GROUP BY G", "[1]:+:1, 5\n[2]:+:2, 5\n[3]:-:1, 5\n[3]:+:1, 13\n"),
}
"""The second one's last sum is wrong."""
ENDING = {
    "no_such_column": ("SELECT B FROM S", "[1]:+:1\n"),
    "no_answer": ("SELECT A FROM S", None),
    "now": ("RSTREAM(SELECT G FROM S [NOW])", "[1]:+:1\n[2]:+:2\n"),
    "wrong_at_the_end": ("RSTREAM(SELECT G FROM S [NOW])", "[1]:+:1\n[2]:+:2\n[3]:+:8\n"),
}
"""Two cannot be run. The answer of the third lacks its last instant, as STREAM leaves that out."""


@pytest.fixture(autouse=True)
def session(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands run on the tests' session."""
    monkeypatch.setattr("penstock.spark.session.session", lambda **_: KeptSession(spark))


@pytest.fixture
def cql(capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Runs a command here; gives what it prints as JSON."""

    def run(*arguments: str) -> Any:
        assert main(["cql", *arguments, "--json", "-"]) == 0
        return json.loads(capsys.readouterr().out)

    return run


def test_wrong_tuples_of_a_case_are_counted_and_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for part in ("queries", "data", "expected"):
        (tmp_path / part).mkdir()
    (tmp_path / "data" / "S.dat").write_text("i,i,i\n1,1,5\n2,2,5\n3,1,7\n")
    for name, (query, expected) in CASES.items():
        text = f"REGISTER STREAM S (G int, A int) FROM 'S'; {query}"
        (tmp_path / "queries" / f"{name}.cql").write_text(text)
        (tmp_path / "expected" / f"{name}.gz").write_bytes(gzip.compress(expected.encode()))
    report = tmp_path / "report.json"
    command = ["cql", "conformance", str(tmp_path), "--partitions", "2", "--batches", "2"]
    assert main([*command, "--json", str(report)]) == 1
    shown = capsys.readouterr().out
    cases = json.loads(report.read_text())["cases"]
    assert [(c["case"], c["partitions"], c["tuples"], c["missing"], c["extra"]) for c in cases] == [
        ("last", 2, 4, 0, 0),
        ("sums", 2, 4, 1, 1),
    ]
    assert "sums, 2 partitions: missing [3]:+:1, 13" in shown
    assert "sums, 2 partitions: extra [3]:+:1, 12" in shown


def test_a_refused_case_is_a_row_and_the_last_instant_is_compared_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for part in ("queries", "data", "expected"):
        (tmp_path / part).mkdir()
    (tmp_path / "data" / "S.dat").write_text("i,i,i\n1,1,5\n2,2,5\n3,1,7\n")
    for name, (query, expected) in {**ENDING, "last": CASES["last"]}.items():
        text = f"REGISTER STREAM S (G int, A int) FROM 'S'; {query}"
        (tmp_path / "queries" / f"{name}.cql").write_text(text)
        if expected is not None:
            (tmp_path / "expected" / name).write_text(expected)
    report = tmp_path / "report.json"
    command = ["cql", "conformance", str(tmp_path), "--partitions", "1", "--batches", "2"]
    assert main([*command, "--json", str(report)]) == 1
    cases = {case["case"]: case for case in json.loads(report.read_text())["cases"]}
    found = {name: (c["missing"], c["extra"], c["at_end"], c["refused"] is None) for name, c in cases.items()}
    assert found == {
        "last": (0, 0, 0, True),
        "no_answer": (0, 0, 0, False),
        "no_such_column": (0, 0, 0, False),
        "now": (0, 0, 1, True),
        "wrong_at_the_end": (1, 1, 0, True),
    }
    said = capsys.readouterr().out
    assert sum(": refused: " in line for line in said.splitlines()) == 2, "why, of each"
    assert "no_such_column, 1 partitions: refused: " in said
    assert "got 'B'" in said
    assert "has a file no_answer; got none" in said
    assert "now, 1 partitions: at the end [3]:+:1" in said
    assert main([*command, "--case", "now", "--case", "last"]) == 0


def test_queries_run_over_files_and_print_their_answers(tmp_path: Path, cql: Callable[..., Any]) -> None:
    (tmp_path / "readings.csv").write_text(
        "device,value,at\n1,10.0,2026-01-01T00:00:00Z\n"
        "2,20.0,2026-01-01T00:00:30Z\n1,30.0,2026-01-01T00:01:10Z\n"
    )
    (tmp_path / "readings.cql").write_text(
        "REGISTER STREAM readings (device int, value float, at timestamp) FROM 'readings.csv' "
        "TIMESTAMP BY at;"
        "SELECT avg(value) AS mean FROM readings [RANGE 1 MIN SLIDE 1 MIN];"
        "SELECT device, value FROM readings [ROWS 1];"
    )
    by_window, by_tuple = cql("run", str(tmp_path / "readings.cql"), "--batches", "2")["queries"]
    assert by_window["answers"] == "windows"
    assert by_window["rows"] == [
        {"window_start": "2026-01-01T00:00:00+00:00", "window_end": "2026-01-01T00:01:00+00:00", "mean": 15.0}
    ], "the second minute has not ended"
    assert by_tuple["answers"] == "relation"
    assert [(row["device"], row["_d"]) for row in by_tuple["rows"]] == [
        (1, 1),
        (1, -1),
        (2, 1),
        (2, -1),
        (1, 1),
    ]


def test_explain_shows_spark_s_plan_and_which_queries_are_computed_together(
    tmp_path: Path, cql: Callable[..., Any]
) -> None:
    (tmp_path / "q.cql").write_text(
        "REGISTER STREAM readings (device int, value float);"
        "SELECT avg(value) FROM readings [RANGE 1 MIN SLIDE 1 MIN] WHERE device = 1;"
        "SELECT avg(value) FROM readings [RANGE 1 MIN SLIDE 1 MIN] WHERE device = 2;"
        "SELECT device, value FROM readings [ROWS 1];"
    )
    told = cql("explain", str(tmp_path / "q.cql"), "--spark")
    by_window, _, by_tuple = told["queries"]
    assert "StateStoreSave" in by_window["spark"]
    assert "FlatMapGroupsInPandasWithState" in by_tuple["spark"]
    assert told["families"] == [{"1": [1], "2": [2]}]
