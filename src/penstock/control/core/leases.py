"""Leases: who holds one, and whether another batch may begin, by free slots or by free cores."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from penstock.control.core.events import BatchPlanned
from penstock.control.cores.machines import Machines
from penstock.control.measure.batch_cost import BatchCost
from penstock.control.schedule.overlap import early_s, is_held_back, rest_s
from penstock.control.schedule.turns import Turns
from penstock.control.state.lease import Lease, Outcome, Terms
from penstock.control.state.query import Query
from penstock.control.tuning import TUNING, Tuning

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Early:
    """How early a batch may begin before others have ended.

    Attributes:
        fixed_s: Seconds of a batch without rows, where it is not known how batches use the cores.
        before_s: Seconds from its grant until its tasks need cores, where it is known.
    """

    fixed_s: float = 0.0
    before_s: float = 0.0


def early(cost: BatchCost) -> Early:
    """How early a batch of a query may begin."""
    return Early(cost.fixed_s, cost.before_s)


class LeaseBook:
    """The leases of all queries; nobody else writes them.

    Args:
        slots: Batches that may run at once, beside those that are about to end; `None`: as many as the cores
            can use. Where a driver does not say how many cores there are, that is one.
        turns: Books the machine time that batches take.
        tuning: Figures.
    """

    def __init__(self, slots: int | None, turns: Turns, tuning: Tuning = TUNING) -> None:
        self.slots, self._turns, self._tuning = slots, turns, tuning
        self.machines = Machines(tuning)
        """The cores of drivers; there are none where a number of slots is given."""
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
        self.machines.begin(query, lease)
        return lease

    def end(self, query: Query, outcome: Outcome, now_s: float) -> Lease:
        """A query's lease is over: the machine time that it took is booked, whatever came of it."""
        lease = query.turn.lease
        assert lease is not None
        terms, learning = lease.terms, not query.cost.ready
        seconds = max(0.0, self.machines.end(query, lease, now_s) - lease.use.paid_s)
        self._turns.charge(query.cls, seconds, terms.planned_s, terms.spare, learning)
        query.turn.granted_s, query.turn.lease = terms.began_s, None
        del self.held[query.key]
        if outcome.ran:
            query.turn.done_s = now_s
            query.turn.batches += 1
        return lease

    # -- cores ----------------------------------------------------------------------------------

    def cores_changed(self, driver: str, cores: int | None, now_s: float) -> bool:
        """A driver says how many cores it has (`None`: it has ended); returns whether that changes anything.

        Where a number of slots is given, batches count as if each had the machine for itself.
        """
        return self.slots is None and self.machines.cores_changed(driver, cores, now_s)

    def pass_time(self, now_s: float) -> dict[str, float] | None:
        """Tasks run up to now. The class of a batch that should have ended pays for it as time passes.

        Returns:
            By query, the machine seconds that its batch had, as expected; `None` where no driver says how
            many cores it has: each batch had all the time.
        """
        if not self.machines.by_driver:
            return None
        passed = self.machines.pass_time(now_s)
        for key, seconds in passed.overdue_s.items():
            query = self.held.get(key)
            if query is not None and query.lease is not None:
                query.lease.use.paid_s += seconds
                self._turns.charge(query.cls, seconds)
        return passed.had_s

    def charged(self, ending: Sequence[Query]) -> list[Query]:
        """Queries whose running batches count as time that their classes have used already."""
        return list(self.held.values()) if self.machines.by_driver else list(ending)

    def returning(self, ending: Sequence[Query]) -> list[Query]:
        """Queries whose batch is about to end, and that compete for a turn although they do not ask."""
        full = self.slots is None or len(self.held) >= self.slots
        return [query for query in ending if full and not query.flags.refused]

    def rests_s(self, now_s: float) -> dict[str, float]:
        """By query that runs a batch of known cost, the machine seconds that are left of the batch."""
        found = {}
        for key, query in self.held.items():
            lease = query.lease
            if lease is None or not query.cost.ready:
                continue
            rest_s = self.machines.rest_s(query)
            if rest_s is None:
                rest_s = max(0.0, query.cost.batch_s(lease.admitted) - lease.ran_s(now_s))
            found[key] = rest_s
        return found

    # -- batches that do not end ----------------------------------------------------------------

    def stuck_s(self, query: Query, target_s: float, now_s: float) -> float | None:
        """How long a query's batch has run, if that is many times the target of its class."""
        ran_s = 0.0 if query.lease is None else query.lease.ran_s(now_s)
        tuning = self._tuning
        return ran_s if ran_s >= max(tuning.stuck_targets * target_s, tuning.stuck_least_s) else None

    def name_stuck(self, targets_s: Mapping[str, float], now_s: float) -> None:
        """Names queries whose batch does not end, once for each batch.

        Args:
            targets_s: By class, its delay target.
            now_s: On the timer.
        """
        for query in self.held.values():
            if (target_s := targets_s.get(query.cls)) is None:  # its class was removed meanwhile
                continue
            ran_s = self.stuck_s(query, target_s, now_s)
            if ran_s is None or query.lease is None or query.lease.use.is_named:
                continue
            query.lease.use.is_named = True
            tasks = self.machines.tasks_on_cores(query)
            hold = "" if tasks is None else f", and {tasks} of its tasks hold cores"
            _log.warning(
                "query %s: its batch has run for %.0f s%s; its class pays for it, and other queries go on",
                *(query.name, ran_s, hold),
            )

    # -- batches that are planned ---------------------------------------------------------------

    def takes_slot_again(self, query: Query, token: str, now_s: float) -> bool:
        """Whether a batch that is run again after a restart may begin; if not, it goes before all others.

        Leases of readers with the same token do not count: a self-join of one DataFrame plans both sides for
        one batch, and the second must not wait for the first.
        """
        held = self.held.values()
        besides = [any(not r.token or r.token != token for r in q.readers.values()) for q in held]
        most = self._most(query.identity.driver)
        if most is not None and sum(besides) >= most:
            self._replays[query.key] = math.inf
            return False
        self._replays.pop(query.key, None)
        return True

    def _most(self, driver: str) -> int | None:
        """How many batches may run at once; `None`: as many as the cores can use."""
        return 1 if self.slots is None and driver not in self.machines.by_driver else self.slots

    def stop_waiting(self, query: Query, now_s: float) -> None:
        """A batch that is to run again waits no more; it comes back, or its query is gone."""
        if query.key in self._replays:
            self._replays[query.key] = now_s + self._tuning.stale_s

    def holds_back(self, query: Query) -> bool:
        """Whether a batch that was granted beside others must wait before it takes cores."""
        if query.lease is None:
            return False
        if self.machines.of(query) is not None:
            # tasks that come early fill the gaps at the ends of other batches' stages
            return False
        most = self._most(query.identity.driver)
        if most is not None and len(self.held) <= most:
            return False
        others = (q for q in self.held.values() if q is not query)
        return is_held_back(query.lease, [(q.lease, q.costs.last_stages) for q in others if q.lease])

    # -- room for another batch -----------------------------------------------------------------

    def ending(self, cost: Early, now_s: float) -> list[Query]:
        """Queries whose batch ends about when another one, granted now, would begin to need the cores.

        Args:
            cost: Of the other's batches; zero if it is not known: then none ends soon enough.
            now_s: On the timer.
        """
        left_s = self.machines.left_s(now_s)
        return [query for query in self.held.values() if self._ends_in_s(query, cost, left_s, now_s) <= 0.0]

    def _ends_in_s(self, query: Query, cost: Early, left_s: Mapping[str, float], now_s: float) -> float:
        if query.lease is None:
            return math.inf
        if query.key in left_s:
            if not query.cost.ready or query.lease.is_proposed or query.lease.terms.replay:
                return math.inf
            return left_s[query.key] + query.cost.idle_s - query.cost.before_s - cost.before_s
        if cost.fixed_s <= 0.0:
            return math.inf
        stages = query.costs.last_stages
        rest = rest_s(query.lease, query.costs.model, stages, now_s)
        return math.inf if rest is None else rest - early_s(stages, cost.fixed_s, self._tuning)

    def frees_in_s(self, cost: Early, now_s: float) -> float:
        """In how many seconds another batch may begin, if nothing happens."""
        left_s = self.machines.left_s(now_s)
        found = [self._ends_in_s(query, cost, left_s, now_s) for query in self.held.values()]
        found += self.machines.frees_in_s(cost.before_s, now_s)
        return min((each for each in found if each > 0.0), default=math.inf)

    def is_free(self, driver: str | None, cost: Early, ending: Sequence[Query], now_s: float) -> bool:
        """Whether a batch may begin beside those that run; one is about to end at most.

        Args:
            driver: Whose batch; `None`: of any driver.
            cost: Of the batch.
            ending: Queries whose batch is about to end.
            now_s: On the timer.
        """
        # who asks when its batch ends would take the slot again before one that waits for it hears of it
        if any(until_s > now_s for until_s in self._replays.values()):
            return False
        if driver is None:
            return any(self._has_room(each, cost, ending, now_s) for each in (*self.machines.by_driver, ""))
        return self._has_room(driver, cost, ending, now_s)

    def _has_room(self, driver: str, cost: Early, ending: Sequence[Query], now_s: float) -> bool:
        most, on_cores = self._most(driver), driver in self.machines.by_driver
        mine = [q for q in self.held.values() if (self.machines.of(q) is not None) == on_cores]
        gone = sum(q in ending for q in mine)
        if most is not None and (len(mine) - gone >= most or len(mine) > most):
            return False
        return self.machines.has_room(driver, cost.before_s, now_s)

    def stop_preferring(self, now_s: float) -> bool:
        """Forgets batches that were to run again and did not come back; returns whether there was one."""
        passed = [key for key, until_s in self._replays.items() if until_s <= now_s]
        for key in passed:
            del self._replays[key]
        return bool(passed)

    def replays_until_s(self) -> Iterable[float]:
        """On the timer, when batches that are to run again give way to others."""
        return self._replays.values()
