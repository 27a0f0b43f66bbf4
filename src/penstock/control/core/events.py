"""Everything that can happen to the control plane, and when it happened."""

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
        at: The time at which it happened.
    """

    at: Moment


@dataclass(frozen=True, slots=True)
class ReaderExpected(Event):
    """A reader is about to join: a tailer reads the headers of its waiting rows.

    Until the reader joins, or its connection ends, the engine keeps all headers that the reader needs. Other
    events come between the headers and `ReaderJoined`.

    Attributes:
        connection: The connection of the reader's planner.
        stream: Id of the stream that the reader reads.
        positions: The reader's positions in the stream.
    """

    connection: Hashable
    stream: str
    positions: Positions


@dataclass(frozen=True, slots=True)
class ReaderJoined(Event):
    """A reader's planner has connected. The headers of the reader's waiting rows have arrived before.

    Attributes:
        who: The query and the class of the reader.
        stream: The stream that the reader reads.
        connection: The connection of the reader's planner.
        offset: The reader's present offset.
    """

    who: Joining
    stream: StreamInfo
    connection: Hashable
    offset: Offset


@dataclass(frozen=True, slots=True)
class Asked(Event):
    """A source asks for its next grant. The grant that its query held before has ended.

    Attributes:
        reader: The reader that asks.
        start: The reader's present offset.
        takes_all: Whether the query runs under AvailableNow: it wants all rows that its log has.
    """

    reader: str
    start: Offset
    takes_all: bool = False


@dataclass(frozen=True, slots=True)
class QuestionEnded(Event):
    """The host stops holding the question of a source, or its planned batch. The source asks again.

    Attributes:
        reader: The reader of the source.
    """

    reader: str


@dataclass(frozen=True, slots=True)
class ReaderFinished(Event):
    """A reader under AvailableNow has reached its end and wants no further grant.

    Attributes:
        reader: The reader.
        start: The reader's present offset.
    """

    reader: str
    start: Offset


@dataclass(frozen=True, slots=True)
class BatchPlanned(Event):
    """Spark has logged an offset and plans the batch up to it. The batch's tasks start next.

    Attributes:
        reader: The reader whose part of the batch is planned.
        offset: The offset at which the batch ends.
        admitted: Number of rows that the plan of the offset admits.
        set_aside: Whether the batch has failed too often, and now runs without these rows.
    """

    reader: str
    offset: Offset
    admitted: int
    set_aside: bool = False


@dataclass(frozen=True, slots=True)
class DriverReport(Event):
    """A driver reports what it alone can see. Reports may come late, or not at all."""


@dataclass(frozen=True, slots=True)
class LastStageStarted(DriverReport):
    """A job of a batch has started its last stage.

    Attributes:
        tokens: Tokens of the readers of the batch's query.
        batch: Spark's number of the batch.
    """

    tokens: frozenset[str]
    batch: int | None = None


@dataclass(frozen=True, slots=True)
class JobEnded(DriverReport):
    """A job of a batch has ended, with all its tasks.

    Attributes:
        tokens: Of the readers of its query.
        batch: Spark's number of the batch.
        tasks: How many tasks the job had.
        core_s: Seconds of these tasks, each counted once: retries and speculative copies do not add to it.
        ready_ago_s: How long ago the first of them could begin, whether or not a core was free.
    """

    tokens: frozenset[str]
    batch: int | None
    tasks: int
    core_s: float
    ready_ago_s: float


@dataclass(frozen=True, slots=True)
class CoresChanged(DriverReport):
    """A Spark application has so many cores from now on.

    Attributes:
        driver: Which application.
        cores: Cores of all its executors; 0 while there is none; `None` if the application has ended.
    """

    driver: str
    cores: int | None


@dataclass(frozen=True, slots=True)
class TasksSeen(DriverReport):
    """A Spark application runs so many tasks of its queries now. It says so now and then.

    Attributes:
        driver: Which application.
        running: By the tokens of a query's readers, how many of its tasks run; a query without is missing.
    """

    driver: str
    running: Mapping[frozenset[str], int]


@dataclass(frozen=True, slots=True)
class BatchReported(DriverReport):
    """Spark has reported on a micro-batch.

    Attributes:
        batch: Spark's number of the micro-batch.
        dropped: By reader and number of the grant, how many admitted rows the watermark dropped as late.
    """

    batch: int
    dropped: Mapping[tuple[str, int], float]


@dataclass(frozen=True, slots=True)
class RowsArrived(Event):
    """A tailer has found new segments.

    Attributes:
        stream: The id of the stream.
        new: By partition, the new segments.
    """

    stream: str
    new: Sequence[NewSegments]


@dataclass(frozen=True, slots=True)
class Fetched(Event):
    """The answer to a `FetchRows`.

    Attributes:
        query: The query whose grant waits for the values.
        fetch: The values that were wanted.
        values: The values that were read; `None` if they could not be read.
    """

    query: str
    fetch: Fetch
    values: FetchedValues | None


@dataclass(frozen=True, slots=True)
class ConnectionEnded(Event):
    """A connection ended, for whatever reason. Most connections belong to no reader.

    Attributes:
        connection: The connection.
    """

    connection: Hashable


@dataclass(frozen=True, slots=True)
class Woke(Event):
    """The time has come at which the engine wanted to be woken (`due_s`)."""


# -- commands -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Command:
    """A command of a user or a driver. A command that breaks a rule raises an error, and changes nothing."""


@dataclass(frozen=True, slots=True)
class ChangeClass(Command):
    """Changes settings of a class. The settings have their names in the configuration."""

    cls: str
    changes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RemoveClass(Command):
    """Removes a class."""

    cls: str


@dataclass(frozen=True, slots=True)
class Publish(Command):
    """Makes a stream a shared stream. The query that writes it has readers with these tokens."""

    stream: str
    cls: str
    tokens: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Unpublish(Command):
    """Takes the owner from a shared stream that no query writes any more."""

    stream: str


@dataclass(frozen=True, slots=True)
class CheckRead(Command):
    """Raises an error if a class may not read a stream."""

    stream: str
    cls: str


@dataclass(frozen=True, slots=True)
class SetShedding(Command):
    """Switches the shedding of all classes on or off: the kill switch."""

    on: bool


@dataclass(frozen=True, slots=True)
class Forbid(Command):
    """Makes the engine refuse the next question of a reader, or of the readers with a token.

    Attributes:
        who: The reader or the token.
        rule: What was expected.
        got: What the driver found instead.
        hint: What the user can do.
    """

    who: str
    rule: str
    got: str
    hint: str


@dataclass(frozen=True, slots=True)
class MarkWindowed(Command):
    """Tells that queries with these tokens answer with windows that the watermark closes."""

    tokens: frozenset[str]


@dataclass(frozen=True, slots=True)
class Refuse(Command):
    """Stops the grants of queries with these tokens, or lets the queries have grants again."""

    tokens: frozenset[str]
    on: bool = True


@dataclass(frozen=True, slots=True)
class Drain(Command):
    """Processes the waiting rows of queries with these tokens without shedding, or no longer does so."""

    tokens: frozenset[str]
    on: bool = True


@dataclass(frozen=True, slots=True)
class Commanded(Event):
    """A user or a driver has given a command.

    Attributes:
        command: The command.
    """

    command: Command
