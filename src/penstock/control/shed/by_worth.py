"""Shedding by what rows are worth: levels of utility for the shedder, and the plan that its choice makes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from penstock.grants.plans.values import Values
from penstock.policies.quality.sic import IntArray

LEVELS = 32
"""Of utility, at most: a shedder sees what waits a level and a segment."""
SAMPLE_ROWS = 4096
"""Of a query's rows, by which the rows count that it will have at its turn."""


@dataclass(frozen=True, slots=True, eq=False)
class Grouped:
    """Rows by segment and level, those without rows left out.

    Attributes:
        segment: Which of the segments.
        level: Which of the levels, or windows.
        rows: How many.
    """

    segment: IntArray
    level: IntArray
    rows: IntArray


def grouped(of_segments: Sequence[Values | IntArray], ends: Values | IntArray) -> Grouped:
    """Counts rows by segment and level.

    Args:
        of_segments: Values of rows, an array a segment.
        ends: Where levels begin, in order; nothing is below the first.
    """
    if not of_segments:
        return Grouped(*(np.empty(0, np.int64) for _ in range(3)))
    sizes = [values.size for values in of_segments]
    level = np.searchsorted(ends, np.concatenate(of_segments), side="right") - 1
    index = np.repeat(np.arange(len(sizes)), sizes) * ends.size + level
    counts = np.bincount(index, minlength=len(sizes) * ends.size)
    at = np.flatnonzero(counts)
    return Grouped(at // ends.size, at % ends.size, counts[at])


def levels(*values: Values) -> Values:
    """Where levels of utility begin: each value is one while they are few, else about as many rows are in
    each."""
    ordered = np.sort(np.concatenate(values))
    new = np.concatenate([[True], ordered[1:] > ordered[:-1]]) if ordered.size else np.empty(0, np.bool_)
    few = int(new.sum()) <= LEVELS
    begins: Values = ordered[new] if few else np.unique(ordered[np.arange(LEVELS) * ordered.size // LEVELS])
    return begins


def spread(rows: IntArray, sample: Values, ends: Values) -> Grouped:
    """Batches of which only the rows are known, as if they were worth what a sample is."""
    counts = grouped([sample], ends)
    upto = np.cumsum(counts.rows) / max(1, sample.size)
    split = np.diff(np.round(rows[:, None] * upto[None, :]), prepend=0.0, axis=1).astype(np.int64)
    batch, level = np.nonzero(split)
    return Grouped(batch, counts.level[level], split[batch, level])


def sampled(values: Values) -> Values:
    """At most `SAMPLE_ROWS` of some values, evenly along the stream."""
    return values[:: max(1, -(-values.size // SAMPLE_ROWS))]
