"""The grammar: what is CQL, what is not, and what an error says of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cql.errors import CqlError
from penstock.cql.language.dialect import parse, to_text


def one(text: str) -> str:
    """The text of a single statement in the one form that all have."""
    (statement,) = parse(text)
    return to_text(statement)


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("[now]", "[NOW]"),
        ("[unbounded]", "[UNBOUNDED]"),
        ("[Range Unbounded]", "[UNBOUNDED]"),
        ("[Rows Unbounded]", "[UNBOUNDED]"),
        ("[Range 1 sec]", "[RANGE 1 SECONDS]"),
        ("[range 5 min slide 1 min]", "[RANGE 300 SECONDS SLIDE 60 SECONDS]"),
        ("[range 250 ms]", "[RANGE 0.25 SECONDS]"),
        ("[Rows 5]", "[ROWS 5]"),
        ("[ROWS 10 SLIDE 10]", "[ROWS 10 SLIDE 10]"),
        ("[Partition By G, H Rows 2]", "[PARTITION BY G, H ROWS 2]"),
    ],
)
def test_a_window_is_read(written: str, read: str) -> None:
    assert one(f"select * from S {written}") == f"SELECT * FROM S {read}"
    assert one(f"select * from S{written} as x") == f"SELECT * FROM S {read} AS x"


@pytest.mark.parametrize(
    "text",
    [
        "SELECT * FROM S",
        "SELECT DISTINCT a, b + 1 AS c FROM S [NOW] WHERE a > 3 AND b = 'x'",
        "SELECT G, SUM(A), COUNT(*) FROM S GROUP BY G HAVING COUNT(*) > 2",
        "SELECT a.v FROM S [ROWS 2] AS a, T [NOW] AS b WHERE a.k = b.k",
        "SELECT a FROM S [NOW] UNION ALL SELECT a FROM T [NOW]",
        "ISTREAM(SELECT * FROM S [RANGE 10 SECONDS])",
        "SELECT ISTREAM(*) FROM S [RANGE 300 SECONDS] WHERE Tmp > 30",
        "SELECT SUM(m) FROM ISTREAM(SELECT * FROM S [NOW]) [ROWS 5] AS x",
        "SELECT m FROM (SELECT m FROM S [NOW]) AS x",
        "REGISTER STREAM S (A INT, B FLOAT, C BYTE, D CHAR(4)) FROM 'S3' TIMESTAMP BY A",
        "REGISTER VIEW hot AS SELECT * FROM S [NOW] WHERE v > 30",
        "REGISTER RELATION r AS SELECT * FROM S [NOW]",
        "REGISTER STREAM hot AS ISTREAM(SELECT * FROM S [NOW])",
        "SELECT TOP5(a.id, a.v), COV(a.v, b.v) FROM a, b",
    ],
)
def test_a_text_in_its_one_form_is_read_as_it_is(text: str) -> None:
    assert one(text) == text
    assert one(text.lower()).lower() == text.lower()


def test_a_join_with_on_is_read() -> None:
    assert one("select * from a [now] join b [now] on a.k = b.k") == (
        "SELECT * FROM a [NOW] JOIN b [NOW] ON a.k = b.k"
    )


def test_statements_are_told_apart_and_comments_left_out() -> None:
    text = "-- streams\nregister stream S (a int);\n/* and */ select * from S;; select a from S;\n"
    assert len(parse(text)) == 3
    assert parse("") == []
    assert parse(" ; \n") == []


@pytest.mark.parametrize(
    ("text", "place", "expected"),
    [
        ("selec a from S", (1, 1), "a statement begins with SELECT"),
        ("select a from", (1, 14), "a name"),
        ("select a,, b from S", (1, 10), "an expression after SELECT"),
        ("select from S", (1, 8), "an expression after SELECT"),
        ("select (a from S", (1, 11), "Expecting )"),
        ("select a b c from S", (1, 12), "a , or FROM"),
        ("select a\n from S\n wher b", (3, 7), "a clause of the query"),
        ("select a from S where", (1, 22), "a condition after WHERE"),
        ("select a from S order by a", (1, 17), "a clause of the query"),
        ("select a from S [range -1 seconds]", (1, 25), "is not negative"),
        ("select a from S [range 5]", (1, 25), "a unit of time"),
        ("select a from S [range 5 seconds slide 0 seconds]", (1, 40), "is more than zero"),
        ("select a from S [range 0.0000001 seconds]", (1, 24), "whole microseconds"),
        ("select a from S [rows 0]", (1, 23), "a whole number of 1 or more"),
        ("select a from S [rows 1.5]", (1, 23), "a whole number of 1 or more"),
        ("select a from S [rows]", (1, 22), "a number after ROWS"),
        ("select a from S [partition G rows 1]", (1, 28), "BY after PARTITION"),
        ("select a from S [partition by G]", (1, 32), "ROWS"),
        ("select a from S [soon]", (1, 18), "a window begins with NOW"),
        ("select a from S [now", (1, 21), "a ]"),
        ("select a from (select b from S", (1, 31), "a )"),
        ("select a from S left join T on 1 = 1", (1, 17), "joined by a , or by"),
        ("select a from S join T", (1, 23), "ON"),
        ("istream select a from S", (1, 9), "a ( with a query"),
        ("register table S (a int)", (1, 10), "STREAM, RELATION, VIEW or QUERY"),
        ("register view v (a int)", (1, 17), "AS"),
        ("register stream S (a)", (1, 21), "for the type of a column"),
        ("register stream S (a int", (1, 25), "a , or a )"),
        ("register stream S (a int) from S1", (1, 32), "a text in quotes"),
    ],
)
def test_an_error_names_its_place_and_what_is_expected(
    text: str, place: tuple[int, int], expected: str
) -> None:
    with pytest.raises(CqlError) as caught:
        parse(text)
    error = caught.value
    assert error.place is not None
    assert error.place.line_and_column(text) == place
    assert expected in str(error)
    assert "; got: " in str(error)
    assert "; hint: " in str(error)


def test_carets_stand_below_what_is_meant() -> None:
    with pytest.raises(CqlError) as caught:
        parse("select a\n\tfrom S [soon]")
    shown = str(caught.value).splitlines()[-2:]
    assert shown == ["  \tfrom S [soon]", "  \t" + " " * 8 + "^^^^"]
    assert "queries.cql:2:10: " in str(caught.value.of_file("queries.cql"))


def test_a_text_without_its_closing_quote_is_refused() -> None:
    with pytest.raises(CqlError, match="closed"):
        parse("select 'abc from S")


def test_queries_inside_each_other_have_an_end() -> None:
    with pytest.raises(CqlError, match="inside each other"):
        parse("select a from " + "(select a from " * 60 + "S" + ")" * 60)


WORDS = [
    "select",
    "from",
    "where",
    "group",
    "by",
    "having",
    "distinct",
    "union",
    "all",
    "istream",
    "rstream",
    "register",
    "stream",
    "view",
    "as",
    "S",
    "T",
    "a",
    "b",
    "range",
    "rows",
    "now",
    "partition",
    "unbounded",
    "slide",
    "seconds",
    "5",
    "0",
    "-1",
    "1.5",
    "(",
    ")",
    "[",
    "]",
    ",",
    ";",
    "*",
    "=",
    ">",
    "+",
    "'x'",
    "count",
    "sum",
    "top5",
    "case",
    "when",
    "then",
    "end",
    "in",
    "between",
    "like",
    "null",
    "is",
    "not",
    "and",
    "or",
    "over",
    "join",
    "on",
    "inner",
    "left",
    "order",
    "limit",
    "cast",
    "interval",
]


@given(st.lists(st.sampled_from(WORDS), max_size=25).map(" ".join))
def test_no_row_of_words_makes_anything_but_an_error_of_cql(text: str) -> None:
    try:
        parse(text)
    except CqlError as error:
        assert "; hint: " in str(error)  # noqa: PT017 - a text may be right


@given(st.text(max_size=60))
def test_no_text_makes_anything_but_an_error_of_cql(text: str) -> None:
    for whole in (text, f"select {text} from S", f"select a from S [{text}]"):
        try:
            parse(whole)
        except CqlError as error:
            assert "; hint: " in str(error)  # noqa: PT017 - a text may be right
