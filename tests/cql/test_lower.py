"""What needs no state goes below windows by time, and plans are spread by what must meet."""

from __future__ import annotations

import pytest
from tests.cql.cases import QN_LONG, meant

from penstock.cql.meaning.lower import leaves_of, lowered, spread_by, stream_of
from penstock.cql.meaning.plan import Filter, Map, Plan, Scan, Windowed


def leaves(text: str) -> list[Plan]:
    return leaves_of(lowered(meant(text).plan))


def test_conditions_and_expressions_go_below_a_window_by_time() -> None:
    plan = lowered(meant("SELECT l + 1, m FROM T [RANGE 5 SECONDS] WHERE m > 2").plan)
    assert isinstance(plan, Windowed)
    assert isinstance(plan.input, Map)
    assert isinstance(plan.input.input, Filter)
    assert isinstance(plan.input.input.input, Scan)
    assert plan.columns == plan.input.columns
    assert leaves_of(plan) == [plan.input]


def test_a_window_by_number_counts_tuples_before_they_are_dropped() -> None:
    plan = meant("SELECT l FROM T [ROWS 2] WHERE m > 2").plan
    assert lowered(plan) == plan
    (leaf,) = leaves_of(plan)
    assert isinstance(leaf, Scan)


def test_every_reading_of_a_stream_is_a_leaf() -> None:
    assert [stream_of(leaf) for leaf in leaves(QN_LONG)] == ["S", "T", "U"]
    assert [stream_of(leaf) for leaf in leaves("SELECT a.l FROM T [ROWS 1] a, T [ROWS 2] b")] == ["T", "T"]


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("SELECT l, sum(m) FROM T GROUP BY l", ["l"]),
        ("SELECT l, m FROM T [PARTITION BY l ROWS 3]", ["l"]),
        ("SELECT S.l, T.m FROM S [RANGE 5 SECONDS], T [NOW] WHERE S.l = T.l", ["l", "l"]),
        ("SELECT DISTINCT d FROM S [RANGE 5 SECONDS]", ["d"]),
        ("SELECT l FROM S [NOW] UNION SELECT l FROM T [NOW]", ["l", "l"]),
        ("ISTREAM(SELECT m FROM T [RANGE 3 SECONDS])", ["m"]),
        ("SELECT sum(m) FROM T [RANGE 3 SECONDS]", None),
        ("SELECT l, m FROM T [ROWS 2]", None),
        ("SELECT m FROM T [PARTITION BY l ROWS 3]", None),
        ("SELECT S.l, T.l FROM S [NOW], T [NOW]", None),
        ("SELECT S.l, T.m FROM S [NOW], T [NOW] WHERE S.l = T.m", None),
        ("SELECT S.l, T.l FROM S [ROWS 3], T [PARTITION BY l ROWS 1] WHERE S.l = T.l", None),
    ],
)
def test_a_plan_is_spread_by_what_must_meet(text: str, columns: list[str] | None) -> None:
    plan = lowered(meant(text).plan)
    found = leaves_of(plan)
    spread = spread_by(plan, found)
    if columns is None:
        assert spread is None
        return
    assert spread is not None
    names = {"S": ["l", "m", "d"], "T": ["l", "m"]}
    got = []
    for i, leaf in enumerate(found):
        scan = next(each for each in leaf.walk() if isinstance(each, Scan))
        # columns that a leaf names anew are those of the stream in these queries
        place = [column.name for column in leaf.columns].index(spread[i])
        source = leaf.items[place].name if isinstance(leaf, Map) else spread[i]
        got.append(names[scan.stream][[column.name for column in scan.columns].index(source)])
    assert got == columns
