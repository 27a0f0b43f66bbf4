"""A family gives each of its queries what it would have by itself, also when others come and go."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery
from tests.cql.brute import US, Row
from tests.cql.cases import meant, plain
from tests.spark.cql_streams import BASE, UNTIL, random_streams, tables
from tests.spark.helpers import again, begin, run_now
from tests.spark.test_cql import windows_by_definition

from penstock.cql.analysis.families import Family, families_of
from penstock.cql.meaning.plan import Query
from penstock.spark.cql.bounded import bounded
from penstock.spark.cql.feeds import Feed
from penstock.spark.cql.members import write_members
from penstock.spark.cql.windows import family_windows_of
from penstock.spark.source.ungoverned import read_ungoverned
from penstock.streams.embedded.log import EmbeddedLog

WINDOW = "[RANGE 4 SEC SLIDE 4 SEC]"
SHAPES = {
    "one each": [f"SELECT count(*), avg(m) FROM T {WINDOW} WHERE l = {i}" for i in range(4)],
    "overlapping": [
        f"SELECT l, max(m) FROM T {WINDOW} WHERE m >= {i}.5 AND l < 3 GROUP BY l HAVING count(*) >= {i}"
        for i in range(3)
    ],
    "after the groups": [
        f"SELECT l, sum(m) FROM T {WINDOW} GROUP BY l HAVING sum(m) > {i}0" for i in range(3)
    ],
    "joined": [
        f"SELECT T.l, count(*) FROM T {WINDOW}, U {WINDOW} "
        f"WHERE T.l = U.l AND T.m > {i} AND U.m < 9{i} GROUP BY T.l"
        for i in range(3)
    ],
    "the same": [f"SELECT DISTINCT l FROM T {WINDOW}"] * 2,
    "in expressions": [
        f"SELECT l * {i} AS x, m FROM T {WINDOW} UNION ALL SELECT l, m FROM U {WINDOW}" for i in (2, 3)
    ],
}


def by_query(answer: pa.Table) -> dict[str, dict[tuple[int, int], Counter[Row]]]:
    found: dict[str, dict[tuple[int, int], Counter[Row]]] = defaultdict(lambda: defaultdict(Counter))
    for name, start, end, *row in ([*each.values()] for each in answer.to_pylist()):
        window = int(start.timestamp()) - BASE, int(end.timestamp()) - BASE
        found[name][window][plain(tuple(row))] += 1
    return {name: dict(windows) for name, windows in found.items()}


AMONG_ALL = ("one each", "overlapping", "in expressions")
"""The other shapes take a way that `test_cql` goes as well."""


@pytest.mark.parametrize(
    "shape", [pytest.param(shape, marks=() if shape in AMONG_ALL else pytest.mark.long) for shape in SHAPES]
)
def test_a_family_gives_each_query_what_it_would_have_by_itself(spark: SparkSession, shape: str) -> None:
    queries = {f"q{i}": meant(text) for i, text in enumerate(SHAPES[shape])}
    (family,) = families_of(queries)
    streams = random_streams(len(shape), most=60)
    with bounded(spark, tables(streams, queries["q0"].plan), 2, 3, (UNTIL + BASE) * US) as run:
        answer, _ = again(lambda: run.family(family))
    expected = {name: windows_by_definition(query.plan, streams) for name, query in queries.items()}
    assert by_query(answer) == {name: windows for name, windows in expected.items() if windows}
    assert any(expected.values())


class Kept:
    """A stream, a checkpoint and results that different queries go on with.

    Args:
        live: Whether one streaming query runs all the time, or each `run` has one of its own.
    """

    def __init__(self, spark: SparkSession, folder: Path, live: bool) -> None:
        self.spark, self.folder = spark, folder
        self.table = folder / "checkpoint" / "family.json" if live else None
        self.started: StreamingQuery | None = None
        columns = [("ts", pa.timestamp("us", "UTC")), ("l", pa.int64()), ("m", pa.float64())]
        self.log = EmbeddedLog.create(folder / "T", pa.schema(columns))

    def run(self, seconds: range, queries: dict[str, Query]) -> None:
        """Three rows for each of these seconds, of the keys 0, 1 and 2."""
        (family,) = families_of(queries)
        if self.table is not None:
            write_members(self.table, family)
        rows = [{"ts": (at + BASE) * US, "l": key, "m": float(at)} for at in seconds for key in range(3)]
        self.log.append(pa.RecordBatch.from_pylist(rows, schema=self.log.append_schema))
        if self.table is None:
            run_now(self._writer(family))
            return
        self.started = self.started or begin(self._writer(family).start)
        self.started.processAllAvailable()

    def _writer(self, family: Family) -> DataStreamWriter:
        feed = Feed(read_ungoverned(self.spark, self.folder / "T", 10), ("l", "m"), "ts", lateness_ms=1)
        result = family_windows_of(self.spark, family, lambda _: feed, self.table)
        writer = result.writeStream.format("parquet").option("path", str(self.folder / "results"))
        return writer.option("checkpointLocation", str(self.folder / "checkpoint"))

    def results(self) -> dict[str, dict[tuple[int, int], Any]]:
        if self.started is not None:
            self.started.stop()
        answer = self.spark.read.parquet(str(self.folder / "results")).toArrow()
        return by_query(answer)


@pytest.mark.parametrize("live", [False, True], ids=["over restarts", "while it runs"])
def test_queries_come_and_go_and_the_others_lose_nothing(
    spark: SparkSession, tmp_path: Path, live: bool
) -> None:
    queries = {str(i): meant(f"SELECT count(*), min(m) FROM T {WINDOW} WHERE l = {i}") for i in range(3)}
    kept = Kept(spark, tmp_path, live)
    kept.run(range(10), {name: queries[name] for name in "01"})
    kept.run(range(10, 20), {name: queries[name] for name in "02"})
    kept.run(range(20, 30), queries)  # moves the time on
    found = kept.results()
    whole = {(start, start + 4): Counter([(4, float(start))]) for start in (0, 4, 8, 12, 16)}
    assert {window: found["0"][window] for window in whole} == whole, "one that stays has every row"
    assert (8, 12) not in found["1"], "what was open when it went is not given"
    assert found["2"][8, 12] == Counter([(2, 10.0)]), "one that comes has the rows since then"
    assert found["2"][12, 16] == Counter([(4, 12.0)])
