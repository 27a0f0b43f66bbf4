"""Costs outlive the control plane that learned them, for as long as its driver lives."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from penstock.control.measure.cost import CostModel
from penstock.control.measure.cost_store import EVERY_S, CostMemory
from penstock.control.state.members import Query


def learned(key: str = "a", batches: int = 8) -> Query:
    query = Query(key, key, "gold", CostModel())
    for i in range(batches):
        rows = 1000 * 4 ** min(i, 4)
        query.cost.learn(rows, 0.2 + rows * 20e-6)
        query.largest_rows, query.batches = rows, i + 1
    return query


def test_a_query_that_joins_a_later_process_goes_on_with_its_costs(tmp_path: Path) -> None:
    before = learned()
    CostMemory(tmp_path / "costs.json").beat({"a": before}, now_s=0.0)
    after = Query("a", "a", "gold", CostModel())
    CostMemory(tmp_path / "costs.json").recall(after)
    assert after.cost.ready
    assert after.cost.batch_s(50_000) == before.cost.batch_s(50_000)
    assert after.largest_rows == before.largest_rows
    other = Query("b", "b", "gold", CostModel())
    CostMemory(tmp_path / "costs.json").recall(other)
    assert not other.cost.ready


def test_costs_are_written_at_most_once_a_second_and_only_when_batches_ended(tmp_path: Path) -> None:
    memory, query = CostMemory(tmp_path / "costs.json"), learned()
    memory.beat({"a": query}, now_s=10.0)
    first = (tmp_path / "costs.json").read_text()
    query.cost.learn(1000, 5.0)
    query.batches += 1
    memory.beat({"a": query}, now_s=10.0 + EVERY_S / 2)
    assert (tmp_path / "costs.json").read_text() == first
    memory.beat({"a": query}, now_s=10.0 + EVERY_S)
    assert (tmp_path / "costs.json").read_text() != first
    (tmp_path / "costs.json").unlink()
    memory.beat({"a": query}, now_s=20.0)
    assert not (tmp_path / "costs.json").exists()


def test_a_query_that_is_still_learning_is_not_remembered(tmp_path: Path) -> None:
    CostMemory(tmp_path / "costs.json").beat({"a": learned(batches=2)}, now_s=0.0)
    after = Query("a", "a", "gold", CostModel())
    CostMemory(tmp_path / "costs.json").recall(after)
    assert after.cost.state.seen == 0


@pytest.mark.parametrize(
    "text", ["", "{", "[1]", '{"a": {"cost": {"no": 1}, "largest_rows": 1}}', '{"a": 1}']
)
def test_a_file_that_cannot_be_used_is_said_and_costs_are_learned_again(
    tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "costs.json").write_text(text)
    with caplog.at_level(logging.WARNING):
        memory = CostMemory(tmp_path / "costs.json")
    assert "learned again" in caplog.text
    query = Query("a", "a", "gold", CostModel())
    memory.recall(query)
    assert not query.cost.ready
