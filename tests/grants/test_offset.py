"""The offset: what Spark logs is what is read back, and its books follow from grant to grant."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.grants.offset import Books, Offset, limited
from penstock.grants.plans import (
    KEEP_ALL,
    SCALE,
    ChosenPlan,
    KeyPlan,
    SamplePlan,
    UtilityPlan,
    WindowPlan,
)
from penstock.vocabulary.errors import InvalidInputError

positions = st.dictionaries(st.integers(0, 99), st.integers(0, 2**53), max_size=4)
counts = st.integers(0, 2**53)
books = st.builds(Books, counts, counts, counts, counts, counts)
coins, seeds = st.integers(0, SCALE), st.integers(0, 2**31)
places = st.dictionaries(st.integers(0, 99), st.lists(counts, max_size=4).map(tuple), max_size=3)
plans = st.one_of(
    st.just(KEEP_ALL),
    st.builds(SamplePlan, st.sampled_from(["row", "segment"]), coins, coins, seeds, coins),
    st.builds(KeyPlan, st.integers(0, 64), seeds),
    st.builds(ChosenPlan, places, coins),
    st.builds(UtilityPlan, st.text(), st.floats(allow_nan=False), coins, seeds),
    st.builds(WindowPlan, st.text(), counts, counts, st.lists(counts, max_size=4).map(tuple), places),
)
offsets = st.builds(
    Offset,
    st.text(min_size=1),
    positions,
    positions,
    counts,
    positions,
    plans,
    books,
    st.booleans(),
    st.booleans(),
    empty_before=counts,
    empty=counts,
    marks=positions,
)


@given(offsets)
def test_an_offset_survives_json(offset: Offset) -> None:
    assert Offset.from_json(json.loads(json.dumps(offset.to_json()))) == offset


def test_an_offset_of_a_plain_grant_is_short() -> None:
    offset = Offset.initial("fraud-7f3a", {0: 0}).advanced({0: 500}, {}, KEEP_ALL, Books(500))
    assert offset.to_json() == {
        "penstock": 2,
        "reader": "fraud-7f3a",
        "grant": 1,
        "start": {"0": 0},
        "end": {"0": 500},
        "books": [500, 0, 0, 0, 0],
    }


def test_grants_follow_each_other_and_their_books_add_up() -> None:
    first = Offset.initial("r", {0: 10, 1: 0})
    assert (first.grant, first.books, first.tick) == (0, Books(), False)
    plan = SamplePlan("row", row_keep=SCALE // 2, seed=4)
    second = first.advanced({0: 20, 1: 6}, {0: 13, 1: 0}, plan, Books(7, 6, 3))
    assert (second.grant, second.start, second.end) == (1, {0: 10, 1: 0}, {0: 20, 1: 6})
    assert second.late == {0: 13}, "partition 1 has no late rows"
    assert second.books.offered == 16
    third = second.advanced({0: 20, 1: 8}, {0: 13}, KEEP_ALL, Books(1, expired=1), ungoverned=True)
    assert (third.grant, third.start, third.late) == (2, second.end, {}), (
        "late rows of the last grant are past"
    )
    assert third.books == Books(8, 6, 3, 1)
    assert third.books.shed == 10
    assert third.ungoverned
    tick = third.advanced(third.end, {}, KEEP_ALL, Books())
    assert (tick.tick, tick.ungoverned, tick.grant, tick.books) == (True, False, 3, third.books)
    assert tick.to_json() != third.to_json(), "or Spark would see nothing new and close no window"


@given(st.lists(books, max_size=6))
def test_in_the_books_offered_is_always_admitted_and_shed(each: list[Books]) -> None:
    offset = Offset.initial("r", {0: 0})
    for one in each:
        offset = offset.advanced({0: 1}, {}, KEEP_ALL, one)
    assert offset.books.offered == sum(b.offered for b in each)
    assert offset.books.offered == offset.books.admitted + offset.books.shed


grants = st.tuples(st.integers(0, 50), st.floats(0.0, 1.0), st.booleans())


@given(st.lists(grants, max_size=12))
def test_rows_that_are_admitted_stand_for_all_that_were_offered_up_to_them(
    each: list[tuple[int, float, bool]],
) -> None:
    offset, set_aside, represented, last = Offset.initial("r", {0: 7}), False, 0, 7
    for rows, part, fails in each:
        admitted, start = round(rows * part), offset
        offset = start.advanced({0: start.end[0] + rows}, {}, KEEP_ALL, Books(admitted, rows - admitted))
        offset = offset.follows(start, set_aside, admitted)
        set_aside = fails and admitted > 0
        if admitted and not set_aside:
            represented, last = represented + offset.represented_rows, offset.end[0]
    assert represented == last - 7


def test_a_grant_that_admits_nothing_leaves_its_rows_to_the_next_also_over_ticks() -> None:
    first = Offset.initial("r", {0: 0}).advanced({0: 100}, {}, KEEP_ALL, Books(100))
    nothing = SamplePlan("row", row_keep=0)
    empty = first.advanced({0: 180}, {}, nothing, Books(0, 80)).follows(first, False, 0)
    tick = empty.advanced({0: 180}, {}, KEEP_ALL, Books()).follows(empty, False, 0)
    third = tick.advanced({0: 200}, {}, KEEP_ALL, Books(20)).follows(tick, False, 20)
    assert third.represented_rows == 100
    after = third.advanced({0: 210}, {}, KEEP_ALL, Books(10)).follows(third, False, 10)
    assert after.represented_rows == 10
    again = third.advanced({0: 210}, {}, KEEP_ALL, Books(10)).follows(third, True, 10)
    assert again.represented_rows == 110, "what failed too often was not processed either"


@pytest.mark.parametrize(("rows", "ends"), [(None, {0: 10, 1: 10}), (4, {0: 7, 1: 7}), (0, {0: 5, 1: 5})])
def test_a_partition_without_an_end_stays_where_it_is(rows: int | None, ends: dict[int, int]) -> None:
    assert limited({0: 5, 1: 5, 2: 700}, {0: 10, 1: 10}, rows) == {**ends, 2: 700}


OLD = {
    "penstock": 1,
    "reader": "fraud-7f3a",
    "grant": 3,
    "start": {"0": 0},
    "end": {"0": 500},
    "books": [500, 0, 0, 0, 0],
}


def test_an_offset_of_format_1_is_read_and_written_as_format_2() -> None:
    offset = Offset.from_json(OLD)
    assert (offset.grant, offset.end, offset.books, offset.marks) == (3, {0: 500}, Books(500), {})
    assert offset.to_json() == {**OLD, "penstock": 2}


def test_marks_are_those_of_one_offset_alone() -> None:
    offset = Offset.initial("r", {0: 7}, marks={0: 12345})
    assert Offset.from_json(offset.to_json()).marks == {0: 12345}
    assert offset.advanced({0: 9}, {}, KEEP_ALL, Books(2)).marks == {}


@pytest.mark.parametrize("encoded", [{}, {"penstock": 3}, {"penstock": "1"}, {"topic": {"0": 17}}])
def test_an_offset_of_another_source_or_format_is_refused_with_a_hint(encoded: dict[str, object]) -> None:
    with pytest.raises(
        InvalidInputError,
        match=r"has format 1 or 2; got: .*; hint: .* newer Penstock: use that one, or a new ",
    ):
        Offset.from_json(encoded)


def test_a_plan_with_something_that_is_not_known_is_refused_with_a_hint() -> None:
    with pytest.raises(InvalidInputError, match="got: unknown moon, tide; hint: a newer Penstock made it"):
        Offset.from_json({**OLD, "plan": {"seed": 4, "tide": 1, "moon": {}}})
