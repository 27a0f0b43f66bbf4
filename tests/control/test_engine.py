"""The engine's protocol, question by question: leases, turns, cuts, ticks, books, commands."""

from __future__ import annotations

import shutil
from typing import Any

import numpy as np
import pytest
from tests.control.desk import SCHEMA, Desk, rows
from tests.segments import headers

from penstock.control.core.events import (
    Drain,
    LastStageStarted,
    MarkWindowed,
    Publish,
    QuestionEnded,
    Refuse,
    RemoveClass,
    Woke,
)
from penstock.control.schedule.overlap import LastStages
from penstock.control.state.lease import Terms
from penstock.control.tuning import TUNING
from penstock.grants.offset import Books, Offset
from penstock.sim.microbatch import Lab
from penstock.streams.embedded.log import EmbeddedLog
from penstock.streams.layout import LogConfig
from penstock.vocabulary.errors import InvalidInputError, UnknownNameError

FIRST_ROWS = TUNING.first_rows
GOLD = {"gold": {"target": "2s"}}


@pytest.fixture
def desk(virtual: Lab) -> Desk:
    return Desk(virtual, GOLD)


def test_a_reader_without_rows_gets_nothing_and_one_with_rows_gets_them(desk: Desk) -> None:
    log = desk.log("readings")
    desk.join("a", log)
    assert desk.ask("a") is None
    log.append(rows(300))
    answer = desk.batch("a")
    assert (dict(answer.end), dict(answer.late), answer.plan.keeps_all, answer.tick) == (
        {0: 300},
        {0: 0},
        True,
        False,
    )
    assert desk.ask("a") is None, "and then there is nothing again"
    assert desk.rows() == {"offered": 300, "admitted": 300, "shed": 0, "waiting": 0}


def test_the_first_batches_are_small_however_much_waits(desk: Desk) -> None:
    log = desk.log("readings")
    log.append(rows(100_000))
    desk.join("a", log)
    for number in range(1, 4):
        assert desk.batch("a").end[0] == number * FIRST_ROWS
    assert desk.batch("a").end[0] == 3 * FIRST_ROWS + 4 * FIRST_ROWS, "then each is at most four times larger"


def test_one_slot_is_held_by_one_query_until_its_next_question(desk: Desk) -> None:
    log = desk.log("readings")
    log.append(rows(5000))
    desk.join("a", log)
    desk.join("b", log)
    answer = desk.ask("a")
    assert answer is not None
    assert desk.ask("b") is None
    assert desk.plan("a", answer)
    desk.pass_s(0.2)
    assert desk.answer("b") is None
    assert desk.ask("a") is None, "the batch is done, and of two queries with rows of one age b has waited"
    assert desk.answer("b") is not None


@pytest.mark.parametrize("planned", [False, True], ids=["proposed", "planned"])
def test_a_connection_that_ends_frees_the_slot_also_while_it_holds_the_grant(
    desk: Desk, planned: bool
) -> None:
    log = desk.log("readings")
    log.append(rows(5000))
    desk.join("a", log)
    desk.join("b", log)
    answer = desk.ask("a")
    assert answer is not None
    if planned:
        desk.plan("a", answer)
    assert desk.ask("b") is None
    desk.pass_s(0.3)
    desk.leave(desk.connections["a"])
    assert desk.answer("b") is not None
    assert desk.engine.scheduler.turns.used_s["gold"] == pytest.approx(0.3), (
        "what it used is charged all the same"
    )
    taken = FIRST_ROWS if planned else 0
    assert desk.rows() == {"offered": 10_000, "admitted": taken, "shed": 0, "waiting": 10_000 - taken}
    desk.leave(desk.connections["a"])
    desk.leave(object())


def test_a_query_whose_log_is_gone_frees_its_slot_too(desk: Desk) -> None:
    first, second = desk.log("first"), desk.log("second")
    desk.join("a", first)
    desk.join("b", second)
    first.append(rows(10))
    second.append(rows(10))
    assert desk.ask("a") is not None
    first.close()
    shutil.rmtree(first.directory)
    desk.leave(desk.connections["a"])
    assert desk.queries["a"].lease is None
    desk.pass_s(1.0)
    assert desk.ask("b") is not None
    found = desk.found()["queries"]["a"]
    assert (found["offered"], found["waiting"]) == (10, 10), "as far as it was known"


def test_a_grant_that_spark_never_logged_counts_for_nothing(desk: Desk) -> None:
    log = desk.log("readings")
    log.append(rows(5000))
    desk.join("a", log)
    first = desk.ask("a")
    assert desk.rows() == {"offered": 5000, "admitted": 0, "shed": 0, "waiting": 5000}
    again = desk.ask("a")  # Spark came back with the same start
    assert first is not None
    assert again is not None
    assert again.end == first.end
    assert desk.plan("a", again)
    assert desk.rows() == {"offered": 5000, "admitted": FIRST_ROWS, "shed": 0, "waiting": 4000}
    query = desk.queries["a"]
    assert (query.turn.batches, query.costs.model.state.seen) == (0, 0), "nothing was learned from it"


def test_a_grant_counts_when_a_later_start_shows_it_though_nobody_said_it_was_planned(desk: Desk) -> None:
    log = desk.log("readings")
    log.append(rows(5000))
    desk.join("a", log)
    answer = desk.ask("a")
    assert answer is not None
    desk.offsets["a"], _ = desk.proposed("a", answer)
    desk.pass_s(0.2)
    desk.ask("a")
    assert desk.rows()["admitted"] == FIRST_ROWS
    assert desk.queries["a"].turn.batches == 1


def test_a_batch_that_spark_runs_again_takes_a_slot_first_and_is_not_learned_from(desk: Desk) -> None:
    log = desk.log("readings")
    log.append(rows(5000))
    desk.join("a", log)
    answer = desk.ask("a")
    assert answer is not None
    assert desk.plan("a", answer)
    replayed = Offset("b", {0: 0}, {0: 700}, grant=5, books=Books(700))
    desk.offsets["b"] = replayed
    desk.join("b", log)
    assert not desk.planned("b", replayed, 700), "a holds the only slot"
    desk.pass_s(0.2)
    desk.put("a")
    assert desk.planned("b", replayed, 700)
    assert desk.answer("a") is None, "now b holds it"
    assert desk.planned("b", replayed, 700), "said twice it counts once"
    desk.pass_s(5.0)
    desk.put("b", replayed)
    assert desk.queries["b"].costs.model.state.seen == 0
    assert desk.queries["b"].turn.batches == 1
    assert desk.found()["queries"]["b"]["admitted"] == 700


def test_a_batch_that_is_held_back_counts_once_it_may_take_cores(desk: Desk) -> None:
    log, timer = desk.log("readings"), desk.cluster.timer
    log.append(rows(5000))
    for reader in ("a", "b"):
        desk.join(reader, log)
    desk.batch("a")
    desk.queries["a"].costs.last_stages = LastStages(jobs=1)
    early = desk.engine.leases.take(desk.queries["b"], Terms(timer(), {"b": {0: 700}}, {"b": {}}))
    offset = Offset("b", {0: 0}, {0: 700}, grant=1, books=Books(700))

    def admitted() -> int:
        found: int = desk.found()["queries"]["b"]["admitted"]
        return found

    assert not desk.planned("b", offset, 700)
    desk.pass_s(0.5)
    assert not desk.planned("b", offset, 700), "said again it waits all the same"
    assert admitted() == 0
    desk.cluster.handle(LastStageStarted(desk.cluster.at(), frozenset({"token of a"})))
    assert desk.may_proceed("b"), "and hears of it without asking again"
    assert admitted() == 700
    assert early.ran_s(timer()) == pytest.approx(0.0), "what it waited is not its cost"


def test_the_readers_of_a_query_get_one_cut_and_the_second_is_answered_at_once(desk: Desk) -> None:
    left, right = desk.log("left", partitions=2), desk.log("right")
    for _ in range(10):
        for log, p in ((left, 0), (left, 1), (right, 0)):
            log.append(rows(60), p)
        desk.pass_s(0.05)
    desk.join("l", left, query="join", slot="0")
    desk.join("r", right, query="join", slot="1")
    one = desk.ask("l")
    two = desk.ask("r")
    assert one is not None
    assert two is not None
    assert desk.queries["join"].question.leader == "l"
    last = max(arrival(left, p, one.end[p] - 1) for p in (0, 1))
    assert sum(one.end.values()) + sum(two.end.values()) == FIRST_ROWS, "the limit is for both together"
    for log, answer in ((left, one), (right, two)):
        for p, end in answer.end.items():
            assert arrival(log, p, end - 1) <= last
            assert arrival(log, p, end) >= last, "nothing older than the cut goes on waiting"
    assert desk.plan("l", one)
    assert desk.plan("r", two)
    desk.pass_s(0.2)
    assert desk.ask("l") is not None, "the leader's next question ends the batch of both"
    assert desk.queries["join"].turn.batches == 1
    assert desk.queries["join"].costs.model.state.seen == 1


def arrival(log: EmbeddedLog, partition: int, position: int) -> int:
    return headers(log, partition, position, position + 1)[0].arrival_max_us


def test_only_the_first_reader_of_a_query_can_open_a_grant(desk: Desk) -> None:
    left, right = desk.log("left"), desk.log("right")
    desk.join("l", left, query="join", slot="0")
    desk.join("r", right, query="join", slot="1")
    assert desk.ask("l") is None, "nothing waits"
    desk.cluster.handle(QuestionEnded(desk.cluster.at(), "l"))
    right.append(rows(50))
    assert desk.ask("r") is None
    one = desk.ask("l")
    assert one is not None
    assert one.tick, "its own log is empty: an offset that changes, so that Spark runs the batch"
    two = desk.ask("r")
    assert two is not None
    assert two.end == {0: 50}


def test_a_reader_that_joins_during_a_batch_waits_for_the_next(desk: Desk) -> None:
    left, right = desk.log("left"), desk.log("right")
    left.append(rows(50))
    right.append(rows(50))
    desk.join("l", left, query="join", slot="0")
    assert desk.ask("l") is None, "Spark asks the others before it asks again"
    assert desk.ask("l") is not None
    desk.join("r", right, query="join", slot="1")
    assert desk.ask("r") is None
    assert desk.rows()["waiting"] == 100


def test_a_leader_that_leaves_is_followed_by_whoever_asks_first(desk: Desk) -> None:
    left, right = desk.log("left"), desk.log("right")
    right.append(rows(50))
    desk.join("l", left, query="join", slot="0")
    desk.join("r", right, query="join", slot="1")
    desk.ask("l")
    desk.leave(desk.connections["l"])
    assert desk.ask("r") is None, "nor the other, now that it is alone, at its first question"
    assert desk.ask("r") is not None


def test_a_reader_that_connects_anew_goes_on_where_it_was_and_its_old_connection_ends_nothing(
    desk: Desk,
) -> None:
    log = desk.log("readings")
    log.append(rows(5000))
    desk.join("a", log)
    desk.batch("a")
    old = desk.connections["a"]
    desk.join("a", log)
    desk.leave(old)
    assert desk.queries["a"].lease is not None, "its batch still runs"
    assert desk.batch("a").end[0] == 2 * FIRST_ROWS
    assert desk.rows()["admitted"] == 2 * FIRST_ROWS


def test_a_reader_that_is_gone_stays_in_the_books_and_comes_back_to_them(desk: Desk) -> None:
    log = desk.log("readings")
    log.append(rows(1500))
    desk.join("a", log)
    desk.batch("a")
    desk.leave(desk.connections["a"])
    log.append(rows(10))
    desk.pass_s(60.0)
    assert desk.rows() == {"offered": 1500, "admitted": 1000, "shed": 0, "waiting": 500}, "as it left"
    assert desk.found()["oldest_waiting_s"] < 1.0
    desk.join("a", log)
    assert desk.rows() == {"offered": 1510, "admitted": 1000, "shed": 0, "waiting": 510}


def test_a_query_that_was_stopped_or_drained_and_comes_back_is_governed_again(desk: Desk) -> None:
    log = desk.log("readings")
    log.append(rows(50))
    desk.join("a", log)
    query = desk.queries["a"]
    desk.command(Refuse(desk.token("a")))
    desk.command(Drain(desk.token("a")))
    desk.leave(desk.connections["a"])
    desk.join("a", log)
    assert desk.queries["a"] is query
    assert not query.flags.draining
    assert desk.ask("a") is not None


def learned(desk: Desk, log: EmbeddedLog, reader: str = "a") -> None:
    """Batches until the query's cost is known: 0.2 s, and 50 us a row."""
    for size in (100, 100, 100, 1000, 4000, 16_000):
        log.append(rows(size))
        desk.pass_s(1.0)
        desk.batch(reader, took_s=0.2 + size * 50e-6)
        desk.ask(reader)
    assert desk.queries[reader].cost.ready


def test_a_query_that_another_spark_application_goes_on_with_is_learned_anew(desk: Desk) -> None:
    log = desk.log("readings")
    desk.join("a", log)
    learned(desk, log)
    query = desk.queries["a"]
    for driver, ready in (("", True), ("another", False)):
        for reader in list(desk.engine.members.readers.values()):
            desk.leave(reader.connection)
        desk.join("a", log, driver=driver)
        assert query.cost.ready is ready
    assert query.costs.largest_rows == 0


def test_rows_of_a_batch_that_was_set_aside_were_not_processed(desk: Desk) -> None:
    log = desk.log("readings")
    log.append(rows(50))
    desk.join("a", log)
    answer = desk.ask("a")
    assert answer is not None
    offset, admitted = desk.proposed("a", answer)
    assert desk.planned("a", offset, admitted, set_aside=True)
    plant = desk.engine.classes["gold"].plant
    assert (plant.period.admitted_rows, plant.period.shed_rows) == (0, 0)


@pytest.mark.parametrize("manager", ["aloma", "seamless", "ctrl"])
def test_nothing_of_a_query_is_shed_before_its_cost_is_known_whatever_the_manager(
    virtual: Lab, manager: str
) -> None:
    desk = Desk(virtual, {"gold": {"target": "2s", "manager": manager}})
    log = desk.log("readings")
    log.append(rows(500))
    desk.join("a", log)
    desk.engine.classes["gold"].plant.keep_fraction = 0.2
    assert desk.batch("a").plan.keeps_all


def test_a_manager_begins_with_the_part_of_the_capacity_that_its_class_has(virtual: Lab) -> None:
    told = {"target": "2s", "manager": "ctrl", "priority": 3, "settings": {"headroom": 0.2}}
    desk = Desk(virtual, {"gold": {"target": "2s", "manager": "aloma", "priority": 6}, "told": told})
    scales = {name: governed.plant.capacity_scale for name, governed in desk.engine.classes.items()}
    assert scales == pytest.approx({"gold": 2 / 3, "told": 1.0})
    desk.change("told", {"manager": "seamless"})
    assert desk.engine.classes["told"].plant.capacity_scale == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("target", "warning"),
    [
        ("300ms", "class gold: no allocation meets its target of 0.3 s, at least 0"),
        ("600ms", "class gold: its target of 0.6 s is below the measured floor of 1"),
    ],
)
def test_a_target_that_cannot_be_met_is_said_once_when_costs_are_known(
    virtual: Lab, caplog: pytest.LogCaptureFixture, target: str, warning: str
) -> None:
    desk = Desk(virtual, {"gold": {"target": target}})
    log = desk.log("readings")
    desk.join("a", log)
    desk.pass_s(5.0)
    desk.cluster.handle(Woke(desk.cluster.at()))
    assert caplog.messages == []
    learned(desk, log)
    for _ in range(3):
        desk.pass_s(5.0)
        desk.cluster.handle(Woke(desk.cluster.at()))
    assert [message for message in caplog.messages if message.startswith(warning)] == caplog.messages
    assert len(caplog.messages) == 1
    found = desk.found()
    assert found["feasible"] is (target == "600ms")
    assert (found["least_target_s"] is None) is (target == "600ms")


def test_rows_that_were_trimmed_unread_are_in_the_books_as_shed(desk: Desk) -> None:
    config = LogConfig(segment_rows=100, file_bytes=2000)
    small = EmbeddedLog.create(desk.folder / "small", SCHEMA, config, clock=desk.cluster.clock)
    log = desk.open.enter_context(small)
    for _ in range(5):
        log.append(rows(200))
    left = log.trim(0, 500)
    assert left > 0
    desk.offsets["a"] = Offset.initial("a", {0: 0})
    desk.join("a", log)
    assert desk.rows() == {"offered": 1000, "admitted": 0, "shed": 0, "waiting": 1000}
    desk.batch("a")
    assert desk.rows() == {"offered": 1000, "admitted": 1000 - left, "shed": left, "waiting": 0}
    reader = desk.found()["queries"]["a"]["readers"]["a"]
    assert (reader["expired"], reader["stream"]) == (left, "small")


def test_one_tick_follows_data_and_then_none_until_there_is_more(desk: Desk) -> None:
    log = desk.log("readings")
    desk.join("a", log)
    for _ in range(100):
        desk.pass_s(0.1)
        assert desk.ask("a") is None, "without data there is no tick"
    log.append(rows(50))
    desk.batch("a")
    ticks = 0
    for _ in range(100):
        answer = desk.ask("a")
        if answer is not None:
            assert (answer.tick, dict(answer.end)) == (True, {0: 50})
            assert desk.plan("a", answer)
            ticks += 1
            assert desk.cluster.timer() - desk.queries["a"].turn.done_s >= 0.0
        desk.pass_s(0.1)
    assert ticks == 1
    assert desk.offsets["a"].tick
    assert desk.rows() == {"offered": 50, "admitted": 50, "shed": 0, "waiting": 0}


def test_a_tick_waits_for_half_the_target_unless_the_query_is_drained(desk: Desk) -> None:
    log = desk.log("readings")
    desk.join("a", log)
    log.append(rows(50))
    desk.batch("a")
    assert desk.ask("a") is None
    desk.pass_s(0.9)
    assert desk.ask("a") is None
    desk.command(Drain(desk.token("a")))
    answer = desk.answer("a")
    assert answer is not None
    assert answer.tick


@pytest.mark.parametrize("replayed", [False, True], ids=["last batch committed", "last batch run again"])
def test_after_a_restart_of_the_control_plane_windows_that_wait_for_a_tick_get_one(
    desk: Desk, replayed: bool
) -> None:
    log = desk.log("readings")
    log.append(rows(50))
    desk.offsets["a"] = Offset("a", {0: 0}, {0: 50}, grant=1, books=Books(50))
    desk.join("a", log)
    if replayed:
        assert desk.planned("a", desk.offsets["a"], 50)
        desk.pass_s(0.2)
        desk.ask("a")
        desk.pass_s(1.0)
    answer = desk.ask("a")
    assert answer is not None
    assert answer.tick
    assert desk.plan("a", answer)
    desk.pass_s(5.0)
    assert desk.ask("a") is None
    desk.leave(desk.connections["a"])
    desk.join("a", log)
    desk.pass_s(5.0)
    assert desk.ask("a") is None, "the last offset is a tick: nothing waits for one"


def test_a_query_that_is_refused_gets_no_grant_and_one_that_is_drained_gets_all_it_has(desk: Desk) -> None:
    log = desk.log("readings")
    log.append(rows(50))
    desk.join("a", log)
    desk.command(Refuse(desk.token("a")))
    assert desk.ask("a") is None
    desk.pass_s(60.0)  # far too late by now
    desk.command(Drain(desk.token("a")))
    desk.command(Refuse(desk.token("a"), on=False))
    answer = desk.answer("a")
    assert answer is not None
    assert (dict(answer.end), dict(answer.late), answer.plan.keeps_all) == ({0: 50}, {0: 0}, True)


def test_members_that_break_a_rule_are_refused_and_nothing_remains_of_them(virtual: Lab) -> None:
    desk = Desk(virtual, {**GOLD, "bulk": {"target": "30s"}, "keyed": {"target": "2s", "sampling": "key"}})
    log = desk.log("readings")
    with pytest.raises(UnknownNameError, match="class must be one of bulk, gold, keyed; got: 'golden'"):
        desk.join("a", log, "golden")
    desk.join("a", log, "gold", query="fraud", slot="0")
    with pytest.raises(InvalidInputError, match="query fraud has one class; got: gold and bulk"):
        desk.join("b", log, "bulk", query="fraud", slot="1")
    with pytest.raises(InvalidInputError, match=r"the readers of flow.query\('fraud'\) are used in one"):
        desk.join("c", log, "gold", query="fraud", slot="0")
    with pytest.raises(InvalidInputError, match="sampling by key needs a stream with a key; got: readings"):
        desk.join("d", log, "keyed")
    desk.join("e", desk.log("sensors", key="sensor"), "keyed")
    assert sorted(desk.engine.members.readers) == ["a", "e"]
    with pytest.raises(InvalidInputError, match="sampling by key needs a stream with a key"):
        desk.change("gold", {"sampling": "key"})
    assert desk.engine.classes["gold"].config.sampling == "auto"


def test_a_class_can_change_while_it_runs(virtual: Lab) -> None:
    desk = Desk(virtual, {"gold": {"target": "2s", "manager": "aloma"}, "bulk": {"target": "30s"}})
    engine = desk.engine
    before = engine.classes["gold"].period_s
    desk.change("gold", {"target": "4s", "priority": 6, "min_keep_fraction": 0.25})
    changed = engine.classes["gold"]
    assert changed.plant.cls.delay_target_s == 4.0
    assert changed.period_s == pytest.approx(2 * before), "the period belongs to the target"
    assert engine.scheduler.turns.weights == pytest.approx({"gold": 6 / 7, "bulk": 1 / 7})
    assert changed.cycle.limits.min_keep_fraction == 0.25
    desk.change("gold", {"manager": "deadline"})
    assert engine.classes["gold"].traits.gives_grants
    assert engine.classes["gold"].plant is changed.plant, "what was measured stays"
    desk.change("gold", {"dry_run": True})
    assert engine.classes["gold"].cycle.dry_run


@pytest.mark.parametrize(
    "changes",
    [{"target": "-1s"}, {"priority": 0}, {"manager": "alomma"}, {"targt": "2s"}, {"settings": {"x": 1}}],
)
def test_a_change_that_breaks_a_rule_changes_nothing(virtual: Lab, changes: dict[str, Any]) -> None:
    desk = Desk(virtual, {"gold": {"target": "2s"}, "bulk": {"target": "2s"}})
    before = desk.engine.classes["gold"]
    with pytest.raises(InvalidInputError):
        desk.change("gold", changes)
    assert desk.engine.classes["gold"] is before
    assert before.plant.cls.delay_target_s == 2.0
    assert desk.engine.scheduler.turns.weights == {"gold": 0.5, "bulk": 0.5}
    with pytest.raises(UnknownNameError, match="did you mean 'gold'"):
        desk.change("gald", {})


# -- shared streams, and classes that go ---------------------------------------------------------

THREE = {
    "gold": {"target": "2s", "priority": 6},
    "silver": {"target": "2s", "priority": 3},
    "bulk": {"target": "30s", "priority": 1},
}


def test_the_highest_class_that_reads_a_shared_stream_owns_it(virtual: Lab) -> None:
    desk = Desk(virtual, THREE)
    hot = desk.log("hot")
    desk.command(Publish(str(hot.directory), "silver"))
    desk.join("low", hot, "bulk")
    with pytest.raises(
        InvalidInputError, match=r"hot is owned by silver \(priority 3\); got: class gold \(priority 6\)"
    ):
        desk.join("high", hot, "gold")
    assert set(desk.engine.members.readers) == {"low"}
    with pytest.raises(InvalidInputError, match="owned by the highest class"):
        desk.change("bulk", {"priority": 4})
    assert desk.engine.classes.priorities["bulk"] == 1
    desk.command(Publish(str(hot.directory), "gold"))
    desk.join("high", hot, "gold")
    with pytest.raises(InvalidInputError, match="hot is owned by bulk"):
        desk.command(Publish(str(hot.directory), "bulk"))
    assert desk.engine.members.shared.owned("gold") == [str(hot.directory)], "a refusal changes nothing"


def test_a_class_whose_stream_others_read_is_not_removed_and_queries_run_on(virtual: Lab) -> None:
    desk = Desk(virtual, THREE)
    readings, hot = desk.log("readings"), desk.log("hot")
    desk.join("writer", readings, "gold")
    desk.command(Publish(str(hot.directory), "gold"))
    desk.join("reader", hot, "bulk")
    with pytest.raises(
        InvalidInputError, match=r"owns no shared stream that others read; got: hot \(class bulk\)"
    ):
        desk.command(RemoveClass("gold"))
    assert set(desk.engine.members.readers) == {"writer", "reader"}
    assert set(desk.engine.classes) == set(THREE)
    desk.leave(desk.connections["reader"])
    with pytest.raises(InvalidInputError, match="has no running queries; got: writer; hint: stop them"):
        desk.command(RemoveClass("gold"))


def test_a_class_that_is_removed_leaves_its_share_to_the_others_and_its_books(virtual: Lab) -> None:
    desk = Desk(virtual, THREE)
    log = desk.log("readings")
    desk.join("a", log, "gold")
    log.append(rows(100))
    desk.pass_s(1.0)
    desk.batch("a", took_s=0.5)
    assert desk.ask("a") is None
    desk.leave(desk.connections["a"])
    desk.command(RemoveClass("gold"))
    assert desk.engine.classes["silver"].plant.capacity_scale == pytest.approx(0.75)
    desk.pass_s(1.0)
    desk.cluster.handle(Woke(desk.cluster.at()))
    assert desk.engine.scheduler.turns.weights == pytest.approx({"silver": 0.75, "bulk": 0.25})
    seen = desk.status()
    assert set(seen.classes) == {"silver", "bulk"}
    assert seen.removed["gold"].admitted == 100
    with pytest.raises(UnknownNameError, match="class must be one of"):
        desk.join("b", log, "gold")
    desk.command(RemoveClass("bulk"))
    with pytest.raises(InvalidInputError, match="a flow has at least one class"):
        desk.command(RemoveClass("silver"))


def test_the_floor_of_a_target_is_known_once_costs_are(desk: Desk) -> None:
    log = desk.log("readings")
    desk.join("a", log)
    assert desk.engine.floor_s("gold") is None
    learned(desk, log)
    floor_s = desk.engine.floor_s("gold")
    assert floor_s is not None
    # a turn of twice the fixed cost, and a cycle of one; the least batch that was learned from took 0.25 s
    assert 4 * 0.15 < floor_s < 4 * 0.3
    with pytest.raises(InvalidInputError, match=rf"the measured floor of {floor_s:.2f} s; got: 0.1 s"):
        desk.change("gold", {"target": "100ms"})


def test_a_status_is_made_of_json_values_and_says_what_happened(desk: Desk) -> None:
    import json

    log = desk.log("readings")
    log.append(rows(300))
    desk.join("a", log)
    desk.batch("a", took_s=0.5)
    desk.ask("a")
    log.append(rows(20))
    desk.pass_s(0.25)
    found = json.loads(json.dumps(desk.status().to_json()))["classes"]["gold"]
    assert (found["target_s"], found["share"], found["used_s"]) == (2.0, 1.0, pytest.approx(0.5))
    assert found["delay"]["count"] == 300
    assert found["delay"]["max_s"] == pytest.approx(0.5)
    assert found["oldest_waiting_s"] == pytest.approx(0.25)
    assert found["queries"]["a"]["batches"] == 1


def test_delays_are_measured_from_arrival_to_the_next_question(desk: Desk) -> None:
    log = desk.log("readings")
    stamps = (np.array([0.0, 0.2, 0.4]) + desk.cluster.clock() - 0.4) * 1e6
    for stamp in stamps:
        log.append(rows(10), arrival_us=np.full(10, int(stamp)))
    desk.join("a", log)
    desk.batch("a", took_s=1.0)
    desk.ask("a")
    delay = desk.engine.classes["gold"].plant.delays.stats()
    assert (delay.count, delay.mean_s, delay.max_s) == (30, pytest.approx(1.2), pytest.approx(1.4))


def result_delay(desk: Desk) -> dict[str, Any]:
    found: dict[str, Any] = desk.found()["result_delay"]
    return found


def test_an_answer_of_a_query_without_windows_leaves_with_its_rows_batch(desk: Desk) -> None:
    log = desk.log("readings")
    log.append(rows(10))
    desk.join("a", log)
    desk.batch("a", took_s=1.0)
    desk.ask("a")
    assert result_delay(desk)["count"] == 10
    assert result_delay(desk)["max_s"] == pytest.approx(1.0)


def test_a_window_that_a_row_closes_leaves_with_the_next_batch_be_it_a_tick(desk: Desk) -> None:
    log = desk.log("readings")
    log.append(rows(10))
    desk.join("a", log)
    desk.command(MarkWindowed(frozenset({"token of a"})))
    desk.batch("a", took_s=1.0)
    assert desk.ask("a") is None
    assert result_delay(desk)["count"] == 0, "Spark closes windows in the batch after that of the row"
    desk.pass_s(2.0)
    assert desk.batch("a", took_s=0.5).tick
    desk.ask("a")
    assert result_delay(desk)["count"] == 10
    assert result_delay(desk)["max_s"] == pytest.approx(3.5)
    assert desk.found()["delay"]["max_s"] == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("changes", "rule"), [({"shed_lane": True}, "shed_lane"), ({"poison_after": 3}, "poison_after")]
)
def test_what_sources_were_told_at_their_start_is_not_changed_later(
    desk: Desk, changes: dict[str, object], rule: str
) -> None:
    with pytest.raises(InvalidInputError, match=f"{rule} is set before its queries start"):
        desk.change("gold", changes)


def test_shedding_inside_the_network_is_refused_on_spark(desk: Desk) -> None:
    changes = {"target": "4s", "priority": 7, "manager": "ctrl", "settings": {"shedding": "network"}}
    with pytest.raises(InvalidInputError, match="on Spark rows are shed at the entry"):
        desk.change("gold", changes)
    assert desk.engine.classes["gold"].plant.cls.delay_target_s == 2.0, "all of a change or nothing"
