"""A simulated Spark driver in virtual time: the governor and the paced log are the real ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.config import FlowConfig, load_flow_config
from penstock.control.governor import Governor
from penstock.control.members import Joining
from penstock.control.status import status
from penstock.grants.offset import Books, Offset
from penstock.grants.plan import KEEP_ALL, Plan
from penstock.grants.selection import evened, grant_books, select
from penstock.log.embedded import EmbeddedLog
from penstock.log.paced import PacedLog, create_paced
from penstock.log.protocol import StreamLog
from penstock.log.schedule import Schedule, schedule_constant
from penstock.testing import ManualClock

POLL_S, HOLD_S, BEAT_S = 0.01, 0.1, 0.02
"""As the server: how often a question is looked at again, how long it is held, how often time is booked."""


@dataclass
class Machine:
    """What a micro-batch takes: level * (fixed_s + row_s * rows) * (1 + noise)."""

    fixed_s: float = 0.15
    row_s: float = 20e-6
    noise: float = 0.0
    level: Callable[[float], float] = lambda _: 1.0

    def took_s(self, now_s: float, rows: int, random: np.random.Generator) -> float:
        factor = max(0.3, 1.0 + self.noise * float(random.standard_normal()))
        return self.level(now_s) * (self.fixed_s + self.row_s * rows) * factor

    def capacity_per_s(self, target_s: float) -> float:
        """Rows a second when a filled log is drained in batches of half the target, as issue 3 defines it."""
        return (target_s / 2 - self.fixed_s) / self.row_s / (target_s / 2)


@dataclass
class Batch:
    """One micro-batch as it was: when it was granted and done, and the true delays of its rows."""

    began_s: float
    done_s: float
    offset: Offset
    books: Books
    delays_s: np.ndarray
    rows: np.ndarray


@dataclass
class SimulatedQuery:
    """One streaming query of one or several readers: asks, plans, runs, asks again."""

    key: str
    cls: str
    machine: Machine
    logs: dict[str, StreamLog]
    offsets: dict[str, Offset]
    connections: dict[str, object]
    random: np.random.Generator
    batches: list[Batch] = field(default_factory=list)
    held_until_s: float | None = None
    done_s: float | None = None
    next_s: float = 0.0
    stopped: bool = False
    ticks: int = 0
    writes: EmbeddedLog | None = None
    """A shared segment that gets the rows of each batch when it is done, with their arrivals."""


class VirtualCluster:
    """A governor with queries that follow the real protocol, in virtual time.

    The wall clock that stamps rows and the timer that measures durations are two, so that one may go back.
    """

    def __init__(self, config: FlowConfig) -> None:
        self.clock, self.timer = ManualClock(1_000_000.0), ManualClock(50.0)
        self.governor = Governor(config, self.clock, self.timer)
        self.queries: dict[str, SimulatedQuery] = {}
        self._beat_s = self.timer() + BEAT_S
        self.checks: list[Callable[[VirtualCluster], None]] = []

    def add(
        self,
        key: str,
        cls: str,
        logs: StreamLog | Mapping[str, StreamLog],
        machine: Machine | None = None,
        seed: int = 1,
    ) -> SimulatedQuery:
        given = {"": logs} if not isinstance(logs, Mapping) else dict(logs)
        query = SimulatedQuery(
            key, cls, machine or Machine(), {}, {}, {}, np.random.default_rng(seed), next_s=self.timer()
        )
        for slot, log in given.items():
            reader = f"{key}-{slot}" if slot else key
            query.logs[reader] = log
            query.offsets[reader] = Offset.initial(reader, {p: log.start(p) for p in range(log.partitions)})
            self.connect(query, reader, slot)
        self.queries[key] = query
        return query

    def connect(self, query: SimulatedQuery, reader: str, slot: str = "") -> None:
        query.connections[reader] = object()
        self.governor.join(
            Joining(query.key, query.key, query.cls, slot),
            query.logs[reader],
            query.connections[reader],
            query.offsets[reader],
        )

    def run(self, seconds: float) -> None:
        """Lets virtual time pass."""
        until_s = self.timer() + seconds
        while True:
            live = [q for q in self.queries.values() if not q.stopped]
            at_s = min([self._beat_s, *(q.next_s for q in live)])
            if at_s > until_s:
                self._advance(until_s)
                return
            self._advance(at_s)
            if at_s == self._beat_s:
                self.governor.beat()
                self._beat_s += BEAT_S
            for query in sorted(live, key=lambda q: q.key):
                if query.next_s <= at_s and not query.stopped:
                    self._step(query)
            for check in self.checks:
                check(self)

    def _advance(self, to_s: float) -> None:
        by_s = max(0.0, to_s - self.timer())
        self.timer.advance(by_s)
        self.clock.advance(by_s)

    def _step(self, query: SimulatedQuery) -> None:
        now_s = self.timer()
        readers = list(query.offsets)
        if query.done_s is not None or query.held_until_s is None or now_s >= query.held_until_s:
            if query.done_s is not None and query.writes is not None:
                _write(query.writes, query.batches[-1], self.clock())
            query.done_s = None
            query.held_until_s = now_s + HOLD_S
            self.governor.ask(readers[0], query.offsets[readers[0]])
        answer = self.governor.answer(readers[0])
        if answer is None:
            query.next_s = now_s + POLL_S
            return
        query.held_until_s = None
        given = {readers[0]: answer}
        for other in readers[1:]:
            self.governor.ask(other, query.offsets[other])
            more = self.governor.answer(other)
            if more is not None:
                given[other] = more
        rows = 0
        for reader, each in given.items():
            rows += self._plan(query, reader, each.end, each.late, each.plan)
        query.ticks += answer.tick
        took_s = query.machine.took_s(now_s, rows, query.random)
        query.done_s = query.next_s = now_s + took_s
        for batch in query.batches[-len(given) :]:
            batch.done_s = query.done_s
            batch.delays_s = batch.delays_s + took_s

    def _plan(
        self,
        query: SimulatedQuery,
        reader: str,
        end: Mapping[int, int],
        late: Mapping[int, int],
        plan: Plan = KEEP_ALL,
    ) -> int:
        """As the source does: count, propose, and say that Spark plans it."""
        log, start = query.logs[reader], query.offsets[reader]
        draft = start.advanced(end, late, plan, Books())
        draft = replace(draft, plan=evened(log, draft))
        selections = select(log, draft)
        books = grant_books(log, draft, selections)
        offset = replace(draft, books=start.books.plus(books))
        ages, rows = [np.empty(0)], [np.empty(0)]
        for s in selections:
            if s.first.size:
                headers = log.header_arrays(s.partition, int(s.first[0]), int(s.end[-1]))
                at = np.searchsorted(headers.first_position, s.first, side="right") - 1
                middle_us = (headers.arrival_min_us[at] + headers.arrival_max_us[at]) / 2
                ages.append(self.clock() - middle_us / 1e6)
                rows.append(s.kept.astype(float))
        batch = Batch(self.timer(), self.timer(), offset, books, np.concatenate(ages), np.concatenate(rows))
        query.batches.append(batch)
        assert self.governor.planned(reader, offset, books.admitted)
        query.offsets[reader] = offset
        return books.admitted

    def status(self) -> dict[str, Any]:
        return status(self.governor)


def _write(segment: EmbeddedLog, batch: Batch, now_s: float) -> None:
    arrival_us = np.repeat(((now_s - batch.delays_s) * 1e6).astype(np.int64), batch.rows.astype(np.int64))
    if arrival_us.size:
        rows = pa.record_batch({"value": np.arange(arrival_us.size)})
        segment.append(rows, arrival_us=np.sort(arrival_us))


def admitted_between(query: SimulatedQuery, from_s: float, to_s: float) -> int:
    return sum(b.books.admitted for b in query.batches if from_s <= b.done_s < to_s)


def delay(query: SimulatedQuery, quantile: float, from_s: float) -> float:
    """A percentile of the true delays of rows whose batch was done after a moment."""
    batches = [b for b in query.batches if b.done_s >= from_s]
    delays_s, rows = np.concatenate([b.delays_s for b in batches]), np.concatenate([b.rows for b in batches])
    order = np.argsort(delays_s)
    upto = np.cumsum(rows[order])
    return float(delays_s[order][np.searchsorted(upto, quantile * upto[-1])])


def check_books(cluster: VirtualCluster) -> None:
    """offered = admitted + shed + waiting, and offered is what the log has, or had when the query left."""
    for query in cluster.queries.values():
        found = cluster.status()["classes"][query.cls]["queries"][query.key]
        assert found["offered"] == found["admitted"] + found["shed"] + found["waiting"]
        there = sum(log.end(p) for log in query.logs.values() for p in range(log.partitions))
        assert found["offered"] <= there if query.stopped else found["offered"] == there
        assert found["admitted"] == sum(batch.books.admitted for batch in query.batches)


class Cluster:
    """What tests get: makes configurations, paced streams and clusters in one temporary directory."""

    machine, admitted_between, delay = Machine, staticmethod(admitted_between), staticmethod(delay)
    check_books = staticmethod(check_books)

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._streams = 0
        self.open = ExitStack()
        """Logs that a test writes to: closed after it, or the garbage collector complains in another."""

    def __call__(self, classes: Mapping[str, Mapping[str, Any]], **others: Any) -> VirtualCluster:
        return VirtualCluster(load_flow_config({"log": self.folder, "classes": dict(classes), **others}))

    def stream(
        self,
        cluster: VirtualCluster,
        schedule: Schedule | float,
        seconds: float = 120.0,
        key: str | None = None,
        begin: bool = True,
    ) -> PacedLog:
        """A paced stream on the cluster's clock; a number is a rate in rows a second."""
        if not isinstance(schedule, Schedule):
            schedule = schedule_constant(schedule, seconds)
        self._streams += 1
        size = int(schedule.rows.max())
        pool = pa.record_batch({"value": np.arange(size), "sensor": [f"s{i % 97}" for i in range(size)]})
        log = create_paced(
            self.folder / f"stream{self._streams}", [pool], schedule, key=key, clock=cluster.clock
        )
        if begin:
            log.begin()
        return log

    def segment(self, cluster: VirtualCluster, cls: str, writer: str) -> EmbeddedLog:
        """A shared segment of a class that a query writes."""
        schema = pa.schema([("value", pa.int64())])
        log = self.open.enter_context(
            EmbeddedLog.create(self.folder / f"by_{writer}", schema, clock=cluster.clock)
        )
        cluster.governor.share(str(log.directory), cls)
        cluster.governor.sic.writers[str(log.directory)] = writer
        cluster.queries[writer].writes = log
        return log


@pytest.fixture
def virtual(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    with made.open:
        yield made
