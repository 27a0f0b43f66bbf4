"""`cql/many`: ten, a hundred, a thousand queries of one shape, as a family and each by itself."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from penstock.bench import BenchRun
from penstock.calibration.capacity import probe
from penstock.cql.analysis.families import families_of
from penstock.cql.meaning.plan import Query
from penstock.cql.program import read_program
from penstock.spark.cql.feeds import Feed
from penstock.spark.cql.members import write_members
from penstock.spark.cql.windows import family_windows_of, windows_of
from penstock.spark.driver.starting import start_in_turn
from penstock.spark.session import session
from penstock.spark.source.ungoverned import read_ungoverned
from penstock.streams.paced.stream import PacedLog, create_paced
from penstock.streams.producing.schedule import schedule_constant
from penstock.vocabulary.errors import PenstockError

COUNTS = (10, 100, 1000)
RATE_PER_S, FILLED_S = 200_000.0, 400.0
"""Rows a second of event time."""
BATCH_ROWS = 100_000
"""Half a second of them."""
SEGMENT_ROWS, POOL_ROWS = 8192, 65_536
PROBED, SEPARATE_BATCHES, SEPARATE_WARM = 7, 3, 1
SEPARATE_COUNTS = (10, 100)
"""Queries that are also run one by one. A thousand are not tried: each has a Python process of its own."""
SEPARATE_START_S, SEPARATE_LIMIT_S = 300.0, 300.0
"""Until all are up, and until all have had their batches."""

STREAM = "REGISTER STREAM readings (of10 int, of100 int, of1000 int, v float); "
ONE = "SELECT avg(v) FROM readings [RANGE 1 SEC SLIDE 1 SEC] WHERE of{count} = {i}"
OVERLAPPING = "SELECT avg(v) FROM readings [RANGE 1 SEC SLIDE 1 SEC] WHERE v >= {low} AND v < {high}"
COLUMNS = ("of10", "of100", "of1000", "v")


def queries(count: int, overlapping: bool) -> dict[str, Query]:
    """A row matches one of them; or, overlapping, a tenth of them."""
    found = {}
    for i in range(count):
        low = 0.9 * i / count
        text = OVERLAPPING.format(low=f"{low:.6f}", high=f"{low + 0.1:.6f}") if overlapping else ONE
        (written,) = read_program(STREAM + text.format(count=count, i=i)).queries
        found[f"q{i}"] = written.query
    return found


def pool() -> list[pa.RecordBatch]:
    drawn = np.random.default_rng(0)
    ids = drawn.integers(0, 1000, POOL_ROWS)
    times = pa.array(np.zeros(POOL_ROWS, np.int64), pa.timestamp("us", tz="UTC"))
    columns = {"ts": times, "of10": ids % 10, "of100": ids % 100, "of1000": ids, "v": drawn.random(POOL_ROWS)}
    return [pa.record_batch(columns)]


def many(run: BenchRun) -> None:
    """Runs all of it."""
    folder = Path(tempfile.mkdtemp(prefix="penstock-bench-"))
    repeats = run.times(3)
    run.progress("starting Spark", total=2 * len(COUNTS) * repeats + len(SEPARATE_COUNTS))
    settings = {
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.streaming.pollingDelay": "500ms",  # a hundred queries that wait would take a core
    }
    spark = session(app="bench", memory="4g", log_level="FATAL", **settings)
    try:
        Many(run, spark, folder).measure(repeats)
    finally:
        spark.stop()
        shutil.rmtree(folder, ignore_errors=True)


class Many:
    """The measurements."""

    def __init__(self, run: BenchRun, spark: SparkSession, folder: Path) -> None:
        self._run, self._spark, self._folder, self._count = run, spark, folder, 0
        self._filled = self._new("filled")
        fill(create(self._filled))

    def measure(self, repeats: int) -> None:
        took: dict[tuple[int, bool], list[float]] = {}
        for _ in range(repeats):
            for count in COUNTS:
                for overlapping in (False, True):
                    kind = "overlapping " if overlapping else ""
                    self._run.progress(f"a family of {count} {kind}queries", advance=1)
                    took.setdefault((count, overlapping), []).append(self._family_s(count, overlapping))
        family = {key: float(np.median(values)) for key, values in took.items()}
        for (count, overlapping), batch_s in family.items():
            kind = "_overlapping" if overlapping else ""
            self._run.row(f"family_{count}{kind}_batch_s", batch_s)
            self._run.row(f"family_{count}{kind}_rows_per_s", BATCH_ROWS / batch_s)
        ratios, finished = [], 0
        for count in SEPARATE_COUNTS:
            self._run.progress(f"{count} queries, each by itself", advance=1)
            try:
                batch_s = self._separate_s(count)
            except PenstockError as error:  # "does not finish" is an outcome too
                self._run.note(f"{count} queries by themselves do not run: {str(error)[:300]}")
                continue
            finished = count
            self._run.row(f"separate_{count}_batch_s", batch_s)
            self._run.row(f"separate_{count}_rows_per_s", BATCH_ROWS / batch_s)
            ratios.append(batch_s / family[count, False])
        self._run.row("thousand_to_ten", family[1000, False] / family[10, False])
        self._run.row("thousand_to_ten_overlapping", family[1000, True] / family[10, True])
        self._run.row("separate_queries_that_ran", finished)
        if ratios:
            self._run.row("separate_to_family", ratios[-1])

    def _new(self, what: str) -> Path:
        self._count += 1
        return self._folder / f"{what}{self._count}"

    def _family_s(self, count: int, overlapping: bool) -> float:
        """Time from micro-batch to micro-batch of a family, over batches of as many rows."""
        (family,) = families_of(queries(count, overlapping))
        table = self._new("family.json")
        write_members(table, family)

        def start(rows: DataFrame, checkpoint: str) -> StreamingQuery:
            return _to_nowhere(family_windows_of(self._spark, family, _feed(rows), table), checkpoint)

        return probe(self._spark, self._filled, start, self._new("cp"), BATCH_ROWS, PROBED).batch_s

    def _separate_s(self, count: int) -> float:
        """Time in which each of so many streaming queries has a micro-batch.

        They are brought up one after the other on a log without rows, which all get at once: started
        together, their Python processes do not find the JVM in time.
        """
        wanted, started = SEPARATE_WARM + SEPARATE_BATCHES, []
        gate = create(self._new("gate"))
        deadline_s = time.monotonic() + SEPARATE_START_S
        try:
            for query in queries(count, overlapping=False).values():
                rows = read_ungoverned(self._spark, gate.directory, BATCH_ROWS, wanted * BATCH_ROWS)
                started.append(_to_nowhere(windows_of(query, _feed(rows)), str(self._new("cp"))))
                _wait(started[-1:], lambda _: True, deadline_s)
                self._run.progress(f"{len(started)} of {count} queries, each by itself")
            fill(gate)
            deadline_s = time.monotonic() + SEPARATE_LIMIT_S
            warm_s = _wait(started, lambda q: _batches(q) >= SEPARATE_WARM, deadline_s)
            done_s = _wait(started, lambda q: _batches(q) >= wanted, deadline_s)
        finally:
            for each in started:
                each.stop()
        return (done_s - warm_s) / SEPARATE_BATCHES


def _wait(
    queries: list[StreamingQuery], fulfil: Callable[[StreamingQuery], bool], deadline_s: float
) -> float:
    """Waits until all queries fulfil a condition; returns when."""
    left = queries
    while left:
        for each in left:
            if (error := each.exception()) is not None:
                raise PenstockError(f"every query runs; got: {error}")
        left = [query for query in left if not fulfil(query)]
        if time.monotonic() > deadline_s:
            raise PenstockError(f"all queries are in time; got: {len(left)} of {len(queries)} that are not")
        time.sleep(0.05)
    return time.monotonic()


def _batches(query: StreamingQuery) -> int:
    return 0 if (last := query.lastProgress) is None else last["batchId"] + 1


def create(directory: Path) -> PacedLog:
    schedule = schedule_constant(RATE_PER_S, FILLED_S, SEGMENT_ROWS)
    return create_paced(directory, pool(), schedule, event_time="ts")


def fill(log: PacedLog) -> None:
    """All rows of a log are there from now on."""
    log.begin(time.time() - log.seconds - 1)


def _feed(rows: DataFrame) -> Callable[[str], Feed]:
    return lambda _: Feed(rows, COLUMNS, "ts", lateness_ms=1)


def _to_nowhere(result: DataFrame, checkpoint: str) -> StreamingQuery:
    return start_in_turn(result.writeStream.format("noop").option("checkpointLocation", checkpoint).start)
