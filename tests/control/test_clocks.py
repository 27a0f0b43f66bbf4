"""Time stamps that lie: no stream's can move another's "now", and rows age whatever is stamped on them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.control.backlog.sightings import EVERY_S, Sightings
from penstock.control.backlog.waiting import Stretch
from penstock.streams.embedded.log import EmbeddedLog
from penstock.testing import ManualClock

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


@pytest.mark.parametrize("ahead_s", [2.5, 3600.0])
def test_a_stream_whose_clock_is_ahead_sheds_nothing_of_another(virtual: Any, ahead_s: float) -> None:
    cluster = two_classes(virtual)
    gold, bulk = Ahead(virtual, cluster, "gold"), Ahead(virtual, cluster, "bulk", ahead_s)
    query = cluster.add("gold", "gold", gold.log)
    cluster.add("bulk", "bulk", bulk.log)
    feed(cluster, 20.0, gold=(gold, 5_000.0), bulk=(bulk, 2_000.0))
    books = query.offsets["gold"].books
    assert books.shed == 0
    assert books.admitted > 0.8 * 20.0 * 5_000.0
    virtual.check_books(cluster)


def test_one_row_of_the_future_sheds_nothing_of_another_stream(virtual: Any) -> None:
    cluster = two_classes(virtual)
    gold, bulk = Ahead(virtual, cluster, "gold"), Ahead(virtual, cluster, "bulk")
    query = cluster.add("gold", "gold", gold.log)
    other = cluster.add("bulk", "bulk", bulk.log)
    feed(cluster, 10.0, gold=(gold, 5_000.0))
    bulk.ahead_s = 3600.0
    bulk.append(1)
    feed(cluster, 20.0, gold=(gold, 5_000.0))
    assert query.offsets["gold"].books.shed == 0
    assert other.offsets["bulk"].books.admitted == 1, "the row itself is processed, too"


@pytest.mark.parametrize("manager", ["deadline", "aloma"])
@pytest.mark.parametrize("lasts", [True, False], ids=["a clock that stays ahead", "one append"])
def test_a_stream_is_governed_while_its_time_stamps_are_in_the_future(
    virtual: Any, lasts: bool, manager: str
) -> None:
    cluster = virtual({"gold": {"target": TARGET_S, "manager": manager}})
    stream = Ahead(virtual, cluster, "gold")
    query = cluster.add("q", "gold", stream.log)
    rate_per_s = 2.4 * virtual.machine().capacity_per_s(TARGET_S)
    feed(cluster, 20.0, gold=(stream, rate_per_s))
    before = query.offsets["q"].books
    stream.ahead_s = 3600.0
    feed(cluster, STEP_S, gold=(stream, rate_per_s))
    stream.ahead_s = 3600.0 if lasts else 0.0  # the log's arrivals never go back: all come at that moment
    feed(cluster, 30.0, gold=(stream, rate_per_s))
    found = cluster.status().to_json()["classes"]["gold"]
    books = query.offsets["q"].books
    assert found["waiting"] <= 2.0 * TARGET_S * rate_per_s, "no backlog grows unseen"
    assert found["oldest_waiting_s"] <= 1.5 * TARGET_S
    admitted = (books.admitted - before.admitted) / (30.0 * rate_per_s / 2.4)
    assert 0.6 <= admitted <= 1.1, "of the capacity"
    virtual.check_books(cluster)


def test_rows_of_the_future_age_for_as_long_as_they_wait() -> None:
    timer, began_s, count = ManualClock(0.0), 1e9, 20_000
    sightings = Sightings(lambda: began_s + timer(), timer)
    ages_s = []
    for i in range(1, count):
        timer.advance(2 * EVERY_S)
        rows, ahead_s = np.array([i]), np.array([began_s + 1e6])
        waiting = Stretch("r", 0, np.array([0]), np.array([0]), rows, ahead_s, ahead_s)
        ages_s.append(began_s + timer() - sightings.corrected("s", waiting).arrival_min_s[0])
    true_s = 2 * EVERY_S * np.arange(count - 1)
    assert (ages_s <= true_s + 1e-3).all(), "never older than it was there"
    assert (ages_s >= true_s * 0.85 - EVERY_S).all(), "nor much younger"


def test_the_status_says_how_long_rows_of_the_future_have_waited(virtual: Any) -> None:
    cluster = virtual({"gold": {"target": TARGET_S}})
    stream = Ahead(virtual, cluster, "gold", 3600.0)
    cluster.add("q", "gold", stream.log)
    cluster.governor.queries["q"].refused = True
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
