"""Random: whole batches drawn from the common buffer, THEMIS's baseline (kalyvianaki2016 7.2)."""

from __future__ import annotations

from dataclasses import dataclass

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
class RandomConfig:
    """Nothing to set."""

    def build(self, seed: int = 0) -> RandomShedder:
        return RandomShedder(self, seed)


class RandomShedder(BatchShedder):
    """Every batch has the same chance of being kept, whichever query it belongs to.

    Batches are taken in a random order until the next batch does not fit: a cluster sample of the buffer. On
    average every query keeps the same part of its rows, whatever the rows are worth.
    """

    name = "random"

    def _choose(self, observation: ShedObservation, load: FloatArray) -> ShedDecision:
        order = self.coins(observation).permutation(load.size)
        keep = keep_in_order(order, load, observation.capacity)
        rows = observation.batches.rows
        probability = float(rows[keep].sum()) / max(1.0, float(rows.sum()))
        reason = describe(observation, keep, load, "drawn at random")
        return decision(observation, keep, load, reason, keep_probability=probability)
