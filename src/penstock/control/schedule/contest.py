"""Which class has the next turn: that with the least use for its weight, unless another would be late.

By weight alone, a class whose batch took long would wait until the other classes have used as much time. One
of their batches may take long as well, and the waiting class would be late.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from penstock.control.schedule.snapshot import BoolArray, IntArray, Snapshot
from penstock.control.schedule.turns import Turn, Turns
from penstock.control.tuning import TUNING, Tuning
from penstock.vocabulary.model import FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class Contest:
    """The queries that want a turn now.

    Attributes:
        seen: All queries.
        wanting: By query, whether it wants a turn.
        running: By class, the price of its batches that run and are not booked yet.
        turns: By class, how long its turns are.
        room_s: By class, how long a round is in which each of its queries has one turn.
        used: How much time each class has used.
        batch_s: By query, the machine time of its next batch.
        takes_s: By query, how long the tasks of that batch would take.
        starts_s: Computes by query, in how many seconds its batch must begin at the latest. Many contests
            are decided without this.
        within: Classes that usually use no more of the time than they may claim.
        tuning: How far ahead of its weight a class may be.
    """

    seen: Snapshot
    wanting: BoolArray
    running: Mapping[str, float]
    turns: Mapping[str, Turn]
    room_s: Mapping[str, float]
    used: Turns
    batch_s: FloatArray
    takes_s: FloatArray
    starts_s: Callable[[], FloatArray]
    within: Container[str]
    tuning: Tuning = TUNING
    _places: dict[str, IntArray] = field(default_factory=dict, init=False)
    """By class, the queries that want a turn, as indexes into the arrays of `seen`."""
    _priorities: dict[str, float] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        cls = self.seen.cls
        for i, each in enumerate(self.seen.classes):
            self._places[each.name] = (self.wanting & (cls == i)).nonzero()[0]
            self._priorities[each.name] = each.priority

    def winner(self, classes: Iterable[str]) -> tuple[str | None, IntArray]:
        """The class that goes first, and which of its queries may have the turn.

        The class that is next by its weight goes first, unless an overdue class goes before it. An overdue
        class must not make another class late that has its own priority or a higher one. It must not be far
        ahead of its weight either, so that shares are right in the long run. A class of a lower priority may
        lose rows for an overdue class, but does not wait for ever.

        Args:
            classes: The classes that want a turn, also those whose batch is only about to end.
        """
        left = set(classes)
        first = self.used.next_of(left, self.running)
        if first is None:
            return None, np.empty(0, np.int64)
        able = self._places[first]
        while True:  # an overdue class that goes first must not make a third class late
            left.discard(first)
            overdue = self.used.next_of([cls for cls in left if self._is_overdue(cls, first)], self.running)
            if overdue is None or not self._yields(first, overdue):
                return first, able
            able, first = self._in_need_after(overdue, first), overdue

    def _can_be_late(self, at: IntArray) -> BoolArray:
        """Which of some queries have rows with a target, and a known cost that says when they would be done.

        A tick has no rows. A query that drains its log has no target. A query whose cost is still being
        learned has no known cost.
        """
        seen = self.seen
        found: BoolArray = ~np.isnan(seen.age_s[at]) & seen.ready[at] & ~seen.draining[at]
        return found

    def _turn_s(self, cls: str) -> float:
        """How long a class would keep the slot now: the longest batch of its queries that want a turn."""
        mine = self._places[cls]
        return float(self.batch_s[mine].max()) if mine.size else self.turns[cls].length_s

    def _late_after(self, cls: str, other: str) -> BoolArray:
        """Which queries of a class would be late if another class had a turn before them.

        The oldest row of such a query would miss its target. Before a turn of a lower class, a query also
        counts as late if it must begin before that turn ends: batches of its own class and of higher classes
        must run as well, one after the other.
        """
        seen, at, wait_s = self.seen, self._places[cls], self._turn_s(other)
        done_s = seen.waited_s[at] + wait_s + seen.idle_s[at] + self.takes_s[at]
        late = done_s > seen.target_s[at] * (1.0 - self.tuning.slack_fraction)
        if self._priorities[cls] > self._priorities[other]:
            late |= self.starts_s()[at] < wait_s
        found: BoolArray = self._can_be_late(at) & late
        return found

    def _in_need_after(self, cls: str, other: str) -> IntArray:
        """Queries that would be late after a turn of another class, plus those without a target or a cost.

        Without the latter, a class that is always overdue would never let these queries run.
        """
        at = self._places[cls]
        return at[self._late_after(cls, other) | ~self._can_be_late(at)]

    def _is_overdue(self, cls: str, other: str) -> bool:
        """Whether a class would be late after a turn of another class, and may go before that class."""
        return self._may_go_before(cls, other) and bool(self._late_after(cls, other).any())

    def _may_go_before(self, cls: str, other: str) -> bool:
        """Whether a class is not too far ahead of its weight to go before another class.

        A class that uses no more than it may claim may always go. If the other class leaves much of its share
        unused, the class is ahead of it for ever.
        """
        tuning = self.tuning
        rounds = tuning.ahead_of_lower if self._priorities[cls] > self._priorities[other] else tuning.ahead
        ahead_s = self.used.ahead_s(cls, other, self.running)
        return cls in self.within or ahead_s <= rounds * self.room_s[cls]

    def _yields(self, cls: str, to: str) -> bool:
        """Whether a class lets an overdue class go first."""
        if self._priorities[cls] >= self._priorities[to]:
            return not self._late_after(cls, to).any()
        mine = self._places[cls]
        waits_s = self.seen.waited_s[mine] + self._turn_s(to)
        return bool((waits_s <= self.tuning.waits * self.seen.target_s[mine]).all())
