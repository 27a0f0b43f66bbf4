"""What the batches of a query cost now, in the unit in which classes share a machine."""

from __future__ import annotations

import math
from dataclasses import dataclass

from penstock.control.measure.cost import CostModel
from penstock.control.measure.first_batches import FirstBatches
from penstock.control.measure.work import WorkCost


@dataclass(frozen=True, slots=True)
class BatchCost:
    """What a query's next batch costs.

    The unit is the second of the whole machine: tasks of eight core seconds on sixteen cores are half of one.
    The part of a batch without tasks is none of the machine's time: other batches have the cores meanwhile.
    Where the driver does not say what tasks take, a batch counts as if it had the machine for itself.

    Attributes:
        ready: Whether the cost is known; if not, all figures are 0.
        warming: Whether the next batch is one of the first, which nothing is learned from.
        fixed_s: Machine seconds of a batch without rows.
        row_s: Machine seconds of a row.
        error: By which part of it a batch usually differs from its expected time.
        idle_s: Seconds of a batch without any task.
        before_s: Seconds from a grant until the first tasks of its batch can begin.
        stretch: How many times as long a batch takes as its work would on the cores that it uses.
        cores: Cores of the machine; 1 where a batch counts as if it had the machine for itself.
        least_task_s: How much work a task has at least, so that it is worth its start.
        is_young: Whether the cost rests on few batches and may be far off.
        first: The first batches on these cores, from which the cost is learned; `None` where a batch counts
            as if it had the machine for itself.
    """

    ready: bool
    warming: bool
    fixed_s: float
    row_s: float
    error: float
    idle_s: float = 0.0
    before_s: float = 0.0
    stretch: float = 1.0
    cores: int = 1
    least_task_s: float = 0.0
    is_young: bool = False
    first: FirstBatches | None = None

    def batch_s(self, rows: float) -> float:
        """Expected machine seconds of a batch."""
        return self.fixed_s + self.row_s * rows

    def rows_in(self, length_s: float) -> float:
        """How many rows a batch of so many machine seconds holds."""
        if self.row_s <= 0.0:
            return math.inf if length_s > self.fixed_s else 0.0
        return max(0.0, (length_s - self.fixed_s) / self.row_s)


def alone(model: CostModel) -> BatchCost:
    """The cost of batches that count as if each had the machine for itself."""
    return BatchCost(model.ready, model.warming, model.fixed_s, model.row_s, model.error)


def on_cores(work: WorkCost, cores: int) -> BatchCost:
    """The cost of batches whose tasks share the cores of a machine."""
    model, cores = work.model, max(1, cores)
    return BatchCost(
        model.ready,
        work.first.is_cold,
        model.fixed_s / cores,
        model.row_s / cores,
        model.error,
        work.idle_s,
        work.before_s,
        work.stretch,
        cores,
        model.least_task_s,
        model.is_young,
        work.first,
    )
