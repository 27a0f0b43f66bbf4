"""What drivers tell the control plane: whose answers are windows; and one that several of them share."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.spark.helpers import create, fill, ids, to_memory, until, windows

import penstock
from penstock.control.client import ControlClient
from penstock.spark.flow import Flow

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
        assert served.wait(30) == 0


def names(status: dict[str, Any]) -> set[str]:
    return {q["name"] for cls in status["classes"].values() for q in cls["queries"].values() if q["readers"]}


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
        assert staying.drain()
        assert leaving.drain()
        assert {"kept", "gone"} <= names(staying.status())
        leaving.stop()
        assert kept.isActive
        fill(log, range(1000, 2000))
        assert staying.drain()
        assert ids(spark.table("kept_by_shared")) == list(range(2000))
        assert ids(spark.table("gone_from_shared")) == list(range(1000))
    assert ControlClient(address).request({"op": "status"})["status"]["slots"] == 1, "it outlives them"


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
        assert flow.drain()
        until(lambda: all(query.recentProgress for query in started), "batches")
        gold, plain = (flow.status()["classes"][name] for name in ("gold", "plain"))
    for one in (gold, plain):
        assert one["delay"]["count"] == one["result_delay"]["count"] == 3000
    assert gold["result_delay"]["mean_s"] > gold["delay"]["mean_s"]
    assert plain["result_delay"] == plain["delay"]
