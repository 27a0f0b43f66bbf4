"""What a question costs the engine: one that cannot be answered yet, and one that is answered with a grant.

The engine alone is measured, in CPU time of the process: events go in, instructions come out. The bench makes
the headers of segments, as tailers hand them in, and is the cluster: it knows every lease, and drives each
grant through its whole life. A query is granted, Spark plans its batch, the batch runs as long as its cost
says, new rows arrive for the query, and its next question ends the lease. With that question the engine
grants to another query, and this `handle` is what the bench measures.

Batches do not overlap here: the tuning of the engine says that a batch begins when the one before has ended.
Otherwise most grants would be given in the moments before that end, with no question to measure. Batches are
eager, so that all queries want a turn, and targets are as long as a few rounds of all queries take, so that a
bed of a thousand queries is as loaded as one of a hundred.
"""

from __future__ import annotations

import gc
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from time import process_time_ns

import numpy as np
import pyarrow as pa

from penstock.bench import BenchRun
from penstock.config.flow import FlowConfig, load_flow_config
from penstock.control.core import events as ev
from penstock.control.core.engine import Engine
from penstock.control.core.instructions import GrantIssued, MayProceed
from penstock.control.state.query import Joining, QueryCost
from penstock.control.tuning import TUNING
from penstock.grants.offset import Books, Offset
from penstock.streams.protocol import HeaderArrays
from penstock.streams.tailing import NewSegments, StreamInfo
from penstock.vocabulary.moment import Moment

CLASSES = {"gold": (3.0, 6), "silver": (6.0, 3), "bronze": (20.0, 1)}
"""By class, its target in rounds of all queries, and its priority."""
SHORT = 8
"""Waiting segments of a short backlog, of each partition."""
ROWS = 8_192
"""Rows of a short backlog, over all its segments."""
FIXED_S, ROW_S = 0.15, 20e-6
ROUND_S = FIXED_S + ROWS * ROW_S
"""What a batch of a short backlog takes: a round of all queries has so much for each."""
EPOCH_S = 1_700_000_000.0
EVERY_S = 1e-3
"""Between the arrivals of two segments."""
SCHEMA = pa.schema([("value", pa.int64())])
SHARED = "shared"
MILLION, MANY_PARTITIONS = 1_000_000, 64
FIRST_GRANTS = 50
"""So many grants of the bed with a million segments are first ones of a query: all segments wait for it."""
NO_OVERLAP = replace(TUNING, eager=True, overlap_fixed=-1.0, guessed_overlap_fixed=-1.0)
"""A batch may begin beside another one when that one is a whole fixed cost overdue: here none ever is."""


@dataclass(frozen=True, slots=True)
class Granted:
    """A question that ended a lease and was followed by a grant.

    Attributes:
        us: Microseconds of CPU time.
        plans: How often turns were planned.
        looks: How often the engine looked up in headers what waits for a query.
    """

    us: float
    plans: int
    looks: int


class Bed:
    """An engine with queries that all wait, and a cluster that runs one batch after the other.

    Args:
        queries: How many queries.
        partitions: How many partitions each stream has.
        backlog: If given, all queries read one stream, which has so many segments waiting and gets no more.
            Then managers shed most rows. Otherwise each query reads a stream of its own with a short backlog.
    """

    def __init__(self, queries: int, partitions: int = 1, backlog: int | None = None) -> None:
        self.now_s = 100.0
        self.partitions, self.shared = partitions, backlog is not None
        keys = [f"q{i:04d}" for i in range(queries)]
        self.engine = Engine(_config(queries), self.at(), {key: _learned() for key in keys}, NO_OVERLAP)
        self.ends: dict[str, int] = {}
        self.running: tuple[str, float] | None = None
        """Whose batch runs, and on the timer, when it ends."""
        if backlog is not None:
            self.arrive(SHARED, backlog)
        self.offsets = {key: Offset.initial(key, dict.fromkeys(range(partitions), 0)) for key in keys}
        for i, (key, offset) in enumerate(self.offsets.items()):
            stream = SHARED if self.shared else key
            if not self.shared:
                self.arrive(key, SHORT)
            who = Joining(key, key, list(CLASSES)[i % len(CLASSES)], token=f"token of {key}")
            info = StreamInfo(stream, stream, partitions, user_schema=SCHEMA)
            self.handle(ev.ReaderJoined(self.at(), who, info, key, offset))
        for key in keys:
            self.handle(ev.Asked(self.at(), key, self.offsets[key]))

    def at(self) -> Moment:
        return Moment(self.now_s, EPOCH_S + self.now_s)

    def handle(self, event: ev.Event) -> int:
        """The engine takes an event in, and a batch runs that it grants; returns nanoseconds of CPU time."""
        began_ns = process_time_ns()
        said = self.engine.handle(event)
        took_ns = process_time_ns() - began_ns
        for each in said:
            if isinstance(each, GrantIssued):
                self._run(each)
        return took_ns

    def _run(self, issued: GrantIssued) -> None:
        """Spark plans the batch of a grant at once, and nothing holds the batch back."""
        if self.running is not None:
            raise AssertionError(f"expected: batches do not overlap; got: {issued} while {self.running} runs")
        grant, before = issued.grant, self.offsets[issued.reader]
        late = sum(max(0, position - before.end[p]) for p, position in grant.late.items())
        rows = sum(end - before.end[p] for p, end in grant.end.items()) - late
        admitted = round(rows * (grant.plan.chance() or 0.0))
        books = Books(admitted, rows - admitted, late)
        offset = self.offsets[issued.reader] = before.advanced(grant.end, grant.late, grant.plan, books)
        planned = self.engine.handle(ev.BatchPlanned(self.at(), issued.reader, offset, books.admitted))
        if not any(isinstance(each, MayProceed) for each in planned):
            raise AssertionError(f"expected: the batch may proceed; got: {planned}")
        self.running = issued.reader, self.now_s + FIXED_S + ROW_S * books.admitted

    def arrive(self, stream: str, segments: int) -> None:
        """Segments of a stream, the last of which arrived a moment ago."""
        rows = ROWS // (SHORT * self.partitions)
        end = self.ends.get(stream, 0)
        every_s = min(EVERY_S, 1.0 / segments)
        high_us = ((EPOCH_S + self.now_s - every_s * np.arange(segments, 0, -1)) * 1e6).astype(np.int64)
        headers = HeaderArrays(
            end + rows * np.arange(segments), np.full(segments, rows), high_us - 1, high_us, high_us - 0.5
        )
        self.ends[stream] = end = end + rows * segments
        new = [NewSegments(p, 0, end, headers) for p in range(self.partitions)]
        self.handle(ev.RowsArrived(self.at(), stream, new))

    def granted(self) -> Granted:
        """The batch that runs ends, and its query asks for what has arrived meanwhile."""
        assert self.running is not None
        key, ends_s = self.running
        while (due_s := self.engine.due_s()) < ends_s:  # the periodic part: the time is divided anew
            self.now_s = max(due_s, self.now_s)
            self.handle(ev.Woke(self.at()))
        self.now_s = ends_s
        if not self.shared:
            self.arrive(key, SHORT)
        self.running, engine = None, self.engine
        plans, looks = engine.scheduler.plans, engine.backlog.looks
        took_ns = self.handle(ev.Asked(self.at(), key, self.offsets[key]))
        if self.running is None:
            raise AssertionError("expected: a query is granted when a batch ends; got: none")
        return Granted(took_ns / 1e3, engine.scheduler.plans - plans, engine.backlog.looks - looks)

    def asked_in_vain(self, key: str) -> int:
        """A question was held long enough, and is put again; returns nanoseconds of CPU time."""
        self.now_s += 1e-6
        ended_ns = self.handle(ev.QuestionEnded(self.at(), key))
        before = self.running
        asked_ns = self.handle(ev.Asked(self.at(), key, self.offsets[key]))
        assert self.running == before
        return ended_ns + asked_ns


def measure(run: BenchRun) -> None:
    """Measures, and notes what was measured."""
    repeats = 20 if run.quick else 300
    run.progress(total=4)
    with _no_collection():
        run.progress("1,000 queries", advance=1)
        bed = Bed(1000)
        assert bed.running is not None
        asked_us = [bed.asked_in_vain(key) / 1e3 for key in bed.offsets if key != bed.running[0]]
        many = _grants(bed, repeats)
        run.progress("100 queries", advance=1)
        few = _grants(Bed(100), repeats)
        run.progress("a million segments", advance=1)
        long = _grants(Bed(100, backlog=MILLION), min(repeats, FIRST_GRANTS))
        run.progress("64 partitions", advance=1)
        wide = _grants(Bed(100, MANY_PARTITIONS), repeats)
    run.row("idle_ask_1000_us", statistics.median(asked_us))
    run.row("round_1000_s", sum(asked_us) / 1e6)
    run.row("grant_100_us", _median_us(few))
    run.row("grant_1000_us", _median_us(many))
    run.row("grant_1000_to_100", _median_us(many) / _median_us(few))
    run.row("million_segments_ratio", _median_us(long) / _median_us(few))
    run.row("partitions_64_ratio", _median_us(wide) / _median_us(few))
    every = [*many, *few, *long, *wide]
    run.row("schedules_per_grant", max(each.plans for each in every))
    run.row("header_reads_per_grant", max(each.looks for each in every))
    run.note(
        f"a grant with a million segments: {_median_us(long):,.0f} us, with 64 partitions: "
        f"{_median_us(wide):,.0f} us"
    )


def _grants(bed: Bed, repeats: int) -> list[Granted]:
    return [bed.granted() for _ in range(repeats)]


def _median_us(grants: list[Granted]) -> float:
    return statistics.median(each.us for each in grants)


def _config(queries: int) -> FlowConfig:
    round_s = queries * ROUND_S
    classes = {
        name: {"target": f"{rounds * round_s:.3f}s", "priority": priority}
        for name, (rounds, priority) in CLASSES.items()
    }
    return load_flow_config({"log": "logs", "classes": classes})


def _learned() -> QueryCost:
    """A cost that is known, as an earlier process of the control plane leaves it."""
    cost = QueryCost(largest_rows=ROWS)
    for rows in (100, 100, 100, *8 * (100, ROWS)):
        cost.model.learn(rows, FIXED_S + rows * ROW_S)
    return cost


@contextmanager
def _no_collection() -> Iterator[None]:
    """The garbage collector's pauses are not the engine's."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
