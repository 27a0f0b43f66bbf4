"""The file of measurements of `penstock run` has the limit of the record. No JVM: nothing is run."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from penstock.pipeline.run.runner import MEASUREMENTS, _Running
from penstock.pipeline.spec.load import load_pipeline
from penstock.record.parts import PARTS, all_parts, dropped
from penstock.vocabulary.status import Status

LINE_BYTES = 10_000


def measured(folder: Path, record_mb: int, times: int) -> Path:
    """The directory of a run that has measured so many times."""
    config = load_pipeline(
        {
            "log": str(folder / "log"),
            "record_mb": record_mb,
            "classes": {"gold": {"target": "2s"}},
            "streams": {"numbers": {"schema": {"n": "long"}}},
            "queries": {"count": {"class": "gold", "sql": "SELECT n FROM numbers"}},
        }
    )
    producers = SimpleNamespace(errors={}, warnings={}, progress={"numbers": "x" * LINE_BYTES})
    running = _Running(config, folder, None, producers, None, lambda _: None)  # type: ignore[arg-type]
    status = Status.from_json({"classes": {}})
    running.flow = SimpleNamespace(status=lambda: status, driver="mine")  # type: ignore[assignment]
    running.queries = {"count": SimpleNamespace(isActive=True)}  # type: ignore[dict-item]
    running.failed = {"count": "it was stopped"}  # nothing is asked of it
    running._plan_said = True
    for _ in range(times):
        running._measure()
    return folder


def size_of(run: Path) -> int:
    return sum(part.stat().st_size for part in all_parts(run / MEASUREMENTS).values() if part.exists())


@pytest.mark.parametrize("record_mb", [1, 2])
def test_measurements_of_a_long_run_keep_to_the_limit(tmp_path: Path, record_mb: int) -> None:
    run = measured(tmp_path, record_mb, times=400)
    limit = record_mb * 1_000_000
    # a part ends with the line that fills it
    assert limit * 0.8 <= size_of(run) <= limit + PARTS * 2 * LINE_BYTES
    assert dropped(run)[MEASUREMENTS]["bytes"] + size_of(run) > 400 * LINE_BYTES


def test_without_a_limit_all_measurements_are_kept_in_one_file(tmp_path: Path) -> None:
    run = measured(tmp_path, 0, times=400)
    assert (run / MEASUREMENTS).read_text(encoding="utf-8").count("\n") == 400
    assert dropped(run) == {}
