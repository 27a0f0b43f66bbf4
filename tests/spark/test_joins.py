"""Queries with several governed streams: one cut a micro-batch, right results, no deadlock."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from pyspark.sql import functions as F  # noqa: N812 - as every Spark program has it
from tests.segments import headers, read
from tests.spark.helpers import (
    check_books,
    create,
    drain,
    end_of,
    fill,
    ids,
    query_status,
    readings,
    to_memory,
    until,
)

import penstock

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock.streams.embedded.log import EmbeddedLog

pytestmark = pytest.mark.spark

GOLD = {"gold": {"target": "60s"}}


def joined(orders: DataFrame, payments: DataFrame) -> DataFrame:
    """A payment follows its order within a minute."""
    left = orders.withWatermark("ts", "2 seconds").select("id", F.col("ts").alias("ordered"))
    right = payments.withWatermark("ts", "2 seconds")
    right = right.select(F.col("id").alias("paid_id"), "k", F.col("ts").alias("paid"))
    in_time = (F.col("paid") >= F.col("ordered")) & (
        F.col("paid") <= F.col("ordered") + F.expr("INTERVAL 1 MINUTE")
    )
    return left.join(right, (F.col("id") == F.col("paid_id")) & in_time)


def test_a_join_equals_that_of_a_batch_and_each_micro_batch_has_one_cut(
    spark: SparkSession, tmp_path: Path
) -> None:
    orders, payments = create(tmp_path / "orders"), create(tmp_path / "payments", partitions=2)
    rng = np.random.default_rng(5)
    began_us = int(time.time() * 1e6) - 1_000_000  # none of them later than now
    arrivals: dict[tuple[int, int], list[int]] = {(0, 0): [], (1, 0): [], (1, 1): []}
    for i, part in enumerate(np.array_split(np.arange(4000), 40)):
        for (source, p), log in zip(arrivals, (orders, payments, payments), strict=True):
            mine = part if source == 0 else part[part % 4 == p]
            if rng.random() < 0.3:  # not every stream has rows at every moment
                continue
            at_us = began_us + i * 1000 + source * 300 + p * 100
            log.append(readings(mine), p, arrival_us=np.full(mine.size, at_us))
            arrivals[source, p] += [at_us] * mine.size
    with penstock.attach(spark, {"log": tmp_path, "classes": GOLD}) as flow:
        readers = flow.query("fraud", cls="gold")
        frames = readers.read_stream("orders"), readers.read_stream("payments")
        query = to_memory(joined(*frames), "fraud")
        drain(flow)
        reports = [dict(report) for report in query.recentProgress]
        check_books(flow, {"orders": orders.end(), "payments": payments.end(0) + payments.end(1)})
        status = query_status(flow, "fraud")
    assert status is not None
    assert len(status["readers"]) == 2
    paid = {*_ids(payments, 0), *_ids(payments, 1)}
    assert ids(spark.table("fraud")) == sorted(i for i in _ids(orders, 0) if i in paid)
    cuts = 0
    for report in reports:
        ends = {(s, p): 0 if (end := end_of(report, s)) is None else end.end[p] for s, p in arrivals}
        taken = [arrivals[at][end - 1] for at, end in ends.items() if end]
        left = [arrivals[at][end] for at, end in ends.items() if end < len(arrivals[at])]
        if taken and left:
            assert max(taken) <= min(left), "a row is older than one that was taken before it"
            cuts += 1
    assert cuts >= 1


def _ids(log: EmbeddedLog, partition: int) -> list[int]:
    return [
        i
        for s in headers(log, partition, 0, log.end(partition))
        for i in read(log, s).column("id").to_pylist()
    ]


def test_a_quiet_stream_does_not_hold_up_its_query(spark: SparkSession, tmp_path: Path) -> None:
    orders, payments = create(tmp_path / "orders"), create(tmp_path / "payments")
    fill(orders, range(900))
    with penstock.attach(spark, {"log": tmp_path, "classes": GOLD}) as flow:
        for first, second in (("orders", "payments"), ("payments", "orders")):  # whoever asks first
            readers = flow.query(f"{first}_first", cls="gold")
            left, right = readers.read_stream(first), readers.read_stream(second)
            to_memory(left.select("id").join(right.select("id"), "id"), f"{first}_first")
        drain(flow)
        for first in ("orders", "payments"):
            status = query_status(flow, f"{first}_first")
            assert status is not None
            assert (status["admitted"], status["waiting"]) == (900, 0)
        fill(payments, range(0, 900, 5))
        drain(flow)
        check_books(flow, {"orders": 900, "payments": 180})
    for first in ("orders", "payments"):
        assert ids(spark.table(f"{first}_first")) == list(range(0, 900, 5))


def test_streams_that_are_joined_without_flow_query_are_refused_with_the_hint(
    spark: SparkSession, tmp_path: Path
) -> None:
    for name in ("orders", "payments"):
        fill(create(tmp_path / name), range(500))
    with penstock.attach(spark, {"log": tmp_path, "classes": GOLD}) as flow:
        left, right = (flow.read_stream(name, cls="gold") for name in ("orders", "payments"))
        query = to_memory(left.select("id").join(right.select("id"), "id"), "no_flow_query")
        error = str(until(query.exception, "the refusal"))
        assert "takes its readers from one flow.query; got: orders and payments; hint:" in error
        itself = left.alias("a").join(left.alias("b").where("k = 1"), "id").select("id")
        error = str(until(to_memory(itself, "itself").exception, "the refusal"))
        assert "takes its readers from one flow.query; got: orders and orders; hint:" in error
        alone = to_memory(right.select("id"), "alone")  # its DataFrame may be used in another query
        drain(flow)
        assert alone.isActive
    assert ids(spark.table("alone")) == list(range(500))


def test_a_stream_can_be_joined_and_united_with_itself(spark: SparkSession, tmp_path: Path) -> None:
    fill(create(tmp_path / "orders"), range(1500))
    classes = {"gold": {"target": "60s", "poison_after": 1}}
    with penstock.attach(spark, {"log": tmp_path, "classes": classes}) as flow:
        stream = flow.read_stream("orders", cls="gold").select("id", "k")
        thrice = stream.union(stream.where("id % 2 = 0")).union(stream.where("id % 3 = 0"))
        to_memory(thrice, "thrice")
        readers = flow.query("twice", cls="gold")
        one, other = (readers.read_stream("orders").select("id", "k") for _ in range(2))
        to_memory(one.join(other.where("k = 1"), "id").select("id"), "twice")
        drain(flow)
        status = flow.status().to_json()["classes"]["gold"]
        assert status["shed"] == 0, "planning a batch for each branch is no failure of it"
    assert len(ids(spark.table("thrice"))) == 1500 + 750 + 500
    assert ids(spark.table("twice")) == [i for i in range(1500) if i % 7 == 1]
