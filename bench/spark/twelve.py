"""The workload of `spark/dilos`: three classes with four streaming queries each, scaled to this machine.

A class has two aggregates, a window join and a select. All of class 3's begin with the same work on the same
stream as class 1's select does: the segment that they can share.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as every Spark program has it
from pyspark.sql.streaming import StreamingQuery

import penstock
from penstock.calibration.capacity import find_batch_rows, probe, warm_up
from penstock.calibration.measured import Batch, batches
from penstock.spark.driver.flow import Flow
from penstock.spark.driver.starting import start_in_turn
from penstock.streams.opening import load_stream
from penstock.streams.paced.stream import PacedLog, create_paced
from penstock.streams.producing.schedule import schedule_constant
from penstock.streams.protocol import ORIGIN
from penstock.vocabulary.errors import PenstockError

from .rig import SEGMENT_ROWS, Rig, pool_rows, tuned

PRIORITIES = {"class1": 6.0, "class2": 3.0, "class3": 1.0}
TARGET_ROUNDS = {"class1": 1.5, "class2": 2.0, "class3": 2.5}
"""Targets, in idle rounds of all twelve queries."""
KINDS = ("average", "largest", "pairs", "chosen")

STREAMS = ("class1", "class2", "events")
"""Classes 1 and 2 read streams of their own, class 3 and class 1's select the events."""
EVENTS_LOAD, OWN_LOAD = 0.33, 0.01
"""Seconds of row work a second: class 3's, and those of classes 1 and 2 on their own streams. With targets of
1.5 and 2 idle rounds the fixed costs of their batches alone take about 0.4 and 0.27 of the time for classes 1
and 2, of which 0.6 and 0.3 are theirs."""
BATCH_S = 1.0
"""Length of the batches in which a row's cost is measured."""
PROBED_PER_S, PROBED_S = 20_000.0, 400.0
"""Rate and length of the stream on which costs are measured."""
IDLE_PER_S, IDLE_S, IDLE_FIRST, IDLE_ROUNDS = 500.0, 240.0, 6, 10
"""The idle round: rows a second of each stream, how long it may take, rounds that do not count, that do."""


def digest() -> Column:
    text = F.concat(F.col("k").cast("string"), F.lit(":"), F.col("v").cast("string"))
    return F.sha2(F.sha2(text, 512), 512)


def chosen(rows: DataFrame) -> DataFrame:
    """The select: two rounds of SHA-512, an eighth of the rows pass. What classes 1 and 3 can share."""
    kept = [name for name in ORIGIN if name in rows.columns]
    prefix = F.substring("h", 1, 8).alias("h")
    return rows.withColumn("h", digest()).where("h < '2'").select("ts", "k", "v", prefix, *kept)


def digested(rows: DataFrame) -> DataFrame:
    return rows if "h" in rows.columns else rows.withColumn("h", digest())


def average(rows: DataFrame) -> DataFrame:
    late = digested(rows).withWatermark("ts", "1 second")
    return late.groupBy(F.window("ts", "1 second"), "k").agg(F.avg("v"), F.max(F.substring("h", 1, 4)))


def largest(rows: DataFrame) -> DataFrame:
    late = digested(rows).withWatermark("ts", "1 second")
    return late.groupBy(F.window("ts", "2 seconds"), "k").agg(F.max("v"), F.max(F.substring("h", 1, 4)))


def pairs(left: DataFrame, right: DataFrame) -> DataFrame:
    """Rows of two halves of the chosen ones with the same key in the same second."""
    sides = [
        side.where(part).withWatermark("ts", "1 second").select(F.window("ts", "1 second").alias("w"), "k", v)
        for side, part, v in (
            (left, "h < '1'", F.col("v").alias("left_v")),
            (right, "h >= '1'", F.col("v").alias("right_v")),
        )
    ]
    return sides[0].join(sides[1], ["w", "k"])


ALONE: dict[str, Callable[[DataFrame], DataFrame]] = {
    "average": average,
    "largest": largest,
    "pairs": lambda rows: pairs(chosen(rows), chosen(rows)),
    "chosen": chosen,
}


def to_nowhere(result: DataFrame, checkpoint: str, name: str | None = None) -> StreamingQuery:
    writer = result.writeStream.format("noop").outputMode("append").option("checkpointLocation", checkpoint)
    return start_in_turn((writer if name is None else writer.queryName(name)).start)


@dataclass(frozen=True, slots=True)
class Costs:
    """Of the four kinds of query measured alone and ungoverned, and of all twelve together.

    Attributes:
        fixed_s: A micro-batch of 100 rows.
        row_s: What a row of the stream adds, in batches of about `BATCH_S`.
        round_s: An idle round: from a query's batch to its next while all twelve take turns with few rows.
    """

    fixed_s: dict[str, float]
    row_s: dict[str, float]
    round_s: float

    def targets_s(self) -> dict[str, float]:
        return {cls: rounds * self.round_s for cls, rounds in TARGET_ROUNDS.items()}

    def rates(self) -> dict[str, float]:
        """Rows a second by stream, so that each load is what it is meant to be."""
        own = {"class1": ("average", "largest", "pairs"), "class2": KINDS}
        rates = {cls: OWN_LOAD / sum(self.row_s[kind] for kind in kinds) for cls, kinds in own.items()}
        # class 3's aggregates are over the chosen rows: choosing them is most of their work
        return {**rates, "events": EVENTS_LOAD / (self.row_s["pairs"] + 3 * self.row_s["chosen"])}

    def loads(self) -> dict[str, float]:
        """Seconds of row work a second by class, without sharing."""
        chosen = self.rates()["events"] * self.row_s["chosen"]
        return {"class1": OWN_LOAD + chosen, "class2": OWN_LOAD, "class3": EVENTS_LOAD}


def measure_kinds(rig: Rig) -> tuple[dict[str, float], dict[str, float]]:
    """Fixed costs of each kind of query, and what a row adds, on a log whose event time runs as fast as the
    real one: how many rows meet in a window decides what a join costs."""
    filled = rig.new("filled")
    log = create_paced(
        filled, pool_rows(), schedule_constant(PROBED_PER_S, PROBED_S, SEGMENT_ROWS), event_time="ts"
    )
    log.begin(time.time() - log.seconds - 1)
    fixed_s, row_s = {}, {}
    for kind, build in ALONE.items():

        def start(rows: DataFrame, checkpoint: str, build: Callable = build) -> StreamingQuery:
            return to_nowhere(build(rows), checkpoint)

        per_s = warm_up(rig.spark, filled, start, rig.new("warm"), 12.0)
        small = probe(rig.spark, filled, start, rig.new("small"), 100, 8)
        rows = max(1000, round(per_s * BATCH_S))
        large = find_batch_rows(rig.spark, filled, start, rig.new("large"), BATCH_S, rows, 3)
        fixed_s[kind] = small.batch_s
        row_s[kind] = max(1e-8, (large.batch_s - small.batch_s) / large.batch_rows)
    return fixed_s, row_s


def idle_round_s(rig: Rig) -> float:
    """Starts all twelve in one class and nearly without load; each has a turn a round."""
    root, logs = streams(rig, dict.fromkeys(STREAMS, IDLE_PER_S), IDLE_S)
    config = {"classes": {"all": {"target": IDLE_S}}, "capacity": {"policy": "cqc"}}
    with tuned(eager=True), penstock.attach(rig.spark, {"log": root, **config}) as flow:
        flow.set_shedding(False)
        running = start_all(rig, flow, sharing=False, one_class=True)
        for log in logs:
            log.begin()
        deadline_s = time.monotonic() + IDLE_S
        while (rounds := min(each.reported for each in running)) <= IDLE_FIRST + IDLE_ROUNDS:
            if time.monotonic() > deadline_s:
                rule = f"{IDLE_FIRST + IDLE_ROUNDS} idle rounds end in {IDLE_S:g} s"
                raise PenstockError(f"{rule}; got: {rounds}; hint: see Spark's log")
            time.sleep(0.5)
        ends_s = [each.ends_s(root)[IDLE_FIRST:] for each in running]
    return float(np.median(np.concatenate([np.diff(ends) for ends in ends_s])))


def streams(rig: Rig, rates: Mapping[str, float], seconds: float) -> tuple[Path, list[PacedLog]]:
    """Streams with so many rows a second each, in a log of their own; they have not begun."""
    root = rig.new("log")
    logs = [
        create_paced(
            root / name, pool_rows(), schedule_constant(rate, seconds, SEGMENT_ROWS), event_time="ts"
        )
        for name, rate in rates.items()
    ]
    return root, logs


@dataclass(frozen=True, slots=True)
class Running:
    """A query that runs: of which class, which kind, over which streams."""

    cls: str
    kind: str
    query: StreamingQuery
    sources: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.cls}_{self.kind}"

    @property
    def reported(self) -> int:
        """How many batches Spark has reported."""
        last = self.query.lastProgress
        return 0 if last is None else last["batchId"] + 1

    def batches(self, root: Path) -> list[Batch]:
        """Those that Spark reported, once for each of its sources."""
        reports = [dict(report) for report in self.query.recentProgress]
        found = []
        for source, stream in enumerate(self.sources):
            with load_stream(root / stream) as log:
                found += batches(reports, log, source)
        return found

    def ends_s(self, root: Path) -> list[float]:
        """When its batches ended."""
        return sorted({batch.ended_s for batch in self.batches(root)})


def start_all(rig: Rig, flow: Flow, sharing: bool, one_class: bool) -> list[Running]:
    """Starts the twelve queries; class 3 reads class 1's segment if they share it."""
    return [
        _start(rig, flow, "all" if one_class else cls, cls, kind, sharing)
        for cls in PRIORITIES
        for kind in KINDS
    ]


def _start(rig: Rig, flow: Flow, governed_by: str, cls: str, kind: str, sharing: bool) -> Running:
    name, checkpoint = f"{cls}_{kind}", str(rig.new("cp"))
    shared = sharing and cls == "class3"
    stream = "segment" if shared else "events" if cls == "class3" or name == "class1_chosen" else cls
    prepared = (lambda rows: rows) if shared else chosen
    if kind == "pairs":
        readers = flow.query(name, governed_by)
        result = pairs(prepared(readers.read_stream(stream)), prepared(readers.read_stream(stream)))
        return Running(cls, kind, to_nowhere(result, checkpoint, name), (stream, stream))
    writes = sharing and name == "class1_chosen"
    rows = flow.read_stream(stream, governed_by, ORIGIN if writes else False, name)
    if writes:
        result = chosen(rows)
        writer = result.writeStream.foreachBatch(flow.share("segment", result)).queryName(name)
        query = start_in_turn(writer.option("checkpointLocation", checkpoint).start)
        return Running(cls, kind, query, (stream,))
    if cls == "class3":
        rows = prepared(rows)
    result = rows.select("k", "v", "h") if "h" in rows.columns and kind == "chosen" else ALONE[kind](rows)
    return Running(cls, kind, to_nowhere(result, checkpoint, name), (stream,))
