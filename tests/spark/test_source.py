"""Governed queries on real Spark, with a real control plane: what they read, and what they say about it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as F  # noqa: N812 - as every Spark program has it
from tests.spark.helpers import (
    DAY_S,
    check_books,
    create,
    drain,
    end_of,
    every_row,
    fill,
    ids,
    offsets,
    query_status,
    rows_of,
    to_memory,
    until,
    windows,
    windows_of,
)

import penstock
from penstock.grants.offset import Offset
from penstock.grants.plans import KEEP_ALL
from penstock.grants.selection import Range, read_range
from penstock.grants.sic import row_sic
from penstock.spark.source.metadata import spark_schema
from penstock.spark.source.ungoverned import read_ungoverned
from penstock.streams.embedded.log import EmbeddedLog
from penstock.vocabulary.errors import InvalidInputError, UnknownNameError

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession


pytestmark = pytest.mark.spark

ROWS = 3600


# -- nothing is shed -------------------------------------------------------------------------------


@dataclass
class Unshed:
    """Two queries, started from one governed DataFrame, have read everything."""

    log: EmbeddedLog
    windows: Counter[tuple]
    rows: list[Row]
    readers: dict[str, dict[str, Any]]
    offsets: list[Offset]


@pytest.fixture(scope="module")
def unshed(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Unshed:
    root = tmp_path_factory.mktemp("unshed")
    log = create(root / "readings", partitions=3, segment_rows=500)
    fill(log, range(ROWS), appends=4)
    with penstock.attach(spark, {"log": root, "classes": {"gold": {"target": "60s"}}}) as flow:
        stream = flow.read_stream("readings", cls="gold", metadata=True)
        to_memory(windows(stream), "windows_unshed")
        raw = to_memory(stream, "rows_unshed")
        drain(flow)
        check_books(flow, {"readings": ROWS})
        queries = flow.status().to_json()["classes"]["gold"]["queries"]
        done = offsets(raw)
    return Unshed(
        log,
        every_row(spark.table("windows_unshed")),
        sorted(spark.table("rows_unshed").collect(), key=lambda row: row["_seq"]),
        {name: reader for query in queries.values() for name, reader in query["readers"].items()},
        done,
    )


def test_a_governed_aggregate_equals_an_ungoverned_one_when_nothing_is_shed(unshed: Unshed) -> None:
    expected = windows_of(range(ROWS))
    assert len(expected) == 3 * 7, "windows and keys"
    assert unshed.windows == expected


def test_two_queries_from_one_dataframe_are_two_readers_with_books_of_their_own(unshed: Unshed) -> None:
    assert len(unshed.readers) == 2
    for reader in unshed.readers.values():
        assert (reader["admitted"], reader["shed"], reader["waiting"]) == (ROWS, 0, 0)
    assert {offset.reader for offset in unshed.offsets} < set(unshed.readers)


def test_metadata_columns_say_where_a_row_comes_from_and_what_it_is_worth(unshed: Unshed) -> None:
    rows = unshed.rows
    assert [row["_seq"] for row in rows] == list(range(ROWS)), "dense, from the first admitted row on"
    assert sorted(row.id for row in rows) == list(range(ROWS))
    log, seq = unshed.log, 0
    for offset in unshed.offsets:  # ordered by grant, partition, position
        if offset.grant and not offset.tick:
            assert offset.sic == row_sic(log, offset.end, 10_000_000, 1)
        for p in sorted(offset.end):
            if offset.start[p] == offset.end[p]:
                continue
            for piece in read_range(log, KEEP_ALL, Range(p, offset.start[p], offset.end[p], seq)):
                got = rows[seq : seq + piece.rows.num_rows]
                assert [row["_position"] for row in got] == piece.positions.tolist()
                assert [row.id for row in got] == piece.rows.column("id").to_pylist()
                arrived_us = [round(row["_arrival"].timestamp() * 1e6) for row in got]
                assert arrived_us == piece.rows.column("_arrival").to_pylist()
                assert {row["_sic"] for row in got} == {offset.sic}
                assert {row["_weight"] for row in got} == {1.0}
                seq += len(got)
    assert seq == ROWS


def test_an_existing_query_changes_by_one_line(spark: SparkSession, tmp_path: Path) -> None:
    fill(create(tmp_path / "readings"), range(1500))
    with penstock.attach(spark, {"log": tmp_path, "classes": {"gold": {"target": "60s"}}}) as flow:
        before = read_ungoverned(spark, tmp_path / "readings")
        after = flow.read_stream("readings", cls="gold")
        assert after.schema == before.schema
        assert after.columns == ["id", "k", "ts"], "metadata columns are off by default"
        for name, stream in {"plain": before, "governed": after}.items():
            to_memory(stream.dropDuplicates().where("id % 3 = 0").select("id"), f"one_line_{name}")
        drain(flow)
        until(lambda: spark.table("one_line_plain").count() == 500, "the plain one's end")
        for query in spark.streams.active:
            query.processAllAvailable()
    assert ids(spark.table("one_line_governed")) == ids(spark.table("one_line_plain"))


def test_what_is_not_known_is_refused_with_the_nearest_known(spark: SparkSession, tmp_path: Path) -> None:
    create(tmp_path / "readings")
    with penstock.attach(spark, {"log": tmp_path, "classes": {"gold": {"target": "2s"}}}) as flow:
        with pytest.raises(UnknownNameError, match=r"class must be one of gold; got: 'golf'; hint: .*'gold'"):
            flow.read_stream("readings", cls="golf")
        with pytest.raises(UnknownNameError, match="got: 'golf'"):
            flow.query("fraud", cls="golf")
        with pytest.raises(UnknownNameError, match=r"a stream .* got: 'reading'; hint: .*'readings'"):
            flow.read_stream("reading", cls="gold")
        with pytest.raises(UnknownNameError, match=r"metadata column .* got: '_wait'; hint: .*'_weight'"):
            flow.read_stream("readings", cls="gold", metadata=["_wait"])
        with pytest.raises(UnknownNameError, match="got: 'newest'"):
            flow.read_stream("readings", cls="gold", starting="newest")
        flow.query("fraud", cls="gold")
        with pytest.raises(InvalidInputError, match="a query's name is used once"):
            flow.query("fraud", cls="gold")


def test_a_column_named_like_metadata_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="name of a metadata column; got: '_weight'; hint"):
        spark_schema(pa.schema([("id", pa.int64()), ("_weight", pa.float64())]), ["_weight"])


def test_the_log_itself_refuses_a_column_named_like_metadata(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="_weight"):
        EmbeddedLog.create(tmp_path / "readings", pa.schema([("_weight", pa.float64())]))
    assert not (tmp_path / "readings" / "stream.json").exists()


# -- quiet -----------------------------------------------------------------------------------------


def test_a_quiet_stream_closes_its_windows_with_exactly_one_empty_batch(
    spark: SparkSession, tmp_path: Path
) -> None:
    log = create(tmp_path / "readings")
    with penstock.attach(spark, {"log": tmp_path, "classes": {"gold": {"target": "600ms"}}}) as flow:
        query = to_memory(windows(flow.read_stream("readings", cls="gold")), "ticks")

        def closed() -> set[int]:
            """Ends of the windows that are there, after the first second."""
            ends = spark.table("ticks").select(F.unix_seconds("window.end"))
            return {row[0] - DAY_S for row in ends.collect()}

        for end, ends in ((1200, {10}), (2400, {10, 20})):
            fill(log, range(end - 1200, end))
            until(lambda ends=ends: closed() == ends, "the window", query)  # type: ignore[misc]
            # further rows of the stretch may have closed it, and a tick follows them all the same
            until(lambda: offsets(query)[-1].tick, "the empty batch", query)
        until(lambda: query_status(flow, "readings") and not rows_of(flow, "readings", "running"), "its end")
        grants, at_s = offsets(query)[-1].grant, flow.status().up_s
        until(lambda: flow.status().up_s > at_s + 1.0, "time for another three")
        done = offsets(query)
        assert done[-1].grant == grants
        assert [offset.tick for offset in done if offset.tick or offset.end[0] in (1200, 2400)] == [
            *(False, True),
            *(False, True),
        ], "one after each stretch of data"
        ticks = [r for r in query.recentProgress if (end := end_of(dict(r))) is not None and end.tick]
        assert [report["numInputRows"] for report in ticks] == [0, 0]
