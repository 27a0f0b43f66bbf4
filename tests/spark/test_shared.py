"""What drivers tell the control plane: whose answers are windows; and one that several of them share."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.spark.helpers import create, drain, fill, ids, to_files, to_memory, until, windows
from tests.waits import PATIENCE_S

import penstock
from penstock.host.client import ControlClient
from penstock.pipeline.run.runner import run_pipeline
from penstock.pipeline.spec.load import load_pipeline
from penstock.spark.driver.flow import Flow
from penstock.vocabulary.errors import InvalidInputError
from penstock.vocabulary.status import Status

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

CLASSES = {"gold": {"target": "20s"}, "plain": {"target": "20s"}}


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """A control plane of its own, as `penstock control serve` runs it."""
    (tmp_path / "flow.yaml").write_text("log: .\nclasses: {gold: {target: 20s}, plain: {target: 20s}}\n")
    address = f"unix://{tmp_path}/control"
    command = ["control", "serve", str(tmp_path / "flow.yaml"), "--address", address]
    code = f"import sys; from penstock.cli import main; sys.exit(main({command!r}))"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL) as served:
        client = ControlClient(address)
        until(lambda: client.request({"op": "status"}), "the control plane")
        yield address
        client.request({"op": "stop"})
        client.close()
        assert served.wait(PATIENCE_S) == 0


def names(status: Status) -> set[str]:
    return {q.name for cls in status.classes.values() for q in cls.queries.values() if q.readers}


def test_two_flows_share_a_control_plane_and_one_that_stops_leaves_the_other_governed(
    spark: SparkSession, tmp_path: Path, address: str
) -> None:
    log = create(tmp_path / "readings")
    fill(log, range(1000))
    config = {"log": tmp_path, "classes": CLASSES, "address": address}
    with penstock.attach(spark, config) as staying:
        kept = to_memory(staying.read_stream("readings", cls="gold", query="kept"), "kept_by_shared")
        leaving: Flow = penstock.attach(spark, config)
        to_memory(leaving.read_stream("readings", cls="plain", query="gone"), "gone_from_shared")
        drain(staying)
        drain(leaving)
        assert {"kept", "gone"} <= names(staying.status())
        leaving.stop()
        assert kept.isActive
        fill(log, range(1000, 2000))
        drain(staying)
        assert ids(spark.table("kept_by_shared")) == list(range(2000))
        assert ids(spark.table("gone_from_shared")) == list(range(1000))
    assert ControlClient(address).request({"op": "status"})["status"]["slots"] == "auto", "it outlives them"


def test_a_query_that_was_stopped_goes_on_with_its_checkpoint_under_the_next_flow(
    spark: SparkSession, tmp_path: Path, address: str
) -> None:
    log = create(tmp_path / "readings")
    config = {"log": tmp_path, "classes": CLASSES, "address": address}
    for last in (1000, 2000):
        fill(log, range(last - 1000, last))
        with penstock.attach(spark, config) as flow:
            frame = flow.read_stream("readings", cls="gold", query="again")
            query = to_files(frame, tmp_path / "results")
            drain(flow)
            assert query.isActive
    assert ids(spark.read.parquet(str(tmp_path / "results" / "results"))) == list(range(2000))


def test_a_control_plane_that_nobody_serves_is_noticed_when_a_flow_is_attached(
    spark: SparkSession, tmp_path: Path
) -> None:
    config = {"log": tmp_path, "classes": CLASSES, "address": f"unix://{tmp_path}/nobody"}
    with pytest.raises(InvalidInputError, match="the control plane at `address` runs before a flow"):
        penstock.attach(spark, config)


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"run": "used"}, "a run is recorded in a new or empty directory"),
        (
            {"classes": {"gold": {"target": "2s", "manager": "ctrl", "settings": {"shedding": "network"}}}},
            "on Spark rows are shed at the entry",
        ),
    ],
)
def test_what_a_control_plane_would_refuse_at_its_start_is_an_error_of_attach(
    spark: SparkSession, tmp_path: Path, changes: dict[str, Any], rule: str
) -> None:
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "file").touch()
    config = {"log": tmp_path, "classes": CLASSES, **changes}
    if "run" in config:
        config["run"] = tmp_path / config["run"]
    with pytest.raises(InvalidInputError, match=rule):
        penstock.attach(spark, config)


def test_a_name_that_cannot_be_a_readers_is_refused_at_once(spark: SparkSession, tmp_path: Path) -> None:
    create(tmp_path / "readings")
    with penstock.attach(spark, {"log": tmp_path, "classes": CLASSES}) as flow:
        for name in ("my query", "a/b", "x" * 65, "-a"):
            with pytest.raises(InvalidInputError, match="a query's name is up to 64 letters"):
                flow.read_stream("readings", cls="gold", query=name)
            with pytest.raises(InvalidInputError, match="a query's name is up to 64 letters"):
                flow.query(name, cls="gold")


def test_an_answer_of_a_window_is_known_to_leave_with_the_batch_after_its_rows(
    spark: SparkSession, tmp_path: Path
) -> None:
    log = create(tmp_path / "readings")
    fill(log, range(3000))
    with penstock.attach(spark, {"log": tmp_path, "classes": CLASSES}) as flow:
        started = [
            to_memory(windows(flow.read_stream("readings", cls="gold")), "windows_sent"),
            to_memory(flow.read_stream("readings", cls="plain").where("k = 1"), "rows_sent"),
        ]
        drain(flow)
        until(lambda: all(query.recentProgress for query in started), "batches")
        gold, plain = (flow.status().to_json()["classes"][name] for name in ("gold", "plain"))
    for one in (gold, plain):
        assert one["delay"]["count"] == one["result_delay"]["count"] == 3000
    assert gold["result_delay"]["mean_s"] > gold["delay"]["mean_s"]
    assert plain["result_delay"] == plain["delay"]


def pipeline(tmp_path: Path, address: str, name: str, query: str) -> dict[str, Any]:
    """A pipeline of one query at a shared control plane."""
    source = {"kind": "generator", "rate": 500}
    return {
        "log": str(tmp_path / name),
        "address": address,
        "classes": {"gold": CLASSES["gold"]},
        "streams": {"numbers": {"schema": {"n": "long"}, "source": source}},
        "queries": {query: {"class": "gold", "sql": "SELECT n FROM numbers", "sink": "noop"}},
    }


def test_two_pipelines_run_one_after_the_other_at_a_shared_control_plane(
    spark: SparkSession, tmp_path: Path, address: str
) -> None:
    seen: dict[str, list[Status]] = {}
    reports = {}
    for name, query in (("first", "one"), ("second", "two"), ("third", "one")):
        seen[name] = []
        reports[name] = run_pipeline(
            load_pipeline(pipeline(tmp_path, address, name, query)),
            2.0,
            run=tmp_path / f"run-{name}",
            on_status=lambda status, _, name=name: seen[name].append(status),
            drain_s=30.0,
            spark=spark,
        )
    for before, (name, report) in enumerate(reports.items()):
        assert report["ok"], report["errors"]
        assert list(report["classes"]) == ["gold"]
        produced = report["streams"]["numbers"]["rows"]
        (query,) = report["queries"].values()
        gold = report["classes"]["gold"]
        assert gold["offered"] == gold["admitted"] == query["offered"] == produced > 0
        assert gold["others"] == before, "the last queries that ended stay in the status"
        assert all(names(status) <= set(report["queries"]) for status in seen[name])
        assert all(list(status.classes) == ["gold"] for status in seen[name])
