"""Window drop: a window is kept whole or not at all (Tatbul and Zdonik 2006; fiscato2012 2.4)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from penstock.policies.quality.sic import IntArray
from penstock.policies.shedding.base import (
    BatchShedder,
    ShedDecision,
    ShedObservation,
    decision,
    describe,
    fitting,
)
from penstock.vocabulary.errors import InvalidInputError
from penstock.vocabulary.mixing import MASK, STEP, mixed
from penstock.vocabulary.model import FloatArray


@dataclass(frozen=True, slots=True)
class WindowConfig:
    """Nothing to set."""

    def build(self, seed: int = 0) -> WindowShedder:
        return WindowShedder(self, seed)


class WindowShedder(BatchShedder):
    """Keeps or drops whole windows: there are fewer answers, and an aggregate over a kept window is exact.

    Windows are taken in an order that a hash of (seed, query, window) fixes, until the waiting batches of the
    next window do not fit. The hash does not change. If batches of a window wait in two periods, the window
    is therefore, load permitting, kept in both periods or dropped in both.
    """

    name = "window"

    def _choose(self, observation: ShedObservation, load: FloatArray) -> ShedDecision:
        batches = observation.batches
        if batches.window is None:
            raise InvalidInputError(
                "shedding by window needs the window of each batch",
                "none",
                "choose random, or say the windows",
            )
        whole = batches.query * np.int64(1 << 40) + batches.window
        found, index = np.unique(whole, return_inverse=True)
        window_load: FloatArray = np.bincount(index, weights=load, minlength=found.size).astype(np.float64)
        order = np.argsort(_hashed(found, self.seed), kind="stable")
        kept = window_load <= 0
        kept[order[: fitting(order, window_load, observation.capacity)]] = True
        keep = kept[index]
        how = f"{int(kept.sum())} of {found.size} windows whole"
        return decision(observation, keep, load, describe(observation, keep, load, how))


def _hashed(numbers: IntArray, seed: int) -> np.ndarray:
    """Hashes numbers with a salted finaliser of splitmix64."""
    with np.errstate(over="ignore"):
        salt = np.uint64((seed * 0xD1B54A32D192ED03) & MASK)
        return mixed((numbers.astype(np.uint64) + np.uint64(1)) * np.uint64(STEP) + salt)
