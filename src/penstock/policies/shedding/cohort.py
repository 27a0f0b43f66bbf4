"""Cohort: keep all rows of some keys, the same keys in every stream, so that joins survive."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from penstock.policies.shedding.base import BatchShedder, ShedDecision, ShedObservation, decision
from penstock.vocabulary.errors import InvalidInputError
from penstock.vocabulary.model import FloatArray


@dataclass(frozen=True, slots=True)
class CohortConfig:
    """Settings of the cohort.

    Attributes:
        buckets: Buckets of the keys' hash; the cohort is a whole number of them.
    """

    buckets: int = 256

    def __post_init__(self) -> None:
        if self.buckets < 2:
            raise InvalidInputError(
                "a cohort needs two buckets of keys at the least", self.buckets, "256 is usual"
            )

    def build(self, seed: int = 0) -> CohortShedder:
        return CohortShedder(self, seed)


class CohortShedder(BatchShedder):
    """Keeps the same part of the keys for all queries of the class: keep = capacity / load in whole buckets.

    The plant keeps the first buckets in an order that the seed fixes (a grant's plan by key). The seed stays
    the same, so a smaller cohort is part of a larger cohort, and both sides of a join keep the same keys. The
    worth of a key plays no part. Expected SIC and load are computed as if all keys had equally many rows.
    """

    name = "cohort"

    def _choose(self, observation: ShedObservation, load: FloatArray) -> ShedDecision:
        buckets = self.config.buckets
        share = observation.capacity / float(load.sum())
        kept = min(buckets, max(0 if observation.capacity <= 0 else 1, int(share * buckets)))
        fraction = np.where(load > 0, kept / buckets, 1.0)
        return decision(
            observation,
            fraction > 0,
            load,
            f"{float(load.sum()):.4g} waits for {observation.capacity:.4g}: "
            f"keys of {kept} of {buckets} buckets kept",
            keep_fraction=fraction,
            unit="key",
            keep_probability=kept / buckets,
            seed=self.seed,
        )
