"""Base of most kinds of plans: they shed some rows, open every segment, and have no known chance."""

from __future__ import annotations

import numpy as np

from penstock.grants.plans.protocol import Bools, Numbers


class PlanBase:
    """Default answers, which a kind of plan overrides; `ShedPlan` says what each method means."""

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
