"""Why a class's shedder chose what it chose: in the run directory, in a replay, and in the status."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.cli import main
from penstock.policies.load.base import describe_manager
from penstock.record.reading import read_run
from penstock.record.replay import shed_summary
from penstock.record.rundir import RunDirectory
from penstock.sim.microbatch import Lab

TARGET_S = 4.0


@pytest.fixture
def recorded(virtual: Lab, tmp_path: Path) -> tuple[Path, Any]:
    """Two queries at three times their capacity, recorded."""
    cluster = virtual({"gold": {"target": TARGET_S, "shed": "random"}})
    manager = describe_manager(cluster.engine.config.classes["gold"].build_manager())
    with RunDirectory.create(tmp_path / "run", {"kind": "spark", "classes": {"gold": manager}}) as run:
        cluster.recorder = run
        for i in range(2):
            cluster.add(f"q{i}", "gold", virtual.stream(cluster, 70_000.0, 60.0), seed=i)
        cluster.run(40.0)
    return tmp_path / "run", cluster


def test_every_choice_of_a_shedder_is_in_the_decision_log_with_its_reason(recorded: Any) -> None:
    path, cluster = recorded
    run = read_run(path)
    assert not run.truncated
    lines = run.shedding
    plans = [b.offset.plan for q in cluster.queries.values() for b in q.batches]
    assert len(lines) >= sum(plan.unit == "chosen" for plan in plans) > 4
    assert {line["query"] for line in lines} == {"q0", "q1"}
    ids = [line["observation_id"] for line in lines]
    assert ids == sorted(set(ids))
    for line in lines:
        assert (line["shedder"], line["cls"]) == ("random", "gold")
        assert "drawn at random" in line["reason"]
        assert line["waiting_load"] > line["capacity"] > 0
        assert 0 < line["kept_load"] < line["waiting_load"]
        assert list(line["shed_rows"]) == [line["query"]]
        assert 0 < line["expected_sic"] < 1
    shed = sum(rows for line in lines for rows in line["shed_rows"].values())
    batches = [b for q in cluster.queries.values() for b in q.batches if b.offset.plan.unit == "chosen"]
    assert shed == sum(b.books.sampled for b in batches), "what was foreseen is what the books have"


def test_the_last_reason_of_each_query_is_in_the_status(recorded: Any) -> None:
    path, cluster = recorded
    last = {line["query"]: line["reason"] for line in read_run(path).shedding}
    queries = cluster.status().to_json()["classes"]["gold"]["queries"]
    assert {name: query["shed_reason"] for name, query in queries.items()} == last


def test_a_replay_shows_what_shedders_decided_and_still_compares_the_managers(
    recorded: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, _ = recorded
    found = shed_summary(read_run(path))
    assert [(line["cls"], line["query"], line["shedder"]) for line in found] == [
        ("gold", "q0", "random"),
        ("gold", "q1", "random"),
    ]
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["replay", str(path), "--json", str(path / "compared.json")]) == 0
    assert "drawn at random" in capsys.readouterr().out
    assert json.loads((path / "compared.json").read_text())["shedding"] == found
