"""A lease: the grant that a query holds, from the answer to its end. Its outcomes have names."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from penstock.control.measure.work import Use
from penstock.grants.grant import Grant
from penstock.grants.offset import Offset, Positions
from penstock.grants.plans import KEEP_ALL, ShedPlan
from penstock.vocabulary.model import FloatArray


class Outcome(Enum):
    """How a lease ends."""

    DONE = "done"
    """Spark ran the batch of the lease: the query's next question shows it."""
    REPLAYED = "replayed"
    """Spark ran a batch again after a restart, without asking. The cost model does not learn from it."""
    ORPHANED = "orphaned"
    """The grant was proposed, but Spark never logged its offset. The books ignore the grant."""
    LOST = "lost"
    """The connection of the query's planner ended while the query held the grant."""

    @property
    def ran(self) -> bool:
        """Whether Spark ran the batch to its end."""
        return self in (Outcome.DONE, Outcome.REPLAYED)


@dataclass(frozen=True, slots=True, eq=False)
class Terms:
    """The terms of a lease. They are decided when the grant is made, and never change.

    Attributes:
        began_s: Time, on the timer, at which the grant was given.
        ends: By reader, the positions at which the grant ends. A reader without an entry joined later.
        late: By reader, the positions before which rows are late.
        plan: The plan for all readers: which rows are kept.
        plans: By reader for which a shedder has chosen, the reader's own plan.
        arrival_s: Arrival times, on the timer, of the rows between `late` and `ends`.
        arrival_rows: By arrival time, the number of rows.
        planned_s: The planned length of the turn.
        task_s: How long tasks of the batch may be; 0 where it uses all cores.
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
    task_s: float = 0.0
    spare: bool = False
    replay: bool = False


@dataclass(slots=True)
class TaskUse:
    """What the tasks of a batch take, as far as the driver says.

    Attributes:
        planned: By reader, for how many tasks the control plane has allowed; empty while nothing is known.
        jobs: How many of Spark's jobs have ended.
        count: How many tasks they had.
        core_s: Seconds of these tasks.
        before_s: From the grant until the first tasks could begin; `None` if no job has ended.
        between_s: In all, from the end of a job until the tasks of the next one could begin.
        ended_s: On the timer, when the last of these jobs ended.
        expected_s: Machine seconds that the batch is expected to take; `None` if cores are not known.
        paid_s: Machine seconds for which the class of the batch has paid while the batch ran.
        is_named: Whether the log has named the batch because it does not end.
    """

    planned: dict[str, int] = field(default_factory=dict)
    jobs: int = 0
    count: int = 0
    core_s: float = 0.0
    before_s: float | None = None
    between_s: float = 0.0
    ended_s: float = -math.inf
    expected_s: float | None = None
    paid_s: float = 0.0
    is_named: bool = False


class Lease:
    """A grant that a query holds. The grant is first proposed, then logged by Spark; then the lease ends.

    Args:
        terms: The terms of the lease.
    """

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self.answered: set[str] = set()
        """Readers that have got their answer for this micro-batch."""
        self.logged: set[str] = set()
        """Readers for which Spark has planned the batch."""
        self.admitted = 0
        """Number of rows that the batch processes. It is known once Spark has planned the batch."""
        self.jobs = 0
        """Number of Spark jobs of the batch that have started their last stage, as the driver reports."""
        self.last_stage_s = math.inf
        """Time, on the timer, at which the latest of these jobs started its last stage."""
        self.batch: int | None = None
        """Spark's number of the micro-batch, once the driver has reported it."""
        self.dropped = 0.0
        """Number of rows that Spark's watermark dropped, as reported before the query's next question."""
        self.use = TaskUse()
        self._held_s = 0.0
        self._held_since_s: float | None = None

    @property
    def is_proposed(self) -> bool:
        """Whether Spark has not planned the batch yet."""
        return not self.logged

    # -- its life -------------------------------------------------------------------------------

    def answer(self, reader: str, positions: Positions) -> Grant | None:
        """Returns a reader's part of the grant.

        The part is `None` if the reader has no row up to the cut, or joined after the grant was made.
        """
        self.answered.add(reader)
        if reader not in self.terms.ends:
            return None
        ends = {**positions, **self.terms.ends[reader]}
        if ends == dict(positions):
            return None
        plan = self.terms.plans.get(reader, self.terms.plan)
        return Grant(ends, self.terms.late.get(reader, {}), plan, sources=len(self.terms.ends))

    def log(self, reader: str, admitted: int) -> bool:
        """Notes that Spark plans the batch for a reader. Returns False if this was known already."""
        if reader in self.logged:
            return False
        self.answered.add(reader)
        self.logged.add(reader)
        self.admitted += admitted
        return True

    def outcome(self, reader: str, before: Offset, start: Offset) -> Outcome | None:
        """Returns how a reader's next question ends the lease.

        The outcome is `None` if the lease goes on, because the reader has not got its answer yet.

        Args:
            reader: The reader that asks.
            before: The reader's last offset that was known before the question.
            start: The offset with which the reader asks.
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
        """Notes that a job of the batch has started its last stage."""
        self.jobs += 1
        self.batch = self.batch if batch is None else batch
        self.last_stage_s = now_s

    def end_job(self, now_s: float, tasks: int, core_s: float, ready_s: float) -> None:
        """A job of the batch has ended.

        Args:
            now_s: On the timer.
            tasks: How many tasks it had.
            core_s: Seconds of its tasks.
            ready_s: On the timer, when the first of them could begin.
        """
        use = self.use
        if use.before_s is None:
            use.before_s = max(0.0, ready_s - self.terms.began_s - self._held_s)
        else:
            use.between_s += max(0.0, ready_s - use.ended_s)
        use.jobs, use.count, use.core_s = use.jobs + 1, use.count + tasks, use.core_s + core_s
        use.ended_s = now_s

    def used(self, end_s: float) -> Use:
        """What the batch took of the cores, as its driver said. It ended at a moment, on the timer."""
        use = self.use
        before_s = use.before_s or 0.0
        tasks_s = use.ended_s - self.terms.began_s - self._held_s - before_s - use.between_s
        after_s = use.between_s + max(0.0, end_s - use.ended_s)
        at_once = sum(use.planned.values())
        return Use(use.core_s, use.count, at_once, max(0.0, tasks_s), before_s, after_s)

    def hold(self, now_s: float) -> None:
        """Notes that the batch is held back: it may not take cores yet."""
        if self._held_since_s is None:
            self._held_since_s = now_s

    def let_go(self, now_s: float) -> None:
        """Notes that the batch is no longer held back."""
        if self._held_since_s is not None:
            self._held_s, self._held_since_s = self._held_s + now_s - self._held_since_s, None

    def ran_s(self, now_s: float) -> float:
        """Returns how long the batch has run, without the time in which it was held back."""
        until_s = now_s if self._held_since_s is None else self._held_since_s
        return until_s - self.terms.began_s - self._held_s
