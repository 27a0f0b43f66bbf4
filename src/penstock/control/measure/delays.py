"""Processing delays as weighted samples: a batch completes as a whole, its arrivals come from headers."""

from __future__ import annotations

import numpy as np

from penstock.control.backlog.waiting import WaitingSegments
from penstock.vocabulary.histogram import BINS, Delays, bins_of
from penstock.vocabulary.model import DelayStats, FloatArray


def arrivals(waiting: WaitingSegments, first: int, end: int) -> tuple[FloatArray, FloatArray]:
    """Arrival times and rows of the waiting rows between two positions, four points a segment."""
    found = waiting.between(first, end)
    firsts, ends = np.maximum(found.first, first), np.minimum(found.first + found.rows, end)
    slope = (found.high_s - found.low_s) / np.maximum(1, found.rows)
    from_s, to_s = found.low_s + slope * (firsts - found.first), found.low_s + slope * (ends - found.first)
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
    """Takes in delays; `so_far` is the histogram of all of them."""

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
        """Percentiles to 2 %."""
        return self.so_far().stats()
