"""Typed messages to a control plane. Each message is one line of JSON; its `op` tells its type.

The server refuses a message that does not fit its type, and answers what it expected. Answers are JSON
objects; a grant has the form of `Grant.to_json`. Sources write their messages as plain dicts: planners and
read tasks are many short processes, and to import pydantic would take a tenth of a second in each.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from penstock.grants.offset import Offset
from penstock.host.client import VERSION
from penstock.vocabulary.errors import InvalidInputError

HINT = "use the same Penstock on both sides; host/wire.py has all messages"


class Message(BaseModel):
    """Base class of all messages. A field that this version does not know is ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore", arbitrary_types_allowed=True)


def _offset(encoded: Any) -> Offset:
    if isinstance(encoded, Offset):
        return encoded
    if not isinstance(encoded, Mapping):
        raise ValueError("an offset is a JSON object")
    try:
        return Offset.from_json(encoded)
    except (KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"an offset has all its fields; got: {error!r}") from error


if TYPE_CHECKING:
    WireOffset = Offset
else:  # pydantic would look into the type of an offset, whose plan is a protocol
    WireOffset = Annotated[Any, PlainValidator(_offset)]
Names = frozenset[str]


def _text(value: object) -> str:
    if value is None:
        raise ValueError("a name is a text")
    return str(value)


Text = Annotated[str, BeforeValidator(_text)]
"""A name. Drivers in other languages may send a number: its digits are the name."""


class FromSource(Message):
    """A message of a source. An error answer ends the query, so only deliberate refusals become errors."""


class Waits(FromSource):
    """A question that may be held.

    Attributes:
        timeout_s: How long the source waits for an answer.
    """

    timeout_s: float = math.inf


class Hello(FromSource):
    """A reader's planner has connected, with the offset at which it stands."""

    op: Literal["hello"]
    query: Text
    name: Text
    cls: Text
    slot: Text
    token: Text
    driver: Text = ""
    log: str
    offset: WireOffset


class Ask(Waits):
    """A reader asks for its next grant; the batch before it is complete."""

    op: Literal["ask"]
    reader: Text
    start: WireOffset
    all: bool = False


class Finish(FromSource):
    """A reader under AvailableNow wants no further grant."""

    op: Literal["finish"]
    reader: Text
    start: WireOffset


class Planned(Waits):
    """Spark plans a batch; its tasks come next."""

    op: Literal["planned"]
    reader: Text
    offset: WireOffset
    admitted: int
    aside: bool = False


class Granted(Message):
    """Asks whether a query has a grant whose micro-batch Spark has not planned yet."""

    op: Literal["granted"]
    query: Text


class LastStage(Message):
    """A job of a batch has started its last stage."""

    op: Literal["last_stage"]
    tokens: Names
    batch: int | None = None


class Job(Message):
    """A job of a batch has ended, with all its tasks; see `JobEnded`."""

    op: Literal["job"]
    tokens: Names
    batch: int | None = None
    tasks: int
    core_s: float
    ready_ago_s: float


class Cores(Message):
    """A Spark application has so many cores from now on; none: it has ended."""

    op: Literal["cores"]
    driver: Text
    cores: int | None = None


class Running(BaseModel):
    """How many tasks of the queries with some tokens run."""

    model_config = Message.model_config

    tokens: Names
    tasks: int


class Tasks(Message):
    """How many tasks of each query a Spark application runs now; queries without tasks are left out."""

    op: Literal["tasks"]
    driver: Text
    running: tuple[Running, ...]


class Dropped(Message):
    """Which grants a batch had, and how many rows of each Spark's watermark dropped."""

    op: Literal["dropped"]
    batch: int
    rows: tuple[tuple[Text, int, float], ...]


class Ping(Message):
    """Asks whether the control plane answers."""

    op: Literal["ping"]


class AskPlan(Message):
    """Asks for the capacity that each class needs, and for the capacity that each class has."""

    op: Literal["plan"]


class AskStatus(Message):
    """Asks for the present status of every class and query."""

    op: Literal["status"]


class AskConfig(Message):
    """Asks for the configuration, with the changes since the start."""

    op: Literal["config"]


class AskJoined(Message):
    """Asks for the readers that have joined, by token."""

    op: Literal["joined"]


class Change(Message):
    """Changes settings of a class. The settings have their names in the configuration."""

    op: Literal["change"]
    cls: Text
    changes: dict[str, Any]


class Remove(Message):
    """Removes a class."""

    op: Literal["remove"]
    cls: Text


class Share(Message):
    """Tells that a query of a class writes a stream that other queries may read."""

    op: Literal["share"]
    stream: Text
    cls: Text
    tokens: Names = frozenset()


class Reads(Message):
    """Asks whether a class may read a stream."""

    op: Literal["reads"]
    stream: Text
    cls: Text


class Release(Message):
    """Tells that no query writes a shared stream any more: the stream has no owner."""

    op: Literal["release"]
    stream: Text


class Shedding(Message):
    """Switches the shedding of all classes on or off: the kill switch."""

    op: Literal["shedding"]
    on: bool


class Forbid(Message):
    """Makes the control plane refuse the next question of a reader, or of a token's readers."""

    op: Literal["forbid"]
    reader: Text = ""
    token: Text = ""
    rule: Text
    got: Text
    hint: Text

    @model_validator(mode="after")
    def _names_somebody(self) -> Forbid:
        if not self.who:
            raise ValueError("a reader or a token is named")
        return self

    @property
    def who(self) -> str:
        return self.reader or self.token


class Windows(Message):
    """Tells that queries with these tokens answer with windows that the watermark closes."""

    op: Literal["windows"]
    tokens: Names


class Left(Message):
    """Asks which queries with these tokens still have rows to process."""

    op: Literal["left"]
    tokens: Names


class Refuse(Message):
    """Stops the grants of queries with these tokens, or lets the queries have grants again."""

    op: Literal["refuse"]
    tokens: Names
    on: bool = True


class Drain(Message):
    """Processes the waiting rows of queries with these tokens without shedding, or no longer does so."""

    op: Literal["drain"]
    tokens: Names
    on: bool = True


class Mark(Message):
    """Does nothing. Drivers of an older Penstock send it; today a client subtracts two statuses itself."""

    op: Literal["mark"]


class Stop(Message):
    """Ends the control plane."""

    op: Literal["stop"]


AnyMessage = Annotated[
    Hello
    | Ask
    | Finish
    | Planned
    | Granted
    | LastStage
    | Job
    | Cores
    | Tasks
    | Dropped
    | Ping
    | AskPlan
    | AskStatus
    | AskConfig
    | AskJoined
    | Change
    | Remove
    | Share
    | Reads
    | Release
    | Shedding
    | Forbid
    | Windows
    | Left
    | Refuse
    | Drain
    | Mark
    | Stop,
    Field(discriminator="op"),
]

_ADAPTER: TypeAdapter[Any] = TypeAdapter(AnyMessage)


def parsed(message: object) -> Message:
    """The message that somebody sent.

    Raises:
        InvalidInputError: It is none, or of another version.
    """
    if not isinstance(message, dict) or message.get("v") != VERSION:
        raise InvalidInputError(f"a message is a JSON object with v = {VERSION}", repr(message)[:60], HINT)
    try:
        found: Message = _ADAPTER.validate_python(message)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        if first["type"] == "union_tag_invalid":
            raise InvalidInputError(
                "a message names a known operation", repr(message.get("op")), HINT
            ) from None
        where = ".".join(map(str, first["loc"]))
        raise InvalidInputError(
            f"a message is well formed: {where or 'it'}: {first['msg']}", repr(first.get("input"))[:60], HINT
        ) from None
    return found
