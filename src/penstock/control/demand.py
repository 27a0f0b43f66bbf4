"""What the classes ask for at the moment: the input of the turns' lengths."""

from __future__ import annotations

from collections.abc import Container, Mapping

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
    also: Container[str] = (),
) -> dict[str, Demand]:
    """The demands of classes with work, by name; those in `also` are there whether or not they have any."""
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
        waiting = sum(q.waiting.rows for q in busy if q.waiting is not None and q.lease is None)
        half_s = target_s / 2
        work_s = (waiting + governed.plant.rate_per_s * half_s) * row_s + fixed_s * max(1, len(busy))
        count = max(1, len(busy))
        demands[name] = Demand(weights[name], target_s, min(work_s / half_s, float(count)), count, fixed_s)
    return demands
