"""The seam between shedders and plants: headers of waiting batches, how much may be kept, which are kept.

In each control period, a shedder decides for a whole class at once about the waiting batches of all queries.
A batch is the smallest part that a plant can drop: a segment of the log, a batch in a node's input buffer, or
one key bucket of either. A shedder sees headers only, as one array a field; a dropped batch is never decoded.
The load manager says how much may be kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

import numpy as np

from penstock.policies.quality.sic import BoolArray, IntArray
from penstock.vocabulary.errors import InvalidInputError
from penstock.vocabulary.model import FloatArray

Unit = Literal["row", "segment", "key"]
"""The smallest part that is kept or dropped, as in a grant's plan."""

_ROUNDING = 1.0 + 1e-12
"""A batch also fits if it exceeds the capacity only by the rounding of a sum."""


@dataclass(frozen=True, slots=True, eq=False)
class WaitingBatches:
    """Headers of waiting batches, one array a field, in order of arrival.

    Attributes:
        query: The query that each batch belongs to, as an index into the arrays by query.
        rows: How many rows each batch has; 0 for an empty batch that only carries SIC.
        sic: The SIC of all rows of each batch together.
        arrival_min_s: When the first row of each batch arrived.
        arrival_max_s: When the last row of each batch arrived.
        window: Number of the query's window that each batch belongs to; for `window`.
        key: Key of the rows of each batch, or number of their key bucket; for `semantic` by range.
        utility: What each batch is worth in the user's own terms; for `semantic` by utility.
    """

    query: IntArray
    rows: IntArray
    sic: FloatArray
    arrival_min_s: FloatArray
    arrival_max_s: FloatArray
    window: IntArray | None = None
    key: FloatArray | None = None
    utility: FloatArray | None = None

    def __post_init__(self) -> None:
        for name in ("rows", "sic", "arrival_min_s", "arrival_max_s", "window", "key", "utility"):
            array = getattr(self, name)
            if array is not None and array.size != self.query.size:
                raise InvalidInputError(
                    f"waiting batches have one {name} each",
                    f"{array.size} for {self.query.size} batches",
                    "give arrays of one length",
                )

        if self.size and not self.sic.min() >= 0:
            raise InvalidInputError(
                "the SIC of a batch is 0 or more", self.sic.min(), "the sum of the SIC of its rows"
            )

    @property
    def size(self) -> int:
        """Number of batches."""
        return int(self.query.size)


@dataclass(frozen=True, slots=True, eq=False)
class ShedObservation:
    """What a shedder may know when it decides.

    Attributes:
        id: Number of the decision; with the shedder's seed it fixes every coin.
        now_s: The moment.
        batches: The waiting batches.
        reported_sic: By query, the SIC that its coordinator last reported; NaN if nothing is known yet.
        admitted_sic: By query, the SIC that was admitted here and cannot be in that report yet.
        capacity: How much may be kept until the next decision: rows, or CPU seconds if costs are given.
        cost_per_row_s: By query, the CPU seconds that a row costs; `None` if all rows cost the same.
    """

    id: int
    now_s: float
    batches: WaitingBatches
    reported_sic: FloatArray
    admitted_sic: FloatArray
    capacity: float
    cost_per_row_s: FloatArray | None = None

    def __post_init__(self) -> None:
        if not self.capacity >= 0:
            raise InvalidInputError("capacity is 0 or more", self.capacity, "rows, or CPU seconds")
        for name in ("admitted_sic", "cost_per_row_s"):
            array = getattr(self, name)
            if array is not None and array.size != self.queries:
                raise InvalidInputError(
                    f"queries have one {name} each",
                    f"{array.size} for {self.queries} queries",
                    "arrays by query have the length of reported_sic",
                )
        if self.batches.size and not 0 <= self.batches.query.min() <= self.batches.query.max() < self.queries:
            raise InvalidInputError(
                f"a batch belongs to one of the {self.queries} queries",
                f"query {self.batches.query.min()} to {self.batches.query.max()}",
                "number them from 0",
            )

    @property
    def queries(self) -> int:
        """Number of queries."""
        return int(self.reported_sic.size)

    @property
    def load(self) -> FloatArray:
        """What each batch takes of the capacity."""
        rows = self.batches.rows.astype(np.float64)
        return rows if self.cost_per_row_s is None else rows * self.cost_per_row_s[self.batches.query]


@dataclass(frozen=True, slots=True, eq=False)
class ShedDecision:
    """Which of the waiting batches are kept.

    Attributes:
        observation_id: The number of the observation that the decision answers.
        keep: Which batches are kept, wholly or in part.
        keep_fraction: Part of each batch's rows that is kept, where a shedder samples inside batches.
        unit: The smallest part that is kept or dropped.
        reason: Why the shedder decided so.
        expected_sic: By query, the SIC that should follow from the decision.
        kept_load: How much is kept, in the unit of the capacity.
        keep_probability: The chance with which each row was kept, if it is known and the same for all rows:
            an estimate with an interval needs it.
        seed: The seed of the coins that the plant tosses inside batches.
    """

    observation_id: int
    keep: BoolArray
    reason: str
    expected_sic: FloatArray
    kept_load: float
    unit: Unit = "segment"
    keep_fraction: FloatArray | None = None
    keep_probability: float | None = None
    seed: int | None = None


class Shedder(Protocol):
    """Decides which waiting batches are kept. The same observation gives the same decision."""

    @property
    def name(self) -> str:
        """What a configuration calls the shedder."""
        ...

    def decide(self, observation: ShedObservation) -> ShedDecision:
        """Which of the waiting batches are kept, so that they fit the capacity."""
        ...


class BatchShedder:
    """Base of the shedders: the seed of their coins, and the case in which nothing needs to be shed."""

    name: ClassVar[str]

    def __init__(self, config: Any, seed: int = 0) -> None:
        self.config, self.seed = config, seed

    def decide(self, observation: ShedObservation) -> ShedDecision:
        """Which of the waiting batches are kept; all of them if they fit the capacity."""
        load = observation.load
        offered = float(load.sum())
        if offered <= observation.capacity * _ROUNDING:
            keep = np.ones(load.size, np.bool_)
            return decision(observation, keep, load, f"all of {offered:.4g} fits", keep_probability=1.0)
        return self._choose(observation, load)

    def _choose(self, observation: ShedObservation, load: FloatArray) -> ShedDecision:
        raise NotImplementedError

    def coins(self, observation: ShedObservation) -> np.random.Generator:
        """Coins that the seed and the observation fix, so that a replay decides alike."""
        return np.random.default_rng((self.seed, observation.id))


def projected_sic(observation: ShedObservation, less_buffer: bool = True) -> FloatArray:
    """By query, its SIC if no waiting batch were kept (kalyvianaki2016 section 6).

        projected = reported_sic - SIC of its waiting batches + admitted_sic

    A query on which no coordinator has reported yet begins at `admitted_sic`, because there is no report from
    which the waiting batches could be subtracted.
    """
    known = ~np.isnan(observation.reported_sic)
    reported = np.where(known, observation.reported_sic, 0.0)
    if less_buffer:
        batches = observation.batches
        buffered = np.bincount(batches.query, weights=batches.sic, minlength=observation.queries)
        reported -= np.where(known, buffered, 0.0)
    result: FloatArray = reported + observation.admitted_sic
    return result


def decision(
    observation: ShedObservation,
    keep: BoolArray,
    load: FloatArray,
    reason: str,
    keep_fraction: FloatArray | None = None,
    **details: Any,
) -> ShedDecision:
    """Makes a decision, with the effect that it should have."""
    part = keep if keep_fraction is None else keep_fraction
    batches = observation.batches
    kept_sic = np.bincount(batches.query, weights=batches.sic * part, minlength=observation.queries)
    expected = np.clip(projected_sic(observation) + kept_sic, 0.0, 1.0)
    kept_load = float(load @ part)
    return ShedDecision(
        observation.id, keep, reason, expected, kept_load, keep_fraction=keep_fraction, **details
    )


def fitting(order: IntArray, load: FloatArray, capacity: float) -> int:
    """How many of the batches, in an order of preference, are kept until the next one does not fit.

    The first batch is kept however large it is, if there is any capacity. Otherwise a batch larger than a
    period's capacity would stop its query, or all queries, for ever.
    """
    if order.size == 0 or capacity <= 0:
        return 0
    upto = np.cumsum(load[order])
    first = int(np.searchsorted(upto, 0.0, side="right")) + 1  # after the batches that cost nothing
    return max(first, int(np.searchsorted(upto, capacity * _ROUNDING, side="right")))


def keep_in_order(order: IntArray, load: FloatArray, capacity: float) -> BoolArray:
    """Keeps whole batches in an order of preference while they fit, and all batches that cost nothing."""
    keep = load <= 0
    keep[order[: fitting(order, load, capacity)]] = True
    return keep


def describe(observation: ShedObservation, keep: BoolArray, load: FloatArray, how: str) -> str:
    """The reason of a decision, for shedders that drop whole batches."""
    return (
        f"{float(load.sum()):.4g} waits for {observation.capacity:.4g}: "
        f"{int(keep.sum())} of {keep.size} batches kept, {how}"
    )
