"""The micro-batch plant: queries follow the real protocol, are lost at any point, and come back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.control.core.events import Forbid
from penstock.grants.offset import Offset
from penstock.host.holding import HOLD_S
from penstock.sim.microbatch import (
    BooksError,
    Event,
    Lab,
    Machine,
    Point,
    QueryLostError,
    Recording,
    SimulatedQuery,
    VirtualCluster,
    check_books,
    delay,
)
from penstock.vocabulary.errors import InvalidInputError

GOLD = {"gold": {"target": "2s"}}
OVERLOAD_PER_S = 120_000.0
"""About three times what one query of the default machine can process."""


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    made = Lab(tmp_path)
    with made.open:
        yield made


def overloaded(lab: Lab, **others: object) -> tuple[VirtualCluster, SimulatedQuery, Recording]:
    cluster = lab(GOLD, **others)
    cluster.observers.append(recording := Recording())
    query = cluster.add("q", "gold", lab.stream(cluster, OVERLOAD_PER_S, 60.0), Machine(noise=0.1))
    cluster.run(6.0)
    return cluster, query, recording


def test_every_grant_is_asked_for_proposed_and_planned_in_this_order(lab: Lab) -> None:
    _, query, recording = overloaded(lab)
    kinds = [e.kind for e in recording if e.kind != "nothing"]
    at = kinds.index("granted")
    assert kinds[at - 1 : at + 3] == ["asked", "granted", "proposed", "planned"]
    planned = [Offset.from_json(e.data["offset"]) for e in recording.of("planned", reader="q")]
    assert planned == [batch.offset for batch in query.batches]
    assert [o.grant for o in planned] == list(range(1, len(planned) + 1))


def test_a_grant_is_decided_with_all_rows_that_are_there_of_every_stream(lab: Lab) -> None:
    cluster = lab({"gold": {"target": "8s"}})
    machine = Machine(row_s=100e-6, noise=0.05)
    logs = {name: lab.stream(cluster, 7_000.0, 60.0) for name in ("a", "b")}
    for seed, (name, log) in enumerate(logs.items()):
        cluster.add(name, "gold", log, machine, seed)
    missed = []

    def look(event: Event) -> None:
        if event.kind == "granted":
            log = logs[event.reader]
            missed.append(log.end(0) - cluster.engine.backlog.ends(str(log.directory))[0])

    cluster.observers.append(look)
    cluster.run(45.0)
    assert len(missed) > 15
    assert not any(missed), "batches end while others wait for their slot, and nobody looks meanwhile"


def test_a_recording_is_json_lines_in_order_of_time_and_the_same_for_the_same_seed(lab: Lab) -> None:
    first, second = (overloaded(lab)[2].lines() for _ in range(2))
    assert first == second
    times = [json.loads(line)["at_s"] for line in first.splitlines()]
    assert len(times) > 20
    assert times == sorted(times)


def test_a_question_that_is_not_answered_is_held_as_long_as_the_server_holds_it(lab: Lab) -> None:
    cluster = lab(GOLD)
    cluster.observers.append(recording := Recording())
    cluster.add("q", "gold", lab.stream(cluster, 100.0, begin=False))
    cluster.run(2.0)
    asked, answered = (recording.of(kind)[0].at_s for kind in ("asked", "nothing"))
    assert HOLD_S <= answered - asked <= 1.2 * HOLD_S


@pytest.mark.parametrize("point", list(Point))
def test_a_query_that_is_lost_at_any_point_of_a_grant_goes_on_from_its_checkpoint(
    lab: Lab, point: Point
) -> None:
    cluster, query, recording = overloaded(lab)
    cluster.checks.append(check_books)
    cluster.crash(query, point)
    cluster.run(3.0)
    assert query.stopped
    assert isinstance(query.error, QueryLostError)
    lost = query.offsets["q"]
    assert lost.grant == max(Offset.from_json(e.data["offset"]).grant for e in recording.of("proposed")) - (
        point is Point.PROPOSED
    ), "an orphan is not in the checkpoint"
    recording.clear()
    cluster.start(query)
    cluster.run(6.0)
    first = recording.of("asked", "planned")[0]
    if point is Point.PROPOSED:
        assert first.kind == "asked", "nothing to run again"
    else:
        assert (first.kind, Offset.from_json(first.data["offset"])) == ("planned", lost)
    assert query.offsets["q"].grant > lost.grant + 2
    again = [batch for batch in query.batches if batch.runs > 1]
    assert len(again) == (point in (Point.RUNNING, Point.DONE))


def test_a_batch_that_runs_again_waits_for_a_slot(lab: Lab) -> None:
    cluster, query, recording = overloaded(lab)
    other = cluster.add("other", "gold", lab.stream(cluster, OVERLOAD_PER_S), Machine(fixed_s=1.0), seed=2)
    cluster.crash(query, Point.RUNNING)
    while not query.stopped:
        cluster.run(0.1)
    while cluster.engine.members.queries["other"].lease is None:
        cluster.run(0.01)
    cluster.start(query)
    cluster.run(5.0)
    assert recording.of("held", reader="q")
    assert query.offsets["q"].grant > query.batches[-3].offset.grant
    assert other.batches
    check_books(cluster)


def test_a_query_that_runs_until_now_reads_what_was_there_at_its_start_sheds_nothing_and_ends(
    lab: Lab,
) -> None:
    cluster = lab(GOLD)
    streams = {"a": lab.stream(cluster, OVERLOAD_PER_S, 20.0), "b": lab.stream(cluster, 1000.0, 20.0)}
    cluster.run(5.0)
    there = sum(log.end() for log in streams.values())
    query = cluster.add("q", "gold", streams, available_now=True)
    cluster.run(40.0)
    assert query.stopped
    assert query.error is None
    books = [offset.books for offset in query.offsets.values()]
    assert sum(b.admitted for b in books) == there
    assert sum(b.shed for b in books) == 0
    assert all(offset.tick for offset in query.offsets.values()), "the last windows are closed"


def test_a_batch_that_fails_again_and_again_is_set_aside(lab: Lab) -> None:
    cluster = lab({"gold": {"target": "2s", "poison_after": 2}})
    query = cluster.add("q", "gold", lab.stream(cluster, 1000.0, 60.0))
    query.fails = lambda offsets: any(o.start[0] <= 3000 < o.end[0] for o in offsets.values())
    for _ in range(4):
        cluster.run(6.0)
        check_books(cluster)
        if query.stopped:
            cluster.start(query)
    poisoned = query.offsets["q"].books.poison
    assert poisoned > 0
    assert query.offsets["q"].end[0] > 3000
    failed = next(b for b in query.batches if b.offset.start[0] <= 3000 < b.offset.end[0])
    assert failed.runs == 3
    assert failed.books.admitted == poisoned


def test_while_the_control_plane_is_silent_a_source_goes_on_by_itself_in_small_steps(lab: Lab) -> None:
    cluster, query, _ = overloaded(lab, fail_open_after="2s")
    before = query.offsets["q"].grant
    cluster.hush()
    cluster.run(10.0)
    alone = [b for b in query.batches if b.offset.grant > before + 1]
    assert alone
    assert all(b.offset.ungoverned and not b.books.shed for b in alone)
    cluster.speak()
    cluster.run(5.0)
    assert not query.offsets["q"].ungoverned
    check_books(cluster)


def test_a_new_control_plane_goes_on_with_the_books_of_the_old_one(lab: Lab) -> None:
    cluster, query, recording = overloaded(lab)
    before = query.offsets["q"].books
    cluster.speak(anew=True)
    cluster.run(6.0)
    assert query.offsets["q"].books.offered > before.offered
    assert len(recording.of("joined")) == 2
    check_books(cluster)


def test_a_query_that_drains_sheds_nothing_and_one_that_is_refused_gets_nothing(lab: Lab) -> None:
    cluster, query, _ = overloaded(lab)
    cluster.drain(query)
    cluster.run(4.0)
    assert query.batches[-1].books.shed == 0
    cluster.refuse(query)
    cluster.run(4.0)
    batches = len(query.batches)
    cluster.run(4.0)
    assert len(query.batches) == batches


def test_the_driver_says_when_the_last_stage_of_a_batch_starts(lab: Lab) -> None:
    cluster = lab(GOLD)
    cluster.observers.append(recording := Recording())
    machine = Machine(jobs=2, last_stage_fraction=0.3)
    query = cluster.add("q", "gold", lab.stream(cluster, 10_000.0, 60.0), machine)
    cluster.run(10.0)
    tail = cluster.engine.members.queries["q"].costs.last_stages
    assert tail.jobs == 2
    assert tail.fraction == pytest.approx(0.3, abs=0.05)
    assert len(recording.of("last_stage")) >= 2 * (len(query.batches) - 1)


def test_a_query_that_the_control_plane_refuses_ends_with_its_error(lab: Lab) -> None:
    cluster, query, _ = overloaded(lab)
    cluster.command(Forbid("q", "a rule", "another thing", "a hint"))
    cluster.run(3.0)
    assert query.stopped
    assert isinstance(query.error, InvalidInputError)


def test_what_a_query_writes_is_written_once_also_if_its_batch_runs_again(lab: Lab) -> None:
    cluster = lab(GOLD)
    writer = cluster.add("writer", "gold", lab.stream(cluster, 5000.0, 60.0))
    shared = lab.shared_stream(cluster, "gold", "writer")
    reader = cluster.add("reader", "gold", shared)
    cluster.run(8.0)
    cluster.crash(writer, Point.DONE)
    while not writer.stopped:
        cluster.run(0.1)
    cluster.start(writer)
    cluster.run(8.0)
    done = sum(b.books.admitted for b in writer.batches if b.done_s <= cluster.timer())
    assert shared.end() == done
    assert 0 < sum(b.books.admitted for b in reader.batches) <= done


def test_books_that_do_not_balance_are_found(lab: Lab) -> None:
    cluster, query, _ = overloaded(lab)
    check_books(cluster)
    query.batches.pop()
    with pytest.raises(BooksError, match="admitted"):
        check_books(cluster)


def test_delays_are_counted_from_arrival_to_the_end_of_the_batch(lab: Lab) -> None:
    cluster = lab(GOLD)
    query = cluster.add("q", "gold", lab.stream(cluster, 1000.0, 20.0), Machine(fixed_s=0.4, row_s=0.0))
    cluster.run(20.0)
    assert 0.4 <= delay(query, 0.0, 60.0) < 0.45
    assert 0.4 < delay(query, 1.0, 60.0) <= 2.0


def test_time_does_not_go_back(lab: Lab) -> None:
    with pytest.raises(InvalidInputError, match="time goes forward"):
        lab(GOLD).run(-1.0)
