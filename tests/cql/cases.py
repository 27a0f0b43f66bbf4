"""Queries of all kinds over three streams, and their answers by the definition."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from tests.cql.brute import US, Brute, Element, Row

from penstock.cql.meaning.plan import Query
from penstock.cql.program import read_program

STREAMS = """
REGISTER STREAM S (l int, m float, d char(4));
REGISTER STREAM T (l int, m float);
REGISTER STREAM U (l int, m float);
REGISTER RELATION R (l int, m float);
REGISTER RELATION K (l int, m float, d char(4)) KEY BY l;
"""
RELATIONS = [
    "SELECT * FROM R",
    "SELECT * FROM K",
    "SELECT l + 1, m FROM R WHERE m > 1",
    "SELECT l, count(*), sum(m), max(m), min(m) FROM R GROUP BY l",
    "SELECT d, count(*), avg(m), top2(l, m) FROM K GROUP BY d HAVING count(*) < 3",
    "SELECT DISTINCT l FROM R",
    "ISTREAM(SELECT l, m FROM R)",
    "DSTREAM(SELECT l, d FROM K)",
    "RSTREAM(SELECT l, m FROM K)",
    "SELECT T.l, T.m, K.d FROM T [RANGE 5 SECONDS], K WHERE T.l = K.l",
    "SELECT T.m, R.m FROM T [NOW], R WHERE T.l = R.l AND T.m < R.m",
    "SELECT T.l, R.l FROM T [ROWS 2], R",
    "SELECT R.l, K.d FROM R, K WHERE R.l = K.l",
    "SELECT a.m, b.m FROM K a, K b WHERE a.l = b.l",
    "SELECT l, m FROM R UNION ALL SELECT l, m FROM T [ROWS 2]",
    "SELECT count(*) FROM ISTREAM(SELECT S.l, K.m FROM S [NOW], K WHERE S.l = K.l) [ROWS 4]",
]
"""Queries over relations of insertions and deletions, by themselves and beside streams."""
JOINED = "S [RANGE 10 SECONDS], T [RANGE 10 SECONDS] WHERE S.l = T.l"
QN_LONG = (
    "SELECT l, avg(m) FROM ISTREAM(SELECT S.l AS l, (S.m + T.m + U.m) / 3 AS m "
    "FROM S [RANGE 10 SECONDS], T [RANGE 10 SECONDS], U [RANGE 10 SECONDS] "
    "WHERE S.l = T.l AND T.l = U.l) [ROWS 10] GROUP BY l HAVING avg(m) < 40.0"
)
WHOLE = (
    "SELECT l / 2, (1 - l * 3) / 2, (1 - l * 3) % 2, 7 / l, 7 % l, (m + l) / 2, CAST(l AS float) / 2, "
    "CAST(m * 1.7 AS int) / 2, CAST((1 - l) * 0.9 AS int), l / CAST(m AS int) FROM T [RANGE 4 SECONDS]"
)
"""Whole numbers divide as whole numbers, unless a cast makes them others."""
QUERIES = [
    "SELECT * FROM S",
    "SELECT * FROM S [NOW] WHERE m > 2 OR d LIKE 'a%'",
    "SELECT l, m FROM T [RANGE 5 SECONDS]",
    "SELECT l, m FROM T [RANGE 5 SECONDS SLIDE 3 SECONDS]",
    "SELECT l, m FROM T [RANGE 2 SECONDS SLIDE 7 SECONDS]",
    "SELECT l, m FROM T [ROWS 2]",
    "SELECT l, m FROM T [ROWS 3 SLIDE 2]",
    "SELECT l, m FROM T [ROWS 2 SLIDE 5]",
    "SELECT l, m FROM T [PARTITION BY l ROWS 1]",
    "SELECT l, m FROM T [PARTITION BY l ROWS 3]",
    f"SELECT * FROM {JOINED}",
    "SELECT * FROM S, T WHERE S.l = T.l",
    "SELECT S.l, T.m FROM S [ROWS 3], T [PARTITION BY l ROWS 1] WHERE S.l = T.l AND S.m < T.m + 1",
    "SELECT S.l, T.l FROM S [NOW], T [ROWS 2]",
    "SELECT l, sum(m), count(m), max(m), min(m) FROM T GROUP BY l",
    "SELECT sum(m), count(*), avg(m), max(l), min(l) FROM T [ROWS 5]",
    "SELECT d, max(m), min(d), count(*) FROM S [RANGE 6 SECONDS] GROUP BY d HAVING count(*) > 1",
    "SELECT stddev(m), cov(l, m) FROM T [RANGE 8 SECONDS]",
    "SELECT l, top2(l, m), top3(m) FROM T [PARTITION BY l ROWS 4] GROUP BY l",
    "SELECT top2(d, m) FROM S",
    "SELECT max(S.m), min(T.m) FROM S [ROWS 2], T [RANGE 4 SECONDS] WHERE S.l = T.l",
    "SELECT DISTINCT l FROM T [RANGE 5 SECONDS]",
    "SELECT DISTINCT l, d FROM S [ROWS 3]",
    "SELECT l FROM S [ROWS 2] UNION SELECT l FROM T [ROWS 2]",
    "SELECT l FROM S [ROWS 2] UNION ALL SELECT l FROM T [NOW]",
    "ISTREAM(SELECT l, m FROM T [RANGE 3 SECONDS])",
    "DSTREAM(SELECT l, m FROM T [RANGE 3 SECONDS])",
    "RSTREAM(SELECT l, m FROM T [ROWS 2])",
    "ISTREAM(SELECT l, count(*) FROM T [ROWS 4] GROUP BY l)",
    "DSTREAM(SELECT DISTINCT l FROM T [RANGE 4 SECONDS])",
    f"SELECT sum(S.m) FROM ISTREAM(SELECT * FROM {JOINED}) [ROWS 5]",
    QN_LONG,
    "SELECT l, max(n) FROM ISTREAM(SELECT l, count(*) AS n FROM T [RANGE 4 SECONDS] GROUP BY l) "
    "[RANGE 6 SECONDS SLIDE 2 SECONDS] GROUP BY l",
    "SELECT a.l, b.n FROM T [ROWS 1] a, (SELECT l, count(*) AS n FROM T [ROWS 5] GROUP BY l) b "
    "WHERE a.l = b.l",
    "SELECT count(t.m) FROM T [RANGE 1 SEC] HAVING t.m >= 2",
    "SELECT * FROM ISTREAM(SELECT l FROM T WHERE m > 1) [ROWS 1]",
    "SELECT sum(m) FROM (ISTREAM(SELECT * FROM T) UNION ALL ISTREAM(SELECT l, m FROM U WHERE l > 0)) "
    "[ROWS 3]",
    "RSTREAM(SELECT l, sum(m) FROM T GROUP BY l)",
    "SELECT m / l / 2, (l % 2) / l, round(m) FROM T [NOW]",
    WHOLE,
    "SELECT l / 2 AS half, sum(l) / count(*), avg(l) FROM T [RANGE 9 SECONDS] WHERE (l / 2) * 2 = l "
    "GROUP BY l / 2 HAVING sum(l) / 2 < 3",
    "SELECT CASE WHEN m > 1 THEN 'hot' ELSE d END, l % 2, m / l, coalesce(m, 0.0) FROM S [ROWS 2] "
    "WHERE m IS NOT NULL AND l IN (0, 1, 2)",
]


def meant(text: str) -> Query:
    (written,) = read_program(STREAMS + text, tick_us=US).queries
    return written.query


def plain(value: Any) -> Any:
    if isinstance(value, float):
        return round(float(f"{value:.9g}"), 9) + 0.0
    return tuple(plain(each) for each in value) if isinstance(value, (list, tuple)) else value


def by_instant(changes: Iterable[tuple[int, int, Row]]) -> dict[int, tuple[Counter[Row], Counter[Row]]]:
    """By second, what an answer gains and loses; given as instants in microseconds, signs and tuples."""
    found: dict[int, Counter[Row]] = {}
    for at, sign, row in changes:
        found.setdefault(int(at), Counter())[plain(tuple(row))] += int(sign)
    whole = {at: (+count, -count) for at, count in found.items()}
    return {at // US: both for at, both in whole.items() if any(both)}


def expected(query: Query, streams: dict[str, list[Element]], until: int) -> dict[int, Any]:
    found = Brute(streams).changes(query.plan, until)
    rounded = {
        at: tuple(Counter({plain(row): n for row, n in side.items()}) for side in both)
        for at, both in found.items()
    }
    return {at: (a - b, b - a) for at, (a, b) in rounded.items() if a != b}
