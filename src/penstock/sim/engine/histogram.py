"""Delay percentiles over a whole run in constant memory."""

from __future__ import annotations

import numpy as np

from penstock.vocabulary.model import DelayStats, FloatArray

_SMALLEST_S = 1e-6
_GROWTH = np.log(1.005)
_BINS = 5000


class DelayHistogram:
    """Counts delays in bins that grow by half a percent.

    Percentiles are exact to half a percent; mean and max are exact.
    """

    def __init__(self) -> None:
        self._counts = np.zeros(_BINS, np.int64)
        self._sum_s = 0.0
        self._max_s = 0.0

    def add(self, delays_s: FloatArray) -> None:
        if delays_s.size == 0:
            return
        index = np.log(np.maximum(delays_s, _SMALLEST_S) / _SMALLEST_S) / _GROWTH
        self._counts += np.bincount(np.minimum(index.astype(np.int64), _BINS - 1), minlength=_BINS)
        self._sum_s += float(delays_s.sum())
        self._max_s = max(self._max_s, float(delays_s.max()))

    def stats(self) -> DelayStats:
        count = int(self._counts.sum())
        if count == 0:
            return DelayStats()
        p50, p95, p99 = (min(self._percentile(q), self._max_s) for q in (0.50, 0.95, 0.99))
        return DelayStats(count, self._sum_s / count, p50, p95, p99, self._max_s)

    def _percentile(self, q: float) -> float:
        rank = q * (self._counts.sum() - 1)
        index = int(np.searchsorted(np.cumsum(self._counts), rank, side="right"))
        return float(_SMALLEST_S * np.exp((index + 1) * _GROWTH))
