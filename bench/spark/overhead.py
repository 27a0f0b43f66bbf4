"""`spark/overhead` and `spark/drop-cost`: what being governed costs, and what a dropped row costs."""

from __future__ import annotations

import random
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

from penstock.bench import BenchRun, bench
from penstock.grants.offset import Books, Offset
from penstock.grants.plan import SCALE, Plan
from penstock.grants.selection import select, share_out
from penstock.log.open import open_stream
from penstock.log.paced import PacedLog, create_paced
from penstock.log.schedule import schedule_constant
from penstock.spark.capacity import Start
from penstock.spark.measured import batches
from penstock.spark.source import ReadTask, read_task

from .rig import SEGMENT_ROWS, Rig, median, pool_rows, spread, start_light, start_noop

LOW_RATE_PER_S = 5_000.0


@bench("overhead", title="the same query over the same log, governed / ungoverned")
def overhead(run: BenchRun) -> None:
    repeats = max(2, run.times(3))
    run.progress("warming up", total=3 * repeats)
    with Rig() as rig:
        rig.warm_up()
        rig.measure_target()
        ones, threes, times = [], [], []
        for i in range(repeats):
            run.progress("one query at saturation", advance=1)
            ones.append(_throughput_ratio(rig, 1, run.seed + i))
            run.progress("three queries at saturation", advance=1)
            threes.append(_throughput_ratio(rig, 3, run.seed + i))
            run.progress("low load", advance=1)
            times.append(_batch_time_ratio(rig))
    run.row("throughput_ratio", median(ones))
    run.row("throughput_ratio_three_queries", median(threes))
    run.row("batch_time_ratio", median(times))
    run.note(f"throughput, one query: {spread(ones)}; three: {spread(threes)}; batch time: {spread(times)}")
    run.note(
        "at saturation a filled log is drained, with nothing shed (dry run); governed and ungoverned in turn "
        "and random order, in batches of as many rows on both sides; three governed queries have three times "
        "the target of one"
    )


def _throughput_ratio(rig: Rig, queries: int, seed: int) -> float:
    """Rows a second governed over ungoverned, in batches of as many rows, each bracketed by the other."""
    order = [True, False, False, True]
    random.Random(seed).shuffle(order)
    rates: dict[bool, list[float]] = {True: [], False: []}
    _, batch_rows = _drain(rig, queries, None)
    for is_governed in order:
        rate, rows = _drain(rig, queries, None if is_governed else batch_rows)
        rates[is_governed].append(rate)
        batch_rows = rows if is_governed else batch_rows
    return sum(rates[True]) / sum(rates[False])


def _drain(rig: Rig, queries: int, limit: int | None, seconds: float = 12.0) -> tuple[float, int]:
    """Rows a second, and of a batch, of so many queries that drain a filled log.

    Governed, they have a target of so many times that of one query; with a row limit nobody governs them.
    """
    import penstock
    from penstock.spark.capacity import read_ungoverned

    root = rig.paced(schedule_constant(1e6, 200.0, SEGMENT_ROWS))
    log = PacedLog(root / "readings")
    log.begin(time.time() - log.seconds - 1)
    started = []
    flow = None
    try:
        if limit is None:
            config = {"log": root, "classes": {"bench": {"target": queries * rig.target_s, "dry_run": True}}}
            flow = penstock.attach(rig.spark, config)
            streams = [flow.read_stream("readings", cls="bench", query=f"q{i}") for i in range(queries)]
        else:
            streams = [read_ungoverned(rig.spark, root / "readings", limit) for _ in range(queries)]
        started = [rig.start(stream, str(rig.new("cp"))) for stream in streams]
        time.sleep(12.0)
        from_s = time.time()
        time.sleep(seconds)
        until_s = time.time()
        done = [b for q in started for b in batches([dict(report) for report in q.recentProgress], log)]
        # a batch that spans the border counts by the part of it inside
        inside = [max(0.0, min(b.ended_s, until_s) - max(b.began_s, from_s)) / b.took_s for b in done]
        rows = sum(part * b.rows for part, b in zip(inside, done, strict=True))
        sizes = [b.rows for part, b in zip(inside, done, strict=True) if part > 0]
        return rows / seconds, round(median(sizes))
    finally:
        if flow is not None:
            flow.stop()
        for query in started:
            query.stop()


def _batch_time_ratio(rig: Rig) -> float:
    """Median micro-batch time at low load over batches of as many rows, without the wait for the turn."""
    root = rig.constant(LOW_RATE_PER_S, 60.0)
    with rig.governed(root) as (_, query):
        PacedLog(root / "readings").begin()
        time.sleep(18.0)
        reports = [dict(report) for report in query.recentProgress if report["numInputRows"]][4:]
    rows = median([report["numInputRows"] for report in reports])
    governed_s = median([_busy_ms(report) for report in reports]) / 1000
    second = rig.constant(LOW_RATE_PER_S, 60.0)
    log = PacedLog(second / "readings")
    log.begin(time.time() - 50.0)
    with rig.plain(second, round(rows)) as query:
        time.sleep(10.0)
        reports = [dict(report) for report in query.recentProgress if report["numInputRows"]][4:]
    return governed_s / (median([_busy_ms(report) for report in reports]) / 1000)


def _busy_ms(report: dict) -> float:
    """A micro-batch's time without the question for its offset, which may hold it until it is worth it."""
    durations = report["durationMs"]
    return durations["triggerExecution"] - durations.get("latestOffset", 0)


@bench("drop-cost", title="a dropped row's cost / a processed row's, by whole segments and inside one")
def drop_cost(run: BenchRun) -> None:
    repeats = max(3, run.times(5))
    processed: dict[Start, list[float]] = {}
    with Rig() as rig:
        run.progress("warming up", total=3)
        for start, name in ((start_noop, "a processed row"), (start_light, "one of a light query")):
            rig.start = start
            rig.warm_up(15.0)
            rig.measure_target()
            run.progress(name, advance=1)
            processed[start] = [1.0 / rig.capacity().rows_per_s for _ in range(repeats)]
        run.progress("dropped rows", advance=1)
        by_segment = [_drop_s(rig.filled, Plan("segment", segment_keep=0, seed=i)) for i in range(repeats)]
        inside = [_drop_s(rig.filled, Plan("row", row_keep=SCALE // 1000, seed=i)) for i in range(repeats)]
        keyed = _keyed(rig.new("keyed"))
        by_key = [_drop_s(keyed, Plan("key", key_keep=1, seed=i)) for i in range(repeats)]
    heavy_s, light_s = (median(processed[start]) for start in (start_noop, start_light))
    run.row("segment_drop_cost", median(by_segment) / heavy_s)
    run.row("inside_drop_cost", median(inside) / heavy_s)
    run.row("inside_drop_cost_light", median(inside) / light_s)
    run.row("key_drop_cost", median(by_key) / heavy_s)
    run.note(
        f"processed {heavy_s * 1e6:.2f} us a row, {light_s * 1e6:.2f} by a light query, both on all cores; "
        f"dropped {median(by_segment) * 1e9:.2f} ns by segment, {median(inside) * 1e9:.1f} inside, "
        f"{median(by_key) * 1e9:.1f} by key (nearly all different, one bucket of 64 kept), on one core: "
        "planning and reading of four million rows, as the source does it"
    )


def _keyed(directory: Path, rows: int = 4_000_000) -> Path:
    """A filled stream whose keys are nearly all different."""
    keys = np.random.default_rng(1).integers(0, 10**9, 65_536)
    pool = [batch.set_column(1, "k", pa.array(keys)) for batch in pool_rows()]
    log = create_paced(
        directory, pool, schedule_constant(1e6, rows / 1e6, SEGMENT_ROWS), key="k", event_time="ts"
    )
    log.begin(time.time() - log.seconds - 1)
    return directory


def _drop_s(stream: Path, plan: Plan, rows: int = 4_000_000) -> float:
    """Seconds a row that a source spends on rows it drops: choosing, counting, opening, masking."""
    log = open_stream(stream)
    began = time.perf_counter()
    offset = Offset("bench", {0: 0}, {0: rows}, 1, {}, plan, Books())
    shares = share_out(select(log, offset), 0, 2, 20_000)
    for share in shares:
        for _ in read_task(ReadTask(str(stream), plan, share, (), 1.0, 1.0)):
            pass
    return (time.perf_counter() - began) / rows
