"""The log-stream sink: exactly once across failures, kills and restarts; what does not fit is refused."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType
from tests.segments import headers, read
from tests.spark.helpers import begin, until

from penstock.spark.sink import log_sink
from penstock.spark.source.ungoverned import read_ungoverned
from penstock.streams.embedded.log import EmbeddedLog
from penstock.streams.layout import LogConfig
from penstock.vocabulary.errors import InvalidInputError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = pa.schema([("n", pa.int64()), ("at", pa.timestamp("us", "UTC"))])
RESULT = StructType([StructField("n", LongType(), False), StructField("at", TimestampType())])
ROWS = 3000


def with_column(name: str) -> StructType:
    return StructType([*RESULT.fields, StructField(name, LongType())])


def make_numbers(stream: Path) -> Path:
    """A stream of the numbers 0 to ROWS - 1."""
    n = np.arange(ROWS)
    with EmbeddedLog.create(stream, SCHEMA) as log:
        log.append(pa.record_batch([n, pa.array(n, pa.timestamp("us", "UTC"))], schema=SCHEMA))
    return stream


@pytest.fixture
def numbers(tmp_path: Path) -> Path:
    return make_numbers(tmp_path / "numbers")


def written(stream: Path) -> list[int]:
    log = EmbeddedLog(stream)
    parts = [
        read(log, s).column("n").to_numpy()
        for p in range(log.partitions)
        for s in headers(log, p, 0, log.end(p))
    ]
    return np.sort(np.concatenate(parts)).tolist() if parts else []


def run_to_the_end(
    df: DataFrame, sink: Callable[[DataFrame, int], None], checkpoint: Path
) -> Exception | None:
    """Processes what is there; returns what the query failed with."""
    writer = df.writeStream.foreachBatch(sink).option("checkpointLocation", str(checkpoint))
    query = begin(writer.trigger(availableNow=True).start)
    until(lambda: not query.isActive, "its end")
    return query.exception()


# -- what fits ------------------------------------------------------------------------------------


def test_the_stream_is_created_with_the_columns_of_the_result(tmp_path: Path) -> None:
    log_sink(tmp_path / "out", RESULT).close()
    assert EmbeddedLog(tmp_path / "out").user_schema.equals(SCHEMA)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (
            with_column("_weight"),
            "no metadata columns; got: '_weight'; hint: leave it out or rename",
        ),
        (with_column("_Arrival"), "no metadata columns; got: '_Arrival'"),
        (with_column("n"), "each column once; got: 'n'; hint: rename one"),
        (with_column("more"), r"has the stream's columns; got: unknown \['more'\]"),
        (StructType([RESULT["n"]]), r"has the stream's columns; got: missing \['at'\]"),
        (
            StructType([StructField("n", StringType()), RESULT["at"]]),
            "got: n is string, not int64; hint: cast",
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
    df = read_ungoverned(spark, numbers, 1200).select("at", "n")
    with log_sink(tmp_path / "out", df.schema, LogConfig(partitions=2)) as sink:

        def fail_before(batch: DataFrame, batch_id: int) -> None:
            if batch_id == 1:
                raise RuntimeError("before the append")
            sink(batch, batch_id)

        def fail_after(batch: DataFrame, batch_id: int) -> None:
            sink(batch, batch_id)
            raise RuntimeError("after the append, before Spark's commit")

        assert "before the append" in str(run_to_the_end(df, fail_before, tmp_path / "cp"))
        assert written(tmp_path / "out") == list(range(1200))
        assert "after the append" in str(run_to_the_end(df, fail_after, tmp_path / "cp"))
        assert written(tmp_path / "out") == list(range(2400))
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
