"""Base of most kinds of plans: they shed some rows, open every segment, and have no known chance."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

import numpy as np

from penstock.grants.plans.protocol import Bools, Drawing, Numbers, Span


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

    def fitted(self, spans: Iterable[Span]) -> Self:
        return self

    def opens(self, partition: int, first_positions: Numbers) -> Bools:
        return np.ones(first_positions.size, np.bool_)

    def kept_buckets(self, buckets: int) -> Bools | None:
        return None

    def chance(self, key_buckets: int = 0) -> float | None:
        return None

    def drawing(self, key_buckets: int = 0) -> Drawing | None:
        return None
