"""The first batches on cores: they grow while they are short, and what a row costs is told by two of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.control.measure.first_batches import FirstBatches, FirstFigures
from penstock.control.measure.work import Use, WorkCost
from penstock.control.tuning import TUNING

BUDGET_S = 4.0
"""Core seconds that a first batch may take."""


def run(fixed_s: float, row_s: float, cold_s: float = 0.0) -> tuple[list[int], FirstFigures]:
    """Batches of the most rows until the cost is known; the first one takes `cold_s` besides."""
    first, sizes = FirstBatches(), list[int]()
    for _ in range(20):
        rows = int(first.most_rows(BUDGET_S))
        sizes.append(rows)
        cold = cold_s if len(sizes) == 1 else 0.0
        if (figures := first.learn(rows, fixed_s + cold + row_s * rows)) is not None:
            return sizes, figures
    raise AssertionError(f"the cost is never known: {sizes}")


def test_cheap_rows_are_known_after_seven_batches_although_the_first_one_starts_workers() -> None:
    sizes, found = run(fixed_s=0.3, row_s=50e-6, cold_s=30.0)
    assert sizes[0] == TUNING.first_work_rows
    assert len(sizes) <= 7
    assert (found.fixed_s, found.row_s) == (pytest.approx(0.3), pytest.approx(50e-6))


def test_dear_rows_are_followed_by_smaller_batches_and_known_exactly() -> None:
    sizes, found = run(fixed_s=0.1, row_s=0.2)
    assert sizes[1] < sizes[0]
    assert found.row_s == pytest.approx(0.2, rel=0.05)


def test_a_cold_first_batch_bounds_the_cost_of_a_row_and_says_no_more() -> None:
    first = FirstBatches()
    assert first.learn(100, 50.0) is None
    assert list(first.points) == []
    assert first.most_rows(BUDGET_S) == 8.0, "no row costs more than half a core second"


def test_batches_that_others_have_slowed_down_are_forgotten() -> None:
    first, slow = FirstBatches(), iter([3.0, 9.0, 0.5, 7.0, 2.0, *[1.0] * 20])
    for _ in range(20):
        rows = int(first.most_rows(BUDGET_S))
        if (found := first.learn(rows, (0.3 + 1e-3 * rows) * next(slow))) is not None:
            break
    assert found is not None
    assert first.seen < TUNING.told_at_last
    assert found.row_s == pytest.approx(1e-3, rel=0.3)


def test_batches_that_all_look_alike_have_some_cost_at_last() -> None:
    first = FirstBatches()
    found = [first.learn(10, 0.2) for _ in range(TUNING.told_at_last)]
    assert found[:-1] == [None] * (len(found) - 1)
    assert found[-1] == FirstFigures(0.1, 0.01)


def test_batches_without_rows_bound_nothing() -> None:
    first = FirstBatches()
    for _ in range(12):
        assert first.learn(0, 0.2) is None
    assert first.most_rows(BUDGET_S) == TUNING.first_work_rows


@given(
    fixed_s=st.floats(0.0, 5.0),
    row_s=st.floats(1e-7, 0.5),
    waiting=st.lists(st.integers(0, 10**7), min_size=1, max_size=30),
)
def test_a_batch_after_the_first_takes_no_longer_than_it_may_if_its_start_does_not(
    fixed_s: float, row_s: float, waiting: list[int]
) -> None:
    first = FirstBatches()
    for number, there in enumerate(waiting):
        rows = min(there, int(first.most_rows(BUDGET_S)))
        core_s = fixed_s + row_s * rows
        known = first.least_row_s < float("inf")
        assert not (number and known and rows > 1) or row_s * rows <= BUDGET_S * (1 + 1e-9)
        if (found := first.learn(rows, core_s)) is not None:
            assert found.fixed_s >= 0.0
            assert found.row_s > 0.0
            return


def test_work_is_ready_once_its_first_batches_tell_and_its_spread_is_how_long_tasks_take() -> None:
    work = WorkCost()
    for rows in (100, 100, 800, 6400, 12_800):
        assert not work.model.ready
        work.learn(rows, Use(0.3 + 50e-6 * rows, 2, 2, 1.0, 0.1, 0.05))
    assert work.model.ready
    assert (work.idle_s, work.stretch) == (pytest.approx(0.15), 1.0)
    for _ in range(30):
        work.learn(25_600, Use(1.6, 2, 2, 1.2, 0.1, 0.05))
    assert work.stretch == pytest.approx(1.5)
    work.learn(25_600, Use(1.6, 2, 0, 9.0, 0.1, 0.05))
    assert work.stretch == pytest.approx(1.5), "for how many tasks it was is not known"
