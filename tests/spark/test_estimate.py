"""`penstock.estimate` in Spark SQL gives what its arithmetic in numpy gives, also on a stream."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

import penstock
from penstock.cql.program import read_program
from penstock.cql.spark.estimates import estimates_of
from penstock.cql.spark.feeds import Feed
from penstock.errors import InvalidInputError, UnknownNameError
from penstock.log.embedded import EmbeddedLog
from penstock.log.protocol import POSITION
from penstock.policies.quality.estimates import AGGREGATES, SampledRows, Sums, estimate, sums_by_group
from penstock.spark.capacity import read_ungoverned

pytestmark = pytest.mark.spark
GROUPS = 4
"""Of which 0 was not shed at all, 1 was sampled by row, 2 by units, 3 has few units."""


def sampled() -> tuple[SampledRows, np.ndarray]:
    drawn = np.random.default_rng(3)
    group = np.repeat(np.arange(GROUPS), [50, 400, 600, 40])
    count = group.size
    within = np.where(group == 1, 1.5, 0.0)
    weight = np.array([1.0, 2.5, 3.0, 3.0])[group]
    units = np.where(group == 2, drawn.integers(0, 40, count), np.where(group == 3, 50, -1))
    sign = np.where(drawn.random(count) < 0.5, 1.0, -1.0)
    contrast = np.where(units >= 0, sign * 0.8, 0.0)
    value = drawn.normal(20.0, 5.0, count)
    return SampledRows(value, weight, within, contrast, units.astype(np.int64)), group


def frame(spark: SparkSession, rows: SampledRows, group: np.ndarray) -> DataFrame:
    made = pa.table(
        {
            "g": group,
            "v": rows.value,
            "_weight": rows.weight,
            "_sic": np.full(group.size, 0.001),
            "within": rows.within,
            "unit": pa.array(rows.unit, mask=rows.unit < 0),
            "contrast": rows.contrast,
        }
    )
    flat = spark.createDataFrame(made)
    drawn = F.struct("within", "unit", "contrast", F.lit(True).alias("known")).alias("_drawn")
    return flat.select("g", "v", "_weight", "_sic", drawn)


def test_spark_computes_what_numpy_does(spark: SparkSession) -> None:
    rows, group = sampled()
    found = penstock.estimate(frame(spark, rows, group), "v", ["g"]).orderBy("g").collect()
    expected: list[Sums] = sums_by_group(rows, group, GROUPS)
    intervals = 0
    for row, sums in zip(found, expected, strict=True):
        for name in AGGREGATES:
            wanted = estimate(sums, name)
            assert row[name] == pytest.approx(wanted.value, rel=1e-9)
            if wanted.low is None:
                assert row[f"{name}_low"] is None
            else:
                intervals += 1
                assert row[f"{name}_low"] == pytest.approx(wanted.low, rel=1e-9)
                assert row[f"{name}_high"] == pytest.approx(wanted.high, rel=1e-9)
        assert row["sic"] == pytest.approx(0.001 * sums.rows)
    assert intervals == 9, "the group with few units has none"
    assert [row["interval"] for row in found] == [
        "nothing was shed",
        "400 units",
        "80 units",
        "none: 2 units, fewer than 30",
    ]


def test_rows_without_a_known_chance_have_no_interval(spark: SparkSession) -> None:
    rows, group = sampled()
    late = F.col("_drawn").withField("known", F.col("v") > 12.0)
    given = frame(spark, rows, group).withColumn("_drawn", late)
    given = given.withColumn("_weight", F.when(F.col("g") != 1, F.col("_weight")))
    found = penstock.estimate(given.where("g IN (1, 2)"), "v", ["g"], aggregates=["avg"])
    found = found.orderBy("g").collect()
    assert [row["avg"] is None for row in found] == [True, False]
    for row in found:
        assert row["avg_low"] is None
        assert row["interval"] == "none: rows were dropped that had no known chance"


def by_dataframe(rows: DataFrame) -> DataFrame:
    rows = rows.withWatermark("at", "0 seconds")
    found = penstock.estimate(rows, "v", [F.window("at", "10 seconds")])
    return found.withColumn("window_start", F.col("window.start")).drop("window")


def by_cql(rows: DataFrame) -> DataFrame:
    text = "SELECT count(v) AS count, avg(v) AS avg FROM s [RANGE 10 SEC SLIDE 10 SEC]"
    (written,) = read_program(f"REGISTER STREAM s (v float); {text}").queries
    feed = Feed(rows, ("v",), "at", POSITION, 0, kept=penstock.ESTIMATE)
    return estimates_of(written.query, lambda _: feed)


@pytest.mark.parametrize("estimated", [by_dataframe, by_cql])
def test_a_stream_that_is_not_shed_has_exact_answers(
    spark: SparkSession, tmp_path: Path, estimated: Callable[[DataFrame], DataFrame]
) -> None:
    schema = pa.schema([("at", pa.timestamp("us", "UTC")), ("v", pa.float64())])
    with EmbeddedLog.create(tmp_path / "s", schema) as log:
        for second in range(40):
            at = [(second * 1_000_000 + i * 1000) for i in range(100)]
            rows = pa.record_batch(
                [pa.array(at, schema.field("at").type), pa.array(np.full(100, float(second)))], schema=schema
            )
            log.append(rows)
    rows = read_ungoverned(spark, tmp_path / "s", 700, metadata=[*penstock.ESTIMATE, POSITION])
    writer = estimated(rows).writeStream.format("parquet").option("path", str(tmp_path / "out"))
    writer = writer.option("checkpointLocation", str(tmp_path / "cp")).trigger(availableNow=True)
    writer.start().awaitTermination()
    found = spark.read.parquet(str(tmp_path / "out")).orderBy("window_start").collect()
    assert len(found) >= 3
    for i, row in enumerate(found[:3]):
        assert (row["count"], row["count_low"], row["count_high"]) == (1000.0, 1000.0, 1000.0)
        assert row["avg"] == pytest.approx(10 * i + 4.5)
        assert row["interval"] == "nothing was shed"
    assert found[1]["sic"] > 0


def test_what_cannot_be_estimated_is_refused(spark: SparkSession) -> None:
    rows, group = sampled()
    given = frame(spark, rows, group)
    with pytest.raises(InvalidInputError, match=r"rows without _drawn.*metadata=penstock.ESTIMATE"):
        penstock.estimate(given.drop("_drawn"), "v")
    with pytest.raises(UnknownNameError, match="median"):
        penstock.estimate(given, "v", aggregates=["median"])
    with pytest.raises(InvalidInputError, match="a sum and an avg are of a value"):
        penstock.estimate(given)
    with pytest.raises(InvalidInputError, match="a confidence lies between 0 and 1"):
        penstock.estimate(given, "v", confidence=95)
    with pytest.raises(InvalidInputError, match="is a count, a sum or an avg"):
        penstock.estimate(given, "v", aggregates=[])
