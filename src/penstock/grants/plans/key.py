"""The plan that keeps whole keys: buckets of the key's hash."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from penstock.grants.plans.base import PlanBase
from penstock.grants.plans.coins import bucket_ranks
from penstock.grants.plans.encoding import encoded
from penstock.grants.plans.protocol import Bools, Drawing, DrawnBuckets, Keyed, Needs, Numbers
from penstock.grants.plans.values import joined
from penstock.streams.hashing import key_buckets


@dataclass(frozen=True, slots=True)
class KeyPlan(PlanBase):
    """Keeps the first `key_keep` buckets, in an order that the seed fixes.

    A higher `key_keep` keeps the same buckets and more, so that a cohort only grows or shrinks.

    Attributes:
        key_keep: How many of the stream's key buckets are kept.
        seed: Seed of the order; the same in all grants of a cohort.
    """

    unit: ClassVar[str] = "key"

    key_keep: int = 0
    seed: int = 0

    @property
    def needs(self) -> Needs:
        return "keys"

    def kept_buckets(self, buckets: int) -> Bools:
        return self.ranks(buckets) < self.key_keep

    def ranks(self, buckets: int) -> Numbers:
        """Each bucket's rank in the order."""
        return bucket_ranks(self.seed, buckets)

    def keeps(
        self, stream: Keyed, partition: int, positions: Numbers, rows: Sequence[pa.RecordBatch]
    ) -> Bools | None:
        if not rows:
            return np.zeros(0, np.bool_)
        keys = joined(rows, (stream.key_column or "",)).column(0)
        kept: Bools = self.kept_buckets(stream.key_buckets)[key_buckets(keys, stream.key_buckets)]
        return kept

    def chance(self, key_buckets: int = 0) -> float | None:
        return self.key_keep / key_buckets

    def drawing(self, key_buckets: int = 0) -> Drawing:
        return Drawing(buckets=DrawnBuckets(self.key_keep, self.ranks(key_buckets)))

    def to_json(self) -> dict[str, Any]:
        return {"unit": self.unit, **encoded(self, KeyPlan())}
