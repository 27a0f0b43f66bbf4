"""Each part of Penstock needs as much of a stream as its protocol says, and no more."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import penstock
from penstock.control.backlog.row_values import Fetch, Look
from penstock.grants.journal import Entry
from penstock.grants.offset import Books, Offset
from penstock.grants.plans import SCALE, SamplePlan, UtilityPlan
from penstock.grants.selection import fitted_plan, grant_books, read_range, select, split_among_tasks
from penstock.grants.sic import row_sic
from penstock.host.fetching import fetch_values
from penstock.lanes.lane import check_rows, shed_rows
from penstock.streams.embedded.log import EmbeddedLog
from penstock.streams.layout import LogConfig
from penstock.streams.marks import marks_at
from penstock.streams.producing.producer import Producer
from penstock.streams.producing.recent import last_rows, rate_per_s
from penstock.streams.protocol import SegmentReader, StreamIndex, StreamRows, StreamWriter
from penstock.streams.tailing import Tailer, info_of

ROWS = 1_000
SCHEMA = pa.schema([("value", pa.int64())])


class Only:
    """A log that has what some protocols say, and nothing else."""

    def __init__(self, log: object, *protocols: type) -> None:
        self._log = log
        kinds = {each for protocol in protocols for each in protocol.__mro__}
        self._has = {name for kind in kinds for name in (*vars(kind), *vars(kind).get("__annotations__", ()))}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self._has:
            raise AssertionError(f"{name} is not in the protocol")
        return getattr(self._log, name)


@pytest.fixture
def log(tmp_path: Path) -> EmbeddedLog:
    made = EmbeddedLog.create(tmp_path / "s", SCHEMA, LogConfig(segment_rows=100))
    with made:
        made.append(pa.record_batch([list(range(ROWS))], schema=SCHEMA))
    return made


def grant(log: Any, plan: SamplePlan | UtilityPlan) -> Offset:
    start = Offset.initial("q", {0: 0}, log.uid, marks_at(log, {0: 0}))
    return start.advanced({0: ROWS}, {0: 50}, plan, Books(), False)


def test_planning_by_places_and_tailers_need_the_index_alone(log: EmbeddedLog) -> None:
    index: Any = Only(log, StreamIndex)
    offset = grant(index, SamplePlan("row", segment_keep=SCALE, row_keep=SCALE // 2, seed=3))
    selections = select(index, offset)
    books = grant_books(index, offset, selections)
    assert (books.late, books.admitted + books.sampled) == (50, ROWS - 50)
    assert split_among_tasks(selections, 0, 2, 1)
    assert fitted_plan(index, offset) == offset.plan
    assert row_sic(index, offset.end, 10_000_000, 1) > 0
    assert info_of(index).name == "s"
    assert [new.end for new in Tailer(index).look()] == [ROWS]
    assert rate_per_s(index) > 0
    check_rows(index, Entry(offset))


def test_plans_that_look_into_rows_tasks_and_lanes_need_no_state(log: EmbeddedLog) -> None:
    rows: Any = Only(log, StreamRows)
    offset = grant(rows, UtilityPlan(by="value", least=500.0, row_keep=0, seed=3))
    (selection,) = select(rows, offset)
    assert int(selection.kept.sum()) == ROWS - 501
    kept = [
        piece
        for task in split_among_tasks([selection], 0, 1, 1)
        for piece in read_range(rows, offset.plan, task[0])
    ]
    assert sum(piece.rows.num_rows for piece in kept) == ROWS - 501
    assert sum(piece.rows.num_rows for piece in shed_rows(rows, Entry(offset))) == 501
    assert last_rows(rows, 10).num_rows >= 10
    found = fetch_values(rows, Fetch("s", 0, Look("value"), (0,)))
    assert found.segments[0].values.tolist() == list(range(100))


def test_a_reader_of_segments_needs_no_headers(log: EmbeddedLog) -> None:
    assert Only(log, SegmentReader).read(0, 0, 100).positions.size == 100


def test_a_producer_needs_a_writer_alone(log: EmbeddedLog) -> None:
    writer: Any = Only(log, StreamWriter)
    with log, Producer(writer, writer="collector") as producer:
        producer.send({"value": [1, 2, 3]})
    assert log.end() == ROWS + 3


WITH_STATE = {
    "host/retention.py",
    "host/server.py",
    "host/tailers.py",
    "lanes/forgetting.py",
    "sim/microbatch/cluster.py",
    "sim/microbatch/line.py",
    "sim/microbatch/tailers.py",
    "streams/flight/server.py",
    "streams/registry.py",
    "streams/starting.py",
}
"""Modules with functions that take a whole stream: they need its state, or hand it on to who does."""


def test_a_whole_stream_is_asked_for_only_where_its_state_is_needed() -> None:
    root = Path(penstock.__file__).parent
    found = set()
    for path in root.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                asked = [ast.unparse(arg.annotation) for arg in node.args.args if arg.annotation]
                if any("StreamLog" in each and "Callable" not in each for each in asked):
                    found.add(path.relative_to(root).as_posix())
    assert found == WITH_STATE
