"""The time that each class needs, the time that its share gives, and free time, by measured costs."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from penstock.policies.capacity.need import ClassCost, ClassPlan, QueryCost, plan_capacity
from penstock.vocabulary.moment import Moment

if TYPE_CHECKING:
    from penstock.control.core.engine import Engine

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ClassNeeds:
    """The time that a class needs, and the time that it has.

    Attributes:
        needs: Part of the time that its load asks for; `None` if that is not known, or no part would do.
        gives: Part of the time that its share gives.
        free: Part of the time that nobody needs.
        shed_fraction: Part of its rows that would be shed.
        feasible: Whether its target can be met; `None` if that is not known.
        least_target_s: The least target that its share allows.
        queries: By query, the part of the time that it needs.
        not_measured: Queries whose cost is not known yet.
        says: The same in sentences.
    """

    needs: float | None
    gives: float
    free: float
    shed_fraction: float | None
    feasible: bool | None
    least_target_s: float | None
    queries: Mapping[str, float | None]
    not_measured: list[str]
    says: list[str]


@dataclass(frozen=True, slots=True)
class FeasibilityReport:
    """The needs of all classes, of a capacity in batches at once."""

    capacity: float
    classes: Mapping[str, ClassNeeds]

    def to_json(self) -> dict[str, Any]:
        """The answer of `flow.plan()`."""
        return asdict(self)


class FeasibilityWatch:
    """Says once of each class that its target cannot be met, or may not be, as soon as costs tell."""

    def __init__(self) -> None:
        self._last_s = -math.inf
        self._said: set[tuple[str, float]] = set()

    def look(self, engine: Engine, at: Moment) -> None:
        """Looks, now and then."""
        if at.timer_s - self._last_s < engine.tuning.feasibility_every_s:
            return
        self._last_s = at.timer_s
        for name, cls in feasibility(engine).classes.items():
            target_s = engine.classes[name].plant.cls.delay_target_s
            floor_s = engine.floor_s(name)
            if cls.not_measured or not cls.queries or (name, target_s) in self._said:
                continue
            if cls.feasible is False:
                self._said.add((name, target_s))
                _log.warning("class %s: %s", name, cls.says[-1])
            elif floor_s is not None and target_s < floor_s:
                self._said.add((name, target_s))
                _log.warning(
                    "class %s: its target of %g s is below the measured floor of %.2f s: it may be missed",
                    *(name, target_s, floor_s),
                )


def feasibility(engine: Engine) -> FeasibilityReport:
    """What each class needs and has now."""
    classes, unknown = [], {}
    for name, governed in engine.classes.items():
        queries = [q for q in engine.members.queries.values() if q.cls == name and q.readers]
        known = [q for q in queries if q.cost.ready]
        names = _distinct([q.name for q in known])
        costs = [
            QueryCost(label, q.backlog.rates.usual_per_s, q.cost.row_s, q.cost.fixed_s)
            for label, q in zip(names, known, strict=True)
        ]
        cls = governed.plant.cls
        classes.append(ClassCost(name, cls.priority, cls.delay_target_s, costs))
        unknown[name] = [q.name for q in queries if not q.cost.ready]
    # machine seconds in a second, or batch seconds where it is not known what batches use
    capacity = 1.0 if engine.leases.machines.by_driver else float(engine.config.most_slots or 1)
    plans = plan_capacity(classes, capacity)
    return FeasibilityReport(capacity, {each.name: _class(each, unknown[each.name]) for each in plans})


def _distinct(names: list[str]) -> list[str]:
    """Queries may have one name, if nobody gave them another: the second is then `name (2)`."""
    seen: Counter[str] = Counter()
    distinct = []
    for name in names:
        seen[name] += 1
        distinct.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return distinct


def _class(each: ClassPlan, unknown: list[str]) -> ClassNeeds:
    return ClassNeeds(
        None if unknown else _finite(each.needs),
        each.gives,
        each.free,
        each.shed_fraction,
        None if unknown and each.feasible else each.feasible,
        each.least_target_s,
        {name: _finite(need) for name, need in each.queries.items()},
        unknown,
        _sentences(each, unknown),
    )


def _sentences(each: ClassPlan, unknown: list[str]) -> list[str]:
    if not each.queries and not unknown:
        return ["it has no queries: its share is free for the others"]
    return [*(each.sentences() if each.queries else ()), *(f"query {n} is not measured yet" for n in unknown)]


def _finite(value: float) -> float | None:
    """JSON has no infinity; what no part of the time can do is none."""
    return value if math.isfinite(value) else None
