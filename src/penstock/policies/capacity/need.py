"""How much capacity queries need, by their measured costs. `flow.plan()` shows these figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.vocabulary.errors import InvalidInputError, require_positive


@dataclass(frozen=True, slots=True)
class QueryCost:
    """The arrival rate of a query, and the cost of its batches.

    Attributes:
        name: The query.
        rate_per_s: How many rows arrive a second.
        row_s: The time that a row adds to a batch.
        fixed_s: The time that a batch takes even without rows.
    """

    name: str
    rate_per_s: float
    row_s: float
    fixed_s: float

    def __post_init__(self) -> None:
        for what, value in (("rate", self.rate_per_s), ("row_s", self.row_s), ("fixed_s", self.fixed_s)):
            if not 0.0 <= value < float("inf"):
                raise InvalidInputError(
                    f"query {self.name}: {what} must not be negative", value, "measure it"
                )

    def need(self, target_s: float, rows: bool = True) -> float:
        """The part of the time with which the query meets a target; infinite if no part is enough.

        Let e be the part of the time that the query has, and C the time between two of its batches. A row
        that just missed a batch waits for C, and then e C for its own batch, so C + e C <= target. The query
        needs e = rate x row_s + fixed_s / C. With the longest C that meets the target,

            e = (rate x row_s + fixed_s / target) / (1 - fixed_s / target)

        Args:
            target_s: The class's delay target.
            rows: Whether the query's rows count. If they do not, the result is the part that the query needs
                even if all its rows are shed.
        """
        require_positive("delay target", target_s, "in seconds")
        starting = self.fixed_s / target_s
        if starting >= 1.0:
            return float("inf")
        return ((self.rate_per_s * self.row_s if rows else 0.0) + starting) / (1.0 - starting)


@dataclass(frozen=True, slots=True)
class ClassCost:
    """A class with the costs of its queries."""

    name: str
    priority: float
    target_s: float
    queries: Sequence[QueryCost]

    def __post_init__(self) -> None:
        require_positive(f"class {self.name}: priority", self.priority, "higher means more, e.g. 6, 3, 1")

    def need(self, target_s: float | None = None, rows: bool = True) -> float:
        """The part of the time that all queries of the class need together."""
        return sum(query.need(target_s or self.target_s, rows) for query in self.queries)


@dataclass(frozen=True, slots=True)
class ClassPlan:
    """How much of the time a class needs, and how much there is for it.

    Attributes:
        name: The class.
        target_s: The delay target of the class.
        needs: The part of the time with which the whole input of the class meets the target.
        queries: The same part by query.
        gives: The part of the time that the priority of the class gives it.
        free: The part of the time that other classes leave of their shares, and that no higher class needs.
        feasible: Whether the target can be met at all, if necessary by shedding.
        least_target_s: If the target is not feasible, the smallest target that is, while the other classes
            keep their targets; `None` if no target is feasible.
    """

    name: str
    target_s: float
    needs: float
    queries: dict[str, float]
    gives: float
    free: float
    feasible: bool
    least_target_s: float | None

    def sentences(self) -> list[str]:
        """Says in sentences what a user should know about the class."""
        needs = f"it needs {_part(self.needs)} of the time: its share gives {_part(self.gives)}"
        said = [f"{needs}, {_part(self.free)} more is free"]
        if not self.feasible:
            could = "no target could be met" if self.least_target_s is None else None
            could = could or f"at least {self.least_target_s:.1f} s could"
            said.append(f"no allocation meets its target of {self.target_s:g} s, {could}: too many queries")
        elif self.shed_fraction > 0:
            said.append(f"about {100 * self.shed_fraction:.0f} % of its input would be shed")
        return said

    @property
    def shed_fraction(self) -> float:
        """The part of the needed time that is missing: about the part of the rows that would be shed."""
        return max(0.0, 1.0 - (self.gives + self.free) / self.needs) if self.needs > 0 else 0.0


def plan_capacity(classes: Sequence[ClassCost], capacity: float = 1.0) -> list[ClassPlan]:
    """Which part of the time each class needs, has and could have, and which targets cannot be met.

    Args:
        classes: The classes, with measured costs.
        capacity: How many batches may run at once.
    """
    require_positive("capacity", capacity, "slots of the control plane, e.g. 1")
    weight = sum(cls.priority for cls in classes)
    gives = {cls.name: capacity * cls.priority / weight for cls in classes}
    needs = {cls.name: cls.need() for cls in classes}
    bare = {cls.name: cls.need(rows=False) for cls in classes}
    plans = []
    for cls in classes:
        # a class that needs more than all of the time does not make the targets of other classes infeasible
        others = sum(part for name, part in bare.items() if name != cls.name and part < float("inf"))
        feasible = bare[cls.name] + others <= capacity
        # what other classes leave of their shares; what higher classes lack of theirs is subtracted below
        left = sum(max(0.0, gives[c.name] - needs[c.name]) for c in classes if c is not cls)
        above = [c for c in classes if c is not cls and c.priority > cls.priority]
        lacking = sum(max(0.0, needs[c.name] - gives[c.name]) for c in above)
        plans.append(
            ClassPlan(
                cls.name,
                cls.target_s,
                needs[cls.name],
                {query.name: query.need(cls.target_s) for query in cls.queries},
                gives[cls.name],
                max(0.0, left - lacking),
                feasible,
                None if feasible else _least_target_s(cls, others, capacity),
            )
        )
    return plans


def _part(value: float) -> str:
    return f"{value:.2f}" if value < float("inf") else "more than all"


def _least_target_s(cls: ClassCost, others: float, capacity: float) -> float | None:
    """The smallest feasible target of a class, while the batches of other classes need a part of the time."""
    if others >= capacity:
        return None
    low_s, high_s = cls.target_s, cls.target_s
    while cls.need(high_s, rows=False) + others > capacity:
        high_s *= 2.0
        if high_s > 1e9:
            return None
    for _ in range(60):
        middle_s = (low_s + high_s) / 2.0
        if cls.need(middle_s, rows=False) + others > capacity:
            low_s = middle_s
        else:
            high_s = middle_s
    return high_s
