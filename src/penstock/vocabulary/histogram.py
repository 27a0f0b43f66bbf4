"""A cumulative histogram of delays, which watchers subtract; its size does not grow with the rows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.vocabulary.model import DelayStats, FloatArray

LOWEST_S, RATIO, BINS = 1e-3, 1.02, 1250
"""Bins are 2 % wide, from a millisecond to a year and a half; the last bin has no upper end."""


def bins_of(delays_s: FloatArray) -> npt.NDArray[np.int64]:
    """The number of each delay's bin."""
    clipped = np.maximum(delays_s, LOWEST_S)
    index = np.ceil(np.log(clipped / LOWEST_S) / math.log(RATIO)).astype(np.int64)
    return np.minimum(index, BINS - 1)


@dataclass(frozen=True, slots=True)
class Delays:
    """Delays of rows since the beginning.

    Attributes:
        rows: Number of rows by bin; bins without a row are left out.
        sum_s: Sum of all delays.
        max_s: The longest delay.
        exact: Whether the bins were counted; False if they were made up from the percentiles of a report.
    """

    rows: Mapping[int, float] = field(default_factory=dict)
    sum_s: float = 0.0
    max_s: float = 0.0
    exact: bool = True

    @property
    def count(self) -> int:
        """Number of rows."""
        return round(sum(self.rows.values()))

    def stats(self) -> DelayStats:
        """Count, mean and percentiles; percentiles are exact to 2 %."""
        bins = np.array(sorted(self.rows), np.int64)
        upto = np.cumsum([self.rows[number] for number in bins.tolist()])
        if not bins.size or upto[-1] <= 0:
            return DelayStats()
        total = float(upto[-1])
        p50, p95, p99 = (
            self._upper_s(int(bins[min(int(np.searchsorted(upto, q * total)), bins.size - 1)]))
            for q in (0.50, 0.95, 0.99)
        )
        return DelayStats(round(total), self.sum_s / total, p50, p95, p99, self.max_s)

    def _upper_s(self, bin_number: int) -> float:
        """Upper end of a bin; for the last bin the longest delay of all."""
        if bin_number >= BINS - 1:
            return self.max_s
        return min(float(LOWEST_S * RATIO**bin_number), self.max_s)

    def since(self, earlier: Delays) -> Delays:
        """The delays that were added after an earlier look. Only the bin of the longest delay is known.

        Nothing is known if one of the histograms was made up from percentiles.
        """
        if not (self.exact and earlier.exact):
            return Delays(exact=False)
        rows = {number: count - earlier.rows.get(number, 0.0) for number, count in self.rows.items()}
        rows = {number: count for number, count in rows.items() if count > 0}
        longest_s = self._upper_s(max(rows)) if rows else 0.0
        return Delays(rows, max(0.0, self.sum_s - earlier.sum_s), longest_s)

    def to_json(self, bins: bool = True) -> dict[str, Any]:
        """Percentiles as JSON values and, for callers who subtract, the bins."""
        encoded: dict[str, Any] = asdict(self.stats())
        if bins:
            encoded |= {"bins": [[number, rows] for number, rows in self.rows.items()], "sum_s": self.sum_s}
        return encoded

    @classmethod
    def from_json(cls, encoded: Mapping[str, Any]) -> Delays:
        """Delays from bins; a report without bins keeps its percentiles only approximately, as four bins."""
        if "bins" in encoded:
            rows = {int(number): float(count) for number, count in encoded["bins"]}
            return cls(rows, float(encoded["sum_s"]), float(encoded["max_s"] or 0.0))
        return cls._of_percentiles(encoded)

    @classmethod
    def _of_percentiles(cls, encoded: Mapping[str, Any]) -> Delays:
        count = float(encoded.get("count") or 0)
        if not count:
            return cls()
        # a little more than half of the rows are up to the median, and so on: sums of floats are not exact
        parts = {"p50_s": 0.505, "p95_s": 0.447, "p99_s": 0.039, "max_s": 0.009}
        rows: dict[int, float] = {}
        for name, part in parts.items():
            number = int(bins_of(np.array([encoded[name] / RATIO**0.5]))[0])
            rows[number] = rows.get(number, 0.0) + part * count
        return cls(rows, encoded["mean_s"] * count, encoded["max_s"], exact=False)
