"""Lines of `sic.jsonl`: one of every micro-batch, which says whose it is and by Spark's number which."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from penstock.control.core.events import Asked, BatchPlanned, BatchReported
from penstock.control.state.lease import Lease, Terms
from penstock.control.state.query import NOTED_BATCHES
from penstock.grants.offset import Books, Offset
from penstock.sim.microbatch import Lab

CLASSES = {"gold": {"target": 8.0}}


class RecordingSic:
    """Keeps the lines of SIC."""

    def __init__(self) -> None:
        self.noted: list[dict[str, Any]] = []

    def record(self, step: object) -> None: ...
    def record_change(self, *_: object) -> None: ...
    def record_shedding(self, *_: object) -> None: ...
    def record_sic(self, line: dict[str, Any]) -> None:
        self.noted.append(line)


def start(virtual: Lab) -> tuple[Any, RecordingSic]:
    cluster = virtual(CLASSES)
    cluster.recorder = recorder = RecordingSic()
    return cluster, recorder


def report(cluster: Any, batch: int, rows: dict[tuple[str, int], float]) -> None:
    cluster.handle(BatchReported(cluster.at(), batch, rows))


def key_of(line: dict[str, Any]) -> tuple[str, int]:
    """Reader and grant of a line of a query with one reader."""
    ((reader, grant),) = line["grants"].items()
    return reader, grant


def test_two_queries_started_from_one_dataframe_are_told_apart_and_get_their_numbers(virtual: Lab) -> None:
    cluster, recorder = start(virtual)
    for key in ("q-1", "q-2"):
        cluster.add(key, "gold", virtual.stream(cluster, 1000.0))
        query = cluster.engine.members.queries[key]
        query.identity = replace(query.identity, name="q")
    cluster.run(20.0)
    written = list(recorder.noted)
    assert {line["query"] for line in written} == {"q"}
    assert {line["key"] for line in written} == {"q-1", "q-2"}
    assert all(key_of(line)[0] == line["key"] for line in written)
    assert {line["batch"] for line in written} == {None}, "Spark has not reported on them yet"
    last = {line["key"]: line for line in written}
    for number, line in enumerate(last.values()):
        report(cluster, number, {key_of(line): 0.0})
    assert recorder.noted[len(written) :] == [
        {**line, "batch": number} for number, line in enumerate(last.values())
    ]


def test_a_batch_that_is_run_again_after_a_crash_has_a_line(virtual: Lab) -> None:
    cluster, recorder = start(virtual)
    query = cluster.add("q", "gold", virtual.stream(cluster, 1000.0))
    offset = Offset("q", {0: 0}, {0: 1000}, grant=5, books=Books(700, 300))
    query.offsets["q"] = offset
    cluster.connect(query, "q")
    cluster.handle(BatchPlanned(cluster.at(), "q", offset, 700))
    report(cluster, 4, {("q", 5): 100.0})
    assert not recorder.noted
    cluster.handle(Asked(cluster.at(), "q", offset))
    (line,) = recorder.noted
    assert (line["key"], line["grants"], line["batch"]) == ("q", {"q": 5}, 4)
    assert (line["rows"], line["dropped_by_watermark"]) == (700, 100.0)
    assert line["sic_batch"] == line["sic"] == pytest.approx(0.6)
    assert cluster.engine.members.queries["q"].costs.model.state.seen == 0, "and is not learned from"


def test_a_report_that_comes_batches_later_amends_the_line_of_its_own_batch(virtual: Lab) -> None:
    cluster, recorder = start(virtual)
    cluster.add("q", "gold", virtual.stream(cluster, 1000.0))
    cluster.run(20.0)
    query = cluster.engine.members.queries["q"]
    while query.lease is None:
        cluster.run(0.05)
    *_, seventh, eighth = list(recorder.noted)
    lines = len(recorder.noted)
    report(cluster, 7, {key_of(seventh): seventh["rows"] / 2})
    (anew,) = recorder.noted[lines:]
    assert anew == {
        **seventh,
        "batch": 7,
        "dropped_by_watermark": seventh["rows"] / 2,
        "sic_batch": pytest.approx(0.5),
        "sic": anew["sic"],
    }
    assert query.lease.dropped == 0.0
    report(cluster, 8, {key_of(eighth): 0.0})
    assert recorder.noted[-1] == {**eighth, "batch": 8}
    ninth = lines + 2
    while len(recorder.noted) == ninth:
        cluster.run(0.05)
    assert recorder.noted[ninth]["dropped_by_watermark"] == 0.0


def test_a_report_that_comes_too_late_counts_and_changes_no_line(virtual: Lab) -> None:
    cluster, recorder = start(virtual)
    cluster.add("q", "gold", virtual.stream(cluster, 1000.0))
    cluster.run(20.0)
    lines = len(recorder.noted)
    report(cluster, 0, {key_of(recorder.noted[-NOTED_BATCHES - 1]): 10.0})
    assert len(recorder.noted) == lines
    assert cluster.engine.members.queries["q"].results.dropped == 10.0


def test_a_number_that_was_known_in_time_is_not_noted_twice(virtual: Lab) -> None:
    cluster, recorder = start(virtual)
    cluster.add("q", "gold", virtual.stream(cluster, 1000.0))
    query = cluster.engine.members.queries["q"]
    while query.lease is None or not query.lease.logged:
        cluster.run(0.05)
    query.lease.start_last_stage(cluster.timer(), 3)
    while not recorder.noted:
        cluster.run(0.05)
    (line,) = recorder.noted
    assert line["batch"] == 3
    report(cluster, 3, {key_of(line): 0.0})
    assert recorder.noted == [line]


def test_a_job_that_does_not_say_its_batch_leaves_what_is_known() -> None:
    lease = Lease(Terms(0.0))
    lease.start_last_stage(1.0, 3)
    lease.start_last_stage(2.0)
    assert (lease.batch, lease.jobs) == (3, 2)


def test_the_last_batch_of_a_query_that_has_stopped_still_gets_its_number(virtual: Lab) -> None:
    cluster, recorder = start(virtual)
    query = cluster.add("q", "gold", virtual.stream(cluster, 1000.0))
    cluster.run(20.0)
    last = recorder.noted[-1]
    cluster.stop(query)
    report(cluster, 9, {key_of(last): 10.0})
    assert recorder.noted[-1] == {**last, "batch": 9}, "what it lost is not booked any more"
    assert cluster.engine.members.queries["q"].results.dropped == 0.0


def test_a_batch_of_which_rows_were_dropped_as_late_is_noted_anew(virtual: Lab) -> None:
    cluster, recorder = start(virtual)
    query = cluster.add("q", "gold", virtual.stream(cluster, 1000.0))
    cluster.run(20.0)
    last, (batch, *_) = recorder.noted[-1], reversed(query.batches)
    rows, lines = batch.books.admitted, len(recorder.noted)
    key = ("q", batch.offset.grant)
    assert last["rows"] == rows
    assert last["dropped_by_watermark"] == 0
    for _ in range(2):
        report(cluster, 17, {key: rows / 4})
    assert len(recorder.noted) == lines + 2
    anew = recorder.noted[-1]
    assert anew == {
        **last,
        "batch": 17,
        "dropped_by_watermark": rows / 2,
        "sic_batch": 0.5,
        "sic": anew["sic"],
    }
    assert 0.5 < anew["sic"] < 1.0
    report(cluster, 17, {("gone", 1): 10.0})
    assert len(recorder.noted) == lines + 2
    found = cluster.status().to_json()["classes"]["gold"]["queries"]["q"]
    assert found["dropped_by_watermark"] == rows / 2
    assert found["sic"] == pytest.approx(anew["sic"])


def test_every_batch_is_noted_with_what_it_stands_on(virtual: Lab) -> None:
    cluster, recorder = start(virtual)
    cluster.add("q", "gold", virtual.stream(cluster, 1000.0))
    cluster.run(20.0)
    noted = recorder.noted
    assert len(noted) >= 3
    assert {line["query"] for line in noted} == {"q"}
    assert all(line["sic_batch"] == line["sic"] == 1.0 for line in noted)
    assert sum(line["rows"] for line in noted) == cluster.status().classes["gold"].admitted


def test_rows_that_were_dropped_of_an_older_batch_do_not_change_the_line_of_the_last(virtual: Lab) -> None:
    cluster, recorder = start(virtual)
    streams = {"a": virtual.stream(cluster, 1000.0), "b": virtual.stream(cluster, 1000.0, seconds=5.0)}
    query = cluster.add("q", "gold", streams)
    cluster.run(30.0)
    lines = len(recorder.noted)
    grants = {name: offset.grant for name, offset in query.offsets.items()}
    assert grants["q-a"] > grants["q-b"], "the last batches had no rows of the other stream"
    report(cluster, 3, {("q-b", grants["q-b"]): 10.0})
    assert len(recorder.noted) == lines
    report(cluster, 17, {("q-a", grants["q-a"]): 10.0})
    assert len(recorder.noted) == lines + 1
