"""What a micro-batch takes of a cluster: core seconds of its tasks, and time in which none of them runs."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from statistics import median

from penstock.control.measure.cost import CostConfig, CostModel

REMEMBERED = 16
"""Batches whose time without tasks is remembered: the median of so many is no single stall."""

_CORE_SECONDS = CostConfig(first_points=2, anchor_fixed_fraction=0.1)


def _recent() -> deque[float]:
    return deque(maxlen=REMEMBERED)


@dataclass(slots=True)
class WorkCost:
    """What the batches of a query take, learned from what the driver says of their jobs.

    Attributes:
        model: Core seconds by rows.
        before: Of the last batches, seconds from the grant until the first tasks could begin.
        after: Of the last batches, all other seconds without a task.
        most_row_s: Core seconds of a row in the last batch, its fixed part shared out; 0 before the first.
    """

    model: CostModel = field(default_factory=lambda: CostModel(_CORE_SECONDS))
    before: deque[float] = field(default_factory=_recent)
    after: deque[float] = field(default_factory=_recent)
    most_row_s: float = 0.0

    @property
    def before_s(self) -> float:
        """The usual time from a grant until the first tasks can begin."""
        return median(self.before) if self.before else 0.0

    @property
    def idle_s(self) -> float:
        """The usual time of a batch in which none of its tasks runs or waits for a core."""
        return self.before_s + (median(self.after) if self.after else 0.0)

    def learn(self, rows: int, core_s: float, before_s: float, after_s: float) -> None:
        """Takes in a batch that is complete.

        Args:
            rows: Of the batch.
            core_s: Seconds of its tasks.
            before_s: From the grant until its first tasks could begin.
            after_s: All other seconds without a task.
        """
        warming = self.model.warming
        self.model.learn(rows, core_s)
        self.most_row_s = core_s / max(1, rows)
        if not warming:  # the first batches compile code, in the driver as well
            self.before.append(before_s)
            self.after.append(after_s)
