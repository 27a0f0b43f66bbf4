"""`penstock run`: mistakes in one line; `tests/spark/test_commands.py` has a whole run."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from penstock.cli import main
from penstock.streams.embedded.log import EmbeddedLog
from penstock.streams.layout import LogConfig

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
        (("celsius: double, at", "celsius: float, at"), [], "got: celsius is float, not double"),
        (
            ("partitions: 2", "partitions: 3"),
            [],
            "stream readings has partitions 2 since it was created; got: 3",
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
    assert "an arrival time must be a number; got: 'soon'" in capsys.readouterr().err
