"""What waits for each query, from the headers that tailers hand in. This module reads no log."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from penstock.control.backlog.rates import ArrivalRates
from penstock.control.backlog.sightings import Sightings
from penstock.control.backlog.tail import StreamTail
from penstock.control.backlog.waiting import Waiting, WaitingSegments
from penstock.grants.offset import Positions
from penstock.streams.tailing import NewSegments
from penstock.vocabulary.moment import Moment


@dataclass(slots=True, eq=False)
class QueryBacklog:
    """What waits for one query, and how fast its rows arrive. The only writer is this module.

    Attributes:
        waiting: The rows that wait, as `Backlog.refresh` last found them.
        rates: How fast rows arrive.
        seen_ends: By reader and partition, the end of the rows that were counted as offered.
        holds_from_s: A time of the wall clock. From then on `waiting` stays right until a row arrives.
    """

    waiting: Waiting = field(default_factory=Waiting)
    rates: ArrivalRates = field(default_factory=ArrivalRates)
    seen_ends: dict[str, dict[int, int]] = field(default_factory=dict)
    holds_from_s: float = math.inf
    _built_from: tuple[str | Positions | int, ...] = ()
    """What `waiting` was built from: versions of tails, and positions."""

    def count_new(self) -> dict[str, int]:
        """Counts waiting rows that were not counted before as offered, and returns their number by reader."""
        found = {}
        for reader, ends in self.waiting.ends.items():
            seen = self.seen_ends.setdefault(reader, dict(ends))
            new = 0
            for partition, end in ends.items():
                if (more := end - seen.get(partition, 0)) > 0:
                    new += more
                    seen[partition] = end
            found[reader] = new
        return found

    def forget(self, reader: str) -> None:
        """A reader is gone; if it comes back, its rows are counted from there."""
        self.seen_ends.pop(reader, None)


class Backlog:
    """The tails of all streams that are read."""

    def __init__(self) -> None:
        self._tails: dict[str, StreamTail] = {}
        self._sightings = Sightings()
        self._arrivals = 0
        """How often headers were handed in. A tail's version is this number at its last new header."""
        self.looks = 0
        """How often `refresh` built what waits for a query. Benches count it."""

    def arrived(self, stream: str, new: Iterable[NewSegments], at: Moment) -> None:
        """Takes in new segments of a stream that a tailer found."""
        tail = self._tails.setdefault(stream, StreamTail())
        tail.take_in(new)
        self._arrivals += 1
        tail.version = self._arrivals  # a stream that is read again has no version of its former tail
        for partition, found in tail.partitions.items():
            self._sightings.saw(stream, partition, found.end, at)

    def ends(self, stream: str) -> dict[int, int]:
        """Returns the ends of a stream's partitions, as far as a tailer has reported them."""
        tail = self._tails.get(stream)
        return {} if tail is None else {p: found.end for p, found in tail.partitions.items()}

    def refresh(
        self, backlog: QueryBacklog, readers: Mapping[str, tuple[str, Positions]], at: Moment
    ) -> bool:
        """Brings the backlog of a query up to date. Returns whether the backlog changed.

        Args:
            backlog: The backlog of the query.
            readers: By reader that wants rows, its stream and the positions that it has reached.
            at: The present time.
        """
        built_from: list[str | Positions | int] = []
        for name, (stream, positions) in readers.items():
            tail = self._tails.get(stream)
            built_from += (name, positions, -1 if tail is None else tail.version)
        key = tuple(built_from)
        if backlog._built_from == key and at.wall_s >= backlog.holds_from_s:
            return False
        self.looks += 1
        backlog.waiting, backlog._built_from = self._waiting(readers, at), key
        backlog.holds_from_s = self._holds_from_s(backlog.waiting, readers)
        return True

    def _holds_from_s(self, waiting: Waiting, readers: Mapping[str, tuple[str, Positions]]) -> float:
        """Returns the time of the wall clock after which the ages of waiting rows need no correction.

        The time is infinite if arrival times may lie in the future: such rows always need a correction.
        """
        for part in waiting.parts if self._sightings.may_correct else ():
            if part.start < self._sightings.ahead_ends(readers[part.reader][0]).get(part.partition, 0):
                return math.inf
        return waiting.newest_s

    def _waiting(self, readers: Mapping[str, tuple[str, Positions]], at: Moment) -> Waiting:
        parts: list[WaitingSegments] = []
        ends: dict[str, dict[int, int]] = {}
        for name, (stream, positions) in readers.items():
            ahead_ends, tail = self._sightings.ahead_ends(stream), self._tails.get(stream, StreamTail())
            mine = ends[name] = {}
            for p, found in tail.partitions.items():
                position = positions.get(p, 0)
                mine[p] = found.end if found.end > position else position
                part = found.after(name, p, position)
                if part is None:
                    continue
                if part.newest_s > at.wall_s or (ahead_ends and part.start < ahead_ends.get(p, 0)):
                    part = self._sightings.corrected(stream, part, at)
                parts.append(part)
        return Waiting(parts, ends)

    def left_of(self, stream: str, positions: Positions, at: Moment) -> tuple[int, float | None]:
        """Returns how many rows come after some positions, and when the oldest of these rows arrived.

        Rows that a trim has removed are counted, but have no arrival time.
        """
        waiting = self._waiting({"": (stream, positions)}, at)
        return sum(end - positions.get(p, 0) for p, end in waiting.ends[""].items()), waiting.oldest_s

    def keep(self, readers: Collection[tuple[str, Positions]]) -> None:
        """Forgets streams without readers, and segments that all readers have already passed.

        Args:
            readers: By connected reader, its stream and its positions.
        """
        least: dict[str, dict[int, int]] = {}
        for stream, positions in readers:
            mine = least.setdefault(stream, {})
            for p in self.ends(stream):
                position = positions.get(p, 0)
                mine[p] = min(position, mine.get(p, position))
        self._tails = {stream: tail for stream, tail in self._tails.items() if stream in least}
        for stream, tail in self._tails.items():
            for p, found in tail.partitions.items():
                found.drop_before(least[stream].get(p, 0))
        self._sightings.keep(self._tails)
