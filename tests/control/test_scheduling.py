"""Batches overlap at their ends: who is granted before the one that runs is done, and who is not."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.control.cost import CostModel
from penstock.control.granting import OLD_TARGETS, warn_of_late
from penstock.control.members import Lease, Query
from penstock.control.scheduling import OVERLAP_FIXED, Scheduler
from penstock.control.turns import Turns
from penstock.testing import ManualClock

ROWS = 500_000


def query(cls: str, known: bool = True) -> Query:
    """One that wants its turn, with a cost that was learned from batches of many sizes."""
    made = Query(cls, cls, cls, CostModel(), asked_s=0.0, wants_since_s=0.0)
    for i in range(8 if known else 0):
        rows = 1000 * 4 ** min(i, 4)
        made.cost.learn(rows, 0.2 + rows * 20e-6)
    return made


class Stage:
    """A class `first` whose batch runs, and a class `second` that asks."""

    def __init__(
        self, weights: dict[str, float], waiting: int = 1, slots: int = 1, known: bool = True
    ) -> None:
        self.timer = ManualClock(0.0)
        self.first, self.second = query("first"), query("second", known)
        self.first.lease = Lease(0.0, 0.0, {}, {}, admitted=ROWS, logged={"r"})
        self.first.wants_since_s = None
        queries = {"first": self.first, "second": self.second}
        look: Any = lambda _: SimpleNamespace(rows=waiting)  # noqa: E731
        self.scheduler = Scheduler({}, queries, Turns(weights), slots, look, lambda _: 0.0, self.timer)
        self.ends_s = self.first.cost.batch_s(ROWS)

    def granted_at(self, moment_s: float) -> bool:
        self.timer.advance(moment_s)
        self.second.asked_s = self.timer()
        return self.scheduler.is_next(self.second)


EQUAL = {"first": 1.0, "second": 1.0}


def test_the_next_batch_is_granted_before_the_one_that_runs_ends_and_not_much_before() -> None:
    early = OVERLAP_FIXED * query("second").cost.fixed_s
    assert not Stage(EQUAL).granted_at(Stage(EQUAL).ends_s - early - 0.05)
    assert Stage(EQUAL).granted_at(Stage(EQUAL).ends_s - early + 0.05)


def test_a_query_whose_cost_is_not_known_waits_for_the_end() -> None:
    assert not Stage(EQUAL, known=False).granted_at(100.0)


def test_a_class_that_would_be_next_again_is_waited_for_if_rows_of_it_wait() -> None:
    heavy = {"first": 1000.0, "second": 1.0}
    stage = Stage(heavy)
    stage.scheduler.turns.charge("second", 1.0)
    assert not stage.granted_at(stage.ends_s)
    empty = Stage(heavy, waiting=0)
    empty.scheduler.turns.charge("second", 1.0)
    assert empty.granted_at(empty.ends_s)


def test_a_free_slot_needs_no_end() -> None:
    assert Stage(EQUAL, slots=2).granted_at(0.0)


def test_rows_that_are_far_too_old_are_said_once(caplog: pytest.LogCaptureFixture) -> None:
    one = query("first")
    with caplog.at_level(logging.WARNING):
        warn_of_late(one, OLD_TARGETS * 2.0 - 0.1, 2.0, 10)
        warn_of_late(one, OLD_TARGETS * 2.0, 2.0, 0)
        assert caplog.text == ""
        warn_of_late(one, OLD_TARGETS * 2.0, 2.0, 10)
        warn_of_late(one, OLD_TARGETS * 2.0, 2.0, 10)
    assert caplog.text.count("sheds 10 rows as late") == 1
