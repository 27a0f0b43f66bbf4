"""Classes on Spark that shed by what is in their rows: which rows come, and that the books hold."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as every Spark program has it
from tests.spark.helpers import journal_offsets, offsets, query_status, until

import penstock
from penstock.control.rundir import read_run
from penstock.grants.offset import Offset
from penstock.grants.plan import KEEP_ALL
from penstock.grants.selection import Range, grant_books, read_range, select
from penstock.grants.values import window_numbers
from penstock.log.paced import PacedLog, create_paced
from penstock.log.schedule import schedule_constant

RATE, SIZE_US = 8e5, 100_000


@dataclass
class Overloaded:
    """A query at many times its capacity: first the least worth is shed, then whole windows are."""

    log: PacedLog
    run: Path
    results: pa.Table
    offsets: list[Offset]
    status: dict[str, Any]

    def of(self, unit: str) -> list[Offset]:
        """Its first two grants of a unit."""
        return [offset for offset in self.offsets if offset.plan.unit == unit][:2]

    def everything(self, offset: Offset) -> pa.Table:
        """The rows of a grant that were not late, with `kept` where Spark wrote them."""
        first = max(offset.start[0], offset.late.get(0, 0))
        pieces = list(read_range(self.log, KEEP_ALL, Range(0, first, offset.end[0], 0)))
        positions = np.concatenate([piece.positions for piece in pieces])
        kept = np.isin(positions, self.results.column("_position").to_numpy())
        return pa.Table.from_batches([piece.rows for piece in pieces]).append_column("kept", pa.array(kept))


@pytest.fixture(scope="module")
def overloaded(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Overloaded]:
    root = tmp_path_factory.mktemp("row-shedding")
    rng = np.random.default_rng(3)
    pool = pa.record_batch({"k": rng.integers(0, 1000, 16_384), "v": rng.random(16_384)})
    log = create_paced(root / "readings", [pool], schedule_constant(RATE, 60.0, 4096))
    gold = {"target": "1.5s", "shedder": "semantic", "shedder_settings": {"utility": "k / 100 - 5"}}
    config = {"log": root, "run": root / "run", "classes": {"gold": gold}}
    with penstock.attach(spark, config) as flow:
        stream = flow.read_stream("readings", cls="gold", metadata=["_position", "_weight", "_drawn"])
        text = F.concat(F.col("k").cast("string"), F.lit(":"), F.col("v").cast("string"))
        digest = F.sha2(F.sha2(F.sha2(text, 512), 512), 512)
        writer = stream.select("_position", "_weight", "_drawn.known", F.substring(digest, 1, 2).alias("d"))
        options = {"checkpointLocation": str(root / "checkpoint"), "path": str(root / "results")}
        query = writer.writeStream.format("parquet").options(**options).start()
        log.begin()

        def grants_by(unit: str) -> None:
            until(lambda: sum(o.plan.unit == unit for o in offsets(query)) >= 2, f"grants by {unit}", query)

        grants_by("utility")
        flow.change("gold", shedder="window", shedder_settings={"size": f"{SIZE_US}us"})
        grants_by("window")
        status = query_status(flow, "readings")
        assert status is not None
        flow.stop()
    (found,) = journal_offsets(root / "readings").values()
    yield Overloaded(log, root / "run", pq.read_table(root / "results"), found, status)
    log.close()


def check_books(overloaded: Overloaded, unit: str) -> None:
    """Spark wrote just the rows that the plans select, and the books of every offset count them."""
    for offset in overloaded.of(unit):
        assert offset.books.offered == offset.end[0]
        books = grant_books(overloaded.log, offset, select(overloaded.log, offset))
        assert int(np.sum(overloaded.everything(offset).column("kept").to_numpy())) == books.admitted
    assert overloaded.results.num_rows == overloaded.offsets[-1].books.admitted
    rows = overloaded.status
    assert rows["offered"] == rows["admitted"] + rows["shed"] + rows["waiting"]


def test_the_rows_that_are_worth_most_come(overloaded: Overloaded) -> None:
    check_books(overloaded, "utility")
    for offset in overloaded.of("utility"):
        rows = overloaded.everything(offset)
        worth, kept = rows.column("k").to_numpy() / 100 - 5, rows.column("kept").to_numpy()
        assert kept[worth > offset.plan.least].all()
        assert not kept[worth < offset.plan.least].any()
        assert 0 < kept.sum() < kept.size
        positions = overloaded.results.column("_position").to_numpy()
        came = overloaded.results.filter(
            pa.array((positions >= offset.start[0]) & (positions < offset.end[0]))
        )
        assert came.column("_weight").null_count == came.num_rows, "no row has a known chance"
        assert not any(came.column("known").to_pylist())


def test_windows_come_whole(overloaded: Overloaded) -> None:
    check_books(overloaded, "window")
    for offset in overloaded.of("window"):
        rows = overloaded.everything(offset)
        numbers = window_numbers(rows.to_batches(), "_arrival", SIZE_US)
        kept = rows.column("kept").to_numpy()
        assert np.array_equal(kept, np.isin(numbers, offset.plan.windows))
        assert 0 < kept.sum() < kept.size


def test_the_record_says_why(overloaded: Overloaded) -> None:
    lines = read_run(overloaded.run).shedding
    reasons = {line["shedder"]: line["reason"] for line in lines}
    assert "utility" in reasons["semantic"]
    assert "windows whole" in reasons["window"]
    assert overloaded.status["shed_reason"] in {line["reason"] for line in lines}
