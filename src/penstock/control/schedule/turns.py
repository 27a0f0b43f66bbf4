"""Turns: weighted round robin in time over classes, and how long a turn may be.

A class has used v = seconds / weight; the class with the least v among those that want a turn is next. A
class that was idle does not save up: it starts again from the least v of the others. Unused time therefore
goes to whoever wants it, in proportion to the weights (the CQC of pham2016 3.2). The weights are what
classes may claim by the capacity policy.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from penstock.control.tuning import TUNING, Tuning
from penstock.vocabulary.errors import UnknownNameError, require_positive
from penstock.vocabulary.model import FloatArray

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Asking:
    """Queries of a class that ask for time, an array a column.

    Attributes:
        keys: Their keys.
        at: Where they stand in the snapshot.
        loads: Seconds of batch time that each asks for in a second.
        fixed_s: The fixed cost of the batches of each.
    """

    keys: Sequence[str] = ()
    at: IntArray = field(default_factory=lambda: np.empty(0, np.int64))
    loads: FloatArray = field(default_factory=lambda: np.empty(0))
    fixed_s: FloatArray = field(default_factory=lambda: np.empty(0))


NOBODY = Asking()


@dataclass(frozen=True, slots=True)
class Demand:
    """What a class asks for at the moment.

    Attributes:
        target_s: Its delay target, less the slack it keeps.
        load: Seconds of batch time that its input asks for in a second; at most one for each query. `None`
            if its queries' costs are not known yet.
        queries: How many of its queries have input.
        fixed_s: The fixed cost of one of its batches, the largest.
        asking: The queries whose parts of the load these are; nobody if not all are known.
        burst: The load by what came in the last moments, if that is more.
    """

    target_s: float
    load: float | None
    queries: int
    fixed_s: float
    asking: Asking = NOBODY
    burst: float = 0.0


@dataclass(frozen=True, slots=True)
class Turn:
    """How long a grant of a class may be, and how long after it the query's next one begins.

    Attributes:
        length_s: Of a query that asks for as much as the others of its class.
        cycle_s: From grant to grant.
        asking: Queries of which it is known what each asks for.
        lengths_s: How long a grant of each of these may be.
    """

    length_s: float
    cycle_s: float
    asking: Asking = NOBODY
    lengths_s: FloatArray = field(default_factory=lambda: np.empty(0))

    def of(self, query: str) -> float:
        """How long a grant of a query may be."""
        keys = self.asking.keys
        return float(self.lengths_s[keys.index(query)]) if query in keys else self.length_s


def plan_turns(
    demands: Mapping[str, Demand],
    shares: Mapping[str, float],
    parallel: float = 1.0,
    tuning: Tuning = TUNING,
) -> dict[str, Turn]:
    """Lengths of turns such that a row that just missed one is still in time after the next.

    A class has the share e_k of the time, and its query q the part p_q of each cycle C: what it asks for and
    an equal part of what is left over. Where that is too much, what its batches cost without rows and the
    same fraction of its rows as of the others': a part of the whole would leave light queries more of theirs.
    A row waits at most C for its turn and p_q C for its batch, so if all classes had their turns in one cycle
    it would be the longest with C (1 + p_q) <= target for every query. A class whose target leaves more has a
    longer cycle of its own, and so fewer and fuller batches, as long as

    - its rows are in time even if the longest turn of another class comes before theirs, and
    - its turns are not longer than what another class leaves free of the common cycle.

    Args:
        demands: By class, of those that have work.
        shares: By class; they divide the whole time in this proportion.
        parallel: Batches that run at once, on average: so many seconds of batches there are in a second.
        tuning: How full batches are, and how long at least.
    """
    if not demands:
        return {}
    total = sum(shares[name] for name in demands)
    shares = {name: parallel * shares[name] / total for name in demands}
    equal = {name: min(shares[name] / d.queries, 1.0) for name, d in demands.items()}
    by_query = {name: _parts(d, shares[name], tuning) for name, d in demands.items()}
    parts = {name: float(each.max()) if each.size else equal[name] for name, each in by_query.items()}
    alone_s = {name: d.target_s / (1.0 + parts[name]) for name, d in demands.items()}
    longest_s = {name: _length_s(d, parts[name] * alone_s[name], tuning) for name, d in demands.items()}
    common_s = min(alone_s.values())
    turns = {}
    for name, d in demands.items():
        others = [other for other in demands if other != name]
        before_s = max((longest_s[other] for other in others), default=0.0)
        left_s = min(((parallel - shares[other]) * common_s for other in others), default=math.inf)
        own_s = (d.target_s - before_s) / (1.0 + parts[name])
        cycle_s = max(common_s, min(own_s, left_s / parts[name]))
        length_s = longest = _length_s(d, equal[name] * cycle_s, tuning)
        lengths_s = by_query[name] * cycle_s
        if lengths_s.size:
            least_s = tuning.least_fixed * d.asking.fixed_s
            lengths_s = np.minimum(np.maximum(lengths_s, least_s), d.target_s)
            longest = float(lengths_s.max())
        turns[name] = Turn(length_s, max(cycle_s, longest), d.asking, lengths_s)
    return turns


def _parts(demand: Demand, share: float, tuning: Tuning) -> FloatArray:
    """By query that asks, its part of the time that a class has."""
    loads = demand.asking.loads
    if not loads.size:
        return loads
    asked = _sum(loads)
    if asked < share:
        return np.minimum(loads + (share - asked) / loads.size, 1.0)
    starting = np.minimum(loads, demand.asking.fixed_s / (tuning.full_at * demand.target_s))
    started = _sum(starting)
    if started >= share:
        return share * starting / started
    kept = (share - started) / (asked - started)
    return np.minimum(starting + kept * (loads - starting), 1.0)


def _sum(values: FloatArray) -> float:
    """The sum from left to right: that of NumPy may round otherwise on another processor."""
    return float(values.cumsum()[-1])


def _length_s(demand: Demand, length_s: float, tuning: Tuning) -> float:
    return min(max(length_s, tuning.least_fixed * demand.fixed_s), demand.target_s)


class Turns:
    """Whose turn it is.

    Args:
        weights: By class.
        tuning: What a turn that took too long counts.
    """

    def __init__(self, weights: Mapping[str, float], tuning: Tuning = TUNING) -> None:
        _check_weights(weights)
        self._tuning = tuning
        self._weights = dict(weights)
        self._used: dict[str, float] = dict.fromkeys(weights, 0.0)
        self._owed_s: dict[str, float] = dict.fromkeys(weights, 0.0)
        self.used_s: dict[str, float] = dict.fromkeys(weights, 0.0)
        """Seconds of batch time by class, since the start."""

    def set_weights(self, weights: Mapping[str, float]) -> None:
        """Changes weights. A class that is ahead of another stays ahead by as many seconds."""
        for name in weights:
            if name not in self._weights:
                raise UnknownNameError("class", name, self._weights)
        _check_weights(weights)
        least = min(self._used.values())
        for name, weight in weights.items():
            self._used[name] = least + (self._used[name] - least) * self._weights[name] / weight
            self._weights[name] = weight

    def remove(self, name: str) -> None:
        """A class is gone."""
        del self._weights[name], self._used[name], self._owed_s[name], self.used_s[name]

    @property
    def weights(self) -> Mapping[str, float]:
        return self._weights

    def next_of(self, wanting: Iterable[str], running: Mapping[str, float] | None = None) -> str | None:
        """The class whose turn it is among those that want one; equal use: the higher weight first.

        Args:
            wanting: Classes that could use a turn.
            running: By class, the price of batches that run and are not booked yet.
        """

        def order(name: str) -> tuple[float, float, str]:
            return self._used[name] + (running or {}).get(name, 0.0), -self._weights[name], name

        return min(wanting, key=order, default=None)

    def ahead_s(self, name: str, other: str, running: Mapping[str, float] | None = None) -> float:
        """Seconds that a class has used more than its weight allows it while the other used what it did."""
        booked = running or {}
        mine, others = (self._used[cls] + booked.get(cls, 0.0) for cls in (name, other))
        return (mine - others) * self._weights[name]

    def begin(self, name: str, wanting: Iterable[str], running: Mapping[str, float] | None = None) -> bool:
        """A class takes its turn. Who does not want one now saves nothing up for later.

        Args:
            name: The class.
            wanting: Classes that could use a turn.
            running: By class, the price of batches that run and are not booked yet.

        Returns:
            Whether the turn is spare: nobody else wanted it.
        """
        wanted = set(wanting)
        for other in self._used:
            if other not in wanted:
                level = self._used[name] - (running or {}).get(other, 0.0)
                self._used[other] = max(self._used[other], level)
        return wanted <= {name}

    def price(
        self,
        name: str,
        seconds: float,
        planned_s: float = math.inf,
        spare: bool = False,
        learning: bool = False,
    ) -> float:
        """What time costs a class: seconds / weight, with what it owes, but for what it is not to blame for.

        Args:
            name: The class.
            seconds: How long.
            planned_s: How long it was meant to be. What it took beyond one and a half times that is owed:
                paid at once, a class of low weight would wait for minutes.
            spare: Whether nobody else wanted the turn. What it uses beyond the others then counts as at the
                weight of all: who fills a gap would have to pay for it with a long wait.
            learning: Whether it went into learning what a batch costs. That counts as at the highest weight,
                or a class of low weight would take minutes until it is ready.
        """
        seconds = self._counted_s(name, seconds, planned_s, spare or learning)
        weight = max(self._weights.values()) if learning else self._weights[name]
        if not spare:
            return seconds / weight
        behind = max(self._used.values()) - self._used[name]
        paid_s = min(seconds, behind * weight)
        return paid_s / weight + (seconds - paid_s) / sum(self._weights.values())

    def _counted_s(self, name: str, seconds: float, planned_s: float, cheap: bool) -> float:
        """The part of a turn that counts now, with what is owed of earlier ones."""
        owed_s = 0.0 if cheap or math.isinf(planned_s) else self._owed_s[name]
        return min(max(0.0, seconds) + owed_s, self._tuning.overrun * planned_s)

    def charge(
        self,
        name: str,
        seconds: float,
        planned_s: float = math.inf,
        spare: bool = False,
        learning: bool = False,
    ) -> None:
        """Books time that a class used, at its price. What does not count yet is owed."""
        seconds = max(0.0, seconds)
        self._used[name] += self.price(name, seconds, planned_s, spare, learning)
        self.used_s[name] += seconds
        if not (spare or learning or math.isinf(planned_s)):
            owed_s = self._owed_s[name] + seconds - self._counted_s(name, seconds, planned_s, cheap=False)
            self._owed_s[name] = min(owed_s, self._tuning.owed * planned_s)


def _check_weights(weights: Mapping[str, float]) -> None:
    for name, weight in weights.items():
        require_positive(f"class {name}: weight", weight, "higher means more of the time, e.g. 6, 3, 1")
