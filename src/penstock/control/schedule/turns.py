"""Turns: weighted round robin in time over classes, and how long a turn may be.

A class has used v = seconds / weight. Among the classes that want a turn, the class with the least v is next.
A class that was idle saves nothing up: it starts again from the least v of the classes that want a turn. Time
that one class leaves unused therefore goes to the classes that want it, in proportion to their weights (the
CQC of pham2016 3.2). The weight of a class is the share that it may claim by the capacity policy.
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
    """The queries of a class that ask for time. Each field has one entry a query.

    Attributes:
        keys: The keys of the queries.
        at: The indexes of the queries in the snapshot.
        loads: The seconds of batch time that the query asks for in a second.
        fixed_s: The fixed cost of the query's batches.
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
        target_s: The delay target of the class, less the slack that it keeps.
        load: The seconds of batch time that the input of the class asks for in a second; at most one for each
            query. `None` while the cost of a query is not known.
        queries: How many of its queries have input.
        fixed_s: The largest fixed cost of its batches.
        asking: The queries that ask, each with its part of the load; empty where `load` is `None`.
        burst: The load by the arrival rate of the last moments, where that rate is above the usual one.
        idle_s: The largest part of its batches without tasks, which is no part of `target_s`.
        stretch: How many times as long as their work on their cores its batches take, at most.
    """

    target_s: float
    load: float | None
    queries: int
    fixed_s: float
    asking: Asking = NOBODY
    burst: float = 0.0
    idle_s: float = 0.0
    stretch: float = 1.0


@dataclass(frozen=True, slots=True)
class Turn:
    """How long a grant of a class may be, and how long after it the query's next grant begins.

    Attributes:
        length_s: How long the grant of a query may be that asks for as much as others of its class.
        cycle_s: The turn interval: the time from a grant of a query to its next grant.
        asking: The queries whose loads are known.
        lengths_s: For each of these queries, how long its grant may be.
        task_s: How long tasks of its batches may be; 0 where a batch uses all cores.
    """

    length_s: float
    cycle_s: float
    asking: Asking = NOBODY
    lengths_s: FloatArray = field(default_factory=lambda: np.empty(0))
    task_s: float = 0.0

    def of(self, query: str) -> float:
        """How long a grant of a query may be."""
        try:
            return float(self.lengths_s[self.asking.keys.index(query)])
        except ValueError:
            return self.length_s


def plan_turns(
    demands: Mapping[str, Demand],
    shares: Mapping[str, float],
    parallel: float = 1.0,
    tuning: Tuning = TUNING,
    narrow: float = 0.0,
) -> dict[str, Turn]:
    """Plans turns such that a row that just missed a batch is still in time after the next batch.

    A class has the share e_k of the time. Its query q has the part p_q of each turn interval C: what the
    query asks for, and an equal part of the time that is left over. If the class asks for too much, each
    query has the time that its batches cost without rows, and all queries keep the same fraction of their
    rows. (With an equal part of the class's time for each query, light queries would keep a larger fraction.)

    A row waits at most C for its turn and p_q C for its batch. If all classes had their turns in one common
    interval, it would be the longest C with C (1 + p_q) <= target for every query. A class whose target
    leaves more time has a longer interval of its own, and so fewer and fuller batches, as long as

    - its rows are in time even if the longest turn of another class comes before their turn, and
    - its turns are not longer than the time that each other class leaves free of the common interval.

    Where batches run beside each other, a batch of p_q C machine seconds may use some of the cores only, and
    take f_q C for it, with f_q = max(p_q, narrow) and longer by what batches are stretched. Then the interval
    is the longest with C (1 + f_q) <= target. A query whose batches follow each other without a pause waits
    twice for the part without tasks.

    Args:
        demands: By class that has work, what it asks for.
        shares: By class. The classes divide the whole time in this proportion.
        parallel: How many batches run at once, on average: the seconds of batch time in a second.
        tuning: How full batches are, and how long they are at least.
        narrow: The part of the turn interval that a batch takes at least; 0 where it uses all cores.
    """
    if not demands:
        return {}
    total = sum(shares[name] for name in demands)
    shares = {name: parallel * shares[name] / total for name in demands}
    equal = {name: min(shares[name] / d.queries, 1.0) for name, d in demands.items()}
    by_query = {name: _parts(d, shares[name], tuning) for name, d in demands.items()}
    parts = {name: float(each.max()) if each.size else equal[name] for name, each in by_query.items()}
    takes = {name: max(parts[name], narrow) * d.stretch for name, d in demands.items()}
    alone_s = {name: _alone_s(d, takes[name]) for name, d in demands.items()}
    longest_s = {name: _length_s(d, parts[name] * alone_s[name], tuning) for name, d in demands.items()}
    common_s = min(alone_s.values())
    turns = {}
    for name, d in demands.items():
        others = [other for other in demands if other != name]
        before_s = max((longest_s[other] for other in others), default=0.0)
        left_s = min(((parallel - shares[other]) * common_s for other in others), default=math.inf)
        own_s = _alone_s(d, takes[name], before_s)
        cycle_s = max(common_s, min(own_s, left_s / parts[name]))
        length_s = longest = _length_s(d, equal[name] * cycle_s, tuning)
        lengths_s = by_query[name] * cycle_s
        if lengths_s.size:
            least_s = tuning.least_fixed * d.asking.fixed_s
            lengths_s = np.minimum(np.maximum(lengths_s, least_s), d.target_s)
            longest = float(lengths_s.max())
        turns[name] = Turn(length_s, max(cycle_s, longest), d.asking, lengths_s, narrow * cycle_s)
    return turns


def _alone_s(demand: Demand, takes: float, before_s: float = 0.0) -> float:
    """The longest turn interval of a class that has to itself what its share gives it.

    Args:
        demand: What the class asks for.
        takes: The part of the interval that its longest batch takes.
        before_s: The turn of another class that may come before its own.
    """
    one_after_the_other_s = (demand.target_s - demand.idle_s) / (2.0 * takes)
    return min((demand.target_s - before_s) / (1.0 + takes), one_after_the_other_s)


def _parts(demand: Demand, share: float, tuning: Tuning) -> FloatArray:
    """By query that asks, its part p_q of a turn interval; see `plan_turns`."""
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
    """Books how much time the classes have used, and says which class is next.

    Args:
        weights: By class, its weight.
        tuning: How much of a turn counts that took too long.
    """

    def __init__(self, weights: Mapping[str, float], tuning: Tuning = TUNING) -> None:
        _check_weights(weights)
        self._tuning = tuning
        self._weights = dict(weights)
        self._used: dict[str, float] = dict.fromkeys(weights, 0.0)
        self._owed_s: dict[str, float] = dict.fromkeys(weights, 0.0)
        self.used_s: dict[str, float] = dict.fromkeys(weights, 0.0)
        """By class, the seconds of batch time since the start."""

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
        """Forgets a class that is gone."""
        del self._weights[name], self._used[name], self._owed_s[name], self.used_s[name]

    @property
    def weights(self) -> Mapping[str, float]:
        return self._weights

    def next_of(self, wanting: Iterable[str], running: Mapping[str, float] | None = None) -> str | None:
        """The class that has the next turn. Of classes with equal use, that with the higher weight is next.

        Args:
            wanting: The classes that want a turn.
            running: By class, the price of batches that run and are not booked yet.
        """

        def order(name: str) -> tuple[float, float, str]:
            return self._used[name] + (running or {}).get(name, 0.0), -self._weights[name], name

        return min(wanting, key=order, default=None)

    def ahead_s(self, name: str, other: str, running: Mapping[str, float] | None = None) -> float:
        """How many seconds a class has used beyond what its weight allows for the use of another class."""
        booked = running or {}
        mine, others = (self._used[cls] + booked.get(cls, 0.0) for cls in (name, other))
        return (mine - others) * self._weights[name]

    def begin(self, name: str, wanting: Iterable[str], running: Mapping[str, float] | None = None) -> bool:
        """Books that a class takes its turn. A class that wants no turn now saves nothing up for later.

        Args:
            name: The class.
            wanting: The classes that want a turn.
            running: By class, the price of batches that run and are not booked yet.

        Returns:
            Whether the turn is spare: no other class wanted it.
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
        """What a turn costs a class: seconds / weight, with the three exceptions that the arguments describe.

        Args:
            name: The class.
            seconds: How long the turn took. Time that the class owes from earlier turns is added.
            planned_s: How long the turn was meant to be. Time beyond one and a half times this length is
                owed. If such time were paid at once, a class of low weight would wait for minutes.
            spare: Whether no other class wanted the turn. Once the class has used as much as every other
                class, further time counts as at the weight of all classes together. Otherwise a class that
                fills a gap would pay for the gap with a long wait.
            learning: Whether the cost of the query's batches was being learned. The turn then counts as at
                the highest weight. Otherwise a class of low weight would take minutes until it is ready.
        """
        seconds = self._counted_s(name, seconds, planned_s, spare or learning)
        weight = max(self._weights.values()) if learning else self._weights[name]
        if not spare:
            return seconds / weight
        behind = max(self._used.values()) - self._used[name]
        paid_s = min(seconds, behind * weight)
        return paid_s / weight + (seconds - paid_s) / sum(self._weights.values())

    def _counted_s(self, name: str, seconds: float, planned_s: float, cheap: bool) -> float:
        """How much counts now of the time of a turn and of the time that is owed from earlier turns."""
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
        """Books the time of a turn at its price. Time that does not count yet is owed."""
        seconds = max(0.0, seconds)
        self._used[name] += self.price(name, seconds, planned_s, spare, learning)
        self.used_s[name] += seconds
        if not (spare or learning or math.isinf(planned_s)):
            owed_s = self._owed_s[name] + seconds - self._counted_s(name, seconds, planned_s, cheap=False)
            self._owed_s[name] = min(owed_s, self._tuning.owed * planned_s)


def _check_weights(weights: Mapping[str, float]) -> None:
    for name, weight in weights.items():
        require_positive(f"class {name}: weight", weight, "higher means more of the time, e.g. 6, 3, 1")
