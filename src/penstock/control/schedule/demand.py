"""What the classes ask for at the moment: the input of the turns' lengths."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping

from penstock.control.schedule.turns import FULL_AT, Demand
from penstock.control.state.classes import GovernedClass
from penstock.control.state.members import Query

STALE_S = 0.5
"""A query that has not asked for so long does not want its turn any more."""
SLACK_FRACTION = 0.05
"""Part of the target that turns leave free for the error of the cost model."""


def demands_of(
    classes: Mapping[str, GovernedClass],
    queries: Mapping[str, Query],
    now: float,
    age_s: Callable[[float], float],
    also: Container[str] = (),
    turns_of_row: Callable[[str], int] = lambda query: 1,
) -> dict[str, Demand]:
    """The demands of classes with work, by name; those in `also` are there whether or not they have any.

    A row that reaches a query by way of a segment of its own class waits for a turn at each: of the target
    every one of them has its part.
    """
    demands: dict[str, Demand] = {}
    for name, governed in classes.items():
        mine = [q for q in queries.values() if q.cls == name and q.readers and not q.refused]
        mine = [q for q in mine if q.lease is not None or now - q.asked_s <= STALE_S]
        busy = [q for q in mine if q.lease is not None or (q.waiting is not None and q.waiting.rows)]
        if not busy and name not in also:
            continue
        turns = max((turns_of_row(q.key) for q in mine), default=1)
        target_s = governed.plant.cls.delay_target_s * (1.0 - SLACK_FRACTION) / turns
        target_s /= 1.0 + governed.traits.overrun_fraction
        known = [q for q in mine if q.cost.ready]
        fixed_s = max((q.cost.fixed_s for q in known if q in busy or not busy), default=0.0)
        count = max(1, len(busy))
        loads = {q.key: _load(q, q.rate_per_s, target_s, age_s) for q in known}
        loads = {key: load for key, load in loads.items() if load > 0.0}
        burst = sum(_load(q, max(q.rate_per_s, q.burst_per_s), target_s, age_s) for q in known)
        if not all(q.cost.ready for q in busy):  # what one that is still being learned asks for, nobody knows
            demands[name] = Demand(target_s, None, count, fixed_s)
            continue
        load, burst = (min(sum_, float(count)) for sum_ in (sum(loads.values()), burst))
        fixed = {q.key: q.cost.fixed_s for q in known if q.key in loads}
        demands[name] = Demand(target_s, load, count, fixed_s, loads, burst, fixed)
    return demands


def _load(query: Query, rate_per_s: float, target_s: float, age_s: Callable[[float], float]) -> float:
    """Batch time that a query asks for in a second, in batches as full as its target allows.

    What waits came in over the age of its oldest row, what comes is known by its rate.
    """
    between_s = FULL_AT * target_s
    rows, over_s = rate_per_s * between_s, between_s
    if query.lease is None and query.waiting is not None and query.waiting.oldest_s is not None:
        rows += query.waiting.rows
        over_s += min(age_s(query.waiting.oldest_s), between_s)
    return rows / over_s * query.cost.row_s + query.cost.fixed_s / between_s if rows >= 1.0 else 0.0
