"""What the Spark benches share: a session, a query heavy enough to overload, paced streams, cells."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as every Spark program has it
from pyspark.sql.streaming import StreamingQuery

import penstock
from penstock.calibration.capacity import Start, find_batch_rows, probe, stop_quietly, warm_up
from penstock.calibration.judging import Capacity
from penstock.calibration.measured import Batch, batches, delays, rows_in_time
from penstock.host.process import TUNING_VARIABLE
from penstock.spark.driver.flow import Flow
from penstock.spark.driver.starting import start_in_turn
from penstock.spark.source.ungoverned import read_ungoverned
from penstock.streams.paced.stream import PacedLog, create_paced
from penstock.streams.producing.schedule import Schedule, schedule_constant
from penstock.vocabulary.model import DelayStats

FILLED_ROWS = 200_000_000
KEYS = 1000
SEGMENT_ROWS = 4096
WARM_S = 10.0
"""Between the start of a cell's query and its measured stretch: the cost model grows its batches."""
MEASURED_S = 30.0
SESSION = {"spark.sql.streaming.numRecentProgressUpdates": "20000"}


def pool_rows(seed: int = 0, rows: int = 65_536) -> list[pa.RecordBatch]:
    """Rows of a paced stream: an event time that is set when they are read, a key, a value."""
    random = np.random.default_rng(seed)
    return [
        pa.record_batch(
            {
                "ts": pa.array(np.zeros(rows, np.int64), pa.timestamp("us", tz="UTC")),
                "k": random.integers(0, KEYS, rows),
                "v": random.random(rows),
            }
        )
    ]


def heavy(stream: DataFrame) -> DataFrame:
    """A windowed aggregate that spends a few microseconds a row; `a` has a known truth in every window.

    The value carries the second's fraction, so the mean over a full second is mean(v) + 0.5, and a sample
    that is not spread evenly over the second is off.
    """
    text = F.concat(F.col("k").cast("string"), F.lit(":"), F.col("v").cast("string"))
    digest = F.sha2(F.sha2(F.sha2(text, 512), 512), 512)
    phase = (F.unix_micros("ts") % 1_000_000) / 1e6
    return (
        stream.withColumn("h", digest)
        .withWatermark("ts", "1 second")
        .groupBy(F.window("ts", "1 second"), "k")
        .agg(
            F.count("*").alias("n"),
            F.sum(F.col("v") + phase).alias("total"),
            F.stddev("v").alias("s"),
            F.max(F.substring("h", 1, 4)).alias("m"),
        )
    )


def start_noop(stream: DataFrame, checkpoint: str, every_s: float = 0.0) -> StreamingQuery:
    """The heavy query into nowhere, with a trigger's interval if it is told one."""
    writer = heavy(stream).writeStream.format("noop").outputMode("append")
    writer = writer.trigger(processingTime=f"{round(every_s * 1000)} milliseconds")
    return start_in_turn(writer.option("checkpointLocation", checkpoint).start)


def start_light(stream: DataFrame, checkpoint: str) -> StreamingQuery:
    """A plain windowed aggregate: little work a row, so that the source's own cost shows."""
    counted = stream.withWatermark("ts", "1 second").groupBy(F.window("ts", "1 second"), "k")
    writer = counted.agg(F.count("*").alias("n"), F.avg("v").alias("a")).writeStream.format("noop")
    return start_in_turn(writer.outputMode("append").option("checkpointLocation", checkpoint).start)


@dataclass
class Cell:
    """One measured stretch of one query under one load."""

    batches: list[Batch]
    from_s: float
    until_s: float
    offered_rows: int
    cpu_s: float = 0.0
    status: dict[str, Any] = field(default_factory=dict)

    def goodput(self, target_s: float, capacity_per_s: float) -> float:
        """Rows in time a second, as a part of the capacity; rows left waiting count as missed."""
        good = rows_in_time(self.batches, target_s, self.from_s, self.until_s)
        return good / (self.until_s - self.from_s) / capacity_per_s

    def delay(self) -> DelayStats:
        return delays(self.batches, self.from_s, self.until_s)

    def took_s(self) -> list[float]:
        return [b.duration_s for b in self.batches if self.from_s <= b.ended_s < self.until_s]


class Rig:
    """A warm session and what cells need. Use in a `with`."""

    def __init__(self, start: Start = start_noop, master: str = "local[2]", memory: str = "2g") -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="penstock-bench-"))
        self.start = start
        self.spark: SparkSession = penstock.session(app="bench", master=master, memory=memory, **SESSION)
        self._count = 0
        self.filled = self.folder / "filled"
        log = create_paced(
            self.filled, pool_rows(), schedule_constant(1e6, FILLED_ROWS / 1e6, SEGMENT_ROWS), event_time="ts"
        )
        log.begin(time.time() - log.seconds - 1)
        self.batch_rows = 20_000
        self.target_s = 2.0

    def __enter__(self) -> Rig:
        return self

    def __exit__(self, *_: object) -> None:
        for query in self.spark.streams.active:
            query.stop()
        self.spark.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def new(self, what: str) -> Path:
        """A path that was not used before."""
        self._count += 1
        return self.folder / f"{what}{self._count}"

    def warm_up(self, seconds: float = 30.0) -> None:
        """Runs the query ungoverned until the JVM has compiled it."""
        per_s = warm_up(self.spark, self.filled, self.start, self.new("warm"), seconds)
        self.batch_rows = max(1000, round(per_s))

    def measure_target(self) -> tuple[float, float]:
        """The fixed cost of a micro-batch, and the target that goes with it: max(2 s, 8 fixed costs)."""
        fixed_s = probe(self.spark, self.filled, self.start, self.new("fixed"), 100, 8).batch_s
        self.target_s = max(2.0, 8 * fixed_s)
        found = find_batch_rows(
            self.spark, self.filled, self.start, self.new("find"), self.target_s / 2, self.batch_rows
        )
        self.batch_rows = found.batch_rows
        return fixed_s, self.target_s

    def capacity(self, count: int = 5) -> Capacity:
        """Rows a second of the ungoverned query in batches of half the target, now."""
        found = probe(self.spark, self.filled, self.start, self.new("probe"), self.batch_rows, count)
        # the machine drifts: the next probe has batches of half the target again
        self.batch_rows = max(
            1, round(self.batch_rows * min(max(self.target_s / 2 / found.batch_s, 0.8), 1.25))
        )
        return found

    def paced(self, schedule: Schedule | Sequence[Schedule], seed: int = 0) -> Path:
        """A paced stream that has not begun, in a log of its own."""
        root = self.new("log")
        create_paced(root / "readings", pool_rows(seed), schedule, event_time="ts")
        return root

    def constant(self, rate_per_s: float, seconds: float = WARM_S + MEASURED_S + 30.0) -> Path:
        return self.paced(schedule_constant(rate_per_s, seconds, SEGMENT_ROWS))

    @contextlib.contextmanager
    def governed(
        self, root: Path, run: Path | None = None, **cls: Any
    ) -> Iterator[tuple[Flow, StreamingQuery]]:
        """A governed query over a log's `readings`, in one class."""
        classes = {"bench": {"target": self.target_s, **cls}}
        config: Mapping[str, Any] = {"log": root, "run": run, "classes": classes}
        with penstock.attach(self.spark, config) as flow:
            stream = flow.read_stream("readings", cls="bench")
            query = self.start(stream, str(self.new("cp")))
            yield flow, query

    @contextlib.contextmanager
    def plain(self, root: Path, max_rows: int = 0) -> Iterator[StreamingQuery]:
        """The same query as plain Structured Streaming runs it."""
        query = self.start(read_ungoverned(self.spark, root / "readings", max_rows), str(self.new("cp")))
        try:
            yield query
        finally:
            stop_quietly(query)

    def run_cell(
        self, root: Path, query: StreamingQuery, flow: Flow | None = None, measured_s: float = MEASURED_S
    ) -> Cell:
        """Begins the stream, lets the query warm up, and measures a stretch."""
        log = PacedLog(root / "readings")
        log.begin()
        time.sleep(WARM_S)
        from_s, cpu_s = time.time(), cpu_seconds()
        if flow is not None:
            flow.mark()
        before = log.end(0)
        time.sleep(measured_s)
        until_s, cpu_s, offered = time.time(), cpu_seconds() - cpu_s, log.end(0) - before
        status = flow.status().to_json() if flow is not None else {}
        time.sleep(self.target_s)  # what arrived last may still be in time
        if (error := query.exception()) is not None:
            raise RuntimeError(str(error))
        reports = [dict(report) for report in query.recentProgress]
        return Cell(batches(reports, log), from_s, until_s, offered, cpu_s, status)


@contextlib.contextmanager
def tuned(**figures: Any) -> Iterator[None]:
    """Control planes that start inside have other figures, see `penstock.control.tuning`."""
    os.environ[TUNING_VARIABLE] = json.dumps(figures)
    try:
        yield
    finally:
        del os.environ[TUNING_VARIABLE]


def cpu_seconds() -> float:
    """CPU seconds of this process and all below it, the JVM and its Python workers included."""
    parents: dict[int, list[int]] = {}
    spent: dict[int, float] = {}
    tick = os.sysconf("SC_CLK_TCK")
    for path in Path("/proc").iterdir():
        if not path.name.isdigit():
            continue
        try:
            after_name = (path / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it ended while we looked
        parents.setdefault(int(after_name[1]), []).append(int(path.name))
        # its own time and that of children that ended
        spent[int(path.name)] = sum(int(value) for value in after_name[11:15]) / tick
    total, queue = 0.0, [os.getpid()]
    while queue:
        pid = queue.pop()
        total += spent.get(pid, 0.0)
        queue += parents.get(pid, [])
    return total


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def spread(values: Sequence[float]) -> str:
    """Median and range of repeats, for notes."""
    return f"{median(values):.3f} ({min(values):.3f} to {max(values):.3f}, {len(values)} runs)"


def brackets(before: Capacity, after: Capacity) -> float:
    return (before.rows_per_s + after.rows_per_s) / 2


def drift(before: Capacity, after: Capacity) -> float:
    """How far two capacities are apart, over their mean."""
    return abs(before.rows_per_s - after.rows_per_s) / brackets(before, after)
