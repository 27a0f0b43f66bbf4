"""A record with a limit: the newest parts are kept, a replay goes on with them and says what is missing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from penstock.cli import app
from penstock.control.decide.cycle import Step
from penstock.policies.load import LOAD_MANAGERS, Manager, manager_config
from penstock.policies.load.base import describe_manager
from penstock.record.parts import PARTS, Parts, all_parts, dropped
from penstock.record.reading import read_run
from penstock.record.recording import LiveRecorder
from penstock.record.replay import manager_now, rebuild_managers, replay
from penstock.record.rundir import RunDirectory
from penstock.testing import observation

LIMIT = 40_000


def seen(i: int, cls: str, manager: Manager[Any, Any]) -> Step:
    """An overload that comes and goes, so that a manager has a history."""
    rows = 900 + 400 * (i % 17)
    found = observation(
        id=i, cls=cls, offered_rows=rows, waiting_rows=30 * (i % 40), offered_load=1.0 + (i % 11) / 5
    )
    decided = manager.decide(found)
    return Step(found, decided, decided, (), False)


def recorded(path: Path, names: dict[str, str], steps: int, limit_bytes: int | None = LIMIT) -> None:
    """A run of some classes, recorded as a control plane does; one class exchanges its manager midway."""
    managers = {cls: manager_config(name).build() for cls, name in names.items()}
    config = {"classes": {cls: describe_manager(manager) for cls, manager in managers.items()}}
    run = RunDirectory.create(path, config, limit_bytes=limit_bytes)
    recorder = LiveRecorder(run)
    recorder.follow(lambda: {cls: manager_now(manager) for cls, manager in managers.items()})
    for i in range(1, steps + 1):
        if i == steps // 2:
            managers["gold"] = manager_config("aurora").build()
            recorder.record_change("gold", i, describe_manager(managers["gold"]))
        for cls, manager in managers.items():
            recorder.record(seen(i, cls, manager))
        recorder.record_sic({"batch": i, "sic": 0.5})
        shedder = {"shedder": "random", "cls": "gold", "query": "q", "reason": "r", "kept_rows": 1}
        recorder.record_shedding({**shedder, "shed_rows": {"random": 1}})
    recorder.finish({"ok": True})


def size_of(path: Path, stem: str) -> int:
    return sum(file.stat().st_size for file in path.glob(f"{stem}*"))


@pytest.mark.briefly("aloma", "deadline")
@pytest.mark.parametrize("name", LOAD_MANAGERS)
def test_what_is_kept_of_a_long_run_replays_identically(tmp_path: Path, name: str) -> None:
    recorded(tmp_path / "run", {"gold": name, "bulk": "ctrl"}, 400)
    run = read_run(tmp_path / "run")
    assert run.dropped > 0
    assert not run.truncated
    assert 0 < len(run.observations) == len(run.decisions) < 800
    assert run.observations[-1].id == 400
    classes = {observation.cls for observation in run.observations}
    result = replay(run, rebuild_managers(run.config, classes, states=run.managers))
    assert result.first_difference is None
    assert result.identical == len(run.decisions)


def test_a_manager_that_is_exchanged_in_what_is_kept_is_exchanged_in_the_replay(tmp_path: Path) -> None:
    recorded(tmp_path / "run", {"gold": "ctrl", "bulk": "aloma"}, 200, 5 * LIMIT // 2)
    run = read_run(tmp_path / "run")
    assert run.dropped > 0
    assert run.observations[0].id < 100 < run.observations[-1].id
    result = replay(run, rebuild_managers(run.config, ["gold", "bulk"], states=run.managers))
    assert result.first_difference is None


def test_each_file_of_a_record_stays_below_its_limit_and_what_went_is_said(tmp_path: Path) -> None:
    recorded(tmp_path / "run", {"gold": "ctrl"}, 600)
    for stem in ("decisions", "observations", "sic"):
        assert size_of(tmp_path / "run", stem) <= LIMIT * (1 + 1 / PARTS)
    assert size_of(tmp_path / "run", "decisions") > LIMIT / 2
    gone = dropped(tmp_path / "run")
    assert gone["decisions.jsonl"]["parts"] == gone["observations.arrows"]["parts"] > 0
    assert gone["decisions.jsonl"]["bytes"] > 0
    assert json.loads((tmp_path / "run" / "report.json").read_text())["dropped"] == gone


def test_without_a_limit_everything_is_in_one_file(tmp_path: Path) -> None:
    recorded(tmp_path / "run", {"gold": "ctrl"}, 400, None)
    run = read_run(tmp_path / "run")
    assert (run.dropped, len(run.observations), run.managers) == (0, 400, {})
    assert not list((tmp_path / "run").glob("*-0*"))
    assert "dropped" not in json.loads((tmp_path / "run" / "report.json").read_text())


def test_a_run_in_parts_of_which_none_went_is_replayed_from_the_beginning(tmp_path: Path) -> None:
    recorded(tmp_path / "run", {"gold": "ctrl"}, 60, 8 * LIMIT // 7)
    run = read_run(tmp_path / "run")
    assert len(all_parts(tmp_path / "run" / "decisions.jsonl")) > 1
    assert (run.dropped, len(run.observations), run.managers) == (0, 60, {})
    assert replay(run, rebuild_managers(run.config, ["gold"])).identical == 60


def test_a_run_that_was_killed_between_the_renames_of_a_part_is_read(tmp_path: Path) -> None:
    recorded(tmp_path / "run", {"gold": "ctrl"}, 400)
    before = read_run(tmp_path / "run")
    files = all_parts(tmp_path / "run" / "decisions.jsonl")
    newest = max(files)
    files[newest].rename(tmp_path / "run" / f"decisions-{newest:06d}.jsonl")
    after = read_run(tmp_path / "run")
    assert [seen.id for seen in after.observations] == [seen.id for seen in before.observations]
    assert after.truncated
    assert after.dropped == before.dropped
    oldest = min(all_parts(tmp_path / "run" / "observations.arrows").values())
    oldest.unlink()  # killed while it removed the two
    fewer = read_run(tmp_path / "run")
    assert fewer.dropped == before.dropped + 1
    result = replay(fewer, rebuild_managers(fewer.config, ["gold"], states=fewer.managers))
    assert result.first_difference is None


def test_the_command_replays_what_is_left_and_says_that_the_beginning_is_missing(tmp_path: Path) -> None:
    recorded(tmp_path / "run", {"gold": "ctrl"}, 400)
    file = tmp_path / "replayed.json"
    done = CliRunner().invoke(app, ["replay", str(tmp_path / "run"), "--json", str(file)])
    assert done.exit_code == 0, done.output
    said = " ".join(done.output.split())
    count = read_run(tmp_path / "run").dropped
    assert f"The first {count} parts were dropped, as the record has a limit" in said
    assert json.loads(file.read_text())["dropped_parts"] == count
    assert json.loads(file.read_text())["different"] == 0


def test_lines_are_added_to_a_file_of_which_the_oldest_parts_go(tmp_path: Path) -> None:
    parts = Parts([tmp_path / "measurements.jsonl"], 8000)
    for i in range(1000):
        parts.add(json.dumps({"at_s": i, "status": "x" * 80}) + "\n")
    kept = [file for file in all_parts(tmp_path / "measurements.jsonl").values() if file.exists()]
    lines = [json.loads(line)["at_s"] for file in kept for line in file.read_text().splitlines()]
    assert lines == list(range(lines[0], 1000))
    assert 60 < len(lines) < 90
    assert dropped(tmp_path)["measurements.jsonl"]["parts"] == lines[0] // 10
