"""Leases: who holds one, and whether another batch may begin, by free slots or by free cores."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from penstock.control.core.events import BatchPlanned, JobEnded
from penstock.control.measure.batch_cost import BatchCost
from penstock.control.schedule.core_use import CoreUse, Work
from penstock.control.schedule.overlap import early_s, is_held_back, rest_s
from penstock.control.schedule.turns import Turns
from penstock.control.state.lease import Lease, Outcome, Terms
from penstock.control.state.query import Query
from penstock.control.tuning import TUNING, Tuning


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


def tasks_of(core_s: float, cores: int, tuning: Tuning = TUNING) -> int:
    """Into how many tasks work is worth dividing."""
    return max(1, min(cores, round(core_s / tuning.task_s)))


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
        self.machines: dict[str, CoreUse] = {}
        """By driver that says how many cores it has, how these are used."""
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
        if (machine := self.machine_of(query)) is not None:
            rows = float(terms.arrival_rows.sum()) * (terms.plan.chance() or 1.0)
            work_s = lease.use.expected_s = min(terms.planned_s, query.cost.batch_s(rows))
            ready_s = terms.began_s + query.cost.before_s
            machine.begin(query.key, self._work(query, machine, ready_s, work_s, rows))
        return lease

    def plan(self, query: Query, now_s: float) -> None:
        """The batch of a lease may take cores: it is known how many rows it has."""
        machine, lease = self.machine_of(query), query.lease
        if machine is None or lease is None:
            return
        lease.use.expected_s = query.cost.batch_s(lease.admitted)
        ready_s = now_s + query.cost.before_s - lease.ran_s(now_s)
        work = self._work(query, machine, ready_s, lease.use.expected_s, lease.admitted)
        machine.change(query.key, work)

    def _unknown_core_s(self, query: Query, machine: CoreUse, rows: float) -> float:
        """What the tasks of a batch may take whose cost is not known yet."""
        return max(self._tuning.unknown_core_s, query.cost.most_row_s * rows * machine.cores)

    def _work(self, query: Query, machine: CoreUse, ready_s: float, work_s: float, rows: float) -> Work:
        """What the tasks of a batch are expected to take, by machine seconds."""
        core_s = work_s * machine.cores if query.cost.ready else self._unknown_core_s(query, machine, rows)
        return Work(ready_s, core_s, tasks_of(core_s, machine.cores, self._tuning))

    def end(self, query: Query, outcome: Outcome, now_s: float) -> Lease:
        """A query's lease is over: the machine time that it took is booked, whatever came of it."""
        lease = query.turn.lease
        assert lease is not None
        terms, learning = lease.terms, not query.cost.ready
        seconds = self._took_s(query, lease, now_s)
        self._turns.charge(query.cls, seconds, terms.planned_s, terms.spare, learning)
        query.turn.granted_s, query.turn.lease = terms.began_s, None
        del self.held[query.key]
        if (machine := self.machine_of(query)) is not None:
            machine.end(query.key)
        if outcome.ran:
            query.turn.done_s = now_s
            query.turn.batches += 1
        return lease

    def _took_s(self, query: Query, lease: Lease, now_s: float) -> float:
        """Machine seconds of a batch: as its driver says, else as expected, else all seconds that it ran."""
        machine, ran_s = self.machine_of(query), lease.ran_s(now_s)
        if machine is None:
            return ran_s
        if lease.use.jobs:
            return lease.use.core_s / max(1, machine.cores)
        return min(ran_s, query.cost.batch_s(lease.admitted)) if query.cost.ready else ran_s

    # -- cores ----------------------------------------------------------------------------------

    def machine_of(self, query: Query) -> CoreUse | None:
        """How the cores of a query's driver are used; `None` where the driver does not say."""
        return self.machines.get(query.identity.driver)

    def cores_changed(self, driver: str, cores: int | None, now_s: float) -> bool:
        """A driver says how many cores it has (`None`: it has ended); returns whether that changes anything.

        Where a number of slots is given, batches count as if each had the machine for itself.
        """
        if self.slots is not None:
            return False
        known = self.machines.get(driver)
        if cores == (None if known is None else known.cores):
            return False
        if cores is None:
            self.machines.pop(driver, None)
        elif driver in self.machines:
            self.machines[driver].cores = cores
        else:
            self.machines[driver] = CoreUse(cores, now_s)
        return True

    def cores_for(self, query: Query) -> int | None:
        """Cores of all drivers, which a machine second is about; `None` if a query's driver says nothing."""
        if self.machine_of(query) is None:
            return None
        return max(1, sum(machine.cores for machine in self.machines.values()))

    def tasks(self, query: Query, reader: str, admitted: int) -> int | None:
        """Into how many tasks the rows of a reader are worth dividing; `None` where cores are not known."""
        machine, lease = self.machine_of(query), query.lease
        if machine is None or lease is None:
            return None
        cost = query.cost
        if cost.ready:
            core_s = cost.batch_s(admitted) * machine.cores
        else:
            core_s = self._unknown_core_s(query, machine, admitted)
        found = lease.use.planned[reader] = tasks_of(core_s, machine.cores, self._tuning)
        return found

    def end_job(self, query: Query, event: JobEnded, now_s: float) -> None:
        """A job of a query's batch has ended. Where the batch has ended before, its cost is learned now."""
        lease = query.lease
        late = [one.lease for one in query.costs.unsettled if one.lease.batch == event.batch is not None]
        if late:
            late[0].end_job(now_s, event.core_s, now_s - event.ready_ago_s)
            query.costs.settle()
        elif lease is not None:
            lease.end_job(now_s, event.core_s, now_s - event.ready_ago_s)
            stages, machine = query.costs.last_stages, self.machine_of(query)
            if machine is not None:
                expected_s = (lease.use.expected_s or 0.0) * machine.cores
                left_s = max(0.0, expected_s - lease.use.core_s) if lease.use.jobs < stages.jobs else 0.0
                machine.tasks_ended(query.key, lease.use.core_s, left_s)

    def queue_s(self, query: Query, now_s: float) -> float:
        """How long the tasks of a batch that is granted now are expected to wait for cores."""
        machine = self.machine_of(query)
        return 0.0 if machine is None else machine.queue_s(now_s + query.cost.before_s)

    def charged(self, ending: Sequence[Query]) -> list[Query]:
        """Queries whose running batches count as time that their classes have used already."""
        return list(self.held.values()) if self.machines else list(ending)

    def returning(self, ending: Sequence[Query]) -> list[Query]:
        """Queries whose batch is about to end, and that compete for a turn although they do not ask."""
        full = self.slots is None or len(self.held) >= self.slots
        return [query for query in ending if full and not query.flags.refused]

    def pass_time(self, now_s: float) -> dict[str, float]:
        """Tasks run up to now; returns by query the machine seconds that its batch had, as expected."""
        had: dict[str, float] = {}
        for machine in self.machines.values():
            for key, core_s in machine.pass_time(now_s).items():
                had[key] = core_s / max(1, machine.cores)
        return had

    def rests_s(self, now_s: float) -> dict[str, float]:
        """By query that runs a batch of known cost, the machine seconds that are left of the batch."""
        found = {}
        for key, query in self.held.items():
            machine, lease = self.machine_of(query), query.lease
            if lease is None or not query.cost.ready:
                continue
            if machine is None:
                found[key] = max(0.0, query.cost.batch_s(lease.admitted) - lease.ran_s(now_s))
            elif (work := machine.of(key)) is not None:
                found[key] = work.left_s / max(1, machine.cores)
        return found

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
        return 1 if self.slots is None and driver not in self.machines else self.slots

    def stop_waiting(self, query: Query, now_s: float) -> None:
        """A batch that is to run again waits no more; it comes back, or its query is gone."""
        if query.key in self._replays:
            self._replays[query.key] = now_s + self._tuning.stale_s

    def holds_back(self, query: Query) -> bool:
        """Whether a batch that was granted beside others must wait before it takes cores."""
        if query.lease is None:
            return False
        machine, most = self.machine_of(query), self._most(query.identity.driver)
        if machine is None and most is not None and len(self.held) <= most:
            return False
        if machine is not None:
            # tasks that come early fill the gaps at the ends of other batches' stages
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
        left_s = self._left_s(now_s)
        return [query for query in self.held.values() if self._ends_in_s(query, cost, left_s, now_s) <= 0.0]

    def _left_s(self, now_s: float) -> dict[str, float]:
        """By query whose batch runs on known cores, in how many seconds its last task is expected to end."""
        found: dict[str, float] = {}
        for machine in self.machines.values():
            found.update({key: ends_s - now_s for key, ends_s in machine.ends_s().items()})
        return found

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
        left_s = self._left_s(now_s)
        found = [self._ends_in_s(query, cost, left_s, now_s) for query in self.held.values()]
        for machine in self.machines.values():
            found.append(machine.frees_s() - self._tasks_begin_s(cost, now_s))
        return min((each for each in found if each > 0.0), default=math.inf)

    def _tasks_begin_s(self, cost: Early, now_s: float) -> float:
        """On the timer, when the tasks of a batch that is granted now are expected to find cores."""
        return now_s + cost.before_s + self._tuning.queue_s

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
            return any(self._has_room(each, cost, ending, now_s) for each in (*self.machines, ""))
        return self._has_room(driver, cost, ending, now_s)

    def _has_room(self, driver: str, cost: Early, ending: Sequence[Query], now_s: float) -> bool:
        machine, most = self.machines.get(driver), self._most(driver)
        mine = [q for q in self.held.values() if (self.machine_of(q) is None) == (machine is None)]
        gone = sum(q in ending for q in mine)
        if most is not None and (len(mine) - gone >= most or len(mine) > most):
            return False
        return machine is None or machine.free_at(self._tasks_begin_s(cost, now_s)) >= 1.0

    def stop_preferring(self, now_s: float) -> bool:
        """Forgets batches that were to run again and did not come back; returns whether there was one."""
        passed = [key for key, until_s in self._replays.items() if until_s <= now_s]
        for key in passed:
            del self._replays[key]
        return bool(passed)

    def replays_until_s(self) -> Iterable[float]:
        """On the timer, when batches that are to run again give way to others."""
        return self._replays.values()
