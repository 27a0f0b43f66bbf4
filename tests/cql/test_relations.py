"""Base relations: registered with their columns, read from files, and refused where they cannot be had."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.cql.cases import meant

from penstock.cql.analysis.explain import plan_lines, running_lines
from penstock.cql.analysis.windowing import check_mode, default_mode, relations_read, streams_read
from penstock.cql.datafiles import INSTANT_COLUMN, SIGN_COLUMN, no_tuples, tuples_of
from penstock.cql.errors import CqlError
from penstock.cql.language.dialect import parse, to_text
from penstock.cql.meaning.catalog import RelationDef
from penstock.cql.meaning.check import advice_on
from penstock.cql.meaning.lower import is_known_at_once, leaves_of, lowered, spread_by
from penstock.cql.meaning.plan import Base
from penstock.cql.program import read_program
from penstock.vocabulary.errors import InvalidInputError

ROOMS = (
    "REGISTER RELATION rooms (id int, Name char(20), at timestamp, op char(1)) FROM 'rooms' "
    "TIMESTAMP BY at SIGN BY OP KEY BY ID"
)


def registered(text: str) -> RelationDef:
    (entry,) = read_program(text).catalog.streams()
    assert isinstance(entry, RelationDef)
    return entry


def test_a_relation_has_columns_data_time_signs_and_keys() -> None:
    rooms = registered(ROOMS)
    assert (rooms.name, rooms.data, rooms.timestamp, rooms.sign, rooms.keys) == (
        "rooms",
        "rooms",
        "at",
        "op",
        ("id",),
    )
    assert rooms.tuple_columns == {"id": "BIGINT", "Name": "STRING"}
    (statement,) = parse(ROOMS)
    assert registered(to_text(statement)) == rooms
    assert registered("REGISTER RELATION R (A int) FROM 'R1'") == RelationDef("R", {"A": "BIGINT"}, "R1")


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("REGISTER RELATION R", r"\( with columns, or AS with a query, after the name of a rel"),
        ("REGISTER RELATION R (a int) SIGN BY b", "SIGN BY has one of the relation's columns"),
        ("REGISTER RELATION R (a int) SIGN BY a", r"SIGN BY has texts, \+ or -; got: a of type BIGINT"),
        ("REGISTER RELATION R (a int) KEY BY b", "KEY BY has one of the relation's columns"),
        ("REGISTER RELATION R (a int) KEY BY a, A", "KEY BY has columns of the relation's tuples, each once"),
        ("REGISTER RELATION R (a int, op char) SIGN BY op KEY BY op", "KEY BY has columns of the relation's"),
        (
            "REGISTER RELATION R (op char(1)) SIGN BY op",
            "a relation has a column beside the time and the sign",
        ),
        ("REGISTER RELATION R (a int) KEY BY a SIGN BY a", "KEY BY columns or a ;"),
        ("REGISTER STREAM R (a int, op char) SIGN BY op", "TIMESTAMP BY column or a ;"),
        ("REGISTER RELATION R (a int); SELECT a FROM R [ROWS 2]", "a window is over a stream"),
        (
            "REGISTER RELATION R (a int); SELECT a FROM R WHERE KEPT(0.5)",
            "KEPT chooses among the rows of one",
        ),
    ],
)
def test_what_is_no_relation_is_refused(text: str, rule: str) -> None:
    with pytest.raises(CqlError, match=rule) as refused:
        read_program(text)
    assert "; hint: " in str(refused.value)


def test_relations_are_read_in_relation_mode_alone() -> None:
    query = meant("SELECT T.m, K.d FROM T [RANGE 2 SEC SLIDE 2 SEC], K WHERE T.l = K.l")
    assert default_mode(query.plan) == "relation"
    check_mode(query, "relation")
    assert (streams_read(query.plan), relations_read(query.plan)) == ({"T", "K"}, {"K"})
    with pytest.raises(
        CqlError, match=r"a query by windows reads streams.*; got: relation K; hint: run it in"
    ):
        check_mode(query, "windows")
    with pytest.raises(
        CqlError, match=r"tuples one by one reads a stream.*; got: relation R; hint: run it in"
    ):
        check_mode(meant("SELECT l FROM R"), "rows")
    assert not is_known_at_once(lowered(meant("SELECT l, m FROM R").plan))
    assert [each.keeps_for_ever for each in advice_on(query.plan)] == []


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("SELECT m, count(*) FROM R GROUP BY m", ["m"]),
        ("SELECT l, count(*) FROM K GROUP BY l", ["l"]),
        ("SELECT m, count(*) FROM K GROUP BY m", None),
        ("SELECT K.l, R.m FROM K, R WHERE K.l = R.l", ["l", "l"]),
    ],
)
def test_a_relation_with_a_key_is_spread_by_its_key_alone(text: str, columns: list[str] | None) -> None:
    """A deletion may have nothing but the key, and would be looked for elsewhere."""
    plan = lowered(meant(text).plan)
    leaves = leaves_of(plan)
    assert all(isinstance(leaf, Base) for leaf in leaves)
    spread, names = spread_by(plan, leaves), ["l", "m", "d"]
    found = spread and [names[[c.name for c in leaves[i].columns].index(spread[i])] for i in sorted(spread)]
    assert found == columns


def test_explain_names_relations_and_their_keys() -> None:
    program = read_program(ROOMS + "; SELECT Name FROM rooms WHERE id > 3")
    (written,) = program.queries
    lines = plan_lines(written.query, program.catalog)
    assert lines[-1].strip() == "relation rooms by rooms.id"
    assert "where rooms.id > 3" in lines[-2]
    assert running_lines(written.query, program.catalog, "relation")[1:] == [
        "  the rest in the engine, its state in one bucket: all tuples must meet"
    ]


def test_a_data_file_of_stream_has_signs_behind_its_instants(tmp_path: Path) -> None:
    (tmp_path / "R1.dat").write_text("i,b,i,c4\n1,+,7,abc\n3,-,7,abc\n")
    found = tuples_of(registered("REGISTER RELATION R (A int, B char(4)) FROM 'R1'"), tmp_path)
    assert found.to_pydict() == {
        INSTANT_COLUMN: [1_000_000, 3_000_000],
        SIGN_COLUMN: [1, -1],
        "A": [7, 7],
        "B": ["abc", "abc"],
    }


@pytest.mark.parametrize("ending", [".csv", ".parquet"])
def test_other_files_have_signs_in_a_column(tmp_path: Path, ending: str) -> None:
    if ending == ".csv":
        (tmp_path / "rooms.csv").write_text(
            "op,id,Name,at\n-,1,,2026-01-01T00:00:02Z\n+,1,hall,2026-01-01T00:00:01Z\n"
        )
    else:
        at = pa.array([2_000_000, 1_000_000], pa.timestamp("us", "UTC"))
        rows = {"op": ["-", "+"], "id": [1, 1], "Name": ["", "hall"], "at": at}
        pq.write_table(pa.table(rows), tmp_path / "rooms.parquet")
    rooms = registered(ROOMS)
    found = tuples_of(rooms, tmp_path)
    assert found.column_names == no_tuples(rooms).column_names == [INSTANT_COLUMN, SIGN_COLUMN, "id", "Name"]
    assert found.column(SIGN_COLUMN).to_pylist() == [1, -1]
    assert found.column("Name").to_pylist() == ["hall", ""]


@pytest.mark.parametrize(
    ("text", "data", "said"),
    [
        (
            "(A int) FROM 'R'",
            "i,b,i\n1,x,7\n",
            r"says whether it inserts or deletes; got: 'x'; hint: write \+ or",
        ),
        ("(A int) FROM 'R'", "i,i\n1,7\n", "has an instant, a sign and 1 columns; got: 2 columns"),
        ("(A int)", "", "relation R has data; got: none; hint: REGISTER RELATION R"),
        ("(A int, at float) FROM 'C' TIMESTAMP BY at", "A,at\n1,2\n", r"has \+ or -; got: no SIGN BY"),
    ],
)
def test_data_that_is_no_relation_s_is_refused(tmp_path: Path, text: str, data: str, said: str) -> None:
    (tmp_path / ("C.csv" if "'C'" in text else "R.dat")).write_text(data)
    with pytest.raises(InvalidInputError, match=said):
        tuples_of(registered(f"REGISTER RELATION R {text}"), tmp_path)
