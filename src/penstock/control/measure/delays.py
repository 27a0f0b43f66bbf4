"""Processing delays as weighted samples: a batch completes as a whole, its arrivals come from headers."""

from __future__ import annotations

import math

import numpy as np

from penstock.control.backlog.waiting import Stretch
from penstock.vocabulary.model import DelayStats, FloatArray

_LOWEST_S, _RATIO, _BINS = 1e-3, 1.02, 1250
"""Bins of a ledger: 2 % wide, from a millisecond to a year and a half; the last one has no upper end."""


def arrivals(stretch: Stretch, first: int, end: int) -> tuple[FloatArray, FloatArray]:
    """Arrival times and rows of the part of a stretch between two positions, four points a segment."""
    firsts = np.maximum(stretch.first, first)
    ends = np.minimum(stretch.first + stretch.rows, end)
    inside = ends > firsts
    firsts, ends, original = firsts[inside], ends[inside], stretch.first[inside]
    low_s, high_s, rows = stretch.arrival_min_s[inside], stretch.arrival_max_s[inside], stretch.rows[inside]
    slope = (high_s - low_s) / rows
    from_s, to_s = low_s + slope * (firsts - original), low_s + slope * (ends - original)
    points = (np.arange(4) + 0.5) / 4
    times_s = from_s[:, None] + (to_s - from_s)[:, None] * points
    return times_s.ravel(), np.repeat((ends - firsts) / 4.0, 4)


def stats(delays_s: FloatArray, rows: FloatArray) -> DelayStats:
    """A weighted distribution's summary."""
    total = float(rows.sum())
    if total <= 0:
        return DelayStats()
    order = np.argsort(delays_s)
    ordered, upto = delays_s[order], np.cumsum(rows[order])
    p50, p95, p99 = (
        float(ordered[min(int(np.searchsorted(upto, q * total)), ordered.size - 1)])
        for q in (0.50, 0.95, 0.99)
    )
    return DelayStats(round(total), float(delays_s @ rows / total), p50, p95, p99, float(ordered[-1]))


class DelayLedger:
    """A distribution of delays that takes in any number of rows in the same space."""

    def __init__(self) -> None:
        self._rows = np.zeros(_BINS)
        self._sum_s = 0.0
        self._max_s = 0.0

    def add(self, delays_s: FloatArray, rows: FloatArray) -> None:
        clipped = np.maximum(delays_s, _LOWEST_S)
        index = np.ceil(np.log(clipped / _LOWEST_S) / math.log(_RATIO)).astype(np.int64)
        self._rows += np.bincount(np.minimum(index, _BINS - 1), weights=rows, minlength=_BINS)
        self._sum_s += float(delays_s @ rows)
        if delays_s.size:
            self._max_s = max(self._max_s, float(delays_s.max()))

    def stats(self) -> DelayStats:
        """Percentiles to 2 %."""
        total = float(self._rows.sum())
        if total <= 0:
            return DelayStats()
        upto = np.cumsum(self._rows)
        p50, p95, p99 = (self._upper_s(int(np.searchsorted(upto, q * total))) for q in (0.50, 0.95, 0.99))
        return DelayStats(round(total), self._sum_s / total, p50, p95, p99, self._max_s)

    def _upper_s(self, bin_number: int) -> float:
        """Where a bin ends; the longest delay of all in the last one."""
        if bin_number >= _BINS - 1:
            return self._max_s
        return min(float(_LOWEST_S * _RATIO**bin_number), self._max_s)
