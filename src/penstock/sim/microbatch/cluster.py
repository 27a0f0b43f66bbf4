"""The virtual cluster: the real engine, and queries that follow the real protocol, in virtual time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from penstock.config.flow import FlowConfig
from penstock.control.backlog.row_values import FetchedValues
from penstock.control.core import events as ev
from penstock.control.core.engine import Engine
from penstock.control.core.instructions import (
    FetchRows,
    GrantIssued,
    Instruction,
    MayProceed,
    NothingYet,
    Recorded,
    Refused,
)
from penstock.control.core.status import status
from penstock.control.state.query import Joining
from penstock.control.tuning import TUNING, Tuning
from penstock.grants.offset import Offset
from penstock.host.fetching import fetch_values
from penstock.host.holding import FETCH_S
from penstock.host.recorder import RunRecorder, write_line
from penstock.host.retention import EVERY_S, trim
from penstock.sim.microbatch.driver import SimulatedDriver
from penstock.sim.microbatch.line import Line, Listener
from penstock.sim.microbatch.machine import Cores, Machine, TaskMachine
from penstock.sim.microbatch.query import Point, QueryLostError, SimulatedQuery
from penstock.sim.microbatch.recording import Event, Observer
from penstock.sim.microbatch.source import Attempts, GovernedSource, Source
from penstock.sim.microbatch.tailers import VirtualTailers
from penstock.streams.protocol import StreamIndex, StreamLog
from penstock.streams.tailing import NewSegments
from penstock.testing import ManualClock
from penstock.vocabulary.errors import InvalidInputError
from penstock.vocabulary.moment import Moment
from penstock.vocabulary.status import Status

BEGAN_S, TIMER_S = 1_000_000.0, 50.0
"""Where the wall clock and the timer start."""
LOOK_EVERY_S = 0.02
"""So often tailers look for new rows, beside the moments at which something happens."""
TELL_EVERY_S = 0.5
"""So often the driver says how many tasks run, as the agent does on Spark."""

WITHOUT_ROWS = (ev.BatchPlanned, ev.QuestionEnded, ev.BatchReported)
"""Events about batches that are granted already, after which no other batch is granted. The start of a last
stage is none of them: it makes room for the next batch, which is to hold all rows there are."""

MakeSource = Callable[[SimulatedQuery, Line, Offset], Source]


class VirtualCluster(SimulatedDriver):
    """An engine with queries that ask, plan and run as Spark's do. Time passes with `run` alone.

    The wall clock that stamps rows and the timer that measures durations are two, so that one may go back.

    Args:
        config: Classes, slots, capacity.
        recorder: Gets every decision.
        tuning: Figures of the control plane.
        cores: On which the tasks of a `TaskMachine` run; `None`: there are none, and the driver says nothing.
    """

    def __init__(
        self,
        config: FlowConfig,
        recorder: RunRecorder | None = None,
        tuning: Tuning = TUNING,
        cores: int | None = None,
    ) -> None:
        self.clock, self.timer = ManualClock(BEGAN_S), ManualClock(TIMER_S)
        self.recorder, self.tuning = recorder, tuning
        self.engine = Engine(config, self.at(), tuning=tuning)
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
        self.tailers = VirtualTailers(self.timer, self._found)
        self._listeners: dict[str, Listener] = {}
        """By reader, where its instructions go."""
        self._look_s, self._trim_s = self.timer() + LOOK_EVERY_S, self.timer() + EVERY_S
        self._tell_s = self.timer() + TELL_EVERY_S if cores is not None else math.inf
        SimulatedDriver.__init__(self, Cores(cores or 0, self.timer()), tells_cores=cores is not None)

    # -- queries --------------------------------------------------------------------------------

    def add(
        self,
        key: str,
        cls: str,
        logs: StreamLog | Mapping[str, StreamLog],
        machine: Machine | TaskMachine | None = None,
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
            token: By which the driver tells the control plane of it; one of its own by default.
            offsets: By slot, where its readers begin; at the logs' starts by default.
            available_now: Whether it ends when it has read what is there now; nothing is shed then.
            source: Makes its sources; a `GovernedSource` each by default.
        """
        given, token = dict(logs) if isinstance(logs, Mapping) else {"": logs}, token or f"token of {key}"
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
        config = self.engine.config
        poison_after = self.engine.classes.governed(query.cls).config.poison_after or 0
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

    def at(self) -> Moment:
        """Now."""
        return Moment(self.timer(), self.clock())

    def handle(self, event: ev.Event) -> None:
        """Something happened: the engine is told, and its instructions are carried out.

        Tailers look first, unless more rows cannot change the answer.
        """
        if not isinstance(event, WITHOUT_ROWS) and not self._is_in_vain(event):
            self._look()
        self._carry_out(self.engine.handle(event))

    def _is_in_vain(self, event: ev.Event) -> bool:
        """Whether a question comes while other queries' batches take all slots and none of them ends soon.

        While a contest is blocked tailers do not look: a question that gets a grant must not miss those rows.
        """
        if not isinstance(event, ev.Asked) or self.engine.members.query_of(event.reader).lease is not None:
            return False
        leases, now_s = self.engine.leases, event.at.timer_s
        earliest = self.engine.questions.earliest
        return not leases.is_free(None, earliest, leases.ending(earliest, now_s), now_s)

    def _carry_out(self, instructions: Iterable[Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case GrantIssued() | NothingYet() | MayProceed() | Refused():
                    self._deliver(instruction.reader, instruction)
                case FetchRows():
                    self._fetch(instruction)
                case Recorded() if self.recorder is not None:
                    write_line(self.recorder, instruction.line)

    def _deliver(self, reader: str, instruction: Instruction) -> None:
        listener = self._listeners[reader]
        listener.hear(instruction)
        query = self.queries[listener.query]
        if query.held:
            query.next_s = self.timer()

    def _fetch(self, wanted: FetchRows) -> None:
        """Rows that a shedder needs are there at once, or too late if their stream is very slow."""
        log = self.tailers.logs[wanted.fetch.stream]
        values: FetchedValues | None = fetch_values(log, wanted.fetch)
        if self.tailers.takes_s(log) > FETCH_S:
            values = None
        self._carry_out(self.engine.handle(ev.Fetched(self.at(), wanted.query, wanted.fetch, values)))

    def follow(self, log: StreamLog, offset: Offset) -> None:
        """A reader needs the headers of a stream from an offset on."""
        # the engine may have let go of headers that its other readers are past, or of all
        readers = self.engine.members.readers.values()
        others = [reader.counted.end for reader in readers if reader.stream.id == log.ref.id]
        self.tailers.follow(log, [offset.end, *others])

    def _found(self, stream: str, new: list[NewSegments]) -> None:
        """A tailer found new segments."""
        self._carry_out(self.engine.handle(ev.RowsArrived(self.at(), stream, new)))

    def _look(self) -> None:
        """Tailers look for new rows."""
        if not self.silent:
            self.tailers.look()

    def expect(self, reader: str, listener: Listener | None) -> None:
        """Instructions for a reader go to a listener from now on, or to nobody."""
        if listener is None:
            self._listeners.pop(reader, None)
        else:
            self._listeners[reader] = listener

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
            before = self.engine
            self.engine = Engine(config or before.config_now(), self.at(), tuning=self.tuning)
            self.tailers.clear()
            self.silent = False
            self.command(ev.SetShedding(before.granting.on))
            self.tell_again()
        self.silent = False

    def status(self) -> Status:
        self._look()
        return status(self.engine, self.at())

    # -- time -----------------------------------------------------------------------------------

    def run(self, seconds: float) -> None:
        """Lets virtual time pass."""
        if not 0 <= seconds < float("inf"):
            raise InvalidInputError("time goes forward", seconds, "run for seconds, zero or more")
        until_s = self.timer() + seconds
        while True:
            live = [q for q in self.queries.values() if not q.stopped]
            due_s = math.inf if self.silent else max(self.engine.due_s(), self.timer())
            found_s = math.inf if self.silent else self.tailers.due_s()
            by_themselves = (self._look_s, self._tell_s, due_s, found_s, self.cores.due_s)
            at_s = min([*by_themselves, *[q.next_s for q in live]])
            if at_s > until_s:
                self._advance(until_s)
                return
            self._advance(at_s)
            self.cores.pass_time(at_s)
            self._periodic(due_s)
            for query in live:
                if query.next_s <= at_s and not query.stopped:
                    self._resume(query)
            for check in self.checks:
                check(self)

    def _advance(self, to_s: float) -> None:
        by_s = max(0.0, to_s - self.timer())
        self.timer.advance(by_s)
        self.clock.advance(by_s)

    def _periodic(self, due_s: float) -> None:
        """What is due by itself: the engine, tailers, and now and then a trim."""
        now_s = self.timer()
        if now_s >= self.tailers.due_s():
            self._look()
        if now_s >= self._look_s:
            self._look_s += LOOK_EVERY_S
            if self.engine.questions.open and not self.engine.questions.blocked:
                self._look()
        if now_s >= due_s:
            self.handle(ev.Woke(self.at()))
        if now_s >= self._tell_s:
            self._tell_s += TELL_EVERY_S
            self.tell_tasks()
        if now_s >= self._trim_s:
            self._trim_s += EVERY_S
            if self.engine.config.trim and not self.silent:
                trim(self.tailers.logs.values())

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

    def now_s(self) -> float:
        return self.timer()

    def wall_s(self) -> float:
        return self.clock()

    def tell(self, kind: str, reader: str, **data: Any) -> None:
        """Tells the observers, if there are any; an offset in `data` goes to them as JSON."""
        if not self.observers:
            return
        encoded = {name: each.to_json() if isinstance(each, Offset) else each for name, each in data.items()}
        for observer in self.observers:
            observer(Event(self.timer(), kind, reader, encoded))


def _initial(reader: str, log: StreamIndex) -> Offset:
    return Offset.initial(reader, {p: log.start(p) for p in range(log.partitions)})
