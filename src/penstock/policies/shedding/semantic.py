"""Semantic: rows that are worth least in the user's own terms are shed (pham2016 6.3; fiscato2012 2.4)."""

from __future__ import annotations

import math
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
from penstock.vocabulary.errors import InvalidInputError
from penstock.vocabulary.model import FloatArray

_NONE = -1e308
"""Only the value that a plant gives to rows without a utility is as low as this."""


@dataclass(frozen=True, slots=True)
class SemanticConfig:
    """What makes a batch worth less: its key lies in a range, or, without a range, its utility is low.

    Attributes:
        shed_from: Lowest key that is shed first; `None`: no lower end.
        shed_to: Highest key that is shed first; `None`: no upper end.
        by: `range` of keys, or `utility`.
    """

    by: str = "utility"
    shed_from: float | None = None
    shed_to: float | None = None

    def __post_init__(self) -> None:
        if self.by not in ("range", "utility"):
            raise InvalidInputError(
                "semantic shedding is by 'range' or 'utility'",
                repr(self.by),
                "range of keys, or utility values",
            )
        low, high = self.bounds
        if math.isnan(low) or math.isnan(high):
            raise InvalidInputError("the ends of a range are numbers", f"{low} to {high}", "leave an end out")
        if self.by == "utility" and (self.shed_from is not None or self.shed_to is not None):
            raise InvalidInputError(
                "a range is shed by range", f"{low} to {high} by utility", "set by: range"
            )
        if self.by == "range" and math.isinf(low) and math.isinf(high):
            raise InvalidInputError(
                "a range leaves some keys out",
                f"{low} to {high}, which covers everything",
                "give shed_from or shed_to; to shed everything alike choose random",
            )
        if low > high:
            raise InvalidInputError("a range begins before it ends", f"{low} to {high}", "swap its ends")

    @property
    def bounds(self) -> tuple[float, float]:
        return (
            -math.inf if self.shed_from is None else self.shed_from,
            math.inf if self.shed_to is None else self.shed_to,
        )

    def build(self, seed: int = 0) -> SemanticShedder:
        return SemanticShedder(self, seed)


class SemanticShedder(BatchShedder):
    """Keeps batches in falling order of utility until the next does not fit; equal batches in random order.

    By range, a batch inside the range has utility 0, and a batch outside the range has utility 1. Batches
    inside are shed first, and batches outside only if that is not enough. A plant that can drop a part of a
    segment shows each key bucket of a segment as a batch.
    """

    name = "semantic"

    def _choose(self, observation: ShedObservation, load: FloatArray) -> ShedDecision:
        utility = self._utility(observation)
        tie = self.coins(observation).permutation(load.size)
        order = tie[np.argsort(-utility[tie], kind="stable")]
        keep = keep_in_order(order, load, observation.capacity)
        least = float(utility[keep].min()) if keep.any() else 0.0
        how = f"utility {least:.4g} or more" if least > _NONE else "also batches without a utility"
        return decision(observation, keep, load, describe(observation, keep, load, how))

    def _utility(self, observation: ShedObservation) -> FloatArray:
        batches = observation.batches
        if self.config.by == "range":
            if batches.key is None:
                raise InvalidInputError(
                    "shedding by range needs the key of each batch", "none", "declare the stream's key"
                )
            low, high = self.config.bounds
            outside: FloatArray = (~((batches.key >= low) & (batches.key <= high))).astype(np.float64)
            return outside
        if batches.utility is None:
            raise InvalidInputError(
                "shedding by utility needs the utility of each batch", "none", "give a utility expression"
            )
        utility = np.asarray(batches.utility)
        if utility.dtype.kind not in "biuf" or not bool(np.isfinite(utility).all()):
            wrong = utility if utility.dtype.kind not in "biuf" else utility[~np.isfinite(utility)]
            raise InvalidInputError(
                "a utility is a finite number",
                f"{wrong[0]!r} ({utility.dtype})",
                "cast the expression to a number, and say what null is worth",
            )
        return utility.astype(np.float64)
