"""Rows that are worth least are shed first: values of rows are read; the shedder sees levels of utility."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from penstock.config.shedding import SemanticSettings
from penstock.control.backlog.row_values import Look
from penstock.control.shed.capacity_view import CapacityView, Shown
from penstock.control.shed.strategies.base import GrantedRows, KeptRows, by_segment, rows_of, shed_by_reader
from penstock.control.shed.strategies.utility_levels import (
    LevelCounts,
    count_as_sample,
    count_by_level,
    even_sample,
    level_starts,
)
from penstock.grants.plans import KEEP_ALL, SCALE, UtilityPlan
from penstock.grants.plans.values import Values, keep_best
from penstock.policies.quality.sic import IntArray
from penstock.policies.shedding.base import ShedDecision


@dataclass(frozen=True, slots=True)
class WorthStrategy:
    """Shows the rows of a segment that lie on one level of utility as one batch.

    For the query that is being granted, the worth of each row is read. The rows of another query are taken to
    be worth as much as a sample of the rows of its last grant.

    Args:
        settings: What a row is worth.
    """

    settings: SemanticSettings

    @property
    def may_exceed_turn(self) -> bool:
        return self.settings.traits.may_exceed_turn

    def offer(self, granted: GrantedRows, view: CapacityView) -> WorthOffer | None:
        if view.is_enough:
            return None
        look = Look(self.settings.worth)
        readers = granted.query.readers
        values: list[Values | IntArray] = []
        for part in granted.segments:
            values += granted.values.of(readers[part.part.reader].stream.id, part, look)
        granted.values.check()
        starts, samples = self._levels(granted, view, values)
        own = count_by_level(values, starts)
        shown = self._shown(view, own, starts, samples)
        return WorthOffer(granted, shown, self.settings.worth, values, own.rows)

    def _levels(
        self, granted: GrantedRows, view: CapacityView, values: Sequence[Values | IntArray]
    ) -> tuple[Values, list[Values]]:
        """Where levels start, and what samples of the other queries' rows are worth."""
        worth = _joined(values)
        samples = [granted.samples.get(other.key, even_sample(worth)) for other in view.queries[1:]]
        return level_starts(worth, *samples), samples

    def _shown(
        self, view: CapacityView, own: LevelCounts, starts: Values, samples: Sequence[Values]
    ) -> Shown:
        counts = [own]
        for batches, sample in zip(view.batches[1:], samples, strict=True):
            counts.append(count_as_sample(batches.rows, sample, starts))
        split = [
            b.split(c.segment, c.in_positions(b.rows)) for b, c in zip(view.batches, counts, strict=True)
        ]
        utility = starts[np.concatenate([each.level for each in counts])]
        if self.settings.by == "utility":
            return Shown(split, details={"utility": utility})
        return Shown(split, details={"key": np.where(utility < 1.0, self.settings.inside, np.nan)})


@dataclass(frozen=True, slots=True, eq=False)
class WorthOffer:
    """Rows of all queries by what they are worth.

    Attributes:
        granted: The waiting rows of the query that is being granted.
        shown: What the shedder sees.
        by: What a row is worth, in CQL.
        values: By segment of the query, what its rows are worth.
        rows: By level of a segment of the query, how many rows it has.
    """

    granted: GrantedRows
    shown: Shown
    by: str
    values: Sequence[Values | IntArray]
    rows: IntArray

    def carry_out(self, decision: ShedDecision) -> KeptRows:
        """Keeps the best rows of the query: as many rows as the shedder keeps on all levels of the query."""
        segments, worth = self.granted.segments, _joined(self.values)
        rows = int(self.rows[decision.keep[: self.rows.size]].sum())
        least, row_keep = keep_best(worth, rows)
        plan = UtilityPlan(row_keep=row_keep, seed=decision.observation_id, by=self.by, least=least)
        kept = np.where(worth > least, 1.0, np.where(worth == least, row_keep / SCALE, 0.0))
        return KeptRows(
            dict.fromkeys(self.granted.cut.ends, KEEP_ALL if rows == worth.size else plan),
            int(rows_of(segments).sum()) - (worth.size - rows),
            shed_by_reader(segments, by_segment(self.values, 1.0 - kept)),
            decision,
            even_sample(worth) if worth.size else None,
        )


def _joined(values: Sequence[Values | IntArray]) -> Values:
    joined: Values = np.concatenate([np.empty(0), *values])
    return joined
