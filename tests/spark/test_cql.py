"""CQL on Spark gives the answers of the definition, wherever one micro-batch ends and the next begins."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from tests.cql.brute import US, Brute, Element, Row
from tests.cql.cases import JOINED, QN_LONG, WHOLE, by_instant, expected, meant, plain
from tests.spark.cql_streams import BASE, LAST, UNTIL, random_streams, tables
from tests.spark.helpers import again

from penstock.cql.analysis.windowing import closing_windows, default_mode
from penstock.cql.errors import CqlError
from penstock.cql.meaning.plan import Plan, Windowed
from penstock.spark.cql.bounded import bounded


def rows_of(answer: pa.Table) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in answer.to_pylist()]


def changes_in(answer: pa.Table) -> list[tuple[int, int, Row]]:
    return [(row[-2] - BASE * US, row[-1], row[:-2]) for row in rows_of(answer)]


Q1, Q2 = f"SELECT * FROM {JOINED}", "SELECT sum(m) FROM S [ROWS 5]"
Q3 = f"SELECT sum(S.m) FROM ISTREAM(SELECT * FROM {JOINED}) [ROWS 5]"
LONG = pytest.mark.long
"""What Spark does with the rest is what it does with the others; `tests/cql` has all kinds without Spark."""


@pytest.mark.parametrize(
    ("text", "partitions"),
    [
        pytest.param(Q1, 2, id="Q1", marks=LONG),
        pytest.param(Q2, 1, id="Q2", marks=LONG),
        pytest.param(Q3, 1, id="Q3", marks=LONG),
        pytest.param(QN_LONG, 2, id="QN-long", marks=LONG),  # as in test_killed
        ("SELECT * FROM S [RANGE 6 SECONDS SLIDE 4 SECONDS] WHERE m > 0.6 OR d LIKE 'a%'", 2),
        pytest.param("SELECT l, m FROM T [PARTITION BY l ROWS 2]", 2, marks=LONG),
        ("SELECT l, sum(m), count(*), max(m), min(m), avg(m) FROM T [RANGE 5 SECONDS] GROUP BY l", 2),
        pytest.param("SELECT d, stddev(m), cov(l, m), top2(l, m) FROM S GROUP BY d", 2, marks=LONG),
        pytest.param(
            "SELECT a.l, b.n FROM T [ROWS 1] a, (SELECT l, count(*) AS n FROM T [ROWS 5] GROUP BY l) b",
            1,
            marks=LONG,
        ),
        pytest.param("DSTREAM(SELECT DISTINCT l, d FROM S [RANGE 4 SECONDS SLIDE 5 SECONDS])", 2, marks=LONG),
        pytest.param("RSTREAM(SELECT l, sum(m) FROM T [RANGE 6 SECONDS] GROUP BY l)", 2, marks=LONG),
        ("SELECT m / l / 2, (l % 2) / l, round(m), l * 0.1 = 0.1 FROM T [RANGE 2 SECONDS]", 2),
        ("SELECT sum(m) FROM (ISTREAM(SELECT * FROM T) UNION ALL ISTREAM(SELECT * FROM U)) [ROWS 3]", 1),
        pytest.param(WHOLE, 2, id="whole-numbers"),
        pytest.param("SELECT * FROM R", 2, id="relation", marks=LONG),
        pytest.param("SELECT d, count(*), sum(m) FROM K GROUP BY d", 2, id="relation-by-key", marks=LONG),
        pytest.param(
            "SELECT T.l, T.m, K.m, K.d FROM T [RANGE 5 SECONDS], K WHERE T.l = K.l", 2, id="relation-joined"
        ),
        pytest.param(
            "ISTREAM(SELECT R.m, S.d FROM R, S [ROWS 2])", 1, id="relation-and-last-tuples", marks=LONG
        ),
    ],
)
def test_changes_on_spark_are_those_of_the_definition(
    spark: SparkSession, text: str, partitions: int
) -> None:
    query, streams = meant(text), random_streams(len(text))
    with bounded(spark, tables(streams, query.plan), partitions, 3, (UNTIL + BASE) * US) as run:
        answer, batches = again(lambda: run.answer(query, "relation"))
    assert batches >= 4
    assert by_instant(changes_in(answer)) == expected(query, streams, UNTIL)


def windows_by_definition(
    plan: Plan, streams: Mapping[str, list[Element]]
) -> dict[tuple[int, int], Counter[Row]]:
    """By window, the relation over its tuples alone, as if they were all that ever came."""
    whole = closing_windows(plan)
    (size, slide), *_ = {
        (each.window.size // US, (each.window.slide or each.window.size) // US)
        for each in whole.walk()
        if isinstance(each, Windowed)
    }
    found = {}
    for start in range(-size, LAST + 1):
        if start % slide:
            continue
        inside = {n: [(0, row) for at, row in s if start <= at < start + size] for n, s in streams.items()}
        rows = Counter(map(plain, Brute(inside).relation(whole, 0)))
        if rows:
            found[start, start + size] = rows
    return found


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("SELECT avg(t.m) FROM T [RANGE 1 SEC SLIDE 1 SEC]", id="AVG", marks=LONG),
        pytest.param("SELECT max(t.m) FROM T [RANGE 1 SEC SLIDE 1 SEC]", id="MAX", marks=LONG),
        pytest.param("SELECT count(t.m) FROM T [RANGE 1 SEC SLIDE 1 SEC] HAVING t.m >= 2", id="COUNT"),
        pytest.param(
            "SELECT avg(m) FROM (SELECT l, m FROM T [RANGE 2 SEC SLIDE 2 SEC] UNION ALL "
            "SELECT l, m FROM U [RANGE 2 SEC SLIDE 2 SEC])",
            id="AVG-all",
        ),
        pytest.param(
            "SELECT top5(T.l, T.m) FROM T [RANGE 3 SEC SLIDE 3 SEC], U [RANGE 3 SEC SLIDE 3 SEC] "
            "WHERE U.m >= 1 AND T.l = U.l",
            id="TOP-5",
        ),
        pytest.param(
            "SELECT cov(T.m, U.m) FROM T [RANGE 4 SEC SLIDE 4 SEC], U [RANGE 4 SEC SLIDE 4 SEC]",
            id="COV",
            marks=LONG,
        ),
        "SELECT l, count(*), stddev(m) FROM T [RANGE 6 SEC SLIDE 2 SEC] GROUP BY l HAVING count(*) > 1",
        pytest.param(
            "SELECT count(*) FROM (ISTREAM(SELECT l FROM T WHERE m > 1) UNION ALL ISTREAM(SELECT l FROM U)) "
            "[RANGE 3 SEC SLIDE 3 SEC]",
            marks=LONG,
        ),
        "RSTREAM(SELECT DISTINCT d FROM S [RANGE 3 SEC SLIDE 3 SEC])",
        "SELECT l / 2 AS half, sum(l) / count(*), (1 - l / 2 * 3) / 2 FROM T [RANGE 4 SEC SLIDE 4 SEC] "
        "WHERE l / 2 * 2 = l OR CAST(l AS float) / 2 > 0.4 GROUP BY l / 2 HAVING sum(l) / 2 < 3",
        pytest.param(
            "SELECT S.d, T.m FROM S [RANGE 3 SEC SLIDE 3 SEC], T [RANGE 3 SEC SLIDE 3 SEC] WHERE S.l = T.l",
            marks=LONG,
        ),
    ],
)
def test_each_window_has_its_result_once(spark: SparkSession, text: str) -> None:
    query, streams = meant(text), random_streams(len(text))
    assert default_mode(query.plan) == "windows"
    with bounded(spark, tables(streams, query.plan), 2, 3, (UNTIL + BASE) * US) as run:
        answer, batches = again(lambda: run.answer(query, "windows"))
    assert batches >= 4
    found: dict[tuple[int, int], Counter[Row]] = defaultdict(Counter)
    for start, end, *row in rows_of(answer):
        found[int(start.timestamp()) - BASE, int(end.timestamp()) - BASE][plain(tuple(row))] += 1
    assert dict(found) == windows_by_definition(query.plan, streams)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("SELECT * FROM S [ROWS 2]", r"closes, as \[RANGE n SLIDE m\] does; got: \[rows 2\]"),
        ("SELECT sum(m) FROM T", r"got: \[unbounded\]"),
        (
            "SELECT S.l FROM S [RANGE 2 SEC SLIDE 2 SEC], T [RANGE 3 SEC SLIDE 3 SEC]",
            r"close together; got: \[range 2 s, slide 2 s\] and \[range 3 s, slide 3 s\]",
        ),
        ("DSTREAM(SELECT l FROM T [RANGE 2 SEC SLIDE 2 SEC])", "never leaves; got: DSTREAM"),
        ("SELECT sum(m) FROM T [RANGE 2 SEC SLIDE 7 SEC]", "slides by no more than its size; got"),
        (Q3, "over registered streams alone; got: ISTREAM inside it"),
    ],
)
def test_a_query_whose_windows_do_not_close_is_refused_by_windows(text: str, said: str) -> None:
    plan = meant(text).plan
    assert default_mode(plan) == "relation"
    with pytest.raises(CqlError, match=said) as refused:
        closing_windows(plan)
    assert "relation mode" in str(refused.value)


def test_numbers_that_no_float_holds_and_nulls_stay_what_they_are(spark: SparkSession) -> None:
    query = meant("SELECT l, m, d FROM S [ROWS 2]")
    rows = [(2**60 + 1, None, None), (None, 1.5, "x"), (3, float("nan"), "")]
    streams: dict[str, list[Element]] = {"S": [(i, row) for i, row in enumerate(rows)]}
    with bounded(spark, tables(streams, query.plan, base=0), 1, 2) as run:
        answer, _ = again(lambda: run.answer(query, "relation"))
    came = {row[3] // US: row[:3] for row in rows_of(answer) if row[4] > 0}
    assert came[0] == rows[0]
    assert came[1] == rows[1]
    assert came[2][0] == 3
    assert np.isnan(came[2][1])
    assert came[2][2] == ""


def test_a_part_of_the_tuples_or_of_whole_windows_is_kept_and_the_same_ones_again(
    spark: SparkSession,
) -> None:
    rows = [(i // 100, (i, float(i), "x")) for i in range(2500)]
    streams: dict[str, list[Element]] = {"S": rows}

    def kept(condition: str, batches: int) -> set[int]:
        query = meant(f"ISTREAM(SELECT l FROM S WHERE {condition})")
        with bounded(spark, tables(streams, query.plan), 1, batches) as run:
            answer, _ = again(lambda: run.answer(query, "relation"))
        return set(answer.column("l").to_pylist())

    some = kept("KEPT(0.25)", 2)
    assert 0.2 * 2500 < len(some) < 0.3 * 2500
    assert some == kept("KEPT(0.25)", 5)
    whole = kept("KEPT(0.5, 1)", 2)
    by_second = Counter(number // 100 for number in whole)
    assert set(by_second.values()) == {100}
    assert 5 <= len(by_second) <= 20
