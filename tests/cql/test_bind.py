"""What a text means: names, types, windows, joins and groups, and what is refused with which words."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cql.errors import CqlError
from penstock.cql.meaning.plan import (
    Aggregate,
    Distinct,
    Filter,
    Join,
    Map,
    Plan,
    Query,
    Scan,
    ToStream,
    UnionAll,
    Windowed,
    WindowKind,
)
from penstock.cql.program import read_program

STREAMS = """
REGISTER STREAM S (l int, m float, G int, d char(4));
REGISTER STREAM T (l int, m float);
REGISTER STREAM U (l int, m float);
"""


def meant(text: str) -> Query:
    (written,) = read_program(STREAMS + text).queries
    return written.query


def parts(query: Query, kind: type[Plan]) -> list[Any]:
    return [each for each in query.plan.walk() if isinstance(each, kind)]


def shape(plan: Plan) -> list[str]:
    return [type(each).__name__ for each in plan.walk()]


def test_a_stream_without_a_window_is_unbounded() -> None:
    query = meant("SELECT * FROM S")
    assert shape(query.plan) == ["Map", "Windowed", "Scan"]
    assert parts(query, Windowed)[0].window.kind is WindowKind.UNBOUNDED
    assert query.names == ("l", "m", "G", "d")
    assert [column.type for column in query.plan.columns] == ["BIGINT", "DOUBLE", "BIGINT", "STRING"]
    assert not query.plan.is_stream


def test_windows_are_in_microseconds_and_tuples() -> None:
    (window,) = (each.window for each in parts(meant("SELECT * FROM S [RANGE 2 MIN SLIDE 30 SEC]"), Windowed))
    assert (window.kind, window.size, window.slide) == (WindowKind.RANGE, 120_000_000, 30_000_000)
    (window,) = (each.window for each in parts(meant("SELECT * FROM S [RANGE 0 SEC]"), Windowed))
    assert window.kind is WindowKind.NOW
    query = meant("SELECT * FROM S [PARTITION BY g, l ROWS 3]")
    (window,) = (each.window for each in parts(query, Windowed))
    columns = [column.name for column in parts(query, Scan)[0].columns]
    assert (window.size, window.keys) == (3, (columns[2], columns[0]))


def test_equal_columns_and_conditions_go_to_their_joins_and_sources() -> None:
    query = meant(
        "SELECT S.d FROM S [NOW], T [NOW], U [NOW] "
        "WHERE S.l = T.l AND U.m > 3 AND (T.l = U.l AND S.m < U.m) AND S.G = 7"
    )
    outer, inner = parts(query, Join)
    s, t, u = (each.columns for each in parts(query, Scan))
    assert inner.equal == ((s[0].name, t[0].name),)
    assert inner.condition is None
    assert outer.equal == ((t[0].name, u[0].name),)
    assert outer.condition is not None
    assert {type(each.input).__name__ for each in parts(query, Filter)} == {"Windowed"}


def test_on_is_as_where_for_joins() -> None:
    by_comma = meant("SELECT S.d FROM S [NOW], T [NOW] WHERE S.l = T.l AND T.m > 1")
    by_on = meant("SELECT S.d FROM S [NOW] JOIN T [NOW] ON S.l = T.l AND T.m > 1")
    assert by_comma == by_on


def test_groups_have_keys_and_aggregates_once() -> None:
    query = meant("SELECT G, sum(m) / count(*), sum(m) total FROM S [ROWS 5] GROUP BY G HAVING sum(m) > 3")
    (groups,) = parts(query, Aggregate)
    assert [each.function for each in groups.aggregates] == ["SUM", "COUNT"]
    assert len(groups.keys) == 1
    assert shape(query.plan) == ["Map", "Filter", "Aggregate", "Map", "Windowed", "Scan"]
    assert query.names == ("G", "sum_m_count", "total")
    assert [column.type for column in query.plan.columns] == ["BIGINT", "DOUBLE", "DOUBLE"]


def test_whole_numbers_divide_as_whole_numbers_unless_a_cast_says_otherwise() -> None:
    query = meant("SELECT l / 2, m / 2, l / 2.0, CAST(l AS float) / 2, CAST(m AS int) / G, -l % 2 FROM S")
    types = [column.type for column in query.plan.columns]
    assert types == ["BIGINT", "DOUBLE", "DOUBLE", "DOUBLE", "BIGINT", "BIGINT"]
    averages = meant("SELECT sum(l) / count(*), avg(l), sum(m) / count(*) FROM S GROUP BY G / 2")
    assert [column.type for column in averages.plan.columns] == ["BIGINT", "DOUBLE", "DOUBLE"]


def test_expressions_may_be_keys_and_arguments() -> None:
    query = meant("SELECT G + 1, avg(m * 2), stddev(m), max(d), min(l) FROM S GROUP BY G + 1")
    (groups,) = parts(query, Aggregate)
    assert [each.function for each in groups.aggregates] == ["AVG", "STDDEV", "MAX", "MIN"]
    assert [column.type for column in query.plan.columns] == [
        "BIGINT",
        "DOUBLE",
        "DOUBLE",
        "STRING",
        "BIGINT",
    ]


def test_having_over_tuples_is_a_filter_before_the_groups_as_themis_writes() -> None:
    query = meant("SELECT count(t.m) FROM S [RANGE 1 SEC] HAVING t.m >= 50")
    assert shape(query.plan) == ["Map", "Aggregate", "Map", "Filter", "Windowed", "Scan"]


def test_top_k_and_covariance_are_aggregates() -> None:
    query = meant("SELECT top5(S.l, S.m), top3(S.m), cov(S.m, T.m) FROM S [NOW], T [NOW] WHERE S.l = T.l")
    (groups,) = parts(query, Aggregate)
    assert [(each.function, each.k, len(each.arguments)) for each in groups.aggregates] == [
        ("TOP", 5, 2),
        ("TOP", 3, 1),
        ("COV", 0, 2),
    ]
    types = [column.type for column in query.plan.columns]
    assert types == ["ARRAY<BIGINT>", "ARRAY<DOUBLE>", "DOUBLE"]


def test_a_query_inside_keeps_the_names_of_its_streams_unless_it_has_an_alias() -> None:
    inside = "ISTREAM(SELECT * FROM S [RANGE 10 SECONDS], T [RANGE 10 SECONDS] WHERE S.l = T.l)"
    query = meant(f"SELECT sum(S.m) FROM {inside} [ROWS 5]")
    assert shape(query.plan)[:5] == ["Map", "Aggregate", "Map", "Windowed", "ToStream"]
    with pytest.raises(CqlError, match="a name before a point is in FROM"):
        meant(f"SELECT sum(S.m) FROM {inside} [ROWS 5] AS x")


def test_istream_may_stand_before_the_query_or_in_it() -> None:
    for text in ("ISTREAM(SELECT l, m FROM S [NOW])", "SELECT ISTREAM(l, m) FROM S [NOW]"):
        query = meant(text)
        assert isinstance(query.plan, ToStream)
        assert query.plan.is_stream
        assert query.names == ("l", "m")


def test_union_is_of_relations_or_of_streams() -> None:
    both = meant("SELECT l FROM S [NOW] UNION SELECT l FROM T [NOW]")
    assert shape(both.plan)[:2] == ["Distinct", "UnionAll"]
    streams = meant("ISTREAM(SELECT l FROM S [NOW]) UNION ALL ISTREAM(SELECT l FROM T [NOW])")
    assert isinstance(streams.plan, UnionAll)
    assert streams.plan.is_stream
    assert len(parts(meant("SELECT DISTINCT l FROM S [NOW]"), Distinct)) == 1


def test_views_are_queries_under_a_name_and_streams_among_them_take_windows() -> None:
    views = """
    REGISTER VIEW hot AS SELECT l, m * 2 AS warm FROM S [NOW] WHERE m > 30;
    REGISTER STREAM changed AS ISTREAM(SELECT * FROM hot);
    """
    query = meant(views + "SELECT h.warm, c.l FROM hot h, changed [ROWS 3] c WHERE h.l = c.l")
    assert query.names == ("warm", "l")
    assert len(parts(query, Scan)) == 2
    with pytest.raises(CqlError, match="a window is over a stream"):
        meant(views + "SELECT * FROM hot [ROWS 3]")


def test_timestamp_by_has_the_column_as_it_is_registered_and_times_or_numbers() -> None:
    read = read_program("REGISTER STREAM R (At timestamp, n int) TIMESTAMP BY at; SELECT n FROM R")
    assert [stream.timestamp for stream in read.catalog.streams()] == ["At"]
    with pytest.raises(
        CqlError, match="TIMESTAMP BY has times, or numbers of seconds; got: d of type STRING"
    ):
        read_program("REGISTER STREAM R (d char(4)) TIMESTAMP BY d; SELECT d FROM R")


def test_a_mistake_far_inside_a_text_is_shown_at_its_place() -> None:
    text = (
        "REGISTER STREAM R (n int);\n" + "SELECT n FROM R [NOW];\n" * 40 + "SELECT n FROM R [NOW] WHERE n >"
    )
    with pytest.raises(CqlError, match="line 42, column"):
        read_program(text)


def test_columns_of_two_streams_with_one_name_get_their_stream_before_it() -> None:
    assert meant("SELECT * FROM T [NOW] a, T [NOW] b").names == ("a_l", "a_m", "b_l", "b_m")
    assert meant("SELECT l, l + 1, l x, m x FROM T").names == ("l", "l_1", "x", "x_")


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("SELECT x FROM S", "a column is one of those in FROM"),
        ("SELECT l FROM S, T", "a column's name means one column"),
        ("SELECT Z.l FROM S", "a name before a point is in FROM"),
        ("SELECT Z.* FROM S", r"a name before \.\* is in FROM"),
        ("SELECT * FROM X", "FROM has a registered stream"),
        ("SELECT * FROM S, S", "a name is once in FROM"),
        ("SELECT l, sum(m) FROM S", "is in GROUP BY; got: l;"),
        ("SELECT sum(d) FROM S", "SUM is over numbers"),
        ("SELECT l FROM S WHERE l", "a condition; got: l of type BIGINT"),
        ("SELECT l FROM S WHERE d = 3", "got: d of type STRING and 3 of type BIGINT"),
        ("SELECT l FROM S WHERE d IN (1, 2)", "one type"),
        ("SELECT l FROM S WHERE m LIKE 'a%'", "a text"),
        ("SELECT l FROM S WHERE sum(l) > 3", r"no aggregates; got: sum\(l\)"),
        ("SELECT l FROM S GROUP BY sum(l)", "GROUP BY has no aggregates"),
        ("SELECT l FROM S HAVING l > 3", "HAVING is over groups"),
        ("SELECT sum(m) FROM S HAVING m", "a condition"),
        ("SELECT sum(m) FROM S HAVING sum(m)", "a condition"),
        ("SELECT l FROM S WHERE l IN (SELECT l FROM T)", "an expression has no query"),
        ("SELECT sum(l) OVER () FROM S", "an expression has no query and no OVER"),
        ("SELECT l + d FROM S", "a number; got: d of type STRING"),
        ("SELECT l + * FROM S", r"\* stands alone"),
        ("SELECT f(l) FROM S", r"an expression has columns.*got: f\(l\)"),
        ("SELECT sum(sum(l)) FROM S", "aggregates are not inside each other"),
        ("SELECT count(DISTINCT l) FROM S", "an aggregate is over all tuples"),
        ("SELECT cov(l) FROM S", "COV has 2 arguments"),
        ("SELECT top0(l) FROM S", "TOP has 1 to 1000 places"),
        ("SELECT NULL FROM S", "has a type"),
        ("SELECT CAST(d AS int) FROM S", "a number; got: d of type STRING"),
        ("SELECT CAST(l AS char(4)) FROM S", r"CAST makes a number an int or a float; got: CHAR\(4\)"),
        ("SELECT l FROM S WHERE KEPT()", r"KEPT has the fraction.*; got: KEPT\(\)"),
        ("SELECT l FROM S WHERE KEPT(2)", "KEPT has the fraction"),
        ("SELECT l FROM S WHERE KEPT(m)", "KEPT has the fraction"),
        ("SELECT l FROM S WHERE KEPT(0.5, d)", "KEPT has the fraction"),
        ("SELECT l FROM S WHERE KEPT(0.5, 0)", "a window is longer than 0"),
        ("SELECT l FROM S [ROWS 2] WHERE KEPT(0.5)", "KEPT chooses among the rows of one stream"),
        ("SELECT S.l FROM S [NOW], T [NOW] WHERE KEPT(0.5)", "KEPT chooses among the rows of one stream"),
        ("SELECT sum(m) FROM S GROUP BY l HAVING KEPT(0.5)", "KEPT chooses|is in GROUP BY"),
        ("SELECT CASE WHEN l > 1 THEN 'a' ELSE 2 END FROM S", "all values have one type"),
        ("SELECT l FROM S [PARTITION BY zz ROWS 1]", "a column is one of those in FROM"),
        ("SELECT l FROM (SELECT * FROM S [NOW]) [ROWS 2]", "a window is over a stream"),
        ("ISTREAM(ISTREAM(SELECT l FROM S [NOW]))", "ISTREAM is over a relation"),
        ("SELECT l FROM S UNION ALL SELECT l, m FROM T", "as many columns"),
        ("SELECT l FROM S UNION ALL SELECT m FROM T", "have one type"),
        ("SELECT l FROM S UNION ALL ISTREAM(SELECT l FROM T)", "both sides of UNION are streams"),
        ("SELECT ISTREAM(l) FROM S UNION SELECT ISTREAM(l) FROM T", "UNION ALL"),
        ("REGISTER STREAM S (a int)", "a name is registered once"),
        ("REGISTER STREAM Q (a foo)", "a column's type"),
        ("REGISTER STREAM Q (a int, A int)", "a stream has each column once"),
        ("REGISTER STREAM Q (a int) TIMESTAMP BY b", "TIMESTAMP BY has one of"),
        ("REGISTER STREAM Q AS SELECT * FROM S", "a stream is registered with a query that gives one"),
        ("REGISTER RELATION Q AS ISTREAM(SELECT * FROM S)", "a relation is registered with"),
    ],
)
def test_what_means_nothing_is_refused_with_its_place(text: str, rule: str) -> None:
    with pytest.raises(CqlError, match=rule) as caught:
        read_program(STREAMS + text, file="q.cql")
    assert str(caught.value).startswith("q.cql:5:")
    assert "^" in str(caught.value)
    assert "; hint: " in str(caught.value)


def test_a_near_name_is_suggested() -> None:
    with pytest.raises(CqlError, match=r"did you mean r\.humidity\?"):
        read_program("REGISTER STREAM readings (humidity int); SELECT humidty FROM readings r")


ITEMS = [
    "*",
    "l",
    "S.m",
    "d",
    "t.m",
    "G + 1",
    "count(*)",
    "sum(m)",
    "top2(l, m)",
    "avg(d)",
    "'x'",
    "-m / 0",
    "zz",
]
CONDITIONS = [
    "l = 3",
    "S.l = T.l",
    "d LIKE 'a%'",
    "m BETWEEN 1 AND 2",
    "sum(m) > 2",
    "NOT l",
    "d IS NULL",
    "1 = 1",
    "KEPT(0.5)",
]
WINDOWS = ["", "[NOW]", "[ROWS 3]", "[RANGE 5 SEC SLIDE 1 SEC]", "[PARTITION BY l ROWS 1]", "[UNBOUNDED]"]


@given(
    st.lists(st.sampled_from(ITEMS), min_size=1, max_size=4),
    st.lists(st.tuples(st.sampled_from(["S", "T", "Q"]), st.sampled_from(WINDOWS)), min_size=1, max_size=3),
    st.lists(st.sampled_from(CONDITIONS), max_size=2),
    st.lists(st.sampled_from(["l", "G", "d", "m + 1", "sum(m)"]), max_size=2),
    st.sampled_from(["", "ISTREAM", "DSTREAM"]),
)
def test_a_query_is_meant_or_refused_and_nothing_else(
    items: list[str],
    sources: list[tuple[str, str]],
    conditions: list[str],
    keys: list[str],
    to_stream: str,
) -> None:
    text = f"SELECT {', '.join(items)} FROM {', '.join(' '.join(source) for source in sources)}"
    text += f" WHERE {' AND '.join(conditions)}" if conditions else ""
    text += f" GROUP BY {', '.join(keys)}" if keys else ""
    text = f"{to_stream}({text})" if to_stream else text
    try:
        query = meant(text)
    except CqlError as error:
        assert "; hint: " in str(error)  # noqa: PT017 - a text may be right
    else:
        assert len(query.names) == len(query.plan.columns) == len({name.lower() for name in query.names})
        assert isinstance(query.plan, ToStream if to_stream else Map)
