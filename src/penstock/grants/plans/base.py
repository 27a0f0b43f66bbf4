"""What most kinds of plans share: they shed something, open every segment, and have no known chance."""

from __future__ import annotations

import numpy as np

from penstock.grants.plans.protocol import Bools, Numbers


class PlanBase:
    """Answers that a kind of plan overrides where its own differ; see `ShedPlan` for what each means."""

    __slots__ = ()

    @property
    def keeps_all(self) -> bool:
        return False

    @property
    def keeps_whole_segments(self) -> bool:
        return False

    @property
    def carries_over(self) -> bool:
        return False

    def opens(self, partition: int, first_positions: Numbers) -> Bools:
        return np.ones(first_positions.size, np.bool_)

    def chance(self, key_buckets: int = 0) -> float | None:
        return None
