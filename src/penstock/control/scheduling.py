"""Whose turn it is among the queries that want one, whether a batch is worth it yet, how long it may be."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from penstock.control.backlog import Waiting
from penstock.control.classes import GovernedClass
from penstock.control.demand import STALE_S, demands_of
from penstock.control.members import Query
from penstock.control.turns import Demand, Turn, Turns, plan_turns

OVERLAP_FIXED = 1.0
"""A batch is granted so many of its fixed costs before the one that runs is expected to end: about as long as
a start and an end leave the cores idle. Longer ones make batches fight for the cores."""
PARALLEL_MEMORY_S = 10.0
LOOK_EVERY_S = 0.02
"""While a question is held, what waits is looked at no more often: over a large backlog a look takes a
millisecond, and a control plane that looked every time took a tenth of two cores."""
WORTH_AT, WORTH_AT_SHARED = 0.5, 0.6
"""A batch is worth starting when its oldest row would be done after so much of the target: later, with fewer
and fuller batches, when others need the time."""


class Scheduler:
    """Slots and turns over the queries of all classes.

    Args:
        classes: By name.
        queries: By key.
        turns: Who has used how much.
        slots: Batches that may run at once, beside those that are about to end.
        look: Refreshes what waits for a query.
        age_s: How old a row is that arrived at a moment; `None` if the clock cannot tell.
        timer: Seconds that never go back.
    """

    def __init__(
        self,
        classes: Mapping[str, GovernedClass],
        queries: Mapping[str, Query],
        turns: Turns,
        slots: int,
        look: Callable[[Query], Waiting],
        age_s: Callable[[float], float | None],
        timer: Callable[[], float],
    ) -> None:
        self._classes, self._queries, self.turns, self._slots = classes, queries, turns, slots
        self._look, self._age_s, self._timer = look, age_s, timer
        self._parallel = 1.0
        """Batches that run at once while any does, on average: they overlap at their ends."""
        self._replays: dict[str, float] = {}
        """By query that waits to run a batch again, when it last asked for a slot."""

    def beat(self, passed_s: float) -> None:
        """Time has passed."""
        if held := len(self._held()):
            self._parallel += (held - self._parallel) * (1.0 - math.exp(-passed_s / PARALLEL_MEMORY_S))

    # -- slots ----------------------------------------------------------------------------------

    def _held(self) -> list[Query]:
        return [query for query in self._queries.values() if query.lease is not None]

    def takes_slot_again(self, query: Query, token: str) -> bool:
        """Whether a batch that is run again after a restart may begin; if not, it goes before all others.

        Leases of readers with the same token do not count: a self-join of one DataFrame plans both sides for
        one batch, and the second must not wait for the first.
        """
        besides = [any(not r.token or r.token != token for r in q.readers.values()) for q in self._held()]
        if sum(besides) >= self._slots:
            self._replays[query.key] = self._timer()
            return False
        self._replays.pop(query.key, None)
        return True

    def _ends_soon(self, running: Query, other: Query) -> bool:
        """Whether a batch ends about when another, granted now, would begin to need the cores.

        Starting a batch (offset log, planning, tasks) leaves the cores idle: it runs beside the end of the
        one before.
        """
        lease = running.lease
        if lease is None or lease.replay or not lease.logged or not (running.cost.ready and other.cost.ready):
            return False
        rest_s = running.cost.batch_s(lease.admitted) - (self._timer() - lease.began_s)
        return rest_s <= OVERLAP_FIXED * other.cost.fixed_s

    # -- is it worth it -------------------------------------------------------------------------

    def _wants(self, query: Query) -> bool:
        """Whether a batch now is better than a fuller one a little later."""
        waiting = query.waiting
        if waiting is None or self._timer() - query.looked_s >= LOOK_EVERY_S:
            waiting = self._look(query)
        target_s = self._target_s(query)
        quiet_s = self._timer() - query.done_s
        if waiting.oldest_s is None:  # a tick closes windows that the last rows have moved the watermark past
            return query.data_since_tick and (query.draining or quiet_s >= target_s / 2)
        if not query.cost.ready or query.draining:
            return True
        age_s = self._age_s(waiting.oldest_s)
        if age_s is None and quiet_s >= target_s / 2:
            return True
        worth_at_s = target_s * (WORTH_AT_SHARED if self._others_wait(query) else WORTH_AT)
        if (age_s or 0.0) + query.cost.batch_s(waiting.rows) >= worth_at_s:
            return True
        return waiting.rows >= query.cost.rows_in(self.turn(query).length_s)

    def _wants_again(self, query: Query) -> bool:
        """Whether a query whose batch is about to end has another one's worth of rows waiting."""
        return self._look(query).rows > 0 and self._wants(query)

    def _others_wait(self, query: Query) -> bool:
        others = (q.waiting for q in self._queries.values() if q is not query)
        return any(waiting is not None and waiting.rows for waiting in others)

    # -- whose turn -----------------------------------------------------------------------------

    def is_next(self, query: Query) -> bool:
        """Whether a query that asks gets its turn now; it is then begun.

        What waits is looked at only when there is a turn to be had.
        """
        now, held = self._timer(), self._held()
        query.pending_s = now
        ending = [q for q in held if self._ends_soon(q, query)]
        if len(held) - len(ending) >= self._slots or len(held) > self._slots:
            return False
        # who asks when its batch ends would take the slot again before one that waits for it hears of it
        if any(now - at_s <= STALE_S for at_s in self._replays.values()):
            return False
        wanting = [q for q in self._queries.values() if self._asks(q) and self._wants(q)]
        if not any(q is query for q in wanting):
            return False
        # a class whose batch is about to end may be next again, with what that batch will have used
        used_s = {q.cls: now - q.lease.began_s for q in ending if q.lease is not None}
        again = {q.cls for q in ending if len(held) >= self._slots and self._wants_again(q)}
        if self._first(wanting, again, used_s) != query.cls:
            return False
        mine = [q for q in wanting if q.cls == query.cls]
        if min(mine, key=_head).key != query.key:
            return False
        running = {q.cls for q in held if q not in ending}
        self.turns.begin(query.cls, {q.cls for q in wanting} | again | running, used_s)
        return True

    def _first(self, wanting: list[Query], again: set[str], used_s: Mapping[str, float]) -> str | None:
        """The class to run next: by use and weight, unless rows of another would then miss their target.

        By weight alone, a class whose batch took long waits until the others have used as much, and a batch
        of theirs may take long as well. Who goes first must have a turn to its credit, by its share of the
        time that it has waited.
        """
        classes = {q.cls for q in wanting} | again
        first = self.turns.next_of(classes, used_s)
        if len(classes) < 2 or first is None:
            return first
        demands = self.demands(*classes)
        turns = plan_turns(demands, self._parallel)
        overdue = set()
        for query in wanting:
            turn, waited_s = turns[query.cls], self._waited_s(query)
            own_s = min(turn.length_s, query.cost.batch_s(query.waiting.rows)) if query.waiting else 0.0
            late = waited_s + turns[first].length_s + own_s > demands[query.cls].target_s
            earned = waited_s * turn.share >= turn.length_s * demands[query.cls].queries
            if late and earned and query.cost.ready and not query.draining:
                overdue.add(query.cls)
        return self.turns.next_of(overdue, used_s) or first

    def _waited_s(self, query: Query) -> float:
        """How long a query has waited for its turn.

        Since its last grant if its rows are older: where nothing is shed, rows of a low class may be old for
        ever, and it must not go first for that.
        """
        since_s = self._timer() - query.granted_s
        oldest_s = query.waiting.oldest_s if query.waiting is not None else None
        age_s = self._age_s(oldest_s) if oldest_s is not None else 0.0
        return since_s if age_s is None else min(age_s, since_s)

    def _target_s(self, query: Query) -> float:
        return self._classes[query.cls].plant.cls.delay_target_s

    def _asks(self, query: Query) -> bool:
        able = query.lease is None and bool(query.readers) and not query.refused
        return able and self._timer() - query.pending_s <= STALE_S

    def turn(self, query: Query) -> Turn:
        """How long a grant of this query may be, among the classes that have work."""
        return self.turn_of(query.cls)

    def turn_of(self, cls: str) -> Turn:
        """The same for any query of a class."""
        return plan_turns(self.demands(cls), self._parallel)[cls]

    def demands(self, *also: str) -> dict[str, Demand]:
        """What the classes with work ask for; those named are there whether or not they have any."""
        return demands_of(self._classes, self._queries, self.turns.weights, self._timer(), also)

    def floor_s(self, cls: str) -> float | None:
        """The least target that a class could meet, by the measured fixed costs."""
        queries = [q for q in self._queries.values() if q.cost.ready]
        mine = [q for q in queries if q.cls == cls]
        if not mine:
            return None
        # every query of the cluster takes a turn of twice its fixed cost before a row's own batch runs
        cycle_s = sum(2.0 * q.cost.fixed_s for q in queries)
        return cycle_s + max(2.0 * q.cost.fixed_s for q in mine)


def _head(query: Query) -> tuple[float, float, str]:
    """Oldest row first; rows that were appended at once are equally old, so then who waited longest."""
    oldest_s = query.waiting.oldest_s if query.waiting is not None else None
    return (math.inf if oldest_s is None else oldest_s), query.done_s, query.key
