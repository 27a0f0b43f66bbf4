"""How many rows pass is told from a sample, for each query of a family."""

from __future__ import annotations

import pyarrow as pa
import pytest
from tests.cql.cases import meant

from penstock.cql.analysis.families import families_of
from penstock.cql.analysis.selectivity import passing_fraction, wanted_fractions
from penstock.cql.analysis.windowing import tuple_by_tuple
from penstock.cql.meaning.lower import leaves_of

WINDOW = "[RANGE 4 SEC SLIDE 4 SEC]"
T = pa.table({"l": pa.array([1, 1, 2, None]), "m": pa.array([0.5, 1.5, 2.5, 3.5])})


def fractions(*texts: str, **more: pa.Table) -> dict[str, float] | None:
    (family,) = families_of({str(i): meant(text) for i, text in enumerate(texts)})
    return wanted_fractions(family, {"T": T, **more})


def test_each_query_wants_the_rows_that_fulfil_its_own_condition() -> None:
    found = fractions(*(f"SELECT count(*) FROM T {WINDOW} WHERE l = {i}" for i in range(3)))
    assert found == {"0": 0.0, "1": 0.5, "2": 0.25}


def test_conditions_on_expressions_of_a_view_count_too() -> None:
    text = "SELECT sum(n) FROM ISTREAM(SELECT m * 2.0 AS n FROM T WHERE m > 1.0) {} WHERE n < {}"
    assert fractions(text.format(WINDOW, 6.0), text.format(WINDOW, 4.0)) == {"0": 0.5, "1": 0.25}


def test_conditions_on_groups_are_not_of_rows() -> None:
    text = f"SELECT l, sum(m) FROM T {WINDOW} GROUP BY l HAVING sum(m) > {{}}"
    assert fractions(text.format(1), text.format(9)) == {"0": 1.0, "1": 1.0}


def test_both_sides_of_a_join_count() -> None:
    text = f"SELECT T.l, count(*) FROM T {WINDOW}, U {WINDOW} WHERE T.l = U.l AND T.m > {{}} GROUP BY T.l"
    assert fractions(text.format("2.0"), text.format("9.0"), U=T) == {"0": 6 / 8, "1": 4 / 8}


@pytest.mark.parametrize(
    ("text", "rows"),
    [("SELECT m FROM T WHERE KEPT(0.5)", T), ("SELECT m FROM T WHERE l = 1", T[:0])],
    ids=["drawn at random", "no rows"],
)
def test_what_cannot_be_told_is_none(text: str, rows: pa.Table) -> None:
    leaves = leaves_of(tuple_by_tuple(meant(text).plan))
    assert passing_fraction(leaves, {"T": rows}) is None
