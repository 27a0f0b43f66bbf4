"""Which class goes first among those that want a turn: by use and weight, unless another would be late.

By weight alone, a class whose batch took long waits until the others have used as much, and a batch of theirs
may take long as well.
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
        wanting: Which of them want a turn.
        running: By class, the price of batches that run and are not booked yet.
        turns: How long turns are.
        room_s: By class, how long one turn of each of its queries is.
        used: Who has used how much.
        batch_s: By query, how long its next batch would be.
        starts_s: Computes by query, in how many seconds its batch must begin at the latest. Many contests are
            decided without.
        within: Classes that use no more of the time than they may claim.
        tuning: How far ahead of its weight a class may be.
    """

    seen: Snapshot
    wanting: BoolArray
    running: Mapping[str, float]
    turns: Mapping[str, Turn]
    room_s: Mapping[str, float]
    used: Turns
    batch_s: FloatArray
    starts_s: Callable[[], FloatArray]
    within: Container[str]
    tuning: Tuning = TUNING
    _places: dict[str, IntArray] = field(default_factory=dict, init=False)
    """By class, the places of its queries that want a turn."""
    _priorities: dict[str, float] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        cls = self.seen.cls
        for i, each in enumerate(self.seen.classes):
            self._places[each.name] = (self.wanting & (cls == i)).nonzero()[0]
            self._priorities[each.name] = each.priority

    def winner(self, classes: Iterable[str]) -> tuple[str | None, IntArray]:
        """The class that goes first, and which of the queries may have the turn.

        Whoever goes before the class that is next by its weight must not make one of its own priority or of a
        higher one late, and must not be far ahead of its weight, so that in the long run shares are as they
        should be. A class of a lower priority may lose rows for it, but does not wait for ever.

        Args:
            classes: Those that want a turn, also when a batch of theirs is only about to end.
        """
        left = set(classes)
        first = self.used.next_of(left, self.running)
        if first is None:
            return None, np.empty(0, np.int64)
        able = self._places[first]
        while True:  # whoever goes first must not make a third one late
            left.discard(first)
            most = self.used.next_of([cls for cls in left if self._is_overdue(cls, first)], self.running)
            if most is None or not self._yields(first, most):
                return first, able
            able, first = self._in_need_after(most, first), most

    def _can_be_late(self, at: IntArray) -> BoolArray:
        """Which of some queries have rows with a target, and a cost that says when they would be done.

        A tick has no rows, a query that works off its log has no target, and a query that is still being
        learned has no cost.
        """
        seen = self.seen
        found: BoolArray = ~np.isnan(seen.age_s[at]) & seen.ready[at] & ~seen.draining[at]
        return found

    def _turn_s(self, cls: str) -> float:
        """How long a turn of a class takes at most."""
        mine = self._places[cls]
        return float(self.batch_s[mine].max()) if mine.size else self.turns[cls].length_s

    def _late_after(self, cls: str, other: str) -> BoolArray:
        """Which queries of a class have oldest rows that miss their target if another class runs before them.

        By themselves, or, where the other is a lower class, because others of their own class and of higher
        ones must run as well.
        """
        seen, at, wait_s = self.seen, self._places[cls], self._turn_s(other)
        done_s = seen.waited_s[at] + wait_s + self.batch_s[at]
        late = done_s > seen.target_s[at] * (1.0 - self.tuning.slack_fraction)
        if self._priorities[cls] > self._priorities[other]:
            late |= self.starts_s()[at] < wait_s
        found: BoolArray = self._can_be_late(at) & late
        return found

    def _in_need_after(self, cls: str, other: str) -> IntArray:
        """Queries that would be late, plus queries of which nobody can tell.

        Without the latter, a class that is always overdue would never let them run.
        """
        at = self._places[cls]
        return at[self._late_after(cls, other) | ~self._can_be_late(at)]

    def _is_overdue(self, cls: str, other: str) -> bool:
        """Whether a class must go before another, and may."""
        return self._may_go_before(cls, other) and bool(self._late_after(cls, other).any())

    def _may_go_before(self, cls: str, other: str) -> bool:
        """Whether a class is not far ahead of its weight, or uses what it may claim at most.

        Where another class leaves much of its own, a class is ahead of that one for ever.
        """
        tuning = self.tuning
        rounds = tuning.ahead_of_lower if self._priorities[cls] > self._priorities[other] else tuning.ahead
        ahead_s = self.used.ahead_s(cls, other, self.running)
        return cls in self.within or ahead_s <= rounds * self.room_s[cls]

    def _yields(self, cls: str, to: str) -> bool:
        """Whether a class lets an overdue one go first."""
        if self._priorities[cls] >= self._priorities[to]:
            return not self._late_after(cls, to).any()
        mine = self._places[cls]
        waits_s = self.seen.waited_s[mine] + self._turn_s(to)
        return bool((waits_s <= self.tuning.waits * self.seen.target_s[mine]).all())
