"""The demo's own work: three classes on one Spark, more input than it can process, governed and plain."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as every Spark program has it
from pyspark.sql.streaming import StreamingQuery

from penstock.calibration.capacity import find_plausible, probe, stop_quietly, warm_up
from penstock.calibration.judging import Capacity, Doubt, Judged, probe_again
from penstock.calibration.measured import Batch, batches, delays
from penstock.spark.driver.flow import attach
from penstock.spark.driver.starting import start_in_turn
from penstock.spark.source.ungoverned import read_ungoverned
from penstock.streams.opening import create_paced, open_paced
from penstock.streams.producing.schedule import schedule_constant, schedule_from_arrivals
from penstock.vocabulary.errors import UnmetError
from penstock.vocabulary.model import FloatArray
from penstock.vocabulary.status import Status

CLASSES: dict[str, dict[str, Any]] = {
    "gold": {"target": 5.0, "priority": 6.0},
    "silver": {"target": 5.0, "priority": 3.0},
    "bronze": {"target": 5.0, "priority": 1.0},
}
LOADS = {"gold": 0.3, "silver": 0.3, "bronze": 1.9}
"""Mean input of each class, in parts of the machine's capacity; together two and a half times as much."""
GOVERNED_S, PLAIN_S, WARM_UP_S = 50.0, 20.0, 18.0
NOT_YET_S = 3600.0
"""Streams begin this much later while queries start, so that they are empty."""
PROBED_BATCHES = 6
LEAST_ADMITTED = 0.8
"""Least fraction of the capacity that must be admitted: shedding too much would shorten delays as well."""
LEAST_OVERLOAD = 1.5
"""Least input, in parts of the most that the machine was seen to process: with less there is no overload."""
SEGMENT_ROWS = 4096
KEYS = 1000

Tell = Callable[[str], None]
Show = Callable[[Status | None, float], None]


@dataclass
class ClassRun:
    """Result of one class: its batches by Spark's own reports, and the control plane's figures."""

    batches: list[Batch]
    target_s: float
    offered_rows: int
    oldest_waiting_s: float | None = None
    still_behind_s: tuple[float, float] | None = None
    """For a plain run: when it was stopped, and the age of the oldest waiting row at that moment."""
    status: dict[str, Any] = field(default_factory=dict)


@dataclass
class DemoResult:
    """Both halves of the demo."""

    capacity: Capacity
    capacity_after: Capacity
    """Capacity measured again after the governed run: a machine drifts, and a JVM goes on compiling."""
    governed: dict[str, ClassRun]
    governed_from_s: float
    plain: dict[str, ClassRun]
    plain_from_s: float
    doubts: dict[Doubt, str] = field(default_factory=dict)
    """Why the first capacity is uncertain, if it is."""

    @property
    def middle_s(self) -> float:
        return self.governed_from_s + GOVERNED_S / 2

    @property
    def admitted_per_s(self) -> float:
        """Rows processed a second in the second half.

        Only up to the last batch that ended: nobody reports how far the batch after it had come.
        """
        done = [b for result in self.governed.values() for b in result.batches]
        end_s = max((b.ended_s for b in done), default=self.middle_s)
        if end_s <= self.middle_s:
            return 0.0
        return sum(b.rows * _inside(b, self.middle_s, end_s) for b in done) / (end_s - self.middle_s)

    @property
    def admitted_to_capacity(self) -> float:
        """Rows processed a second in the second half, over the mean of the capacities around it."""
        capacity_per_s = (self.capacity.rows_per_s + self.capacity_after.rows_per_s) / 2
        return self.admitted_per_s / capacity_per_s

    @property
    def overload(self) -> float:
        """The mean input over the most rows a second that the machine was seen to process."""
        seen = (self.capacity.rows_per_s, self.capacity_after.rows_per_s, self.admitted_per_s)
        return sum(LOADS.values()) * self.capacity.rows_per_s / max(seen)

    def check_overload(self) -> None:
        """Refuses a run in which the machine was not overloaded.

        Raises:
            UnmetError: The capacity was measured far too low, and so was the input that follows from it.
        """
        if self.overload < LEAST_OVERLOAD:
            offered_per_s = sum(LOADS.values()) * self.capacity.rows_per_s
            raise UnmetError(
                f"the demo offers at least {LEAST_OVERLOAD:g} times as many rows as the machine can process",
                f"{offered_per_s:,.0f} rows/s offered, {self.admitted_per_s:,.0f} rows/s processed; capacity "
                f"measured as {self.capacity.rows_per_s:,.0f} rows/s before and "
                f"{self.capacity_after.rows_per_s:,.0f} after. There is no table, because without an "
                "overload it shows nothing",
                "run it again when nothing else runs on this machine",
            )

    @property
    def missed(self) -> list[str]:
        """Targets that were missed; empty if all were met."""
        found = []
        for name in CLASSES:
            row = self._class(name)
            for key, what in (("p95_s", "p95"), ("oldest_waiting_s", "oldest waiting row")):
                if row[key] is not None and row[key] > row["target_s"]:
                    found.append(f"{name}'s {what}: {row[key]:.2f} s of {row['target_s']:g} s")
            if row["p95_s"] is None:
                found.append(f"{name}: no batch in the second half")
        if self.admitted_to_capacity < LEAST_ADMITTED:
            found.append(
                f"admitted {self.admitted_to_capacity:.2f} of the capacity, at least {LEAST_ADMITTED:g}"
            )
        return found

    def to_json(self) -> dict[str, Any]:
        """The figures that the demo is judged by."""
        return {
            "capacity_rows_per_s": self.capacity.rows_per_s,
            "capacity_after_rows_per_s": self.capacity_after.rows_per_s,
            "offered_to_capacity": sum(LOADS.values()),
            "overload": self.overload,
            "admitted_to_capacity": self.admitted_to_capacity,
            "doubts": {doubt.name.lower(): measured for doubt, measured in self.doubts.items()},
            "classes": {name: self._class(name) for name in CLASSES},
            "missed": self.missed,
        }

    def _class(self, name: str) -> dict[str, Any]:
        governed, plain = self.governed[name], self.plain[name]
        status = governed.status
        return {
            "target_s": governed.target_s,
            "p95_s": delays(governed.batches, self.middle_s, math.inf).p95_s,
            "oldest_waiting_s": governed.oldest_waiting_s,
            **{key: status[key] for key in ("offered", "admitted", "shed", "waiting", "share")},
            "shed_fraction": status["shed"] / max(1, status["offered"]),
            "plain_p95_s": delays(plain.batches, self.plain_from_s, math.inf).p95_s,
            "plain_oldest_waiting_s": plain.oldest_waiting_s,
        }


def _inside(batch: Batch, from_s: float, until_s: float) -> float:
    """The fraction of a batch's time that lies in a time span."""
    return max(0.0, min(batch.ended_s, until_s) - max(batch.began_s, from_s)) / batch.duration_s


def rows() -> list[pa.RecordBatch]:
    """Rows of the streams; the event time is set to the arrival when they are read."""
    random, count = np.random.default_rng(7), 65_536
    return [
        pa.record_batch(
            {
                "at": pa.array(np.zeros(count, np.int64), pa.timestamp("us", tz="UTC")),
                "device": random.integers(0, KEYS, count),
                "value": random.random(count),
            }
        )
    ]


def start_query(stream: DataFrame, checkpoint: str) -> StreamingQuery:
    """Starts the demo's query and returns when it asks for rows.

    It computes counts, means and a digest by device and second: a few microseconds a row.
    """
    text = F.concat(F.col("device").cast("string"), F.lit(":"), F.col("value").cast("string"))
    results = (
        stream.withColumn("digest", F.sha2(F.sha2(F.sha2(text, 512), 512), 512))
        .withWatermark("at", "1 second")
        .groupBy(F.window("at", "1 second"), "device")
        .agg(F.count("*").alias("rows"), F.avg("value").alias("mean"), F.max("digest").alias("digest"))
    )
    writer = results.writeStream.format("noop").outputMode("append")
    return start_in_turn(writer.option("checkpointLocation", checkpoint).start)


def measure_capacity(spark: SparkSession, folder: Path, tell: Tell) -> Judged:
    """The capacity of this machine, ungoverned and warm, in batches of half the shortest target.

    Raises:
        UnmetError: Several searches have not found it: the demo would not know what an overload is.
    """
    log = create_paced(
        folder / "filled" / "readings", rows(), schedule_constant(1e6, 120, SEGMENT_ROWS), event_time="at"
    )
    log.begin(time.time() - log.seconds - 1)
    checkpoints = folder / "checkpoints"
    rate_per_s = warm_up(spark, log.ref.id, start_query, checkpoints / "warm", WARM_UP_S)
    tell("measuring the capacity")
    length_s = min(settings["target"] for settings in CLASSES.values()) / 2
    first = max(1000, round(rate_per_s * length_s))
    found = find_plausible(spark, log.ref.id, start_query, checkpoints / "find", length_s, first)
    check_capacity(found)
    return found


def check_capacity(found: Judged) -> None:
    """Refuses a capacity that says nothing of the machine.

    Raises:
        UnmetError: Batches are too short or too long, or their rows take too little of their time.
    """
    if not found.is_usable:
        raise UnmetError(
            "a probe of the capacity is plausible: " + ", and ".join(doubt.value for doubt in found.doubts),
            f"{'; '.join(found.doubts.values())}, in {found.probes} probes "
            f"({found.capacity.rows_per_s:,.0f} rows/s). The demo would offer too few rows or far too many, "
            "and there is no table",
            "run it again when nothing else runs on this machine",
        )


def measure_again(spark: SparkSession, folder: Path, before: Capacity) -> Capacity:
    """The capacity after the governed run, in batches of the same number of rows."""
    stream, number = folder / "filled" / "readings", itertools.count()

    def measure() -> Capacity:
        checkpoint = folder / "checkpoints" / f"again{next(number)}"
        return probe(spark, stream, start_query, checkpoint, before.batch_rows, PROBED_BATCHES)

    return probe_again(measure, before)


def make_streams(folder: Path, arrivals_s: FloatArray, capacity: Capacity, seconds: float) -> Path:
    """One paced stream a class: the bursty trace, at the class's part of the capacity."""
    chosen = arrivals_s[arrivals_s < seconds]
    for number, (name, load) in enumerate(LOADS.items()):
        # each class begins at another place of the trace, so that bursts do not coincide
        shifted = np.sort((chosen + number * seconds / len(LOADS)) % seconds)
        scale = load * capacity.rows_per_s * seconds / shifted.size
        schedule = schedule_from_arrivals(shifted, scale, SEGMENT_ROWS)
        create_paced(folder / f"{name}_readings", rows(), schedule, event_time="at")
    return folder


def run_governed(
    spark: SparkSession, folder: Path, root: Path, show: Show, run: Path
) -> tuple[dict[str, ClassRun], float]:
    """Runs the three classes under Penstock; marks the middle, so that the second half has own figures."""
    with attach(spark, {"log": root, "run": run, "classes": CLASSES}) as flow:
        queries = {
            name: start_query(
                flow.read_stream(f"{name}_readings", cls=name, query=name), str(folder / "checkpoints" / name)
            )
            for name in CLASSES
        }
        began_s = _begin(root)
        marked = False
        while (passed_s := time.time() - began_s) < GOVERNED_S:
            if not marked and passed_s >= GOVERNED_S / 2:
                flow.mark()
                marked = True
            show(flow.status(), passed_s)
            _raise_failure(queries)
            time.sleep(0.5)
        status = flow.status()
        found = _collect(root, queries)
    for name, result in found.items():
        result.status = status.classes[name].to_json(bins=False)
        result.oldest_waiting_s = status.classes[name].oldest_waiting_s
    return found, began_s


def run_plain(spark: SparkSession, folder: Path, root: Path, show: Show) -> tuple[dict[str, ClassRun], float]:
    """Runs the same load through plain Structured Streaming: three queries at once, no limit."""
    _begin(root, NOT_YET_S)  # else the first batch would have all rows of the governed run
    queries = {
        name: start_query(
            read_ungoverned(spark, root / f"{name}_readings"), str(folder / "checkpoints" / f"plain-{name}")
        )
        for name in CLASSES
    }
    began_s = _begin(root)
    while (passed_s := time.time() - began_s) < PLAIN_S:
        show(None, passed_s)
        _raise_failure(queries)
        time.sleep(0.5)
    found = _collect(root, queries)
    now_s = time.time()
    for result in found.values():
        last_s = max((float(batch.arrival_s.max()) for batch in result.batches), default=began_s)
        result.oldest_waiting_s = now_s - last_s
        result.still_behind_s = (now_s, now_s - last_s)
    for query in queries.values():
        stop_quietly(query)
    return found, began_s


def _begin(root: Path, in_s: float = 0.2) -> float:
    at_s = time.time() + in_s
    for name in CLASSES:
        open_paced(root / f"{name}_readings").begin(at_s, restart=True)
    return at_s


def _collect(root: Path, queries: dict[str, StreamingQuery]) -> dict[str, ClassRun]:
    found = {}
    for name, query in queries.items():
        log = open_paced(root / f"{name}_readings")
        done = batches([dict(report) for report in query.recentProgress], log)
        found[name] = ClassRun(done, CLASSES[name]["target"], log.end(0))
    return found


def _raise_failure(queries: dict[str, StreamingQuery]) -> None:
    for query in queries.values():
        if (error := query.exception()) is not None:
            raise error
