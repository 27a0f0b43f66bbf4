"""A control plane that outlives its queries forgets them, not their rows."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.control.core.events import ChangeClass, ConnectionEnded
from penstock.control.measure.cost_store import costs_to_json
from penstock.control.state import past
from penstock.control.state.past import AWAY_S, NAMES, OTHERS, QUERIES, READERS, Past
from penstock.grants.offset import Books, Offset


@pytest.fixture
def cluster(virtual: Any) -> Any:
    return virtual({"gold": {"target": 4.0, "shedder": "balance-sic"}})


def leave(cluster: Any, connection: object) -> None:
    cluster.handle(ConnectionEnded(cluster.at(), connection))


def come_and_go(virtual: Any, cluster: Any, log: Any, count: int, seconds: float = 0.2) -> None:
    """So many queries are there one after the other, and then away for so long that they are not awaited."""
    for i in range(count):
        query = cluster.add(f"gone{i}", "gold", log, virtual.machine(fixed_s=0.15), seed=i)
        cluster.run(seconds)
        leave(cluster, query.connections[query.key])
        query.stopped = True
    cluster.timer.advance(AWAY_S)
    leave(cluster, object())


def test_queries_that_are_gone_do_not_raise_the_floor_of_those_that_are_there(virtual: Any) -> None:
    cluster = virtual({"gold": {"target": 4.0}})
    log = virtual.stream(cluster, 2_000.0, 400.0)
    cluster.add("stays", "gold", log, virtual.machine(fixed_s=0.15))
    cluster.run(8.0)
    alone_s = cluster.engine.floor_s("gold")
    for i in range(3):
        query = cluster.add(f"gone{i}", "gold", log, virtual.machine(fixed_s=0.15))
        cluster.run(8.0)
        assert cluster.engine.members.queries[query.key].cost.ready
        leave(cluster, query.connections[query.key])
        query.stopped = True
    assert cluster.engine.floor_s("gold") == pytest.approx(alone_s, rel=0.5)
    cluster.command(ChangeClass("gold", {"target": "2s"}))


def test_what_a_control_plane_holds_does_not_grow_with_queries_that_are_gone(
    virtual: Any, cluster: Any
) -> None:
    log = virtual.stream(cluster, 2_000.0, 400.0)
    come_and_go(virtual, cluster, log, QUERIES + 8)
    engine = cluster.engine
    assert len(engine.members.queries) == QUERIES
    assert len(cluster.status().to_json()["classes"]["gold"]["queries"]) == QUERIES
    for held in (engine.ledger.sic._sources, engine.ledger.sic._known, engine.granting.shedding._batch_s):
        assert "gone0" not in held
    stays = cluster.add("stays", "gold", log)
    cluster.run(4.0)
    assert engine.classes["gold"].plant.decision is not None
    seen = engine.classes["gold"].cycle
    observed: list[int] = []
    before = seen.manager.decide
    seen.manager.decide = lambda o: (observed.append(o.output_delay_s.size), before(o))[1]
    cluster.run(4.0)
    assert set(observed) == {1}, "an observation has an output for each query that is there"
    assert stays.batches


def test_a_writer_that_is_forgotten_is_on_nobodys_path_any_more(virtual: Any, cluster: Any) -> None:
    log = virtual.stream(cluster, 2_000.0, 400.0)
    writer = cluster.add("writer", "gold", log)
    cluster.add("stays", "gold", virtual.shared_stream(cluster, "gold", "writer"))
    leave(cluster, writer.connections["writer"])
    writer.stopped = True
    come_and_go(virtual, cluster, log, QUERIES)
    assert "writer" not in cluster.engine.members.queries
    seen = cluster.engine.look(cluster.at())
    assert seen.turns_of_row[seen.keys.index("stays")] == 1


def test_rows_of_queries_that_are_forgotten_stay_in_the_books_of_their_class(
    virtual: Any, cluster: Any
) -> None:
    log = virtual.stream(cluster, 2_000.0, 400.0)
    come_and_go(virtual, cluster, log, QUERIES + 8)
    found = cluster.status().to_json()["classes"]["gold"]
    gone = found["past"]
    assert len(gone) == 8
    admitted = sum(q.batches[-1].offset.books.admitted for q in cluster.queries.values() if q.batches)
    assert found["admitted"] == admitted
    assert found["offered"] == found["admitted"] + found["shed"] + found["waiting"]
    for each in gone.values():
        assert each["offered"] == each["admitted"] + each["shed"] + each["waiting"]


def test_a_query_that_was_forgotten_and_comes_back_counts_once(virtual: Any, cluster: Any) -> None:
    log = virtual.stream(cluster, 2_000.0, 400.0)
    come_and_go(virtual, cluster, log, QUERIES + 1, seconds=1.0)
    assert "gone0" in cluster.status().to_json()["classes"]["gold"]["past"]
    first = cluster.queries["gone0"]
    cluster.connect(first, "gone0")
    found = cluster.status().to_json()["classes"]["gold"]
    assert "gone0" in found["queries"]
    assert "gone0" not in found["past"]
    assert found["admitted"] == sum(q.offsets[q.key].books.admitted for q in cluster.queries.values())


def test_queries_whose_lines_break_all_at_once_are_not_forgotten(virtual: Any, cluster: Any) -> None:
    log = virtual.stream(cluster, 2_000.0, 400.0)
    queries = [cluster.add(f"q{i}", "gold", log) for i in range(2 * QUERIES)]
    known = dict(cluster.engine.members.queries)
    for query in queries:
        leave(cluster, query.connections[query.key])
    for query in queries:
        cluster.connect(query, query.key)
    assert cluster.engine.members.queries == known
    assert not cluster.status().to_json()["classes"]["gold"]["past"]


def test_a_query_that_has_just_ended_is_shown_as_it_was(virtual: Any, cluster: Any) -> None:
    log = virtual.stream(cluster, 2_000.0, 400.0)
    come_and_go(virtual, cluster, log, 2, seconds=1.0)
    assert set(cluster.status().to_json()["classes"]["gold"]["queries"]) == {"gone0", "gone1"}


def test_costs_of_queries_that_are_forgotten_are_not_remembered(virtual: Any) -> None:
    cluster = virtual({"gold": {"target": 4.0}})
    log = virtual.stream(cluster, 2_000.0, 400.0)
    come_and_go(virtual, cluster, log, 1, seconds=8.0)
    assert "gone0" in costs_to_json(cluster.engine.costs())
    come_and_go(virtual, cluster, log, QUERIES + 1)
    stays = cluster.add("stays", "gold", log)
    cluster.run(8.0)
    assert stays.batches
    assert "gone0" not in costs_to_json(cluster.engine.costs())


def gone(reader: str, admitted: int) -> past.Gone:
    offset = Offset.initial(reader, {0: 0})
    return past.Gone("s", Offset(**{**_fields(offset), "books": Books(admitted=admitted)}), 3, None)


def _fields(offset: Offset) -> dict[str, Any]:
    return {name: getattr(offset, name) for name in offset.__slots__}


def test_names_beyond_a_number_are_put_together() -> None:
    books = Past()
    for i in range(NAMES + 5):
        books.fold("gold", f"q{i}", {f"r{i}": gone(f"r{i}", 10)})
    assert len(books.of("gold")) == NAMES + 1
    assert books.of("gold")[OTHERS].admitted == 50
    assert sum(totals.offered for totals in books.of("gold").values()) == 13 * (NAMES + 5)


def test_the_readers_that_may_come_back_are_bounded() -> None:
    books = Past()
    for i in range(READERS + 2):
        books.fold("gold", "q", {f"r{i}": gone(f"r{i}", 1)})
    for name in ("r0", f"r{READERS + 1}"):
        books.comes_back(name)
    assert books.of("gold")["q"].readers == READERS + 1, "the longest gone is not known any more"
