"""A lease: the grant that a query holds, from the answer to its end. Its outcomes have names."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from penstock.grants.grant import Grant
from penstock.grants.offset import Offset, Positions
from penstock.grants.plans import KEEP_ALL, ShedPlan
from penstock.vocabulary.model import FloatArray


class Outcome(Enum):
    """How a lease ends."""

    DONE = "done"
    """Spark ran its batch, as the query's next question shows."""
    REPLAYED = "replayed"
    """Spark ran a batch again after a restart, without a question before it; nothing is learned from it."""
    ORPHANED = "orphaned"
    """The grant was proposed, and Spark never logged it: the books ignore it."""
    LOST = "lost"
    """The connection of the query's planner ended while the query held the grant."""

    @property
    def ran(self) -> bool:
        """Whether a batch was run to its end."""
        return self in (Outcome.DONE, Outcome.REPLAYED)


@dataclass(frozen=True, slots=True, eq=False)
class Terms:
    """What a lease is about; decided once, when it is granted.

    Attributes:
        began_s: On the timer, when the grant was answered.
        ends: By reader, where the grant ends. Readers that are not in it joined later.
        late: By reader, before which positions rows are late.
        plan: What is kept.
        plans: By reader, where a shedder has chosen for each.
        arrival_s: When the rows between late and end arrived, on the timer.
        arrival_rows: How many rows arrived at each of these times.
        planned_s: How long the turn may be.
        spare: Whether no other class wanted the turn.
        replay: Whether Spark runs a batch again after a restart, without having asked.
    """

    began_s: float
    ends: Mapping[str, Positions] = field(default_factory=dict)
    late: Mapping[str, Positions] = field(default_factory=dict)
    plan: ShedPlan = KEEP_ALL
    plans: Mapping[str, ShedPlan] = field(default_factory=dict)
    arrival_s: FloatArray = field(default_factory=lambda: np.empty(0))
    arrival_rows: FloatArray = field(default_factory=lambda: np.empty(0))
    planned_s: float = math.inf
    spare: bool = False
    replay: bool = False


class Lease:
    """A grant that a query holds: proposed, then logged, then over.

    Args:
        terms: What the grant holds, as it was decided.
    """

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self.answered: set[str] = set()
        """Readers that have their answer for this micro-batch."""
        self.logged: set[str] = set()
        """Readers for which Spark has planned the batch."""
        self.admitted = 0
        """Rows that are processed; known once the batch is planned."""
        self.jobs = 0
        """Spark's jobs of the batch that have started their last stage, as far as the driver says."""
        self.last_stage_s = math.inf
        """On the timer, when the last of them did."""
        self.batch: int | None = None
        """Spark's number of the micro-batch, as far as the driver says."""
        self.dropped = 0.0
        """Rows that Spark's watermark dropped, as far as that is known before the next question."""
        self._held_s = 0.0
        self._held_since_s: float | None = None

    @property
    def is_proposed(self) -> bool:
        """Whether Spark has not planned the batch yet."""
        return not self.logged

    # -- its life -------------------------------------------------------------------------------

    def answer(self, reader: str, positions: Positions) -> Grant | None:
        """A reader's part of the grant; `None` when it has no row up to the cut, or joined too late."""
        self.answered.add(reader)
        if reader not in self.terms.ends:
            return None
        ends = {**positions, **self.terms.ends[reader]}
        if ends == dict(positions):
            return None
        plan = self.terms.plans.get(reader, self.terms.plan)
        return Grant(ends, self.terms.late.get(reader, {}), plan, sources=len(self.terms.ends))

    def log(self, reader: str, admitted: int) -> bool:
        """Spark plans the batch for a reader; returns whether this was not known yet."""
        if reader in self.logged:
            return False
        self.answered.add(reader)
        self.logged.add(reader)
        self.admitted += admitted
        return True

    def outcome(self, reader: str, before: Offset, start: Offset) -> Outcome | None:
        """How the lease ends with a reader's next question; `None` if it does not: the reader had no answer.

        Args:
            reader: Who asks.
            before: The last offset that was known of the reader.
            start: The offset at which it asks.
        """
        if reader not in self.answered:
            return None
        if self.terms.replay:
            return Outcome.REPLAYED
        return Outcome.DONE if self.logged or start.grant > before.grant else Outcome.ORPHANED

    def report(self, batch: int, dropped: float) -> None:
        """Spark has reported on the micro-batch: its number, and rows that the watermark dropped."""
        self.batch = batch
        self.dropped += dropped

    # -- its time -------------------------------------------------------------------------------

    def start_last_stage(self, now_s: float, batch: int | None = None) -> None:
        """A job of the batch has started its last stage."""
        self.jobs += 1
        self.batch = self.batch if batch is None else batch
        self.last_stage_s = now_s

    def hold(self, now_s: float) -> None:
        """The batch may not take cores yet."""
        if self._held_since_s is None:
            self._held_since_s = now_s

    def let_go(self, now_s: float) -> None:
        """The batch may take cores."""
        if self._held_since_s is not None:
            self._held_s, self._held_since_s = self._held_s + now_s - self._held_since_s, None

    def ran_s(self, now_s: float) -> float:
        """How long the batch has run, without the time in which it was held back."""
        until_s = now_s if self._held_since_s is None else self._held_since_s
        return until_s - self.terms.began_s - self._held_s
