"""The driver tells what tasks take, and when micro-batches start their last stage."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.errors import PythonException
from tests.spark.helpers import create, fill, query_status, to_memory, until, windows

import penstock
from penstock.spark.driver import task_events
from penstock.spark.driver.task_events import Cores, JobTasks, LastStage, TaskEvent, TaskEvents, parsed
from penstock.vocabulary.errors import UnmetError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def heard_by(spark: SparkSession, count: int = 1) -> Iterator[tuple[list[TaskEvents], list[list[TaskEvent]]]]:
    """Listeners, and what each of them hears of the jobs of a micro-batch in the body."""
    heard: list[list[TaskEvent]] = [[] for _ in range(count)]
    listeners = [TaskEvents(spark, each.append) for each in heard]
    context = spark.sparkContext
    context.setLocalProperty("spark.jobGroup.id", "mine")
    context.setLocalProperty("streaming.sql.batchId", "7")
    try:
        yield listeners, heard
    finally:
        context.setLocalProperty("spark.jobGroup.id", None)
        context.setLocalProperty("streaming.sql.batchId", None)
        for listener in listeners:
            listener.stop()


def jobs(heard: list[TaskEvent]) -> list[JobTasks]:
    return [event for event in heard if isinstance(event, JobTasks)]


def test_a_listener_hears_of_the_last_stage_and_of_the_tasks_of_each_job_until_it_is_stopped(
    spark: SparkSession,
) -> None:
    with heard_by(spark) as ([listener], [heard]):
        assert spark.range(1000).repartition(3).count() == 1000
        until(lambda: jobs(heard), "the end of a job")
        assert LastStage("mine", 7) in heard
        assert sum(job.tasks for job in jobs(heard)) >= 3
        for job in jobs(heard):
            assert (job.run, job.batch) == ("mine", 7)
            assert 0.0 <= job.core_s <= job.tasks * job.ready_ago_s + 0.001 * job.tasks
        listener.stop()
        heard.clear()
        assert spark.range(1000).repartition(3).count() == 1000
        spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
        assert not heard


def test_a_task_that_waits_counts_with_its_time_though_it_uses_no_cpu(spark: SparkSession) -> None:
    with heard_by(spark) as (_, [heard]):
        spark.range(4).repartition(2).mapInArrow(sleeps, "id long").collect()
        until(lambda: jobs(heard), "the end of a job")
        assert sum(job.core_s for job in jobs(heard)) >= 0.4


def sleeps(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Takes a fifth of a second a task, as a call of another service would."""
    threading.Event().wait(0.2)
    yield from batches


def test_a_listener_hears_first_how_many_cores_there_are(spark: SparkSession) -> None:
    with heard_by(spark) as (_, [heard]):
        until(lambda: heard, "word of cores")
        assert heard[0] == Cores(2)


def test_cores_that_spark_does_not_tell_are_those_seen_at_work_and_that_is_said_once(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def unknown(_: SparkSession) -> int:
        raise UnmetError("Spark says how many cores an executor has", "0", "see the cluster manager")

    monkeypatch.setattr(task_events, "task_slots", unknown)
    with heard_by(spark) as (_, [heard]):
        spark.range(4).repartition(2).mapInArrow(sleeps, "id long").collect()
        until(lambda: Cores(2) in heard, "two tasks at once")
    said = [record for record in caplog.records if "does not say how many cores" in record.message]
    assert len(said) == 1


def test_how_many_tasks_of_a_query_run_is_known_while_they_do(spark: SparkSession, tmp_path: Path) -> None:
    go_on = tmp_path / "go_on"

    def wait(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        while not go_on.exists():
            threading.Event().wait(0.01)
        yield from batches

    def see(listener: TaskEvents) -> None:
        try:
            until(lambda: listener.running().get("mine") == 2, "two tasks at work")
        finally:
            go_on.touch()

    with heard_by(spark) as ([listener], _), ThreadPoolExecutor(1) as beside:
        assert listener.running() == {}
        seen = beside.submit(see, listener)
        spark.range(4).repartition(2).mapInArrow(wait, "id long").collect()
        seen.result()
        until(lambda: listener.running() == {}, "the end of all tasks")


def test_a_listener_that_stops_leaves_another_one_listening(spark: SparkSession) -> None:
    for leaves in (0, 1):
        with heard_by(spark, 2) as (listeners, heard):
            until(lambda heard=heard: all(heard), "word of cores")  # type: ignore[misc]
            listeners[leaves].stop()
            heard[leaves].clear()
            assert spark.range(1000).repartition(2).count() == 1000
            until(lambda heard=heard, left=1 - leaves: jobs(heard[left]), "the end of a job")  # type: ignore[misc]
            assert not heard[leaves]


def test_a_failed_task_and_its_retries_count_once_and_jobs_of_no_query_do_not_count(
    spark: SparkSession,
) -> None:
    assert spark.range(10).repartition(2).count() == 10
    with heard_by(spark) as (_, [heard]):
        failing = spark.range(10).repartition(1).mapInArrow(fails, "id long")
        with pytest.raises(PythonException, match="ZeroDivisionError"):
            failing.count()
        until(lambda: jobs(heard), "the end of a job")
        assert all(job.run == "mine" for job in jobs(heard))
        assert jobs(heard)[-1].tasks <= 2, "the task that failed is none of them"


def fails(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch.slice(1 // 0)


@pytest.mark.parametrize(
    ("line", "event"),
    [
        ("stage 1f-2 12", LastStage("1f-2", 12)),
        ("job 1f-2 12 4 1500 2000", JobTasks("1f-2", 12, 4, 1.5, 2.0)),
        ("job 1f-2 12 4 1500", None),
        ("job 1f-2 twelve 4 1500 2000", None),
        ("word of a later version", None),
    ],
)
def test_a_line_of_the_listener_is_an_event_or_nothing(line: str, event: TaskEvent | None) -> None:
    assert parsed(line) == event


def test_the_control_plane_knows_how_long_the_last_stages_of_a_query_take(
    spark: SparkSession, tmp_path: Path
) -> None:
    log = create(tmp_path / "readings")
    with penstock.attach(spark, {"log": tmp_path, "classes": {"gold": {"target": "20s"}}}) as flow:
        counts = windows(flow.read_stream("readings", cls="gold", query="counts"))
        query = to_memory(counts, "counts_with_last_stages")
        first = 0

        def told() -> bool:
            nonlocal first
            fill(log, range(first, first + 100))
            first += 100
            status = query_status(flow, "counts")
            return status is not None and status["last_stage"] is not None

        until(told, "word of a last stage", query)
        status = query_status(flow, "counts")
        assert status is not None
        assert 0.0 < status["last_stage"] <= 1.0
