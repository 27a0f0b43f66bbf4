"""What a grant holds: how many rows at most, which of them, and the lease that remembers it."""

from __future__ import annotations

import logging

import numpy as np

from penstock.control.backlog.waiting import Cut, Waiting
from penstock.control.decide.decider import timing
from penstock.control.measure.delays import arrivals
from penstock.control.schedule.turns import Turn
from penstock.control.state.members import Lease, Query, Reader
from penstock.grants.grant import Grant
from penstock.grants.plans import KEEP_ALL, ShedPlan
from penstock.vocabulary.model import Admission

_log = logging.getLogger(__name__)

FIRST_ROWS = 1000
"""Rows of a query's first batch, about whose cost nothing is known."""
GROWTH = 4.0
"""A batch has at most so many times the rows of the largest before it."""
OLD_TARGETS = 10.0
"""Rows so many targets old are not late because of an overload."""


def row_limit(query: Query, turn: Turn) -> float:
    """Rows that a batch may have: what its turn holds, once its cost is known, and never a leap."""
    most, known = most_rows(query), timing(query, turn)
    if query.cost.warming or known is None:
        return most
    return min(most, max(1.0, query.cost.rows_in(known.length_s)))


def most_rows(query: Query) -> float:
    """Rows that a batch may have by those before it: nothing is known of much larger ones."""
    return FIRST_ROWS if query.cost.warming else max(FIRST_ROWS, GROWTH * query.largest_rows)


def lease_of(
    waiting: Waiting, decided: Cut, grant: Admission, plan: ShedPlan, began_s: float, now_s: float
) -> Lease:
    """The lease on a grant, with the arrivals of its rows.

    Args:
        waiting: What was looked at for the decision.
        decided: What of it the grant has.
        grant: What the manager decided.
        plan: What is kept.
        began_s: Now, on the timer.
        now_s: Now, on the clock by which rows arrived: it may be set while the batch runs, the timer not.
    """
    points = [
        arrivals(s, decided.late[s.reader][s.partition], decided.ends[s.reader][s.partition])
        for s in waiting.stretches
    ]
    return Lease(
        began_s,
        grant.cut_s,
        {name: dict(ends) for name, ends in decided.ends.items()},
        {name: dict(late) for name, late in decided.late.items()},
        plan,
        arrival_s=began_s - (now_s - np.concatenate([times for times, _ in points])),
        arrival_rows=np.concatenate([rows for _, rows in points]),
    )


def tick_of(waiting: Waiting, began_s: float, now_s: float) -> Lease:
    """The lease on an empty batch that closes windows."""
    return Lease(began_s, now_s, {name: dict(positions) for name, positions in waiting.ends.items()}, {})


def carried(reader: Reader) -> ShedPlan:
    """The plan of an offset without rows: what was decided about windows must not be forgotten."""
    plan = reader.offset.plan
    return plan if plan.carries_over else KEEP_ALL


def same_cut(lease: Lease, reader: Reader) -> Grant | None:
    """A reader's part of its query's grant; `None` when it has no row up to the cut."""
    lease.answered.add(reader.id)
    if reader.id not in lease.ends:  # it joined after the grant was made: it waits for the next
        return None
    ends = {**reader.positions, **lease.ends[reader.id]}
    if ends == dict(reader.positions):
        return None
    plan = lease.plans.get(reader.id, lease.plan)
    return Grant(ends, lease.late.get(reader.id, {}), plan, sources=len(lease.ends))


def warn_of_late(query: Query, age_s: float, target_s: float, rows: int) -> None:
    """Says once that a query sheds what is far older than its target: an old log, or it was down."""
    if rows and age_s >= OLD_TARGETS * target_s and not query.warned_late:
        query.warned_late = True
        _log.warning(
            "query %s sheds %d rows as late: the oldest arrived %.0f s ago, its target is %g s; "
            "to catch up on an old log run it once with availableNow, or with shedding off",
            query.name,
            rows,
            age_s,
            target_s,
        )
