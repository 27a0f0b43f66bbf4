"""Everything the control plane can want of its host."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.control.backlog.row_values import Fetch
from penstock.control.decide.cycle import Step
from penstock.control.measure.lines import ShedLine, SicLine
from penstock.grants.grant import Grant
from penstock.vocabulary.errors import InvalidInputError


@dataclass(frozen=True, slots=True)
class Instruction:
    """Something that the host is to do."""


@dataclass(frozen=True, slots=True)
class GrantIssued(Instruction):
    """A reader's question is answered with a grant."""

    reader: str
    grant: Grant


@dataclass(frozen=True, slots=True)
class NothingYet(Instruction):
    """A reader's question is answered: nothing, and holding it would not help.

    Attributes:
        reader: Who asked.
        leads: Whether its questions open its query's grants; another reader of the query does so otherwise.
    """

    reader: str
    leads: bool = True


@dataclass(frozen=True, slots=True)
class MayProceed(Instruction):
    """The batch that Spark has planned for a reader may have the cores."""

    reader: str


@dataclass(frozen=True, slots=True)
class Refused(Instruction):
    """A reader's question is refused, which ends its query."""

    reader: str
    error: InvalidInputError


@dataclass(frozen=True, slots=True)
class FetchRows(Instruction):
    """A shedder must know values of rows; a `Fetched` is the answer.

    Attributes:
        query: Whose grant waits for it.
        fetch: What is needed.
    """

    query: str
    fetch: Fetch


@dataclass(frozen=True, slots=True)
class ManagerChanged:
    """A class has another manager from an observation on.

    Attributes:
        cls: The class.
        observation_id: The first observation that the new manager gets.
        manager: What it is, as a run directory describes it.
    """

    cls: str
    observation_id: int
    manager: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Recorded(Instruction):
    """Something is to be kept in the record of the run, if there is one."""

    line: Step | SicLine | ShedLine | ManagerChanged


@dataclass(frozen=True, slots=True)
class Tell(Instruction):
    """A driver is to do something. Nothing needs it yet: state placement and migration will.

    Attributes:
        driver: Which.
        what: In words of the driver's own messages.
    """

    driver: str
    what: Mapping[str, object] = field(default_factory=dict)


class Outbox:
    """Instructions that wait for the end of an event; load managers record their steps into it."""

    def __init__(self) -> None:
        self._waiting: list[Instruction] = []

    def add(self, instruction: Instruction) -> None:
        self._waiting.append(instruction)

    def record(self, step: Step) -> None:
        """A decision of a load manager."""
        self._waiting.append(Recorded(step))

    def take(self) -> list[Instruction]:
        """All that wait; they wait no more."""
        waiting, self._waiting = self._waiting, []
        return waiting
