"""The log-stream sink: exactly once across failures, kills and restarts; what does not fit is refused."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType
from tests.waits import until

from penstock.errors import InvalidInputError
from penstock.log.embedded import EmbeddedLog
from penstock.log.writer import LogConfig
from penstock.spark.capacity import read_ungoverned
from penstock.spark.sink import log_sink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = pa.schema([("n", pa.int64()), ("at", pa.timestamp("us", "UTC"))])
RESULT = StructType([StructField("n", LongType(), False), StructField("at", TimestampType())])
ROWS = 12_000


def with_column(name: str) -> StructType:
    return StructType([*RESULT.fields, StructField(name, LongType())])


@pytest.fixture
def numbers(tmp_path: Path) -> Path:
    """A stream of the numbers 0 to ROWS - 1."""
    n = np.arange(ROWS)
    with EmbeddedLog.create(tmp_path / "numbers", SCHEMA) as log:
        log.append(pa.record_batch([n, pa.array(n, pa.timestamp("us", "UTC"))], schema=SCHEMA))
    return tmp_path / "numbers"


def written(stream: Path) -> list[int]:
    log = EmbeddedLog(stream)
    parts = [
        log.read(s).column("n").to_numpy()
        for p in range(log.partitions)
        for s in log.headers(p, 0, log.end(p))
    ]
    return np.sort(np.concatenate(parts)).tolist() if parts else []


def run_to_the_end(
    df: DataFrame, sink: Callable[[DataFrame, int], None], checkpoint: Path
) -> Exception | None:
    """Processes what is there; returns what the query failed with."""
    writer = df.writeStream.foreachBatch(sink).option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    try:
        query.awaitTermination()
    except Exception as error:
        return error
    return None


# -- what fits ------------------------------------------------------------------------------------


def test_the_stream_is_created_with_the_columns_of_the_result(tmp_path: Path) -> None:
    log_sink(tmp_path / "out", RESULT).close()
    assert EmbeddedLog(tmp_path / "out").user_schema.equals(SCHEMA)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (
            with_column("_weight"),
            "no metadata columns; got '_weight'; hint: leave it out or rename",
        ),
        (with_column("_Arrival"), "no metadata columns; got '_Arrival'"),
        (with_column("n"), "each column once; got 'n'; hint: rename one"),
        (with_column("more"), r"has its columns; got unknown \['more'\]"),
        (StructType([RESULT["n"]]), r"has its columns; got missing \['at'\]"),
        (
            StructType([StructField("n", StringType()), RESULT["at"]]),
            "got n is string, not int64; hint: cast",
        ),
    ],
    ids=["metadata", "metadata_of_another_case", "twice", "unknown", "missing", "type"],
)
def test_a_result_that_does_not_fit_is_refused_before_the_query_runs(
    tmp_path: Path, result: StructType, message: str
) -> None:
    EmbeddedLog.create(tmp_path / "out", SCHEMA).close()
    with pytest.raises(InvalidInputError, match=message):
        log_sink(tmp_path / "out", result)


def test_a_stream_has_one_sink_at_a_time(tmp_path: Path) -> None:
    with (
        log_sink(tmp_path / "out", RESULT),
        pytest.raises(InvalidInputError, match=f"held by process {os.getpid()}"),
    ):
        log_sink(tmp_path / "out", RESULT)
    log_sink(tmp_path / "out", RESULT).close()


# -- exactly once ---------------------------------------------------------------------------------


def test_a_batch_that_is_run_again_is_appended_once(
    spark: SparkSession, tmp_path: Path, numbers: Path
) -> None:
    df = read_ungoverned(spark, numbers, 5000).select("at", "n")
    with log_sink(tmp_path / "out", df.schema, LogConfig(partitions=2)) as sink:

        def fail_before(batch: DataFrame, batch_id: int) -> None:
            if batch_id == 1:
                raise RuntimeError("before the append")
            sink(batch, batch_id)

        def fail_after(batch: DataFrame, batch_id: int) -> None:
            sink(batch, batch_id)
            raise RuntimeError("after the append, before Spark's commit")

        assert "before the append" in str(run_to_the_end(df, fail_before, tmp_path / "cp"))
        assert written(tmp_path / "out") == list(range(5000))
        assert "after the append" in str(run_to_the_end(df, fail_after, tmp_path / "cp"))
        assert written(tmp_path / "out") == list(range(10_000))
        assert run_to_the_end(df, sink, tmp_path / "cp") is None
        assert run_to_the_end(df, sink, tmp_path / "cp") is None
    assert written(tmp_path / "out") == list(range(ROWS))


def test_a_query_with_a_checkpoint_of_its_own_is_another_writer(
    spark: SparkSession, tmp_path: Path, numbers: Path
) -> None:
    df = read_ungoverned(spark, numbers)
    with log_sink(tmp_path / "out", df.schema) as sink:
        for name in ("first", "second"):
            assert run_to_the_end(df, sink, tmp_path / name) is None
    assert len(written(tmp_path / "out")) == 2 * ROWS


DRIVER = """
import sys
import penstock
from penstock.spark.capacity import read_ungoverned
from penstock.spark.sink import log_sink

numbers, out, checkpoint = sys.argv[1:]
spark = penstock.session(master="local[2]", memory="1g", log_level="OFF")
df = read_ungoverned(spark, numbers, 400)
writer = df.writeStream.foreachBatch(log_sink(out, df.schema)).option("checkpointLocation", checkpoint)
writer.trigger(availableNow=True).start().awaitTermination()
"""


def _has_rows(out: Path, enough: int) -> bool:
    return (out / "stream.json").exists() and len(written(out)) >= enough


@pytest.mark.spark
@pytest.mark.slow
def test_nothing_is_missing_and_nothing_twice_after_the_driver_is_killed(
    tmp_path: Path, numbers: Path
) -> None:
    choose, out = random.Random(4), tmp_path / "out"
    command = [sys.executable, "-c", DRIVER, str(numbers), str(out), str(tmp_path / "cp")]
    for kill in range(2):
        driver = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        # by rows, not by time: each kill hits a driver that is at work
        enough = kill * ROWS // 4 + choose.randrange(1, ROWS // 4)
        until(lambda: _has_rows(out, enough) or driver.poll() is not None, "enough rows")  # noqa: B023
        driver.send_signal(signal.SIGKILL)
        assert driver.wait() == -signal.SIGKILL
    assert len(written(out)) < ROWS
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    assert written(out) == list(range(ROWS))
