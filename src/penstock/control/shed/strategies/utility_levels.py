"""Levels of utility. Rows of a segment with about the same worth form one batch for the shedder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from penstock.grants.plans.values import Values
from penstock.policies.quality.sic import IntArray

LEVELS = 32
"""The largest number of levels of utility. The shedder sees one batch for each level of a segment."""
SAMPLE_ROWS = 4096
"""Number of rows of a query's last grant whose worth is remembered, as an estimate for the next rows."""


@dataclass(frozen=True, slots=True, eq=False)
class LevelCounts:
    """How many rows of each segment lie on each level, without pairs that have no rows.

    Attributes:
        segment: The index of the segment.
        level: The index of the level, or of the window.
        rows: How many rows of the segment lie on the level.
    """

    segment: IntArray
    level: IntArray
    rows: IntArray

    def in_positions(self, positions: IntArray) -> IntArray:
        """Returns how many positions of the segment belong to the level, in the proportions of the rows.

        All positions of a segment that has a row belong to one of its levels.

        Args:
            positions: By segment, how many positions it has.
        """
        if not self.rows.size:
            return self.rows
        first = np.concatenate([[True], self.segment[1:] != self.segment[:-1]])  # segments lie together
        which = np.cumsum(first) - 1
        before = (np.cumsum(self.rows) - self.rows)[first]
        upto = np.cumsum(self.rows) - before[which]
        total = np.bincount(which, self.rows).astype(np.int64)
        ends = upto * positions[self.segment] // total[which]
        found: IntArray = np.where(first, ends, ends - np.concatenate([[0], ends[:-1]]))
        return found


def count_by_level(values: Sequence[Values | IntArray], starts: Values | IntArray) -> LevelCounts:
    """Counts the rows of segments by level.

    Args:
        values: By segment, the values of its rows.
        starts: Where each level starts, in rising order; no value is below the first.
    """
    if not values:
        return LevelCounts(*(np.empty(0, np.int64) for _ in range(3)))
    sizes = [of_segment.size for of_segment in values]
    level = np.searchsorted(starts, np.concatenate(values), side="right") - 1
    index = np.repeat(np.arange(len(sizes)), sizes) * starts.size + level
    counts = np.bincount(index, minlength=len(sizes) * starts.size)
    found = np.flatnonzero(counts)
    return LevelCounts(found // starts.size, found % starts.size, counts[found])


def level_starts(*values: Values) -> Values:
    """Returns where levels start. If there are at most `LEVELS` values, each value has its own level.

    If there are more values, each level has about equally many rows.
    """
    ordered = np.sort(np.concatenate(values))
    new = np.concatenate([[True], ordered[1:] > ordered[:-1]]) if ordered.size else np.empty(0, np.bool_)
    few = int(new.sum()) <= LEVELS
    starts: Values = ordered[new] if few else np.unique(ordered[np.arange(LEVELS) * ordered.size // LEVELS])
    return starts


def count_as_sample(rows: IntArray, sample: Values, starts: Values) -> LevelCounts:
    """Guesses how many rows of batches lie on each level, in the proportions of a sample.

    Args:
        rows: By batch, how many rows it has; nothing else is known of these rows.
        sample: What the rows of the sample are worth.
        starts: Where each level starts.
    """
    counts = count_by_level([sample], starts)
    upto = np.cumsum(counts.rows) / max(1, sample.size)
    split = np.diff(np.round(rows[:, None] * upto[None, :]), prepend=0.0, axis=1).astype(np.int64)
    batch, level = np.nonzero(split)
    return LevelCounts(batch, counts.level[level], split[batch, level])


def even_sample(values: Values) -> Values:
    """Returns at most `SAMPLE_ROWS` of the values, evenly spaced along the stream."""
    return values[:: max(1, -(-values.size // SAMPLE_ROWS))]
