"""Segments are kept or shed whole: the shedder looks at their headers, and no row is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from penstock.config.shed_settings import ShedSettings
from penstock.control.backlog.row_values import Inside
from penstock.control.shed.capacity_view import CapacityView, QueryBatches, Shown
from penstock.control.shed.strategies.base import (
    GrantedRows,
    KeptRows,
    first_positions,
    rows_of,
    shed_by_reader,
)
from penstock.grants.plans import KEEP_ALL, SCALE, ChosenPlan
from penstock.grants.plans.sample import FEW_SEGMENTS
from penstock.policies.quality.sic import BoolArray, IntArray
from penstock.policies.shedding.base import ShedDecision


@dataclass(frozen=True, slots=True)
class SegmentStrategy:
    """Shows each waiting segment as one batch.

    Args:
        settings: What the class sheds.
    """

    settings: ShedSettings

    @property
    def may_exceed_turn(self) -> bool:
        return self.settings.traits.may_exceed_turn

    def offer(self, granted: GrantedRows, view: CapacityView) -> SegmentOffer | None:
        if view.is_enough:
            return None
        batches, order = view.batches[0].in_step()
        count = order.size
        if self.may_exceed_turn:
            count = max(1, int(np.searchsorted(np.cumsum(batches.rows), view.most_rows, side="right")))
        return SegmentOffer(granted, batches, order, count, view.batches[1:])


@dataclass(frozen=True, slots=True, eq=False)
class SegmentOffer:
    """Segments of the query that is being granted, and batches of the other queries.

    Attributes:
        granted: The waiting rows of the query.
        batches: The query's segments, by arrival.
        order: By segment in this order, its index among the query's segments.
        count: The shedder chooses among so many segments, the first in this order; the others are shed.
        others: The batches of the other queries.
    """

    granted: GrantedRows
    batches: QueryBatches
    order: IntArray
    count: int
    others: Sequence[QueryBatches]

    @property
    def shown(self) -> Shown:
        first = self.batches.only(np.arange(self.order.size) < self.count)
        return Shown([first, *self.others], lost_sic=float(self.batches.sic[self.count :].sum()))

    def carry_out(self, decision: ShedDecision) -> KeptRows:
        segments, own = self.granted.segments, self.order[: self.count]
        keep = np.zeros(self.order.size, np.bool_)
        keep[own] = decision.keep[: own.size]
        rows = rows_of(segments)
        kept_rows = int(rows[keep].sum())
        shed = shed_by_reader(segments, np.where(keep, 0, rows))
        if kept_rows == int(rows.sum()):
            return KeptRows(dict.fromkeys(shed, KEEP_ALL), kept_rows, shed, decision)
        fraction = 0.0
        # The decision's chance is that of the batches which the shedder saw. It holds for all rows only if no
        # segment was shed before the shedder was asked.
        if decision.keep_probability is not None and self.count >= self.order.size:
            fraction = float(np.concatenate([keep, decision.keep[own.size :]]).mean())
        kept_indexes = np.flatnonzero(keep)
        plans = {
            reader: ChosenPlan(
                chosen=first_positions(segments, kept_indexes, reader),
                drawn=known_chance(segments, keep, reader, fraction),
            )
            for reader in shed
        }
        return KeptRows(plans, kept_rows, shed, decision)


def known_chance(segments: Sequence[Inside], keep: BoolArray, reader: str, fraction: float) -> int:
    """The chance with which a shedder that draws segments kept the rows of a reader, in parts of `SCALE`.

    The shedder draws from the segments of the whole class. If it may well have drawn no segment of a reader,
    the chance counts as not known: in a grant without such a segment, no kept row represents the reader's
    rows.

    Args:
        segments: By partition, the segments of all readers of the query.
        keep: By segment, whether it is kept.
        reader: The reader.
        fraction: The part of the class's segments that were kept; 0 if the shedder does not draw them.

    Returns:
        The chance, or 0 where it is not known.
    """
    own = np.repeat([part.part.reader == reader for part in segments], [part.rows.size for part in segments])
    rows = rows_of(segments)[own]
    kept_rows = int(rows[keep[own]].sum())
    if not kept_rows or fraction * rows.size < FEW_SEGMENTS:
        return 0
    return max(1, round(kept_rows / int(rows.sum()) * SCALE))
