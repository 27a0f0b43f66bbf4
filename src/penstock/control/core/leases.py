"""Slots: who holds one, who waits for one, and whether another batch may begin."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from penstock.control.core.events import BatchPlanned
from penstock.control.schedule.overlap import early_s, is_held_back, rest_s
from penstock.control.schedule.turns import Turns
from penstock.control.state.lease import Lease, Outcome, Terms
from penstock.control.state.query import Query
from penstock.control.tuning import TUNING, Tuning


class LeaseBook:
    """The leases of all queries; nobody else writes them.

    Args:
        slots: Batches that may run at once, beside those that are about to end.
        turns: Books the time that batches take.
        tuning: Figures.
    """

    def __init__(self, slots: int, turns: Turns, tuning: Tuning = TUNING) -> None:
        self.slots, self._turns, self._tuning = slots, turns, tuning
        self.held: dict[str, Query] = {}
        """By key, queries that hold a lease, or whose grant waits for rows that are fetched."""
        self.plans: dict[str, BatchPlanned] = {}
        """By reader, batches that Spark has planned and that may not have the cores yet."""
        self._replays: dict[str, float] = {}
        """By query that waits to run a batch again, on the timer, until when it goes before all others."""

    def forget(self, query: str) -> None:
        """A query is gone for good."""
        self._replays.pop(query, None)

    # -- the life of a lease --------------------------------------------------------------------

    def reserve(self, query: Query) -> None:
        """A query's grant is being decided: it has a slot, and no lease yet."""
        self.held[query.key], query.turn.reserved = query, True

    def give_up(self, query: Query) -> None:
        """A grant that was being decided comes to nothing."""
        query.turn.reserved = False
        if query.lease is None:
            self.held.pop(query.key, None)

    def take(self, query: Query, terms: Terms) -> Lease:
        """A query holds a grant from now on."""
        lease = query.turn.lease = Lease(terms)
        query.turn.reserved = False
        self.held[query.key] = query
        return lease

    def end(self, query: Query, outcome: Outcome, now_s: float) -> Lease:
        """A query's lease is over: the time that it took is booked, whatever came of it."""
        lease = query.turn.lease
        assert lease is not None
        terms, learning = lease.terms, not query.cost.ready
        self._turns.charge(query.cls, lease.ran_s(now_s), terms.planned_s, terms.spare, learning)
        query.turn.granted_s, query.turn.lease = terms.began_s, None
        del self.held[query.key]
        if outcome.ran:
            query.turn.done_s = now_s
            query.turn.batches += 1
        return lease

    # -- batches that are planned ---------------------------------------------------------------

    def takes_slot_again(self, query: Query, token: str, now_s: float) -> bool:
        """Whether a batch that is run again after a restart may begin; if not, it goes before all others.

        Leases of readers with the same token do not count: a self-join of one DataFrame plans both sides for
        one batch, and the second must not wait for the first.
        """
        held = self.held.values()
        besides = [any(not r.token or r.token != token for r in q.readers.values()) for q in held]
        if sum(besides) >= self.slots:
            self._replays[query.key] = math.inf
            return False
        self._replays.pop(query.key, None)
        return True

    def stop_waiting(self, query: Query, now_s: float) -> None:
        """A batch that is to run again waits no more; it comes back, or its query is gone."""
        if query.key in self._replays:
            self._replays[query.key] = now_s + self._tuning.stale_s

    def holds_back(self, query: Query) -> bool:
        """Whether a batch that was granted beside another must wait before it takes cores."""
        if query.lease is None or len(self.held) <= self.slots:
            return False
        others = (q for q in self.held.values() if q is not query)
        return is_held_back(query.lease, [(q.lease, q.costs.last_stages) for q in others if q.lease])

    # -- free slots -----------------------------------------------------------------------------

    def ending(self, fixed_s: float, now_s: float) -> list[Query]:
        """Queries whose batch ends about when another one, granted now, would begin to need the cores.

        Args:
            fixed_s: The fixed cost of the other's batches; 0 if it is not known: then none ends soon enough.
            now_s: On the timer.
        """
        return [query for query in self.held.values() if self._ends_in_s(query, fixed_s, now_s) <= 0.0]

    def _ends_in_s(self, query: Query, fixed_s: float, now_s: float) -> float:
        if query.lease is None or fixed_s <= 0.0:
            return math.inf
        stages = query.costs.last_stages
        left_s = rest_s(query.lease, query.cost, stages, now_s)
        return math.inf if left_s is None else left_s - early_s(stages, fixed_s, self._tuning)

    def frees_in_s(self, fixed_s: float, now_s: float) -> float:
        """In how many seconds a batch that runs ends soon enough for another to begin, if nothing happens."""
        found = (self._ends_in_s(query, fixed_s, now_s) for query in self.held.values())
        return min((each for each in found if each > 0.0), default=math.inf)

    def is_free(self, ending: Sequence[Query], now_s: float) -> bool:
        """Whether a batch may begin beside those that run; one is about to end at most."""
        if len(self.held) - len(ending) >= self.slots or len(self.held) > self.slots:
            return False
        # who asks when its batch ends would take the slot again before one that waits for it hears of it
        return all(until_s <= now_s for until_s in self._replays.values())

    def stop_preferring(self, now_s: float) -> bool:
        """Forgets batches that were to run again and did not come back; returns whether there was one."""
        passed = [key for key, until_s in self._replays.items() if until_s <= now_s]
        for key in passed:
            del self._replays[key]
        return bool(passed)

    def replays_until_s(self) -> Iterable[float]:
        """On the timer, when batches that are to run again give way to others."""
        return self._replays.values()
