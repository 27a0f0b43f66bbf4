"""What a micro-batch takes of a cluster: core seconds of its tasks, and time in which none of them runs."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from statistics import median

from penstock.control.measure.first_batches import FirstBatches
from penstock.control.measure.work_model import WorkModel
from penstock.control.tuning import TUNING, Tuning

REMEMBERED = 16
"""Batches whose time without tasks is remembered: the median of so many is no single stall."""


def _recent() -> deque[float]:
    return deque(maxlen=REMEMBERED)


@dataclass(frozen=True, slots=True)
class Use:
    """What a batch took of the cores.

    Attributes:
        core_s: Seconds of its tasks.
        count: How many tasks there were.
        tasks: How many of them could run at once; 0 if that is not known.
        tasks_s: Seconds in which some of its tasks ran or waited for a core.
        before_s: Seconds from the grant until the first tasks could begin.
        after_s: All other seconds without a task.
    """

    core_s: float
    count: int = 1
    tasks: int = 0
    tasks_s: float = 0.0
    before_s: float = 0.0
    after_s: float = 0.0


@dataclass(slots=True)
class Spread:
    """How long tasks took, and how long they would have taken if all had run at once and been equally long.

    Tasks wait for cores that other batches use, some tasks are longer than others, and a second stage has
    other tasks than the first. Both sums forget, and long batches count more.

    Attributes:
        took_s: Of the last batches.
        alone_s: Of the same batches.
    """

    took_s: float = 0.0
    alone_s: float = 0.0

    @property
    def stretch(self) -> float:
        """How many times as long tasks take."""
        return max(1.0, self.took_s / self.alone_s) if self.alone_s else 1.0

    def learn(self, use: Use, tuning: Tuning = TUNING) -> None:
        """Takes in a batch."""
        if use.tasks and use.core_s > 0.0:
            keep = 0.5 ** (1.0 / tuning.stretch_memory_batches)
            alone_s = use.core_s / use.tasks
            self.took_s = keep * self.took_s + min(use.tasks_s, tuning.most_stretch * alone_s)
            self.alone_s = keep * self.alone_s + alone_s


@dataclass(slots=True)
class WorkCost:
    """What the batches of a query take, learned from what the driver says of their jobs.

    Attributes:
        model: Core seconds by tasks and rows.
        first: The batches before the model is ready.
        spread: How long tasks took, against their work on the cores that they could use.
        before: Of the last batches, seconds from the grant until the first tasks could begin.
        after: Of the last batches, all other seconds without a task.
    """

    model: WorkModel = field(default_factory=WorkModel)
    first: FirstBatches = field(default_factory=FirstBatches)
    spread: Spread = field(default_factory=Spread)
    before: deque[float] = field(default_factory=_recent)
    after: deque[float] = field(default_factory=_recent)

    @property
    def before_s(self) -> float:
        """The usual time from a grant until the first tasks can begin."""
        return median(self.before) if self.before else 0.0

    @property
    def idle_s(self) -> float:
        """The usual time of a batch in which none of its tasks runs or waits for a core."""
        return self.before_s + (median(self.after) if self.after else 0.0)

    @property
    def stretch(self) -> float:
        """How many times as long as their work on the cores that they can use the tasks of a batch take."""
        return self.spread.stretch

    def learn(self, rows: int, use: Use) -> None:
        """Takes in a batch that is complete."""
        if not self.first.is_cold:  # the driver, too, compiles code in the first batches
            self.before.append(use.before_s)
            self.after.append(use.after_s)
        tasks = use.tasks or use.count
        if self.model.ready:
            self.model.learn(tasks, rows, use.core_s)
            self.spread.learn(use)
            return
        figures = self.first.learn(rows, use.core_s)
        if figures is not None:
            self.model.begin(tasks, figures.fixed_s / tasks, figures.row_s)
            for point in self.first.points:
                self.model.learn(tasks, point.rows, point.core_s)
