"""What goes wrong under a governed query: a clear error or a said degradation, nothing lost silently."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
import uuid
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F  # noqa: N812 - as every Spark program has it
from tests.spark.helpers import (
    alive,
    begin,
    check_books,
    committed,
    create,
    drain,
    fill,
    ids,
    journal_offsets,
    offsets,
    query_status,
    rows_of,
    to_files,
    to_memory,
    until,
)
from tests.waits import ran

import penstock
from penstock.grants.journal import read_journal
from penstock.streams.embedded.log import EmbeddedLog
from penstock.streams.flight.server import FlightServer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from penstock.spark.driver.flow import Flow

pytestmark = pytest.mark.spark

GOLD: dict[str, Any] = {"gold": {"target": "60s"}}


def attach(spark: SparkSession, root: Path, classes: dict[str, Any] = GOLD, **more: Any) -> Flow:
    return penstock.attach(spark, {"log": root, "classes": classes, **more})


def error_of(query: StreamingQuery) -> str:
    return str(until(query.exception, "its failure"))


def results(spark: SparkSession, folder: Path) -> DataFrame:
    return spark.read.parquet(str(folder / "results"))


# -- what a user gets wrong ------------------------------------------------------------------------


def test_triggers_that_cannot_be_governed_are_refused_with_the_hint_and_nothing_is_lost(
    spark: SparkSession, tmp_path: Path
) -> None:
    fill(create(tmp_path / "readings"), range(1500))
    with attach(spark, tmp_path) as flow:
        stream = flow.read_stream("readings", cls="gold")
        good = to_memory(stream, "default_trigger")  # from the same DataFrame: it goes on
        writer = stream.writeStream.format("parquet").option("path", str(tmp_path / "out" / "results"))
        writer = writer.option("checkpointLocation", str(tmp_path / "out" / "checkpoint"))
        error = error_of(begin(writer.trigger(processingTime="300 milliseconds").start))
        assert "a governed query has the default trigger; got: ProcessingTimeTrigger(300)" in error
        assert "hint: leave out .trigger(...)" in error
        again = begin(writer.trigger(processingTime="0 seconds").start)
        once = flow.read_stream("readings", cls="gold").writeStream.format("noop").trigger(once=True)
        assert "got: Trigger.Once; hint: use .trigger(availableNow=True)" in error_of(begin(once.start))
        drain(flow)
        assert again.isActive
        assert good.isActive
        check_books(flow, {"readings": 1500})
    assert ids(results(spark, tmp_path / "out")) == list(range(1500))
    assert ids(spark.table("default_trigger")) == list(range(1500))


def test_a_copied_checkpoint_is_refused_and_the_query_it_was_copied_from_goes_on(
    spark: SparkSession, tmp_path: Path
) -> None:
    log = create(tmp_path / "readings")
    fill(log, range(500))
    with attach(spark, tmp_path) as flow:
        first = to_files(flow.read_stream("readings", cls="gold"), tmp_path / "out")
        assert flow.drain()
        copied = tmp_path / "copy" / "checkpoint"
        shutil.copytree(tmp_path / "out" / "checkpoint", copied)
        shutil.copytree(tmp_path / "out" / "results", tmp_path / "copy" / "results")
        # another id stands for another driver: in one session Spark would end the first run itself
        (copied / "metadata").write_text(json.dumps({"id": str(uuid.uuid4())}))
        error = error_of(to_files(flow.read_stream("readings", cls="gold"), tmp_path / "copy"))
        assert "a checkpoint is used by one query at a time; got: reader" in error
        assert "use a new checkpointLocation" in error
        fill(log, range(500, 900))
        assert flow.drain()
        assert first.isActive
        check_books(flow, {"readings": 900})
    assert ids(results(spark, tmp_path / "out")) == list(range(900))
    log.close()


# -- the control plane dies or hangs ---------------------------------------------------------------


def await_a_grant(flow: Flow, log: EmbeddedLog, query: StreamingQuery) -> None:
    """Feeds rows until a batch of them was granted: on a busy machine some go on by themselves meanwhile."""

    def granted() -> bool:
        fill(log, range(log.end(), log.end() + 100))
        drain(flow)
        return not offsets(query)[-1].ungoverned

    until(granted, "a batch that was granted", query)


def test_a_killed_control_plane_is_replaced_and_no_row_is_twice_or_missing(
    spark: SparkSession, tmp_path: Path
) -> None:
    log = create(tmp_path / "readings", segment_rows=200)
    fill(log, range(2000))
    with attach(spark, tmp_path, run=tmp_path / "run", fail_open_after="0.3s") as flow:
        query = to_memory(flow.read_stream("readings", cls="gold"), "killed")
        flow.set_target("gold", "50s")
        flow.change("gold", priority=3.0)
        flow.set_shedding(False)
        control = flow.control
        assert control is not None
        until(lambda: offsets(query), "a batch", query)
        killed = control.pid
        os.kill(killed, signal.SIGKILL)
        fill(log, range(2000, 4000))
        until(lambda: control.pid != killed and flow.status(), "another", query)
        until(lambda: rows_of(flow, "readings") == 4000, "the rest", query)
        check_books(flow, {"readings": 4000})
        until(lambda: flow.status().classes["gold"].priority == 3.0, "what was changed before")
        until(lambda: not flow.status().shedding, "a kill switch that stays off")
        assert flow.status().classes["gold"].target_s == 50.0
        await_a_grant(flow, log, query)
        assert not alive(killed)
    assert ids(spark.table("killed")) == list(range(log.end()))
    assert (tmp_path / "run-2" / "report.json").exists()


def test_a_control_plane_that_hangs_is_done_without_until_it_answers_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    log = create(tmp_path / "readings", segment_rows=200)
    fill(log, range(1000))
    with attach(spark, tmp_path, fail_open_after="0.3s") as flow:
        query = to_memory(flow.read_stream("readings", cls="gold"), "hangs")
        until(lambda: offsets(query), "a batch", query)
        assert flow.control is not None
        os.kill(flow.control.pid, signal.SIGSTOP)
        try:
            fill(log, range(1000, 3000))
            alone = until(lambda: [o for o in offsets(query) if o.ungoverned], "a batch alone", query)
            assert max(o.end[0] - o.start[0] for o in alone) <= 1000, "never everything at once"
        finally:
            os.kill(flow.control.pid, signal.SIGCONT)
        until(flow.drain, "the end", query)
        await_a_grant(flow, log, query)
        assert rows_of(flow, "readings", "ungoverned") >= len(alone)
        assert rows_of(flow, "readings", "shed") == 0, "what came while it hung is not late"
        assert rows_of(flow, "readings") == log.end(), "nothing waits once it is drained"
        check_books(flow, {"readings": log.end()})
    assert ids(spark.table("hangs")) == list(range(log.end()))


# -- queries that fail -----------------------------------------------------------------------------


def poisoned(stream: DataFrame, marker: int) -> DataFrame:
    bad = F.when(F.col("id") == marker, F.raise_error(F.lit("a bad row"))).otherwise(F.col("id"))
    return stream.select(bad.cast("long").alias("id"))


def test_a_failing_query_frees_its_slot_and_its_grant_is_set_aside_after_two_failures(
    spark: SparkSession, tmp_path: Path
) -> None:
    log = create(tmp_path / "readings", segment_rows=200)
    fill(log, range(1300), appends=4)
    classes = {"gold": {"target": "60s", "poison_after": 2}, "bulk": {"target": "60s"}}
    with attach(spark, tmp_path, classes) as flow:
        frame = poisoned(flow.read_stream("readings", cls="gold", query="bad"), 1234)
        tried = []
        for attempt in (1, 2):
            assert "a bad row" in error_of(to_files(frame, tmp_path / "bad")), attempt
            (journal,) = (tmp_path / "readings" / "plans").glob("bad-*")
            entry = read_journal(journal).logged()[-1]
            tried.append((entry.offset, entry.attempts))
        assert tried == [(tried[0][0], 1), (tried[0][0], 2)], "the same batch, with the same plan"
        good = to_memory(flow.read_stream("readings", cls="bulk", query="good"), "not_bad")
        until(lambda: spark.table("not_bad").count() == 1300, "the other query's end", good)
        query = to_files(frame, tmp_path / "bad")
        drain(flow)
        assert query.isActive
        check_books(flow, {"readings": 1300})
        status = query_status(flow, "bad")
        assert status is not None
        (reader,) = status["readers"].values()
    aside = tried[0][0]
    lost = set(range(1300)) - set(ids(results(spark, tmp_path / "bad")))
    assert lost == set(range(aside.start[0], aside.end[0])), "the grant with the bad row, and nothing else"
    assert 1234 in lost
    assert (reader["poison"], reader["shed"]) == (len(lost), len(lost))
    assert reader["admitted"] == 1300 - len(lost)


def break_data(stream: Path, how: str) -> tuple[Path, bytes]:
    """Breaks the second data file of a stream; returns it and what it held."""
    path = sorted(stream.glob("p0000/*.data"))[1]
    before = path.read_bytes()
    if how == "deleted":
        path.unlink()
    else:
        middle = len(before) // 2
        flipped = bytes(byte ^ 0xFF for byte in before[middle : middle + 64])
        path.write_bytes(before[:middle] + flipped + before[middle + 64 :])
    return path, before


def test_damaged_data_fails_its_query_by_name_others_go_on_and_once_restored_nothing_is_missing(
    spark: SparkSession, tmp_path: Path
) -> None:
    kinds = ("deleted", "torn")
    for name in (*kinds, "sound"):
        fill(create(tmp_path / name, segment_rows=100, file_bytes=10_000), range(1500), appends=15)
    broken = {name: break_data(tmp_path / name, name) for name in kinds}
    with attach(spark, tmp_path) as flow:
        frames = {name: flow.read_stream(name, cls="gold") for name in (*kinds, "sound")}
        queries = {name: to_files(frame, tmp_path / f"{name}-out") for name, frame in frames.items()}
        for name in kinds:
            error = error_of(queries[name])
            said = re.search(rf"stream {name}, partition 0, from position (\d+)", error)
            assert said, error
            starts = [int(path.stem) for path in sorted((tmp_path / name).glob("p0000/*.data"))]
            begins = int(broken[name][0].stem)
            assert begins <= int(said[1]) < min(start for start in starts if start > begins)
        drain(flow)
        assert queries["sound"].isActive
        check_books(flow, {"deleted": 1500, "torn": 1500, "sound": 1500})
        for name, (path, before) in broken.items():
            path.write_bytes(before)
            queries[name] = to_files(frames[name], tmp_path / f"{name}-out")
        drain(flow)
        check_books(flow, {"deleted": 1500, "torn": 1500, "sound": 1500})
    for name in (*kinds, "sound"):
        assert ids(results(spark, tmp_path / f"{name}-out")) == list(range(1500)), name


# -- stopping and starting -------------------------------------------------------------------------


def test_stop_is_between_two_batches_leaves_no_process_and_again_is_a_no_op(
    spark: SparkSession, tmp_path: Path
) -> None:
    fill(create(tmp_path / "readings"), range(3000))
    flow = attach(spark, tmp_path)
    assert flow.control is not None
    pid = flow.control.pid
    slow = flow.read_stream("readings", cls="gold").where("reflect('java.lang.Thread','sleep',1L) IS NULL")
    query = to_files(slow, tmp_path / "out")
    bystander = spark.readStream.format("rate").load().writeStream.format("noop").start()
    until(lambda: (query_status(flow, "readings") or {}).get("running"), "a batch", query)
    flow.stop()
    assert not query.isActive
    assert query.exception() is None
    began, completed = committed(tmp_path / "out" / "checkpoint")
    assert began == completed != set()
    assert not alive(pid)
    assert bystander.isActive, "a query that is not governed is not ours to stop"
    bystander.stop()
    flow.stop()


def test_an_exception_in_the_with_block_stops_the_queries_and_is_not_swallowed(
    spark: SparkSession, tmp_path: Path
) -> None:
    fill(create(tmp_path / "readings"), range(100))
    flow = attach(spark, tmp_path)
    assert flow.control is not None
    pid, query = flow.control.pid, to_memory(flow.read_stream("readings", cls="gold"), "in_with")
    with pytest.raises(ZeroDivisionError), flow:
        1 / 0
    assert not query.isActive
    assert not alive(pid)


def test_a_query_that_is_started_again_goes_on_as_the_same_reader_with_its_books(
    spark: SparkSession, tmp_path: Path
) -> None:
    log = create(tmp_path / "readings", segment_rows=200)
    for first in (0, 1500):  # the second time with another control plane, as after a driver's restart
        fill(log, range(first, first + 1500))
        with attach(spark, tmp_path) as flow:
            stream = flow.read_stream("readings", cls="gold", metadata=["_seq"])
            query = to_files(stream, tmp_path / "out")
            if first == 0:
                until(partial(offsets, query), "a batch", query)
                query.stop()  # anywhere, also inside a batch
                to_files(stream, tmp_path / "out")
            drain(flow)
            check_books(flow, {"readings": first + 1500})
            assert rows_of(flow, "readings") == first + 1500
    (grants,) = journal_offsets(tmp_path / "readings").values()
    assert grants[-1].books.admitted == 3000
    rows = results(spark, tmp_path / "out")
    assert ids(rows) == list(range(3000))
    assert sorted(row["_seq"] for row in rows.select("_seq").collect()) == list(range(3000))


PRODUCER = """
import sys
import numpy as np
from penstock.streams.flight.client import FlightLog
from penstock.streams.protocol import AppendKey
import pyarrow as pa
with FlightLog(sys.argv[1], "readings") as log:
    for batch in range(5):
        ids = np.arange(batch * 300, batch * 300 + 300)
        at = pa.array(ids, pa.timestamp("us", tz="UTC"))
        for _ in range(2):  # a repeat, as after a connection that broke
            log.append(pa.record_batch({"id": ids, "k": ids, "ts": at}), key=AppendKey("other", batch))
"""


def test_a_producer_in_another_process_feeds_a_governed_query_over_flight(
    spark: SparkSession, tmp_path: Path
) -> None:
    create(tmp_path / "readings")
    with FlightServer(tmp_path) as server, attach(spark, tmp_path) as flow:
        query = to_memory(flow.read_stream("readings", cls="gold"), "over_flight")
        assert ran([sys.executable, "-c", PRODUCER, server.address]).returncode == 0
        assert EmbeddedLog(tmp_path / "readings").end() == 1500
        drain(flow)
        assert query.isActive
        check_books(flow, {"readings": 1500})
    assert ids(spark.table("over_flight")) == list(range(1500))


def test_a_checkpoint_is_refused_on_a_stream_that_was_created_anew(
    spark: SparkSession, tmp_path: Path
) -> None:
    with create(tmp_path / "readings") as log:
        fill(log, range(100))
        with attach(spark, tmp_path) as flow:
            to_files(flow.read_stream("readings", cls="gold"), tmp_path / "out")
            drain(flow)
    shutil.rmtree(tmp_path / "readings")
    fill(create(tmp_path / "readings"), range(500))
    with attach(spark, tmp_path) as flow:
        query = to_files(flow.read_stream("readings", cls="gold"), tmp_path / "out")
        assert "a checkpoint goes on with the stream it was begun on" in error_of(query)
    assert ids(results(spark, tmp_path / "out")) == list(range(100))
