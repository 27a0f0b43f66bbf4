"""The machine of the micro-batch plant: how long a micro-batch takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

LEAST_FACTOR = 0.3
"""Noise never makes a batch shorter than this part of its cost: times stay positive."""


def steady(now_s: float) -> float:
    """The level of a machine that is always equally fast."""
    return 1.0


@dataclass(frozen=True, slots=True)
class Machine:
    """What a micro-batch takes: level * (fixed_s + row_s * rows) * (1 + noise).

    Batches that run at once do not slow each other down. There are no cores, tasks or stages.

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
