"""`spark/goodput`: rows that are in time, from half to twenty times the capacity, beside plain Spark."""

from __future__ import annotations

import random
import time
from collections import defaultdict, deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from pyspark.sql import DataFrame
from pyspark.sql.streaming import StreamingQuery

from penstock.bench import BenchRun, bench
from penstock.sim.workloads import arrivals as workloads
from penstock.spark.driver.starting import start_in_turn
from penstock.streams.paced.stream import PacedLog
from penstock.streams.producing.schedule import schedule_from_arrivals

from .rig import (
    MEASURED_S,
    SEGMENT_ROWS,
    WARM_S,
    Cell,
    Rig,
    brackets,
    drift,
    heavy,
    median,
    pool_rows,
    spread,
)

LOADS = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0)
ERROR_S = 20.0
PEER_LOADS = (1.0, 5.0, 20.0)
QUICK_LOADS = (1.0, 5.0, 20.0)
DRIFT = 0.25
"""Difference of the capacities before and after a cell, over their mean, above which nobody knows what the
capacity was meanwhile: it is run again, whatever came out."""
PROBE_BATCHES = 8
RATE_PROBES = 3
"""What is offered is a multiple of the median of so many probes: one alone is off by a tenth."""


@bench("goodput", title="rows in time / capacity, target max(2 s, 8 fixed costs)")
def goodput(run: BenchRun) -> None:
    repeats = run.times(3)
    loads = QUICK_LOADS if run.quick else LOADS
    peers = (5.0,) if run.quick else PEER_LOADS
    cells = [("governed", load) for load in loads] + [("governed", 0.0)]
    cells += [(kind, load) for kind in ("plain", "static_limit") for load in peers]
    cells += [("freshest", 5.0), ("governed", 0.1), ("plain", 0.1)]
    order = cells * repeats
    random.Random(run.seed).shuffle(order)
    run.progress("warming up", total=len(order))
    with Rig() as rig:
        rig.warm_up(15.0 if run.quick else 30.0)
        fixed_s, target_s = rig.measure_target()
        results: dict[tuple[str, float], list[tuple[Cell, float]]] = defaultdict(list)
        offered: dict[tuple[str, float], list[float]] = defaultdict(list)
        probes, left, again = [rig.capacity(PROBE_BATCHES)], deque(order), 0
        while left:
            kind, load = left.popleft()
            run.progress(f"{kind} at {load or 'burst'} x", advance=1)
            rate_per_s = median([probe.rows_per_s for probe in probes[-RATE_PROBES:]])
            cell = _measure(rig, kind, load, rate_per_s)
            before, after = probes[-1], rig.capacity(PROBE_BATCHES)
            probes.append(after)
            if drift(before, after) > DRIFT and again < len(order) // 2:
                left.append((kind, load))
                again += 1
            else:
                results[kind, load].append((cell, brackets(before, after)))
                offered[kind, load].append(load * rate_per_s / brackets(before, after))
        run.note(f"{again} cells were run again: the capacities around them differed by over {DRIFT:.0%}")
        _report(run, results, offered, target_s, fixed_s)
        run.progress("error of the results")
        for name, settings in (("uniform", {}), ("freshest", {"shed": "oldest"})):
            errors = [_error_percent(rig, probes[-1].rows_per_s, settings) for _ in range(repeats)]
            run.row(f"{name}_error_percent_5x", median(errors))
            run.note(f"{name}: mean error of a window's average at 5x: {spread(errors)} %")


def _error_percent(rig: Rig, capacity_per_s: float, settings: dict[str, Any]) -> float:
    """How far a one-second window's average is from the truth, which the stream's rows have by design."""
    root = rig.constant(5.0 * capacity_per_s, ERROR_S + WARM_S + 10.0)
    name = rig.new("errors").name
    start, rig.start = rig.start, lambda stream, checkpoint: _to_memory(stream, checkpoint, name)
    try:
        with rig.governed(root, **settings):
            PacedLog(root / "readings").begin()
            time.sleep(WARM_S + ERROR_S)
    finally:
        rig.start = start
    sums = f"SELECT window.start AS at, sum(total) / sum(n) AS a FROM {name} GROUP BY 1 ORDER BY 1"
    found = rig.spark.sql(sums)
    averages = [row["a"] for row in found.collect()][round(WARM_S / 2) : -1]
    truth = float(np.mean(pool_rows()[0].column("v").to_numpy())) + 0.5
    return 100.0 * float(np.mean([abs(a - truth) for a in averages])) / truth


def _to_memory(stream: DataFrame, checkpoint: str, name: str) -> StreamingQuery:
    writer = heavy(stream).writeStream.format("memory").queryName(name).outputMode("append")
    return start_in_turn(writer.option("checkpointLocation", checkpoint).start)


def _measure(rig: Rig, kind: str, load: float, capacity_per_s: float) -> Cell:
    root = rig.constant(load * capacity_per_s) if load else bursts(rig, capacity_per_s)
    if kind in ("plain", "static_limit"):
        # the limit an operator would set: what the capacity processes in half the target
        limit = rig.batch_rows if kind == "static_limit" else 0
        with rig.plain(root, limit) as query:
            return rig.run_cell(root, query)
    settings = {"shed": "oldest"} if kind == "freshest" else {}
    with rig.governed(root, **settings) as (flow, query):
        return rig.run_cell(root, query, flow)


def bursts(rig: Rig, capacity_per_s: float) -> Path:
    """The bursty trace, its mean at twice the capacity."""
    times_s = workloads.s_r().times_s
    seconds = WARM_S + MEASURED_S + 20.0
    times_s = times_s[times_s < seconds]
    scale = 2.0 * capacity_per_s * seconds / times_s.size
    return rig.paced(schedule_from_arrivals(times_s, scale, SEGMENT_ROWS))


def _report(
    run: BenchRun,
    results: dict[tuple[str, float], list[tuple[Cell, float]]],
    offered: dict[tuple[str, float], list[float]],
    target_s: float,
    fixed_s: float,
) -> None:
    capacities = [capacity for cells in results.values() for _, capacity in cells]
    run.note(
        f"target {target_s:.2f} s, fixed cost {fixed_s:.3f} s, capacity {spread(capacities)} rows/s; "
        f"{MEASURED_S:g} s a cell, capacity probed before and after each, cells in random order"
    )

    def values(kind: str, load: float, of: Callable[[Cell, float], float]) -> list[float]:
        return [of(cell, capacity) for cell, capacity in results.get((kind, load), [])]

    for (kind, load), cells in sorted(results.items()):
        if load == 0.1:
            continue
        name = "burst" if load == 0.0 else f"{load:g}x"
        prefix = "" if kind == "governed" else f"{kind}_"
        goods = values(kind, load, lambda cell, capacity: cell.goodput(target_s, capacity))
        p95s = [cell.delay().p95_s for cell, _ in cells]
        run.row(f"{prefix}goodput_{name}", median(goods))
        # a plain query may not have finished one batch in the stretch: its delays are in the notes alone
        known = [p95 / target_s for p95 in p95s if p95 is not None]
        if kind in ("governed", "freshest"):
            run.row(f"{prefix}p95_to_target_{name}", median(known))
        text = f"{kind} {name}: goodput {spread(goods)}"
        if load:
            text += f" of {spread(offered[kind, load])} offered"
        run.note(f"{text}, p95/target {spread(known)}" if known else f"{text}, no batch ended")
    idle = values("governed", 0.1, lambda cell, _: cell.cpu_s)
    plain = values("plain", 0.1, lambda cell, _: cell.cpu_s)
    run.row("idle_cpu_ratio", median(idle) / median(plain))
    run.note(f"CPU seconds in {MEASURED_S:g} s at a tenth of capacity: {spread(idle)}, plain {spread(plain)}")
