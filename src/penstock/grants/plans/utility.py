"""The plan that keeps the rows that are worth most."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from penstock.grants.plans.base import PlanBase
from penstock.grants.plans.coins import SCALE, row_tosses
from penstock.grants.plans.encoding import encoded
from penstock.grants.plans.protocol import Bools, Keyed, Needs, Numbers
from penstock.grants.plans.values import utilities


@dataclass(frozen=True, slots=True)
class UtilityPlan(PlanBase):
    """Keeps rows whose utility is above a level, and by coins some of the rows that are just at that level.

    Attributes:
        by: Expression in CQL that gives a row's utility.
        least: Rows with a higher utility are kept.
        row_keep: Probability that a row with a utility of just `least` is kept, in parts of `SCALE`.
        seed: Seed of the coins.
    """

    unit: ClassVar[str] = "utility"

    by: str = ""
    least: float = 0.0
    row_keep: int = SCALE
    seed: int = 0

    @property
    def needs(self) -> Needs:
        return "values"

    def keeps(
        self, stream: Keyed, partition: int, positions: Numbers, rows: Sequence[pa.RecordBatch]
    ) -> Bools | None:
        worth = utilities(rows, self.by)
        kept: Bools = worth > self.least
        at = np.flatnonzero(worth == self.least)
        kept[at] = row_tosses(self.seed, partition, positions[at]) < np.uint64(self.row_keep)
        return kept

    def to_json(self) -> dict[str, Any]:
        return {"unit": self.unit, **encoded(self, UtilityPlan(), ("row_keep", "seed", "by", "least"))}
