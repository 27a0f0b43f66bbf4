"""`penstock plan`: what classes need, measured in a place of its own."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from rich.console import Console
from tests.spark.helpers import LONGEST_S, StopWhen

from penstock.cli import main
from penstock.cli.plan import plan_table
from penstock.pipeline.run.feasibility import plan_pipeline, set_apart
from penstock.pipeline.spec.load import load_pipeline
from penstock.pipeline.spec.sinks import LogSink, NoopSink
from penstock.streams.embedded.log import EmbeddedLog
from penstock.streams.layout import LogConfig
from penstock.vocabulary.errors import InvalidInputError
from penstock.vocabulary.status import Status

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NUMBERS = pa.schema([("n", pa.int64()), ("at", pa.timestamp("us", tz="UTC"))])


def fed(folder: Path, per_s: int, seconds: int, partitions: int = 1) -> None:
    """A stream that others have fed: so many rows a second, until long ago."""
    with EmbeddedLog.create(folder, NUMBERS, LogConfig(partitions=partitions)) as log:
        for p in range(partitions):
            for second in range(seconds):
                n = np.arange(per_s // partitions)
                rows = pa.record_batch([pa.array(n), pa.array(n, NUMBERS.field("at").type)], schema=NUMBERS)
                start_us = 1_000_000 * (1000 + second)
                log.append(rows, p, arrival_us=start_us + np.linspace(0, 999_999, n.size).astype(np.int64))


def spec(tmp_path: Path) -> dict[str, Any]:
    return {
        "log": str(tmp_path / "log"),
        "checkpoints": str(tmp_path / "checkpoints"),
        "classes": {"gold": {"target": "4s", "priority": 3}, "bulk": {"target": "8s"}},
        "streams": {
            "others": {"event_time": "at"},
            "made": {"schema": {"n": "long"}, "source": {"kind": "generator", "rate": 500}},
            "found": {"schema": {"n": "long"}},
        },
        "queries": {
            "find": {
                "class": "gold",
                "sql": "SELECT n FROM others WHERE n % 2 = 0",
                "sink": {"kind": "log", "stream": "found"},
            },
            "keep": {
                "class": "bulk",
                "sql": "SELECT n FROM made",
                "sink": {"kind": "parquet", "path": str(tmp_path / "results")},
            },
        },
    }


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.mark.parametrize("partitions", [1, 2])
def test_a_stream_that_others_feed_is_played_back_at_its_rate(tmp_path: Path, partitions: int) -> None:
    fed(tmp_path / "log" / "others", 600, 90, partitions)
    apart, (played,) = set_apart(load_pipeline(spec(tmp_path)), tmp_path / "apart", 20.0)
    assert played.partitions == partitions
    assert sum(played.total_rows(p) for p in range(partitions)) == pytest.approx(20 * 600, rel=0.03)
    assert played.user_schema.equals(NUMBERS)
    assert played.directory == tmp_path / "apart" / "logs" / "others"
    assert apart.log == tmp_path / "apart" / "logs"
    assert isinstance(apart.queries["keep"].sink, NoopSink), "results are thrown away"
    assert isinstance(apart.queries["find"].sink, LogSink), "but for those that other queries read"
    assert apart.checkpoints is None


def test_a_stream_without_rows_has_no_rate(tmp_path: Path) -> None:
    config = load_pipeline(spec(tmp_path))
    with pytest.raises(InvalidInputError, match=r"others is in the log: its rate .* got: no stream at"):
        set_apart(config, tmp_path / "apart", 20.0)
    EmbeddedLog.create(tmp_path / "log" / "others", NUMBERS).close()
    with pytest.raises(
        InvalidInputError, match="stream others has rows: its rate is taken from them; got: n"
    ):
        set_apart(config, tmp_path / "apart", 20.0)


def test_a_plan_is_measured_touches_nothing_of_the_pipeline_and_says_which_query_failed(
    spark: SparkSession, tmp_path: Path
) -> None:
    fed(tmp_path / "log" / "others", 600, 20)
    pipeline = spec(tmp_path)
    bad = "SELECT n FROM made WHERE raise_error('bad') IS NULL"
    pipeline["queries"]["bad"] = {"class": "bulk", "sql": bad, "sink": "noop"}
    before = files(tmp_path)

    def measured(status: Status) -> bool:
        queries = [query for cls in status.classes.values() for query in cls.queries.values()]
        return all(query.row_s is not None for query in queries if query.name != "bad")

    stop = StopWhen(measured)
    plan = plan_pipeline(load_pipeline(pipeline), LONGEST_S, stop, spark=spark)
    assert stop.held
    assert files(tmp_path) == before
    assert set(plan["errors"]) == {"query bad"}
    gold, bulk = plan["classes"]["gold"], plan["classes"]["bulk"]
    assert (gold["gives"], bulk["gives"]) == (0.75, 0.25)
    assert set(gold["queries"]) == {"find"}
    assert (gold["not_measured"], bulk["not_measured"]) == ([], ["bad"])
    assert gold["feasible"] in (True, False), "by this machine's speed"
    assert bulk["feasible"] is not True, "not known to hold"
    assert any("bad is not measured" in sentence for sentence in bulk["says"])


def test_the_table_of_a_plan_says_which_target_cannot_be_met() -> None:
    cls = {
        "needs": 0.3,
        "gives": 0.6,
        "free": 0.1,
        "shed_fraction": 0.0,
        "feasible": True,
        "not_measured": [],
    }
    lost = {**cls, "needs": None, "feasible": False}
    new = {**cls, "needs": None, "feasible": None, "not_measured": ["q"]}
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(plan_table({"classes": {"gold": cls, "bulk": lost, "new": new}}, "three classes"))
    lines = {line.split()[0]: line for line in console.export_text().splitlines() if line.strip()}
    assert lines["gold"].split() == ["gold", "0.30", "0.60", "0.10", "0", "%", "can", "be", "met"]
    assert "more than all" in lines["bulk"]
    assert "cannot be met" in lines["bulk"]
    assert "not measured" in lines["new"]
    assert "not known" in lines["new"]


@pytest.mark.parametrize("feasible", [True, False, None])
def test_the_command_says_what_a_class_needs_and_exits_1_where_a_target_cannot_be_met(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    feasible: bool | None,
) -> None:
    gold = {"needs": 0.3, "gives": 0.75, "free": 0.1, "shed_fraction": 0.0, "feasible": feasible}
    gold |= {"queries": {"find": 0.3}, "not_measured": [], "says": ["it needs 0.30 of the time"]}
    asked: list[float] = []

    def measured(_: object, seconds: float, *__: object, **___: object) -> dict[str, Any]:
        asked.append(seconds)
        return {"classes": {"gold": gold}, "seconds": seconds, "errors": {}}

    monkeypatch.setattr("penstock.pipeline.run.feasibility.plan_pipeline", measured)
    (tmp_path / "small.yaml").write_text(json.dumps(spec(tmp_path)))
    code = main(["plan", str(tmp_path / "small.yaml"), "--seconds", "30s", "--json", "-"])
    assert (code, asked) == (0 if feasible else 1, [30.0])
    shown = capsys.readouterr()
    assert json.loads(shown.out)["classes"]["gold"]["feasible"] is feasible
    assert "gold: query find needs 0.30" in shown.err
    assert "gold: it needs 0.30 of the time" in shown.err
