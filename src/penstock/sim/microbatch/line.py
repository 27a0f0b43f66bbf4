"""A source's line to the control plane: questions are held and looked at again as the real server does."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from penstock.control.core.governor import Governor
from penstock.control.state.members import Joining
from penstock.grants.grant import Grant
from penstock.grants.offset import Offset
from penstock.host.client import ControlSilentError
from penstock.host.operations import HOLD_S, hold_s, poll_s
from penstock.streams.protocol import StreamLog

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Pause:
    """A query does nothing for a while.

    Attributes:
        seconds: How long.
        held: Whether it waits for the control plane, which looks at it earlier when a slot may be free.
    """

    seconds: float
    held: bool = False


Waits = Generator[Pause, None, T]
"""Something that takes virtual time, and then gives a result."""


class Host(Protocol):
    """What a line needs of the virtual cluster."""

    governor: Governor
    silent: bool

    def now_s(self) -> float:
        """On the timer."""
        ...

    def wall_s(self) -> float:
        """On the wall clock."""
        ...

    @property
    def held(self) -> int:
        """Questions that are on hold now."""
        ...

    def wake(self) -> None:
        """A slot may be free: questions on hold are looked at now."""
        ...

    def last_stage(self, key: str, batch: int | None = None) -> None:
        """A job of a query's batch has started its last stage."""
        ...

    def tell(self, kind: str, reader: str, **data: Any) -> None:
        """Tells the observers."""
        ...


class Line:
    """The connection of one source to the governor that the cluster has now.

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
        self._governor: Governor | None = None
        self._broken = False

    def connect(self, offset: Offset) -> Governor:
        """Joins, unless it is connected; a silent control plane, or a connection that broke, is an error."""
        if self.host.silent or self._broken:
            self._broken = False
            raise silence()
        governor = self.host.governor
        if self._governor is not governor:
            self.connection = object()
            governor.join(self.joining, self.log, self.connection, offset)
            self._governor = governor
            self.host.tell("joined", self.reader, offset=offset.to_json())
        return governor

    def ask(self, start: Offset, take_all: bool = False) -> Waits[Grant | None]:
        """The next grant after an offset; `None` when the question was held for long enough in vain.

        Args:
            start: Where the reader stands.
            take_all: Whether its query runs under AvailableNow.
        """
        governor, reader = self.connect(start), self.reader
        self.host.tell("asked", reader, start=start.to_json(), all=take_all)
        if governor.ask(reader, start):
            self.host.wake()
        if take_all:
            governor.take_all(reader)
        asked_s, leads = self.host.now_s(), governor.is_leader(reader)
        self.leads = leads or not take_all
        while True:
            answer = governor.answer(reader)
            if answer is not None:
                self.host.tell("granted", reader, **answer.to_json())
                return answer
            if not leads or self.host.now_s() - asked_s >= self._hold_s(reader):
                self.host.tell("nothing", reader)
                return None
            yield from self._pause()

    def planned(self, offset: Offset, admitted: int, set_aside: bool) -> Waits[None]:
        """Says that Spark plans a batch; takes until the batch may start."""
        governor, reader = self.connect(offset), self.reader
        self.host.tell("planned", reader, offset=offset.to_json(), admitted=admitted, aside=set_aside)
        held = False
        while not governor.planned(reader, offset, admitted, set_aside):
            if not held:
                self.host.tell("held", reader)
            held = True
            yield from self._pause()

    def finish(self, start: Offset) -> None:
        """Says that its reader wants no further grant."""
        self.connect(start).finish(self.reader, start)
        self.host.tell("finished", self.reader, start=start.to_json())
        self.host.wake()

    def lose(self) -> None:
        """The connection breaks: the source notices with its next question, or with the one on hold."""
        self._broken = self._governor is not None
        self.close()

    def renew(self, offset: Offset) -> None:
        """A new process connects, if somebody is there. One of several readers joins with its question."""
        self._broken = False
        if not self.host.silent and not self.joining.slot:
            self.connect(offset)

    def close(self) -> None:
        """The connection ends, for whatever reason: its query's slot is free."""
        governor, self._governor = self._governor, None
        if governor is not None and governor is self.host.governor:
            governor.leave(self.connection)
            self.host.tell("left", self.reader)
            self.host.wake()

    def _hold_s(self, reader: str) -> float:
        return HOLD_S if self.host.governor.is_refused(reader) else hold_s(self.host.held)

    def _pause(self) -> Waits[None]:
        yield Pause(poll_s(self.host.held + 1), held=True)
        if self._governor is None:
            self._broken = False
            raise silence()


def silence() -> ControlSilentError:
    return ControlSilentError("the control plane answers", "silence", "it was ended or replaced")
