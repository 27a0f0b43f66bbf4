"""`penstock cql run` and `explain --spark`, on the tests' session."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.spark.helpers import KeptSession

from penstock.cli import main

pytestmark = pytest.mark.spark


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
