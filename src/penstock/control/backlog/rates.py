"""How fast rows arrive for queries: means that forget."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from penstock.control.tuning import Tuning
from penstock.vocabulary.model import FloatArray

IntArray = npt.NDArray[np.int64]

USUAL, BURST, _SINCE_S, _ROWS = range(4)
FIGURES = 4
"""Rows of the table of rates: the usual rate, the short-term rate, the time at which both were last computed,
and the number of rows since then. The time is on the timer, and NaN before the first computation."""


def pass_time(
    figures: FloatArray, cls: IntArray, memory_s: Sequence[float], now_s: float, tuning: Tuning
) -> None:
    """Brings the rates of many queries up to date.

    Args:
        figures: The table of rates, with a column for each query. `FIGURES` describes the rows.
        cls: By query, the number of its class.
        memory_s: By class, the time after which about a third of the past is left in the usual rate.
        now_s: The present time on the timer.
        tuning: Says how fast the short-term rate forgets, and over which time a rate is measured.
    """
    since_s = figures[_SINCE_S]
    since_s[np.isnan(since_s)] = now_s
    due = now_s - since_s >= tuning.rate_every_s
    if not due.any():
        return
    # queries are looked at together, so mostly all of them are due at once
    at: slice | IntArray = slice(None) if due.all() else due.nonzero()[0]
    usual, burst, since_s, rows = figures[:, at]
    passed_s = now_s - since_s
    seen_per_s = rows / passed_s
    # for the same reason there are few different times, and mostly one
    times_s, which = passed_s[:1], np.zeros(1, np.int64)
    if (passed_s != passed_s[0]).any():
        times_s, which = np.unique(passed_s, return_inverse=True)
    at_once = which, cls[at]
    figures[USUAL, at] = usual + _forgotten(times_s, memory_s)[at_once] * (seen_per_s - usual)
    fast_s = [each_s / tuning.burst for each_s in memory_s]
    figures[BURST, at] = burst + _forgotten(times_s, fast_s)[at_once] * (seen_per_s - burst)
    figures[_SINCE_S, at], figures[_ROWS, at] = now_s, 0.0


def _forgotten(times_s: FloatArray, memory_s: Sequence[float]) -> FloatArray:
    """Returns the part of the past that is forgotten, by time that has passed and by class.

    Python's exponential function is used, because NumPy's may round differently on another processor.
    """
    return np.array([[1.0 - math.exp(-t_s / each_s) for each_s in memory_s] for t_s in times_s.tolist()])


class ArrivalRates:
    """The usual arrival rate of a query's rows, and the short-term rate.

    Once there is a table of all queries, the rates lie in the table. They are then computed for all at once.
    """

    def __init__(self) -> None:
        self._figures = np.array([0.0, 0.0, np.nan, 0.0])

    @property
    def usual_per_s(self) -> float:
        """The usual rate: a mean that forgets slowly."""
        return float(self._figures[USUAL])

    @property
    def burst_per_s(self) -> float:
        """The short-term rate: a mean that forgets quickly."""
        return float(self._figures[BURST])

    def lie_in(self, figures: FloatArray) -> None:
        """Moves the rates into a column of the table of all queries."""
        figures[:] = self._figures
        self._figures = figures

    def count(self, rows: int) -> None:
        """Counts rows that have arrived. Rows before the first `pass_time` have no rate, and do not count."""
        if not math.isnan(self._figures[_SINCE_S]):
            self._figures[_ROWS] += rows

    def pass_time(self, now_s: float, memory_s: float, tuning: Tuning) -> None:
        """Brings the rates of this query alone up to date, as the function `pass_time` does."""
        pass_time(self._figures[:, None], np.zeros(1, np.int64), [memory_s], now_s, tuning)
