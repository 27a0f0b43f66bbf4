"""What a class that sheds whole windows remembers from grant to grant: it is in the plans of the grants."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
from tests.queries import learned_query, waiting_segments

from penstock.config.shedding import WindowSettings
from penstock.control.backlog.row_values import (
    Fetch,
    FetchedValues,
    Look,
    RowValues,
    SegmentValues,
    inside,
)
from penstock.control.backlog.waiting import Cut
from penstock.control.core.granting import carried_plan
from penstock.control.shed.capacity_view import CapacityView, QueryBatches
from penstock.control.shed.strategies.base import GrantedRows
from penstock.control.shed.strategies.window_history import (
    WindowHistory,
    highest_decided,
    history_of,
    is_past,
    waiting_windows,
    windows_of_plan,
)
from penstock.control.shed.strategies.windows import WindowStrategy
from penstock.grants.plans import KEEP_ALL, SamplePlan, ShedPlan, WindowPlan
from penstock.grants.plans.values import NO_WINDOW
from penstock.policies.shedding.base import ShedDecision
from penstock.streams.protocol import ARRIVAL
from penstock.vocabulary.moment import Moment

SIZE_US = 1_000_000


def plan_after(before: ShedPlan, windows: list[int], fit: int, keep: set[int]) -> ShedPlan:
    """The plan of a grant.

    Args:
        before: The plan of the grant before.
        windows: By waiting row, the number of its window.
        fit: How many rows fit into the turn: fewer than wait.
        keep: The windows that the shedder keeps if it is asked about them.
    """
    query, count = learned_query("gold"), len(windows)
    query.readers["r"].offset = replace(query.readers["r"].offset, plan=before)
    cut = Cut({"r": {0: count}}, {"r": {0: 0}}, count, 0)
    segments = inside([waiting_segments((count, 0.0, 1.0))], cut)
    values = RowValues()
    of_rows = SegmentValues(np.arange(count), np.array(windows), count)
    values.take_in(FetchedValues(Fetch("s", 0, Look(ARRIVAL, SIZE_US)), {0: of_rows}))
    batches = QueryBatches(np.array([count]), np.ones(1), np.zeros(1), np.ones(1))
    view = CapacityView(
        Moment(1.0, 1.0), [query], [batches], np.ones(1), float(fit), 1.0, np.ones(1), float(count)
    )
    strategy = WindowStrategy(WindowSettings(by="window", size=SIZE_US / 1e6))
    offer = strategy.offer(GrantedRows(query, cut, segments, values, {}), view)
    assert offer is not None
    kept = np.isin(offer.shown.details["window"], list(keep))
    return offer.carry_out(ShedDecision(1, kept, "", np.ones(1), 0.0)).plans["r"]


def test_a_grant_without_rows_of_decided_windows_passes_on_what_was_decided_about_them() -> None:
    """Rows come out of order: the second grant has rows of window 5 alone."""
    first = plan_after(KEEP_ALL, [5, 6, 7], fit=2, keep={5, 7})
    second = plan_after(first, [5, 5], fit=1, keep=set())
    third = plan_after(second, [6, 7], fit=1, keep={6})
    assert [plan.windows for plan in (first, second, third)] == [(5, 7), (5, 7), (5, 7)]
    assert [plan.decided for plan in (first, second, third)] == [7, 7, 7]
    assert third.chosen == {0: (0,)}, "the segment is opened for the row of window 7"


def test_rows_of_a_broken_window_are_shed_also_when_all_would_fit() -> None:
    before = history_of([WindowPlan(size_us=10, windows=(3, 5), decided=6)], 10, None)
    found = waiting_windows(np.array([5, 6, 6, 7, 8]), np.array([8]), before)
    assert found.number.tolist() == [5, 6, 7, 8]
    assert found.continued.tolist() == [True, False, False, False]
    assert found.broken.tolist() == [False, True, False, True], "6 was shed before, 8 is late"
    assert found.undecided.tolist() == [False, False, True, False]
    assert highest_decided(found.number, before) == 8
    assert highest_decided(np.array([NO_WINDOW]), before) == 6


def test_a_kept_window_is_remembered_for_rows_that_come_out_of_order() -> None:
    before = history_of([WindowPlan(size_us=10, windows=(3, 95, 99), decided=100)], 10, None)
    found = waiting_windows(np.array([99, 101, 102]), np.array([99]), before)
    kept = windows_of_plan(found, np.array([False, True, False]), before)
    assert kept == (95, 101), "3 is long ago, 99 is broken"


def test_windows_that_began_while_everything_was_kept_go_on() -> None:
    found = waiting_windows(np.array([NO_WINDOW, 5, 6]), np.empty(0, np.int64), WindowHistory(whole_upto=5))
    assert found.continued.tolist() == [False, True, False]
    assert found.undecided.tolist() == [True, False, True]


def test_what_was_decided_about_windows_is_forgotten_only_when_nothing_of_them_waits() -> None:
    before = history_of([WindowPlan(size_us=10, windows=(3, 5), decided=6)], 10, None)
    assert not is_past(before, np.array([5, 7, 8]))
    assert is_past(before, np.array([NO_WINDOW, 7, 8]))
    assert is_past(WindowHistory(), np.array([5]))


def test_a_tick_carries_what_was_decided_about_windows() -> None:
    of_windows, by_row = WindowPlan(size_us=10, windows=(3, 5), decided=6), SamplePlan("row")
    for plan, carries in ((of_windows, of_windows), (by_row, KEEP_ALL), (KEEP_ALL, KEEP_ALL)):
        reader: Any = SimpleNamespace(offset=SimpleNamespace(plan=plan))
        assert carried_plan(reader) == carries


def test_windows_of_another_size_say_nothing() -> None:
    assert (
        history_of([WindowPlan(size_us=20, windows=(1,), decided=6), KEEP_ALL], 10, None) == WindowHistory()
    )
