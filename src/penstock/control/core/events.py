"""Everything that can happen to the control plane, and when."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.control.backlog.row_values import Fetch, FetchedValues
from penstock.control.state.query import Joining
from penstock.grants.offset import Offset, Positions
from penstock.streams.tailing import NewSegments, StreamInfo
from penstock.vocabulary.moment import Moment


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened.

    Attributes:
        at: When.
    """

    at: Moment


@dataclass(frozen=True, slots=True)
class ReaderExpected(Event):
    """A reader is about to join: a tailer reads the headers of what waits for it.

    From now on until the reader joins, or its connection ends, the engine lets go of no header that the
    reader needs. Other events come between the headers and `ReaderJoined`.

    Attributes:
        connection: Of the reader's planner.
        stream: Id of the stream that it reads.
        positions: Where it stands.
    """

    connection: Hashable
    stream: str
    positions: Positions


@dataclass(frozen=True, slots=True)
class ReaderJoined(Event):
    """A reader's planner has connected. The headers of what waits for it have arrived before.

    Attributes:
        who: Which query and class it belongs to.
        stream: What it reads.
        connection: Of its planner.
        offset: Where it stands.
    """

    who: Joining
    stream: StreamInfo
    connection: Hashable
    offset: Offset


@dataclass(frozen=True, slots=True)
class Asked(Event):
    """A source asks for its next grant; what its query held before is over.

    Attributes:
        reader: Who asks.
        start: Where it stands.
        takes_all: Whether its query runs under AvailableNow, which asks for everything there is.
    """

    reader: str
    start: Offset
    takes_all: bool = False


@dataclass(frozen=True, slots=True)
class QuestionEnded(Event):
    """The host does not hold a question, or a planned batch, any longer: its source is to ask again.

    Attributes:
        reader: Whose.
    """

    reader: str


@dataclass(frozen=True, slots=True)
class ReaderFinished(Event):
    """A reader under AvailableNow is at its end and wants no further grant.

    Attributes:
        reader: Which.
        start: Where it stands.
    """

    reader: str
    start: Offset


@dataclass(frozen=True, slots=True)
class BatchPlanned(Event):
    """Spark has logged an offset and plans its batch; tasks come next.

    Attributes:
        reader: Of which reader.
        offset: Where the batch ends.
        admitted: Rows that its plan admits.
        set_aside: Whether the batch failed too often, and runs without them.
    """

    reader: str
    offset: Offset
    admitted: int
    set_aside: bool = False


@dataclass(frozen=True, slots=True)
class LastStageStarted(Event):
    """A job of a batch has started its last stage.

    Attributes:
        tokens: Of the readers of its query.
        batch: Spark's number of the batch.
    """

    tokens: frozenset[str]
    batch: int | None = None


@dataclass(frozen=True, slots=True)
class BatchReported(Event):
    """Spark has reported on a micro-batch.

    Attributes:
        batch: Spark's number of it.
        dropped: By reader and number of its grant, admitted rows that the watermark dropped as late.
    """

    batch: int
    dropped: Mapping[tuple[str, int], float]


@dataclass(frozen=True, slots=True)
class RowsArrived(Event):
    """A tailer has found new segments.

    Attributes:
        stream: The id of the stream.
        new: What is new, by partition.
    """

    stream: str
    new: Sequence[NewSegments]


@dataclass(frozen=True, slots=True)
class Fetched(Event):
    """The answer to a `FetchRows`.

    Attributes:
        query: Whose grant waits for it.
        fetch: What was asked for.
        values: What was read; `None` if it could not be read.
    """

    query: str
    fetch: Fetch
    values: FetchedValues | None


@dataclass(frozen=True, slots=True)
class ConnectionEnded(Event):
    """A connection ended, for whatever reason; most are not of readers.

    Attributes:
        connection: Which.
    """

    connection: Hashable


@dataclass(frozen=True, slots=True)
class Woke(Event):
    """The moment that `due_s` named has come."""


# -- commands -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Command:
    """What a user or a driver wants. A command that breaks a rule raises, and changes nothing."""


@dataclass(frozen=True, slots=True)
class ChangeClass(Command):
    """Other settings of a class, by their names in the configuration."""

    cls: str
    changes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RemoveClass(Command):
    """A class is taken out."""

    cls: str


@dataclass(frozen=True, slots=True)
class Publish(Command):
    """A query of a class, whose readers have these tokens, writes a shared stream that others may read."""

    stream: str
    cls: str
    tokens: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Unpublish(Command):
    """A shared stream has no owner any more."""

    stream: str


@dataclass(frozen=True, slots=True)
class CheckRead(Command):
    """Whether a class may read a stream."""

    stream: str
    cls: str


@dataclass(frozen=True, slots=True)
class SetShedding(Command):
    """The kill switch."""

    on: bool


@dataclass(frozen=True, slots=True)
class Forbid(Command):
    """The next question of a reader, or of the readers with a token, is refused.

    Attributes:
        who: The reader or the token.
        rule: What was expected.
        got: What is there instead.
        hint: What to do.
    """

    who: str
    rule: str
    got: str
    hint: str


@dataclass(frozen=True, slots=True)
class MarkWindowed(Command):
    """The answers of queries with these tokens are windows that the watermark closes."""

    tokens: frozenset[str]


@dataclass(frozen=True, slots=True)
class Refuse(Command):
    """Queries with these tokens get no more grants, or get them again."""

    tokens: frozenset[str]
    on: bool = True


@dataclass(frozen=True, slots=True)
class Drain(Command):
    """What waits for queries with these tokens is processed unshed."""

    tokens: frozenset[str]
    on: bool = True


@dataclass(frozen=True, slots=True)
class Commanded(Event):
    """Somebody wants something.

    Attributes:
        command: What.
    """

    command: Command
