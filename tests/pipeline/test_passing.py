"""Readers whose checkpoint lies in a run directory end with the run; others never do."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from penstock.grants.journal import JournalWriter
from penstock.grants.offset import Books, Offset
from penstock.lanes.forgetting import forget_reader
from penstock.lanes.progress import LaneProgress, LaneStore, Stretch
from penstock.pipeline.run.passing import FOLDER, PassingReaders, forget_killed_runs
from penstock.pipeline.run.runner import _Running
from penstock.pipeline.spec.load import load_pipeline
from penstock.pipeline.spec.pipeline import PipelineConfig
from penstock.streams.embedded.log import EmbeddedLog
from penstock.streams.registry import ReaderRegistry

READER = "count-0123456789ab"


@pytest.fixture
def log(tmp_path: Path) -> EmbeddedLog:
    log = EmbeddedLog.create(tmp_path / "log" / "numbers", pa.schema([("n", pa.int64())]))
    log.append(pa.record_batch({"n": list(range(100))}))
    log.close()
    return log


def pipeline(tmp_path: Path, **changes: Any) -> PipelineConfig:
    query = {"class": "gold", "sql": "SELECT n FROM numbers", **changes.pop("query", {})}
    raw = {
        "log": str(tmp_path / "log"),
        "classes": {"gold": {"target": "2s"}},
        "streams": {"numbers": {"schema": {"n": "long"}}},
        "queries": {"count": query},
        **changes,
    }
    return load_pipeline(raw)


def used(
    log: EmbeddedLog, checkpoint: Path, reader: str = READER, pinned: dict[int, int] | None = None
) -> None:
    """A checkpoint as Spark leaves it, of a query that has read ten rows."""
    (checkpoint / "offsets").mkdir(parents=True)
    for batch in (8, 9, 10):
        offset = Offset(reader, {0: batch - 1}, {0: batch}, grant=batch)
        lines = ["v1", json.dumps({"batchWatermarkMs": 0, "conf": {}}), json.dumps(offset.to_json())]
        (checkpoint / "offsets" / str(batch)).write_text("\n".join(lines))
    (checkpoint / "offsets" / ".10.crc").write_bytes(b"\xff\x00")
    ReaderRegistry(log).advance(reader, {0: 10}, pinned)
    journal = JournalWriter(log.directory / "plans", reader)
    journal.proposed(offset)
    journal.close()


def journals(log: EmbeddedLog) -> list[str]:
    return sorted(path.stem for path in (log.directory / "plans").iterdir())


def names(log: EmbeddedLog) -> list[str]:
    return [reader.name for reader in ReaderRegistry(log).readers()]


def killed_run(tmp_path: Path, config: PipelineConfig) -> None:
    """A run whose driver is killed while it is under way."""
    code = (
        "import sys; from pathlib import Path\n"
        "from penstock.pipeline.run.passing import PassingReaders\n"
        "from penstock.pipeline.spec.pipeline import PipelineConfig\n"
        "PassingReaders(PipelineConfig.from_json(sys.argv[1]), Path(sys.argv[2])).begin()\n"
        "print('begun', flush=True); sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", code, config.to_json(), str(tmp_path / "run")]
    driver = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert driver.stdin is not None
    assert driver.stdout is not None
    with driver.stdin, driver.stdout:
        assert driver.stdout.readline() == "begun\n"
        driver.send_signal(signal.SIGKILL)
        driver.wait()


def test_readers_of_a_run_are_forgotten_when_it_ends(tmp_path: Path, log: EmbeddedLog) -> None:
    passing = PassingReaders(pipeline(tmp_path), tmp_path / "run")
    passing.begin()
    used(log, tmp_path / "run" / "checkpoints" / "count")
    ReaderRegistry(log).advance("another-1", {0: 90})
    passing.end()
    assert names(log) == ["another-1"]
    assert ReaderRegistry(log).trim() == {0: log.start(0)}
    assert list((tmp_path / "log" / FOLDER).iterdir()) == []
    passing.end()


@pytest.mark.parametrize("place", ["checkpoints", "checkpoint"])
def test_a_reader_whose_checkpoint_the_user_keeps_is_never_forgotten(
    tmp_path: Path, log: EmbeddedLog, place: str
) -> None:
    kept = str(tmp_path / "kept" / "count")
    config = (
        pipeline(tmp_path, checkpoints=str(tmp_path / "kept"))
        if place == "checkpoints"
        else pipeline(tmp_path, query={"checkpoint": kept})
    )
    passing = PassingReaders(config, tmp_path / "run")
    passing.begin()
    used(log, Path(kept))
    passing.end()
    forget_killed_runs(config)
    assert names(log) == [READER]


def test_readers_of_a_run_that_was_killed_are_forgotten_by_the_next(tmp_path: Path, log: EmbeddedLog) -> None:
    config = pipeline(tmp_path)
    used(log, tmp_path / "run" / "checkpoints" / "count")
    killed_run(tmp_path, config)
    forget_killed_runs(config)
    assert names(log) == []
    assert list((tmp_path / "log" / FOLDER).iterdir()) == []


def test_a_stream_that_cannot_be_opened_keeps_no_reader_of_the_others(
    tmp_path: Path, log: EmbeddedLog, caplog: pytest.LogCaptureFixture
) -> None:
    config = pipeline(tmp_path)
    broken = config.log / "a" / "stream.json"
    broken.parent.mkdir()
    broken.write_text("{")
    killed_run(tmp_path, config)
    used(log, tmp_path / "run" / "checkpoints" / "count")
    assert names(log) == [READER]
    forget_killed_runs(config)
    assert names(log) == []
    said = f"reader {READER} is not forgotten in stream a: InvalidInputError: expected: a stream has format"
    assert said in caplog.text
    assert len(list((config.log / FOLDER).glob("*.json"))) == 1, "stream a may know the reader, too"
    broken.unlink()
    forget_killed_runs(config)
    assert not list((config.log / FOLDER).glob("*.json"))


def test_readers_of_a_run_that_is_under_way_stay(tmp_path: Path, log: EmbeddedLog) -> None:
    config = pipeline(tmp_path)
    passing = PassingReaders(config, tmp_path / "run")
    passing.begin()
    used(log, tmp_path / "run" / "checkpoints" / "count")
    forget_killed_runs(config)
    assert names(log) == [READER]
    passing.end()


def test_a_killed_run_whose_checkpoint_is_gone_on_from_keeps_its_reader(
    tmp_path: Path, log: EmbeddedLog
) -> None:
    used(log, tmp_path / "run" / "checkpoints" / "count")
    killed_run(tmp_path, pipeline(tmp_path))
    forget_killed_runs(pipeline(tmp_path, checkpoints=str(tmp_path / "run" / "checkpoints")))
    assert names(log) == [READER]
    forget_killed_runs(pipeline(tmp_path))
    assert names(log) == [READER], "it is the user's from now on"


def test_a_planner_that_still_lives_keeps_its_reader_for_the_next_run_to_forget(
    tmp_path: Path, log: EmbeddedLog
) -> None:
    config = pipeline(tmp_path)
    used(log, tmp_path / "run" / "checkpoints" / "count")
    killed_run(tmp_path, config)
    planner = JournalWriter(log.directory / "plans", READER)
    forget_killed_runs(config)
    assert names(log) == [READER]
    planner.close()
    forget_killed_runs(config)
    assert names(log) == []


def test_a_mark_of_another_host_is_left_alone(tmp_path: Path, log: EmbeddedLog) -> None:
    config = pipeline(tmp_path)
    used(log, tmp_path / "run" / "checkpoints" / "count")
    killed_run(tmp_path, config)
    (mark,) = (tmp_path / "log" / FOLDER).iterdir()
    mark.write_text(json.dumps({**json.loads(mark.read_text()), "host": "elsewhere"}))
    forget_killed_runs(config)
    assert names(log) == [READER]


def test_what_a_shed_lane_pins_stays_for_the_backfill(tmp_path: Path, log: EmbeddedLog) -> None:
    passing = PassingReaders(pipeline(tmp_path), tmp_path / "run")
    passing.begin()
    used(log, tmp_path / "run" / "checkpoints" / "count", pinned={0: 4})
    passing.end()
    (reader,) = ReaderRegistry(log).readers()
    assert (reader.ended, reader.keeps_from(0)) == (True, 4)


def test_the_journal_goes_with_the_reader_and_those_of_others_stay(tmp_path: Path, log: EmbeddedLog) -> None:
    passing = PassingReaders(pipeline(tmp_path), tmp_path / "run")
    passing.begin()
    used(log, tmp_path / "run" / "checkpoints" / "count")
    used(log, tmp_path / "elsewhere", "another-1")
    passing.end()
    assert journals(log) == ["another-1"]


def test_the_journal_of_rows_that_a_shed_lane_pins_stays_with_them(tmp_path: Path, log: EmbeddedLog) -> None:
    passing = PassingReaders(pipeline(tmp_path), tmp_path / "run")
    passing.begin()
    used(log, tmp_path / "run" / "checkpoints" / "count", pinned={0: 4})
    passing.end()
    assert journals(log) == [READER]


def test_a_killed_run_leaves_its_journal_to_the_next_run_once_its_planner_has_ended(
    tmp_path: Path, log: EmbeddedLog
) -> None:
    config = pipeline(tmp_path)
    used(log, tmp_path / "run" / "checkpoints" / "count")
    killed_run(tmp_path, config)
    planner = JournalWriter(log.directory / "plans", READER)
    forget_killed_runs(config)
    assert journals(log) == [READER]
    planner.close()
    forget_killed_runs(config)
    assert journals(log) == []


def test_a_journal_is_removed_by_the_next_run_if_the_reader_alone_was_forgotten(
    tmp_path: Path, log: EmbeddedLog
) -> None:
    """As after a crash between the two."""
    config = pipeline(tmp_path)
    used(log, tmp_path / "run" / "checkpoints" / "count")
    killed_run(tmp_path, config)
    ReaderRegistry(log).forget(READER)
    forget_killed_runs(config)
    assert journals(log) == []


def test_a_journal_that_forget_has_kept_for_a_backfill_stays_until_the_rows_are_backfilled(
    tmp_path: Path, log: EmbeddedLog
) -> None:
    config, store = pipeline(tmp_path), LaneStore(log.directory, READER)
    used(log, tmp_path / "run" / "checkpoints" / "count", pinned={0: 10})
    planner = JournalWriter(log.directory / "plans", READER)
    offset = Offset(READER, {0: 10}, {0: 20}, grant=11, late={0: 15}, books=Books(admitted=5, late=5))
    planner.proposed(offset)
    planner.planned(offset)
    planner.close()
    killed_run(tmp_path, config)
    assert forget_reader(log, READER).startswith("5 rows that it shed are still in the log")
    for _ in range(2):
        forget_killed_runs(config)
        assert journals(log) == [READER]
    with store.held():
        store.finish(LaneProgress(), store.journal(), Stretch(1, 11, 11, "here"), 5, 0, {})
    forget_killed_runs(config)
    assert journals(log) == []
    assert not list((config.log / FOLDER).glob("*.json"))


def test_while_a_backfill_runs_the_reader_is_forgotten_and_its_journal_is_left_to_the_next_run(
    tmp_path: Path, log: EmbeddedLog
) -> None:
    config = pipeline(tmp_path)
    passing = PassingReaders(config, tmp_path / "run")
    passing.begin()
    used(log, tmp_path / "run" / "checkpoints" / "count")
    with LaneStore(log.directory, "another-1").held():
        passing.end()
        assert (names(log), journals(log)) == ([], [READER])
    forget_killed_runs(config)
    assert journals(log) == []
    assert not list((config.log / FOLDER).glob("*.json"))


@pytest.mark.parametrize("left", ["{", "[]", "{}"])
def test_a_mark_that_cannot_be_read_is_warned_of_and_left(
    tmp_path: Path, log: EmbeddedLog, caplog: pytest.LogCaptureFixture, left: str
) -> None:
    (tmp_path / "log" / FOLDER).mkdir()
    (tmp_path / "log" / FOLDER / "x.json").write_text(left)
    forget_killed_runs(pipeline(tmp_path))
    assert "are not forgotten" in caplog.text


@pytest.mark.parametrize("written", ["{", '{"pending": null, "newer": 1}'])
def test_a_lane_that_cannot_be_read_keeps_no_run_from_starting_and_no_other_reader(
    tmp_path: Path, log: EmbeddedLog, caplog: pytest.LogCaptureFixture, written: str
) -> None:
    config = pipeline(tmp_path)
    used(log, tmp_path / "run" / "checkpoints" / "count")
    other = EmbeddedLog.create(config.log / "others", pa.schema([("n", pa.int64())]))
    used(other, tmp_path / "unused")
    killed_run(tmp_path, config)
    (log.directory / "lanes").mkdir()
    (log.directory / "lanes" / f"{READER}.json").write_text(written)
    forget_killed_runs(config)
    assert f"reader {READER} is not forgotten in stream numbers: " in caplog.text
    assert (journals(log), journals(other)) == ([READER], [])


def test_a_run_whose_readers_cannot_be_forgotten_releases_its_sinks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(passing: PassingReaders) -> None:
        raise TypeError("a damaged file")

    monkeypatch.setattr(PassingReaders, "end", fails)
    said: list[str] = []
    producers = SimpleNamespace(stop=lambda: None)
    running = _Running(pipeline(tmp_path), tmp_path / "run", None, producers, None, said.append)  # type: ignore[arg-type]
    sink = SimpleNamespace(close=lambda: said.append("closed"))
    running.built = [SimpleNamespace(sink=sink)]  # type: ignore[list-item]
    running.close()
    assert said == [
        "readers of this run are not forgotten, the next run tries again: TypeError: a damaged file",
        "closed",
    ]
