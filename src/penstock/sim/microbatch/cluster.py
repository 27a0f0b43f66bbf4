"""The virtual cluster: a real governor, and queries that follow the real protocol, in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from penstock.config.flow import FlowConfig
from penstock.control.core.governor import Governor
from penstock.control.core.retention import Trimmer
from penstock.control.core.status import status
from penstock.control.state.classes import RunRecorder
from penstock.control.state.members import Joining
from penstock.grants.offset import Offset
from penstock.host.server import BEAT_S
from penstock.sim.microbatch.line import Line
from penstock.sim.microbatch.machine import Machine
from penstock.sim.microbatch.query import Point, QueryLostError, SimulatedQuery
from penstock.sim.microbatch.recording import Event, Observer
from penstock.sim.microbatch.source import Attempts, GovernedSource, Source
from penstock.streams.protocol import StreamLog
from penstock.testing import ManualClock
from penstock.vocabulary.errors import InvalidInputError
from penstock.vocabulary.status import Status

BEGAN_S, TIMER_S = 1_000_000.0, 50.0
"""Where the wall clock and the timer start."""

MakeSource = Callable[[SimulatedQuery, Line, Offset], Source]


class VirtualCluster:
    """A governor with queries that ask, plan and run as Spark's do. Time passes with `run` alone.

    The wall clock that stamps rows and the timer that measures durations are two, so that one may go back.

    Args:
        config: Classes, slots, capacity.
        recorder: Gets every decision.
    """

    def __init__(self, config: FlowConfig, recorder: RunRecorder | None = None) -> None:
        self.clock, self.timer = ManualClock(BEGAN_S), ManualClock(TIMER_S)
        self.governor = Governor(config, self.clock, self.timer, recorder)
        self.queries: dict[str, SimulatedQuery] = {}
        self.silent = False
        """Whether the control plane answers nobody."""
        self.checks: list[Callable[[VirtualCluster], None]] = []
        """Called after every moment at which something happened."""
        self.observers: list[Observer] = []
        """Get what crosses the edge between sources and the control plane; see `Recording`."""
        self.held = 0
        """Questions that the control plane holds."""
        self._make: dict[str, MakeSource] = {}
        self._trimmer = Trimmer(self.governor)
        self._beat_s = self.timer() + BEAT_S
        self._shared: dict[str, tuple[str, tuple[str, ...]]] = {}
        self._windowed: set[str] = set()

    # -- queries --------------------------------------------------------------------------------

    def add(
        self,
        key: str,
        cls: str,
        logs: StreamLog | Mapping[str, StreamLog],
        machine: Machine | None = None,
        seed: int = 1,
        *,
        token: str = "",
        offsets: Mapping[str, Offset] | None = None,
        available_now: bool = False,
        source: MakeSource | None = None,
    ) -> SimulatedQuery:
        """Starts a query.

        Args:
            key: Its name.
            cls: Its class.
            logs: The stream that it reads, or several by the names of their slots.
            machine: What its batches take.
            seed: Of their noise.
            token: By which the driver tells the control plane of it; none where it tells nothing.
            offsets: By slot, where its readers begin; at the logs' starts by default.
            available_now: Whether it ends when it has read what is there now; nothing is shed then.
            source: Makes its sources; a `GovernedSource` each by default.
        """
        given = dict(logs) if isinstance(logs, Mapping) else {"": logs}
        query = SimulatedQuery(
            key, cls, machine or Machine(), np.random.default_rng(seed), available_now=available_now
        )
        self._make[key] = source or self._governed
        for slot, log in given.items():
            offset = _initial(f"{key}-{slot}" if slot else key, log) if offsets is None else offsets[slot]
            reader = offset.reader
            query.logs[reader], query.attempts[reader], query.offsets[reader] = log, Attempts(), offset
            query.lines[reader] = Line(self, Joining(key, key, cls, slot, token), reader, log)
        self.queries = dict(sorted({**self.queries, key: query}.items()))
        self.start(query)
        return query

    def _governed(self, query: SimulatedQuery, line: Line, offset: Offset) -> Source:
        config = self.governor.config
        poison_after = self.governor.governed(query.cls).config.poison_after or 0
        attempts = query.attempts[offset.reader]
        return GovernedSource(
            line, config.stw_s, config.fail_open_after_s, poison_after, attempts, query.available_now
        )

    def start(self, query: SimulatedQuery) -> None:
        """Starts a query from its checkpoint; a batch that was not done runs again first."""
        query.stopped, query.error, query.crash_at = False, None, None
        for reader, offset in query.offsets.items():
            source = query.sources[reader] = self._make[query.key](query, query.lines[reader], offset)
            source.connect(offset)
        self._hold(query, False)
        query.life, query.next_s = query.live(self), self.timer()

    def connect(self, query: SimulatedQuery, reader: str) -> None:
        """A reader's connection is lost, and made again."""
        query.sources[reader].lose()
        query.sources[reader].connect(query.offsets[reader])

    def stop(self, query: SimulatedQuery) -> None:
        """A query ends, in whatever it does; a batch that runs is not done."""
        self._end(query, None)

    def crash(self, query: SimulatedQuery, at: Point | str | None = None) -> None:
        """A query's process is lost: now, or when its next grant is at a point of its life."""
        if at is None:
            self._end(query, QueryLostError(f"query {query.key}: lost"))
        else:
            query.crash_at = Point(at)

    def _end(self, query: SimulatedQuery, error: Exception | None) -> None:
        if query.life is not None:
            query.life.close()
        query.life, query.stopped, query.error = None, True, error
        self._hold(query, False)
        for source in query.sources.values():
            source.close()
        query.sources.clear()

    # -- the control plane ----------------------------------------------------------------------

    def drain(self, query: SimulatedQuery, on: bool = True) -> None:
        """The query's grants shed nothing, as `flow.drain` has it."""
        self.governor.queries[query.key].draining = on
        self.wake()

    def refuse(self, query: SimulatedQuery, on: bool = True) -> None:
        """The query gets no more grants, as before it is stopped through the gate."""
        self.governor.queries[query.key].refused = on
        self.wake()

    def share(self, log: StreamLog, cls: str, tokens: Iterable[str] = ()) -> None:
        """A query with these tokens writes a shared segment, which a class owns."""
        stream = str(log.directory)
        self._shared[stream] = cls, tuple(tokens)
        self.governor.share(stream, *self._shared[stream])

    def windowed(self, *tokens: str) -> None:
        """The answers of queries with these tokens are windows that the watermark closes."""
        self._windowed.update(tokens)
        self.governor.windowed.update(tokens)

    def last_stage(self, key: str, batch: int | None = None) -> None:
        """The driver says that a job of a query's batch has started its last stage."""
        lease = self.governor.queries[key].lease if key in self.governor.queries else None
        if not self.silent and lease is not None:
            lease.start_last_stage(self.timer(), batch)
            self.tell("last_stage", key)
            self.wake()

    def hush(self) -> None:
        """The control plane falls silent: all connections are lost."""
        for query in self.queries.values():
            for source in query.sources.values():
                source.lose()
        self.silent = True

    def speak(self, config: FlowConfig | None = None, *, anew: bool = False) -> None:
        """The control plane answers again.

        Args:
            config: Of a new one; that of the old one by default, with its changes.
            anew: Whether it is a new process, which knows nothing of the past.
        """
        if anew or config is not None:
            self.hush()
            before = self.governor
            self.governor = Governor(config or before.config_now(), self.clock, self.timer, before.recorder)
            self.governor.shedding = before.shedding
            self.governor.windowed.update(self._windowed)
            for stream, (cls, tokens) in self._shared.items():
                self.governor.share(stream, cls, tokens)
            self._trimmer = Trimmer(self.governor)
        self.silent = False

    def status(self) -> Status:
        return status(self.governor)

    # -- time -----------------------------------------------------------------------------------

    def run(self, seconds: float) -> None:
        """Lets virtual time pass."""
        if not 0 <= seconds < float("inf"):
            raise InvalidInputError("time goes forward", seconds, "run for seconds, zero or more")
        until_s = self.timer() + seconds
        while True:
            live = [q for q in self.queries.values() if not q.stopped]
            at_s = min([self._beat_s, *[q.next_s for q in live]])
            if at_s > until_s:
                self._advance(until_s)
                return
            self._advance(at_s)
            if at_s == self._beat_s:
                self._beat()
            for query in live:
                if query.next_s <= at_s and not query.stopped:
                    self._resume(query)
            for check in self.checks:
                check(self)

    def _advance(self, to_s: float) -> None:
        by_s = max(0.0, to_s - self.timer())
        self.timer.advance(by_s)
        self.clock.advance(by_s)

    def _beat(self) -> None:
        self._beat_s += BEAT_S
        if not self.silent:
            self.governor.beat()
            self._trimmer.beat()

    def _resume(self, query: SimulatedQuery) -> None:
        self._hold(query, False)
        assert query.life is not None
        try:
            pause = next(query.life)
        except StopIteration:
            self._end(query, None)
        except (QueryLostError, InvalidInputError) as error:
            self._end(query, error)
        else:
            query.next_s = self.timer() + pause.seconds
            self._hold(query, pause.held)

    def _hold(self, query: SimulatedQuery, on: bool) -> None:
        self.held += on - query.held
        query.held = on

    def wake(self) -> None:
        """A slot may be free: all that wait for the control plane are looked at now."""
        for query in self.queries.values():
            if query.held:
                query.next_s = self.timer()

    def now_s(self) -> float:
        return self.timer()

    def wall_s(self) -> float:
        return self.clock()

    def tell(self, kind: str, reader: str, **data: Any) -> None:
        """Tells the observers."""
        for observer in self.observers:
            observer(Event(self.timer(), kind, reader, data))


def _initial(reader: str, log: StreamLog) -> Offset:
    return Offset.initial(reader, {p: log.start(p) for p in range(log.partitions)})
