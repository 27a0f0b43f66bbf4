"""The desk of a control plane: messages become events, instructions become answers. No sockets, no threads.

The asyncio server and virtual time both sit behind it. A message is understood first and then carried out: a
message that is not understood is its sender's mistake, an error while it is carried out is Penstock's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Protocol

from penstock.control.core import events as ev
from penstock.control.core.engine import Engine
from penstock.control.core.feasibility import feasibility
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
from penstock.control.core.status import status
from penstock.control.state.query import Joining
from penstock.grants.offset import Positions
from penstock.host import wire
from penstock.host.holding import FETCH_S, HOLD_S, hold_s
from penstock.streams.protocol import StreamIndex
from penstock.streams.tailing import NewSegments, info_of
from penstock.vocabulary.moment import Moment


@dataclass(slots=True, eq=False)
class Question:
    """A question that may be held: its answer comes with an instruction.

    Attributes:
        reader: Who asks.
        hold_s: How long it may be held.
        longest_s: How long it may be held in all if its grant is being decided then.
        all: Whether its query runs under AvailableNow.
        plans: Whether it is about a batch that Spark plans, and not for a grant.
        answer: The instruction that answers it.
        notify: Called when the answer is there.
    """

    reader: str
    hold_s: float
    longest_s: float
    all: bool = False
    plans: bool = False
    answer: Instruction | None = None
    notify: Callable[[], None] | None = None

    def to_json(self) -> dict[str, Any]:
        """The answer for the source; "nothing yet" where there is none.

        Raises:
            InvalidInputError: The question is refused.
        """
        match self.answer:
            case GrantIssued():
                return self.answer.grant.to_json()
            case Refused():
                raise self.answer.error
            case MayProceed():
                return {"go": True}
            case NothingYet() if self.all:
                # under AvailableNow a reader waits for its turn only if its question can open a grant
                return {"wait": True, "leads": self.answer.leads}
        if self.plans:
            return {"go": False}
        return {"wait": True, "leads": True} if self.all else {"wait": True}


class Hands(Protocol):
    """What the desk has done elsewhere."""

    def fetch(self, wanted: FetchRows) -> None:
        """Rows that a shedder needs are to be read; `Desk.handle` gets a `Fetched`."""
        ...

    def record(self, line: Recorded) -> None:
        """Something is to be kept in the run's record."""
        ...

    def tell(self, instruction: Tell) -> None:
        """A driver is to do something."""
        ...


class Desk:
    """Carries out what sources, drivers and users ask of an engine.

    Args:
        engine: What decides.
        now: The moment it is.
        hands: Does what takes time.
        stop: Ends the process.
    """

    def __init__(
        self, engine: Engine, now: Callable[[], Moment], hands: Hands, stop: Callable[[], None]
    ) -> None:
        self.engine, self.now, self._hands, self._stop = engine, now, hands, stop
        self.questions: dict[str, Question] = {}
        """By reader, its question that has no answer yet."""

    # -- events and instructions ----------------------------------------------------------------

    def handle(self, event: ev.Event) -> None:
        """Tells the engine what happened, and carries out what it wants."""
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
        """The engine answers a reader's question, if the reader still asks."""
        question = self.questions.pop(reader, None)
        if question is not None:
            question.answer = answer
            if question.notify is not None:
                question.notify()

    def wake(self) -> None:
        """The moment has come that the engine wanted to be woken at."""
        self.handle(ev.Woke(self.now()))

    def rows_arrived(self, stream: str, new: list[NewSegments]) -> None:
        """A tailer found new segments."""
        self.handle(ev.RowsArrived(self.now(), stream, new))

    def leave(self, connection: Hashable) -> None:
        """A connection ended."""
        self.handle(ev.ConnectionEnded(self.now(), connection))

    def command(self, command: ev.Command) -> None:
        self.handle(ev.Commanded(self.now(), command))

    # -- messages -------------------------------------------------------------------------------

    def expect(self, connection: Hashable, stream: str, positions: Positions) -> None:
        """A reader's planner has said hello, and the headers of its stream are being read."""
        self.handle(ev.ReaderExpected(self.now(), connection, stream, positions))

    def join(self, connection: Hashable, message: wire.Hello, log: StreamIndex) -> None:
        """A reader's planner says hello; the headers of its stream have arrived."""
        who = Joining(message.query, message.name, message.cls, message.slot, message.token, message.driver)
        self.handle(ev.ReaderJoined(self.now(), who, info_of(log), connection, message.offset))

    def carry_out(self, message: wire.Message) -> dict[str, Any] | Question:
        """Does what a message asks for, or says that the answer comes later."""
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
            case wire.Dropped():
                rows = {(reader, grant): count for reader, grant, count in message.rows}
                self.handle(ev.BatchReported(at, message.batch, rows))
            case wire.AskPlan():
                return {"plan": feasibility(engine).to_json()}
            case wire.AskStatus():
                return {"status": status(engine, at).to_json(bins=True)}
            case wire.AskConfig():
                return {"config": engine.config_now().to_json()}
            case wire.AskJoined():
                return {"joined": self._joined()}
            case wire.Left():
                mine = {query.key for query in engine.members.with_tokens(message.tokens)}
                unfinished = [key for key in engine.unfinished(at) if key in mine]
                return {"unfinished": unfinished, "joined": self._joined()}
            case wire.Change():
                self.command(ev.ChangeClass(message.cls, message.changes))
                return {"floor_s": engine.floor_s(message.cls)}
            case wire.Refuse() | wire.Drain():
                kind = ev.Refuse if isinstance(message, wire.Refuse) else ev.Drain
                self.command(kind(message.tokens, message.on))
                queries = engine.members.with_tokens(message.tokens)
                return {"running": [query.key for query in queries if query.lease is not None]}
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
        """Whether a question has won a turn, and its grant waits for rows that are read."""
        reader = self.engine.members.readers.get(question.reader)
        return not question.plans and reader is not None and reader.query in self.engine.questions.pending

    def give_up(self, question: Question) -> None:
        """A question was held for long enough: its source is to ask again."""
        if self.questions.get(question.reader) is question:
            del self.questions[question.reader]
            self.handle(ev.QuestionEnded(self.now(), question.reader))

    def _hold_s(self, message: wire.Ask | wire.Planned) -> float:
        """How long a question may be held: one of a query that is about to be stopped is not held long."""
        if self.engine.members.query_of(message.reader).flags.refused:
            return HOLD_S
        return hold_s(len(self.questions), message.timeout_s)

    def _joined(self) -> Counter[str]:
        """By token, readers that are there."""
        return Counter(reader.token for reader in self.engine.members.readers.values())

    def _check_joined(self, reader: str) -> None:
        """Ends the connection of a source whose reader has gone: it then says hello again."""
        if reader not in self.engine.members.readers:
            raise ConnectionResetError(f"reader {reader} has not joined")


def _command(message: wire.Message) -> ev.Command:
    """What a message of a user or a driver wants of the engine."""
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
