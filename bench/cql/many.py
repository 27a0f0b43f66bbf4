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
from penstock.cql.families import Family, families_of
from penstock.cql.plan import Query
from penstock.cql.program import read_program
from penstock.cql.spark.feeds import Feed
from penstock.cql.spark.windows import family_windows_of, windows_of
from penstock.errors import PenstockError
from penstock.log.paced import create_paced
from penstock.log.schedule import schedule_constant
from penstock.spark.capacity import probe, read_ungoverned
from penstock.spark.session import session

COUNTS = (10, 100, 1000)
RATE_PER_S, FILLED_S = 200_000.0, 400.0
"""Rows a second of event time."""
BATCH_ROWS = 100_000
"""Half a second of them."""
SEGMENT_ROWS, POOL_ROWS = 8192, 65_536
PROBED, SEPARATE_BATCHES, SEPARATE_WARM = 7, 3, 1
SEPARATE_COUNTS = (10, 100)
"""Queries that are also run one by one. A thousand are not tried: each has a Python process of its own."""
SEPARATE_LIMIT_S = 420.0

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
    spark = session(app="bench", memory="4g", log_level="FATAL", **{"spark.sql.shuffle.partitions": "1"})
    try:
        filled = folder / "filled"
        schedule = schedule_constant(RATE_PER_S, FILLED_S, SEGMENT_ROWS)
        log = create_paced(filled, pool(), schedule, event_time="ts")
        log.begin(time.time() - log.seconds - 1)
        Many(run, spark, filled, folder).measure(repeats)
    finally:
        spark.stop()
        shutil.rmtree(folder, ignore_errors=True)


class Many:
    """The measurements."""

    def __init__(self, run: BenchRun, spark: SparkSession, filled: Path, folder: Path) -> None:
        self._run, self._spark, self._filled, self._folder, self._count = run, spark, filled, folder, 0

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
            if batch_s is None:
                wanted = SEPARATE_WARM + SEPARATE_BATCHES
                batch_s = SEPARATE_LIMIT_S / wanted
                self._run.note(
                    f"{count} queries by themselves did not have {wanted} batches each "
                    f"in {SEPARATE_LIMIT_S:g} s: each takes more than {batch_s:.0f} s"
                )
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

        def start(rows: DataFrame, checkpoint: str) -> StreamingQuery:
            return _to_nowhere(_family(self._spark, family, rows), checkpoint)

        return probe(self._spark, self._filled, start, self._new("cp"), BATCH_ROWS, PROBED).batch_s

    def _separate_s(self, count: int) -> float | None:
        """Time in which each of so many streaming queries has a micro-batch; `None` if it takes too long."""
        wanted, started = SEPARATE_WARM + SEPARATE_BATCHES, []
        deadline_s = time.monotonic() + SEPARATE_LIMIT_S
        try:
            for query in queries(count, overlapping=False).values():
                rows = read_ungoverned(self._spark, self._filled, BATCH_ROWS, wanted * BATCH_ROWS)
                started.append(_to_nowhere(windows_of(query, _feed(rows)), str(self._new("cp"))))
                if time.monotonic() > deadline_s:
                    return None
            warm_s = self._all_at(started, SEPARATE_WARM, deadline_s)
            done_s = self._all_at(started, wanted, deadline_s)
        finally:
            for each in started:
                each.stop()
        return None if warm_s is None or done_s is None else (done_s - warm_s) / SEPARATE_BATCHES

    @staticmethod
    def _all_at(started: list[StreamingQuery], batches: int, deadline_s: float) -> float | None:
        """When every query has had so many batches."""
        left = list(started)
        while left:
            for each in left:
                if (error := each.exception()) is not None:
                    raise PenstockError(f"every query runs; got {error}")
            left = [q for q in left if (last := q.lastProgress) is None or last["batchId"] + 1 < batches]
            if time.monotonic() > deadline_s:
                return None
            time.sleep(0.05)
        return time.monotonic()


def _feed(rows: DataFrame) -> Callable[[str], Feed]:
    return lambda _: Feed(rows, COLUMNS, "ts", lateness_ms=1)


def _family(spark: SparkSession, family: Family, rows: DataFrame) -> DataFrame:
    return family_windows_of(spark, family, _feed(rows))


def _to_nowhere(result: DataFrame, checkpoint: str) -> StreamingQuery:
    return result.writeStream.format("noop").option("checkpointLocation", checkpoint).start()
