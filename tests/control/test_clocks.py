"""Time stamps that lie: no stream's can move another's "now", and rows age whatever is stamped on them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.control.backlog.backlog import Backlog, QueryBacklog
from penstock.control.backlog.sightings import EVERY_S, Sightings
from penstock.control.backlog.waiting import WaitingSegments
from penstock.streams.embedded.log import EmbeddedLog
from penstock.streams.protocol import HeaderArrays
from penstock.streams.tailing import NewSegments
from penstock.vocabulary.moment import Moment

TARGET_S = 2.0
STEP_S = 0.05


class Ahead:
    """A stream whose producer's clock is ahead of the cluster's, by a time that may change."""

    def __init__(self, virtual: Any, cluster: Any, name: str, ahead_s: float = 0.0) -> None:
        self.ahead_s = ahead_s
        schema = pa.schema([("v", pa.int64())])
        clock: Callable[[], float] = lambda: cluster.clock() + self.ahead_s  # noqa: E731
        self.log = virtual.open.enter_context(EmbeddedLog.create(virtual.folder / name, schema, clock=clock))

    def append(self, rows: int) -> None:
        self.log.append(pa.record_batch({"v": np.zeros(rows, np.int64)}))


def feed(cluster: Any, seconds: float, **rates: tuple[Ahead, float]) -> None:
    """Lets time pass while streams get rows at constant rates."""
    for _ in range(round(seconds / STEP_S)):
        for stream, rate_per_s in rates.values():
            stream.append(round(rate_per_s * STEP_S))
        cluster.run(STEP_S)


def two_classes(virtual: Any) -> Any:
    return virtual({"gold": {"target": TARGET_S, "priority": 4}, "bulk": {"target": 10 * TARGET_S}})


@pytest.mark.briefly("2.5")
@pytest.mark.parametrize("ahead_s", [2.5, 3600.0])
def test_a_stream_whose_clock_is_ahead_sheds_nothing_of_another(virtual: Any, ahead_s: float) -> None:
    cluster = two_classes(virtual)
    gold, bulk = Ahead(virtual, cluster, "gold"), Ahead(virtual, cluster, "bulk", ahead_s)
    query = cluster.add("gold", "gold", gold.log)
    cluster.add("bulk", "bulk", bulk.log)
    feed(cluster, 14.0, gold=(gold, 5_000.0), bulk=(bulk, 2_000.0))
    books = query.offsets["gold"].books
    assert books.shed == 0
    assert books.admitted > 0.8 * 14.0 * 5_000.0
    virtual.check_books(cluster)


def test_one_row_of_the_future_sheds_nothing_of_another_stream(virtual: Any) -> None:
    cluster = two_classes(virtual)
    gold, bulk = Ahead(virtual, cluster, "gold"), Ahead(virtual, cluster, "bulk")
    query = cluster.add("gold", "gold", gold.log)
    other = cluster.add("bulk", "bulk", bulk.log)
    feed(cluster, 6.0, gold=(gold, 5_000.0))
    bulk.ahead_s = 3600.0
    bulk.append(1)
    feed(cluster, 14.0, gold=(gold, 5_000.0))
    assert query.offsets["gold"].books.shed == 0
    assert other.offsets["bulk"].books.admitted == 1, "the row itself is processed, too"


@pytest.mark.briefly("one append-aloma", "a clock that stays ahead-deadline")
@pytest.mark.parametrize("manager", ["deadline", "aloma"])
@pytest.mark.parametrize("lasts", [True, False], ids=["a clock that stays ahead", "one append"])
def test_a_stream_is_governed_while_its_time_stamps_are_in_the_future(
    virtual: Any, lasts: bool, manager: str
) -> None:
    cluster = virtual({"gold": {"target": TARGET_S, "manager": manager}})
    stream = Ahead(virtual, cluster, "gold")
    query = cluster.add("q", "gold", stream.log)
    rate_per_s = 2.4 * virtual.machine().capacity_per_s(TARGET_S)
    feed(cluster, 12.0, gold=(stream, rate_per_s))
    before = query.offsets["q"].books
    stream.ahead_s = 3600.0
    feed(cluster, STEP_S, gold=(stream, rate_per_s))
    stream.ahead_s = 3600.0 if lasts else 0.0  # the log's arrivals never go back: all come at that moment
    feed(cluster, 20.0, gold=(stream, rate_per_s))
    found = cluster.status().to_json()["classes"]["gold"]
    books = query.offsets["q"].books
    assert found["waiting"] <= 2.0 * TARGET_S * rate_per_s, "no backlog grows unseen"
    assert found["oldest_waiting_s"] <= 1.5 * TARGET_S
    admitted = (books.admitted - before.admitted) / (20.0 * rate_per_s / 2.4)
    assert 0.6 <= admitted <= 1.1, "of the capacity"
    virtual.check_books(cluster)


def test_rows_of_the_future_age_for_as_long_as_they_wait() -> None:
    began_s, count, now_s = 1e9, 10_000, 0.0
    sightings, ages_s = Sightings(), []
    for i in range(1, count):
        now_s += 2 * EVERY_S
        at, ahead_s = Moment(now_s, began_s + now_s), np.array([began_s + 1e6])
        sightings.saw("s", 0, i, at)
        waiting = WaitingSegments.of("r", 0, np.array([0]), np.array([i]), ahead_s, ahead_s, 0)
        ages_s.append(at.wall_s - sightings.corrected("s", waiting, at).oldest_s)
    true_s = 2 * EVERY_S * np.arange(count - 1)
    assert (ages_s <= true_s + 1e-3).all(), "never older than it was there"
    assert (ages_s >= true_s * 0.85 - EVERY_S).all(), "nor much younger"


class Stamped:
    """A query's backlog of one stream, to which rows come with stamps that are this far ahead."""

    def __init__(self, ahead_s: float) -> None:
        self.backlog, self.query, self.ahead_s, self.rows = Backlog(), QueryBacklog(), ahead_s, 0

    def append(self, rows: int, at: Moment) -> None:
        first, counts, stamp_us = self.rows, np.array([rows]), np.array([(at.wall_s + self.ahead_s) * 1e6])
        stamps = stamp_us.astype(np.int64)
        self.rows += rows
        headers = HeaderArrays(np.array([first]), counts, stamps, stamps, stamp_us)
        self.backlog.arrived("s", [NewSegments(0, 0, self.rows, headers)], at)

    def ages_s(self, at: Moment, position: int = 0) -> list[float]:
        """How old the segments are of what waits for a reader at a position."""
        self.backlog.refresh(self.query, {"r": ("s", {0: position})}, at)
        (part,) = self.query.waiting.parts
        return [at.wall_s - high_s for high_s in part.high_s.tolist()]


def test_rows_of_the_future_that_came_within_a_moment_of_others_age_as_well() -> None:
    stamped = Stamped(3600.0)
    for i in range(3):
        stamped.append(10, Moment(i * EVERY_S / 3, 1e9 + i * EVERY_S / 3))
    for position in (0, 1, 2):  # it is looked at anew because the reader moved, and nothing else comes
        now_s = 10.0 * (position + 1)
        for age_s in stamped.ages_s(Moment(now_s, 1e9 + now_s), position):
            assert age_s == pytest.approx(now_s, abs=EVERY_S + 1e-3)
    rows, oldest_s = stamped.backlog.left_of("s", {0: 25}, Moment(60.0, 1e9 + 60.0))
    assert (rows, oldest_s) == (5, pytest.approx(1e9, abs=EVERY_S + 1e-3))


def test_a_clock_that_was_behind_and_is_set_right_makes_no_row_older() -> None:
    stamped = Stamped(3600.0)  # by the clock of this host, which is an hour behind
    stamped.append(10, Moment(0.0, 1e9))
    assert stamped.ages_s(Moment(1.0, 1e9 + 1.0)) == [pytest.approx(1.0)]
    assert stamped.ages_s(Moment(2.0, 1e9 + 2.0)) == [pytest.approx(2.0)]
    assert stamped.ages_s(Moment(3.0, 1e9 + 3603.0)) == [pytest.approx(3.0)], "as it is stamped"


def test_a_clock_that_goes_back_makes_no_row_younger_than_it_was_seen() -> None:
    stamped = Stamped(0.0)
    stamped.append(10, Moment(0.0, 1e9))
    assert stamped.ages_s(Moment(1.0, 1e9 + 1.0)) == [pytest.approx(1.0)]
    assert stamped.ages_s(Moment(2.0, 1e9 - 3598.0)) == [pytest.approx(2.0)]


def test_the_status_says_how_long_rows_of_the_future_have_waited(virtual: Any) -> None:
    cluster = virtual({"gold": {"target": TARGET_S}})
    stream = Ahead(virtual, cluster, "gold", 3600.0)
    cluster.refuse(cluster.add("q", "gold", stream.log))
    feed(cluster, 5.0, gold=(stream, 1_000.0))
    assert cluster.status().classes["gold"].oldest_waiting_s == pytest.approx(5.0, abs=0.6)


def test_a_stream_that_is_ahead_is_said_once(virtual: Any, caplog: pytest.LogCaptureFixture) -> None:
    cluster = two_classes(virtual)
    stream = Ahead(virtual, cluster, "bulk", 3600.0)
    cluster.add("bulk", "bulk", stream.log)
    with caplog.at_level(logging.WARNING, "penstock.control"):
        feed(cluster, 10.0, bulk=(stream, 1_000.0))
    said = [r.getMessage() for r in caplog.records if "ahead" in r.getMessage()]
    assert len(said) == 1
    assert "bulk" in said[0]
    assert "3600 s" in said[0]


def test_delays_are_measured_by_a_timer_that_never_goes_back(virtual: Any) -> None:
    """A clock that is set forward by an hour while a batch runs must not give its rows an hour's delay."""
    cluster = virtual({"gold": {"target": TARGET_S}})
    stream = Ahead(virtual, cluster, "gold")
    query = cluster.add("q", "gold", stream.log)
    feed(cluster, 10.0, gold=(stream, 5_000.0))
    while query.batches[-1].done_s <= cluster.timer() + STEP_S:  # until a batch runs
        feed(cluster, STEP_S, gold=(stream, 5_000.0))
    cluster.clock.now_s += 3600.0
    stream.ahead_s = -3600.0
    cluster.run(query.batches[-1].done_s - cluster.timer() + 0.05)
    assert cluster.status().to_json()["classes"]["gold"]["delay"]["max_s"] < 60.0
