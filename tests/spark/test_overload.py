"""An overloaded query on Spark: which rows come, what is said of them, and that the books hold.

One row in eight sleeps for a millisecond: on two cores no machine can do more than 16,000 rows a second.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.spark.helpers import begin, end_of, journal_offsets, offsets, query_status, until

import penstock
from penstock.grants.offset import Offset
from penstock.grants.plans import KEEP_ALL
from penstock.grants.plans.values import window_numbers
from penstock.grants.selection import Range, grant_books, read_range, select
from penstock.record.reading import read_run
from penstock.streams.paced.stream import PacedLog, create_paced
from penstock.streams.producing.schedule import schedule_constant

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RATE, SIZE_US = 40_000.0, 20_000
"""Rows a second, and the length of the windows that are shed whole."""
SLEEPS = "k % 8 <> 0 OR reflect('java.lang.Thread', 'sleep', bigint(1)) IS NOT NULL"


@dataclass
class Overloaded:
    """A query at over twice its capacity: rows are sampled, then the least worth goes, then windows do."""

    log: PacedLog
    run: Path
    results: pa.Table
    offsets: list[Offset]
    reports: list[dict[str, Any]]
    status: dict[str, Any]

    def of(self, unit: str) -> list[Offset]:
        """Its grants of a unit that shed."""
        return [o for o in self.offsets if o.plan.unit == unit and not o.plan.keeps_all]

    def everything(self, offset: Offset) -> pa.Table:
        """The rows of a grant that were not late, with `kept` where Spark wrote them."""
        first = max(offset.start[0], offset.late.get(0, 0))
        pieces = list(read_range(self.log, KEEP_ALL, Range(0, first, offset.end[0], 0)))
        positions = np.concatenate([piece.positions for piece in pieces])
        kept = np.isin(positions, self.results.column("_position").to_numpy())
        return pa.Table.from_batches([piece.rows for piece in pieces]).append_column("kept", pa.array(kept))

    def came(self, found: list[Offset]) -> pa.Table:
        """What Spark wrote of these grants."""
        positions = self.results.column("_position").to_numpy()
        parts = [(positions >= o.start[0]) & (positions < o.end[0]) for o in found]
        return self.results.filter(pa.array(np.logical_or.reduce(parts)))


@pytest.fixture(scope="module")
def overloaded(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Overloaded]:
    root = tmp_path_factory.mktemp("overloaded")
    pool = pa.record_batch({"k": np.random.default_rng(3).integers(0, 1000, 8192)})
    log = create_paced(root / "readings", [pool], schedule_constant(RATE, 3600.0, 500))
    config = {"log": root, "run": root / "run", "classes": {"gold": {"target": "3s"}}}
    with penstock.attach(spark, config) as flow:
        stream = flow.read_stream("readings", cls="gold", metadata=["_position", "_weight", "_drawn"])
        results = stream.where(SLEEPS).select("_position", "_weight", "_drawn.known")
        options = {"checkpointLocation": str(root / "checkpoint"), "path": str(root / "results")}
        query = begin(results.writeStream.format("parquet").options(**options).start)
        log.begin()

        def two_grants(unit: str) -> None:
            """Waits for them. A target too short for this machine's batches is doubled: there, rows are only
            sampled, whatever `shed` says."""
            before, others = len(offsets(query)), 8

            def there() -> bool:
                nonlocal others
                found = [o.plan.unit == unit and not o.plan.keeps_all for o in offsets(query)[before:]]
                if found.count(False) > others:
                    others *= 2
                    flow.set_target("gold", 2 * flow.status().classes["gold"].target_s)
                return sum(found) >= 2

            until(there, f"grants by {unit}", query)

        two_grants("row")
        flow.change("gold", shed={"by": "utility", "utility": "k / 100.0 - 5"})
        two_grants("utility")
        flow.change("gold", shed={"by": "window", "size": f"{SIZE_US}us"})
        two_grants("window")
        status = query_status(flow, "readings")
        assert status is not None
        reports = [dict(report) for report in query.recentProgress]
        flow.stop()
    (found,) = journal_offsets(root / "readings").values()
    yield Overloaded(log, root / "run", pq.read_table(root / "results"), found, reports, status)
    log.close()


def test_the_rows_that_spark_reads_are_those_that_the_plans_select(overloaded: Overloaded) -> None:
    wanted = [np.empty(0, np.int64)]
    for offset in overloaded.offsets:
        for s in select(overloaded.log, offset):
            if s.first.size:
                stretch = Range(s.partition, int(s.first[0]), int(s.end[-1]), 0)
                wanted += [p.positions for p in read_range(overloaded.log, offset.plan, stretch)]
    positions = np.sort(overloaded.results.column("_position").to_numpy())
    assert np.array_equal(positions, np.concatenate(wanted))
    assert positions.size == overloaded.offsets[-1].books.admitted


def test_the_books_are_exact_in_every_offset(overloaded: Overloaded) -> None:
    for before, offset in zip(overloaded.offsets, overloaded.offsets[1:], strict=False):
        assert offset.books.offered == offset.end[0]
        books = grant_books(overloaded.log, offset, select(overloaded.log, offset))
        assert offset.books == before.books.plus(books)
        assert overloaded.came([offset]).num_rows == books.admitted
    status = overloaded.status
    assert status["offered"] == status["admitted"] + status["shed"] + status["waiting"]


def test_weights_add_up_to_about_the_rows_they_stand_for(overloaded: Overloaded) -> None:
    sampled = overloaded.offsets[: overloaded.offsets.index(overloaded.of("utility")[0])]
    books, came = sampled[-1].books, overloaded.came(sampled)
    assert books.sampled > 0
    weights = came.column("_weight").to_numpy()
    # which segments were opened is known, so only the coins of rows are left, each of its row's weight
    spread = np.sqrt((weights**2).sum())
    assert weights.sum() == pytest.approx(books.admitted + books.sampled, abs=4.5 * spread)


def test_spark_is_told_the_true_end_of_the_log(overloaded: Overloaded) -> None:
    ends = [(end_of(r), end_of(r, which="latestOffset")) for r in overloaded.reports]
    shown = [(end, latest) for end, latest in ends if end and latest]
    assert all(latest.end[0] >= end.end[0] for end, latest in shown)
    assert any(latest.end[0] > end.end[0] for end, latest in shown), "a backlog shows"


def test_the_rows_that_are_worth_most_come(overloaded: Overloaded) -> None:
    found = overloaded.of("utility")
    for offset in found:
        rows = overloaded.everything(offset)
        worth, kept = rows.column("k").to_numpy() / 100 - 5, rows.column("kept").to_numpy()
        assert kept[worth > offset.plan.least].all()
        assert not kept[worth < offset.plan.least].any()
    came = overloaded.came(found)
    assert came.num_rows > 0
    assert came.column("_weight").null_count == came.num_rows, "no row has a known chance"
    assert not any(came.column("known").to_pylist())


def test_windows_come_whole(overloaded: Overloaded) -> None:
    found = overloaded.of("window")
    for offset in found:
        rows = overloaded.everything(offset)
        numbers = window_numbers(rows.to_batches(), "_arrival", SIZE_US)
        assert np.array_equal(rows.column("kept").to_numpy(), np.isin(numbers, offset.plan.windows))
    assert overloaded.came(found).num_rows > 0


def test_the_record_is_read_back_and_says_why_rows_were_shed(overloaded: Overloaded) -> None:
    run = read_run(overloaded.run)
    assert not run.truncated
    assert len(run.observations) == len(run.decisions) > 0
    assert json.loads((overloaded.run / "report.json").read_text())["kind"] == "spark"
    reasons = {line["shedder"]: line["reason"] for line in run.shedding}
    assert "utility" in reasons["semantic"]
    assert "windows whole" in reasons["window"]
    assert overloaded.status["shed_reason"] in {line["reason"] for line in run.shedding}
