"""What the classes ask for at the moment: the input of the turns' lengths."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping

from penstock.control.classes import GovernedClass
from penstock.control.members import Query
from penstock.control.turns import Demand

STALE_S = 0.5
"""A query that has not asked for so long does not want its turn any more."""
SLACK_FRACTION = 0.05
"""Part of the target that turns leave free for the error of the cost model."""


def demands_of(
    classes: Mapping[str, GovernedClass],
    queries: Mapping[str, Query],
    weights: Mapping[str, float],
    now: float,
    age_s: Callable[[float], float | None],
    also: Container[str] = (),
) -> dict[str, Demand]:
    """The demands of classes with work, by name; those in `also` are there whether or not they have any.

    What waits came in over the age of its oldest row, what comes in the next half target is known by its
    rate: a class asks for the time of both, a second of either.
    """
    demands: dict[str, Demand] = {}
    for name, governed in classes.items():
        mine = [q for q in queries.values() if q.cls == name and q.readers]
        busy = [q for q in mine if q.lease is not None or (q.waiting is not None and q.waiting.rows)]
        busy = [q for q in busy if q.lease is not None or now - q.asked_s <= STALE_S]
        if not busy and name not in also:
            continue
        target_s = governed.plant.cls.delay_target_s * (1.0 - SLACK_FRACTION)
        costs = [q.cost for q in busy if q.cost.ready] or [q.cost for q in mine if q.cost.ready]
        fixed_s = max((cost.fixed_s for cost in costs), default=0.0)
        row_s = max((cost.row_s for cost in costs), default=0.0)
        waiting = [q.waiting for q in busy if q.waiting is not None and q.lease is None]
        ages_s = [age_s(w.oldest_s) or 0.0 for w in waiting if w.oldest_s is not None]
        half_s, count = target_s / 2, max(1, len(busy))
        rows = sum(w.rows for w in waiting) + governed.plant.rate_per_s * half_s
        rate_per_s = rows / (half_s + min(max(ages_s, default=0.0), half_s))
        load = rate_per_s * row_s + fixed_s * count / half_s
        demands[name] = Demand(weights[name], target_s, min(load, float(count)), count, fixed_s)
    return demands
