"""Notes when the control plane first saw rows, and corrects time stamps of rows that are later than that.

A row that was seen has arrived. If its time stamp is later, the clock of its producer is ahead, or the clock
of this host went back. Such a row counts as arrived when the control plane first saw it. The correction is by
stream: time stamps of one stream say nothing about the rows of another stream.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np

from penstock.control.backlog.waiting import IntArray, WaitingSegments
from penstock.vocabulary.model import FloatArray
from penstock.vocabulary.moment import Moment

_log = logging.getLogger(__name__)

EVERY_S = 0.05
"""Two sightings within this time count as one. Nobody needs the age of a row to a hundredth of a second."""
MOST_SIGHTINGS, COARSE = 256, 1 / 16
"""Most sightings of a partition. If there are more, a sighting is removed that is nearer to the next one
than this part of its age. About half of the sightings stay. Ages are right to an eighth, however long rows
wait."""
SAY_FROM_S = 1.0
"""A smaller lead is not worth a warning: hosts with synchronised clocks differ by milliseconds."""


@dataclass(slots=True)
class _Partition:
    """The sightings of one partition, in order: an end of the partition, and when it was seen."""

    seen_s: list[float] = field(default_factory=list)
    """Times on the timer."""
    ends: list[int] = field(default_factory=list)

    def saw(self, now_s: float, end: int) -> None:
        if self.ends and end < self.ends[-1]:  # the log lost its tail: positions mean other rows now
            self.seen_s.clear()
            self.ends.clear()
        if self.ends and end == self.ends[-1]:
            return
        if len(self.ends) > 1 and now_s - self.seen_s[-2] < EVERY_S:  # one with the last
            self.seen_s[-1], self.ends[-1] = now_s, end
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
    """The sightings of all streams that are read."""

    def __init__(self) -> None:
        self._streams: dict[str, dict[int, _Partition]] = {}
        self._ahead_ends: dict[str, dict[int, int]] = {}
        self._warned: set[str] = set()

    def saw(self, stream: str, partition: int, end: int, at: Moment) -> None:
        """Notes that a tailer has just seen the end of a partition."""
        self._partition(stream, partition).saw(at.timer_s, end)

    def _partition(self, stream: str, partition: int) -> _Partition:
        partitions = self._streams.setdefault(stream, {})
        if (found := partitions.get(partition)) is None:
            found = partitions[partition] = _Partition()
        return found

    @property
    def may_correct(self) -> bool:
        """Whether any stream has had rows with time stamps in the future."""
        return bool(self._ahead_ends)

    def ahead_ends(self, stream: str) -> dict[int, int]:
        """By partition, the end of the rows that may have time stamps in the future.

        The ages of such rows must be computed anew at each look.
        """
        return self._ahead_ends.get(stream, {})

    def corrected(self, stream: str, waiting: WaitingSegments, at: Moment) -> WaitingSegments:
        """Returns waiting rows with corrected arrival times: no row arrives after it was first seen.

        Only rows before the partition's `ahead_ends`, or with time stamps in the future, need the correction.

        Args:
            stream: The id of the stream.
            waiting: All waiting rows of one partition, with their time stamps as arrival times.
            at: The present time.
        """
        partition = self._partition(stream, waiting.partition)
        ahead_ends = self._ahead_ends.setdefault(stream, {})
        lead_s = waiting.newest_s - at.wall_s
        if lead_s > 0.0:
            ahead_ends[waiting.partition] = waiting.end
            self._warn(stream, lead_s)
        if waiting.start >= ahead_ends.get(waiting.partition, 0):
            return waiting
        seen_s, ends = np.array([*partition.seen_s, at.timer_s]), np.array(partition.ends)

        def latest_s(positions: IntArray) -> FloatArray:
            seen = seen_s[np.searchsorted(ends, positions, side="right")]
            found: FloatArray = at.wall_s - (at.timer_s - seen)
            return found

        high_s = np.minimum(waiting.high_s, latest_s(waiting.ends - 1))
        return replace(
            waiting,
            low_s=np.minimum(waiting.low_s, latest_s(waiting.segment)),
            high_s=high_s,
            newest_s=float(high_s[-1]),
        )

    def keep(self, streams: Iterable[str]) -> None:
        """Forgets all streams but these."""
        kept = set(streams)
        self._streams = {name: found for name, found in self._streams.items() if name in kept}
        self._ahead_ends = {name: found for name, found in self._ahead_ends.items() if name in kept}
        self._warned &= kept

    def _warn(self, stream: str, lead_s: float) -> None:
        if lead_s >= SAY_FROM_S and stream not in self._warned:
            self._warned.add(stream)
            _log.warning(
                "stream %s has rows that are stamped %.0f s ahead of this host's clock; "
                "they count as arrived when they were first seen; compare the clocks of its producers",
                stream,
                lead_s,
            )
