"""The table of queries: whatever happens, it says what the queries say."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from itertools import compress

import numpy as np
import pytest
from tests.benches import bench_module
from tests.golden.scenarios import SCENARIOS
from tests.golden.trace import record
from tests.queries import asks, learned_query, waits

from penstock.control.core.engine import Engine
from penstock.control.core.events import Event, QuestionEnded
from penstock.control.core.instructions import Instruction
from penstock.control.schedule.paths import Paths
from penstock.control.schedule.snapshot import ClassTraits, Snapshot
from penstock.control.schedule.table import QueryTable
from penstock.vocabulary.moment import Moment

NOW = Moment(100.0, 1_000.0)
CLASSES = [ClassTraits("gold", 6.0, 2.0), ClassTraits("bulk", 1.0, 8.0)]
EVENTFUL = (
    "a_clock_that_is_set",
    "a_connection_is_lost_and_made_again",
    "available_now_beside_others",
    "changes_while_it_runs",
    "drain",
    "shedder_semantic",
    "several_readers_of_a_query",
    "shared_stream",
    "stopped_through_the_gate_and_in_a_batch",
    "the_control_plane_is_silent_and_then_another",
)


def values(seen: Snapshot) -> dict[str, list[object]]:
    arrays = {field.name: getattr(seen, field.name) for field in dataclasses.fields(seen)}
    return {
        name: np.where(value != value, -1.0, value).tolist()  # NaN is equal to nothing
        for name, value in arrays.items()
        if isinstance(value, np.ndarray)
    }


def check_after_every_event(monkeypatch: pytest.MonkeyPatch) -> list[Event]:
    """Has the table compared with the queries after each event; returns the events that come from now on."""
    handled: list[Event] = []

    def handle(engine: Engine, event: Event) -> Sequence[Instruction]:
        said, at = real(engine, event), event.at
        handled.append(event)
        seen = engine.look(at)
        there = [query for query in engine.members.queries.values() if query.readers]
        for query in there:
            changed = engine.backlog.refresh(query.backlog, query.wanted, at)
            assert not changed or at.wall_s < query.backlog.holds_from_s, "what waits was looked up"
        assert list(seen.queries) == [query for query in there if not query.flags.refused]
        engine.table.everything_changed()
        assert values(engine.look(at)) == values(seen)
        return said

    real = Engine.handle
    monkeypatch.setattr(Engine, "handle", handle)
    return handled


@pytest.mark.briefly(
    "shared_stream", "several_readers_of_a_query", "the_control_plane_is_silent_and_then_another", "drain"
)
@pytest.mark.parametrize("name", EVENTFUL)
def test_after_every_event_the_table_is_as_if_all_of_it_were_written_anew(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    handled = check_after_every_event(monkeypatch)
    record(SCENARIOS[name])
    assert len(handled) > 50


def test_a_query_whose_question_ended_unanswered_wants_no_turn_a_moment_later() -> None:
    bed = bench_module("micro.grant").Bed(5)
    waiting = sorted(bed.offsets.keys() - {bed.running[0]})
    seen = bed.engine.look(bed.at())
    assert list(compress(seen.keys, seen.asks)) == waiting
    bed.handle(QuestionEnded(bed.at(), waiting[0]))
    for later_s, asking in ((0.0, waiting), (1.0, waiting[1:])):
        bed.now_s += later_s
        seen = bed.engine.look(bed.at())
        assert list(compress(seen.keys, seen.asks)) == asking


def test_a_query_that_gets_no_grants_is_not_in_a_snapshot_and_its_rates_go_on() -> None:
    one, other = learned_query("gold", "one"), learned_query("bulk", "other")
    table = QueryTable(Paths({}, {}))
    table.begin_anew([one, other], [cls.name for cls in CLASSES])
    table.look(CLASSES, NOW)
    one.flags.refused = True
    one.backlog.rates.count(100)
    table.changed("one")
    seen = table.look(CLASSES, Moment(101.0, 1_001.0))
    assert (seen.keys, seen.cls.tolist(), seen.priority.tolist()) == (["other"], [1], [1.0])
    assert one.backlog.rates.usual_per_s > 0.0


def test_what_a_snapshot_says_stays_when_the_table_changes() -> None:
    query = learned_query("gold")
    table = QueryTable(Paths({}, {}))
    table.begin_anew([query], [cls.name for cls in CLASSES])
    before = table.look(CLASSES, NOW)
    waits(query, 500, NOW.wall_s - 1.0)
    asks(query)
    assert table.look(CLASSES, NOW).rows.tolist() == [0.0], "nobody said that the query has changed"
    table.changed(query.key)
    after = table.look(CLASSES, NOW)
    assert (before.rows.tolist(), before.asks.tolist()) == ([0.0], [False])
    assert (after.rows.tolist(), after.asks.tolist(), after.age_s.tolist()) == ([500.0], [True], [1.0])


def test_rates_go_on_where_they_were_when_queries_come_and_go() -> None:
    query = learned_query("gold", "one")
    rates = query.backlog.rates
    table = QueryTable(Paths({}, {}))
    for second in range(5):
        others = [learned_query("bulk", f"other {i}") for i in range(second)]
        table.begin_anew([*others, query], [cls.name for cls in CLASSES])
        rates.count(1_000)
        table.look(CLASSES, Moment(100.0 + second, 1_000.0 + second))
    assert 900.0 < rates.usual_per_s < rates.burst_per_s <= 1_000.0
