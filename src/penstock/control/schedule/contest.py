"""Which class goes first among those that want a turn: by use and weight, unless another would be late.

By weight alone, a class whose batch took long waits until the others have used as much, and a batch of theirs
may take long as well.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass

from penstock.control.schedule.demand import SLACK_FRACTION
from penstock.control.schedule.turns import Turn, Turns
from penstock.control.schedule.urgency import Latest
from penstock.control.state.members import Query

AHEAD, AHEAD_OF_LOWER = 0.5, 1.5
"""Rounds of its queries that a class may be ahead of its weight and still go first if it would be late:
before one of its own priority or of a higher one, and before one of a lower priority."""
WAITS = 1.5
"""Times its target that a query waits for its turn while ones of a higher priority would be late. Where the
batches of all queries do not fit into their targets, the lowest class has fewer turns and loses more rows."""


@dataclass(frozen=True, slots=True)
class Contest:
    """The queries that want a turn now.

    Attributes:
        wanting: The queries.
        running: By class, the price of batches that run and are not booked yet.
        turns: How long turns are.
        room_s: By class, how long one turn of each of its queries is.
        used: Who has used how much.
        latest: When batches must begin at the latest.
        within: Classes that use no more of the time than they may claim.
        priority: Of a class.
        target_s: Of a query.
        waited_s: How long a query has waited for its turn.
    """

    wanting: list[Query]
    running: Mapping[str, float]
    turns: Mapping[str, Turn]
    room_s: Mapping[str, float]
    used: Turns
    latest: Latest
    within: Container[str]
    priority: Callable[[str], float]
    target_s: Callable[[Query], float]
    waited_s: Callable[[Query], float]

    def winner(self, classes: Iterable[str]) -> tuple[str | None, list[Query]]:
        """The class that goes first, and its queries that may have the turn.

        Whoever goes before the class that is next by its weight must not make one of its own priority or of a
        higher one late, and must not be far ahead of its weight, so that in the long run shares are as they
        should be. One of a lower priority may lose rows for it, but does not wait for ever.

        Args:
            classes: Those that want a turn, also when a batch of theirs is only about to end.
        """
        left = set(classes)
        first = self.used.next_of(left, self.running)
        if first is None:
            return None, []
        able = self._of(first)
        while True:  # whoever goes first must not make a third one late
            left.discard(first)
            most = self.used.next_of([cls for cls in left if self._is_overdue(cls, first)], self.running)
            if most is None or not self._yields(first, most):
                return first, able
            able, first = self._in_need_after(most, first), most

    def _of(self, cls: str) -> list[Query]:
        return [query for query in self.wanting if query.cls == cls]

    def _turn_s(self, cls: str) -> float:
        """How long a turn of a class takes at most."""
        return max(
            (next_batch_s(q, self.turns[cls]) for q in self._of(cls)), default=self.turns[cls].length_s
        )

    def _late_after(self, cls: str, other: str) -> list[Query]:
        """Queries of a class whose oldest rows would miss their target if another class ran before them."""
        return [query for query in self._of(cls) if self._is_late(query, other)]

    def _in_need_after(self, cls: str, other: str) -> list[Query]:
        """Those that would be late, and those of which nobody can tell: in a class that always goes first
        because it would be late, these had no turn else."""
        return [q for q in self._of(cls) if not _can_be_late(q) or self._is_late(q, other)]

    def _is_late(self, query: Query, other: str) -> bool:
        """Whether a query would be late after a turn of another class: by itself, or, where that class is a
        lower one, because others of its own class and of higher ones must run as well."""
        if not _can_be_late(query):
            return False
        wait_s = self._turn_s(other)
        if self.priority(query.cls) > self.priority(other) and self.latest.is_late_after(query.key, wait_s):
            return True
        done_s = self.waited_s(query) + wait_s + next_batch_s(query, self.turns[query.cls])
        return done_s > self.target_s(query) * (1.0 - SLACK_FRACTION)

    def _is_overdue(self, cls: str, other: str) -> bool:
        """Whether a class must go before another, and may."""
        return self._may_go_before(cls, other) and bool(self._late_after(cls, other))

    def _may_go_before(self, cls: str, other: str) -> bool:
        """Whether a class is not far ahead of its weight, or uses what it may claim at most: where another
        leaves much of its own, it is ahead of that one for ever."""
        rounds = AHEAD_OF_LOWER if self.priority(cls) > self.priority(other) else AHEAD
        ahead_s = self.used.ahead_s(cls, other, self.running)
        return cls in self.within or ahead_s <= rounds * self.room_s[cls]

    def _yields(self, cls: str, to: str) -> bool:
        """Whether a class lets an overdue one go first."""
        if self.priority(cls) >= self.priority(to):
            return not self._late_after(cls, to)
        wait_s = self._turn_s(to)
        return all(self.waited_s(query) + wait_s <= WAITS * self.target_s(query) for query in self._of(cls))


def _can_be_late(query: Query) -> bool:
    """Whether it has rows with a target, and its cost says when they would be done; a tick has none, a query
    that works off its log is not asked, and one that is still being learned has no cost."""
    has_rows = query.waiting is not None and query.waiting.oldest_s is not None
    return has_rows and query.cost.ready and not query.draining


def next_batch_s(query: Query, turn: Turn) -> float:
    """How long a query's next batch would be: its turn, or less if few rows wait."""
    if not query.cost.ready or query.waiting is None:
        return turn.of(query.key)
    return min(turn.of(query.key), query.cost.batch_s(query.waiting.rows))
