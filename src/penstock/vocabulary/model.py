"""The types of what plants report and policies decide. Frozen, unit-suffixed, validated.

A plant (simulated or Spark) turns measurements into an `Observation`; a policy turns an
`Observation` into a `Decision`; the cycle checks the decision and gives it to the plant. Nothing
else crosses that seam. Unknown is `None`, never NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from penstock.vocabulary.errors import InvalidInputError, require_fraction, require_positive

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class QueryClass:
    """Queries that share a priority, a delay target and a load manager: one virtual system."""

    name: str
    delay_target_s: float = 2.0
    priority: float = 1.0
    manager: str = "deadline"
    period_s: float | None = None
    """How often the class's load manager decides; `None` lets the manager choose."""
    lendable_fraction: float = 1.0
    """Largest part of its own share of the capacity that the class lends."""
    borrow_limit_fraction: float = 1.0
    """Largest part of the whole capacity that the class borrows."""

    def __post_init__(self) -> None:
        if not self.name.strip():
            raise InvalidInputError("a class needs a name", repr(self.name), "for example name: gold")
        require_positive(
            f"class {self.name}: priority", self.priority, "higher means more important, e.g. 6, 3, 1"
        )
        require_positive(
            f"class {self.name}: delay target", self.delay_target_s, "give it in seconds, e.g. 2s"
        )
        require_fraction(
            f"class {self.name}: lendable_fraction", self.lendable_fraction, "0 if it never lends"
        )
        require_fraction(
            f"class {self.name}: borrow_limit_fraction", self.borrow_limit_fraction, "0 if it never borrows"
        )
        if self.period_s is not None:
            require_positive(
                f"class {self.name}: period", self.period_s, "a quarter of the delay target is a good start"
            )


def reject_duplicates(kind: str, names: Sequence[str]) -> None:
    """Rejects a list of names in which one occurs twice."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise InvalidInputError(f"{kind} names must differ", repr(name), "rename one of them")
        seen.add(name)


@dataclass(frozen=True, slots=True)
class DelayStats:
    """A distribution of delays. All `None` when nothing was measured."""

    count: int = 0
    mean_s: float | None = None
    p50_s: float | None = None
    p95_s: float | None = None
    p99_s: float | None = None
    max_s: float | None = None

    @classmethod
    def of(cls, samples_s: FloatArray) -> DelayStats:
        """Summarises samples (in any order)."""
        if samples_s.size == 0:
            return cls()
        ordered = np.sort(samples_s)
        p50, p95, p99 = (float(ordered[int(q * (ordered.size - 1))]) for q in (0.50, 0.95, 0.99))
        return cls(int(ordered.size), float(ordered.mean()), p50, p95, p99, float(ordered[-1]))


@dataclass(frozen=True, slots=True, eq=False)
class WaitingRows:
    """How many rows wait at the entry, by arrival time (from segment headers; rows are not read).

    `rows[i]` rows arrived after `arrival_s[i - 1]` and no later than `arrival_s[i]`.
    """

    arrival_s: FloatArray
    rows: FloatArray

    @property
    def total(self) -> float:
        """How many rows wait in all."""
        return float(self.rows.sum())


NO_ROWS = WaitingRows(np.empty(0), np.empty(0))


@dataclass(frozen=True, slots=True)
class BatchTiming:
    """Timing of a plant that runs each grant as one micro-batch: all rows complete at the batch's end.

    Attributes:
        fixed_s: Time of a batch whatever it holds.
        row_s: Time that each row adds.
        length_s: Longest time that this grant may take.
        cycle_s: Time after which the query's next grant may begin.
    """

    fixed_s: float
    row_s: float
    length_s: float
    cycle_s: float


@dataclass(frozen=True, slots=True, eq=False)
class Observation:
    """Everything that a class's load manager may know at `now_s` about the period that just ended.

    Load is CPU time: a load of 0.8 asks for 0.8 CPU seconds a second. `headroom` is the part of
    the CPU that query processing really gets; it is not observed, managers estimate it.
    """

    id: int
    cls: str
    now_s: float
    period_s: float
    delay_target_s: float
    keep_fraction: float
    """Entry keep fraction in force at the end of the period."""
    offered_rows: int
    """Rows that arrived in the period."""
    admitted_rows: int
    """Rows that passed the shedder in the period."""
    shed_rows: int
    departed_rows: int
    """Tuples that left the network in the period, output or filtered out (CTRL's f_out * T)."""
    waiting_rows: int
    """Rows at the entry that no decision has admitted or shed yet."""
    offered_load: float
    """Eq. 3.1 before shedding: sum of rate x load coefficient over the class's streams."""
    queued_load_s: float
    """Eq. 4.1: CPU seconds queued; rows at the entry count x the keep fraction now in force."""
    network_load_s: float
    """The part of `queued_load_s` that is already inside the network."""
    cost_per_row_s: float | None
    """CPU seconds that one admitted row costs (mean load coefficient); `None` before the first row."""
    work_s: float
    """CPU seconds the operators used in the period."""
    busy_s: float
    """Wall seconds of the period in which there was something to process."""
    delay: DelayStats
    """Processing delays of the rows completed in the period."""
    output_delay_s: FloatArray = field(default_factory=lambda: np.empty(0))
    """Mean delay of each query output in the period; NaN where an output had no row."""
    waiting: WaitingRows = NO_ROWS
    batch: BatchTiming | None = None
    """Only from plants that grant micro-batches, once they know the cost of a micro-batch."""
    capacity_scale: float = 1.0
    """Factor by which a redistribution since the last observation multiplied the capacity; managers that
    learn their headroom multiply it by the same factor (pham2016 eq. 6.1)."""

    @property
    def offered_rate_per_s(self) -> float:
        """Rows a second that arrived in the period."""
        return self.offered_rows / self.period_s

    @property
    def admitted_load(self) -> float:
        """Load of the admitted rows, after the drop now in force (L of the papers)."""
        return self.offered_load * self.keep_fraction


@dataclass(frozen=True, slots=True)
class Admission:
    """A decision about the waiting rows up to a cut in arrival time; later rows go on waiting.

    Rows that arrived before `shed_before_s` are shed as late; of the rest, up to `cut_s`, a
    uniform sample of `keep_fraction` is admitted.
    """

    cut_s: float
    shed_before_s: float
    keep_fraction: float
    limit_rows: float | None = None
    """Most rows to admit, oldest first; later rows go on waiting. It may split rows of one arrival time."""


@dataclass(frozen=True, slots=True)
class Expected:
    """The expected effect of a decision, by which an ineffective decision is noticed."""

    delay_s: float | None = None
    admitted_rows: float | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """A load manager's answer. "No change" is a decision too."""

    observation_id: int
    keep_fraction: float
    reason: str
    expected: Expected = Expected()
    shed_load_s: float = 0.0
    """CPU seconds of queued load to drop inside the network (Borealis style), besides drops at the entry."""
    grant: Admission | None = None
    """Only managers that let rows wait in the log give grants; `keep_fraction` is then the grant's."""
    headroom: float | None = None
    """The manager's estimate of the headroom after this decision."""


@dataclass(frozen=True, slots=True)
class ManagerTraits:
    """What a plant must know about a load manager, besides its decisions.

    Attributes:
        gives_grants: Whether rows wait in the log until a decision grants them. If not, the manager decides
            periodically.
        sheds_inside: Whether the manager drops load inside the operator network. On Spark, rows are shed at
            the entry.
        overrun_fraction: Fraction by which a batch and the wait for it may exceed the plan before rows are
            late. On Spark, turns are shorter by this fraction.
        late_fraction: Fraction of a grant's rows that may be late and are still sampled with the other rows.
        period_fraction: How often the manager decides, as a part of the delay target. A quarter is usual,
            as in the papers (tu2006 fig. 19).
        headroom_setting: The setting with which a user tells the manager its headroom. `None` if the manager
            has no such setting.
    """

    gives_grants: bool = False
    sheds_inside: bool = False
    overrun_fraction: float = 0.0
    late_fraction: float = 0.0
    period_fraction: float = 0.25
    headroom_setting: str | None = None

    def period_s(self, delay_target_s: float) -> float:
        """The time between two decisions, for a target."""
        return delay_target_s * self.period_fraction


class LoadManager(Protocol):
    """Decides when and how much to shed. `decide` is the only mutator."""

    @property
    def name(self) -> str:
        """What a configuration calls the manager."""
        ...

    @property
    def traits(self) -> ManagerTraits:
        """What the plant must know about the manager."""
        ...

    def decide(self, observation: Observation) -> Decision:
        """How much to keep from now on, by what was observed."""
        ...

    def snapshot(self) -> dict[str, object]:
        """The manager's state as JSON values."""
        ...

    def restore(self, snapshot: dict[str, object]) -> None:
        """Goes on from the state that `snapshot` gave."""
        ...


class Plant(Protocol):
    """The system that a load manager controls: the simulated engine or Spark."""

    def observe(self) -> Observation | None:
        """Waits (or simulates) until the next control instant; `None` when the run is over."""
        ...

    def apply(self, decision: Decision) -> None:
        """Carries out a decision, until the next one."""
        ...
