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
"""The usual rate, the rate of the last moments, when they were last computed (on the timer; NaN before the
first time), and the rows that have arrived since then."""


def pass_time(
    figures: FloatArray, cls: IntArray, memory_s: Sequence[float], now_s: float, tuning: Tuning
) -> None:
    """Brings the rates of many queries up to date, a column a query.

    Args:
        figures: See `FIGURES`, a row each.
        cls: By query, the number of its class.
        memory_s: By class, seconds after which about a third of the past is left in the usual rate.
        now_s: On the timer.
        tuning: How fast the other rate forgets, and over how long a rate is taken.
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
    """By time that has passed and by class, the part of the past that is forgotten.

    The exponential function of NumPy may round otherwise than that of Python, and otherwise on another
    processor.
    """
    return np.array([[1.0 - math.exp(-t_s / each_s) for each_s in memory_s] for t_s in times_s.tolist()])


class ArrivalRates:
    """The usual arrival rate of a query's rows, and the rate of the last moments.

    The figures lie in a table of all queries, whose rates are computed at once, as soon as there is one.
    """

    def __init__(self) -> None:
        self._figures = np.array([0.0, 0.0, np.nan, 0.0])

    @property
    def usual_per_s(self) -> float:
        """A mean that forgets slowly."""
        return float(self._figures[USUAL])

    @property
    def burst_per_s(self) -> float:
        """A mean that forgets quickly."""
        return float(self._figures[BURST])

    def lie_in(self, figures: FloatArray) -> None:
        """The figures lie here from now on, as they are."""
        figures[:] = self._figures
        self._figures = figures

    def count(self, rows: int) -> None:
        """Rows have arrived since the last call. What was there before the first time is no rate."""
        if not math.isnan(self._figures[_SINCE_S]):
            self._figures[_ROWS] += rows

    def pass_time(self, now_s: float, memory_s: float, tuning: Tuning) -> None:
        """Brings the rates of this query alone up to date; see the function `pass_time`."""
        pass_time(self._figures[:, None], np.zeros(1, np.int64), [memory_s], now_s, tuning)
