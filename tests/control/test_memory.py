"""Costs outlive the control plane that learned them, for as long as its driver lives."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.config.flow import load_flow_config
from penstock.control.core.engine import Engine
from penstock.control.core.events import ReaderJoined
from penstock.control.state.query import Joining, Query, QueryCost
from penstock.grants.offset import Offset
from penstock.host.memory import costs_text, read_costs, write_costs
from penstock.host.server import ControlServer
from penstock.streams.tailing import StreamInfo
from penstock.vocabulary.moment import Moment

AT = Moment(1.0, 1e6)


def learned(batches: int = 8) -> QueryCost:
    costs = QueryCost()
    for i in range(batches):
        rows = 1000 * 4 ** min(i, 4)
        costs.model.learn(rows, 0.2 + rows * 20e-6)
        costs.largest_rows = rows
    return costs


def engine(folder: Path, costs: dict[str, QueryCost] | None = None) -> Engine:
    config = load_flow_config({"log": folder, "classes": {"gold": {"target": "2s"}}})
    return Engine(config, AT, costs)


def joined(engine: Engine, key: str) -> Query:
    stream = StreamInfo("readings", "readings", user_schema=pa.schema([("v", pa.int64())]))
    who, offset = Joining(key, key, "gold"), Offset.initial(key, {0: 0})
    engine.handle(ReaderJoined(AT, who, stream, object(), offset))
    return engine.members.queries[key]


def test_a_query_that_joins_a_later_process_goes_on_with_its_costs(tmp_path: Path) -> None:
    path, before = tmp_path / "costs.json", learned()
    first = engine(tmp_path)
    joined(first, "a").costs = before
    write_costs(path, costs_text(first.costs()))
    second = engine(tmp_path, read_costs(path))
    write_costs(path, costs_text(second.costs()))  # it is not forgotten while its query is not there yet
    third = engine(tmp_path, read_costs(path))
    after = joined(third, "a")
    assert after.cost.ready
    assert after.cost.batch_s(50_000) == before.model.batch_s(50_000)
    assert after.costs.largest_rows == before.largest_rows
    assert not joined(third, "b").cost.ready


def test_costs_are_written_at_most_once_a_second_and_only_when_batches_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, path = engine(tmp_path), tmp_path / "costs.json"
    query, written = joined(made, "a"), []
    monkeypatch.setattr("penstock.host.server.write_costs", lambda path, text: written.append(text))

    async def chores() -> None:
        beats: asyncio.Queue[None] = asyncio.Queue()
        slept: list[float] = []

        async def sleep(seconds: float) -> None:
            slept.append(seconds)
            await beats.get()

        monkeypatch.setattr("penstock.host.server.asyncio.sleep", sleep)
        server = ControlServer(f"unix://{tmp_path}/c", made, memory=path)
        working = asyncio.ensure_future(server._chores())

        async def beat(expected: int) -> None:
            before = len(slept)
            beats.put_nowait(None)
            while len(slept) == before or server._aside.tasks:
                await asyncio.wait([working, *server._aside.tasks], timeout=0.01)
            assert len(written) == expected

        await beat(1)
        query.costs = learned()
        await beat(1)  # no batch has ended
        query.turn.batches += 1
        await beat(2)
        assert set(slept) == {1.0}
        working.cancel()

    asyncio.run(chores())
    assert written[0] == "{}"
    path.write_text(written[1])
    assert read_costs(path)["a"].model.ready


def test_a_query_that_is_still_learning_is_not_remembered(tmp_path: Path) -> None:
    first = engine(tmp_path)
    joined(first, "a").costs = learned(batches=2)
    write_costs(tmp_path / "costs.json", costs_text(first.costs()))
    after = joined(engine(tmp_path, read_costs(tmp_path / "costs.json")), "a")
    assert after.costs.model.state.seen == 0


@pytest.mark.parametrize(
    "text", ["", "{", "[1]", '{"a": {"cost": {"no": 1}, "largest_rows": 1}}', '{"a": 1}']
)
def test_a_file_that_cannot_be_used_is_said_and_costs_are_learned_again(
    tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "costs.json").write_text(text)
    with caplog.at_level(logging.WARNING):
        found = read_costs(tmp_path / "costs.json")
    assert "learned again" in caplog.text
    assert not joined(engine(tmp_path, found), "a").cost.ready
