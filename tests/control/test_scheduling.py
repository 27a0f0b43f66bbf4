"""Batches overlap at their ends: who is granted before the one that runs is done, and who is not."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.control.core.granting import OLD_TARGETS, warn_of_late
from penstock.control.measure.cost import CostModel
from penstock.control.schedule.demand import SLACK_FRACTION
from penstock.control.schedule.paths import Paths
from penstock.control.schedule.scheduler import GUESSED_OVERLAP_FIXED, LATEST_AT, OVERLAP_FIXED, Scheduler
from penstock.control.schedule.shares import Redistribution
from penstock.control.schedule.turns import Turns
from penstock.control.state.guard import Guard
from penstock.control.state.members import Lease, Query, Tail
from penstock.policies.capacity import capacity_policy
from penstock.testing import ManualClock
from penstock.vocabulary.model import ManagerTraits, QueryClass

ROWS = 500_000
PLANT = SimpleNamespace(cls=QueryClass("any", 4.0))


def query(cls: str, known: bool = True) -> Query:
    """One that wants its turn, with a cost that was learned from batches of many sizes."""
    made = Query(cls, cls, cls, CostModel(), readers={"r": cast("Any", None)})
    for i in range(8 if known else 0):
        rows = 1000 * 4 ** min(i, 4)
        made.cost.learn(rows, 0.2 + rows * 20e-6)
    return made


class Stage:
    """A class `first` whose batch runs, and a class `second` that asks."""

    def __init__(
        self, weights: dict[str, float], waiting: int = ROWS, slots: int = 1, known: bool = True
    ) -> None:
        self.timer = ManualClock(0.0)
        self.first, self.second = query("first"), query("second", known)
        self.first.lease = Lease(0.0, 0.0, {}, {}, admitted=ROWS, logged={"r"})
        queries = {"first": self.first, "second": self.second}
        rows: dict[str, Any] = {
            "first": SimpleNamespace(rows=waiting, oldest_s=0.0),
            "second": SimpleNamespace(rows=ROWS, oldest_s=0.0),
        }
        classes: Any = {name: SimpleNamespace(plant=PLANT, traits=ManagerTraits()) for name in queries}
        capacity = Redistribution(
            capacity_policy("cqc"), [QueryClass(name, 4.0, weight) for name, weight in weights.items()], 1
        )
        turns = Turns(weights)

        def look(q: Query) -> Any:
            q.waiting, q.looked_s = rows[q.key], self.timer()
            return q.waiting

        self.scheduler = Scheduler(
            classes,
            queries,
            turns,
            capacity,
            slots,
            False,
            look,
            lambda _: 0.0,
            self.timer,
            Paths({}, {}),
            Guard(self.timer),
        )
        self.ends_s = self.first.cost.batch_s(ROWS)

    def granted_at(self, moment_s: float) -> bool:
        self.timer.advance(moment_s)
        return self.scheduler.is_next(self.second) is not None


EQUAL = {"first": 1.0, "second": 1.0}


def test_the_next_batch_is_granted_before_the_one_that_runs_ends_and_not_much_before() -> None:
    early = GUESSED_OVERLAP_FIXED * query("second").cost.fixed_s
    assert not Stage(EQUAL).granted_at(Stage(EQUAL).ends_s - early - 0.05)
    assert Stage(EQUAL).granted_at(Stage(EQUAL).ends_s - early + 0.05)


def told(jobs: int = 1, tail_s: float = 0.05, slots: int = 1) -> Stage:
    """A stage whose driver tells of last stages; those of earlier batches took `tail_s`."""
    stage = Stage(EQUAL, slots=slots)
    stage.first.tail = Tail(jobs, tail_s / stage.ends_s)
    return stage


def start_last_stage(stage: Stage) -> None:
    assert stage.first.lease is not None
    stage.first.lease.start_last_stage(stage.timer())


def held_back(stage: Stage) -> bool:
    """Whether the second's batch, granted beside the first's, waits before it takes cores."""
    stage.second.lease = Lease(stage.timer(), 0.0, {}, {}, admitted=ROWS)
    return stage.scheduler.holds_back(stage.second)


def test_a_batch_that_was_granted_early_takes_no_cores_before_the_last_stage_of_the_one_that_runs() -> None:
    stage = told()
    assert stage.granted_at(stage.ends_s - 0.1)
    assert held_back(stage)
    stage.timer.advance(10 * stage.ends_s)
    assert held_back(stage), "however long it takes"
    start_last_stage(stage)
    assert not held_back(stage)


def test_a_batch_that_was_granted_early_waits_for_the_last_of_several_jobs() -> None:
    stage = told(jobs=2)
    start_last_stage(stage)
    assert held_back(stage)
    start_last_stage(stage)
    assert not held_back(stage)


def test_nothing_is_held_back_where_nobody_tells_or_there_is_a_slot_or_the_other_is_done() -> None:
    assert not held_back(Stage(EQUAL))
    two = told(slots=2)
    assert not held_back(two)
    done = told()
    done.first.lease = None
    assert not held_back(done)


def test_a_batch_that_comes_to_its_last_stage_sooner_than_expected_is_overlapped_at_once() -> None:
    stage = told()
    start_last_stage(stage)
    assert stage.granted_at(0.0)


def test_a_long_last_stage_is_overlapped_at_its_end_alone() -> None:
    early = OVERLAP_FIXED * query("second").cost.fixed_s
    stage = told(tail_s=early + 1.0)
    start_last_stage(stage)
    assert not stage.granted_at(0.95)
    assert stage.granted_at(0.1)


def test_time_in_which_a_batch_is_held_back_does_not_count_as_its_own() -> None:
    lease = Lease(10.0, 0.0, {}, {})
    lease.hold(10.5)
    lease.hold(10.7)
    assert lease.ran_s(11.0) == 0.5
    lease.let_go(12.0)
    lease.let_go(12.5)
    assert lease.ran_s(13.0) == pytest.approx(1.5)


def test_how_long_last_stages_take_is_learned_and_forgotten_when_nobody_tells() -> None:
    tail, lease = Tail(), Lease(10.0, 0.0, {}, {})
    lease.start_last_stage(11.5)
    tail.learn(lease, 12.0)
    assert (tail.jobs, tail.fraction) == (1, 0.25)
    shorter = Lease(20.0, 0.0, {}, {})
    shorter.start_last_stage(22.0)
    tail.learn(shorter, 22.0)
    assert tail.fraction == pytest.approx(0.25 * 2 / 3)
    tail.learn(Lease(30.0, 0.0, {}, {}), 32.0)
    assert tail.jobs == 0


def test_a_query_whose_cost_is_not_known_waits_for_the_end() -> None:
    assert not Stage(EQUAL, known=False).granted_at(100.0)


def test_a_class_that_would_be_next_again_is_waited_for_if_another_batch_of_it_waits() -> None:
    heavy = {"first": 1000.0, "second": 1.0}
    stage = Stage(heavy)
    stage.scheduler.turns.charge("second", 1.0)
    assert not stage.granted_at(stage.ends_s)
    for few in (0, 1):
        satisfied = Stage(heavy, waiting=few)
        satisfied.scheduler.turns.charge("second", 1.0)
        assert satisfied.granted_at(satisfied.ends_s)


def test_a_class_whose_batch_ends_with_nothing_more_to_do_saves_nothing_up() -> None:
    stage = Stage(EQUAL, waiting=1)
    stage.scheduler.turns.charge("second", 100.0)  # spare time, which nobody else wanted
    assert stage.granted_at(stage.ends_s)
    stage.scheduler.turns.charge("first", stage.ends_s)
    stage.scheduler.turns.charge("second", 1.0)
    assert stage.scheduler.turns.next_of(EQUAL) == "first"
    stage.scheduler.turns.charge("first", 1.1)
    assert stage.scheduler.turns.next_of(EQUAL) == "second"


def test_a_query_that_is_being_stopped_does_not_compete_for_another_turn() -> None:
    stage = Stage({"first": 1000.0, "second": 1.0})
    stage.first.refused = True
    stage.scheduler.turns.charge("second", 1.0)
    assert stage.granted_at(stage.ends_s)


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


def test_what_waits_is_not_looked_at_while_there_is_no_turn_to_be_had() -> None:
    stage = Stage(EQUAL)
    looked: list[str] = []
    look = stage.scheduler._look
    stage.scheduler._look = lambda q: (looked.append(q.key), look(q))[1]  # type: ignore[func-returns-value]
    assert not stage.granted_at(0.0)
    assert looked == []
    assert stage.granted_at(stage.ends_s)
    assert set(looked) == {"first", "second"}


class Three:
    """Two queries of a class, one of a lower class with a long batch: all three have rows waiting."""

    def __init__(self) -> None:
        self.timer = ManualClock(0.0)
        self.queries = {name: query(name) for name in ("one", "two", "low")}
        for name in ("one", "two"):
            self.queries[name].cls = "high"
        self.queries["low"].draining = True  # so it wants a batch at any moment
        self.rows = {"one": 10_000, "two": 10_000, "low": 40_000}
        weights = {"high": 3.0, "low": 1.0}
        plants = {name: SimpleNamespace(cls=QueryClass(name, 12.0, w)) for name, w in weights.items()}
        classes: Any = {
            name: SimpleNamespace(plant=plant, traits=ManagerTraits()) for name, plant in plants.items()
        }
        capacity = Redistribution(capacity_policy("cqc"), [plant.cls for plant in plants.values()], 1)
        self.turns = Turns(weights)
        self.scheduler = Scheduler(
            classes,
            self.queries,
            self.turns,
            capacity,
            1,
            False,
            self._look,
            lambda at_s: self.timer() - at_s,
            self.timer,
            Paths({}, {}),
            Guard(self.timer),
        )

    def _look(self, q: Query) -> Any:
        q.waiting = cast("Any", SimpleNamespace(rows=self.rows[q.key], oldest_s=0.0))
        q.looked_s = self.timer()
        return q.waiting

    def granted_at(self, moment_s: float) -> bool:
        """Whether the first query of the high class has its turn then."""
        self.timer.advance(moment_s - self.timer())
        for q in self.queries.values():
            q.asked_s = q.pending_s = self.timer()
        return self.scheduler.is_next(self.queries["one"]) is not None

    def longest_s(self, name: str) -> float:
        """A batch that is as much longer than expected as batches usually differ."""
        cost = self.queries[name].cost
        assert cost.error > 0.0
        return cost.batch_s(self.rows[name]) * (1.0 + cost.error)


def test_batches_are_put_off_until_one_that_is_due_later_would_be_late_behind_them() -> None:
    three = Three()
    own_s, low_s = three.longest_s("one"), three.longest_s("low")
    latest_s = LATEST_AT * 12.0 - low_s - 2 * own_s  # behind a batch of the low class, both in a row
    assert own_s < low_s < latest_s
    assert not three.granted_at(latest_s - 0.05)
    assert three.granted_at(latest_s + 0.05)


def test_a_class_goes_before_the_one_that_is_next_if_its_rows_would_be_lost_and_not_a_little_before() -> None:
    three = Three()
    three.turns.charge("high", 1.0)  # so the low class is next by its weight
    own_s, low_s = three.longest_s("one"), three.queries["low"].cost.batch_s(three.rows["low"])
    latest_s = (1.0 - SLACK_FRACTION) * 12.0 - low_s - 2 * own_s
    assert not three.granted_at(LATEST_AT * 12.0 - low_s - 2 * own_s + 0.05), "it wants a batch, and can wait"
    assert not three.granted_at(latest_s - 0.05)
    assert three.granted_at(latest_s + 0.05)


def test_a_class_counts_with_what_it_uses_if_that_is_more_than_its_load_in_full_batches() -> None:
    stage = Stage({"first": 3.0, "second": 1.0})
    reported: list[dict[str, float | None]] = []
    stage.scheduler._capacity.report = lambda usages: reported.append(dict(usages))  # type: ignore[assignment, func-returns-value, return-value]
    used_s = stage.scheduler.turns.used_s
    for _ in range(30):
        stage.scheduler.redistribute(1.0)
        used_s["first"] += 0.3
        used_s["second"] += 3.0
    before, after = reported[0]["second"], reported[-1]["second"]
    assert before is not None
    assert before < 3.0 / 0.25
    assert after == pytest.approx(3.0 / 0.25, rel=0.01)
    assert stage.scheduler._within() == {"first"}, "it may claim three quarters"
