"""`spark/overhead`: what being governed costs."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql.streaming import StreamingQuery

import penstock
from penstock.bench import BenchRun, bench
from penstock.calibration.capacity import WARM_BATCHES, stop_quietly
from penstock.calibration.measured import batches
from penstock.spark.source.ungoverned import read_ungoverned
from penstock.streams.paced.stream import PacedLog
from penstock.streams.producing.schedule import schedule_constant

from .rig import SEGMENT_ROWS, Rig, median, spread, start_noop

PAIRS = {1: 5, 3: 2}
"""By queries, stretches of either side in one repeat: the machine's speed changes within ten seconds."""
STRETCH_S = 6.0
LEARNING_S = 12.0
"""Of a governed query's first stretch, which is not counted: its batches grow to what its turn holds."""
LOW_RATE_PER_S = 5_000.0
LOW_LOAD_S = 24.0


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
        f"at saturation a filled log is drained, with nothing shed (dry run): in a repeat {PAIRS[1]} pairs "
        f"of stretches, {PAIRS[3]} longer ones of three queries, governed and ungoverned in random order, in "
        "batches of as many rows on both sides; a repeat is the ratio of what all its stretches came to; "
        "three governed queries have three times the target of one; at low load the ungoverned query has the "
        "governed one's interval as its trigger"
    )


@dataclass(frozen=True)
class _Side:
    """Queries over a filled log that are started and stopped in turn with those of the other side."""

    rig: Rig
    log: PacedLog
    checkpoints: list[str]

    def stretch(self, streams: list[DataFrame], seconds: float) -> tuple[float, int]:
        """Rows a second of all queries after their first batches, and rows of a batch."""
        started = [self.rig.start(s, c) for s, c in zip(streams, self.checkpoints, strict=True)]
        try:
            _wait(started, lambda query: len(query.recentProgress) > WARM_BATCHES)
            from_s = time.time()
            time.sleep(seconds)
            until_s = time.time()
            count = {query.id: len(query.recentProgress) for query in started}
            _wait(started, lambda query: len(query.recentProgress) > count[query.id])  # one that spans it
            reports = [[dict(report) for report in query.recentProgress] for query in started]
            done = [batch for progress in reports for batch in batches(progress, self.log)]
        finally:
            for query in started:
                stop_quietly(query)
        # a batch that spans the border counts by the part of it inside
        inside = [max(0.0, min(b.ended_s, until_s) - max(b.began_s, from_s)) / b.duration_s for b in done]
        rows = sum(part * b.rows for part, b in zip(inside, done, strict=True))
        sizes = [b.rows for part, b in zip(inside, done, strict=True) if part > 0]
        return rows / (until_s - from_s), round(median(sizes))


def _wait(queries: list[StreamingQuery], is_there: Callable[[StreamingQuery], bool]) -> None:
    for query in queries:
        while not is_there(query):
            time.sleep(0.2)  # seldom: it takes from what is measured
            if (error := query.exception()) is not None:
                raise RuntimeError(str(error))


def _throughput_ratio(rig: Rig, queries: int, seed: int) -> float:
    """Rows a second governed over ungoverned, in batches of as many rows, in short stretches by turns.

    Both sides go on where they stopped, and the control plane remembers what batches cost.
    """
    rates: dict[bool, list[float]] = {True: [], False: []}
    order = random.Random(seed)
    seconds = queries * STRETCH_S
    with _governed(rig, queries) as (governed, streams), _filled(rig, queries) as plain:
        _, batch_rows = governed.stretch(streams, queries * LEARNING_S)
        for _ in range(PAIRS[queries]):
            for is_governed in order.sample([True, False], 2):
                if is_governed:
                    rate, batch_rows = governed.stretch(streams, seconds)
                else:
                    limited = [read_ungoverned(rig.spark, plain.log.directory, batch_rows)] * queries
                    rate, _ = plain.stretch(limited, seconds)
                rates[is_governed].append(rate)
    return sum(rates[True]) / sum(rates[False])


@contextmanager
def _filled(rig: Rig, queries: int) -> Iterator[_Side]:
    root = rig.paced(schedule_constant(1e6, 200.0, SEGMENT_ROWS))
    log = PacedLog(root / "readings")
    log.begin(time.time() - log.seconds - 1)
    with log:
        yield _Side(rig, log, [str(rig.new("cp")) for _ in range(queries)])


@contextmanager
def _governed(rig: Rig, queries: int) -> Iterator[tuple[_Side, list[DataFrame]]]:
    """The governed side, whose control plane lives from its first stretch to its last."""
    with _filled(rig, queries) as side:
        classes = {"bench": {"target": queries * rig.target_s, "dry_run": True}}
        with penstock.attach(rig.spark, {"log": Path(side.log.directory).parent, "classes": classes}) as flow:
            yield (
                side,
                [flow.read_stream("readings", cls="bench", query=f"q{i}") for i in range(queries)],
            )


def _batch_time_ratio(rig: Rig) -> float:
    """Median micro-batch time at low load, without the wait for the turn; as many rows at one interval."""
    root = rig.constant(LOW_RATE_PER_S, 2 * LOW_LOAD_S)
    with rig.governed(root) as (_, query):
        governed = _at_low_load(root, query)
    ended_s = [batch.ended_s for batch in batches(governed, PacedLog(root / "readings"))]
    every_s = median([after - before for before, after in pairwise(ended_s)])
    second = rig.constant(LOW_RATE_PER_S, 2 * LOW_LOAD_S)
    query = start_noop(read_ungoverned(rig.spark, second / "readings"), str(rig.new("cp")), every_s)
    try:
        plain = _at_low_load(second, query)
    finally:
        stop_quietly(query)
    return median([_busy_ms(r) for r in governed]) / median([_busy_ms(r) for r in plain])


def _at_low_load(root: Path, query: StreamingQuery) -> list[dict]:
    """Reports of a query's batches after its first ones."""
    with PacedLog(root / "readings") as log:
        log.begin()
        time.sleep(LOW_LOAD_S)
    return [dict(report) for report in query.recentProgress if report["numInputRows"]][4:]


def _busy_ms(report: dict) -> float:
    """A micro-batch's time without the question for its offset, which may hold it until it is worth it."""
    durations = report["durationMs"]
    return durations["triggerExecution"] - durations.get("latestOffset", 0)
