"""What the demo says of its own bounds."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from penstock.calibration.judging import Capacity
from penstock.calibration.measured import Batch
from penstock.cli import main
from penstock.demo import run as demo
from penstock.demo.run import CLASSES, GOVERNED_S, ClassRun, DemoResult
from penstock.grants.offset import Offset
from penstock.streams.paced.stream import PacedLog
from penstock.vocabulary.errors import UnmetError

CAPACITY = Capacity(300.0, 750, 2.5, 1.0)


def result(delay_s: float = 4.0, oldest_s: float = 2.0, rows: int = 100) -> DemoResult:
    """A run of batches of a second each, a class after the other, with the same delay of all rows."""
    status: dict[str, Any] = dict.fromkeys(("offered", "admitted", "shed", "waiting", "share"), 1)
    runs = {}
    for first, name in enumerate(CLASSES):
        done = [
            Batch(at, at + 1.0, rows, np.array([at + 1.0 - delay_s]), np.ones(1), Offset.initial("r", {}))
            for at in np.arange(float(first), GOVERNED_S, len(CLASSES)).tolist()
        ]
        runs[name] = ClassRun(done, 5.0, 1, oldest_s, status=status)
    return DemoResult(CAPACITY, CAPACITY, runs, 0.0, runs, 0.0)


def test_a_demo_that_keeps_its_bounds_says_nothing() -> None:
    good = result(rows=290)
    assert good.admitted_to_capacity == pytest.approx(290 / 300)
    assert good.missed == []


def test_a_demo_says_which_bound_it_missed() -> None:
    assert result(delay_s=5.5, rows=290).missed == [f"{name}'s p95: 5.50 s of 5 s" for name in CLASSES]
    assert result(oldest_s=6.0, rows=290).missed[0] == "gold's oldest waiting row: 6.00 s of 5 s"
    assert result(rows=200).missed == ["admitted 0.67 of the capacity, at least 0.8"]


def test_a_demo_without_an_overload_says_so_instead_of_showing_a_table() -> None:
    """What is processed later tells: probes of 1,433 and 718 rows/s, and then 3,731 rows/s go through."""
    low = replace(result(rows=3731), capacity=replace(CAPACITY, rows_per_s=1433.0))
    low = replace(low, capacity_after=replace(CAPACITY, rows_per_s=718.0))
    assert low.admitted_to_capacity == pytest.approx(3.47, abs=0.01)
    assert low.overload == pytest.approx(0.96, abs=0.01)
    with pytest.raises(UnmetError) as said:
        low.check_overload()
    assert str(said.value) == (
        "expected: the demo offers at least 1.5 times as many rows as the machine can process; "
        "got: 3,582 rows/s offered, 3,731 rows/s processed; capacity measured as 1,433 rows/s before and 718 "
        "after. There is no table, because without an overload it shows nothing; "
        "hint: run it again when nothing else runs on this machine"
    )


def test_a_demo_without_an_overload_leaves_its_report_and_says_where_its_run_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    low = replace(result(rows=3731), capacity=replace(CAPACITY, rows_per_s=1433.0))
    monkeypatch.setattr("penstock.cli.demo._run", lambda console, folder: low)
    wanted = tmp_path / "demo.json"
    assert main(["demo", "--runs", str(tmp_path / "runs"), "--json", str(wanted)]) == 2
    printed = capsys.readouterr()
    assert "3,582 rows/s offered" in printed.err
    assert f"run:   {tmp_path / 'runs' / 'demo-001' / 'run'}" in printed.out
    assert json.loads((tmp_path / "runs" / "demo-001" / "report.json").read_text())["overload"] < 1
    assert not wanted.exists(), "the command can be given again as it is"


def test_a_demo_whose_machine_became_somewhat_faster_still_shows_an_overload() -> None:
    faster = replace(result(rows=290), capacity_after=replace(CAPACITY, rows_per_s=390.0))
    assert faster.overload == pytest.approx(2.5 * 300 / 390)
    faster.check_overload()
    much_faster = replace(faster, capacity_after=replace(CAPACITY, rows_per_s=600.0))
    with pytest.raises(UnmetError, match="750 rows/s offered"):
        much_faster.check_overload()


def test_streams_are_empty_while_plain_queries_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = demo.make_streams(tmp_path, np.linspace(0.0, 1.0, 50), CAPACITY, 1.0)
    logs = {str(root / f"{name}_readings"): PacedLog(root / f"{name}_readings") for name in CLASSES}
    for log in logs.values():
        log.begin(time.time() - 100.0)
    found: list[int] = []

    def read(_: object, directory: Path) -> PacedLog:
        return logs[str(directory)]

    def start(log: PacedLog, _: str) -> mock.Mock:
        found.append(log.end())
        return mock.Mock(recentProgress=[], **{"exception.return_value": None})

    monkeypatch.setattr(demo, "PLAIN_S", 0.0)
    monkeypatch.setattr(demo, "read_ungoverned", read)
    monkeypatch.setattr(demo, "start_query", start)
    demo.run_plain(mock.Mock(), tmp_path, root, lambda status, passed_s: None)
    assert found == [0, 0, 0]
    assert all(log.began_s is not None and log.began_s < time.time() + 60.0 for log in logs.values())
