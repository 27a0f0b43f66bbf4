"""Streams are opened, written and governed by their addresses, whoever keeps them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from tests.gappy import Gappy, GappyLog
from tests.installed import FarLog, install, install_here

from penstock.config.flow import FlowConfig, load_flow_config
from penstock.grants.grant import Grant
from penstock.grants.offset import Offset
from penstock.grants.plans import SCALE, SamplePlan
from penstock.lanes.progress import find_lanes
from penstock.sim.microbatch import Lab, Machine, check_books
from penstock.spark.driver.places import Place, check_in_log, place_of
from penstock.spark.source.options import SourceOptions
from penstock.spark.source.planner import Planner
from penstock.spark.source.tasks import ReadTask, read_task
from penstock.streams import create_stream, open_stream, open_writer
from penstock.streams.descriptor import write_about
from penstock.streams.flight.client import FlightLog
from penstock.streams.flight.server import FlightServer
from penstock.streams.kinds.base import Opening
from penstock.streams.kinds.linked import LinkedLog, make_link
from penstock.streams.layout import LogConfig
from penstock.streams.opening import create_paced, load_stream
from penstock.streams.producing.schedule import schedule_constant
from penstock.streams.registry import ReaderRegistry
from penstock.testing import ManualClock
from penstock.vocabulary.errors import InvalidInputError, PenstockError, UnknownNameError
from penstock.vocabulary.stream_ref import StreamRef

SCHEMA = pa.schema([("value", pa.int64())])


@pytest.fixture
def far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of an empty stream of an installed kind."""
    install_here(tmp_path / "installed", monkeypatch)
    create_stream(tmp_path / "there" / "sales", SCHEMA, LogConfig(segment_rows=100)).close()
    return f"far://{tmp_path}/there/sales"


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    made = Lab(tmp_path / "log")
    with made.open:
        yield made


def flow(tmp_path: Path, **streams: object) -> FlowConfig:
    values = {"log": tmp_path / "log", "classes": {"gold": {"target": "2s"}}, "streams": streams}
    return load_flow_config(values)


def numbers(first: int, count: int) -> pa.RecordBatch:
    return pa.record_batch([list(range(first, first + count))], schema=SCHEMA)


# -- kinds that are installed ---------------------------------------------------------------------


def test_a_new_kind_of_stream_is_opened_by_its_name_or_its_scheme_in_every_process(tmp_path: Path) -> None:
    GappyLog.create(tmp_path / "s", Gappy(0.0), ManualClock(10.0))
    create_stream(tmp_path / "t", SCHEMA).close()
    install(tmp_path / "installed")
    code = (
        "import sys; from penstock.streams import open_stream\n"
        "print(*[type(open_stream(place)).__name__ for place in sys.argv[1:]])\n"
    )
    path = [str(tmp_path / "installed"), str(Path(__file__).parents[2]), *filter(None, sys.path)]
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / "s"), f"far://{tmp_path}/t"],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout == "GappyLog FarLog\n"


def test_a_kind_that_cannot_be_opened_is_refused_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_here(tmp_path / "installed", monkeypatch)
    write_about(tmp_path / "s", {"kind": "broken"}, lambda: None)
    with pytest.raises(InvalidInputError, match=r"kind broken can be imported; got: tests\.gappy:NoLog"):
        open_stream(tmp_path / "s")
    write_about(tmp_path / "t", {"kind": "pigeons"}, lambda: None)
    known = "broken, closed, embedded, far, gappy, link, paced"
    with pytest.raises(InvalidInputError, match=f"one of {known}; got: 'pigeons'"):
        open_stream(tmp_path / "t")
    with pytest.raises(InvalidInputError, match=r"scheme of a stream's address must be one of .*far.*grpc"):
        open_stream("carrier-pigeon://loft/s")
    with pytest.raises(InvalidInputError, match=r"kind closed has a function open\(ref, how\); got: tests"):
        open_stream("closed://loft/s")


def test_a_kind_that_is_only_read_says_so_to_who_wants_to_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_here(tmp_path / "installed", monkeypatch)
    GappyLog.create(tmp_path / "s", Gappy(0.0), ManualClock(10.0))
    create_paced(tmp_path / "p", [numbers(0, 4)], schedule_constant(4.0, 1.0))
    for name, kind in (("s", "gappy"), ("p", "paced")):
        with pytest.raises(
            InvalidInputError, match=f"stream {name} can be written; got: a stream of kind {kind}"
        ):
            open_writer(tmp_path / name)
    with pytest.raises(InvalidInputError, match="made in a directory of this machine; got: far://"):
        create_stream(f"far://{tmp_path}/u", SCHEMA)


def test_a_directory_may_be_written_as_an_address(tmp_path: Path) -> None:
    create_stream(f"file://{tmp_path}/s", SCHEMA).close()
    assert open_stream(f"file://{tmp_path}/s") is open_stream(tmp_path / "s")
    assert open_stream(f"file://{tmp_path}/s").ref.id == f"{tmp_path}/s"


def test_a_token_is_not_shown_with_how_a_stream_is_opened() -> None:
    assert "secret" not in repr(Opening(token="secret"))


def test_a_stream_is_opened_and_written_by_its_address(far: str) -> None:
    log = open_stream(far)
    assert isinstance(log, FarLog)
    assert (log.ref.id, log.name) == (far, "sales")
    assert open_stream(far) is log
    assert load_stream(far) is not log
    with open_writer(far) as writer:
        assert writer.append(numbers(0, 3)) == 3
    assert log.read(0, 0, 3).batch.column("value").to_pylist() == [0, 1, 2]


def test_a_stream_of_a_server_is_loaded_anew_by_its_address(tmp_path: Path) -> None:
    create_stream(tmp_path / "s", SCHEMA).close()
    with FlightServer(tmp_path) as server, load_stream(f"{server.address}/s") as log:
        assert isinstance(log, FlightLog)
        assert open_stream(log.ref) is not log


# -- links ----------------------------------------------------------------------------------------


def test_a_link_has_the_rows_of_its_address_and_keeps_the_state_itself(tmp_path: Path, far: str) -> None:
    make_link(tmp_path / "log" / "orders", StreamRef(far))
    with open_writer(tmp_path / "log" / "orders") as writer:
        writer.append(numbers(0, 250))
    log, rows = open_stream(tmp_path / "log" / "orders"), open_stream(far)
    assert isinstance(log, LinkedLog)
    assert (log.name, log.uid, log.dense, log.partition_name(0)) == ("orders", rows.uid, True, "0")
    assert (log.start(), log.end(), log.partitions, log.event_time) == (0, 250, 1, None)
    assert (log.key_column, log.key_buckets) == (rows.key_column, rows.key_buckets)
    assert (log.schema, log.user_schema, log.mark(0, 250)) == (rows.schema, SCHEMA, rows.mark(0, 250))
    assert log.header_arrays(0, 0, 250).rows.tolist() == rows.header_arrays(0, 0, 250).rows.tolist()
    assert log.position_at(0, 0) == 0
    assert log.read(0, 100, 102).batch.column("value").to_pylist() == [100, 101]
    registry = ReaderRegistry(log)
    registry.advance("q-1", {0: 250})
    assert (tmp_path / "log" / "orders" / "readers" / "q-1.json").exists()
    assert registry.trim() == {0: 0}, "rows go when their keeper wants it"
    with load_stream(tmp_path / "log" / "orders") as own:
        assert own.end() == 250
    assert log.end() == 250, "another log object was closed"


def test_a_link_is_made_once_and_leads_to_one_address(tmp_path: Path, far: str) -> None:
    make_link(tmp_path / "orders", StreamRef(far))
    make_link(tmp_path / "orders", StreamRef(far))
    with pytest.raises(InvalidInputError, match=r"lies at far://.*sales, as when .* got: far://loft/s; hint"):
        make_link(tmp_path / "orders", StreamRef("far://loft/s"))
    create_stream(tmp_path / "own", SCHEMA).close()
    with pytest.raises(InvalidInputError, match="stream own lies at far://loft/s; got: a stream of this"):
        make_link(tmp_path / "own", StreamRef("far://loft/s"))


# -- streams of a flow ----------------------------------------------------------------------------


def test_a_stream_that_the_configuration_does_not_name_lies_in_the_log(tmp_path: Path) -> None:
    config = flow(tmp_path)
    with pytest.raises(InvalidInputError, match=r"stream s is in the log at .*; got: no stream there"):
        place_of(config, "s")
    create_stream(tmp_path / "log" / "sales", SCHEMA).close()
    assert place_of(config, "sales") == Place(tmp_path / "log" / "sales", f"{tmp_path}/log/sales")
    copied = config.model_copy(update={"read_from": "grpc://host:1"})
    assert place_of(copied, "sales").read_from == "grpc://host:1/sales"


def test_a_stream_may_lie_in_another_directory(tmp_path: Path) -> None:
    config = flow(tmp_path, orders=tmp_path / "there" / "sales")
    with pytest.raises(InvalidInputError, match=r"stream orders is at .*sales, as `streams` says; got: no"):
        place_of(config, "orders")
    create_stream(tmp_path / "there" / "sales", SCHEMA).close()
    assert place_of(config, "orders") == Place(tmp_path / "there" / "sales", f"{tmp_path}/there/sales")
    with pytest.raises(UnknownNameError, match="did you mean 'orders'"):
        place_of(config, "order")


def test_of_a_stream_at_an_address_the_log_gets_a_link_once_the_stream_is_found(
    tmp_path: Path, far: str
) -> None:
    config = flow(tmp_path, orders=far, lost=f"far://{tmp_path}/nowhere/sales")
    assert place_of(config, "orders") == Place(tmp_path / "log" / "orders", far)
    assert place_of(config, "orders") == Place(tmp_path / "log" / "orders", far)
    with pytest.raises(PenstockError, match="no stream at 'sales'"):
        place_of(config, "lost")
    assert not (tmp_path / "log" / "lost").exists()
    with pytest.raises(InvalidInputError, match=r"shared stream orders lies in the log at .*; got: far://"):
        check_in_log(config, "orders")
    check_in_log(config, "others")


def test_a_stream_at_an_address_is_governed(tmp_path: Path, far: str, lab: Lab) -> None:
    cluster = lab({"gold": {"target": "2s"}}, streams={"orders": far})
    log = open_stream(place_of(cluster.engine.config, "orders").stream, clock=cluster.clock)
    query = cluster.add("q", "gold", log, Machine(row_s=4e-4))
    cluster.checks.append(check_books)
    with open_writer(far, clock=cluster.clock) as writer:
        for tenth in range(200):
            writer.append(numbers(500 * tenth, 500))
            cluster.run(0.1)
    status = cluster.status().classes["gold"].queries["q"]
    assert status.offered == 100_000 == status.admitted + status.shed + status.waiting
    assert status.shed > 20_000, "at twice the capacity"
    assert {batch.offset.reader for batch in query.batches} == {"q"}
    assert [reader.stream for reader in status.readers.values()] == ["orders"]


@pytest.mark.parametrize("kept_by", ["an installed kind", "a server"])
def test_planner_and_tasks_read_a_stream_by_its_address(
    tmp_path: Path, far: str, kept_by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # a planner sets its own
    with FlightServer(tmp_path / "there") as server:
        ref = far if kept_by == "an installed kind" else f"{server.address}/sales"
        config = flow(tmp_path, orders=ref)
        with open_writer(ref) as writer:
            writer.append(numbers(0, 1_000))
        place = place_of(config, "orders")
        planner = Planner(SourceOptions(str(place.stream), place.read_from, "q", metadata=("_position",)))
        before = planner.initial()
        planner._journal_of(before)
        plan = SamplePlan("row", segment_keep=SCALE // 2, row_keep=SCALE // 2, seed=3)
        offset = planner._propose(before, Grant({0: 1_000}, {}, plan))
        tasks = [task for task in planner.tasks(offset, before) if isinstance(task, ReadTask)]
        found = pa.Table.from_batches([batch for task in tasks for batch in read_task(task)])
        planner.close()
        assert {task.stream for task in tasks} == {ref}, "executors need no directory"
        assert found.column("value").to_pylist() == found.column("_position").to_pylist()
        assert 0 < found.num_rows == offset.books.admitted < 1_000
        assert (tmp_path / "log" / "orders" / "plans" / f"{offset.reader}.jsonl").exists()
        assert [store.reader for store in find_lanes(tmp_path / "log", "q")] == [offset.reader]
        assert Offset.from_json(offset.to_json()).stream == open_stream(ref).uid
