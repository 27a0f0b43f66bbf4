"""`penstock.estimate` in Spark SQL gives what its arithmetic in numpy gives, also on a stream."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

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
GROUPS = 7
"""0 was not shed at all, 1 was sampled by row, 2 by units, 3 has few units, 4 lies in a unit without a
partner, the units of 5 do not differ, and in 6 a few units stand beside rows."""


def part(
    count: int, weight: float, within: float = 0.0, contrast: Any = 0.0, unit: Any = -1, value: Any = None
) -> SampledRows:
    """Rows of one group; their values are drawn where none is given."""
    values = np.random.default_rng(count).normal(20.0, 5.0, count) if value is None else value
    columns = (np.broadcast_to(np.asarray(c, float), count) for c in (values, weight, within, contrast))
    return SampledRows(*columns, np.broadcast_to(np.asarray(unit, np.int64), count))


def sampled() -> tuple[SampledRows, np.ndarray]:
    drawn = np.random.default_rng(3)
    sign = np.where(drawn.random(640) < 0.5, 0.8, -0.8)
    pairs = np.arange(40)
    parts = [
        part(50, 1.0),
        part(400, 2.5, within=1.5),
        part(600, 3.0, contrast=sign[:600], unit=drawn.integers(0, 40, 600)),
        part(40, 3.0, contrast=sign[600:], unit=50),
        part(40, 4.0, unit=60),
        part(40, 3.0, contrast=0.8 * (-1.0) ** pairs, unit=100 + pairs // 2, value=7.0),
        part(60, 1.01, within=0.01),
        part(40, 3.0, contrast=0.8, unit=200 + pairs // 10, value=0.0),
    ]
    group = np.repeat([0, 1, 2, 3, 4, 5, 6, 6], [rows.value.size for rows in parts])
    names = SampledRows.__dataclass_fields__
    return SampledRows(*(np.concatenate([getattr(rows, name) for rows in parts]) for name in names)), group


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
    at = F.timestamp_seconds(F.lit(1_700_000_000)).alias("at")
    position = F.monotonically_increasing_id().alias(POSITION)
    return flat.select("g", "v", "_weight", "_sic", drawn, at, position)


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
    assert intervals == 3 * 4 + 1, "groups with few units have none, and of the last only the sum has one"
    assert [row["interval"] for row in found] == [
        "nothing was shed",
        "400 units",
        "80 units",
        "none: 2 units, fewer than 30",
        "none: 0 units, fewer than 30",
        "40 units",
        "none of count, avg: the error rests on fewer than 14 differences between units",
    ]
    assert (found[4]["count"], found[5]["count_low"], found[5]["count_high"]) == (160.0, 120.0, 120.0)


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
@pytest.mark.parametrize(
    "weighed", ["v > 20", "_drawn.unit > 19"], ids=["half of a unit", "half of the units"]
)
def test_a_group_with_some_rows_of_unknown_chance_has_no_value(
    spark: SparkSession, estimated: Callable[[DataFrame], DataFrame], weighed: str
) -> None:
    rows = frame(spark, *sampled()).where("g = 2")
    (known,) = estimated(rows).collect()
    assert (known["count"], known["interval"]) == (1800.0, "80 units")
    mixed = rows.withColumn("_weight", F.expr(f"IF({weighed}, _weight, NULL)"))
    (found,) = estimated(mixed).collect()
    names = [name for name in AGGREGATES if name in found]
    assert {"count", "avg"} <= set(names)
    for name in names:
        assert (found[name], found[f"{name}_low"], found[f"{name}_high"]) == (None, None, None)
    assert found["interval"] == "none: rows were dropped that had no known chance"
    assert found["sic"] == pytest.approx(0.6)


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
