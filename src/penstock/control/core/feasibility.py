"""What each class needs, what its share gives and what is free, by the measured costs. Decides nothing."""

from __future__ import annotations

import logging
import math
from collections import Counter
from typing import Any

from penstock.control.core.governor import Governor
from penstock.policies.capacity.need import ClassCost, ClassPlan, QueryCost, plan_capacity

_log = logging.getLogger(__name__)

LOOK_EVERY_S = 2.0


class Feasibility:
    """Says once of each class that its target cannot be met, or may not be, as soon as costs tell."""

    def __init__(self, governor: Governor) -> None:
        self._governor = governor
        self._last_s = governor.timer()
        self._said: set[tuple[str, float]] = set()

    def beat(self) -> None:
        if self._governor.timer() - self._last_s < LOOK_EVERY_S:
            return
        self._last_s = self._governor.timer()
        for name, cls in plan(self._governor)["classes"].items():
            target_s = self._governor.governed(name).plant.cls.delay_target_s
            floor_s = self._governor.floor_s(name)
            if cls["not_measured"] or not cls["queries"] or (name, target_s) in self._said:
                continue
            if cls["feasible"] is False:
                self._said.add((name, target_s))
                _log.warning("class %s: %s", name, cls["says"][-1])
            elif floor_s is not None and target_s < floor_s:
                self._said.add((name, target_s))
                _log.warning(
                    "class %s: its target of %g s is below the measured floor of %.2f s: it may be missed",
                    *(name, target_s, floor_s),
                )


def plan(governor: Governor) -> dict[str, Any]:
    """The answer of `flow.plan()`, as JSON values."""
    classes, unknown = [], {}
    for name, governed in governor.classes.items():
        queries = [q for q in governor.queries.values() if q.cls == name and q.readers]
        known = [q for q in queries if q.cost.ready]
        names = _distinct([q.name for q in known])
        costs = [
            QueryCost(label, q.rate_per_s, q.cost.row_s, q.cost.fixed_s)
            for label, q in zip(names, known, strict=True)
        ]
        cls = governed.plant.cls
        classes.append(ClassCost(name, cls.priority, cls.delay_target_s, costs))
        unknown[name] = [q.name for q in queries if not q.cost.ready]
    capacity = float(governor.config.slots)
    plans = plan_capacity(classes, capacity)
    return {
        "capacity": capacity,
        "classes": {each.name: _class(each, unknown[each.name]) for each in plans},
    }


def _distinct(names: list[str]) -> list[str]:
    """Queries may have one name, if nobody gave them another: the second is then `name (2)`."""
    seen: Counter[str] = Counter()
    distinct = []
    for name in names:
        seen[name] += 1
        distinct.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return distinct


def _class(each: ClassPlan, unknown: list[str]) -> dict[str, Any]:
    return {
        "needs": None if unknown else _finite(each.needs),
        "gives": each.gives,
        "free": each.free,
        "shed_fraction": each.shed_fraction,
        "feasible": None if unknown and each.feasible else each.feasible,
        "least_target_s": each.least_target_s,
        "queries": {name: _finite(need) for name, need in each.queries.items()},
        "not_measured": unknown,
        "says": _sentences(each, unknown),
    }


def _sentences(each: ClassPlan, unknown: list[str]) -> list[str]:
    if not each.queries and not unknown:
        return ["it has no queries: its share is free for the others"]
    return [*(each.sentences() if each.queries else ()), *(f"query {n} is not measured yet" for n in unknown)]


def _finite(value: float) -> float | None:
    """JSON has no infinity; what no part of the time can do is none."""
    return value if math.isfinite(value) else None
