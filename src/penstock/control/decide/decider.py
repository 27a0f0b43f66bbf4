"""Asks the managers of classes for decisions, and turns a decision into what a grant admits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from penstock.control.backlog.waiting import profile
from penstock.control.cores.width import tasks_of
from penstock.control.decide.observing import ClassView
from penstock.control.measure.batch_cost import BatchCost
from penstock.control.schedule.paths import Paths
from penstock.control.schedule.scheduler import TurnSchedule
from penstock.control.schedule.turns import Turn
from penstock.control.state.classes import GovernedClass
from penstock.control.state.guard import Guard, text_of
from penstock.control.state.query import Query
from penstock.control.tuning import TUNING, Tuning
from penstock.vocabulary.model import NO_ROWS, Admission, BatchTiming, Decision, WaitingRows


@dataclass(frozen=True, slots=True)
class Decider:
    """Asks the manager of a class. The class's `Cycle` checks the manager's answer.

    Attributes:
        paths: By query, which part of the delay target a row may have used when the query is done with it.
        guard: Calls the managers.
        tuning: Figures.
    """

    paths: Paths
    guard: Guard
    tuning: Tuning = TUNING

    def admit(
        self,
        governed: GovernedClass,
        queries: Sequence[Query],
        query: Query,
        schedule: TurnSchedule,
        turn: Turn,
        shedding: bool,
    ) -> Admission:
        """Returns which of a query's waiting rows the class's manager admits.

        Args:
            governed: The class.
            queries: All queries of the class.
            query: The query to be granted.
            schedule: The lengths of all turns.
            turn: The turn of the query: how long its grant may be.
            shedding: Whether the manager may shed rows.
        """
        at = schedule.seen.at
        if governed.traits.gives_grants:
            admission = self._granted(governed, queries, query, schedule, turn)
        else:
            keep_fraction = governed.plant.keep_fraction if query.cost.ready else 1.0
            admission = Admission(at.wall_s, -math.inf, keep_fraction)
        if not shedding or query.flags.draining:
            return replace(admission, cut_s=at.wall_s, shed_before_s=-math.inf, keep_fraction=1.0)
        return admission

    def _granted(
        self,
        governed: GovernedClass,
        queries: Sequence[Query],
        query: Query,
        schedule: TurnSchedule,
        turn: Turn,
    ) -> Admission:
        at = schedule.seen.at
        # rows that other queries process after this one must be early: they count as if they were older
        ahead_s = governed.plant.cls.delay_target_s * (1.0 - self.paths.due_fraction(query.key))
        rows = profile(query.backlog.waiting)
        rows = WaitingRows(rows.arrival_s - ahead_s, rows.rows)
        batch = timing(query, turn, self.tuning)
        self.step(governed, queries, schedule, rows, batch)
        decision = governed.plant.decision
        admission = decision.grant if decision is not None else None
        # a query whose cost is not known yet takes as many rows as its row limit allows, and a decision that
        # the cycle's check refused sheds nothing
        if admission is None or not query.cost.ready:
            return Admission(at.wall_s, -math.inf, 1.0)
        cut_s = min(at.wall_s, admission.cut_s + ahead_s)
        before_s, keep_fraction = admission.shed_before_s + ahead_s, admission.keep_fraction
        return Admission(cut_s, before_s, keep_fraction, admission.limit_rows)

    def step(
        self,
        governed: GovernedClass,
        queries: Sequence[Query],
        schedule: TurnSchedule,
        waiting: WaitingRows = NO_ROWS,
        batch: BatchTiming | None = None,
    ) -> None:
        """Asks a class's manager for its next decision, and puts the decision in force.

        If the manager raises an exception, nothing is shed, and the manager is asked again at the next turn.

        Args:
            governed: The class.
            queries: All queries of the class.
            schedule: The lengths of all turns.
            waiting: By arrival, the rows that wait for the query to be granted, if there is such a query.
            batch: The cost of a batch of that query.
        """
        plant = governed.plant

        def decide() -> None:
            view = _view(governed, queries, schedule, waiting, batch, self.tuning)
            step = governed.cycle.decide(plant.observe(schedule.seen.at, view))
            plant.apply(step.applied)
            governed.cycle.in_force = step.applied

        def go_on(error: BaseException) -> None:
            plant.apply(Decision(plant.next_id - 1, 1.0, f"the manager failed: {text_of(error)}"))

        self.guard.call(
            f"class {governed.name}: its manager {governed.config.manager}",
            decide,
            go_on,
            "nothing is shed until it decides",
            schedule.seen.at.timer_s,
        )


def _view(
    governed: GovernedClass,
    queries: Sequence[Query],
    schedule: TurnSchedule,
    waiting: WaitingRows,
    batch: BatchTiming | None,
    tuning: Tuning,
) -> ClassView:
    rows = {q.identity.query: q.backlog.waiting.rows for q in queries if q.readers}
    return ClassView(
        list(rows),
        waiting,
        rows,
        _row_costs_s(governed.name, schedule, tuning),
        sum(schedule.seen.rest_s.get(q.key, 0.0) for q in queries),
        batch,
    )


def _row_costs_s(cls: str, schedule: TurnSchedule, tuning: Tuning) -> dict[str, float]:
    """By query whose cost is known, the machine time of one row in a full batch.

    Each row bears an equal part of the batch's fixed cost. A class may have a thousand queries, so this is
    computed for all queries at once. A query that is being stopped, or has no reader, is missing: the plant
    takes the mean of the other queries for it.
    """
    seen = schedule.seen
    at = (seen.ready & (seen.cls == seen.place_of(cls))).nonzero()[0]
    fixed_s, row_s = seen.fixed_s[at], seen.row_s[at]
    length_s = np.maximum(schedule.lengths_s[at], tuning.batch_fixed * fixed_s)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        rows = np.where(row_s > 0.0, (length_s - fixed_s) / row_s, np.inf)
    costs_s = length_s / np.maximum(rows, 1.0)
    return dict(zip([seen.keys[i] for i in at.tolist()], costs_s.tolist(), strict=True))


def full_s(cost: BatchCost, turn: Turn, tuning: Tuning = TUNING) -> float:
    """Returns the machine seconds of a batch that fills its turn."""
    return max(turn.length_s, cost.fixed_s * tuning.batch_fixed)


def timing(query: Query, turn: Turn, tuning: Tuning = TUNING) -> BatchTiming | None:
    """Returns how long a query's batch takes, or `None` while its cost is not known.

    A manager asks when rows are done. So the part of a batch without tasks counts, and a batch on some of the
    cores takes longer than its machine time.

    Args:
        query: The query.
        turn: How long the grant may be.
        tuning: Figures.
    """
    cost = query.cost
    if not cost.ready or cost.row_s <= 0:
        return None
    length_s = full_s(cost, turn, tuning)
    longer = 1.0
    if cost.cores > 1:
        tasks = tasks_of(length_s * cost.cores, cost.cores, max(turn.task_s, cost.least_task_s))
        longer = cost.cores / tasks * cost.stretch
    return BatchTiming(
        cost.idle_s + longer * cost.fixed_s,
        longer * cost.row_s,
        cost.idle_s + longer * length_s,
        turn.cycle_s,
    )
