"""Batches overlap at their ends: who is granted before the one that runs is done, and who is not."""

from __future__ import annotations

import logging
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.queries import asks, learned_query, seen_at, waits

from penstock.config.flow import load_flow_config
from penstock.control.core.engine import Engine
from penstock.control.core.leases import Early, LeaseBook, early
from penstock.control.schedule.overlap import LastStages
from penstock.control.schedule.scheduler import Scheduler, Verdict
from penstock.control.schedule.shares import Redistribution
from penstock.control.schedule.snapshot import ClassTraits, Snapshot
from penstock.control.state.guard import Guard
from penstock.control.state.lease import Lease, Outcome, Terms
from penstock.control.state.query import Query
from penstock.control.tuning import TUNING
from penstock.policies.capacity import capacity_policy
from penstock.testing import ManualClock
from penstock.vocabulary.model import QueryClass
from penstock.vocabulary.moment import Moment

ROWS, TARGET_S = 500_000, 12.0
NO_TERMS = Terms(0.0)


def scheduler(weights: dict[str, float], eager: bool = False) -> Scheduler:
    classes = [QueryClass(name, TARGET_S, weight) for name, weight in weights.items()]
    return Scheduler(Redistribution(capacity_policy("cqc"), classes, 1), eager, Guard())


class Stage:
    """A class `first` whose batch runs, and a class `second` that asks. No row grows older."""

    def __init__(
        self, weights: dict[str, float], waiting: int = ROWS, slots: int = 1, known: bool = True
    ) -> None:
        self.timer = ManualClock(0.0)
        self.first, self.second = learned_query("first"), learned_query("second", known=known)
        waits(self.first, waiting, 0.0)
        waits(self.second, ROWS, 0.0)
        asks(self.second)
        self.scheduler = scheduler(weights)
        self.leases = LeaseBook(slots, self.scheduler.turns)
        self.leases.take(self.first, NO_TERMS).log("r", ROWS)
        self.ends_s = self.first.cost.batch_s(ROWS)

    def seen(self) -> Snapshot:
        traits = [ClassTraits(name, 1.0, TARGET_S) for name in ("first", "second")]
        there = [q for q in (self.first, self.second) if not q.flags.refused]
        return seen_at(there, traits, Moment(self.timer(), 0.0))

    def granted_at(self, moment_s: float) -> bool:
        """Whether the second has its turn so much later; it is then begun."""
        self.timer.advance(moment_s)
        now_s, held, own = self.timer(), self.leases.held, early(self.second.cost)
        ending = self.leases.ending(own, now_s)
        if not self.leases.is_free("", own, ending, now_s):
            return False
        charged, returning = self.leases.charged(ending), self.leases.returning(ending)
        verdict = self.scheduler.hold_contest(self.seen(), charged, returning, ending)
        if verdict.winner is not self.second:
            return False
        self.scheduler.begin(verdict, {q.cls for q in held.values() if q not in ending}, ending)
        return True


EQUAL = {"first": 1.0, "second": 1.0}


def test_the_next_batch_is_granted_before_the_one_that_runs_ends_and_not_much_before() -> None:
    early_s = TUNING.guessed_overlap_fixed * learned_query("second").cost.fixed_s
    assert not Stage(EQUAL).granted_at(Stage(EQUAL).ends_s - early_s - 0.05)
    assert Stage(EQUAL).granted_at(Stage(EQUAL).ends_s - early_s + 0.05)


def test_a_batch_that_runs_says_when_the_next_one_may_begin() -> None:
    stage = Stage(EQUAL)
    own = early(stage.second.cost)
    frees_s = stage.leases.frees_in_s(own, stage.timer())
    assert frees_s == pytest.approx(stage.ends_s - TUNING.guessed_overlap_fixed * own.fixed_s)
    assert not stage.granted_at(frees_s - 1e-6)
    assert stage.granted_at(2e-6)
    assert stage.leases.frees_in_s(own, stage.timer()) == math.inf, "it has been free since then"
    assert stage.leases.frees_in_s(Early(), 0.0) == math.inf, "beside what is not known nothing begins early"


def told(jobs: int = 1, tail_s: float = 0.05, slots: int = 1) -> Stage:
    """A stage whose driver tells of last stages; those of earlier batches took `tail_s`."""
    stage = Stage(EQUAL, slots=slots)
    stage.first.costs.last_stages = LastStages(jobs, tail_s / stage.ends_s)
    return stage


def start_last_stage(stage: Stage) -> None:
    assert stage.first.lease is not None
    stage.first.lease.start_last_stage(stage.timer())


def held_back(stage: Stage) -> bool:
    """Whether the second's batch, granted beside the first's, waits before it takes cores."""
    stage.leases.take(stage.second, Terms(stage.timer()))
    return stage.leases.holds_back(stage.second)


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
    done.leases.end(done.first, Outcome.DONE, done.timer())
    assert not held_back(done)


def test_a_batch_that_is_run_again_is_held_back_by_nobody() -> None:
    stage = told()
    stage.leases.take(stage.second, Terms(stage.timer(), replay=True))
    assert not stage.leases.holds_back(stage.second)


def test_a_batch_that_comes_to_its_last_stage_sooner_than_expected_is_overlapped_at_once() -> None:
    stage = told()
    stage.scheduler.turns.charge("first", 1.0)  # so the second is next
    assert not stage.granted_at(0.0)
    start_last_stage(stage)
    assert stage.granted_at(0.0)


def test_a_long_last_stage_is_overlapped_at_its_end_alone() -> None:
    early_s = TUNING.overlap_fixed * learned_query("second").cost.fixed_s
    stage = told(tail_s=early_s + 1.0)
    start_last_stage(stage)
    assert not stage.granted_at(0.95)
    assert stage.granted_at(0.1)


def test_a_batch_that_spark_has_not_planned_yet_is_overlapped_by_nobody() -> None:
    stage = Stage(EQUAL)
    for terms in (NO_TERMS, Terms(0.0, replay=True)):
        lease = stage.leases.take(stage.first, terms)
        if terms.replay:
            lease.log("r", ROWS)
        assert not stage.granted_at(100.0)


def test_time_in_which_a_batch_is_held_back_does_not_count_as_its_own() -> None:
    lease = Lease(Terms(10.0))
    lease.hold(10.5)
    lease.hold(10.7)
    assert lease.ran_s(11.0) == 0.5
    lease.let_go(12.0)
    lease.let_go(12.5)
    assert lease.ran_s(13.0) == pytest.approx(1.5)


def test_how_long_last_stages_take_is_learned_and_forgotten_when_nobody_tells() -> None:
    stages, lease = LastStages(), Lease(Terms(10.0))
    lease.start_last_stage(11.5)
    stages.learn(lease, 12.0)
    assert (stages.jobs, stages.fraction) == (1, 0.25)
    shorter = Lease(Terms(20.0))
    shorter.start_last_stage(22.0)
    stages.learn(shorter, 22.0)
    assert stages.fraction == pytest.approx(0.25 * 2 / 3)
    stages.learn(Lease(Terms(30.0)), 32.0)
    assert stages.jobs == 0


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
    turns = stage.scheduler.turns
    turns.charge("second", 100.0)  # spare time, which nobody else wanted
    assert stage.granted_at(stage.ends_s)
    turns.charge("first", stage.ends_s)
    turns.charge("second", 1.0)
    assert turns.next_of(EQUAL) == "first"
    turns.charge("first", 1.1)
    assert turns.next_of(EQUAL) == "second"


def test_a_query_that_is_being_stopped_does_not_compete_for_another_turn() -> None:
    stage = Stage({"first": 1000.0, "second": 1.0})
    stage.first.flags.refused = True
    stage.scheduler.turns.charge("second", 1.0)
    assert stage.granted_at(stage.ends_s)


def test_a_free_slot_needs_no_end() -> None:
    assert Stage(EQUAL, slots=2).granted_at(0.0)


def test_a_batch_that_is_to_run_again_goes_before_all_others() -> None:
    stage, again = Stage(EQUAL), learned_query("second", "again")
    assert not stage.leases.takes_slot_again(again, "token", stage.timer())
    stage.leases.end(stage.first, Outcome.DONE, stage.timer())
    assert not stage.granted_at(0.0)
    stage.leases.stop_waiting(again, stage.timer())
    assert not stage.granted_at(TUNING.stale_s - 0.01), "it may only be asking anew"
    assert stage.granted_at(0.02)
    assert stage.leases.takes_slot_again(again, "token", stage.timer())


def test_the_time_of_a_lease_is_booked_however_it_ends() -> None:
    for outcome in Outcome:
        stage = Stage(EQUAL)
        stage.leases.end(stage.first, outcome, 7.0)
        assert stage.scheduler.turns.used_s["first"] == 7.0
        assert (stage.first.lease, stage.first.turn.granted_s) == (None, 0.0)
        assert stage.first.turn.batches == (1 if outcome.ran else 0)
        assert stage.leases.held == {}


def test_rows_that_are_far_too_old_are_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = load_flow_config({"log": tmp_path, "classes": {"first": {"target": 2.0}}})
    engine, one = Engine(config, Moment(0.0, 0.0)), learned_query("first")
    old_s, governed = TUNING.old_targets * 2.0, engine.classes["first"]
    with caplog.at_level(logging.WARNING):
        engine.granting._warn_of_late(one, old_s - 0.1, governed, 10)
        engine.granting._warn_of_late(one, old_s, governed, 0)
        assert caplog.text == ""
        engine.granting._warn_of_late(one, old_s, governed, 10)
        engine.granting._warn_of_late(one, old_s, governed, 10)
    assert caplog.text.count("sheds 10 rows as late") == 1


def test_what_waits_is_not_looked_at_while_there_is_no_turn_to_be_had(virtual: Any) -> None:
    classes = {"first": {"target": 600.0}, "second": {"target": 600.0}}
    cluster = virtual(classes, tuning=replace(TUNING, eager=True))
    slow, log = virtual.machine(fixed_s=5.0), virtual.stream(cluster, 1000.0, 60.0)
    cluster.add("first", "first", log, slow)
    cluster.run(1.0)
    cluster.add("second", "second", log, slow)
    looked, look = list[float](), cluster.engine.look

    def counted(at: Moment) -> Snapshot:
        looked.append(at.timer_s)
        found: Snapshot = look(at)
        return found

    cluster.engine.look = counted
    cluster.run(2.0)
    assert set(cluster.engine.questions.open) == {"second"}
    assert looked == []
    cluster.run(4.0)
    assert looked != []
    assert len(cluster.queries["second"].batches) == 1


class Three:
    """Two queries of a class, one of a lower class with a long batch: all three have rows waiting."""

    def __init__(self) -> None:
        self.timer = ManualClock(0.0)
        self.queries = {name: learned_query("high", name) for name in ("one", "two")}
        self.queries["low"] = learned_query("low")
        self.queries["low"].flags.draining = True  # so it wants a batch at any moment
        self.rows = {"one": 10_000, "two": 10_000, "low": 40_000}
        for name, query in self.queries.items():
            waits(query, self.rows[name], 0.0)
            asks(query)
        weights = {"high": 3.0, "low": 1.0}
        self.traits = [ClassTraits(name, weight, TARGET_S) for name, weight in weights.items()]
        self.scheduler = scheduler(weights)

    def verdict_at(self, moment_s: float) -> Verdict:
        """What comes of a contest then."""
        self.timer.advance(moment_s - self.timer())
        at = Moment(self.timer(), self.timer())
        return self.scheduler.hold_contest(seen_at(self.queries.values(), self.traits, at), [], [], [])

    def granted_at(self, moment_s: float) -> bool:
        """Whether the first query of the high class has its turn then."""
        return self.verdict_at(moment_s).winner is self.queries["one"]

    def longest_s(self, name: str) -> float:
        """A batch that is as much longer than expected as batches usually differ."""
        cost = self.queries[name].cost
        assert cost.error > 0.0
        return cost.batch_s(self.rows[name]) * (1.0 + cost.error)


def test_batches_are_put_off_until_one_that_is_due_later_would_be_late_behind_them() -> None:
    three = Three()
    own_s, low_s = three.longest_s("one"), three.longest_s("low")
    latest_s = (
        TUNING.latest_at * TARGET_S - low_s - 2 * own_s
    )  # behind a batch of the low class, both in a row
    assert own_s < low_s < latest_s
    assert not three.granted_at(latest_s - 0.05)
    assert three.granted_at(latest_s + 0.05)


def test_a_class_goes_before_the_one_that_is_next_if_its_rows_would_be_lost_and_not_a_little_before() -> None:
    three = Three()
    three.scheduler.turns.charge("high", 1.0)  # so the low class is next by its weight
    own_s, low_s = three.longest_s("one"), three.queries["low"].cost.batch_s(three.rows["low"])
    can_wait_s = TUNING.latest_at * TARGET_S - low_s - 2 * own_s
    latest_s = (1.0 - TUNING.slack_fraction) * TARGET_S - low_s - 2 * own_s
    assert not three.granted_at(can_wait_s + 0.05), "it wants a batch, and can wait"
    assert not three.granted_at(latest_s - 0.05)
    assert three.granted_at(latest_s + 0.05)


def test_a_contest_names_the_moment_at_which_another_query_wants_a_turn() -> None:
    three = Three()
    verdict = three.verdict_at(1.0)
    assert (verdict.winner, verdict.classes) == (three.queries["low"], {"low"})
    assert verdict.again_s > 1.0
    assert three.verdict_at(1.0 + verdict.again_s - 1e-6).classes == {"low"}
    assert three.verdict_at(1.0 + verdict.again_s + 1e-6).classes == {"low", "high"}


def alone(**flags: bool) -> tuple[Query, Scheduler]:
    """A query that asks and has nothing but windows that wait."""
    one = learned_query("high", "one")
    one.turn.windows_wait, one.flags.draining = flags.get("windows", True), flags.get("draining", False)
    asks(one)
    return one, scheduler({"high": 1.0})


def wants_in_s(one: Query, at: Scheduler, now_s: float) -> float:
    """In how many seconds a query wants a turn that is alone; 0 if it has won one."""
    traits, now = [ClassTraits("high", 1.0, TARGET_S)], Moment(now_s, now_s)
    verdict = at.hold_contest(seen_at([one], traits, now), [], [], [])
    assert verdict.winner in (None, one)
    return verdict.again_s if verdict.winner is None else 0.0


def test_windows_wait_half_a_target_for_a_tick_and_not_at_all_while_a_log_is_drained() -> None:
    one, at = alone()
    one.turn.done_s = 100.0
    assert wants_in_s(one, at, 101.0) == pytest.approx(5.0)
    assert wants_in_s(one, at, 106.0) == 0.0
    assert wants_in_s(*alone(draining=True), 101.0) == 0.0
    assert wants_in_s(*alone(windows=False), 1000.0) == math.inf


def test_a_query_that_is_alone_starts_when_its_rows_are_worth_a_batch() -> None:
    one, at = alone(windows=False)
    waits(one, 1000, 100.0)
    worth_s = TUNING.worth_at * TARGET_S - one.cost.batch_s(1000)
    assert wants_in_s(one, at, 100.0) == pytest.approx(worth_s)
    assert wants_in_s(one, at, 100.0 + worth_s + 1e-6) == 0.0
    assert wants_in_s(one, scheduler({"high": 1.0}, eager=True), 100.0) == 0.0
    waits(one, 10_000_000, 100.0)
    assert wants_in_s(one, at, 100.0) == 0.0, "its turn is full"


def test_a_class_counts_with_what_it_uses_if_that_is_more_than_its_load_in_full_batches() -> None:
    stage = Stage({"first": 3.0, "second": 1.0})
    reported: list[dict[str, float | None]] = []
    stage.scheduler.capacity.report = lambda usages: reported.append(dict(usages))  # type: ignore[method-assign]
    used_s = stage.scheduler.turns.used_s
    for _ in range(60):
        stage.scheduler.redistribute(stage.seen(), 1.0)
        used_s["first"] += 0.3
        used_s["second"] += 3.0
    before, after = reported[0]["second"], reported[-1]["second"]
    assert before is not None
    assert before < 3.0 / 0.25
    assert after == pytest.approx(3.0 / 0.25, rel=0.01)
    assert stage.scheduler._within() == {"first"}, "it may claim three quarters"
