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
from tests.spark.helpers import run_now

import penstock
from penstock.cql.program import read_program
from penstock.policies.quality import share_among_windows
from penstock.policies.quality.estimates import AGGREGATES, SampledRows, Sums, estimate, sums_by_group
from penstock.spark.cql.estimates import estimates_of
from penstock.spark.cql.feeds import Feed
from penstock.spark.source.ungoverned import read_ungoverned
from penstock.streams.embedded.log import EmbeddedLog
from penstock.streams.protocol import DRAWN, KEPT, POSITION
from penstock.vocabulary.errors import InvalidInputError, UnknownNameError

pytestmark = pytest.mark.spark
METADATA = penstock.ESTIMATE
GROUPS = 7
"""0 was not shed at all, 1 was sampled by row, 2 by units, 3 has few units, 4 lies in a unit without a
partner, the units of 5 do not differ, and in 6 a few units stand beside rows."""


def part(
    count: int, weight: float, within: float = 0.0, contrast: Any = 0.0, unit: Any = -1, value: Any = None
) -> SampledRows:
    """Rows of one group; their values are drawn where none is given."""
    values = np.random.default_rng(count).normal(20.0, 5.0, count) if value is None else value
    columns = (np.broadcast_to(np.asarray(c, float), count) for c in (values, weight, within, contrast))
    units = np.broadcast_to(np.asarray(unit, np.int64), count)
    expected = np.where(units < 0, 0.0, 1.0 + units % 3)  # as where segments differ in size
    return SampledRows(*columns, units, expected, 1.5 * expected**2)


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


def kept(rows: SampledRows) -> np.ndarray:
    """Which part of their grants was admitted: not one over the weight, for others were late."""
    return np.where(rows.weight == 1.0, 1.0, np.where(rows.value < 20.0, 0.25, 0.125))


def admitted(parts: np.ndarray) -> float:
    return float(parts.size / np.sum(1.0 / parts))


def frame(spark: SparkSession, rows: SampledRows, group: np.ndarray) -> DataFrame:
    made = pa.table(
        {
            "g": group,
            "v": rows.value,
            "_weight": rows.weight,
            KEPT: kept(rows),
            "within": rows.within,
            "unit": pa.array(rows.unit, mask=rows.unit < 0),
            "contrast": rows.contrast,
            "expected": rows.expected,
            "doubt": rows.doubt,
        }
    )
    flat = spark.createDataFrame(made)
    known = F.lit(True).alias("known")
    drawn = F.struct("within", "unit", "contrast", known, "expected", "doubt").alias("_drawn")
    at = F.timestamp_seconds(F.lit(1_700_000_000)).alias("at")
    position = F.monotonically_increasing_id().alias(POSITION)
    return flat.select("g", "v", "_weight", KEPT, drawn, at, position)


def test_spark_computes_what_numpy_does(spark: SparkSession) -> None:
    rows, group = sampled()
    found = penstock.estimate(frame(spark, rows, group), "v", ["g"]).orderBy("g").collect()
    expected: list[Sums] = sums_by_group(rows, group, GROUPS)
    intervals = 0
    for g, (row, sums) in enumerate(zip(found, expected, strict=True)):
        for name in AGGREGATES:
            wanted = estimate(sums, name)
            assert row[name] == pytest.approx(wanted.value, rel=1e-9)
            if wanted.low is None:
                assert (row[f"{name}_error"], row[f"{name}_low"], row[f"{name}_high"]) == (None, None, None)
            else:
                intervals += 1
                assert row[f"{name}_error"] == pytest.approx(wanted.error, rel=1e-9)
                assert row[f"{name}_low"] == pytest.approx(wanted.low, rel=1e-9)
                assert row[f"{name}_high"] == pytest.approx(wanted.high, rel=1e-9)
        assert row["sic"] == pytest.approx(admitted(kept(rows)[group == g]))
    assert intervals == 3 * 4 + 1, "groups with few units have none, and of the last only the sum has one"
    assert [row["interval"] for row in found] == [
        "nothing was shed",
        "400 units",
        "80 units",
        "none: 2 units, fewer than 30",
        "none: 0 units, fewer than 30",
        "40 units",
        "none of count, avg: the error rests on fewer than 5 differences between units",
    ]
    assert found[0]["sic"] == 1.0, "nothing was shed"
    assert [column for column in found[0].asDict() if column.startswith("avg")] == [
        *("avg", "avg_error", "avg_low", "avg_high")
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
    feed = Feed(rows, ("v",), "at", POSITION, 0, kept=[name for name in METADATA if name in rows.columns])
    return estimates_of(written.query, lambda _: feed)


@pytest.mark.parametrize("estimated", [by_dataframe, by_cql])
@pytest.mark.parametrize(
    "weighed", ["v > 20", "_drawn.unit > 19"], ids=["half of a unit", "half of the units"]
)
def test_a_group_with_some_rows_of_unknown_chance_has_no_value(
    spark: SparkSession, estimated: Callable[[DataFrame], DataFrame], weighed: str
) -> None:
    every, group = sampled()
    rows = frame(spark, every, group).where("g = 2")
    (known,) = estimated(rows).collect()
    assert (known["count"], known["interval"]) == (1800.0, "80 units")
    mixed = rows.withColumn("_weight", F.expr(f"IF({weighed}, _weight, NULL)"))
    (found,) = estimated(mixed).collect()
    names = [name for name in AGGREGATES if name in found]
    assert {"count", "avg"} <= set(names)
    for name in names:
        assert (found[name], found[f"{name}_low"], found[f"{name}_high"]) == (None, None, None)
    assert found["interval"] == "none: rows were dropped that had no known chance"
    assert found["sic"] == known["sic"] == pytest.approx(admitted(kept(every)[group == 2]))


@pytest.mark.parametrize("estimated", [by_dataframe, by_cql])
def test_sic_counts_rows_without_a_value_too(
    spark: SparkSession, estimated: Callable[[DataFrame], DataFrame]
) -> None:
    every, group = sampled()
    rows = frame(spark, every, group).where("g = 2")
    with_gaps = rows.withColumn("v", F.expr("IF(v < 20, NULL, v)"))
    (found,) = estimated(with_gaps).collect()
    (only,) = estimated(with_gaps.where("v IS NOT NULL")).collect()
    assert found["sic"] == pytest.approx(admitted(kept(every)[group == 2]))
    assert only["sic"] == pytest.approx(0.125)
    estimates = [name for name in found.asDict() if name not in ("sic", "window_start", "window_end")]
    assert [found[name] for name in estimates] == pytest.approx([only[name] for name in estimates])
    assert estimated(rows.withColumn("v", F.lit(None).cast("double"))).count() == 0, "a group without values"


@pytest.mark.parametrize("estimated", [by_dataframe, by_cql])
def test_without_a_word_of_what_was_kept_there_is_no_sic(
    spark: SparkSession, estimated: Callable[[DataFrame], DataFrame]
) -> None:
    (found,) = estimated(frame(spark, *sampled()).where("g = 2").drop(KEPT)).collect()
    assert "sic" not in found.asDict()
    assert found["interval"] == "80 units"


@pytest.mark.parametrize("estimated", [by_dataframe, by_cql])
def test_rows_of_which_nobody_says_how_they_were_drawn_have_no_interval(
    spark: SparkSession, estimated: Callable[[DataFrame], DataFrame]
) -> None:
    rows = frame(spark, *sampled()).where("g = 0")
    unsaid = rows.withColumn(DRAWN, F.lit(None).cast(rows.schema[DRAWN].dataType))
    for given in (unsaid, rows.union(unsaid)):
        (found,) = estimated(given).collect()
        assert (found["count"], found["count_error"], found["count_low"]) == (given.count(), None, None)
        assert found["interval"] == "none: rows were dropped that had no known chance"


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
    rows = read_ungoverned(spark, tmp_path / "s", 1100, metadata=[*METADATA, POSITION])
    writer = estimated(rows).writeStream.format("parquet").option("path", str(tmp_path / "out"))
    run_now(writer.option("checkpointLocation", str(tmp_path / "cp")))
    found = spark.read.parquet(str(tmp_path / "out")).orderBy("window_start").collect()
    assert len(found) >= 3
    for i, row in enumerate(found[:3]):
        assert (row["count"], row["count_low"], row["count_high"]) == (1000.0, 1000.0, 1000.0)
        assert row["avg"] == pytest.approx(10 * i + 4.5)
        assert (row["count_error"], row["avg_error"]) == (0.0, 0.0)
        assert (row["sic"], row["interval"]) == (1.0, "nothing was shed")


def test_what_cannot_be_estimated_is_refused(spark: SparkSession) -> None:
    rows, group = sampled()
    given = frame(spark, rows, group)
    with pytest.raises(InvalidInputError, match=r"rows without _drawn.*metadata=penstock.ESTIMATE"):
        penstock.estimate(given.drop("_drawn"), "v")
    with pytest.raises(UnknownNameError, match="median"):
        penstock.estimate(given, "v", aggregates=["median"])
    with pytest.raises(InvalidInputError, match="a sum or an avg needs a value"):
        penstock.estimate(given)
    with pytest.raises(InvalidInputError, match="a confidence lies between 0 and 1"):
        penstock.estimate(given, "v", confidence=95)
    with pytest.raises(InvalidInputError, match="has a count, a sum or an avg"):
        penstock.estimate(given, "v", aggregates=[])


def test_keys_are_of_any_name_that_the_result_does_not_have(spark: SparkSession) -> None:
    rows, group = sampled()
    given = frame(spark, rows, group).withColumnRenamed("g", "_v")
    tenths = F.round(F.col("_v") * 0.5)
    found = penstock.estimate(given, "v", [tenths, F.col("_v").alias("a.b")], ["count"])
    assert found.columns[1:] == ["a.b", "count", "count_error", "count_low", "count_high", "sic", "interval"]
    assert "." in found.columns[0]
    by_group = {row["a.b"]: row["count"] for row in found.collect()}
    assert by_group == pytest.approx({g: rows.weight[group == g].sum() for g in range(GROUPS)})
    with_count = penstock.estimate(given, "v", [F.col("_v").alias("count")], ["avg"])
    assert with_count.count() == GROUPS, "an aggregate that is not asked for takes no name"


@pytest.mark.parametrize("name", ["sic", "Interval", "avg", "avg_error", "g"])
def test_a_key_named_as_another_column_of_the_result_is_refused(spark: SparkSession, name: str) -> None:
    given = frame(spark, *sampled())
    with pytest.raises(InvalidInputError, match=r"differ in name: .*; got: two columns named .*hint.*alias"):
        penstock.estimate(given, "v", ["g", F.col("g").alias(name)], ["avg"])


@pytest.mark.parametrize(("slide_s", "windows"), [(10, 1), (1, 10), (5, 2)])
def test_the_sic_of_a_row_is_divided_among_the_windows_that_it_falls_in(
    spark: SparkSession, slide_s: int, windows: int
) -> None:
    """As by `share_among_windows`, and altogether it is what the rows have."""
    at_s = np.arange(1000, 1060) + 0.25
    worth = np.linspace(0.005, 0.03, at_s.size)
    rows = spark.createDataFrame(pa.table({"at_s": at_s, "_sic": worth}))
    window = F.window(F.col("at_s").cast("timestamp"), "10 seconds", f"{slide_s} seconds")
    found = rows.groupBy(window.alias("w")).agg(F.count("*"), penstock.sic(windows=windows))
    sums = {row.end: row.sic for row in found.selectExpr("unix_seconds(w.end) AS end", "sic").collect()}
    numbers, shares = share_among_windows(at_s, worth, 10.0, float(slide_s))
    assert sums == pytest.approx(dict(zip((numbers * slide_s).tolist(), shares.tolist(), strict=True)))
    assert sum(sums.values()) == pytest.approx(worth.sum())


def test_sic_is_the_sum_of_what_rows_are_worth_and_may_pass_one_when_a_rate_rises(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Rows after a rise are worth what they were in the window before it: there were few."""
    schema = pa.schema([("v", pa.int64())])
    with EmbeddedLog.create(tmp_path / "s", schema) as log:
        for second in range(30):
            count = 100 if second < 20 else 400
            at_us = np.int64(1_000_000_000) + second * 1_000_000 + np.arange(count)
            log.append(pa.record_batch([np.full(count, second)], schema=schema), arrival_us=at_us)
    rows = read_ungoverned(spark, tmp_path / "s", 400, metadata=["_sic"])
    writer = rows.writeStream.format("parquet").option("path", str(tmp_path / "out"))
    run_now(writer.option("checkpointLocation", str(tmp_path / "cp")))
    read = spark.read.parquet(str(tmp_path / "out"))
    by_window = read.groupBy(F.expr("v div 10 AS w")).agg(penstock.sic()).orderBy("w").collect()
    steady, risen = by_window[1]["sic"], by_window[2]["sic"]
    assert steady == pytest.approx(1.0, rel=0.12)
    assert risen == pytest.approx(4 / 3 * np.log(4), rel=0.1), "the window had from 1,000 to 4,000 rows"


@pytest.mark.parametrize("windows", [0.5, -1, float("inf"), float("nan")])
def test_a_row_that_is_in_no_window_is_refused(windows: float) -> None:
    with pytest.raises(
        InvalidInputError, match=r"a row is in one window or more; got: .* hint: give range / slide"
    ):
        penstock.sic(windows)
