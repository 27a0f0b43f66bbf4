"""Turns messages into events for the engine, and the engine's instructions into answers.

The module has no sockets and no threads: the asyncio server and the simulator on virtual time both use it.
The server parses a message before the desk carries the message out. If parsing fails, the sender made the
mistake. If the desk fails, Penstock did.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Protocol

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
    Tell,
)
from penstock.control.state.query import Joining
from penstock.grants.offset import Positions
from penstock.host import wire
from penstock.host.holding import FETCH_S, HOLD_S, hold_s
from penstock.streams.protocol import StreamIndex
from penstock.streams.tailing import NewSegments, info_of
from penstock.vocabulary.moment import Moment


class HungUpError(Exception):
    """A connection ends without an answer, as it may: its source says hello again, or goes on by itself.

    Whatever else is raised while a message is carried out is an error of Penstock, and is logged as one.
    """


@dataclass(slots=True, eq=False)
class Question:
    """A question of a reader, which the control plane may hold until the engine answers it.

    Attributes:
        reader: The reader that asks.
        hold_s: How long the question may be held.
        longest_s: How long the question may be held while the engine decides its grant.
        all: Whether the reader's query runs under AvailableNow.
        plans: True if the reader asks whether a planned batch may run; false if it asks for a grant.
        answer: The instruction that answers the question.
        notify: Called once `answer` is set.
    """

    reader: str
    hold_s: float
    longest_s: float
    all: bool = False
    plans: bool = False
    answer: Instruction | None = None
    notify: Callable[[], None] | None = None

    def to_json(self) -> dict[str, Any]:
        """Returns the answer for the source: "nothing yet" if the engine has not answered.

        Raises:
            InvalidInputError: The engine refuses the question.
        """
        match self.answer:
            case GrantIssued():
                return self.answer.grant.to_json()
            case Refused():
                raise self.answer.error
            case MayProceed():
                tasks = self.answer.tasks
                return {"go": True} if tasks is None else {"go": True, "tasks": tasks}
            case NothingYet() if self.all:
                # under AvailableNow a reader waits for its turn only if its question can open a grant
                return {"wait": True, "leads": self.answer.leads}
        if self.plans:
            return {"go": False}
        return {"wait": True, "leads": True} if self.all else {"wait": True}


class Hands(Protocol):
    """Carries out the engine's instructions that are not answers to readers."""

    def fetch(self, wanted: FetchRows) -> None:
        """Reads rows that a shedder needs, then calls `Desk.handle` with a `Fetched`."""
        ...

    def record(self, line: Recorded) -> None:
        """Writes a line into the run's record."""
        ...

    def tell(self, instruction: Tell) -> None:
        """Tells a driver what to do."""
        ...


class Desk:
    """Carries out the messages that sources, drivers and users send to an engine.

    Args:
        engine: The engine.
        now: Returns the present time.
        hands: Carries out instructions that are not answers.
        stop: Ends the process.
    """

    def __init__(
        self, engine: Engine, now: Callable[[], Moment], hands: Hands, stop: Callable[[], None]
    ) -> None:
        self.engine, self.now, self._hands, self._stop = engine, now, hands, stop
        self.questions: dict[str, Question] = {}
        """By reader, its question that the engine has not answered yet."""

    # -- events and instructions ----------------------------------------------------------------

    def handle(self, event: ev.Event) -> None:
        """Hands an event to the engine, and carries out the engine's instructions."""
        for instruction in self.engine.handle(event):
            match instruction:
                case GrantIssued() | NothingYet() | MayProceed() | Refused():
                    self.deliver(instruction.reader, instruction)
                case FetchRows():
                    self._hands.fetch(instruction)
                case Recorded():
                    self._hands.record(instruction)
                case Tell():
                    self._hands.tell(instruction)

    def deliver(self, reader: str, answer: Instruction) -> None:
        """Gives the engine's answer to a reader's question, if the reader still waits for the answer."""
        question = self.questions.pop(reader, None)
        if question is not None:
            question.answer = answer
            if question.notify is not None:
                question.notify()

    def wake(self) -> None:
        """Tells the engine that the time has come at which it wanted to be woken."""
        self.handle(ev.Woke(self.now()))

    def rows_arrived(self, stream: str, new: list[NewSegments]) -> None:
        """Tells the engine of new segments that a tailer found."""
        self.handle(ev.RowsArrived(self.now(), stream, new))

    def leave(self, connection: Hashable) -> None:
        """Tells the engine that a connection ended."""
        self.handle(ev.ConnectionEnded(self.now(), connection))

    def command(self, command: ev.Command) -> None:
        self.handle(ev.Commanded(self.now(), command))

    # -- messages -------------------------------------------------------------------------------

    def expect(self, connection: Hashable, stream: str, positions: Positions) -> None:
        """Tells the engine that a reader will join once the headers of its stream have been read."""
        self.handle(ev.ReaderExpected(self.now(), connection, stream, positions))

    def join(self, connection: Hashable, message: wire.Hello, log: StreamIndex) -> None:
        """Lets a reader join. The headers of its stream have been read."""
        who = Joining(message.query, message.name, message.cls, message.slot, message.token, message.driver)
        self.handle(ev.ReaderJoined(self.now(), who, info_of(log), connection, message.offset))

    def carry_out(self, message: wire.Message) -> dict[str, Any] | Question:
        """Carries out a message. Returns the answer, or a `Question` whose answer comes later."""
        engine, at = self.engine, self.now()
        match message:
            case wire.Ask():
                return self._ask(message)
            case wire.Planned():
                return self._plan(message)
            case wire.Finish():
                self._check_joined(message.reader)
                self.handle(ev.ReaderFinished(at, message.reader, message.start))
            case wire.Granted():
                return {"granted": engine.has_new_grant(message.query)}
            case wire.LastStage():
                self.handle(ev.LastStageStarted(at, message.tokens, message.batch))
            case wire.Job():
                ready_ago_s = max(0.0, message.ready_ago_s)
                self.handle(
                    ev.JobEnded(at, message.tokens, message.batch, message.tasks, message.core_s, ready_ago_s)
                )
            case wire.Cores():
                self.handle(ev.CoresChanged(at, message.driver, message.cores))
            case wire.Tasks():
                running = {each.tokens: each.tasks for each in message.running}
                self.handle(ev.TasksSeen(at, message.driver, running))
            case wire.Dropped():
                rows = {(reader, grant): count for reader, grant, count in message.rows}
                self.handle(ev.BatchReported(at, message.batch, rows))
            case wire.AskPlan():
                return {"plan": engine.plan().to_json()}
            case wire.AskStatus():
                return {"status": engine.status(at).to_json(bins=True)}
            case wire.AskConfig():
                return {"config": engine.config_now().to_json()}
            case wire.AskJoined():
                return {"joined": engine.joined()}
            case wire.Left():
                mine = engine.queries_of(message.tokens)
                unfinished = [key for key in engine.unfinished(at) if key in mine]
                return {"unfinished": unfinished, "joined": engine.joined()}
            case wire.Change():
                self.command(ev.ChangeClass(message.cls, message.changes))
                return {"floor_s": engine.floor_s(message.cls)}
            case wire.Refuse() | wire.Drain():
                kind = ev.Refuse if isinstance(message, wire.Refuse) else ev.Drain
                self.command(kind(message.tokens, message.on))
                return {"running": engine.running(message.tokens)}
            case wire.Stop():
                self._stop()
            case wire.Ping() | wire.Mark():
                pass
            case _:
                self.command(_command(message))
        return {"ok": True}

    def _ask(self, message: wire.Ask) -> Question:
        asked = ev.Asked(self.now(), message.reader, message.start, message.all)
        return self._put(message, asked, Question(message.reader, 0.0, 0.0, message.all))

    def _plan(self, message: wire.Planned) -> Question:
        planned = ev.BatchPlanned(self.now(), message.reader, message.offset, message.admitted, message.aside)
        return self._put(message, planned, Question(message.reader, 0.0, 0.0, plans=True))

    def _put(self, message: wire.Ask | wire.Planned, event: ev.Event, question: Question) -> Question:
        self._check_joined(message.reader)
        question.hold_s = self._hold_s(message)
        question.longest_s = min(question.hold_s + FETCH_S, max(question.hold_s, 0.75 * message.timeout_s))
        self.questions[message.reader] = question
        try:
            self.handle(event)
        except BaseException:
            self.questions.pop(message.reader, None)
            raise
        return question

    def is_being_decided(self, question: Question) -> bool:
        """Whether a question has won a turn, but its grant waits for rows that are being fetched."""
        return not question.plans and self.engine.is_being_decided(question.reader)

    def give_up(self, question: Question) -> None:
        """Ends a question that was held for its time. Its source asks again."""
        if self.questions.get(question.reader) is question:
            del self.questions[question.reader]
            self.handle(ev.QuestionEnded(self.now(), question.reader))

    def _hold_s(self, message: wire.Ask | wire.Planned) -> float:
        """Returns how long a question may be held. If its query is about to stop, that is not long."""
        if self.engine.is_refused(message.reader):
            return HOLD_S
        return hold_s(len(self.questions), message.timeout_s)

    def _check_joined(self, reader: str) -> None:
        """Ends a source's connection if its reader has not joined. The source then says hello again."""
        if not self.engine.has_joined(reader):
            raise HungUpError(f"reader {reader} has not joined")


def _command(message: wire.Message) -> ev.Command:
    """Returns the command for the engine that a message of a user or a driver stands for."""
    match message:
        case wire.Remove():
            return ev.RemoveClass(message.cls)
        case wire.Share():
            return ev.Publish(message.stream, message.cls, message.tokens)
        case wire.Release():
            return ev.Unpublish(message.stream)
        case wire.Reads():
            return ev.CheckRead(message.stream, message.cls)
        case wire.Shedding():
            return ev.SetShedding(message.on)
        case wire.Forbid():
            return ev.Forbid(message.who, message.rule, message.got, message.hint)
        case wire.Windows():
            return ev.MarkWindowed(message.tokens)
    raise TypeError(f"nobody carries out {message!r}")
