"""How fast rows arrive for a query: means that forget."""

from __future__ import annotations

import math
from dataclasses import dataclass

from penstock.control.tuning import Tuning


@dataclass(slots=True)
class ArrivalRates:
    """The usual arrival rate of a query's rows, and the rate of the last moments.

    Attributes:
        usual_per_s: A mean that forgets slowly.
        burst_per_s: A mean that forgets quickly.
    """

    usual_per_s: float = 0.0
    burst_per_s: float = 0.0
    _since_s: float | None = None
    """On the timer, when the rates were last computed."""
    _rows: int = 0
    """Rows that arrived since then."""

    def arrived(self, rows: int, now_s: float, memory_s: float, tuning: Tuning) -> None:
        """Rows have arrived since the last call.

        Args:
            rows: How many.
            now_s: On the timer.
            memory_s: Seconds after which about a third of the past is left in the usual rate.
            tuning: How fast the other rate forgets, and over how long a rate is taken.
        """
        if self._since_s is None:  # what was there before is no rate
            self._since_s = now_s
            return
        self._rows += rows
        passed_s = now_s - self._since_s
        if passed_s < tuning.rate_every_s:
            return
        seen_per_s = self._rows / passed_s
        self.usual_per_s += (1.0 - math.exp(-passed_s / memory_s)) * (seen_per_s - self.usual_per_s)
        fast_s = memory_s / tuning.burst
        self.burst_per_s += (1.0 - math.exp(-passed_s / fast_s)) * (seen_per_s - self.burst_per_s)
        self._since_s, self._rows = now_s, 0
