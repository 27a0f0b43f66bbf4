"""Headers of the segments that a reader may still need, by stream and partition. Tailers hand them in."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from penstock.control.backlog.waiting import IntArray, WaitingSegments
from penstock.streams.tailing import NewSegments
from penstock.vocabulary.model import FloatArray

_FIRST_CAPACITY = 64


class PartitionTail:
    """The segments of one partition, in arrays. New segments come at the end; old ones go at the front.

    A view of the arrays stays right until the next headers come, because the last segment may grow. A caller
    that keeps a view must take a new view once `version` has changed.
    """

    def __init__(self) -> None:
        self.start = self.end = 0
        """The first position that has not been trimmed, and the position after the last row."""
        self.version = 0
        """Changes whenever a segment comes or goes."""
        self._positions = np.empty((2, _FIRST_CAPACITY), np.int64)
        """The positions at which each segment begins and ends."""
        self._arrivals = np.empty((2, _FIRST_CAPACITY))
        """The arrival times of the first and of the last row of each segment."""
        self._from = self._to = 0
        self._last_end, self._last_s = 0, 0.0
        """The position at which the last segment ends, and the arrival time of its last row."""

    def __len__(self) -> int:
        return self._to - self._from

    def take_in(self, new: NewSegments) -> None:
        """Takes in headers: of new segments, of older segments for a slower reader, or of all segments."""
        if new.anew:
            self._from = self._to
        self.start, self.end, self.version = new.start, new.end, self.version + 1
        headers = new.headers
        positions = np.array([headers.first_position, headers.first_position + headers.rows])
        arrivals = np.array([headers.arrival_min_us / 1e6, headers.arrival_max_us / 1e6])
        if len(self):  # what is here already is not taken twice
            front, back = int(self._positions[0, self._from]), int(self._positions[1, self._to - 1])
            older = int(positions[1].searchsorted(front, side="right"))
            newer = int(positions[0].searchsorted(back, side="left"))
            if newer and int(positions[1, newer - 1]) > back:  # the last segment has grown
                self._positions[1, self._to - 1] = positions[1, newer - 1]
                self._arrivals[1, self._to - 1] = arrivals[1, newer - 1]
            if older:
                self._put_before(positions[:, :older], arrivals[:, :older])
            positions, arrivals = positions[:, newer:], arrivals[:, newer:]
        self._put_after(positions, arrivals)
        if len(self):
            last = self._to - 1
            self._last_end, self._last_s = int(self._positions[1, last]), float(self._arrivals[1, last])

    def _put_after(self, positions: IntArray, arrivals: FloatArray) -> None:
        count = positions.shape[1]
        if self._to + count > self._positions.shape[1]:
            self._move(0, max(_FIRST_CAPACITY, 2 * (len(self) + count)))
        at = slice(self._to, self._to + count)
        self._positions[:, at], self._arrivals[:, at] = positions, arrivals
        self._to += count

    def _put_before(self, positions: IntArray, arrivals: FloatArray) -> None:
        count = positions.shape[1]
        self._move(count, max(_FIRST_CAPACITY, 2 * (len(self) + count)))
        self._positions[:, :count], self._arrivals[:, :count] = positions, arrivals
        self._from = 0

    def _move(self, first: int, capacity: int) -> None:
        """Copies the segments into larger arrays, from an index on. Views still show the old arrays."""
        live, size = slice(self._from, self._to), len(self)
        positions, arrivals = np.empty((2, capacity), np.int64), np.empty((2, capacity))
        positions[:, first : first + size] = self._positions[:, live]
        arrivals[:, first : first + size] = self._arrivals[:, live]
        self._positions, self._arrivals = positions, arrivals
        self._from, self._to = first, first + size

    def drop_before(self, position: int) -> None:
        """Forgets segments that end at a position or before the position."""
        ends = self._positions[1, self._from : self._to]
        self._from += int(ends.searchsorted(position, side="right"))

    def after(self, reader: str, partition: int, position: int) -> WaitingSegments | None:
        """Returns the segments with rows at a reader's position or after it; `None` if there are none."""
        first = position if position > self.start else self.start
        if first >= self.end or self._from == self._to or first >= self._last_end:
            return None  # nothing is there, or a trim came in between
        at = self._from + int(self._positions[1, self._from : self._to].searchsorted(first, side="right"))
        live = slice(at, self._to)
        segment: IntArray = self._positions[0, live]
        low_s: FloatArray = self._arrivals[0, live]
        return WaitingSegments(
            reader,
            partition,
            segment,
            self._positions[1, live],
            low_s,
            self._arrivals[1, live],
            first,
            self._last_end,
            self._last_s,
        )


class StreamTail:
    """The partitions of one stream."""

    def __init__(self) -> None:
        self.partitions: dict[int, PartitionTail] = {}
        self.version = 0

    def take_in(self, new: Iterable[NewSegments]) -> None:
        """Takes in headers that a tailer found."""
        for each in new:
            self.partitions.setdefault(each.partition, PartitionTail()).take_in(each)
        self.version += 1
