"""Processing delays as weighted samples: a batch completes as a whole, its arrivals come from headers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from penstock.control.backlog.waiting import IntArray, WaitingSegments
from penstock.vocabulary.histogram import BINS, Delays, bins_of
from penstock.vocabulary.model import DelayStats, FloatArray

_STRETCHES = 1024
"""Most stretches of segments that are looked at in a partition: a grant may hold a million segments."""
_POINTS = (np.arange(4) + 0.5) / 4
"""Places of the four points of a segment, as parts of its length."""


def arrivals(
    parts: Sequence[WaitingSegments], firsts: Sequence[int], ends: Sequence[int]
) -> tuple[FloatArray, FloatArray]:
    """Returns arrival times of waiting rows, and how many rows have each time.

    There are four times for each segment. If a partition has many segments, there are four times for each
    stretch of segments.

    Args:
        parts: By partition, the waiting segments.
        firsts: By partition, the position of the first row.
        ends: By partition, the position after the last row.
    """
    found = [_stretches(part, first, end) for part, first, end in zip(parts, firsts, ends, strict=True)]
    sizes = [each[0].size for each in found]
    begins, upto, low_s, high_s = (np.concatenate(column) for column in zip(*found, strict=True))
    for part, size, at in zip(parts, sizes, accumulate(sizes), strict=True):
        if size and part.start > begins[at - size]:  # a grant ended inside this segment
            begins[at - size], low_s[at - size] = part.start, part.oldest_s
    from_row = np.maximum(begins, np.array(firsts).repeat(sizes))
    to_row = np.minimum(upto, np.array(ends).repeat(sizes))
    slope = (high_s - low_s) / np.maximum(1, upto - begins)
    from_s, to_s = low_s + slope * (from_row - begins), low_s + slope * (to_row - begins)
    times_s = from_s[:, None] + (to_s - from_s)[:, None] * _POINTS
    return times_s.ravel(), ((to_row - from_row) / 4.0).repeat(4)


def _stretches(
    part: WaitingSegments, first: int, end: int
) -> tuple[IntArray, IntArray, FloatArray, FloatArray]:
    """Returns the stretches with rows in [first, end): first position, end, first and last arrival of each.

    If there are few segments, each segment is a stretch.
    """
    at = part.which(first, end)
    count = at.stop - at.start
    if count > _STRETCHES:
        edges = at.start + np.arange(_STRETCHES + 1) * count // _STRETCHES
        low, high = edges[:-1], edges[1:] - 1
        return part.segment[low], part.ends[high], part.low_s[low], part.high_s[high]
    if count == part.ends.size:
        return part.segment, part.ends, part.low_s, part.high_s
    return part.segment[at], part.ends[at], part.low_s[at], part.high_s[at]


def stats(delays_s: FloatArray, rows: FloatArray) -> DelayStats:
    """Returns the summary of a weighted distribution of delays."""
    total = float(rows.sum())
    if total <= 0:
        return DelayStats()
    order = delays_s.argsort()
    ordered, upto = delays_s[order], rows[order].cumsum()
    at = upto.searchsorted([0.50 * total, 0.95 * total, 0.99 * total])
    p50, p95, p99 = ordered[np.minimum(at, ordered.size - 1)].tolist()
    return DelayStats(round(total), float(delays_s @ rows / total), p50, p95, p99, float(ordered[-1]))


class DelayLedger:
    """A histogram of delays."""

    def __init__(self) -> None:
        self._rows = np.zeros(BINS)
        self._sum_s = 0.0
        self._max_s = 0.0

    def add(self, delays_s: FloatArray, rows: FloatArray) -> None:
        self._rows += np.bincount(bins_of(delays_s), weights=rows, minlength=BINS)
        self._sum_s += float(delays_s @ rows)
        if delays_s.size:
            self._max_s = max(self._max_s, float(delays_s.max()))

    def so_far(self) -> Delays:
        used = np.flatnonzero(self._rows)
        rows = dict(zip(used.tolist(), self._rows[used].tolist(), strict=True))
        return Delays(rows, self._sum_s, self._max_s)

    def stats(self) -> DelayStats:
        """Returns the summary of all delays. Percentiles are exact to 2 %."""
        return self.so_far().stats()
