"""What part of the rows was admitted, as a governed source says it with each row. No JVM."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.grants.grant import Grant
from penstock.grants.offset import Offset
from penstock.grants.plans import KEEP_ALL, SamplePlan, ShedPlan
from penstock.spark.source.options import SourceOptions
from penstock.spark.source.planner import Planner
from penstock.spark.source.tasks import ReadTask, read_task
from penstock.streams.embedded.log import EmbeddedLog
from penstock.streams.protocol import KEPT

NOTHING = SamplePlan("row", row_keep=0)


@pytest.fixture
def planner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Planner]:
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # a planner sets its own
    with EmbeddedLog.create(tmp_path / "s", pa.schema([("v", pa.int64())])) as log:
        for first in range(0, 500, 50):
            log.append(pa.record_batch({"v": list(range(first, first + 50))}))
    yield (made := _planner(tmp_path / "s"))
    made.close()


def _planner(stream: Path, poison_after: int = 0) -> Planner:
    return Planner(SourceOptions(str(stream), str(stream), metadata=(KEPT,), poison_after=poison_after))


def grant(planner: Planner, start: Offset, end: int, plan: ShedPlan, late: int = 0) -> Offset:
    return planner._propose(start, Grant({0: end}, {0: late}, plan))


def kept(planner: Planner, offset: Offset) -> list[float]:
    """Of each row that a batch to this offset has, read back from what Spark logs."""
    tasks = planner.tasks(Offset.from_json(offset.to_json()))
    batches = [batch for task in tasks if isinstance(task, ReadTask) for batch in read_task(task)]
    return [value for batch in batches for value in batch.column(KEPT).to_pylist()]


def test_rows_of_a_grant_that_admits_none_count_with_the_next_one(planner: Planner) -> None:
    whole = grant(planner, planner.initial(), 100, KEEP_ALL)
    late = grant(planner, whole, 200, KEEP_ALL, late=200)
    none = grant(planner, late, 300, NOTHING)
    last = grant(planner, none, 400, KEEP_ALL)
    assert kept(planner, whole) == [1.0] * 100
    assert kept(planner, late) == kept(planner, none) == []
    assert kept(planner, last) == pytest.approx([1 / 3] * 100)
    assert sum(1 / part for offset in (whole, last) for part in kept(planner, offset)) == pytest.approx(400)
    assert kept(planner, grant(planner, last, 450, KEEP_ALL)) == [1.0] * 50


def test_a_batch_that_is_run_again_by_another_planner_says_the_same(planner: Planner) -> None:
    none = grant(planner, planner.initial(), 100, NOTHING)
    last = grant(planner, none, 150, KEEP_ALL)
    asked = kept(planner, last)
    planner.close()
    another = _planner(Path(planner.options.stream))
    assert kept(another, last) == asked == pytest.approx([1 / 3] * 50)
    assert grant(another, none, 150, KEEP_ALL) == last
    another.close()


def test_rows_that_were_set_aside_count_with_the_next_grant(planner: Planner) -> None:
    first = grant(planner, planner.initial(), 100, KEEP_ALL)
    assert len(kept(planner, first)) == 100
    planner.close()
    another = _planner(Path(planner.options.stream), poison_after=1)
    assert kept(another, first) == []
    assert kept(another, grant(another, first, 200, KEEP_ALL)) == [0.5] * 100
    another.close()
