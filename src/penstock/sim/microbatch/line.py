"""A source's line to the control plane: its questions become events, and instructions answer them."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from penstock.control.core.engine import Engine
from penstock.control.core.events import (
    Asked,
    BatchPlanned,
    ConnectionEnded,
    Event,
    QuestionEnded,
    ReaderFinished,
    ReaderJoined,
)
from penstock.control.core.instructions import GrantIssued, Instruction, MayProceed, NothingYet, Refused
from penstock.control.state.query import Joining
from penstock.grants.grant import Grant
from penstock.grants.offset import Offset
from penstock.host.client import ControlSilentError
from penstock.host.holding import hold_s
from penstock.sim.microbatch.machine import Cores
from penstock.streams.protocol import StreamLog
from penstock.streams.tailing import info_of
from penstock.vocabulary.moment import Moment

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Pause:
    """A query does nothing for a while.

    Attributes:
        seconds: How long.
        held: Whether it waits for the control plane, whose answer ends the pause.
    """

    seconds: float
    held: bool = False


Waits = Generator[Pause, None, T]
"""Something that takes virtual time, and then gives a result."""


class Listener(Protocol):
    """Gets the instructions for one reader: a `Line`, or whatever a test puts in its place."""

    @property
    def query(self) -> str:
        """The key of the reader's query, which goes on when an answer is there."""
        ...

    def hear(self, instruction: Instruction) -> None:
        """An instruction for the reader."""
        ...


class Host(Protocol):
    """What a line needs of the virtual cluster."""

    engine: Engine
    silent: bool

    def now_s(self) -> float:
        """On the timer."""
        ...

    def wall_s(self) -> float:
        """On the wall clock."""
        ...

    def at(self) -> Moment:
        """Now, on both."""
        ...

    @property
    def held(self) -> int:
        """Questions that are on hold now."""
        ...

    def handle(self, event: Event) -> None:
        """Something happened: the control plane is told, and its instructions are carried out."""
        ...

    def follow(self, log: StreamLog, offset: Offset) -> None:
        """A reader needs the headers of a stream from an offset on."""
        ...

    def expect(self, reader: str, listener: Listener | None) -> None:
        """Instructions for a reader go to a listener from now on, or to nobody."""
        ...

    def last_stage(self, key: str, batch: int | None = None) -> None:
        """A job of a query's batch has started its last stage."""
        ...

    @property
    def cores(self) -> Cores:
        """On which tasks run."""
        ...

    def go_on(self, key: str) -> None:
        """A query that waits for its tasks goes on now."""
        ...

    def job_ended(self, key: str, batch: int, tasks: int, core_s: float, ready_ago_s: float) -> None:
        """A job of a query's batch has ended: the driver says what its tasks took."""
        ...

    def tell(self, kind: str, reader: str, **data: Any) -> None:
        """Tells the observers, if there are any; an offset in `data` goes to them as JSON."""
        ...


class Line:
    """The connection of one source to the control plane that the cluster has now.

    Args:
        host: The cluster.
        joining: Who joins.
        reader: The source's reader.
        log: The stream that the source reads.
    """

    def __init__(self, host: Host, joining: Joining, reader: str, log: StreamLog) -> None:
        self.host, self.joining, self.reader, self.log = host, joining, reader, log
        self.connection: object = None
        self.leads = True
        """Whether its last question could open a grant of its query."""
        self.answer: Instruction | None = None
        """The last instruction for its reader that it has not taken yet."""
        self._engine: Engine | None = None
        self._broken = False

    @property
    def query(self) -> str:
        return self.joining.query

    def hear(self, instruction: Instruction) -> None:
        self.answer = instruction

    def connect(self, offset: Offset) -> None:
        """Joins, unless it is connected; a silent control plane, or a connection that broke, is an error."""
        if self.host.silent or self._broken:
            self._broken = False
            raise silence()
        if self._engine is not self.host.engine:
            self.connection = object()
            self.host.follow(self.log, offset)
            self.host.handle(
                ReaderJoined(self.host.at(), self.joining, info_of(self.log), self.connection, offset)
            )
            self._engine = self.host.engine
            self.host.expect(self.reader, self)
            self.host.tell("joined", self.reader, offset=offset)

    def ask(self, start: Offset, take_all: bool = False) -> Waits[Grant | None]:
        """The next grant after an offset; `None` when the question was held for long enough in vain.

        Args:
            start: Where the reader stands.
            take_all: Whether its query runs under AvailableNow.
        """
        self.connect(start)
        self.host.tell("asked", self.reader, start=start, all=take_all)
        self.leads = True
        until_s = self.host.now_s() + hold_s(self.host.held)
        self.host.handle(Asked(self.host.at(), self.reader, start, take_all))
        while True:
            answer, self.answer = self.answer, None
            match answer:
                case GrantIssued():
                    self.host.tell("granted", self.reader, **answer.grant.to_json())
                    return answer.grant
                case Refused():
                    raise answer.error
                case NothingYet():
                    self.leads = answer.leads or not take_all
            if answer is not None or self.host.now_s() >= until_s:
                if answer is None:
                    self.host.handle(QuestionEnded(self.host.at(), self.reader))
                self.host.tell("nothing", self.reader)
                return None
            yield from self._pause(until_s - self.host.now_s())

    def planned(self, offset: Offset, admitted: int, set_aside: bool) -> Waits[int | None]:
        """Says that Spark plans a batch; takes until the batch may start.

        Returns:
            Into how many tasks its rows are worth dividing; `None` if that is not known.
        """
        self.connect(offset)
        self.host.tell("planned", self.reader, offset=offset, admitted=admitted, aside=set_aside)
        self.host.handle(BatchPlanned(self.host.at(), self.reader, offset, admitted, set_aside))
        if self.answer is None:
            self.host.tell("held", self.reader)
        while not isinstance(self.answer, MayProceed):
            yield from self._pause(60.0)
        tasks, self.answer = self.answer.tasks, None
        return tasks

    def finish(self, start: Offset) -> None:
        """Says that its reader wants no further grant."""
        self.connect(start)
        self.host.handle(ReaderFinished(self.host.at(), self.reader, start))
        self.host.tell("finished", self.reader, start=start)

    def lose(self) -> None:
        """The connection breaks: the source notices with its next question, or with the one on hold."""
        self._broken = self._engine is not None
        self.close()

    def renew(self, offset: Offset) -> None:
        """A new process connects, if somebody is there. One of several readers joins with its question."""
        self._broken = False
        if not self.host.silent and not self.joining.slot:
            self.connect(offset)

    def close(self) -> None:
        """The connection ends, for whatever reason: its query's slot is free."""
        engine, self._engine, self.answer = self._engine, None, None
        if engine is not None and engine is self.host.engine:
            self.host.handle(ConnectionEnded(self.host.at(), self.connection))
            self.host.tell("left", self.reader)
            self.host.expect(self.reader, None)

    def _pause(self, seconds: float) -> Waits[None]:
        yield Pause(seconds, held=True)
        if self._engine is None:
            self._broken = False
            raise silence()


def silence() -> ControlSilentError:
    return ControlSilentError("the control plane answers", "silence", "it was ended or replaced")
