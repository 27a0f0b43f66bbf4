"""Turns: weighted round robin in time over classes, and how long a turn may be.

A class has used v = seconds / weight; the class with the least v among those that want a turn is next. A
class that was idle does not save up: it starts again from the least v of the others. Unused time therefore
goes to whoever wants it, in proportion to the weights (the CQC of pham2016 3.2).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from penstock.errors import UnknownNameError, require_positive


@dataclass(frozen=True, slots=True)
class Demand:
    """What a class asks for at the moment.

    Attributes:
        weight: Its part of the time.
        target_s: Its delay target, less the slack it keeps.
        load: Seconds of batch time that its input asks for in a second; at most one for each query.
        queries: How many of its queries have input.
        fixed_s: The fixed cost of one of its batches.
    """

    weight: float
    target_s: float
    load: float
    queries: int
    fixed_s: float


@dataclass(frozen=True, slots=True)
class Turn:
    """How long a grant of a class may be, and how long after it the query's next one begins."""

    length_s: float
    cycle_s: float
    share: float


LEAST_FIXED = 2.0
"""A turn is at least so many times the fixed cost: below it, starting batches would take most of it."""


def plan_turns(demands: Mapping[str, Demand], parallel: float = 1.0) -> dict[str, Turn]:
    """Lengths of turns such that a row that just missed one is still in time after the next.

    With share e_k of the time and n_k queries, a query of class k gets e_k / n_k of each cycle C. A row waits
    at most C for its turn and e_k C / n_k for its batch, so C is the largest with C (1 + e_k / n_k) <= target
    for every class.

    Args:
        demands: By class.
        parallel: Batches that run at once, on average: so many seconds of batches there are in a second.
    """
    if not demands:
        return {}
    shares = fill_shares({name: (d.weight, d.load) for name, d in demands.items()}, parallel)
    parts = {name: min(shares[name] / d.queries, 1.0) for name, d in demands.items()}
    cycle_s = min(d.target_s / (1.0 + parts[name]) for name, d in demands.items())
    turns = {}
    for name, d in demands.items():
        length_s = min(max(parts[name] * cycle_s, LEAST_FIXED * d.fixed_s), d.target_s)
        turns[name] = Turn(length_s, max(cycle_s, length_s), shares[name])
    return turns


def fill_shares(demands: Mapping[str, tuple[float, float]], total: float = 1.0) -> dict[str, float]:
    """Divides time by (weight, load): nobody gets more than it asks for while another is short.

    What is left when all are satisfied is handed out by weight as well, so the shares add up to the total.
    """
    shares: dict[str, float] = {}
    open_names, left = set(demands), total
    while open_names:
        weight = sum(demands[name][0] for name in open_names)
        satisfied = {n for n in open_names if demands[n][1] <= left * demands[n][0] / weight + 1e-12}
        if not satisfied:
            shares.update({n: left * demands[n][0] / weight for n in open_names})
            return shares
        for name in satisfied:
            shares[name] = demands[name][1]
        left -= sum(demands[name][1] for name in satisfied)
        open_names -= satisfied
    weights = sum(weight for weight, _ in demands.values())
    return {name: shares[name] + left * demands[name][0] / weights for name in demands}


class Turns:
    """Whose turn it is."""

    def __init__(self, weights: Mapping[str, float]) -> None:
        for name, weight in weights.items():
            require_positive(f"class {name}: weight", weight, "higher means more of the time, e.g. 6, 3, 1")
        self._weights = dict(weights)
        self._used: dict[str, float] = dict.fromkeys(weights, 0.0)
        self.used_s: dict[str, float] = dict.fromkeys(weights, 0.0)
        """Seconds of batch time by class, since the start."""

    def set_weight(self, name: str, weight: float) -> None:
        """Changes a weight; what was used before counts as used at the new one."""
        if name not in self._weights:
            raise UnknownNameError("class", name, self._weights)
        require_positive(f"class {name}: weight", weight, "higher means more of the time, e.g. 6, 3, 1")
        self._weights[name] = weight

    @property
    def weights(self) -> Mapping[str, float]:
        return self._weights

    def next_of(self, wanting: Iterable[str], running_s: Mapping[str, float] | None = None) -> str | None:
        """The class whose turn it is among those that want one; equal use: the higher weight first.

        Args:
            wanting: Classes that could use a turn.
            running_s: Seconds of batches that run and are not booked yet.
        """
        running = running_s or {}

        def used(name: str) -> float:
            return self._used[name] + running.get(name, 0.0) / self._weights[name]

        return min(wanting, key=lambda name: (used(name), -self._weights[name], name), default=None)

    def begin(self, name: str, wanting: Iterable[str], running_s: Mapping[str, float] | None = None) -> None:
        """A class takes its turn. Who does not want one now saves nothing up for later.

        Args:
            name: The class.
            wanting: Classes that could use a turn.
            running_s: Seconds of batches that run and are not booked yet.
        """
        running, wanted = running_s or {}, set(wanting)
        for other in self._used:
            if other not in wanted:
                level = self._used[name] - running.get(other, 0.0) / self._weights[other]
                self._used[other] = max(self._used[other], level)

    def charge(self, name: str, seconds: float, learning: bool = False) -> None:
        """Books time that a class used.

        Args:
            name: The class.
            seconds: How long.
            learning: Whether it went into learning what a batch costs. That counts as at the highest weight,
                or a class of low weight would take minutes until it is ready.
        """
        weight = max(self._weights.values()) if learning else self._weights[name]
        self._used[name] += max(0.0, seconds) / weight
        self.used_s[name] += max(0.0, seconds)
