"""Keys are kept or shed whole: all queries of the class keep the rows of the same keys."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from penstock.config.shed_settings import ShedSettings
from penstock.control.shed.capacity_view import CapacityView, Shown
from penstock.control.shed.strategies.base import GrantedRows, KeptRows, rows_of, shed_by_reader
from penstock.control.shed.strategies.segments import SegmentOffer, SegmentStrategy
from penstock.grants.plans import KeyPlan
from penstock.policies.shedding.base import ShedDecision


@dataclass(frozen=True, slots=True)
class KeyStrategy:
    """Shows segments, as `SegmentStrategy` does, and keeps the same part of the keys in every stream.

    Args:
        settings: What the class sheds.
    """

    settings: ShedSettings

    @property
    def may_exceed_turn(self) -> bool:
        return self.settings.traits.may_exceed_turn

    def offer(self, granted: GrantedRows, view: CapacityView) -> KeyOffer | None:
        offer = SegmentStrategy(self.settings).offer(granted, view)
        return None if offer is None else KeyOffer(offer)


@dataclass(frozen=True, slots=True, eq=False)
class KeyOffer:
    """The keys of all waiting segments.

    Attributes:
        segments: The segments.
    """

    segments: SegmentOffer

    @property
    def shown(self) -> Shown:
        return self.segments.shown

    def carry_out(self, decision: ShedDecision) -> KeptRows:
        """Keeps a part of the keys; the keys stay the same as long as the seed of the decision does."""
        if decision.unit != "key":  # all segments fit: the shedder has not chosen keys
            return self.segments.carry_out(decision)
        granted, fraction = self.segments.granted, decision.keep_probability or 0.0
        plans = {
            reader.id: KeyPlan(
                key_keep=kept_buckets(fraction, reader.stream.key_buckets), seed=decision.seed or 0
            )
            for reader in granted.query.readers.values()
        }
        shed_rows = np.multiply(rows_of(granted.segments), 1.0 - fraction, dtype=np.float64)
        shed = shed_by_reader(granted.segments, shed_rows)
        return KeptRows(plans, round(fraction * granted.cut.rows), shed, decision)


def kept_buckets(fraction: float, buckets: int) -> int:
    """How many buckets of keys are kept: at least one, because otherwise no key would ever have a result."""
    return max(1, round(fraction * buckets)) if fraction > 0 else 0
