"""Governed queries on real Spark, with a real control plane: what they read, and what they say about it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F  # noqa: N812 - as every Spark program has it
from tests.spark.helpers import (
    DAY_S,
    STEP_S,
    check_books,
    create,
    end_of,
    every_row,
    fill,
    ids,
    journal_offsets,
    offsets,
    query_status,
    readings,
    rows_of,
    to_memory,
    until,
    windows,
)

import penstock
from penstock.control.rundir import read_run
from penstock.errors import InvalidInputError, UnknownNameError
from penstock.grants.offset import Offset
from penstock.grants.plan import KEEP_ALL
from penstock.grants.selection import Range, read_range, select
from penstock.grants.sic import row_sic
from penstock.log.embedded import EmbeddedLog
from penstock.log.paced import PacedLog, create_paced
from penstock.log.schedule import schedule_constant
from penstock.spark.capacity import read_ungoverned
from penstock.spark.columns import spark_schema

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

    from penstock.spark.flow import Flow

pytestmark = pytest.mark.spark

ROWS = 3600


# -- nothing is shed -------------------------------------------------------------------------------


@dataclass
class Unshed:
    """Two queries, started from one governed DataFrame, have read everything."""

    log: EmbeddedLog
    windows: Counter[tuple]
    expected: Counter[tuple]
    rows: list[Row]
    readers: dict[str, dict[str, Any]]
    offsets: list[Offset]


@pytest.fixture(scope="module", params=[1, 3], ids=["one_partition", "three_partitions"])
def unshed(
    request: pytest.FixtureRequest, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Unshed:
    root = tmp_path_factory.mktemp("unshed")
    log = create(root / "readings", request.param, segment_rows=500)
    fill(log, range(ROWS), appends=4)
    names = f"windows_{request.param}", f"rows_{request.param}"
    with penstock.attach(spark, {"log": root, "classes": {"gold": {"target": "60s"}}}) as flow:
        stream = flow.read_stream("readings", cls="gold", metadata=True)
        to_memory(windows(stream), names[0])
        raw = to_memory(stream, names[1])
        assert flow.drain()
        check_books(flow, {"readings": ROWS})
        queries = flow.status()["classes"]["gold"]["queries"]
        done = offsets(raw)
    every = windows(spark.createDataFrame(readings(range(ROWS)).to_pandas()))
    closed_s = DAY_S + int(ROWS * STEP_S - 1) // 10 * 10  # where the watermark of the last row is
    expected = every.where(F.unix_seconds("window.end") <= closed_s)
    return Unshed(
        log,
        every_row(spark.table(names[0])),
        every_row(expected),
        sorted(spark.table(names[1]).collect(), key=lambda row: row["_seq"]),
        {name: reader for query in queries.values() for name, reader in query["readers"].items()},
        done,
    )


def test_a_governed_aggregate_equals_an_ungoverned_one_when_nothing_is_shed(unshed: Unshed) -> None:
    assert len(unshed.expected) == 3 * 7, "windows and keys"
    assert unshed.windows == unshed.expected


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
        assert flow.drain()
        until(lambda: spark.table("one_line_plain").count() == 500)
        for query in spark.streams.active:
            query.processAllAvailable()
    assert ids(spark.table("one_line_governed")) == ids(spark.table("one_line_plain"))


def test_what_is_not_known_is_refused_with_the_nearest_known(spark: SparkSession, tmp_path: Path) -> None:
    create(tmp_path / "readings")
    with penstock.attach(spark, {"log": tmp_path, "classes": {"gold": {"target": "2s"}}}) as flow:
        with pytest.raises(UnknownNameError, match=r"class must be one of gold; got 'golf'; hint: .*'gold'"):
            flow.read_stream("readings", cls="golf")
        with pytest.raises(UnknownNameError, match="got 'golf'"):
            flow.query("fraud", cls="golf")
        with pytest.raises(UnknownNameError, match=r"a stream .* got 'reading'; hint: .*'readings'"):
            flow.read_stream("reading", cls="gold")
        with pytest.raises(UnknownNameError, match=r"metadata column .* got '_wait'; hint: .*'_weight'"):
            flow.read_stream("readings", cls="gold", metadata=["_wait"])
        with pytest.raises(UnknownNameError, match="got 'newest'"):
            flow.read_stream("readings", cls="gold", starting="newest")
        flow.query("fraud", cls="gold")
        with pytest.raises(InvalidInputError, match="a query's name is used once"):
            flow.query("fraud", cls="gold")


def test_a_column_named_like_metadata_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="a column is not named as metadata; got '_weight'; hint"):
        spark_schema(pa.schema([("id", pa.int64()), ("_weight", pa.float64())]), ["_weight"])


def test_the_log_itself_refuses_a_column_named_like_metadata(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="_weight"):
        EmbeddedLog.create(tmp_path / "readings", pa.schema([("_weight", pa.float64())]))
    assert not (tmp_path / "readings" / "stream.json").exists()


# -- overload --------------------------------------------------------------------------------------


@dataclass
class Overloaded:
    """A query at many times its capacity, and what was changed while it ran."""

    log: PacedLog
    run: Path
    results: Path
    offsets: list[Offset]
    reports: list[dict[str, Any]]
    marks: dict[str, int] = field(default_factory=dict)
    """By what was changed, the grant after which it was surely in force."""
    status: dict[str, dict[str, Any]] = field(default_factory=dict)


RATE = 4e6


@pytest.fixture(scope="module")
def overloaded(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Overloaded:
    root = tmp_path_factory.mktemp("overloaded")
    rng = np.random.default_rng(3)
    pool = pa.record_batch({"k": rng.integers(0, 1000, 16_384), "v": rng.random(16_384)})
    log = create_paced(root / "readings", [pool], schedule_constant(RATE, 60.0, 4096))
    config = {"log": root, "run": root / "run", "classes": {"gold": {"target": "1.5s"}}}
    with penstock.attach(spark, config) as flow:
        stream = flow.read_stream("readings", cls="gold", metadata=["_position", "_weight"])
        text = F.concat(F.col("k").cast("string"), F.lit(":"), F.col("v").cast("string"))
        digest = F.sha2(F.sha2(F.sha2(text, 512), 512), 512)
        query = (
            stream.select("_position", "_weight", F.substring(digest, 1, 2).alias("d"))
            .writeStream.format("parquet")
            .option("checkpointLocation", str(root / "checkpoint"))
            .option("path", str(root / "results"))
            .start()
        )
        log.begin()
        made = Overloaded(log, root / "run", root / "results", [], [])

        def grants(count: int) -> int:
            """The number of the last grant, so many batches from now."""
            wanted = offsets(query)[-1].grant + count
            until(lambda: offsets(query)[-1].grant >= wanted, "a grant", query)
            return wanted

        def then(name: str) -> None:
            made.marks[name] = grants(1)  # one may have been proposed before the change
            made.status[name] = flow.status()["classes"]["gold"]
            grants(2)

        until(lambda: (query_status(flow, "readings") or {}).get("shed"), "shedding", query)
        then("shed")
        flow.set_target("gold", "2s")
        flow.change("gold", priority=5.0, dry_run=True)
        then("dry_run")
        flow.change("gold", dry_run=False)
        flow.set_shedding(False)
        then("kill_switch")
        flow.set_shedding(True)
        flow.change("gold", manager="aurora", settings={"headroom": 0.9})
        then("manager")
        made.reports = [dict(report) for report in query.recentProgress]
        flow.stop()
    (made.offsets,) = journal_offsets(root / "readings").values()
    return made


def of(overloaded: Overloaded, name: str) -> list[Offset]:
    """Two grants made after a change."""
    first = overloaded.marks[name]
    return [offset for offset in overloaded.offsets if first < offset.grant <= first + 2]


def test_the_rows_that_spark_reads_are_those_that_the_plan_selects(overloaded: Overloaded) -> None:
    table = pq.read_table(overloaded.results)
    assert any(not offset.plan.keeps_all for offset in overloaded.offsets)
    wanted = [np.empty(0, np.int64)]
    for offset in overloaded.offsets:
        for s in select(overloaded.log, offset):
            if s.first.size:
                stretch = Range(s.partition, int(s.first[0]), int(s.end[-1]), 0)
                wanted += [p.positions for p in read_range(overloaded.log, offset.plan, stretch)]
    positions = np.sort(table.column("_position").to_numpy())
    assert np.array_equal(positions, np.concatenate(wanted))
    assert positions.size == overloaded.offsets[-1].books.admitted


def test_weights_add_up_to_about_the_rows_they_stand_for(overloaded: Overloaded) -> None:
    books = overloaded.offsets[-1].books
    weights = pq.read_table(overloaded.results).column("_weight").to_numpy()
    assert books.sampled > books.admitted
    # which segments were opened is known, so only the coins of rows are left, each of its row's weight
    spread = np.sqrt((weights**2).sum())
    assert spread < 0.02 * weights.sum()
    assert weights.sum() == pytest.approx(books.admitted + books.sampled, abs=4.5 * spread)


def test_the_books_of_an_overloaded_query_are_exact_in_every_offset(overloaded: Overloaded) -> None:
    for offset in overloaded.offsets:
        assert offset.books.offered == offset.end[0]
    for status in overloaded.status.values():
        assert status["offered"] == status["admitted"] + status["shed"] + status["waiting"]


def test_spark_is_told_the_true_end_of_the_log(overloaded: Overloaded) -> None:
    ends = [(end_of(r), end_of(r, which="latestOffset")) for r in overloaded.reports]
    shown = [(end, latest) for end, latest in ends if end and latest]
    assert len(shown) > 5
    assert all(latest.end[0] >= end.end[0] for end, latest in shown)
    assert any(latest.end[0] > end.end[0] for end, latest in shown), "a backlog shows"


def test_a_new_target_and_priority_are_in_force_in_later_decisions(overloaded: Overloaded) -> None:
    assert overloaded.status["shed"]["target_s"] == 1.5
    assert overloaded.status["dry_run"]["target_s"] == 2.0
    assert overloaded.status["dry_run"]["priority"] == 5.0
    targets = [o.delay_target_s for o in read_run(overloaded.run).observations]
    assert (targets[0], targets[-1]) == (1.5, 2.0)


def test_a_dry_run_sheds_nothing_and_records_what_it_would_have_done(overloaded: Overloaded) -> None:
    assert all(offset.plan.keeps_all and not offset.late for offset in of(overloaded, "dry_run"))
    lines = (overloaded.run / "decisions.jsonl").read_text().splitlines()
    dry = [line for line in map(json.loads, lines) if line["dry_run"]]
    assert dry
    assert any(
        line["proposed"]["keep_fraction"] < 1 or line["proposed"]["grant"]["keep_fraction"] < 1
        for line in dry
    )


def test_the_kill_switch_sheds_nothing_in_later_grants(overloaded: Overloaded) -> None:
    assert all(offset.plan.keeps_all and not offset.late for offset in of(overloaded, "kill_switch"))
    assert all(not offset.plan.keeps_all or offset.late for offset in of(overloaded, "shed"))


def test_another_manager_takes_over_while_the_query_runs(overloaded: Overloaded) -> None:
    assert overloaded.status["manager"]["manager"] == "aurora"
    assert overloaded.status["dry_run"]["manager"] == "deadline"


def test_a_recorded_run_is_read_back(overloaded: Overloaded) -> None:
    run = read_run(overloaded.run)
    assert not run.truncated
    assert len(run.observations) == len(run.decisions) > 5
    assert json.loads((overloaded.run / "report.json").read_text())["kind"] == "spark"


def test_a_target_below_the_measured_floor_is_refused_and_the_floor_said(
    spark: SparkSession, flow_of: Any, tmp_path: Path
) -> None:
    log = create(tmp_path / "readings")
    fill(log, range(8000), appends=8)
    flow: Flow = flow_of({"gold": {"target": "60s"}})
    query = to_memory(flow.read_stream("readings", cls="gold"), "floor")

    def floor_s() -> float | None:
        if (query_status(flow, "readings") or {}).get("waiting") == 0:
            fill(log, range(100))  # the cost of a batch is known after some batches
        found: float | None = flow.status()["classes"]["gold"]["floor_s"]
        return found

    found_s = until(floor_s, "a floor", query) or 0.0
    with pytest.raises(InvalidInputError, match=r"at least the measured floor of \d+\.\d\d s; got 0.001 s"):
        flow.set_target("gold", "1ms")
    assert flow.status()["classes"]["gold"]["target_s"] == 60.0
    flow.set_target("gold", found_s * 1.5)
    assert flow.status()["classes"]["gold"]["target_s"] == found_s * 1.5


@pytest.fixture
def flow_of(spark: SparkSession, tmp_path: Path) -> Iterator[Any]:
    """Attaches with the given classes; the test's directory is the log."""
    flows: list[Flow] = []

    def attach(classes: dict[str, Any], **more: Any) -> Flow:
        flows.append(penstock.attach(spark, {"log": tmp_path, "classes": classes, **more}))
        return flows[-1]

    yield attach
    for flow in flows:
        flow.stop()


def test_a_quiet_stream_closes_its_windows_with_exactly_one_empty_batch(
    spark: SparkSession, flow_of: Any, tmp_path: Path
) -> None:
    log = create(tmp_path / "readings")
    flow: Flow = flow_of({"gold": {"target": "600ms"}})
    query = to_memory(windows(flow.read_stream("readings", cls="gold")), "ticks")

    def closed() -> set[int]:
        """Ends of the windows that are there, after the first second."""
        return {row[0] - DAY_S for row in spark.table("ticks").select(F.unix_seconds("window.end")).collect()}

    fill(log, range(1200))
    until(lambda: closed() == {10}, "the window", query)
    fill(log, range(1200, 2400))
    until(lambda: closed() == {10, 20}, "the next window", query)
    until(lambda: query_status(flow, "readings") and not rows_of(flow, "readings", "running"), "its end")
    grants, at_s = offsets(query)[-1].grant, flow.status()["up_s"]
    until(lambda: flow.status()["up_s"] > at_s + 1.0, "time for another three")
    done = offsets(query)
    assert done[-1].grant == grants
    assert [offset.tick for offset in done if offset.tick or offset.end[0] in (1200, 2400)] == [
        *(False, True),
        *(False, True),
    ], "one after each stretch of data"
    assert [report["numInputRows"] for report in query.recentProgress].count(0) == 2
