"""`penstock run` as a user types it: a whole run, a stop by signal, and mistakes in one line."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from penstock.cli import main
from penstock.control.rundir import read_run
from penstock.log.embedded import EmbeddedLog
from penstock.log.writer import LogConfig

PIPELINE = """
log: log
spark: {master: "local[1]", settings: {spark.sql.parquet.compression.codec: gzip}}
classes: {gold: {target: 3s, priority: 3}, bulk: {target: 10s}}
streams:
  readings:
    schema: {device: long, celsius: double, at: timestamp}
    event_time: at
    key: device
    partitions: 2
    source: {kind: generator, rate: 3000, values: {device: {low: 0, high: 99}}}
  alerts:
    schema: {device: long, raised: timestamp}
    event_time: raised
    source: {kind: replay, scale: 0.5, loop: true, values: {device: {low: 0, high: 99}}}
  hot: {schema: {device: long, celsius: double, at: timestamp}}
queries:
  find_hot:
    class: gold
    sql: SELECT device, celsius, at FROM readings WHERE celsius > 0.9
    sink: {kind: log, stream: hot}
  alerts_with_readings:
    class: bulk
    sql: |
      SELECT a.device, a.raised, r.celsius FROM alerts a JOIN readings r
      ON r.device = a.device AND r.at BETWEEN a.raised - INTERVAL 5 SECONDS AND a.raised
    sink: {kind: parquet, path: joined}
"""

HOT = "sql: SELECT device, celsius, at FROM readings WHERE celsius > 0.9"


@pytest.fixture
def pipeline(tmp_path: Path) -> Path:
    (tmp_path / "small.yaml").write_text(PIPELINE)
    return tmp_path / "small.yaml"


def started(*arguments: object, command: str = "run") -> subprocess.Popen[str]:
    words = [sys.executable, "-c", "import penstock.cli, sys; sys.exit(penstock.cli.main())"]
    return subprocess.Popen(
        [*words, command, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def books_balance(report: dict[str, Any]) -> bool:
    parts = [*report["classes"].values(), *report["queries"].values()]
    return all(part["offered"] == part["admitted"] + part["shed"] + part["waiting"] for part in parts)


@pytest.mark.spark
@pytest.mark.slow
def test_a_pipeline_with_two_classes_and_a_join_runs_and_reports(tmp_path: Path, pipeline: Path) -> None:
    process = started(pipeline, "--seconds", 10, "--run", tmp_path / "run", "--json", "-")
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    report = json.loads(out)
    assert report["ok"]
    assert books_balance(report)
    rows = {name: stream["rows"] for name, stream in report["streams"].items()}
    assert report["queries"]["find_hot"]["offered"] == rows["readings"]
    assert report["queries"]["alerts_with_readings"]["offered"] == rows["readings"] + rows["alerts"]
    assert "find_hot: class gold, log sink, exactly once" in err
    assert "p95" in err
    hot = EmbeddedLog(tmp_path / "log" / "hot")
    found = pa.Table.from_batches([hot.read(segment) for segment in hot.headers(0, 0, hot.end())])
    assert 0 < found.num_rows <= report["queries"]["find_hot"]["admitted"]
    assert min(found.column("celsius").to_pylist()) > 0.9
    joined = ds.dataset(tmp_path / "joined", format="parquet").to_table(["device", "raised", "celsius"])
    assert joined.num_rows > 0
    assert all(path.name.endswith(".gz.parquet") for path in (tmp_path / "joined").glob("*.parquet"))
    recorded = read_run(tmp_path / "run")
    assert not recorded.truncated
    assert {observation.cls for observation in recorded.observations} == {"gold", "bulk"}
    assert main(["replay", str(tmp_path / "run")]) == 0  # the same decisions


@pytest.mark.spark
@pytest.mark.slow
def test_a_plan_says_which_target_cannot_be_met_and_leaves_nothing_behind(
    tmp_path: Path, pipeline: Path
) -> None:
    changes = ["--set", "classes.gold.target=1ms", "--seconds", "30s"]
    process = started(pipeline, *changes, "--json", "-", command="plan")
    out, err = process.communicate(timeout=180)
    assert process.returncode == 1, err
    classes = json.loads(out)["classes"]
    assert classes["gold"]["feasible"] is False, (classes, err)
    assert set(classes["bulk"]["queries"]) == {"alerts_with_readings"}
    assert "no allocation meets its target of 0.001 s" in err
    assert sorted(path.name for path in tmp_path.iterdir()) == [pipeline.name]


@pytest.mark.spark
@pytest.mark.slow
def test_a_signal_stops_a_run_and_a_dry_run_sheds_nothing(tmp_path: Path, pipeline: Path) -> None:
    changes = ["--set", "streams.readings.source.rate=20000", "--set", "classes.gold.target=1s"]
    process = started(pipeline, "--dry-run", "--json", tmp_path / "report.json", *changes)
    assert process.stdout is not None
    for line in process.stdout:
        if "waiting" in line:  # the first status
            break
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert "gold (dry run)" in out
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["classes"]["gold"]["target_s"] == 1.0
    assert books_balance(report)
    assert [cls["shed"] for cls in report["classes"].values()] == [0, 0]
    (run,) = (tmp_path / "runs").iterdir()
    assert run.name.startswith("small-")
    assert Path(report["run"]) == run


@pytest.mark.parametrize(
    ("change", "arguments", "message"),
    [
        (("target: 3s", "targt: 3s"), [], "did you mean 'target'?"),
        (("class: gold", "class: golden"), [], "queries.find_hot.class must be one of bulk, gold"),
        (("kind: replay", "kind: replay, trace: no.txt"), [], "streams.alerts.source.trace must be a file"),
        (
            (HOT, "function: no_such:f\n    streams: [readings]"),
            [],
            "ModuleNotFoundError: No module named 'no_such'",
        ),
        (("", ""), ["--set", "classes.gold.target"], "a change has a key and a value"),
        (("", ""), ["--set", "classes.gold.target=soon"], "classes.gold.target must be a number with a unit"),
        (("", ""), ["--set", "log.x=1"], "log of log.x is a mapping"),
        (("", ""), ["--seconds", "soon"], "--seconds must be a number with a unit"),
        (("", ""), ["--run", "{tmp}"], "a run is recorded in a new or empty directory"),
        (("celsius: double, at", "celsius: float, at"), [], "got celsius is float, not double"),
        (
            ("partitions: 2", "partitions: 3"),
            [],
            "stream readings has partitions 2 since it was created; got 3",
        ),
        (("queries:\n", "  cold: {}\nqueries:\n"), [], "stream cold is in the log, or has a schema"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    tmp_path: Path,
    pipeline: Path,
    capsys: pytest.CaptureFixture[str],
    change: tuple[str, str],
    arguments: list[str],
    message: str,
) -> None:
    schema = pa.schema([("device", pa.int64()), ("celsius", pa.float64()), ("at", pa.timestamp("us", "UTC"))])
    EmbeddedLog.create(tmp_path / "log" / "readings", schema, LogConfig(partitions=2, key="device")).close()
    pipeline.write_text(PIPELINE.replace(*change, 1) if change[0] else PIPELINE)
    given = [argument.replace("{tmp}", str(tmp_path)) for argument in arguments]
    assert main(["run", str(pipeline), *given]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == 1


def test_a_trace_that_is_no_trace_is_one_line(
    tmp_path: Path, pipeline: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "no.txt").write_text("soon\n")
    assert main(["run", str(pipeline), "--set", f"streams.alerts.source.trace={tmp_path / 'no.txt'}"]) == 2
    assert "an arrival time must be a number; got 'soon'" in capsys.readouterr().err
