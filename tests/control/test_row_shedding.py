"""A class that sheds by what is in its rows: the least worth first, or whole windows. Virtual time."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.control.core.events import ChangeClass, Fetched, RemoveClass
from penstock.control.core.instructions import FetchRows
from penstock.control.shed.strategies.utility_levels import (
    LEVELS,
    count_as_sample,
    count_by_level,
    level_starts,
)
from penstock.grants.plans import KEEP_ALL
from penstock.grants.plans.values import window_numbers
from penstock.grants.selection import Range, read_range, select
from penstock.host.fetching import fetch_values
from penstock.sim.microbatch import Lab
from penstock.streams.embedded.log import EmbeddedLog
from penstock.streams.producing.schedule import schedule_from_counts
from penstock.vocabulary.errors import InvalidInputError

TARGET_S, MEASURED_S, ROW_S = 8.0, 20.0, 100e-6


def run(virtual: Lab, times: float, shedder: str, seconds: float = 38.0, **settings: Any) -> tuple[Any, list]:
    """Two queries at so many times the capacity."""
    cluster = virtual({"gold": {"target": TARGET_S, "shedder": shedder, "shedder_settings": settings}})
    machine = virtual.machine(row_s=ROW_S, noise=0.05)
    capacity = (1 - 2 * machine.fixed_s / TARGET_S) / machine.row_s
    logs = [virtual.stream(cluster, times * capacity / 2, 90.0) for _ in range(2)]
    queries = [cluster.add(f"q{i}", "gold", log, machine, seed=i) for i, log in enumerate(logs)]
    cluster.run(seconds)
    return cluster, queries


def rows_of(log: Any, batch: Any) -> tuple[list[pa.RecordBatch], list[pa.RecordBatch]]:
    """The rows that a batch kept, and all that were not late."""
    offset = batch.offset
    found = [s for s in select(log, offset) if s.first.size]
    kept = [
        piece.rows
        for s in found
        for piece in read_range(log, offset.plan, Range(0, int(s.first[0]), int(s.end[-1]), 0))
    ]
    first = max(offset.start[0], offset.late.get(0, 0))
    everything = [piece.rows for piece in read_range(log, KEEP_ALL, Range(0, first, offset.end[0], 0))]
    return kept, everything


def values(batches: list[pa.RecordBatch], name: str) -> np.ndarray:
    return np.concatenate([np.empty(0), *(rows.column(name).to_numpy() for rows in batches)])


def check_delays(virtual: Lab, cluster: Any, queries: list) -> None:
    """The target holds, and the capacity is used."""
    since = cluster.timer() - MEASURED_S
    assert all(virtual.delay(query, 0.95, since) <= TARGET_S for query in queries)
    admitted = sum(virtual.admitted_between(query, since, cluster.timer()) for query in queries)
    machine = virtual.machine(row_s=ROW_S)
    assert admitted / MEASURED_S >= 0.8 * (1 - 2 * machine.fixed_s / TARGET_S) / machine.row_s


# -- by utility -----------------------------------------------------------------------------------


def test_rows_that_are_worth_least_go_first_and_books_are_exact(virtual: Lab) -> None:
    cluster, queries = run(virtual, 3.0, "semantic", utility="value % 100 + 0.5")
    virtual.check_books(cluster)
    check_delays(virtual, cluster, queries)
    for query in queries:
        (log,) = query.logs.values()
        shed = [b for b in query.batches if b.offset.plan.unit == "utility"]
        assert len(shed) > 4
        for batch in shed[-3:]:
            kept, everything = (np.sort(values(rows, "value") % 100) for rows in rows_of(log, batch))
            assert batch.books.admitted == kept.size
            least = kept[0]
            above = everything[everything > least]
            assert np.array_equal(kept[kept > least], above), "all that are worth more"
            assert batch.offset.plan.least == least + 0.5
    assert "utility" in cluster.status().to_json()["classes"]["gold"]["queries"]["q0"]["shed_reason"]


def test_values_are_remembered_only_while_their_rows_wait(virtual: Lab) -> None:
    cluster, queries = run(virtual, 3.0, "semantic", seconds=40.0, utility="value")
    known = cluster.engine.granting.shedding.values["gold"].rows
    latest = max(b.offset.end[0] - b.offset.start[0] for query in queries for b in query.batches[-2:])
    assert 0 < known <= 4 * latest


def test_values_are_forgotten_with_the_last_reader_of_their_stream(virtual: Lab) -> None:
    cluster, queries = run(virtual, 3.0, "semantic", seconds=25.0, utility="value")
    shedding = cluster.engine.granting.shedding
    assert shedding.values["gold"].rows > 0
    for query in queries:
        cluster.stop(query)
        (log,) = query.logs.values()
        assert not [key for values in shedding.values.values() for key in values._known if log.ref.id in key]
    assert shedding.values == {}


def test_values_that_come_when_nobody_needs_them_any_more_are_not_kept(virtual: Lab) -> None:
    cluster, queries, held = with_slow_fetches(virtual)
    while not held:
        cluster.run(0.05)
    for query in queries:
        cluster.stop(query)
    answer(cluster, held)
    assert cluster.engine.granting.shedding.values == {}


@pytest.mark.parametrize("shed", ["sample", {"by": "utility", "utility": "value % 7"}])
def test_values_are_forgotten_when_something_else_is_shed(virtual: Lab, shed: str | dict[str, str]) -> None:
    cluster, queries, held = with_slow_fetches(virtual)
    while not held:
        cluster.run(0.05)
    before = len(queries[0].batches)
    cluster.command(ChangeClass("gold", {"shed": shed}))
    known = cluster.engine.granting.shedding.values
    assert known == {}
    while held:
        answer(cluster, held)
    assert (known == {}) == (shed == "sample")
    del cluster._fetch  # rows are there at once again
    cluster.run(4.0)
    assert len(queries[0].batches) > before, "the grant that waited is decided by what the class sheds now"


def test_values_are_forgotten_with_their_class(virtual: Lab) -> None:
    cluster, queries, held = with_slow_fetches(virtual)
    while not held:
        cluster.run(0.05)
    answer(cluster, held)
    assert "gold" in cluster.engine.granting.shedding.values
    cluster.engine.granting.shedding.forget_values = lambda *_: None  # as if a query had left earlier
    for query in queries:
        cluster.stop(query)
    del cluster.engine.granting.shedding.forget_values
    cluster.command(RemoveClass("gold"))
    assert cluster.engine.granting.shedding.values == {}


def test_rows_that_come_while_values_are_fetched_are_the_next_grants(virtual: Lab) -> None:
    cluster, _, held = with_slow_fetches(virtual)
    granted = 0
    while granted < 6:
        while not held:
            cluster.run(0.05)
        asked, granted = held[0].query, granted + 1
        cluster.run(0.5)
        looked = cluster.engine.members.queries[asked].backlog.waiting.rows
        cluster.engine.look(cluster.at())
        assert cluster.engine.members.queries[asked].backlog.waiting.rows >= looked
        answer(cluster, held)
        assert asked not in {wanted.query for wanted in held}, "one round of fetches is enough"


def with_slow_fetches(virtual: Lab) -> tuple[Any, list, list[FetchRows]]:
    """A cluster under overload whose fetches are answered when a test says so."""
    cluster = virtual(
        {"gold": {"target": TARGET_S, "shed": {"by": "utility", "utility": "value"}}, "bulk": {"target": 60}},
        slots=2,
    )
    held: list[FetchRows] = []
    machine = virtual.machine(row_s=ROW_S, noise=0.05)
    capacity = 2 * (1 - 2 * machine.fixed_s / TARGET_S) / machine.row_s
    logs = [virtual.stream(cluster, 3.0 * capacity / 2, 90.0) for _ in range(2)]
    queries = [cluster.add(f"q{i}", "gold", log, machine, seed=i) for i, log in enumerate(logs)]
    cluster.run(3.0)
    cluster._fetch = held.append
    return cluster, queries, held


def answer(cluster: Any, held: list[FetchRows]) -> None:
    """Answers all fetches that are held; what is asked for meanwhile is held, too."""
    asked = held.copy()
    held.clear()
    for wanted in asked:
        values = fetch_values(cluster.tailers.logs[wanted.fetch.stream], wanted.fetch)
        cluster.handle(Fetched(cluster.at(), wanted.query, wanted.fetch, values))


def test_a_range_is_shed_before_anything_else_is(virtual: Lab) -> None:
    cluster, queries = run(virtual, 1.4, "semantic", by="range", key="value", shed_from=10, shed_to=89)
    virtual.check_books(cluster)
    for query in queries:
        (log,) = query.logs.values()
        batch = [b for b in query.batches if b.offset.plan.unit == "utility"][-1]
        kept, everything = (values(rows, "value") for rows in rows_of(log, batch))
        inside = (everything >= 10) & (everything <= 89)
        assert 0.3 < inside.mean() < 0.9
        assert np.count_nonzero((kept < 10) | (kept > 89)) == np.count_nonzero(~inside)
        assert kept.size < everything.size


def test_a_range_that_holds_all_rows_is_shed_at_random(virtual: Lab) -> None:
    cluster, queries = run(virtual, 3.0, "semantic", by="range", key="value", shed_from=0)
    virtual.check_books(cluster)
    check_delays(virtual, cluster, queries)
    (log,) = queries[0].logs.values()
    batch = [b for b in queries[0].batches if b.offset.plan.unit == "utility"][-1]
    kept, everything = (values(rows, "value") for rows in rows_of(log, batch))
    assert 0.1 < kept.size / everything.size < 0.9
    assert kept.mean() == pytest.approx(everything.mean(), rel=0.02), "what a row holds does not matter"


def test_the_better_rows_of_one_query_go_before_the_worse_of_another(virtual: Lab) -> None:
    cluster = virtual(
        {"gold": {"target": TARGET_S, "shedder": "semantic", "shedder_settings": {"utility": "value"}}}
    )
    small, large = (virtual.stream(cluster, rate, 90.0) for rate in (6_000.0, 12_000.0))
    machine = virtual.machine(row_s=ROW_S)
    queries = [cluster.add(name, "gold", log, machine) for name, log in (("small", small), ("large", large))]
    cluster.run(45.0)
    virtual.check_books(cluster)
    since = cluster.timer() - MEASURED_S
    assert all(virtual.delay(query, 0.95, since) <= TARGET_S for query in queries)
    part = [q.batches[-1].books.admitted / q.batches[-1].books.offered for q in queries]
    assert part[1] > part[0], "segments of the larger stream have rows that count further"


def test_levels_are_exact_while_they_are_few_and_even_where_they_are_many() -> None:
    few = np.repeat([5.0, 1.0, 3.0], [10, 1000, 1])
    assert level_starts(few, np.array([2.0])).tolist() == [1.0, 2.0, 3.0, 5.0]
    many = np.random.default_rng(1).lognormal(size=10_000)
    ends = level_starts(many)
    assert ends.size == LEVELS
    counts = np.bincount(count_by_level([many], ends).level, weights=count_by_level([many], ends).rows)
    assert counts.sum() == many.size
    assert counts.max() < 1.2 * many.size / LEVELS


def test_rows_that_are_only_expected_are_spread_as_a_sample_is() -> None:
    rows = np.array([100, 7, 0])
    made = count_as_sample(rows, np.array([1.0, 1.0, 1.0, 4.0]), np.array([1.0, 2.0, 4.0]))
    assert np.bincount(made.segment, weights=made.rows, minlength=3).tolist() == [100, 7, 0]
    assert made.rows[made.segment == 0].tolist() == [75, 25]
    assert set(made.level.tolist()) == {0, 2}


# -- by window ------------------------------------------------------------------------------------


@pytest.mark.briefly("4.0")
@pytest.mark.parametrize("times", [1.5, 4.0])
def test_windows_are_kept_whole_over_all_batches(virtual: Lab, times: float) -> None:
    size_us = 400_000
    cluster, queries = run(virtual, times, "window", size="400ms")
    virtual.check_books(cluster)
    check_delays(virtual, cluster, queries)
    for query in queries:
        (log,) = query.logs.values()
        kept: Counter[int] = Counter()
        everything: Counter[int] = Counter()
        overloaded = next(i for i, b in enumerate(query.batches) if b.offset.plan.unit == "window")
        for batch in query.batches[overloaded:]:
            for into, rows in zip((kept, everything), rows_of(log, batch), strict=True):
                into.update(window_numbers(rows, "_arrival", size_us).tolist())
        ended = sorted(everything)[1:-1]  # what began before, or has not ended
        broken = [number for number in ended if 0 < kept[number] < everything[number]]
        assert len(kept) > 5
        assert len(broken) <= 1, "a stall may make the rest of a window late"
        assert len([n for n in ended if not kept[n]]) > 0.2 * len(ended)


def test_what_was_shed_of_a_window_is_not_forgotten_when_the_overload_ends_within_it(virtual: Lab) -> None:
    """Bursts of twice the capacity end amid windows of which an earlier grant shed the first rows.

    The rest of such a window would fit. The shedder's order of windows is always the same, so a steady
    overload does not show whether earlier choices are remembered.
    """
    size_us, bin_s = 500_000, 0.1
    cluster = virtual({"gold": {"target": 4.0, "shed": {"by": "window", "size": "500ms"}}})
    machine = virtual.machine(row_s=1e-3)
    capacity = (1 - 2 * machine.fixed_s / 4.0) / machine.row_s
    burst, calm = np.full(50, 2.0 * capacity * bin_s), np.full(50, 0.2 * capacity * bin_s)
    schedule = schedule_from_counts(np.tile([*burst, *calm], 2).round(), bin_s)
    log = virtual.stream(cluster, schedule)
    query = cluster.add("q", "gold", log, machine)
    cluster.run(20.0)
    virtual.check_books(cluster)
    kept: Counter[int] = Counter()
    everything: Counter[int] = Counter()
    for batch in query.batches:
        for into, rows in zip((kept, everything), rows_of(log, batch), strict=True):
            into.update(window_numbers(rows, "_arrival", size_us).tolist())
    ended = sorted(everything)[1:-1]
    assert any(not kept[number] for number in ended), "windows are shed"
    assert [number for number in ended if 0 < kept[number] < everything[number]] == []


def test_both_streams_of_a_query_keep_the_same_windows(virtual: Lab) -> None:
    settings = {"size": "400ms"}
    cluster = virtual({"gold": {"target": TARGET_S, "shedder": "window", "shedder_settings": settings}})
    streams = {slot: virtual.stream(cluster, rate, 60.0) for slot, rate in (("a", 9_000.0), ("b", 4_000.0))}
    query = cluster.add("join", "gold", streams, virtual.machine(row_s=ROW_S))
    cluster.run(30.0)
    virtual.check_books(cluster)
    plans = {reader: offset.plan for reader, offset in query.offsets.items()}
    assert {plan.unit for plan in plans.values()} == {"window"}
    assert len({plan.windows for plan in plans.values()}) == 1
    assert plans["join-a"].chosen != plans["join-b"].chosen


# -- what is refused ------------------------------------------------------------------------------

SCHEMA = pa.schema([("amount", pa.float64()), ("name", pa.string()), ("at", pa.timestamp("us"))])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"utility": "amont"}, "one of those of stream s; got: 'amont' .* did you mean s.amount"),
        ({"utility": "name"}, "gives a number; got: 'name' of type STRING"),
        ({"utility": "amount > 3"}, "of type BOOLEAN"),
        ({"utility": "at"}, "of type TIMESTAMP"),
        ({"by": "range", "key": "name", "shed_to": 3}, "of type STRING"),
        ({"by": "range", "key": "amont", "shed_to": 3}, "did you mean s.amount"),
    ],
)
def test_a_stream_without_the_columns_is_refused_when_its_reader_joins(
    virtual: Lab, settings: dict[str, Any], message: str
) -> None:
    cluster = virtual({"gold": {"target": 8, "shedder": "semantic", "shedder_settings": settings}})
    log = virtual.open.enter_context(EmbeddedLog.create(virtual.folder / "s", SCHEMA))
    with pytest.raises(InvalidInputError, match=message):
        cluster.add("q", "gold", log)


def test_a_shedder_that_its_streams_cannot_have_is_refused_while_the_class_runs(virtual: Lab) -> None:
    cluster = virtual({"gold": {"target": 8}})
    log = virtual.open.enter_context(EmbeddedLog.create(virtual.folder / "s", SCHEMA))
    cluster.add("q", "gold", log)
    change = {"shedder": "window", "shedder_settings": {"size": "1s", "column": "amount"}}
    with pytest.raises(InvalidInputError, match="a timestamp column of stream s; got: 'amount'"):
        cluster.command(ChangeClass("gold", change))
    cluster.command(ChangeClass("gold", {**change, "shedder_settings": {"size": "1s", "column": "at"}}))
    assert cluster.engine.classes["gold"].config.shed.column == "at"
