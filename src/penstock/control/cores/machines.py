"""The cores of drivers: which batches use them, and whether another batch may begin beside those that run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.control.cores.core_use import CoreUse, Work
from penstock.control.cores.width import tasks_of
from penstock.control.state.lease import Lease
from penstock.control.state.query import Query
from penstock.control.tuning import TUNING, Tuning


@dataclass(frozen=True, slots=True)
class Passed:
    """What batches had of the cores in a while.

    Attributes:
        had_s: By query, machine seconds, as expected.
        overdue_s: The same for batches that should have ended before.
    """

    had_s: dict[str, float] = field(default_factory=dict)
    overdue_s: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Job:
    """A job of a batch that has ended.

    Attributes:
        batch: Spark's number of the micro-batch; `None` if it is not known.
        tasks: How many tasks the job had.
        core_s: Seconds of these tasks.
        ready_s: On the timer, when the first of them could begin.
    """

    batch: int | None
    tasks: int
    core_s: float
    ready_s: float


class Machines:
    """By driver that says how many cores it has, how these are used.

    Args:
        tuning: Figures.
    """

    def __init__(self, tuning: Tuning = TUNING) -> None:
        self.by_driver: dict[str, CoreUse] = {}
        self._tuning = tuning

    def of(self, query: Query) -> CoreUse | None:
        """How the cores of a query's driver are used; `None` where the driver does not say."""
        return self.by_driver.get(query.identity.driver)

    def cores_changed(self, driver: str, cores: int | None, now_s: float) -> bool:
        """A driver says how many cores it has (`None`: it has ended); returns whether it is news."""
        known = self.by_driver.get(driver)
        if cores == (None if known is None else known.cores):
            return False
        if cores is None:
            del self.by_driver[driver]
        elif known is not None:
            known.cores = cores
        else:
            self.by_driver[driver] = CoreUse(cores, now_s)
        return True

    def cores_for(self, query: Query) -> int | None:
        """Cores of all drivers, which a machine second is about; `None` if a query's driver says nothing."""
        if self.of(query) is None:
            return None
        return max(1, sum(machine.cores for machine in self.by_driver.values()))

    # -- a batch --------------------------------------------------------------------------------

    def begin(self, query: Query, lease: Lease) -> None:
        """A batch begins. How many rows it has is only known once Spark plans it."""
        if (machine := self.of(query)) is None:
            return
        terms = lease.terms
        rows = float(terms.arrival_rows.sum()) * (terms.plan.chance() or 1.0)
        work_s = min(terms.planned_s, query.cost.batch_s(rows))
        machine.begin(query.key, self._work(query, machine, lease, terms.began_s, work_s, rows))

    def plan(self, query: Query, lease: Lease, now_s: float) -> None:
        """The tasks of a batch come soon: it is known how many rows it has."""
        if (machine := self.of(query)) is None:
            return
        began_s, work_s = now_s - lease.ran_s(now_s), query.cost.batch_s(lease.admitted)
        machine.change(query.key, self._work(query, machine, lease, began_s, work_s, lease.admitted))

    def _work(
        self, query: Query, machine: CoreUse, lease: Lease, began_s: float, work_s: float, rows: float
    ) -> Work:
        """The tasks of a batch, as far as is known."""
        lease.use.expected_s = work_s
        core_s = work_s * machine.cores if query.cost.ready else self._unknown_core_s(query, rows)
        return Work(began_s + query.cost.before_s, core_s, self._tasks(query, lease, machine, core_s))

    def _unknown_core_s(self, query: Query, rows: float) -> float:
        """What the tasks of a batch may take whose cost is not known yet."""
        row_s = query.costs.work.first.least_row_s
        return max(self._tuning.unknown_core_s, row_s * rows if math.isfinite(row_s) else 0.0)

    def _tasks(self, query: Query, lease: Lease, machine: CoreUse, core_s: float) -> int:
        cores = machine.cores - round(sum(machine.overdue().values()))  # a task more would wait for a core
        if not query.cost.ready:
            return max(1, min(cores, self._tuning.learning_tasks))
        return tasks_of(core_s, cores, max(lease.terms.task_s, query.costs.work.model.least_task_s))

    def tasks(self, query: Query, reader: str, rows: int) -> int | None:
        """Into how many tasks the rows of a reader are worth dividing; `None` where cores are not known."""
        machine, lease = self.of(query), query.lease
        if machine is None or lease is None:
            return None
        cost = query.cost
        core_s = cost.batch_s(rows) * machine.cores if cost.ready else self._unknown_core_s(query, rows)
        found = lease.use.planned[reader] = self._tasks(query, lease, machine, core_s)
        return found

    def end_job(self, query: Query, job: Job, now_s: float) -> None:
        """A job of a query's batch has ended. Where the batch has ended before, its cost is learned now."""
        lease = query.lease
        late = [one.lease for one in query.costs.unsettled if one.lease.batch == job.batch is not None]
        if late:
            late[0].end_job(now_s, job.tasks, job.core_s, job.ready_s)
            query.costs.settle()
        elif lease is not None:
            lease.end_job(now_s, job.tasks, job.core_s, job.ready_s)
            stages, machine = query.costs.last_stages, self.of(query)
            if machine is not None:
                expected_s = (lease.use.expected_s or 0.0) * machine.cores
                left_s = max(0.0, expected_s - lease.use.core_s) if lease.use.jobs < stages.jobs else 0.0
                machine.tasks_ended(query.key, lease.use.core_s, left_s)

    def end(self, query: Query, lease: Lease, now_s: float) -> float:
        """A batch is over. Returns its machine seconds: as its driver says, else as expected."""
        machine, ran_s = self.of(query), lease.ran_s(now_s)
        if machine is None:
            return ran_s
        had_s = self.had_s(query)
        machine.end(query.key)
        if lease.use.jobs:
            return lease.use.core_s / max(1, machine.cores)
        return max(had_s, min(ran_s, query.cost.batch_s(lease.admitted))) if query.cost.ready else ran_s

    # -- time -----------------------------------------------------------------------------------

    def pass_time(self, now_s: float) -> Passed:
        """Tasks run up to now."""
        passed = Passed()
        for machine in self.by_driver.values():
            overdue = machine.overdue()
            for key, core_s in machine.pass_time(now_s).items():
                passed.had_s[key] = core_s / max(1, machine.cores)
                if key in overdue:
                    passed.overdue_s[key] = passed.had_s[key]
        return passed

    def had_s(self, query: Query) -> float:
        """The machine seconds that a query's batch had so far, as expected."""
        machine = self.of(query)
        work = None if machine is None else machine.of(query.key)
        return 0.0 if machine is None or work is None else work.had_s / max(1, machine.cores)

    def seen(self, driver: str, running: Mapping[str, int]) -> bool:
        """A driver says how many tasks its batches have on cores now; returns whether that changes anything.

        Args:
            driver: The driver.
            running: By query, how many tasks; a query without is missing.
        """
        machine = self.by_driver.get(driver)
        return machine is not None and machine.seen(running)

    def tasks_on_cores(self, query: Query) -> int | None:
        """How many tasks of a query's batch held cores when its driver last said so; `None` if unknown."""
        machine = self.of(query)
        work = None if machine is None else machine.of(query.key)
        return None if work is None else work.seen

    def rest_s(self, query: Query) -> float | None:
        """The machine seconds that are left of a query's batch; `None` if it runs on no known cores."""
        machine = self.of(query)
        work = None if machine is None else machine.of(query.key)
        return None if machine is None or work is None else work.left_s / max(1, machine.cores)

    def left_s(self, now_s: float) -> Mapping[str, float]:
        """By query whose batch runs on known cores, in how many seconds its last task is expected to end."""
        found: dict[str, float] = {}
        for machine in self.by_driver.values():
            found.update({key: ends_s - now_s for key, ends_s in machine.ends_s().items()})
        return found

    # -- room for another batch -----------------------------------------------------------------

    def has_room(self, driver: str, before_s: float, now_s: float) -> bool:
        """Whether the tasks of a batch that is granted now would find a core.

        Args:
            driver: Whose cores.
            before_s: From the grant until its first tasks can begin.
            now_s: On the timer.
        """
        machine = self.by_driver.get(driver)
        return machine is None or machine.free_at(self._tasks_begin_s(before_s, now_s)) >= 1.0

    def frees_in_s(self, before_s: float, now_s: float) -> list[float]:
        """By machine, in how many seconds a batch may be granted so that its tasks find a core."""
        begin_s = self._tasks_begin_s(before_s, now_s)
        return [machine.frees_s() - begin_s for machine in self.by_driver.values()]

    def _tasks_begin_s(self, before_s: float, now_s: float) -> float:
        return now_s + before_s + self._tuning.queue_s
