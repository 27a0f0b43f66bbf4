"""The driver tells when micro-batches start their last stage, so that the next may begin beside it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PythonException
from tests.spark.helpers import create, fill, query_status, to_memory, until, windows

import penstock
from penstock.spark.driver.stages import StageListener

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_listener_hears_of_the_last_stage_of_each_job_until_it_is_stopped(spark: SparkSession) -> None:
    heard: list[str] = []
    listener = StageListener(spark, lambda run, _: heard.append(run))
    context = spark.sparkContext
    context.setJobGroup("mine", "two stages")
    try:
        shuffled = spark.range(1000).repartition(2)
        assert shuffled.count() == 1000
        until(lambda: heard, "the last stage")
        assert set(heard) == {"mine"}
        listener.stop()
        heard.clear()
        assert shuffled.count() == 1000
        context._jsc.sc().listenerBus().waitUntilEmpty()
        assert not heard
    finally:
        context.setLocalProperty("spark.jobGroup.id", None)


def test_a_listener_that_stops_leaves_another_one_listening(spark: SparkSession) -> None:
    context = spark.sparkContext
    for leaves in (0, 1):
        heard: list[list[str]] = [[], []]
        listeners = [StageListener(spark, lambda run, _, each=each: each.append(run)) for each in heard]  # type: ignore[misc]
        listeners[leaves].stop()
        context.setJobGroup("theirs", "two stages")
        try:
            assert spark.range(1000).repartition(2).count() == 1000
        finally:
            context.setLocalProperty("spark.jobGroup.id", None)
        context._jsc.sc().listenerBus().waitUntilEmpty()
        assert heard[1 - leaves]
        assert not heard[leaves]
        listeners[1 - leaves].stop()


def test_a_job_without_a_group_and_one_that_fails_leave_nothing_behind(spark: SparkSession) -> None:
    heard: list[str] = []
    listener = StageListener(spark, lambda run, _: heard.append(run))
    try:
        assert spark.range(10).repartition(2).count() == 10
        context = spark.sparkContext
        context.setJobGroup("failing", "its first stage fails")
        try:
            failing = context.parallelize([0], 1).map(lambda x: (1 // x, 1)).groupByKey()
            with pytest.raises(PythonException, match="ZeroDivisionError"):
                failing.count()
        finally:
            context.setLocalProperty("spark.jobGroup.id", None)
        context._jsc.sc().listenerBus().waitUntilEmpty()
        assert not heard
        assert not listener._last
    finally:
        listener.stop()


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
