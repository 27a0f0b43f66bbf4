"""`spark/coverage`: how often a 95 % interval has the true value, for each way in which rows are drawn."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as every Spark program has it
from pyspark.sql.streaming import StreamingQuery

import penstock
from penstock.bench import BenchRun, bench
from penstock.calibration.capacity import find_batch_rows, warm_up
from penstock.policies.quality.estimates import AGGREGATES
from penstock.spark.driver.starting import start_in_turn
from penstock.streams.paced.stream import PacedLog, create_paced
from penstock.streams.producing.schedule import schedule_constant

from .rig import Rig, median

TARGET_S, SETTLE_S = 8.0, 24.0
SEGMENT_ROWS, POOL_ROWS, BUCKETS = 512, 262_144, 256
DEVICES = 100_000
SETTINGS = {"overrun_fraction": 0.3, "late_fraction": 0.3}
"""Of the class: a grant that sheds late rows gives its windows no interval."""
READY_S = 60.0


@dataclass(frozen=True, slots=True)
class Case:
    """One way to draw rows.

    Attributes:
        name: Of its rows in the table.
        cls: Settings of the class.
        groups: Of the query: each has a result in every window.
        seeds: Runs, with a seed each.
        seconds: That are measured of each run.
        window_s: Of the query.
        overload: Times the capacity. By key every row is decoded and hashed before it is dropped: of much
            more than what can be kept, that alone would be too much.
    """

    name: str
    cls: dict[str, Any]
    groups: int = 4
    seeds: int = 1
    seconds: float = 125.0
    window_s: float = 0.1
    overload: float = 3.0


CASES = (
    # groups of one window have the error of its count in common: short windows make results independent
    Case("row", {"shed": "row"}),
    Case("segment", {"shed": "segment"}),
    Case("auto", {"shed": "sample"}),
    # a cohort of keys lasts, and all windows have its error: here groups and seeds do
    Case("key", {"shed": "key"}, groups=200, seeds=6, seconds=90.0, window_s=0.5, overload=1.6),
    Case("random", {"shed": "random"}),
)


def pool() -> pa.RecordBatch:
    """Readings of many devices, skewed, with a level of each device's own."""
    drawn = np.random.default_rng(7)
    device = drawn.integers(0, DEVICES, POOL_ROWS)
    level = 1.0 + 0.3 * np.sin(device)
    times = pa.array(np.zeros(POOL_ROWS, np.int64), pa.timestamp("us", tz="UTC"))
    return pa.record_batch({"ts": times, "k": device, "v": level * drawn.exponential(10.0, POOL_ROWS)})


def estimated(rows: DataFrame, case: Case) -> DataFrame:
    """Estimates by window and group, after some work on each row that an overload can be made of.

    `_kept` of 1 / weight makes `sic` the rows over the sum of their weights, so `sic * count` is the number
    of rows, and a result says whether any were shed.
    """
    text = F.concat(F.col("k").cast("string"), F.lit(":"), F.col("v").cast("string"))
    worked = rows.where(F.sha2(F.sha2(F.sha2(text, 512), 512), 512) > "")
    worked = worked.withColumn("_kept", 1 / F.col("_weight")).withWatermark("ts", "100 milliseconds")
    window = F.window("ts", f"{round(case.window_s * 1000)} milliseconds").alias("w")
    found = penstock.estimate(worked, "v", [window, (F.col("k") % case.groups).alias("g")])
    return found.withColumn("kept", F.col("sic") * F.col("count")).drop("sic")


def was_shed(results: pa.Table) -> np.ndarray:
    """Which results rows were shed of, by the weights and not by what the estimate says of itself.

    A count is the sum of the weights; null where a chance is unknown, of rows that were shed.
    """
    weight, kept = (results.column(name).to_numpy() for name in ("count", "kept"))
    return ~(np.abs(weight - kept) <= 1e-9 * kept)


@bench("coverage", title="how often a 95 % interval has the true value, by what is drawn together")
def coverage(run: BenchRun) -> None:
    cases = [case if not run.quick else _shorter(case) for case in CASES]
    run.progress("starting Spark", total=sum(case.seeds for case in cases))
    lowest, highest = 100.0, 0.0
    with Rig(memory="4g") as rig:
        rig.spark.conf.set("spark.sql.shuffle.partitions", "2")
        for case in cases:
            per_s = _capacity_per_s(rig, case)
            found, p95_s = [], []
            for seed in range(case.seeds):
                run.progress(f"{case.name}, run {seed + 1} of {case.seeds}", advance=1)
                results, delay_s = _run(rig, case, case.overload * per_s, seed)
                found.append(results)
                p95_s.append(delay_s)
            results = pa.concat_tables(found)
            given = results.filter(pa.compute.is_valid(results.column("avg_low")))
            windows = len(pa.compute.unique(given.column("start_s")))
            run.row(f"{case.name}_windows", windows)
            run.row(f"{case.name}_results", given.num_rows)
            without = results.filter(pa.compute.is_null(results.column("avg_low")))
            reasons = Counter(without.column("interval").to_pylist())
            why = "; ".join(f"{n:,} {reason}" for reason, n in reasons.most_common(3))
            percents = {name: 100.0 * _inside(results, name) for name in AGGREGATES}
            for name, percent in percents.items():
                run.row(f"{case.name}_{name}_percent", percent)
                lowest, highest = min(lowest, percent), max(highest, percent)
            said = ", ".join(f"{name} {percent:.1f} %" for name, percent in percents.items())
            run.progress(f"{case.name}: {said} of {given.num_rows:,} results, {windows:,} windows")
            run.note(
                f"{case.name}: {given.num_rows:,} of {results.num_rows:,} results have an interval ({why}); "
                f"{case.overload * per_s:,.0f} rows/s, {case.groups} groups, {case.seeds} runs; half an "
                f"interval is {100 * median(_width(given)):.1f} % of an average; p95 {max(p95_s):.1f} of "
                f"{TARGET_S:g} s"
            )
    run.row("coverage_min_percent", lowest)
    run.row("coverage_max_percent", highest)


def _shorter(case: Case) -> Case:
    return replace(case, seeds=min(2, case.seeds), seconds=case.seconds / 4)


def _start(case: Case, to: Path | None) -> Any:
    def start(rows: DataFrame, checkpoint: str) -> StreamingQuery:
        writer = estimated(rows, case).writeStream.option("checkpointLocation", checkpoint)
        writer = writer.format("noop") if to is None else writer.format("parquet").option("path", str(to))
        return start_in_turn(writer.start)

    return start


def _log(rig: Rig, rate_per_s: float, seconds: float) -> PacedLog:
    schedule = schedule_constant(rate_per_s, seconds, SEGMENT_ROWS)
    return create_paced(rig.new("log") / "readings", [pool()], schedule, "k", BUCKETS, "ts")


def _capacity_per_s(rig: Rig, case: Case) -> float:
    """Rows a second of the query, ungoverned, in batches of half the target."""
    log = _log(rig, 400_000.0, 200.0)
    log.begin(time.time() - log.seconds - 1)
    start = _start(case, None)
    warm_up(rig.spark, log.directory, start, rig.new("cp"), 8.0, metadata=penstock.ESTIMATE)
    found = find_batch_rows(
        rig.spark, log.directory, start, rig.new("find"), TARGET_S / 2, 50_000, 5, penstock.ESTIMATE
    )
    return found.rows_per_s


def _run(rig: Rig, case: Case, rate_per_s: float, seed: int) -> tuple[pa.Table, float]:
    """Results of one run beside the truth, and the p95 of the rows' delays."""
    log = _log(rig, rate_per_s, READY_S + SETTLE_S + case.seconds + 30.0)
    to = rig.new("results")
    classes = {"bench": {"target": TARGET_S, "settings": SETTINGS, **case.cls}}
    with penstock.attach(rig.spark, {"log": log.directory.parent, "classes": classes, "seed": seed}) as flow:
        rows = flow.read_stream("readings", "bench", metadata=penstock.ESTIMATE)
        query = _start(case, to)(rows, str(rig.new("cp")))
        log.begin()
        deadline_s = time.monotonic() + READY_S
        while _shed(flow) == 0 and time.monotonic() < deadline_s:
            time.sleep(0.2)
        time.sleep(SETTLE_S)
        flow.mark()
        from_s = time.time()
        time.sleep(case.seconds)
        until_s = time.time()
        p95_s = flow.status().to_json()["classes"]["bench"]["delay_since_mark"]["p95_s"]
        time.sleep(2 * TARGET_S)  # for the last windows to close
        if (error := query.exception()) is not None:
            raise RuntimeError(str(error))
    return _with_truth(to, log, case, from_s, until_s), p95_s or 0.0


def _shed(flow: Any) -> int:
    return int(flow.status().classes["bench"].shed)


def _with_truth(to: Path, log: PacedLog, case: Case, from_s: float, until_s: float) -> pa.Table:
    results = pq.read_table(to)
    starts = _starts_s(results)
    inside = (starts >= from_s) & (starts + case.window_s <= until_s)
    results = results.filter(pa.array(inside & was_shed(results)))
    truth = _truth(log, case, from_s, until_s)
    starts = _starts_s(results)
    at = (np.rint((starts - truth.first_s) / case.window_s).astype(np.int64), results.column("g").to_numpy())
    results = results.append_column("start_s", pa.array(starts))
    results = results.append_column("true_count", pa.array(truth.count[at]))
    results = results.append_column("true_sum", pa.array(truth.sum[at]))
    return results.append_column("true_avg", pa.array(truth.sum[at] / truth.count[at])).drop_columns(["w"])


def _starts_s(results: pa.Table) -> np.ndarray:
    starts = results.column("w").combine_chunks().field("start")
    return starts.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()).to_numpy() / 1e6


@dataclass(frozen=True, slots=True, eq=False)
class Truth:
    """Of all offered rows, by window and group."""

    first_s: float
    count: np.ndarray
    sum: np.ndarray


def _truth(log: PacedLog, case: Case, from_s: float, until_s: float) -> Truth:
    size_us, groups = round(case.window_s * 1e6), case.groups
    first_us = round(from_s * 1e6) // size_us * size_us
    windows = (round(until_s * 1e6) - first_us) // size_us + 2
    count, total = np.zeros(windows * groups), np.zeros(windows * groups)
    low, high = (log.position_at(0, at_us) for at_us in (first_us, first_us + windows * size_us))
    headers = log.header_arrays(0, low, high, keys=False)
    for begins, ends in zip(headers.first_position.tolist(), headers.end_position.tolist(), strict=True):
        rows = log.read(0, begins, ends).batch
        window = (rows.column("ts").cast(pa.int64()).to_numpy() - first_us) // size_us
        keep = (window >= 0) & (window < windows)
        at = window[keep] * groups + rows.column("k").to_numpy()[keep] % groups
        count += np.bincount(at, minlength=count.size)
        total += np.bincount(at, rows.column("v").to_numpy()[keep], minlength=count.size)
    return Truth(first_us / 1e6, count.reshape(windows, groups), total.reshape(windows, groups))


def _inside(results: pa.Table, name: str) -> float:
    given = results.filter(pa.compute.is_valid(results.column(f"{name}_low")))
    low, high, true = (given.column(c).to_numpy() for c in (f"{name}_low", f"{name}_high", f"true_{name}"))
    return float(np.mean((low <= true) & (true <= high))) if given.num_rows else 0.0


def _width(given: pa.Table) -> list[float]:
    low, high, value = (given.column(c).to_numpy() for c in ("avg_low", "avg_high", "avg"))
    return ((high - low) / 2 / value).tolist() or [0.0]
