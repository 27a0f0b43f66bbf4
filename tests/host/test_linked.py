"""A stream that lies elsewhere, with the real planner and the real control plane; Spark alone is missing."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from tests.host.test_server import Control, query_status
from tests.waits import until

from penstock.config.flow import load_flow_config
from penstock.spark.driver.places import place_of
from penstock.spark.source.options import SourceOptions
from penstock.spark.source.planner import Planner
from penstock.spark.source.tasks import ReadTask, read_task
from penstock.streams import open_writer
from penstock.streams.embedded.log import EmbeddedLog
from penstock.streams.flight.server import FlightServer


@pytest.fixture
def control(tmp_path: Path) -> Iterator[Control]:
    (tmp_path / "log").mkdir()
    started = Control(tmp_path / "log")
    yield started
    assert started.end() == 0


def test_a_stream_of_a_server_is_governed_by_its_link(
    control: Control, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    EmbeddedLog.create(tmp_path / "there" / "sales", pa.schema([("v", pa.int64())])).close()
    client = control.client()
    with FlightServer(tmp_path / "there") as server:
        monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # a planner sets its own
        ref = f"{server.address}/sales"
        config = load_flow_config(
            {"log": control.folder, "classes": {"gold": {"target": "2s"}}, "streams": {"linked": ref}}
        )
        place = place_of(config, "linked")
        planner = Planner(
            SourceOptions(str(place.stream), place.read_from, "linked", "gold", control.address, token="t")
        )
        start = planner.initial()
        with open_writer(ref) as writer:
            writer.append(pa.record_batch({"v": pa.array(range(1500), pa.int64())}))
        offset = until(lambda: planner.next(start), "a grant")
        tasks = [task for task in planner.tasks(offset, start) if isinstance(task, ReadTask)]
        found = [
            value for task in tasks for batch in read_task(task) for value in batch.column(0).to_pylist()
        ]
        assert found == list(range(offset.end[0]))
        assert {task.stream for task in tasks} == {ref}
        status = query_status(client, offset.reader)
        (reader,) = status["readers"].values()
        assert (reader["stream"], reader["offered"], reader["dense"]) == ("linked", 1500, True)
        planner.close()
    assert (control.folder / "linked" / "plans" / f"{offset.reader}.jsonl").exists()
    assert not (tmp_path / "there" / "sales" / "plans").exists(), "the server keeps nothing for the flow"
