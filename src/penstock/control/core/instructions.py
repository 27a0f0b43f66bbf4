"""Everything that the control plane can tell its host to do."""

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
    """An instruction for the host."""


@dataclass(frozen=True, slots=True)
class GrantIssued(Instruction):
    """Answers a reader's question with a grant."""

    reader: str
    grant: Grant


@dataclass(frozen=True, slots=True)
class NothingYet(Instruction):
    """Answers a reader's question with "nothing yet", because holding the question would not help.

    Attributes:
        reader: The reader that asked.
        leads: Whether the reader's questions open its query's grants. If not, another reader's questions do.
    """

    reader: str
    leads: bool = True


@dataclass(frozen=True, slots=True)
class MayProceed(Instruction):
    """Lets the tasks of a reader's planned batch start.

    Attributes:
        reader: The reader.
        tasks: Number of tasks that the reader's rows are worth; `None` if that is not known.
    """

    reader: str
    tasks: int | None = None


@dataclass(frozen=True, slots=True)
class Refused(Instruction):
    """Refuses a reader's question, which ends the reader's query."""

    reader: str
    error: InvalidInputError


@dataclass(frozen=True, slots=True)
class FetchRows(Instruction):
    """Fetches values of rows that a shedder needs. The host answers with a `Fetched`.

    Attributes:
        query: The query whose grant waits for the values.
        fetch: The values that are needed.
    """

    query: str
    fetch: Fetch


@dataclass(frozen=True, slots=True)
class ManagerChanged:
    """Records that a class has another manager from an observation on.

    Attributes:
        cls: The class.
        observation_id: The first observation that the new manager gets.
        manager: The new manager, as a run directory describes it.
    """

    cls: str
    observation_id: int
    manager: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Recorded(Instruction):
    """Writes a line into the record of the run, if the run has a record."""

    line: Step | SicLine | ShedLine | ManagerChanged


@dataclass(frozen=True, slots=True)
class Tell(Instruction):
    """Tells a driver to do something. Nothing uses it yet; state placement and migration will.

    Attributes:
        driver: The driver.
        what: The instruction, as a message to the driver.
    """

    driver: str
    what: Mapping[str, object] = field(default_factory=dict)


class Outbox:
    """Collects the instructions of one event. Load managers also record their steps here."""

    def __init__(self) -> None:
        self._waiting: list[Instruction] = []

    def add(self, instruction: Instruction) -> None:
        self._waiting.append(instruction)

    def record(self, step: Step) -> None:
        """Adds a step of a load manager, for the record."""
        self._waiting.append(Recorded(step))

    def take(self) -> list[Instruction]:
        """Returns all collected instructions, and forgets them."""
        waiting, self._waiting = self._waiting, []
        return waiting
