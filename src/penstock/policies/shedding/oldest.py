"""Oldest first: batches that have waited longest are shed, so that the kept rows are fresh."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from penstock.policies.shedding.base import (
    BatchShedder,
    ShedDecision,
    ShedObservation,
    decision,
    describe,
    keep_in_order,
)
from penstock.vocabulary.model import FloatArray


@dataclass(frozen=True, slots=True)
class OldestConfig:
    """Nothing to set."""

    def build(self, seed: int = 0) -> OldestShedder:
        return OldestShedder(self, seed)


class OldestShedder(BatchShedder):
    """Keeps the newest batches, by the arrival of their last row, until the next older one does not fit.

    The choice depends on time, so no row has a known chance of being kept. Results are computed from the rows
    at the end of each period.
    """

    name = "oldest"

    def _choose(self, observation: ShedObservation, load: FloatArray) -> ShedDecision:
        order = np.argsort(-observation.batches.arrival_max_s, kind="stable")
        keep = keep_in_order(order, load, observation.capacity)
        return decision(observation, keep, load, describe(observation, keep, load, "oldest shed first"))
