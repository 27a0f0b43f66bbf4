"""Who is governed: readers, the queries they belong to, and the grants these hold. State, no decisions."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from penstock.control.backlog.waiting import Waiting
from penstock.control.measure.cost import CostModel
from penstock.control.measure.sic import RECENT_BATCHES
from penstock.grants.offset import Offset, Positions
from penstock.grants.plans import KEEP_ALL, ShedPlan
from penstock.streams.protocol import StreamLog
from penstock.vocabulary.model import FloatArray


@dataclass(slots=True, eq=False)
class Reader:
    """One governed source of one streaming query, with the connection of its planner."""

    id: str
    query: str
    slot: str
    token: str
    log: StreamLog
    connection: object
    offset: Offset
    seen_end: dict[int, int]
    """Up to where its log's rows were counted as offered."""
    counted: Offset
    """The last offset that Spark has surely logged: it planned a batch to it, or began the next one there."""
    questions: int = 0
    """Since it joined."""
    finished: bool = False
    """It runs under AvailableNow and is at its end: what arrived since then is not for it."""

    @property
    def positions(self) -> Positions:
        return self.offset.end


@dataclass(frozen=True, slots=True)
class Gone:
    """A reader that is gone, as it was when it left: what arrives later is not for it.

    Attributes:
        stream: What it read.
        offset: The last one that Spark had surely logged.
        waiting: Rows that waited for it.
        oldest_s: How old the oldest of them was.
        token: Of the `read_stream` call that made it.
    """

    stream: str
    offset: Offset
    waiting: int
    oldest_s: float | None
    token: str = ""


@dataclass(slots=True, eq=False)
class Lease:
    """A grant that a query holds: proposed, then logged, then done with its next question.

    Attributes:
        began_s: On the timer, when it was answered.
        until_s: Arrival time up to which rows are decided; the query's other readers are answered to it.
        ends: By reader, where it ends.
        late: By reader, before which positions rows are late.
        plan: What is kept.
        plans: By reader, where a shedder has chosen segments of each.
        answered: Readers that have their answer for this micro-batch.
        logged: Readers for which Spark has planned it.
        replay: Spark runs a batch again after a restart, without having asked.
        arrival_s: When the rows between late and end arrived, on the timer.
        arrival_rows: How many arrived at each.
        admitted: Rows that are processed, known once it is logged.
        planned_s: How long the turn may be.
        spare: Whether no other class wanted the turn.
        jobs: Spark's jobs of the batch that have started their last stage, as far as the driver says.
        last_stage_s: On the timer, when the last of them did.
        batch: Spark's number of the micro-batch, as far as the driver says.
        dropped: Rows of it that Spark's watermark dropped, as far as that is known before the next question.
        held_s: How long it was held back before it could take cores.
        held_since_s: On the timer, since when it is.
    """

    began_s: float
    until_s: float
    ends: dict[str, dict[int, int]]
    late: dict[str, dict[int, int]]
    plan: ShedPlan = KEEP_ALL
    plans: Mapping[str, ShedPlan] = field(default_factory=dict)
    answered: set[str] = field(default_factory=set)
    logged: set[str] = field(default_factory=set)
    replay: bool = False
    arrival_s: FloatArray = field(default_factory=lambda: np.empty(0))
    arrival_rows: FloatArray = field(default_factory=lambda: np.empty(0))
    admitted: int = 0
    planned_s: float = math.inf
    spare: bool = False
    jobs: int = 0
    last_stage_s: float = math.inf
    batch: int | None = None
    dropped: float = 0.0
    held_s: float = 0.0
    held_since_s: float | None = None

    def start_last_stage(self, now_s: float, batch: int | None = None) -> None:
        """A job of the batch has started its last stage."""
        self.jobs += 1
        self.batch = self.batch if batch is None else batch
        self.last_stage_s = now_s

    def hold(self, now_s: float) -> None:
        """It may not take cores yet."""
        if self.held_since_s is None:
            self.held_since_s = now_s

    def let_go(self, now_s: float) -> None:
        """It may."""
        if self.held_since_s is not None:
            self.held_s, self.held_since_s = self.held_s + now_s - self.held_since_s, None

    def ran_s(self, now_s: float) -> float:
        """How long it has run, without the time in which it was held back."""
        return (now_s if self.held_since_s is None else self.held_since_s) - self.began_s - self.held_s


TAIL_MEMORY_BATCHES = 3.0


@dataclass(slots=True)
class Tail:
    """The last stages of a query's batches, by those before.

    Attributes:
        jobs: Spark's jobs in a batch; 0 if the driver does not tell.
        fraction: The part of a batch's time that is left when the last of them starts its last stage.
    """

    jobs: int = 0
    fraction: float = 0.0

    def learn(self, lease: Lease, now_s: float) -> None:
        """Takes in a batch that is complete."""
        if lease.jobs:
            fraction = (now_s - lease.last_stage_s) / max(lease.ran_s(now_s), 1e-9)
            weight = 1.0 / TAIL_MEMORY_BATCHES if self.jobs else 1.0
            self.fraction += weight * (min(fraction, 1.0) - self.fraction)
        self.jobs = lease.jobs


NOTED_BATCHES = RECENT_BATCHES - 1
"""Lines that may still be amended: the books of SIC know these, and the micro-batch that runs."""
RATE_EVERY_S = 0.1
"""A rate over a shorter time would say how rows are bunched."""
BURST = 8.0
"""So many times faster than the usual rate that of the last moments forgets."""


@dataclass(slots=True, eq=False)
class Query:
    """A streaming query: one or several readers that share each micro-batch."""

    key: str
    name: str
    cls: str
    cost: CostModel
    readers: dict[str, Reader] = field(default_factory=dict)
    leader: str | None = None
    """The reader that asks first in a micro-batch: only its question can open a grant."""
    lease: Lease | None = None
    largest_rows: int = 0
    """Of the batches so far: the next is not many times larger, whatever waits."""
    waiting: Waiting | None = None
    """As last looked at."""
    looked_s: float = -math.inf
    asked_s: float = -1.0
    pending_s: float = -math.inf
    """When its question for a grant was last on hold."""
    granted_s: float = -math.inf
    """When its last batch was granted."""
    data_since_tick: bool = False
    done_s: float = -1.0
    """When its last batch was complete."""
    refused: bool = False
    """No more grants: it is being stopped."""
    rate_per_s: float = 0.0
    """Rows that arrive for it, a mean that forgets."""
    burst_per_s: float = 0.0
    """The same, of the last moments."""
    rated_s: float | None = None
    """When that was last computed."""
    unrated_rows: int = 0
    """Rows that arrived since."""
    draining: bool = False
    batches: int = 0
    ungoverned: int = 0
    """Grants that it gave itself while the control plane was silent, as far as they are known."""
    warned_late: bool = False
    shed_reason: str | None = None
    """Why its class's shedder chose what it chose, when it last did."""
    closing: tuple[FloatArray, FloatArray] | None = None
    """Arrivals (on the timer) and rows of its last batch, where the watermark that they moved closes windows
    in the next."""
    driver: str = ""
    """Which driver's Spark runs it."""
    past: dict[str, Gone] = field(default_factory=dict)
    """Readers that are gone: they stay in the books."""
    left_s: float = -math.inf
    """When its last reader left."""
    tail: Tail = field(default_factory=Tail)
    dropped: float = 0.0
    """Rows that Spark's watermark dropped as late, since the control plane began."""
    noted: deque[Mapping[str, Any]] = field(default_factory=lambda: deque(maxlen=NOTED_BATCHES))
    """Lines of `sic.jsonl` of the last micro-batches that ended, as they were last written."""

    def grants(self, lease: Lease) -> dict[str, int]:
        """By reader that has a part in the micro-batch of a lease, the number of its grant."""
        there = sorted(lease.logged & self.readers.keys())
        return {name: self.readers[name].counted.grant for name in there}

    def begins_again(self, driver: str) -> None:
        """It had stopped and is there again; in another Spark application nothing is compiled yet."""
        self.refused = self.draining = False
        if driver != self.driver:
            self.driver, self.cost, self.largest_rows = driver, CostModel(), 0

    def came(self, rows: int, now_s: float, memory_s: float) -> None:
        """Rows have arrived since the last call; their rate is a mean that forgets.

        Args:
            rows: How many.
            now_s: On the timer.
            memory_s: Seconds after which about a third of the past is left.
        """
        self.unrated_rows += rows
        if self.rated_s is None:
            self.rated_s, self.unrated_rows = now_s, 0
        passed_s = now_s - self.rated_s
        if passed_s < RATE_EVERY_S:
            return
        seen_per_s = self.unrated_rows / passed_s
        self.rate_per_s += (1.0 - math.exp(-passed_s / memory_s)) * (seen_per_s - self.rate_per_s)
        self.burst_per_s += (1.0 - math.exp(-passed_s * BURST / memory_s)) * (seen_per_s - self.burst_per_s)
        self.rated_s, self.unrated_rows = now_s, 0


@dataclass(frozen=True, slots=True)
class Joining:
    """Who joins: `query` is what shares micro-batches, `name` what the user calls it, `slot` which of its
    readers this is (empty for the only one), `token` which call of `read_stream` made it, `driver` which
    Spark application it is of."""

    query: str
    name: str
    cls: str
    slot: str = ""
    token: str = ""
    driver: str = ""


def granted_by_itself(before: Reader | None, past: Gone | None, offset: Offset) -> int:
    """Grants that a source gave itself while nobody answered, by the numbers of its offsets."""
    if not offset.ungoverned:
        return 0
    known = before.counted if before is not None else past.offset if past is not None else None
    return 1 if known is None else max(0, offset.grant - known.grant)
