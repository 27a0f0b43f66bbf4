"""`spark/shares`, `spark/background`, `spark/managers`: turns, a changing machine, the papers' managers."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time

import numpy as np

import penstock
from penstock.bench import BenchRun, bench
from penstock.calibration.measured import Batch, batches, delays
from penstock.policies.load import LOAD_MANAGERS
from penstock.streams.paced.stream import PacedLog
from penstock.streams.producing.schedule import schedule_constant
from penstock.vocabulary.errors import PenstockError

from .goodput import bursts
from .rig import SEGMENT_ROWS, Rig, brackets, median, spread

WEIGHTS = {"first": 6.0, "second": 3.0, "third": 1.0}
SHARES_S = 60.0
BACKGROUND_S = 45.0


@bench("shares", title="time shares of three saturated classes with weights 6 : 3 : 1")
def shares(run: BenchRun) -> None:
    repeats = run.times(3)
    run.progress("warming up", total=repeats)
    results = []
    with Rig() as rig:
        rig.warm_up()
        rig.measure_target()
        for _ in range(repeats):
            run.progress("three classes", advance=1)
            results.append(_shares(rig, 30.0 if run.quick else SHARES_S))
    for i, name in enumerate(WEIGHTS, 1):
        values = [result[name] for result in results]
        run.row(f"share_{i}", median(values))
        run.note(f"{name}, weight {WEIGHTS[name]:g}: {spread(values)}")
    run.note("share = time of a class's micro-batches by Spark's progress reports / that of all three")


def _shares(rig: Rig, seconds: float) -> dict[str, float]:
    rate = 3.0 * rig.capacity().rows_per_s
    root = rig.paced(schedule_constant(rate, seconds + 40.0, SEGMENT_ROWS))
    target_s = 2.5 * rig.target_s
    classes = {name: {"target": target_s, "priority": weight} for name, weight in WEIGHTS.items()}
    with penstock.attach(rig.spark, {"log": root, "classes": classes}) as flow:
        queries = {
            name: rig.start(flow.read_stream("readings", cls=name, query=name), str(rig.new("cp")))
            for name in classes
        }
        PacedLog(root / "readings").begin()
        time.sleep(15.0)
        from_s = time.time()
        time.sleep(seconds)
        until_s = time.time()
        log = PacedLog(root / "readings")
        used = {}
        for name, query in queries.items():
            reports = [dict(report) for report in query.recentProgress]
            used[name] = sum(
                max(0.0, min(b.ended_s, until_s) - max(b.began_s + _asked_s(r), from_s))
                for r, b in zip([r for r in reports if r["numInputRows"]], batches(reports, log), strict=True)
            )
    return {name: value / sum(used.values()) for name, value in used.items()}


def _asked_s(report: dict) -> float:
    return report["durationMs"].get("latestOffset", 0) / 1000.0


@bench("background", title="another job takes half of the CPU from the middle of the run on")
def background(run: BenchRun) -> None:
    repeats = run.times(3)
    run.progress("warming up", total=repeats)
    periods, before, after, slowed, taken = [], [], [], [], []
    with Rig() as rig:
        rig.warm_up()
        rig.measure_target()
        for _ in range(repeats):
            run.progress("half of the CPU is taken", advance=1)
            result = _background(rig)
            periods.append(result[0])
            before.append(result[1])
            after.append(result[2])
            slowed.append(result[3])
            taken.append(result[4])
    run.row("recovery_periods", median(periods))
    run.row("p95_to_target_before", median(before))
    run.row("p95_to_target_after", median(after))
    run.row("rate_after_to_before", median(slowed))
    run.row("job_cpu_fraction", median(taken))
    run.note(f"p95 / target before {spread(before)}, after the recovery {spread(after)}")
    run.note(f"grants over the target after the job began: {periods}; rows/s after / before {spread(slowed)}")
    run.note(f"part of the CPU that the other job took: {spread(taken)}")
    run.note(
        "offered: twice the capacity; a control period is a grant; recovered = the last of the first "
        "twenty grants whose p95 is over the target"
    )


class _OtherJob:
    """Processes that spin, one for each of Spark's threads: among as many that always run, it has half."""

    def __init__(self, processes: int) -> None:
        command = [sys.executable, "-c", "while True: pass"]
        self._jobs = [subprocess.Popen(command) for _ in range(processes)]

    def stop(self) -> float:
        """Ends them; returns the CPU seconds that they took. One that did not run is an error."""
        for job in self._jobs:
            if job.poll() is not None:
                raise PenstockError(
                    f"the other job runs until it is stopped; got: exit code {job.returncode}"
                )
            job.kill()
        used = [os.wait4(job.pid, 0)[2] for job in self._jobs]
        return sum(usage.ru_utime + usage.ru_stime for usage in used)


def _background(rig: Rig) -> tuple[float, float, float, float, float]:
    root = rig.constant(2.0 * rig.capacity().rows_per_s, 2 * BACKGROUND_S + 40.0)
    log = PacedLog(root / "readings")
    cores = rig.spark.sparkContext.defaultParallelism
    with rig.governed(root) as (_, query):
        log.begin()
        time.sleep(15.0)
        from_s = time.time()
        time.sleep(BACKGROUND_S)
        job, began_s = _OtherJob(cores), time.time()
        try:
            time.sleep(BACKGROUND_S)
        finally:
            job_s, until_s = job.stop(), time.time()
        done = batches([dict(report) for report in query.recentProgress], log)
    later = [b for b in done if began_s <= b.ended_s < until_s]
    if not later:
        raise PenstockError("batches end while the other job runs; got: none; hint: see Spark's log")
    late = [i for i, b in enumerate(later[:20], 1) if _p95(b) > rig.target_s]
    recovered = max(late, default=0)
    recovered_s = later[recovered - 1].ended_s if recovered else began_s
    calm = delays(done, from_s, began_s).p95_s or 0.0
    after = delays(done, recovered_s + 1e-6, until_s).p95_s
    rest = float("inf") if after is None else after
    rates = [
        sum(b.rows for b in done if low <= b.ended_s < high)
        for low, high in ((from_s, began_s), (began_s, until_s))
    ]
    taken = job_s / (cores * (until_s - began_s))
    return float(recovered), calm / rig.target_s, rest / rig.target_s, rates[1] / rates[0], taken


def _p95(batch: Batch) -> float:
    order = np.argsort(batch.ended_s - batch.arrival_s)
    upto = np.cumsum(batch.weight[order])
    return float((batch.ended_s - batch.arrival_s)[order][np.searchsorted(upto, 0.95 * upto[-1])])


@bench("managers", title="all load managers on Spark, the bursty trace at twice the capacity")
def managers(run: BenchRun) -> None:
    repeats = run.times(3)
    names = ("deadline", "aloma") if run.quick else tuple(LOAD_MANAGERS)
    order = [*names] * repeats
    random.Random(run.seed).shuffle(order)
    run.progress("warming up", total=len(order))
    results: dict[str, list[tuple[float, float, float]]] = {name: [] for name in names}
    with Rig() as rig:
        rig.warm_up()
        rig.measure_target()
        before = rig.capacity()
        for name in order:
            run.progress(name, advance=1)
            root = bursts(rig, before.rows_per_s)
            with rig.governed(root, manager=name) as (flow, query):
                cell = rig.run_cell(root, query, flow)
            after = rig.capacity()
            done = cell.status["classes"]["bench"]
            results[name].append(
                (
                    cell.goodput(rig.target_s, brackets(before, after)),
                    (cell.delay().p95_s or 0.0) / rig.target_s,
                    done["shed"] / max(1, done["shed"] + done["admitted"]),
                )
            )
            before = after
    for name in names:
        goods, p95s, losses = zip(*results[name], strict=True)
        run.row(f"{name}_goodput", median(goods))
        run.row(f"{name}_p95_to_target", median(p95s))
        run.note(f"{name}: goodput {spread(goods)}, p95/target {spread(p95s)}, loss {spread(losses)}")
    run.note("the managers that are told a headroom (aurora, baseline, ctrl) have their default of 0.97")
