"""Answers of CQL say which part of their rows was admitted, also upstream, in a shared stream's writer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from tests.spark.helpers import run_now

from penstock.cql.meaning.plan import Query
from penstock.cql.program import read_program
from penstock.spark.cql.estimates import estimates_of
from penstock.spark.cql.feeds import Feed, Feeds
from penstock.spark.cql.relation import changes_of
from penstock.spark.cql.rows import rows_of
from penstock.spark.cql.windows import windows_of
from penstock.spark.source.ungoverned import read_ungoverned
from penstock.streams.embedded.log import EmbeddedLog
from penstock.streams.layout import LogConfig
from penstock.streams.protocol import DRAWN, KEPT, POSITION

pytestmark = pytest.mark.spark
SCHEMA = pa.schema([("at", pa.timestamp("us", "UTC")), ("v", pa.int64())])
BASE = 8400
Compiled = Callable[[Query, Feeds], DataFrame]


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A shared stream: a row a second, of which the writer kept a half in the first 10 s, then a fifth."""
    with EmbeddedLog.create(tmp_path / "s", SCHEMA, LogConfig(origin=True)) as log:
        for second in range(40):
            at = (BASE + second) * 1_000_000
            kept = 0.5 if second < 10 else 0.2
            columns = [pa.array([at], SCHEMA.field("at").type), [second], [0.01], [1.0], [kept]]
            log.append(pa.record_batch([pa.array(c) for c in columns], schema=log.append_schema))
    return tmp_path / "s"


def answers(
    spark: SparkSession, shared: Path, text: str, compiled: Compiled, *kept: str, to: Path | None = None
) -> list[Row]:
    (written,) = read_program(f"REGISTER STREAM s (v int); {text}").queries
    rows = read_ungoverned(spark, shared, 13, metadata=[*kept, POSITION])
    made = compiled(written.query, lambda _: Feed(rows, ("v",), "at", POSITION, 1, kept=kept))
    folder = shared.parent if to is None else to
    writer = made.writeStream.format("parquet").option("path", str(folder / "out"))
    run_now(writer.option("checkpointLocation", str(folder / "cp")))
    return spark.read.schema(made.schema).parquet(str(folder / "out")).collect()


def since(row: Row) -> int:
    return int(row["_t"] // 1_000_000 - BASE)


def test_by_windows(spark: SparkSession, shared: Path) -> None:
    text = "SELECT count(*) AS n FROM s [RANGE 10 SEC SLIDE 10 SEC]"
    found = sorted(answers(spark, shared, text, windows_of, KEPT))
    assert [row["sic"] for row in found][:3] == pytest.approx([0.5, 0.2, 0.2])


def test_with_estimates_it_is_the_same_as_without(spark: SparkSession, shared: Path) -> None:
    text = "SELECT count(v) AS n FROM s [RANGE 10 SEC SLIDE 5 SEC] WHERE v % 3 > 0"
    found = {}
    for compiled, kept in ((windows_of, (KEPT,)), (estimates_of, ("_weight", KEPT, DRAWN))):
        rows = answers(spark, shared, text, compiled, *kept, to=shared.parent / compiled.__name__)
        found[compiled] = {row["window_start"]: row["sic"] for row in rows}
    assert len(found[windows_of]) >= 3
    assert found[estimates_of] == pytest.approx(found[windows_of])


def test_of_streams_that_are_united(spark: SparkSession, shared: Path) -> None:
    both = "ISTREAM(SELECT v FROM s WHERE v > 4) UNION ALL ISTREAM(SELECT v FROM s)"
    text = f"SELECT count(*) AS n FROM ({both}) [RANGE 20 SEC SLIDE 20 SEC]"
    (first, *_) = sorted(answers(spark, shared, text, windows_of, KEPT))
    assert first["n"] == 35
    assert first["sic"] == pytest.approx(35 / (15 / 0.5 + 20 / 0.2))


def test_tuple_by_tuple(spark: SparkSession, shared: Path) -> None:
    found = answers(spark, shared, "SELECT v AS w FROM s WHERE v % 2 = 0", rows_of, KEPT)
    assert {row["w"]: row["sic"] for row in found} == pytest.approx(
        {v: 0.5 if v < 10 else 0.2 for v in range(0, 40, 2)}
    )


def test_of_changes_that_need_no_state(spark: SparkSession, shared: Path) -> None:
    found = answers(spark, shared, "SELECT v FROM s [RANGE 3 SEC]", changes_of, KEPT)
    assert len(found) == 80
    assert all(row["sic"] == (0.5 if row["v"] < 10 else 0.2) for row in found)


@pytest.mark.parametrize(("window", "length"), [("RANGE 5 SEC", 5), ("ROWS 3", None)])
def test_of_changes_it_is_that_of_the_longest_window(
    spark: SparkSession, shared: Path, window: str, length: int | None
) -> None:
    found = answers(spark, shared, f"SELECT sum(v) AS total FROM s [{window}]", changes_of, KEPT)
    assert {since(row) for row in found} >= set(range(30))
    for row in found:
        t = since(row)
        first = 0 if length is None else max(0, t - length)
        stood_for = np.where(np.arange(first, min(t, 39) + 1) < 10, 2.0, 5.0)
        assert row["sic"] == pytest.approx(stood_for.size / stood_for.sum())


@pytest.mark.parametrize("compiled", [rows_of, changes_of])
def test_without_a_word_of_what_was_kept_there_is_none(
    spark: SparkSession, shared: Path, compiled: Compiled
) -> None:
    found = answers(spark, shared, "SELECT v FROM s", compiled)
    assert len(found) == 40
    assert "sic" not in found[0].asDict()
