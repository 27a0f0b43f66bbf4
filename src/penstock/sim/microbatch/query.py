"""A streaming query in virtual time: Spark's loop over micro-batches, with a checkpoint that outlives it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import Enum

import numpy as np
import pyarrow as pa

from penstock.grants.offset import Books, Offset
from penstock.sim.microbatch.line import Host, Line, Pause, Waits
from penstock.sim.microbatch.machine import Machine, TaskMachine
from penstock.sim.microbatch.source import Attempts, Planned, Source
from penstock.streams.protocol import AppendKey, StreamLog, StreamWriter
from penstock.vocabulary.errors import PenstockError
from penstock.vocabulary.model import FloatArray

POLLING_S = 0.01
"""Spark's `pollingDelay`: how long it waits after sources that have nothing new."""


class Point(Enum):
    """Moments in the life of a grant at which a query can be lost."""

    PROPOSED = "proposed"
    """The control plane has answered; Spark has not logged the offset. The grant is an orphan."""
    LOGGED = "logged"
    """Spark has logged the offset, and has not planned the batch. It runs again after a restart."""
    RUNNING = "running"
    """The batch's tasks run."""
    DONE = "done"
    """The batch is done, which Spark has not logged yet: it runs again all the same."""


class QueryLostError(PenstockError):
    """A query ends where a test or a scenario wants it to; a batch of it fails."""


@dataclass(slots=True, eq=False)
class Batch:
    """One reader's part of a micro-batch: when it began and was done, and the true delays of its rows.

    Attributes:
        began_s: On the timer, when Spark planned it; for a batch that ran again, the last time.
        done_s: On the timer, when it is done.
        offset: Where it ends.
        books: What it added to the reader's books.
        delays_s: From arrival to `done_s`, a mean for each segment.
        rows: How many rows have that delay.
        runs: How often it was run.
    """

    began_s: float
    done_s: float
    offset: Offset
    books: Books
    delays_s: FloatArray = field(default_factory=lambda: np.empty(0))
    rows: FloatArray = field(default_factory=lambda: np.empty(0))
    runs: int = 1


def numbered(rows: int) -> pa.RecordBatch:
    """Rows of a shared stream: a column `value` that counts them."""
    return pa.record_batch({"value": np.arange(rows)})


@dataclass(slots=True, eq=False)
class SimulatedQuery:
    """One streaming query of one or several readers: asks, plans, runs, asks again.

    Attributes:
        key: Its name, by which the cluster and the control plane know it.
        cls: Its class.
        machine: What its batches take.
        random: Of the noise of its batches.
        logs: By reader, the stream that it reads.
        offsets: By reader, the last offset that Spark has logged: the checkpoint.
        unfinished: The offsets of a logged batch that is not known to be done: it runs again after a restart.
        attempts: By reader, what outlives its source.
        sources: By reader, as long as the query runs.
        available_now: Whether it ends at the logs' ends of its start.
        fails: Says of a batch whether it fails, as one with a row that no operator can read.
        writes: A shared stream that gets the rows of each batch when it is done, with their arrivals.
        written: Makes so many rows for it.
        batches: All that it ran.
        ticks: Grants without rows, which let Spark close windows.
        stopped: Whether it does not run.
        error: Why it ended, where it did not just stop.
        crash_at: The moment at which it is lost next.
        next_s: On the timer, when it goes on.
        held: Whether it waits for the control plane.
    """

    key: str
    cls: str
    machine: Machine | TaskMachine
    random: np.random.Generator
    logs: dict[str, StreamLog] = field(default_factory=dict)
    offsets: dict[str, Offset] = field(default_factory=dict)
    unfinished: dict[str, Offset] = field(default_factory=dict)
    attempts: dict[str, Attempts] = field(default_factory=dict)
    lines: dict[str, Line] = field(default_factory=dict)
    sources: dict[str, Source] = field(default_factory=dict)
    available_now: bool = False
    fails: Callable[[Mapping[str, Offset]], bool] | None = None
    writes: StreamWriter | None = None
    written: Callable[[int], pa.RecordBatch] = numbered
    batches: list[Batch] = field(default_factory=list)
    ticks: int = 0
    stopped: bool = False
    error: Exception | None = None
    crash_at: Point | None = None
    next_s: float = 0.0
    held: bool = False
    life: Waits[None] | None = None
    number: int = -1
    """Spark's number of its last micro-batch."""
    job: int | None = None
    """The job of its running micro-batch, on cores."""

    @property
    def connections(self) -> dict[str, object]:
        """By reader, its connection to the control plane."""
        return {reader: line.connection for reader, line in self.lines.items()}

    def live(self, host: Host) -> Waits[None]:
        """Runs until AvailableNow is at its end; a query with the default trigger never is."""
        if self.unfinished:
            yield from self._run(host, self.unfinished, {})
        while True:
            proposed: dict[str, Offset] = {}
            for reader, source in self.sources.items():
                offset = yield from source.latest(self.offsets[reader])
                if offset is not None:
                    proposed[reader] = offset
            if proposed:
                self._reach(Point.PROPOSED)
                before = {reader: self.offsets[reader] for reader in proposed}
                self._log(proposed)
                self._reach(Point.LOGGED)
                yield from self._run(host, proposed, before)
            elif self.available_now:
                return
            else:
                yield Pause(POLLING_S)

    def _log(self, proposed: Mapping[str, Offset]) -> None:
        """Spark writes its offset log."""
        self.number += 1
        self.unfinished = dict(proposed)
        self.offsets.update(proposed)

    def _run(self, host: Host, offsets: Mapping[str, Offset], before: Mapping[str, Offset]) -> Waits[None]:
        """Plans and runs a batch; without `before` it is one that runs again."""
        planned: dict[str, Planned] = {}
        batches = []
        if isinstance(self.machine, TaskMachine):
            yield Pause(self.machine.log_s)
        for reader, offset in offsets.items():
            if reader not in before:  # the control plane counts it since the query has joined
                batches.append(self.again(reader, host.now_s()))
            planned[reader] = yield from self.sources[reader].plan(offset)
            if reader in before:
                books = _minus(offset.books, before[reader].books)
                batches.append(Batch(host.now_s(), host.now_s(), offset, books))
                self.batches.append(batches[-1])
                self.ticks += offset.tick
        now_s, wall_s = host.now_s(), host.wall_s()
        rows = sum(p.rows for p in planned.values())
        alone_s = math.inf
        if isinstance(self.machine, Machine):
            alone_s = self.machine.took_s(now_s, rows, self.random)
        for batch in batches:
            batch.began_s, batch.done_s = now_s, now_s + alone_s
        self._reach(Point.RUNNING)
        if isinstance(self.machine, TaskMachine):
            yield from self._on_cores(host, self.machine, list(planned.values()))
        else:
            yield from self._tasks(host, self.machine, alone_s)
        took_s = host.now_s() - now_s
        for batch, part in zip(batches, planned.values(), strict=True):
            batch.done_s = host.now_s()
            batch.delays_s, batch.rows = wall_s + took_s - part.arrival_s, part.counts
        if self.fails is not None and self.fails({r: offsets[r] for r, p in planned.items() if p.rows}):
            raise QueryLostError(f"query {self.key}: batch {self.number} failed")
        self._write(batches, host.wall_s())
        self._reach(Point.DONE)
        self.unfinished = {}
        for reader, offset in offsets.items():
            self.sources[reader].commit(offset)

    def again(self, reader: str, now_s: float) -> Batch:
        """The record of a batch that runs again after a restart."""
        offset = self.offsets[reader]
        for batch in reversed(self.batches):
            if batch.offset == offset:
                batch.runs += 1
                return batch
        earlier = [b.offset.books for b in self.batches if b.offset.reader == reader]
        batch = Batch(now_s, now_s, offset, _minus(offset.books, earlier[-1] if earlier else Books()))
        self.batches.append(batch)
        self.ticks += offset.tick
        return batch

    def _on_cores(self, host: Host, machine: TaskMachine, planned: Sequence[Planned]) -> Waits[None]:
        """A batch whose tasks share the cluster's cores; the driver says what they take."""
        yield Pause(machine.plan_s + machine.first_plan_s / 2 ** min(self.number, 60))
        rows = sum(part.rows for part in planned)
        tasks = sum(_read_tasks(part, host.cores.count) for part in planned)
        stages = machine.stages(host.now_s(), rows, tasks, self.random)
        ready_s, core_s, count = host.now_s(), 0.0, 0
        job = self.job = host.cores.job()
        for number, seconds in enumerate(stages):
            if number == len(stages) - 1:
                host.last_stage(self.key, self.number)
            stage = host.cores.begin(
                job, seconds, lambda _: host.go_on(self.key), host.now_s(), machine.cold_s
            )
            try:
                while not stage.is_done:
                    yield Pause(math.inf)
            finally:  # the query may be stopped meanwhile
                host.cores.cancel(stage, host.now_s())
            core_s, count = core_s + stage.core_s, count + stage.tasks
        if stages:
            host.job_ended(self.key, self.number, count, core_s, host.now_s() - ready_s)
        yield Pause(machine.end_s)

    def _tasks(self, host: Host, machine: Machine, took_s: float) -> Waits[None]:
        """The time of a batch; the driver says when the last stages of its jobs start."""
        rest_s = took_s * machine.last_stage_fraction if machine.jobs else took_s
        if machine.jobs:
            yield Pause(took_s - rest_s)
            for _ in range(machine.jobs):
                host.last_stage(self.key, self.number)
        yield Pause(rest_s)

    def _reach(self, point: Point) -> None:
        if self.crash_at is point:
            self.crash_at = None
            raise QueryLostError(f"query {self.key}: lost when its grant was {point.value}")

    def _write(self, batches: list[Batch], now_s: float) -> None:
        """Appends a batch's rows to the stream that the query writes; once, also if the batch runs again."""
        if self.writes is None or not batches:
            return
        delays_s = np.concatenate([b.delays_s for b in batches])
        rows = np.concatenate([b.rows for b in batches]).astype(np.int64)
        arrival_us = np.repeat(((now_s - delays_s) * 1e6).astype(np.int64), rows)
        if arrival_us.size:
            values = self.written(arrival_us.size)
            self.writes.append(values, key=AppendKey(self.key, self.number), arrival_us=np.sort(arrival_us))


LEAST_TASK_ROWS = 20_000
"""Rows of a read task if the control plane does not say how many tasks there are, as in Spark's source."""


def _read_tasks(part: Planned, cores: int) -> int:
    if not part.rows:
        return 0
    tasks = max(1, min(cores, part.rows // LEAST_TASK_ROWS)) if part.tasks is None else part.tasks
    return min(tasks, part.rows)


def _minus(books: Books, before: Books) -> Books:
    return Books(*(getattr(books, f.name) - getattr(before, f.name) for f in fields(Books)))
