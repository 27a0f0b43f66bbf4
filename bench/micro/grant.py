"""What a question costs the engine: one that cannot be answered yet, and one that is granted.

The engine alone is measured, in CPU time of the process: events in, instructions out. Headers are made here,
as tailers hand them in; nothing is read. All queries of three classes wait, with short backlogs of one
partition, unless a row says otherwise.
"""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import process_time_ns

import numpy as np
import pyarrow as pa

from penstock.bench import BenchRun
from penstock.config.flow import load_flow_config
from penstock.control.core import events as ev
from penstock.control.core.engine import Engine
from penstock.control.core.instructions import GrantIssued
from penstock.control.state.query import Joining, QueryCost
from penstock.grants.offset import Books, Offset
from penstock.streams.protocol import HeaderArrays
from penstock.streams.tailing import NewSegments, StreamInfo
from penstock.vocabulary.moment import Moment

CLASSES = {
    "gold": {"target": "2s", "priority": 6},
    "silver": {"target": "4s", "priority": 3},
    "bronze": {"target": "10s", "priority": 1},
}
SEGMENT_ROWS = 1000
SHORT = 8
"""Waiting segments of a partition of a short backlog."""
EPOCH_S = 1_700_000_000.0
FIXED_S, ROW_S = 0.15, 20e-6
LONG = 1_000_000
SCHEMA = pa.schema([("value", pa.int64())])
MANY = 64


class Bed:
    """An engine with queries that all wait, and time that passes when the bench says so.

    Args:
        queries: How many.
        segments: Waiting segments of each partition of the first query; the others have short backlogs.
        partitions: Of each stream.
    """

    def __init__(self, queries: int, segments: int = SHORT, partitions: int = 1) -> None:
        self.now_s = 100.0
        config = load_flow_config({"log": "logs", "classes": CLASSES})
        keys = [f"q{i:04d}" for i in range(queries)]
        self.engine = Engine(config, self.at(), {key: _learned() for key in keys})
        self.offsets: dict[str, Offset] = {}
        self.ends: dict[str, int] = {}
        self.partitions = partitions
        self.running: str | None = None
        for i, key in enumerate(keys):
            self.ends[key] = 0
            self.arrive(key, segments if i == 0 else SHORT)
            self.offsets[key] = Offset.initial(key, dict.fromkeys(range(partitions), 0))
            who = Joining(key, key, list(CLASSES)[i % 3], token=f"token of {key}")
            stream = StreamInfo(key, key, partitions, user_schema=SCHEMA)
            self.engine.handle(ev.ReaderJoined(self.at(), who, stream, key, self.offsets[key]))

    def at(self) -> Moment:
        return Moment(self.now_s, EPOCH_S + self.now_s)

    def arrive(self, key: str, segments: int) -> None:
        """Segments of a stream that arrived in the last moments, a millisecond each at most."""
        first = self.ends[key] + SEGMENT_ROWS * np.arange(segments)
        rows = np.full(segments, SEGMENT_ROWS)
        every_s = min(1e-3, 1.0 / segments)
        high_us = ((EPOCH_S + self.now_s - every_s * np.arange(segments, 0, -1)) * 1e6).astype(np.int64)
        headers = HeaderArrays(first, rows, high_us - 100, high_us, high_us - 50.0)
        self.ends[key] += SEGMENT_ROWS * segments
        new = [NewSegments(p, 0, self.ends[key], headers) for p in range(self.partitions)]
        self.engine.handle(ev.RowsArrived(self.at(), key, new))

    def ask(self, key: str) -> str | None:
        """A question; returns who is granted with it."""
        for said in self.engine.handle(ev.Asked(self.at(), key, self.offsets[key])):
            if isinstance(said, GrantIssued):
                self.offsets[said.reader] = self.offsets[said.reader].advanced(
                    said.grant.end, said.grant.late, said.grant.plan, Books(1)
                )
                return said.reader
        return None

    def all_ask(self) -> None:
        """Everybody asks; the first that can be granted is, and its batch runs."""
        for key in self.offsets:
            if (granted := self.ask(key)) is not None:
                self.start(granted)

    def start(self, key: str) -> None:
        """Spark plans the batch of a query that was granted."""
        self.running = key
        offset = self.offsets[key]
        self.engine.handle(ev.BatchPlanned(self.at(), key, offset, offset.rows))

    def ready(self) -> str:
        """The batch that runs ends, and its query has new rows to ask for; returns who."""
        assert self.running is not None
        self.now_s += 0.5
        self.arrive(self.running, SHORT)
        return self.running

    def granted(self) -> tuple[float, float, float]:
        """The next question that is granted: microseconds, plans of turns and looks at headers in it."""
        for _ in range(20):
            key = self.ready()
            engine = self.engine
            plans, looks, began_ns = engine.scheduler.plans, engine.backlog.looks, process_time_ns()
            granted = self.ask(key)
            took_ns = process_time_ns() - began_ns
            if granted is not None:
                self.start(granted)
                return took_ns / 1e3, engine.scheduler.plans - plans, engine.backlog.looks - looks
            self.running = key
        raise AssertionError("expected: somebody is granted; got: nobody, at twenty questions")


def _learned() -> QueryCost:
    """A cost that is known, as an earlier process of the control plane leaves it."""
    cost = QueryCost(largest_rows=1_000_000)
    for i in range(8):
        rows = 1000 * 4 ** min(i, 4)
        cost.model.learn(rows, FIXED_S + rows * ROW_S)
    return cost


def measure(run: BenchRun) -> None:
    """Measures, and notes what was measured."""
    repeats = 20 if run.quick else 200
    run.progress(total=6)
    with _no_collection():
        run.progress("1,000 queries", advance=1)
        bed = Bed(1000)
        bed.all_ask()
        waiting = [key for key in bed.offsets if key != bed.running]
        idle_us = statistics.median(_idle_us(bed, key) for key in waiting[:repeats])
        round_s = _round_s(bed)
        found = [bed.granted() for _ in range(repeats)]
        run.progress("100 queries", advance=1)
        few = _grants(lambda: Bed(100), repeats)
        many_us = statistics.median(us for us, _, _ in found)
        few_us = statistics.median(us for us, _, _ in few)
        run.row("idle_ask_1000_us", idle_us)
        run.row("grant_100_us", few_us)
        run.row("grant_1000_us", many_us)
        run.row("grant_1000_to_100", many_us / few_us)
        run.row("round_1000_s", round_s)
        run.row("schedules_per_grant", max(plans for _, plans, _ in (*found, *few)))
        run.row("header_reads_per_grant", max(looks for _, _, looks in (*found, *few)))
        for name, make in (
            ("million_segments_ratio", lambda: Bed(100, segments=LONG)),
            ("partitions_64_ratio", lambda: Bed(100, partitions=MANY)),
        ):
            run.progress(name, advance=2)
            hard = statistics.median(us for us, _, _ in _grants(make, repeats))
            run.row(name, hard / few_us)


def _grants(make: Callable[[], Bed], repeats: int) -> list[tuple[float, float, float]]:
    bed = make()
    bed.all_ask()
    return [bed.granted() for _ in range(repeats)]


def _idle_us(bed: Bed, key: str) -> float:
    """A question of a query that waits, while another one's batch runs."""
    bed.now_s += 1e-4
    bed.engine.handle(ev.QuestionEnded(bed.at(), key))
    began_ns = process_time_ns()
    granted = bed.ask(key)
    took_ns = process_time_ns() - began_ns
    assert granted is None
    return took_ns / 1e3


def _round_s(bed: Bed) -> float:
    """All queries ask once, as they do when their questions were held for long enough."""
    began_ns = process_time_ns()
    for key in bed.offsets:
        if key != bed.running:
            bed.now_s += 1e-4
            bed.engine.handle(ev.QuestionEnded(bed.at(), key))
            bed.ask(key)
    return (process_time_ns() - began_ns) / 1e9


@contextmanager
def _no_collection() -> Iterator[None]:
    """The garbage collector's pauses are not the engine's."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
