"""Arrival schedules: when rows of a replayed or generated stream are due. A schedule has no clock."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from penstock.pipeline.spec.sources import SYNTHETIC, GeneratorSource, OnOffRate, ReplaySource, StepRate

Floats = npt.NDArray[np.float64]

_STEPS = 50
"""Number of intervals in which the rate is taken as constant: in 20 ms of play, 0.4 ms each."""


class ArrivalSchedule(Protocol):
    """The times, after the beginning, at which rows are due."""

    def between(self, first: int, from_s: float, until_s: float) -> Floats:
        """Times of the rows from row `first` on that are due up to `until_s`.

        Rows before `first` were due at `from_s` or earlier.
        """
        ...

    def ended(self, first: int) -> bool:
        """Whether row `first` will never come."""
        ...


class TraceSchedule:
    """A trace, multiplied: copies of a row are spread over the gap before the next row; bursts stay in place.

    Args:
        times_s: Arrivals of the trace, in order.
        length_s: Length of the trace, at least the last arrival.
        scale: Number of rows for each row of the trace.
        speed: 2 plays in half the time.
        loop: Whether the trace begins again at its end.
    """

    def __init__(
        self, times_s: npt.ArrayLike, length_s: float, scale: float, speed: float, loop: bool
    ) -> None:
        times = np.asarray(times_s, np.float64)
        self._times_s = np.append(times, length_s) / speed
        self._length_s, self._scale, self._loop = length_s / speed, scale, loop
        self._rows = max(1, round(times.size * scale))

    def between(self, first: int, from_s: float, until_s: float) -> Floats:
        rounds = int(until_s // self._length_s) if self._loop else 0
        inside_s = until_s - rounds * self._length_s
        count = int(np.searchsorted(self._times_s[:-1], inside_s, side="right"))
        # rows up to the last copy of the last arrival; later copies are removed below
        last = rounds * self._rows + min(self._rows, int(np.ceil(count * self._scale)))
        times = self._times(np.arange(first, max(first, last)))
        return times[times <= until_s]

    def ended(self, first: int) -> bool:
        return not self._loop and first >= self._rows

    def _times(self, number: npt.NDArray[np.int64]) -> Floats:
        rounds, inside = np.divmod(number, self._rows)
        at = np.interp(inside / self._scale, np.arange(self._times_s.size), self._times_s)
        return np.asarray(rounds * self._length_s + at)


class RateSchedule:
    """A rate that may change: row n is due when the rate has given n + 1 rows."""

    def __init__(self, source: GeneratorSource) -> None:
        self._rate = source.rate

    def between(self, first: int, from_s: float, until_s: float) -> Floats:
        count = int(self._rate.rows_until(until_s) + 1e-9)
        if count <= first:
            return np.empty(0)
        grid_s = np.union1d(np.linspace(from_s, until_s, _STEPS + 1), self._changes(from_s, until_s))
        due = np.array([self._rate.rows_until(float(at)) for at in grid_s])
        return np.asarray(np.interp(np.arange(first + 1, count + 1), due, grid_s))

    def ended(self, first: int) -> bool:
        return False

    def _changes(self, from_s: float, until_s: float) -> list[float]:
        """Moments at which the rate jumps; as points of the grid, they keep each interval's rate constant."""
        if isinstance(self._rate, StepRate):
            moments = [step.from_s for step in self._rate.steps]
        elif isinstance(self._rate, OnOffRate):
            length_s = self._rate.high_s + self._rate.low_s
            rounds = range(int(from_s // length_s), int(until_s // length_s) + 1)
            moments = [n * length_s + at for n in rounds for at in (0.0, self._rate.high_s)]
        else:
            moments = []
        return [at for at in moments if from_s < at < until_s]


def schedule_of(source: ReplaySource | GeneratorSource) -> ArrivalSchedule:
    """The schedule of a source; a trace is read or made here."""
    if isinstance(source, GeneratorSource):
        return RateSchedule(source)
    # slow to import, and only replays need them
    from penstock.sim.workloads.arrivals import self_similar
    from penstock.sim.workloads.networks import qn_flat
    from penstock.sim.workloads.specs import Trace

    if source.trace == SYNTHETIC:
        trace = self_similar(seed=10)  # the stand-in for recorded traffic that simulations use
    else:
        trace = Trace(path=source.trace).arrivals(qn_flat(), 1.0, None, 0)  # unscaled: any network does
    return TraceSchedule(trace.times_s, trace.duration_s, source.scale, source.speed, source.loop)
