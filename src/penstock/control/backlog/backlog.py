"""What waits for each query. Tailers hand headers in; nothing is looked up in a log here."""

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
        waiting: As it was last looked at.
        rates: How fast rows arrive.
        seen_ends: By reader, the ends up to which rows were counted as offered.
        holds_from_s: On the wall clock, from when on `waiting` holds as long as nothing arrives.
    """

    waiting: Waiting = field(default_factory=Waiting)
    rates: ArrivalRates = field(default_factory=ArrivalRates)
    seen_ends: dict[str, dict[int, int]] = field(default_factory=dict)
    holds_from_s: float = math.inf
    _built_from: tuple[str | Positions | int, ...] = ()
    """What `waiting` was built from: versions of tails, and positions."""

    def count_new(self) -> dict[str, int]:
        """By reader, rows that were not counted before; they count as offered from now on."""
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
        """How often headers were handed in: versions of tails."""
        self.looks = 0
        """How often it was looked up what waits for a query: benches count it."""

    def arrived(self, stream: str, new: Iterable[NewSegments], at: Moment) -> None:
        """A tailer found new segments of a stream."""
        tail = self._tails.setdefault(stream, StreamTail())
        tail.take_in(new)
        self._arrivals += 1
        tail.version = self._arrivals  # a stream that is read again has no version of its former tail
        for partition, found in tail.partitions.items():
            self._sightings.saw(stream, partition, found.end, at)

    def ends(self, stream: str) -> dict[int, int]:
        """Where the partitions of a stream end, as far as a tailer has told."""
        tail = self._tails.get(stream)
        return {} if tail is None else {p: found.end for p, found in tail.partitions.items()}

    def refresh(
        self, backlog: QueryBacklog, readers: Mapping[str, tuple[str, Positions]], at: Moment
    ) -> bool:
        """Brings what waits for a query up to date; returns whether anything changed.

        Args:
            backlog: Of the query.
            readers: By reader that wants rows, its stream and the positions that it has reached.
            at: Now.
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
        """The time of the wall clock from which on the ages of waiting rows need not be corrected.

        Infinite where rows may be stamped in the future: how old they are depends on when that is asked.
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
        """Rows after positions, those that a trim took included, and when the oldest left arrived."""
        waiting = self._waiting({"": (stream, positions)}, at)
        return sum(end - positions.get(p, 0) for p, end in waiting.ends[""].items()), waiting.oldest_s

    def keep(self, readers: Collection[tuple[str, Positions]]) -> None:
        """Forgets streams that nobody reads, and segments that every reader is past.

        Args:
            readers: The stream and the positions of each reader that is there.
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
