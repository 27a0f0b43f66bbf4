"""What a micro-batch costs: level * (fixed + row * rows), learned while it runs.

At a steady load the fixed and the per-row part cannot be told apart, so they are fitted slowly and anchored
by the small batches of the warm-up; a quick `level` follows the machine's drift, which moves both. A batch
that took far longer than expected counts little unless the next ones agree.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from penstock.vocabulary.errors import InvalidInputError, require_positive


@dataclass(frozen=True, slots=True)
class CostConfig:
    """How the model learns.

    Attributes:
        warm_up_batches: First batches of a query that are not learned from: they compile code.
        shape_memory_batches: Batches after which the split into fixed and per-row cost is half forgotten.
        level_memory_batches: The same for the level.
        anchor_batches: Weight of the anchored fixed cost, in batches.
        outlier_ratio: A batch this many times slower or faster than expected is an outlier, and is clipped.
        outlier_repeats: This many outliers in a row count as a change of the machine.
        told_apart_ratio: The effect of rows is clear once a batch took this many times the shortest one.
        first_points: Most batches after the warm-up that the model waits for a clear effect of rows on the
            time. Then the model starts with the batches that it has seen.
        first_fixed_fraction: The fixed cost is at first at most this part of the largest batch. If rows seem
            to cost nothing, a batch can have any number of them.
        anchor_growth: The time of the shortest batch grows by this factor at every batch. It is slowly
            forgotten, because what a start costs may rise.
        least_fixed_fraction: The fixed cost is at least this part of the shortest batch, whatever a fit says.
    """

    warm_up_batches: int = 3
    shape_memory_batches: float = 40.0
    level_memory_batches: float = 3.0
    anchor_batches: float = 8.0
    outlier_ratio: float = 1.6
    outlier_repeats: int = 2
    told_apart_ratio: float = 1.5
    first_points: int = 6
    first_fixed_fraction: float = 0.9
    anchor_growth: float = 1.005
    least_fixed_fraction: float = 0.02

    def __post_init__(self) -> None:
        for name in ("shape_memory_batches", "level_memory_batches", "anchor_batches"):
            require_positive(name, getattr(self, name), "in batches")
        if not self.outlier_ratio > 1.0:
            raise InvalidInputError("outlier_ratio is above 1", self.outlier_ratio, "1.6 is usual")


@dataclass(slots=True)
class Sums:
    """Sums of least squares with forgetting, over batches: weight, rows, rows squared, time, rows x time."""

    weight: float = 0.0
    rows: float = 0.0
    rows2: float = 0.0
    time: float = 0.0
    rows_time: float = 0.0


@dataclass(slots=True)
class CostState:
    """The state of a cost model, as JSON values. A control plane that restarts takes the state over."""

    seen: int = 0
    """Number of batches, the warm-up included."""
    fixed_s: float | None = None
    row_s: float | None = None
    level: float = 1.0
    anchor_s: float | None = None
    """Shortest time of a small batch: what a micro-batch costs without rows."""
    spread: float = 0.1
    """Mean relative deviation of a batch from what was expected."""
    outliers: int = 0
    """Number of outliers in a row in one direction; negative if the batches were faster than expected."""
    updates: int = 0
    """Number of batches that the model has learned from since it was ready."""
    points: int = 0
    """Number of batches between the warm-up and the time when the model was ready."""
    largest_rows: int = 0
    """Rows of the largest of these batches."""
    largest_s: float = 0.0
    """Time of the largest of these batches."""
    sums: Sums = field(default_factory=Sums)


class CostModel:
    """Batch time as a function of rows, for one query on one machine."""

    def __init__(self, config: CostConfig | None = None) -> None:
        self.config = config or CostConfig()
        self.state = CostState()

    @property
    def warming(self) -> bool:
        """Whether the next batch is one of the warm-up."""
        return self.state.seen < self.config.warm_up_batches

    @property
    def ready(self) -> bool:
        """Whether the warm-up is over and a batch of useful size was seen."""
        return self.state.fixed_s is not None

    @property
    def fixed_s(self) -> float:
        return self.state.level * (self.state.fixed_s or 0.0)

    @property
    def row_s(self) -> float:
        return self.state.level * (self.state.row_s or 0.0)

    @property
    def error(self) -> float:
        """Part of its expected time by which a batch usually differs from that time."""
        return self.state.spread

    def batch_s(self, rows: float) -> float:
        """Returns the expected time of a batch."""
        return self.fixed_s + self.row_s * rows

    def learn(self, rows: int, took_s: float) -> None:
        """Learns from a complete batch."""
        state, config = self.state, self.config
        state.seen += 1
        if took_s <= 0.0 or not math.isfinite(took_s):
            return
        if state.seen <= config.warm_up_batches:
            return
        if not self.ready:
            self._first(rows, took_s)
            return
        expected_s = self.batch_s(rows)
        ratio = self._robust(took_s / expected_s)
        state.spread += (abs(ratio - 1.0) - state.spread) / (2 * config.level_memory_batches)
        # the first batches after the warm-up say more than a guess from small ones: they move the level fully
        state.updates += 1
        state.level *= ratio ** max(1.0 / config.level_memory_batches, 1.0 / (1 + state.updates))
        self._anchor(rows, took_s)
        # the shape is fitted to times at the level of the day, or drift would pass for a cost of rows
        self._fit(rows, expected_s * ratio / state.level)

    def _robust(self, ratio: float) -> float:
        """Returns the ratio to learn from. An outlier counts little unless the next batches agree."""
        state, config = self.state, self.config
        limit = config.outlier_ratio
        if 1.0 / limit <= ratio <= limit:
            state.outliers = 0
            return ratio
        sign = 1 if ratio > 1.0 else -1
        state.outliers = state.outliers + sign if state.outliers * sign > 0 else sign
        if abs(state.outliers) >= config.outlier_repeats:
            return min(max(ratio, 1.0 / limit**2), limit**2)
        return math.sqrt(limit if sign > 0 else 1.0 / limit)

    def _first(self, rows: int, took_s: float) -> None:
        """Learns from the first batches after the warm-up.

        The model is ready once the time of a larger batch shows the effect of rows, or after `first_points`
        batches.
        """
        state, config = self.state, self.config
        state.anchor_s = took_s if state.anchor_s is None else min(state.anchor_s, took_s)
        state.points += 1
        state.largest_rows, state.largest_s = max(
            (state.largest_rows, state.largest_s), (rows, took_s), key=lambda point: point[0]
        )
        told_apart = state.largest_s >= config.told_apart_ratio * state.anchor_s and state.points >= 2
        if state.largest_rows and (told_apart or state.points >= config.first_points):
            state.fixed_s = min(state.anchor_s, config.first_fixed_fraction * state.largest_s)
            state.row_s = (state.largest_s - state.fixed_s) / state.largest_rows
            self._fit(state.largest_rows, state.largest_s)

    def _anchor(self, rows: int, took_s: float) -> None:
        """Bounds the fixed cost by the shortest batch. The bound is slowly forgotten."""
        state = self.state
        at_level_s = took_s / state.level
        if state.anchor_s is None:
            state.anchor_s = at_level_s
        state.anchor_s = min(state.anchor_s * self.config.anchor_growth, at_level_s)

    def _fit(self, rows: int, time_s: float) -> None:
        """Fits both costs by weighted least squares with forgetting. An anchor draws the fixed cost."""
        state, config = self.state, self.config
        keep, sums = 0.5 ** (1.0 / config.shape_memory_batches), state.sums
        sums.weight = keep * sums.weight + 1.0
        sums.rows = keep * sums.rows + rows
        sums.rows2 = keep * sums.rows2 + rows * rows
        sums.time = keep * sums.time + time_s
        sums.rows_time = keep * sums.rows_time + rows * time_s
        assert state.fixed_s is not None
        prior = config.anchor_batches
        count, time = sums.weight + prior, sums.time + prior * state.fixed_s
        determinant = count * sums.rows2 - sums.rows**2
        if determinant <= 1e-9 * max(1.0, count * sums.rows2):
            return
        row_s = (count * sums.rows_time - sums.rows * time) / determinant
        fixed_s = (time - row_s * sums.rows) / count
        highest_s = state.anchor_s if state.anchor_s is not None else time_s
        fixed_s = min(max(fixed_s, config.least_fixed_fraction * highest_s), highest_s)
        row_s = (sums.time - fixed_s * sums.weight) / sums.rows if sums.rows > 0 else row_s
        if row_s > 0.0:
            state.fixed_s, state.row_s = fixed_s, row_s

    def snapshot(self) -> dict[str, Any]:
        """Returns the state as JSON values."""
        return asdict(self.state)

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        """Takes the state of a snapshot over."""
        self.state = CostState(**{**snapshot, "sums": Sums(**snapshot["sums"])})
