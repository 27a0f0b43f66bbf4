"""Relations of a pipeline on Spark: changes in the log are all read, beside a governed stream."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from tests.cql.brute import US

from penstock.cli import main
from penstock.pipeline.run.build import build_queries, load_functions, prepare_streams
from penstock.pipeline.run.runner import run_pipeline
from penstock.pipeline.spec.load import load_pipeline
from penstock.spark.driver.flow import attach
from penstock.streams.embedded.log import EmbeddedLog

pytestmark = pytest.mark.spark

SECOND_0 = 1_700_000_000
READINGS = {"schema": {"device": "long", "value": "double", "at": "timestamp"}, "event_time": "at"}
ROOMS = {
    "schema": {"id": "long", "name": "string", "op": "string", "at": "timestamp"},
    "event_time": "at",
    "changes": {"sign": "op", "key": ["id"]},
}
STAMP = pa.timestamp("us", "UTC")


def spec(tmp_path: Path) -> dict[str, Any]:
    return {
        "log": str(tmp_path / "log"),
        "classes": {"gold": {"target": "2s"}},
        "streams": {"readings": READINGS, "rooms": ROOMS},
        "queries": {
            "named": {
                "class": "gold",
                "cql": "SELECT name, value FROM readings [NOW], rooms WHERE device = id",
                "answers": "relation",
                "sink": {"kind": "parquet", "path": str(tmp_path / "named")},
                "shuffle_partitions": 1,
                "checkpoint": str(tmp_path / "checkpoint"),
            }
        },
    }


def stamps(seconds: list[int]) -> pa.Array:
    return pa.array([(SECOND_0 + second) * US for second in seconds], STAMP)


def append(tmp_path: Path, stream: str, columns: dict[str, Any], at: list[int]) -> None:
    with EmbeddedLog(tmp_path / "log" / stream) as log:
        log.append(pa.record_batch({**columns, "at": stamps(at)}))


def run_to_the_end(spark: SparkSession, tmp_path: Path) -> set[tuple[int, str, float]]:
    """Runs what is there now; gives all answers so far: second, name, value."""
    config = load_pipeline(spec(tmp_path))
    with attach(spark, config.flow_config()) as flow:
        (built,) = build_queries(flow, config, load_functions(config), tmp_path)
        writer = built.result.writeStream.format("parquet").option("path", str(tmp_path / "named"))
        writer = writer.option("checkpointLocation", built.checkpoint).trigger(availableNow=True)
        writer.start().awaitTermination()
        rows = (
            spark.read.schema(built.result.schema).parquet(str(tmp_path / "named")).where("_d > 0").collect()
        )
    assert all(row["sic"] == 1.0 for row in rows)
    return {(row["_t"] // US - SECOND_0, row["name"], row["value"]) for row in rows}


def test_changes_in_the_log_are_joined_with_a_governed_stream_and_survive_a_restart(
    spark: SparkSession, tmp_path: Path
) -> None:
    prepare_streams(load_pipeline(spec(tmp_path)))
    changes = {"id": [1, 2, 1, 2], "name": ["hall", "lab", "foyer", None], "op": ["+", "+", "+", "-"]}
    append(tmp_path, "rooms", changes, [0, 0, 10, 20])
    seconds = [1, 5, 11, 19, 21, 25, 40]
    readings = {"device": [1, 2, 1, 2, 1, 2, 1], "value": [float(second) for second in seconds]}
    append(tmp_path, "readings", readings, seconds)
    first = {(1, "hall", 1.0), (5, "lab", 5.0), (11, "foyer", 11.0), (19, "lab", 19.0), (21, "foyer", 21.0)}
    assert run_to_the_end(spark, tmp_path) - {(40, "foyer", 40.0)} == first
    # a relation that was silent for long holds nobody up, and is still there
    append(tmp_path, "readings", {"device": [1, 2, 1], "value": [50.0, 51.0, 90.0]}, [50, 51, 90])
    second = run_to_the_end(spark, tmp_path) - {(90, "foyer", 90.0)}
    assert second == first | {(40, "foyer", 40.0), (50, "foyer", 50.0)}
    # a change that comes too late counts from when it comes, and a row that is no change is left out
    append(
        tmp_path, "rooms", {"id": [2, 1, 1], "name": ["attic", "x", None], "op": ["+", "?", "-"]}, [30, 1, 95]
    )
    append(
        tmp_path, "readings", {"device": [2, 1, 1, 2], "value": [91.0, 92.0, 96.0, 120.0]}, [91, 92, 96, 120]
    )
    third = run_to_the_end(spark, tmp_path) - {(120, "attic", 120.0)}
    assert third == second | {(90, "foyer", 90.0), (91, "attic", 91.0), (92, "foyer", 92.0)}


def test_a_pipeline_that_runs_reads_changes_with_the_grants_of_its_query(
    spark: SparkSession, tmp_path: Path
) -> None:
    raw = spec(tmp_path)
    raw["streams"]["readings"] = {
        **READINGS,
        "source": {"kind": "generator", "rate": 500, "values": {"device": {"choices": [1, 2]}}},
    }
    raw["streams"]["rooms"] = {**ROOMS, "event_time": None}  # by arrival
    raw["queries"]["named"] |= {
        "sink": "memory",
        "cql": "SELECT DISTINCT name FROM readings [NOW], rooms WHERE device = id",
    }
    raw["queries"]["named"].pop("answers")
    config = load_pipeline(raw)
    prepare_streams(config)
    append(
        tmp_path, "rooms", {"id": [1, 2, 2], "name": ["hall", "lab", None], "op": ["+", "+", "-"]}, [0, 0, 0]
    )
    report = run_pipeline(config, 4.0, run=tmp_path / "run", spark=spark, drain_s=30.0)
    assert report["ok"], report["errors"]
    found = spark.table("named")
    assert {row["name"] for row in found.collect()} == {"hall"}
    assert found.where("_d > 0").count() > 0
    query = report["queries"]["named"]
    assert query["offered"] == query["admitted"] + query["shed"] + query["waiting"]
    assert query["admitted"] > 0


def test_a_query_over_a_relation_in_files_prints_its_answer(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Kept:
        """The tests' session, which a command does not stop."""

        def __getattr__(self, name: str) -> Any:
            return (lambda: None) if name == "stop" else getattr(spark, name)

    monkeypatch.setattr("penstock.spark.session.session", lambda **_: Kept())
    (tmp_path / "R1.dat").write_text("i,b,i\n1,+,7\n2,+,8\n3,-,7\n")
    (tmp_path / "q.cql").write_text(
        "REGISTER RELATION R (A int) FROM 'R1'; SELECT count(*) AS n, sum(A) / 2 AS half FROM R"
    )
    assert main(["cql", "run", str(tmp_path / "q.cql"), "--json", str(tmp_path / "out.json")]) == 0
    rows = json.loads((tmp_path / "out.json").read_text())["queries"][0]["rows"]
    assert [(r["_t"] // US, r["n"], r["half"]) for r in rows if r["_d"] > 0] == [
        (1, 1, 3),
        (2, 2, 7),
        (3, 1, 4),
    ]
    capsys.readouterr()
