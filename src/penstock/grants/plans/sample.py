"""The plan that tosses coins: for segments, for the rows of opened segments, or for both."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import numpy as np
import pyarrow as pa

from penstock.grants.plans.base import PlanBase
from penstock.grants.plans.coins import SCALE, Tosses, row_tosses, segment_tosses
from penstock.grants.plans.encoding import encoded
from penstock.grants.plans.protocol import Bools, Drawing, DrawnSegments, Keyed, Needs, Numbers, Span

FEW_SEGMENTS = 8
"""When rows are sampled, at least this many segments are expected to open, by `effective_segments`. With
fewer, weights would favour large segments, and a result would rest on a few moments of the stream."""


@dataclass(frozen=True, slots=True)
class SamplePlan(PlanBase):
    """Keeps each row with the same probability.

    Attributes:
        unit: What is sampled: rows, inside segments that are sampled too, or whole segments.
        segment_keep: Probability that a segment is opened, in parts of `SCALE`.
        row_keep: Probability that a row of an opened segment is kept, in parts of `SCALE`.
        seed: Seed of the coins.
        drawn: Fraction of the rows that lie in opened segments, in parts of `SCALE`. Weights are then taken
            from it instead of `segment_keep`. 0 if they are not; see `fitted`.
    """

    unit: Literal["row", "segment"] = "row"
    segment_keep: int = SCALE
    row_keep: int = SCALE
    seed: int = 0
    drawn: int = 0

    @property
    def needs(self) -> Needs:
        return "places"

    @property
    def keeps_all(self) -> bool:
        return self.segment_keep == SCALE and self.row_keep == SCALE

    @property
    def keeps_whole_segments(self) -> bool:
        return self.row_keep == SCALE

    @property
    def draws_segments(self) -> bool:
        """Whether coins decide which segments are opened."""
        return self.segment_keep not in (0, SCALE)

    def opens(self, partition: int, first_positions: Numbers) -> Bools:
        if self.segment_keep == SCALE:
            return np.ones(first_positions.size, np.bool_)
        return self.tosses(partition, first_positions) < np.uint64(self.segment_keep)

    def tosses(self, partition: int, first_positions: Numbers) -> Tosses:
        """Tosses that `opens` compares with `segment_keep`."""
        return segment_tosses(self.seed, partition, first_positions)

    def keeps(
        self, stream: Keyed, partition: int, positions: Numbers, rows: Sequence[pa.RecordBatch]
    ) -> Bools | None:
        if self.row_keep == SCALE:
            return None
        return row_tosses(self.seed, partition, positions) < np.uint64(self.row_keep)

    def chance(self, key_buckets: int = 0) -> float | None:
        return ((self.drawn or self.segment_keep) / SCALE) * (self.row_keep / SCALE)

    def drawing(self, key_buckets: int = 0) -> Drawing:
        within = SCALE / self.row_keep - 1.0 if self.row_keep else 0.0
        if not self.draws_segments:
            return Drawing(within)
        return Drawing(within, DrawnSegments(self.segment_keep / SCALE, self.drawn / SCALE, self.seed))

    def to_json(self) -> dict[str, Any]:
        return encoded(self, KEEP_ALL)

    def fitted(self, spans: Iterable[Span]) -> Self:
        """The plan, fitted to the segments of a grant and to the segments that the coins open.

        The number of rows in opened segments varies (by a fifth at twenty times the capacity). The grant's
        size, its delay and every count over its rows would vary with it. So `row_keep` and the weights are
        taken from the rows in opened segments: the weights of a grant then add up to its rows.

        That is sound if enough segments open. When rows are sampled, `FEW_SEGMENTS` are expected to open.
        When whole segments are sampled and only few open, weights stay one over the chance, which is right on
        average for any number of segments.
        """
        if not self.draws_segments:
            return self
        spans, plan, by_row = list(spans), self, self.unit == "row"
        segments = effective_segments(np.concatenate([inside for _, _, inside in spans]))
        if by_row and segments * plan.segment_keep < FEW_SEGMENTS * SCALE:
            keep = plan.segment_keep / SCALE * plan.row_keep / SCALE
            opening = min(1.0, FEW_SEGMENTS / max(1.0, segments))
            plan = replace(plan, segment_keep=round(opening * SCALE), row_keep=round(keep / opening * SCALE))
        rows = sum(int(inside.sum()) for _, _, inside in spans)
        opened_rows = sum(int(inside[plan.opens(p, firsts)].sum()) for p, firsts, inside in spans)
        if not opened_rows:
            return plan
        row_keep, drawn = plan.row_keep, 0
        if by_row:
            keep = plan.segment_keep / SCALE * plan.row_keep / SCALE
            row_keep = min(SCALE, max(1, round(keep * rows / opened_rows * SCALE)))
        if by_row or segments * plan.segment_keep >= FEW_SEGMENTS * SCALE:
            drawn = max(1, round(opened_rows / rows * SCALE))
        return replace(plan, row_keep=row_keep, drawn=drawn)


def effective_segments(rows: Numbers) -> float:
    """Number of equally large segments that would vary as much.

    If one of 25 segments has nearly all rows, the number is about 1.
    """
    sizes = rows.astype(np.float64)
    squares = float((sizes**2).sum())
    return float(sizes.sum()) ** 2 / squares if squares else 0.0


KEEP_ALL = SamplePlan()
