"""The plan of a shedder that chooses whole segments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from penstock.grants.plans.base import PlanBase
from penstock.grants.plans.coins import SCALE
from penstock.grants.plans.encoding import encoded, encoded_places
from penstock.grants.plans.protocol import Bools, Drawing, DrawnSegments, Keyed, Needs, Numbers

Places = Mapping[int, tuple[int, ...]]
"""By partition, first positions of segments."""


def opens_chosen(chosen: Places, partition: int, first_positions: Numbers) -> Bools:
    """Which of the segments with these first positions were chosen."""
    return np.isin(first_positions, np.array(chosen.get(partition, ()), np.int64))


@dataclass(frozen=True, slots=True)
class ChosenPlan(PlanBase):
    """Keeps the segments that a shedder chose.

    Attributes:
        chosen: First positions of the kept segments.
        drawn: Fraction of the rows that is kept, in parts of `SCALE`, if coins chose the segments; else 0.
    """

    unit: ClassVar[str] = "chosen"

    chosen: Places = field(default_factory=dict)
    drawn: int = 0

    @property
    def needs(self) -> Needs:
        return "places"

    @property
    def keeps_whole_segments(self) -> bool:
        return True

    def opens(self, partition: int, first_positions: Numbers) -> Bools:
        return opens_chosen(self.chosen, partition, first_positions)

    def keeps(
        self, stream: Keyed, partition: int, positions: Numbers, rows: Sequence[pa.RecordBatch]
    ) -> Bools | None:
        return None

    def chance(self, key_buckets: int = 0) -> float | None:
        return self.drawn / SCALE if self.drawn else None

    def drawing(self, key_buckets: int = 0) -> Drawing:
        if not self.drawn:  # the shedder's choice was certain: the kept segments stand for no others
            return Drawing(segments=DrawnSegments(chance=1.0))
        return Drawing(segments=DrawnSegments(self.drawn / SCALE, self.drawn / SCALE))

    def to_json(self) -> dict[str, Any]:
        return {"unit": self.unit, **encoded(self, ChosenPlan()), **encoded_places(self.chosen)}
