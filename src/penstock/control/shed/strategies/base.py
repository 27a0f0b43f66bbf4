"""The seam between a class's shedder and the grants that carry out its decisions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from penstock.control.backlog.row_values import Inside, RowValues
from penstock.control.backlog.waiting import Cut
from penstock.control.shed.capacity_view import CapacityView, Shown
from penstock.control.state.query import Query
from penstock.grants.plans import ShedPlan
from penstock.grants.plans.values import Values
from penstock.policies.quality.sic import BoolArray, IntArray
from penstock.policies.shedding.base import ShedDecision
from penstock.vocabulary.model import FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class GrantedRows:
    """The waiting rows of the query that is being granted, and what is known about rows of its class.

    Attributes:
        query: The query.
        cut: Where the grant ends, and which rows before that are late.
        segments: By partition, the segments with rows that the cut decides about.
        values: The values that were looked up in waiting rows of the class.
        samples: By query of the class, what a sample of the rows of its last grant was worth.
    """

    query: Query
    cut: Cut
    segments: Sequence[Inside]
    values: RowValues
    samples: Mapping[str, Values]


@dataclass(frozen=True, slots=True, eq=False)
class KeptRows:
    """How a decision is carried out for the query that is being granted.

    Attributes:
        plans: By reader, which rows are kept.
        rows: How many positions are kept, as the books will count them: all that are not shed.
        shed: By reader, how many positions are shed that are not late, as far as coins can be foreseen.
        decision: What the shedder decided, for all queries of the class, with the strategy's part of the
            reason.
        sample: What a sample of the query's rows is worth, where the strategy has looked it up.
    """

    plans: Mapping[str, ShedPlan]
    rows: int
    shed: Mapping[str, int]
    decision: ShedDecision
    sample: Values | None = None


class Offer(Protocol):
    """What a shedder is asked to choose among, for one grant."""

    @property
    def shown(self) -> Shown:
        """What the shedder sees of it."""
        ...

    def carry_out(self, decision: ShedDecision) -> KeptRows:
        """Turns the shedder's decision into plans for the readers of the query that is being granted."""
        ...


class ShedStrategy(Protocol):
    """One way of choosing which waiting rows are kept. A strategy has no state: grants may ask it anew."""

    @property
    def may_exceed_turn(self) -> bool:
        """Whether a query's batch may be longer than its turn. Other queries then keep fewer rows."""
        ...

    def offer(self, granted: GrantedRows, view: CapacityView) -> Offer | None:
        """Makes the offer for one grant.

        Args:
            granted: The waiting rows of the query that is being granted.
            view: What waits for all queries of the class, and how much of it the turns hold.

        Returns:
            `None` if there is nothing to choose: all rows can be kept.

        Raises:
            RowsNeededError: The strategy must know values of rows first.
        """
        ...


def shed_by_reader(segments: Sequence[Inside], shed: FloatArray | IntArray) -> dict[str, int]:
    """Counts by reader the positions that are shed.

    Args:
        segments: By partition, the segments of the query.
        shed: By segment, how many of its positions are shed.
    """
    found: dict[str, float] = {}
    before = 0
    for part in segments:
        upto, reader = before + part.segment.size, part.part.reader
        found[reader] = found.get(reader, 0.0) + float(shed[before:upto].sum())
        before = upto
    return {reader: round(positions) for reader, positions in found.items()}


def by_segment(values: Sequence[Values | IntArray], rows: FloatArray | BoolArray) -> FloatArray:
    """Sums up a figure of rows by segment.

    Args:
        values: By segment, the values of its rows: a segment has as many rows as values.
        rows: By row of all these segments, the figure.
    """
    sizes = [of_segment.size for of_segment in values]
    index = np.repeat(np.arange(len(sizes)), sizes)
    found: FloatArray = np.bincount(index, rows, minlength=len(sizes)).astype(np.float64)
    return found


def first_positions(segments: Sequence[Inside], indexes: IntArray, reader: str) -> dict[int, tuple[int, ...]]:
    """Returns by partition of a reader where some of the segments begin.

    Args:
        segments: By partition, the segments of the query.
        indexes: Which of the segments. The segments are numbered from 0 over all partitions.
        reader: The reader.
    """
    found: dict[int, tuple[int, ...]] = {}
    before = 0
    for part in segments:
        if part.part.reader == reader:
            own = indexes[(indexes >= before) & (indexes < before + part.segment.size)] - before
            found[part.part.partition] = tuple(part.segment[own].tolist())
        before += part.segment.size
    return found


def rows_of(segments: Sequence[Inside]) -> IntArray:
    """Returns how many positions each segment has, over all partitions."""
    rows: IntArray = np.concatenate([np.empty(0, np.int64), *(part.rows for part in segments)])
    return rows
