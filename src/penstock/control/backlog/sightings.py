"""When rows were first seen. It bounds what their time stamps may say.

A row that has been seen has arrived. Where its time stamp is later than that moment, the clock of its
producer is ahead, or the clock of this host went back. Such a row counts as arrived when the control plane
first saw it. The correction is by stream: time stamps of one stream say nothing about the rows of another.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from penstock.control.backlog.waiting import Stretch
from penstock.streams.protocol import StreamLog
from penstock.vocabulary.model import FloatArray

_log = logging.getLogger(__name__)

EVERY_S = 0.05
"""Sightings closer than this are one: the age of a row is not needed to a hundredth of a second."""
MOST_SIGHTINGS, COARSE = 256, 1 / 16
"""Of a partition. When there are more, those go that are closer to the next one than this part of their age:
about half of them stay, and ages are right to an eighth, however long rows wait."""
SAY_FROM_S = 1.0
"""A smaller lead is not worth a warning: hosts with synchronised clocks differ by milliseconds."""


@dataclass(slots=True)
class _Partition:
    """Where the end of a partition was, and when: in order of both."""

    seen_s: list[float] = field(default_factory=list)
    """On the timer."""
    ends: list[int] = field(default_factory=list)
    ahead_end: int = -1
    """Up to here there may be rows whose time stamps were in the future."""

    def saw(self, now_s: float, end: int) -> None:
        if self.ends and end < self.ends[-1]:  # the log lost its tail: positions mean other rows now
            self.seen_s.clear()
            self.ends.clear()
        if self.ends and (end == self.ends[-1] or now_s - self.seen_s[-1] < EVERY_S):
            return
        self.seen_s.append(now_s)
        self.ends.append(end)
        if len(self.ends) > MOST_SIGHTINGS:
            self._thin_out(now_s)

    def _thin_out(self, now_s: float) -> None:
        # the later of two stays: a row may count as seen too late, never before it was there
        kept = [len(self.ends) - 1]
        for i in reversed(range(kept[0])):
            if self.seen_s[kept[-1]] - self.seen_s[i] >= COARSE * (now_s - self.seen_s[i]):
                kept.append(i)
        kept.reverse()
        self.seen_s = [self.seen_s[i] for i in kept]
        self.ends = [self.ends[i] for i in kept]


class Sightings:
    """The sightings of all streams that are read.

    Args:
        clock: Seconds since the epoch, as arrival times are.
        timer: Seconds that never go back.
    """

    def __init__(self, clock: Callable[[], float], timer: Callable[[], float]) -> None:
        self._clock, self._timer = clock, timer
        self._streams: dict[str, dict[int, _Partition]] = {}
        self._said: set[str] = set()

    def of(self, log: StreamLog) -> Callable[[Stretch], Stretch]:
        """The correction of one stream."""
        return partial(self.corrected, str(log.directory))

    def corrected(self, stream: str, stretch: Stretch) -> Stretch:
        """Waiting rows, none of which arrived after it was first seen; this look is a sighting.

        Args:
            stream: Where it lies.
            stretch: All that waits in one of its partitions, as it is stamped.
        """
        now_s, timer_s = self._clock(), self._timer()
        partition = self._streams.setdefault(stream, {}).setdefault(stretch.partition, _Partition())
        partition.saw(timer_s, stretch.end)
        lead_s = float(stretch.arrival_max_s[-1]) - now_s
        if lead_s > 0.0:
            partition.ahead_end = stretch.end
            self._say(stream, lead_s)
        if int(stretch.first[0]) >= partition.ahead_end:
            return stretch
        seen_s, ends = np.array([*partition.seen_s, timer_s]), np.array(partition.ends)

        def latest_s(positions: np.ndarray) -> FloatArray:
            found: FloatArray = now_s - (timer_s - seen_s[np.searchsorted(ends, positions, side="right")])
            return found

        return Stretch(
            stretch.reader,
            stretch.partition,
            stretch.segment,
            stretch.first,
            stretch.rows,
            np.minimum(stretch.arrival_min_s, latest_s(stretch.first)),
            np.minimum(stretch.arrival_max_s, latest_s(stretch.first + stretch.rows - 1)),
        )

    def keep(self, streams: Iterable[str]) -> None:
        """Forgets all streams but these."""
        kept = set(streams)
        self._streams = {name: found for name, found in self._streams.items() if name in kept}
        self._said &= kept

    def _say(self, stream: str, lead_s: float) -> None:
        if lead_s >= SAY_FROM_S and stream not in self._said:
            self._said.add(stream)
            _log.warning(
                "stream %s has rows that are stamped %.0f s ahead of this host's clock; "
                "they count as arrived when they were first seen; compare the clocks of its producers",
                stream,
                lead_s,
            )
