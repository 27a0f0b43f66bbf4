"""A moment, as two clocks show it. The control plane has no clock: every event brings its moment."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Moment:
    """One moment on the timer and on the wall clock.

    Attributes:
        timer_s: Seconds on a timer that never goes back. Durations are differences of it.
        wall_s: Seconds since the epoch. Arrival times of rows are on this clock, which may be set.
    """

    timer_s: float
    wall_s: float

    def age_s(self, arrival_s: float) -> float:
        """How old a row is that arrived at a time of the wall clock."""
        return max(0.0, self.wall_s - arrival_s)
