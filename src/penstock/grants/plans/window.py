"""The plan that keeps whole windows of rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from penstock.grants.plans.base import PlanBase
from penstock.grants.plans.chosen import Places, opens_chosen
from penstock.grants.plans.encoding import encoded, encoded_places
from penstock.grants.plans.protocol import Bools, Keyed, Needs, Numbers
from penstock.grants.plans.values import window_numbers


@dataclass(frozen=True, slots=True)
class WindowPlan(PlanBase):
    """Keeps rows of the windows that were chosen.

    Attributes:
        by: The column with a row's time.
        size_us: Length of a window.
        decided: The highest window number that was decided about.
        windows: Numbers of the kept windows: time / size, rounded down.
        chosen: First positions of the segments with kept rows.
    """

    unit: ClassVar[str] = "window"

    by: str = ""
    size_us: int = 0
    decided: int = 0
    windows: tuple[int, ...] = ()
    chosen: Places = field(default_factory=dict)

    @property
    def needs(self) -> Needs:
        return "values"

    def opens(self, partition: int, first_positions: Numbers) -> Bools:
        return opens_chosen(self.chosen, partition, first_positions)

    def keeps(
        self, stream: Keyed, partition: int, positions: Numbers, rows: Sequence[pa.RecordBatch]
    ) -> Bools | None:
        return np.isin(window_numbers(rows, self.by, self.size_us), np.array(self.windows, np.int64))

    @property
    def carries_over(self) -> bool:
        return True

    def to_json(self) -> dict[str, Any]:
        plain = encoded(self, WindowPlan(), ("by", "size_us", "decided"))
        windows = {"windows": list(self.windows)} if self.windows else {}
        return {"unit": self.unit, **plain, **windows, **encoded_places(self.chosen)}
