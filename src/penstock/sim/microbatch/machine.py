"""The machine of the micro-batch plant: what a micro-batch takes, alone or on cores that batches share.

Cores take tasks in Spark's default order: a core that is free takes the next task of the job that began
first. A task that runs is not interrupted, unless its core is lost: then it begins again on another core.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

from penstock.vocabulary.errors import InvalidInputError
from penstock.vocabulary.model import FloatArray

LEAST_FACTOR = 0.3
"""Noise never makes a batch or a task shorter than this part of its cost: times stay positive."""


def steady(now_s: float) -> float:
    """The level of a machine that is always equally fast."""
    return 1.0


@dataclass(frozen=True, slots=True)
class Machine:
    """What a micro-batch takes: level * (fixed_s + row_s * rows) * (1 + noise).

    Batches that run at once do not slow each other down. There are no cores, tasks or stages: `TaskMachine`
    has them.

    Attributes:
        fixed_s: Seconds of a batch without rows: planning, Spark's offset log, the start of tasks.
        row_s: Seconds of a row.
        noise: Standard deviation of a batch's time, as a part of it.
        level: By seconds on the timer, how many times slower the machine is then.
        jobs: Spark's jobs in a batch whose last stages the driver reports; 0 if it reports nothing.
        last_stage_fraction: Part of a batch's time that is left when the last of these stages starts.
    """

    fixed_s: float = 0.15
    row_s: float = 20e-6
    noise: float = 0.0
    level: Callable[[float], float] = steady
    jobs: int = 0
    last_stage_fraction: float = 0.0

    def took_s(self, now_s: float, rows: int, random: np.random.Generator) -> float:
        """How long a batch of so many rows takes that starts now."""
        factor = max(LEAST_FACTOR, 1.0 + self.noise * float(random.standard_normal()))
        return self.level(now_s) * (self.fixed_s + self.row_s * rows) * factor

    def capacity_per_s(self, target_s: float) -> float:
        """Rows a second of one query alone whose log is full, in batches of half the target."""
        return (target_s / 2 - self.fixed_s) / self.row_s / (target_s / 2)


@dataclass(frozen=True, slots=True)
class TaskMachine:
    """What a micro-batch takes on a cluster whose cores all batches share.

    A batch has a part without any task (the offset log and planning before its tasks, the commit after them)
    and one or two stages of tasks. Read tasks divide the rows evenly, and each costs its start.

    Attributes:
        log_s: Seconds from the grant until Spark plans the batch.
        plan_s: From then until its first tasks may begin.
        end_s: From the end of its last task until the query asks again.
        task_s: Core seconds of the start of a task.
        cold_s: Core seconds that a task takes besides where its core has had no task before: a worker starts.
        first_plan_s: Seconds that the planning of a query's first batch takes besides; half of it for the
            second batch, a quarter for the third.
        row_s: Core seconds of a row in its read task.
        shuffle_tasks: Tasks of the second stage; 0 if there is none.
        shuffle_row_s: Core seconds of a row in the second stage.
        noise: Standard deviation of a task's time, as a part of it. The cost model knows none of this.
        stragglers: Part of the tasks that take `straggles` times as long.
        straggles: See `stragglers`.
        level: By seconds on the timer, how many times slower the machine is then.
    """

    log_s: float = 0.03
    plan_s: float = 0.07
    end_s: float = 0.05
    task_s: float = 0.005
    cold_s: float = 0.0
    first_plan_s: float = 0.0
    row_s: float = 50e-6
    shuffle_tasks: int = 0
    shuffle_row_s: float = 0.0
    noise: float = 0.0
    stragglers: float = 0.0
    straggles: float = 3.0
    level: Callable[[float], float] = steady

    def stages(self, now_s: float, rows: int, tasks: int, random: np.random.Generator) -> list[FloatArray]:
        """By stage, the seconds of each task.

        Args:
            now_s: On the timer.
            rows: Of the batch.
            tasks: Read tasks; 0 for a batch that reads nothing.
            random: Of the noise.
        """
        reads = self._tasks(now_s, tasks, self.row_s * rows, random)
        reduces = self._tasks(now_s, self.shuffle_tasks, self.shuffle_row_s * rows, random)
        return [stage for stage in (reads, reduces) if stage.size]

    def _tasks(self, now_s: float, tasks: int, work_s: float, random: np.random.Generator) -> FloatArray:
        if not tasks:
            return np.empty(0)
        factors = np.maximum(LEAST_FACTOR, 1.0 + self.noise * random.standard_normal(tasks))
        factors = np.where(random.random(tasks) < self.stragglers, factors * self.straggles, factors)
        found: FloatArray = self.level(now_s) * (self.task_s + work_s / tasks) * factors
        return found


@dataclass(slots=True, eq=False)
class Stage:
    """Tasks of one batch that may run beside each other.

    Attributes:
        job: The number of the batch's job: of two stages that wait, that of the lower number goes first.
        ended: Called when the last task has ended.
        waiting: Seconds of the tasks that have not begun; the last of them begins first.
        tasks: How many tasks there are.
        running: How many of them run.
        began_s: When the first task began.
        core_s: Seconds of the tasks that have ended, each task once.
        cold_s: Seconds that a task takes besides on a core that has had no task before.
    """

    job: int
    ended: Callable[[Stage], None]
    waiting: list[float]
    tasks: int
    running: int = 0
    began_s: float = math.inf
    core_s: float = 0.0
    cold_s: float = 0.0

    @property
    def is_done(self) -> bool:
        """Whether all its tasks have ended."""
        return not self.running and not self.waiting


@dataclass(slots=True, order=True)
class _Running:
    """A task on a core; tasks that end at the same moment end in the order in which they began."""

    ends_s: float
    number: int
    seconds: float = field(compare=False)
    stage: Stage = field(compare=False)


class Cores:
    """Cores that take tasks, first come, first served.

    Args:
        count: How many there are.
        now_s: On the timer.
    """

    def __init__(self, count: int, now_s: float) -> None:
        self.count = _checked(count)
        self.used_s = 0.0
        """Seconds of all tasks so far, also of those whose core was lost."""
        self._warm = 0
        """Cores that have had a task. A task begins on such a core if one is free."""
        self._running: list[_Running] = []
        self._queue: list[tuple[int, int, Stage]] = []
        """Stages with tasks that have not begun: a heap, by job and then by when they came."""
        self._now_s, self._jobs, self._number = now_s, 0, 0

    @property
    def busy(self) -> int:
        """How many cores have a task."""
        return len(self._running)

    @property
    def due_s(self) -> float:
        """On the timer, when the next task ends; infinite if none runs."""
        return self._running[0].ends_s if self._running else math.inf

    def running(self) -> dict[int, int]:
        """By job, how many of its tasks run."""
        return dict(Counter(task.stage.job for task in self._running))

    def job(self) -> int:
        """The number of a job that begins now."""
        self._jobs += 1
        return self._jobs

    def begin(
        self,
        job: int,
        seconds: Iterable[float],
        ended: Callable[[Stage], None],
        now_s: float,
        cold_s: float = 0.0,
    ) -> Stage:
        """A job begins a stage.

        Args:
            job: Its number.
            seconds: Of each task.
            ended: Called when the last task has ended.
            now_s: On the timer.
            cold_s: Seconds that a task takes besides on a core that has had no task before.
        """
        waiting = [float(each) for each in seconds]
        if not waiting or not all(0.0 <= each < math.inf for each in waiting):
            raise InvalidInputError("a stage has tasks that end", waiting[:3], "give each its seconds")
        self.pass_time(now_s)
        stage = Stage(job, ended, waiting[::-1], len(waiting), cold_s=cold_s)
        self._wait(stage)
        self._fill()
        return stage

    def cancel(self, stage: Stage, now_s: float) -> None:
        """A batch comes to nothing: its tasks end now."""
        if stage.is_done:
            return
        self.pass_time(now_s)
        stage.waiting.clear()
        self._lose([each for each in self._running if each.stage is stage])
        self._fill()

    def resize(self, count: int, now_s: float) -> None:
        """Cores come or go. The tasks that began last are those that lose their cores."""
        self.pass_time(now_s)
        self.count = _checked(count)
        self._warm = min(self._warm, count)
        if (lost := self.busy - count) > 0:
            latest = sorted(self._running, key=lambda task: task.number)[-lost:]
            self._lose(latest)
            for task in latest:
                task.stage.waiting.append(task.seconds)
                self._wait(task.stage)
        self._fill()

    def pass_time(self, to_s: float) -> None:
        """Tasks end and others begin, up to a moment."""
        while self._running and self._running[0].ends_s <= to_s:
            task = heapq.heappop(self._running)
            self._now_s, stage = max(self._now_s, task.ends_s), task.stage
            self.used_s += task.seconds
            stage.core_s += task.seconds
            stage.running -= 1
            if stage.is_done:
                stage.ended(stage)  # may begin the batch's next stage, at this moment
            self._fill()
        self._now_s = max(self._now_s, to_s)

    def _wait(self, stage: Stage) -> None:
        self._number += 1
        heapq.heappush(self._queue, (stage.job, self._number, stage))

    def _fill(self) -> None:
        """Free cores take tasks."""
        while self._queue and self.busy < self.count:
            stage = self._queue[0][2]
            if not stage.waiting:
                heapq.heappop(self._queue)
                continue
            seconds = stage.waiting.pop()
            if self.busy >= self._warm:
                self._warm, seconds = self._warm + 1, seconds + stage.cold_s
            stage.began_s = min(stage.began_s, self._now_s)
            stage.running += 1
            self._number += 1
            heapq.heappush(self._running, _Running(self._now_s + seconds, self._number, seconds, stage))

    def _lose(self, tasks: list[_Running]) -> None:
        """Tasks end before their time."""
        lost = {task.number for task in tasks}
        for task in tasks:
            task.stage.running -= 1
            self.used_s += task.seconds - (task.ends_s - self._now_s)
        self._running = [task for task in self._running if task.number not in lost]
        heapq.heapify(self._running)


def _checked(count: int) -> int:
    if count < 0:
        raise InvalidInputError("a cluster has cores", count, "0 while all executors are gone")
    return count
