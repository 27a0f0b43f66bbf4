"""What the tasks of a micro-batch take: core_s = task * tasks + row * rows, learned while it runs.

The start of a task costs core seconds however few rows it has, and far more of them where the machine is
busy: then a batch in many tasks takes long whatever it holds. A model that took such time for the cost of
rows would make batches smaller, and all of their time would go into starts. So both figures are fitted anew
with every batch, by least squares with forgetting. Batches count by their relative error. Where the last
batches cannot tell the two figures apart, they stay near to what they were. For a young query, rows then
count as a little cheaper with every batch: larger batches tell what a row costs, and small ones never do.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from penstock.control.tuning import TUNING, Tuning
from penstock.vocabulary.model import FloatArray


def _two() -> FloatArray:
    return np.zeros(2)


def _square() -> FloatArray:
    return np.zeros((2, 2))


@dataclass(slots=True)
class WorkModel:
    """The core seconds of a query's batches.

    Attributes:
        tuning: Figures.
        costs_s: Core seconds of a task's start, and of a row.
        tasks: How many tasks a batch usually has.
        error: By which part of it a batch usually differs from what was expected.
        ready: Whether the costs are known.
        learned: How many batches were taken in.
    """

    tuning: Tuning = TUNING
    costs_s: FloatArray = field(default_factory=_two)
    tasks: float = 0.0
    error: float = 0.1
    ready: bool = False
    learned: int = 0
    _outliers: int = 0
    _squares: FloatArray = field(default_factory=_square)
    _products: FloatArray = field(default_factory=_two)

    @property
    def task_s(self) -> float:
        """Core seconds of the start of a task."""
        return float(self.costs_s[0])

    @property
    def row_s(self) -> float:
        """Core seconds of a row."""
        return float(self.costs_s[1])

    @property
    def fixed_s(self) -> float:
        """Core seconds of the starts of a batch's tasks, as many as it usually has."""
        return self.task_s * self.tasks

    @property
    def least_task_s(self) -> float:
        """How much work a task has at least, so that it is worth its start."""
        return max(self.tuning.task_s, self.tuning.task_overheads * self.task_s)

    @property
    def is_young(self) -> bool:
        """Whether the costs rest on few batches."""
        return self.learned <= self.tuning.work_young_batches

    def begin(self, tasks: int, task_s: float, row_s: float) -> None:
        """Starts with costs that first batches have told, each in so many tasks."""
        self.costs_s, self.tasks, self.ready = np.array([task_s, row_s]), float(tasks), True

    def learn(self, tasks: int, rows: int, core_s: float) -> None:
        """Takes in a complete batch."""
        if core_s <= 0.0 or not math.isfinite(core_s) or not tasks:
            return
        self.learned += 1
        took = np.array([float(tasks), float(rows)])
        expected_s = float(took @ self.costs_s)
        memory = self.tuning.work_memory_batches
        if expected_s > 0.0:
            self.error += (min(1.0, abs(core_s / expected_s - 1.0)) - self.error) / memory
        scale_s = self._scale_s(expected_s, core_s)
        keep = 0.5 ** (1.0 / (1.0 if self._outliers > 1 else memory))
        self._squares = keep * self._squares + np.outer(took, took) / scale_s**2
        self._products = keep * self._products + took * (core_s / scale_s**2)
        self.tasks += (tasks - self.tasks) / memory
        self._fit()

    def _scale_s(self, expected_s: float, core_s: float) -> float:
        """The time by which a batch is measured: as expected, unless it alone is far from that.

        A batch far from what was expected neither rules the fit nor is left out of it. If the next one is as
        far off, that is how things are now, and what was before is forgotten.
        """
        limit = self.tuning.work_outlier_ratio
        scale_s = min(max(expected_s, core_s / limit), core_s * limit)
        self._outliers = self._outliers + 1 if scale_s != expected_s else 0
        return expected_s if self._outliers > 1 and expected_s > 0.0 else scale_s

    def _fit(self) -> None:
        near = np.diag(np.diag(self._squares)) * self.tuning.work_stays
        hope = self.tuning.work_hope if self.is_young else 1.0
        squares, products = self._squares + near, self._products + near @ (self.costs_s * [1.0, hope])
        if squares[1, 1] <= 0.0:  # no batch had rows
            self.costs_s[0] = products[0] / squares[0, 0]
            return
        determinant = squares[0, 0] * squares[1, 1] - squares[0, 1] ** 2
        if determinant > 0.0:
            task_s = (products[0] * squares[1, 1] - products[1] * squares[0, 1]) / determinant
            task_s = min(max(task_s, 0.0), products[0] / squares[0, 0])  # at most all there is
            row_s = (products[1] - task_s * squares[0, 1]) / squares[1, 1]
            self.costs_s = np.array([task_s, max(row_s, self.tuning.work_least * self.costs_s[1])])
