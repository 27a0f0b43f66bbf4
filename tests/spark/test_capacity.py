"""Probes: a query drains a filled log, and Spark's own reports say what it did."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery
from tests.spark.helpers import begin, until

from penstock.calibration.capacity import probe
from penstock.calibration.measured import batches, delays, rows_in_time
from penstock.spark.source.ungoverned import read_ungoverned
from penstock.streams.paced.stream import PacedLog, create_paced
from penstock.streams.producing.schedule import schedule_constant
from penstock.vocabulary.errors import PenstockError, UnmetError

pytestmark = pytest.mark.spark


SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), pa.field("v", pa.float64())])


@pytest.fixture
def filled(tmp_path: Path) -> PacedLog:
    """A log full of rows; one of its columns may not be null."""
    pool = [pa.record_batch([np.arange(4096), np.random.default_rng(0).random(4096)], schema=SCHEMA)]
    log = create_paced(tmp_path / "filled", pool, schedule_constant(100_000, 10.0, 1000))
    log.begin(time.time() - 11.0)
    return log


def start(stream: DataFrame, checkpoint: str) -> StreamingQuery:
    return begin(stream.writeStream.format("noop").option("checkpointLocation", checkpoint).start)


def test_a_probe_drains_batches_of_the_rows_it_was_told(
    spark: SparkSession, filled: PacedLog, tmp_path: Path
) -> None:
    found = probe(spark, filled.directory, start, tmp_path / "checkpoint", 5000, 3)
    assert found.batch_rows == 5000
    assert found.rows_per_s > 0
    assert 0 < found.busy_fraction <= 1


def test_a_probe_of_a_log_with_few_rows_measures_what_there_is_or_says_so(
    spark: SparkSession, filled: PacedLog, tmp_path: Path
) -> None:
    found = probe(spark, filled.directory, start, tmp_path / "three and a part", 300_000, 5)
    assert found.batch_rows == 300_000
    with pytest.raises(UnmetError, match="more than 2 full batches; got: 2; hint: fill the stream"):
        probe(spark, filled.directory, start, tmp_path / "two", 500_000, 5)


def test_a_probe_of_a_query_that_fails_says_so(spark: SparkSession, filled: PacedLog, tmp_path: Path) -> None:
    def broken(stream: DataFrame, checkpoint: str) -> StreamingQuery:
        return start(stream.selectExpr("raise_error('no') AS x"), checkpoint)

    with pytest.raises(PenstockError, match="the probed query runs"):
        probe(spark, filled.directory, broken, tmp_path / "checkpoint", 100, 3)


def test_sparks_reports_tell_which_rows_were_done_when(
    spark: SparkSession, filled: PacedLog, tmp_path: Path
) -> None:
    query = start(read_ungoverned(spark, filled.directory, 3000, 9000), str(tmp_path / "checkpoint"))
    until(lambda: len(query.recentProgress) >= 3, "the third report", query)
    done = batches([dict(report) for report in query.recentProgress], filled)
    query.stop()
    assert [batch.rows for batch in done] == [3000, 3000, 3000]
    assert [batch.offset.end[0] for batch in done] == [3000, 6000, 9000]
    began_s = filled.began_s
    assert began_s is not None
    # row i of a constant rate arrived at i / rate
    assert done[1].arrival_s.min() >= began_s + 0.03 - 1e-6
    assert done[1].arrival_s.max() <= began_s + 0.06
    everything = (began_s, began_s + 100.0)
    assert rows_in_time(done, 1e9, *everything) == pytest.approx(9000)
    assert rows_in_time(done, 1.0, *everything) == 0.0
    assert delays(done, 0.0, float("inf")).count == 9000
