"""`spark/wide`: many cores, made virtual by tasks that sleep: all of them used, in time, and shared.

A row costs time and no CPU: a function over record batches sleeps for as long as their rows cost. So a
machine with two cores runs `local[16]` or `local[64]` as a cluster with so many would. What Spark, its Python
workers and the control plane do for each batch and task takes real CPU time. A cell in which that is more
than 70 % of the real cores says nothing about a cluster, and does not count.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.streaming import StreamingQuery

import penstock
from penstock.bench import BenchRun, bench
from penstock.calibration.capacity import WARM_BATCHES, stop_quietly
from penstock.calibration.measured import Batch, batches, delays, rows_in_time
from penstock.spark.driver.starting import start_in_turn
from penstock.spark.source.ungoverned import read_ungoverned
from penstock.streams.paced.stream import PacedLog, create_paced
from penstock.streams.producing.schedule import schedule_constant

from .rig import Rig, cpu_seconds, median, pool_rows

MOST_CPU = 0.7
"""Part of the real cores above which a cell does not count."""
GRID_S = (0.25, 0.5, 1.0, 2.0)
"""Row limits of ungoverned queries: what a query's part of the cores does in so many seconds."""
CELLS = {16: (50e-6, 5e-3), 64: (500e-6, 5e-3)}
"""By cores, what a row costs, in seconds."""
QUERIES = (1, 6, 16)
OVERLOAD = 3.0
LEARNING_S, STRETCH_S = 25.0, 30.0
FIXED_BATCHES = 6
WEIGHTS = {"first": 6.0, "second": 3.0, "third": 1.0}
EACH = 4
"""Queries of each class where shares are measured."""
SEGMENT_ROWS = 4096
TASK_MB = 40
"""Memory for each of the cores, in the JVM: record batches and buffers of its task."""


@bench("wide", title="16 and 64 virtual cores (tasks sleep): throughput, goodput and shares")
def wide(run: BenchRun) -> None:
    seconds = run.lasts(10.0 if run.quick else STRETCH_S)
    shapes = _shapes(run.quick)
    run.progress(total=2 * len(shapes) + 1)
    ratios, goods, late = dict[str, list[float]](), list[float](), list[float]()
    for cores in dict.fromkeys(shape.cores for shape in shapes):
        with _Session(cores) as session:
            for shape in (shape for shape in shapes if shape.cores == cores):
                _cells(run, session, shape, seconds, ratios, goods, late)
            if cores == min(CELLS):
                _shares(run, session, seconds)
    for name in (f"wide_{cores}_{queries}q" for cores in CELLS for queries in QUERIES):
        if name in ratios:
            run.row(name, min(ratios[name]))
    if goods:
        run.row("goodput_wide", min(goods))
        run.row("p95_to_target_wide", max(late))
    run.note(
        "rows sleep; reference = the smaller of cores / row cost and what ungoverned queries reach at the "
        f"best of {len(GRID_S)} row limits, as many tasks a batch as cores; target = max(2 s, 8 fixed costs "
        f"with all queries at work); a cell above {MOST_CPU:.0%} of the {real_cores()} real cores does not "
        "count"
    )


class _Session:
    """Starts Spark when the first cell needs it: a run that goes on may have all cells of these cores."""

    def __init__(self, cores: int) -> None:
        self._cores, self._wide = cores, None

    def __enter__(self) -> _Session:
        return self

    def __exit__(self, *_: object) -> None:
        if self._wide is not None:
            self._wide.rig.__exit__()

    def __call__(self) -> Wide:
        if self._wide is None:
            self._wide = Wide(self._cores)
            self._wide.warm_up()
        return self._wide


def _shapes(quick: bool) -> list[Shape]:
    if quick:
        return [Shape(16, 50e-6, 6, False), Shape(16, 5e-3, 6, True)]
    return [
        Shape(cores, row_s, queries, shuffle)
        for cores, costs in CELLS.items()
        for queries in QUERIES
        for row_s in costs
        for shuffle in (False, True)
    ]


def _cells(
    run: BenchRun,
    session: _Session,
    shape: Shape,
    seconds: float,
    ratios: dict[str, list[float]],
    goods: list[float],
    late: list[float],
) -> None:
    """Throughput and overload of one shape; what counts goes into the lists."""
    run.progress(f"{shape.name}: drained", advance=1)
    target_s = run.part(f"{shape.name}: target", lambda: session().target_s(shape))
    found = run.part(f"{shape.name}: reference", lambda: session().reference(shape, seconds))
    reference = min(found["cores"], max(rate for name, rate in found.items() if name != "cores"))
    drained = run.part(
        f"{shape.name}: drained", lambda: asdict(session().throughput(shape, target_s, seconds))
    )
    run.progress(f"{shape.name}: {OVERLOAD:g} times the reference", advance=1)
    over = run.part(
        f"{shape.name}: overload",
        lambda: session().overload(shape, target_s, OVERLOAD * reference, seconds),
    )
    ratio, good = drained["rows_per_s"] / reference, over["goodput_per_s"] / reference
    if drained["cpu"] <= MOST_CPU:
        ratios.setdefault(f"wide_{shape.cores}_{shape.queries}q", []).append(ratio)
    if over["cpu"] <= MOST_CPU:
        goods.append(good)
        late.append(over["p95_to_target"])
    best = max((name for name in found if name != "cores"), key=lambda name: found[name])
    run.note(
        f"{shape.name}: target {target_s:.1f} s; reference {reference:,.0f} of {shape.most_per_s:,.0f} "
        f"rows/s (best at {best}); drained {ratio:.3f} at {drained['cpu']:.0%} CPU{_counts(drained)}; "
        f"overload {good:.3f}, p95/target {over['p95_to_target']:.2f} at {over['cpu']:.0%} CPU{_counts(over)}"
    )


def _counts(cell: dict[str, float]) -> str:
    return "" if cell["cpu"] <= MOST_CPU else " (does not count)"


def _shares(run: BenchRun, session: _Session, seconds: float) -> None:
    """Parts of the work of three classes that are all offered too much."""
    shape = Shape(min(CELLS), max(CELLS[min(CELLS)]), EACH * len(WEIGHTS), False)
    run.progress(f"{shape.name} in three classes", advance=1)
    target_s = run.part(f"{shape.name}: target", lambda: session().target_s(shape))
    found = run.part(
        f"{shape.name}: shares",
        lambda: session().shares(shape, target_s, OVERLOAD * shape.most_per_s, 2 * seconds),
    )
    for i, name in enumerate(WEIGHTS, 1):
        run.row(f"share_{i}", found[name])
    run.note(f"shares: {shape.name}, target {target_s:.1f} s, {found['cpu']:.0%} CPU{_counts(found)}")


@dataclass(frozen=True)
class Shape:
    """What a cell runs: so many queries, whose rows cost so much, on so many cores."""

    cores: int
    row_s: float
    queries: int
    shuffle: bool

    @property
    def name(self) -> str:
        cost = f"{self.row_s * 1e6:g} us" if self.row_s < 1e-3 else f"{self.row_s * 1e3:g} ms"
        return f"{self.cores} cores, {cost}, {self.queries} queries{', a shuffle' * self.shuffle}"

    @property
    def most_per_s(self) -> float:
        """Rows a second that the cores can do."""
        return self.cores / self.row_s


@dataclass(frozen=True)
class Stretch:
    """What queries did in a measured time."""

    rows_per_s: float
    cpu: float
    """Part of the real cores that was used."""


def sleeping(row_s: float) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A function over record batches that takes so long a row."""

    def sleep(rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        due_s = time.monotonic()
        for batch in rows:  # waking up late is made up for, or many small batches would cost more
            due_s = max(due_s, time.monotonic() - 0.01) + batch.num_rows * row_s
            time.sleep(max(0.0, due_s - time.monotonic()))
            yield batch

    return sleep


class Wide:
    """A session with virtual cores, and what cells need."""

    def __init__(self, cores: int) -> None:
        self.cores = cores
        self.rig = Rig(master=f"local[{cores}]", memory=f"{1024 + TASK_MB * cores}m")
        self._names = itertools.count()

    def start(self, shape: Shape, stream: DataFrame) -> StreamingQuery:
        """A query that sleeps for its rows, and counts them by key where it has a shuffle."""
        rows = stream.mapInArrow(sleeping(shape.row_s), stream.schema)
        if shape.shuffle:
            rows = rows.repartition(self.cores, "k")
        writer = rows.writeStream.format("noop").outputMode("append")
        return start_in_turn(writer.option("checkpointLocation", str(self.rig.new("cp"))).start)

    def ungoverned(self, shape: Shape, limit: int) -> list[StreamingQuery]:
        """Plain queries that drain the filled log, in batches of so many rows, as many tasks as cores."""
        stream = read_ungoverned(self.rig.spark, self.rig.filled, limit, divided=True)
        return [self.start(shape, stream) for _ in range(shape.queries)]

    # -- measurements ---------------------------------------------------------------------------

    def warm_up(self) -> None:
        """Python workers start, and the JVM compiles."""
        shape = Shape(self.cores, 1e-5, 2, True)
        queries = self.ungoverned(shape, 1000 * self.cores)
        try:
            _wait(queries, 12)
        finally:
            _stop(queries)

    def target_s(self, shape: Shape) -> float:
        """max(2 s, 8 fixed costs): batches of next to no rows, with all queries at work."""
        queries = self.ungoverned(shape, 1)
        try:
            _wait(queries, WARM_BATCHES + FIXED_BATCHES)
            log = PacedLog(self.rig.filled)
            took_s = [b.duration_s for q in queries for b in _batches(q, log)[WARM_BATCHES:]]
        finally:
            _stop(queries)
        return max(2.0, 8.0 * median(took_s))

    def reference(self, shape: Shape, seconds: float) -> dict[str, float]:
        """What ungoverned queries reach in batches of each length, and what the cores can do at most."""
        found = {"cores": shape.most_per_s}
        for grid_s in GRID_S:
            limit = max(1, round(grid_s * shape.most_per_s / shape.queries))
            queries = self.ungoverned(shape, limit)
            try:
                _wait(queries, WARM_BATCHES)
                found[f"{grid_s:g} s"] = self._stretch(queries, self.rig.filled, seconds).rows_per_s
            finally:
                _stop(queries)
        return found

    def throughput(self, shape: Shape, target_s: float, seconds: float) -> Stretch:
        """Governed queries with default settings that drain a filled log; nothing is shed."""
        root = self.rig.paced(schedule_constant(1e6, 200.0, SEGMENT_ROWS))
        log = PacedLog(root / "readings")
        log.begin(time.time() - log.seconds - 1)
        classes = {"bench": {"target": target_s, "dry_run": True}}
        with penstock.attach(self.rig.spark, {"log": root, "classes": classes}) as flow:
            queries = [self._governed(flow, shape, "bench") for _ in range(shape.queries)]
            time.sleep(max(LEARNING_S, 4.0 * target_s))
            return self._stretch(queries, log.directory, max(seconds, 3.0 * target_s))

    def overload(self, shape: Shape, target_s: float, per_s: float, seconds: float) -> dict[str, float]:
        """Governed queries that are offered so many rows a second: what is in time, and the delays."""
        classes = {"bench": {"target": target_s}}
        with self._overloaded(shape, per_s, classes, target_s, seconds) as (queries, logs, from_s, cpu):
            until_s = time.time()
            time.sleep(target_s)
            done = [b for q, log in zip(queries, logs, strict=True) for b in _batches(q, log)]
        good = rows_in_time(done, target_s, from_s, until_s) / (until_s - from_s)
        p95_s = delays(done, from_s, until_s).p95_s
        return {
            "goodput_per_s": good,
            "p95_to_target": float("inf") if p95_s is None else p95_s / target_s,
            "cpu": cpu(),
        }

    def shares(self, shape: Shape, target_s: float, per_s: float, seconds: float) -> dict[str, float]:
        """By class of `WEIGHTS`, its part of the work: rows cost all the same."""
        classes = {name: {"target": target_s, "priority": weight} for name, weight in WEIGHTS.items()}
        with self._overloaded(shape, per_s, classes, target_s, seconds) as (queries, logs, from_s, cpu):
            until_s = time.time()
            rows = [_rows(_batches(q, log), from_s, until_s) for q, log in zip(queries, logs, strict=True)]
            used = cpu()
        names = list(WEIGHTS)
        by_class = {name: sum(rows[i :: len(names)]) for i, name in enumerate(names)}
        return {**{name: part / sum(rows) for name, part in by_class.items()}, "cpu": used}

    @contextmanager
    def _overloaded(
        self, shape: Shape, per_s: float, classes: dict[str, Any], target_s: float, seconds: float
    ) -> Iterator[tuple[list[StreamingQuery], list[PacedLog], float, Callable[[], float]]]:
        """Queries of all classes in turn, each with a stream of its own, after a measured time."""
        learning_s = max(LEARNING_S, 5.0 * target_s)
        length_s, rate = learning_s + seconds + target_s + 60.0, per_s / shape.queries
        root, rows = self.rig.new("log"), min(SEGMENT_ROWS, max(16, round(rate / 20)))
        for i in range(shape.queries):
            schedule = schedule_constant(rate, length_s, rows)
            create_paced(root / f"s{i}", pool_rows(i), schedule, event_time="ts")
        names = list(classes)
        with ExitStack() as stack:
            flow = stack.enter_context(penstock.attach(self.rig.spark, {"log": root, "classes": classes}))
            queries = [
                self._governed(flow, shape, names[i % len(names)], f"s{i}") for i in range(shape.queries)
            ]
            logs = [stack.enter_context(PacedLog(root / f"s{i}")) for i in range(shape.queries)]
            for log in logs:
                log.begin()
            time.sleep(learning_s)
            from_s, cpu_s = time.time(), cpu_seconds()
            time.sleep(max(seconds, 5.0 * target_s))
            used_s, wall_s = cpu_seconds() - cpu_s, time.time() - from_s
            yield queries, logs, from_s, lambda: used_s / wall_s / real_cores()

    def _governed(self, flow: Any, shape: Shape, cls: str, stream: str = "readings") -> StreamingQuery:
        return self.start(shape, flow.read_stream(stream, cls=cls, query=f"q{next(self._names)}"))

    def _stretch(self, queries: list[StreamingQuery], stream: Path, seconds: float) -> Stretch:
        """Rows a second of some queries; a batch that spans a border counts by its part inside."""
        from_s, cpu_s = time.time(), cpu_seconds()
        time.sleep(seconds)
        until_s, used_s = time.time(), cpu_seconds() - cpu_s
        _wait(queries, 1)
        log = PacedLog(stream)
        rows = sum(_rows(_batches(query, log), from_s, until_s) for query in queries)
        return Stretch(rows / (until_s - from_s), used_s / (until_s - from_s) / real_cores())


def real_cores() -> int:
    return len(os.sched_getaffinity(0))


def _batches(query: StreamingQuery, log: PacedLog) -> list[Batch]:
    if (error := query.exception()) is not None:
        raise RuntimeError(str(error))
    return batches([dict(report) for report in query.recentProgress], log)


def _rows(done: Sequence[Batch], from_s: float, until_s: float) -> float:
    """Rows of batches in a time; those of a batch that spans its border by the part inside."""
    inside = [max(0.0, min(b.ended_s, until_s) - max(b.began_s, from_s)) / b.duration_s for b in done]
    return sum(part * b.rows for part, b in zip(inside, done, strict=True))


def _wait(queries: list[StreamingQuery], more: int) -> None:
    """Waits until each query has ended so many more batches."""
    wanted = {query.id: len(query.recentProgress) + more for query in queries}
    for query in queries:
        while len(query.recentProgress) < wanted[query.id]:
            time.sleep(0.2)
            if (error := query.exception()) is not None:
                raise RuntimeError(str(error))


def _stop(queries: list[StreamingQuery]) -> None:
    for query in queries:
        stop_quietly(query)
