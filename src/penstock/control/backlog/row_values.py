"""Values of waiting rows that a class's shedder needs. A segment is read once for all queries of the class.

The control plane itself reads no rows. Its host fetches values that the shedder does not know yet. The grant
is decided when the values have come.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from penstock.control.backlog.waiting import Cut, WaitingSegments
from penstock.control.state.query import Reader
from penstock.grants.offset import Positions
from penstock.grants.plans.values import Values
from penstock.policies.quality.sic import IntArray


@dataclass(frozen=True, slots=True, eq=False)
class Inside:
    """Some waiting rows of one partition: rows that a cut decides about, or rows that it takes as late.

    Attributes:
        part: The partition's waiting segments.
        segment: The first position of each segment that has some of the rows.
        rows: By segment, how many of the rows it has.
        low_s: By segment, the arrival time of its first waiting row.
        high_s: By segment, the arrival time of its last row.
        first: The position of the first of the rows.
    """

    part: WaitingSegments
    segment: IntArray
    rows: IntArray
    low_s: Values
    high_s: Values
    first: int


def inside(parts: Sequence[WaitingSegments], decided: Cut) -> list[Inside]:
    """Returns, by partition, the rows that a cut decides about."""
    return [
        _inside(part, decided.late[part.reader][part.partition], decided.ends[part.reader][part.partition])
        for part in parts
    ]


def late_part(parts: Sequence[WaitingSegments], decided: Cut) -> list[Inside]:
    """Returns, by partition, the rows that a cut takes as late."""
    return [_inside(part, part.start, decided.late[part.reader][part.partition]) for part in parts]


def _inside(part: WaitingSegments, first: int, end: int) -> Inside:
    found = part.between(first, end)
    rows = np.minimum(found.first + found.rows, end) - np.maximum(found.first, first)
    at = np.flatnonzero(rows > 0)
    return Inside(part, found.segment[at], rows[at], found.low_s[at], found.high_s[at], first)


@dataclass(frozen=True, slots=True)
class Look:
    """The kind of value that a shedder needs of a row: the row's worth, or the number of its window.

    Attributes:
        by: For worth, an expression in CQL. For windows, the column with the row's time.
        size_us: The size of windows; 0 for worth.
    """

    by: str
    size_us: int = 0


@dataclass(frozen=True, slots=True)
class Fetch:
    """Values of rows that a shedder needs, all of one partition.

    Attributes:
        stream: The id of the stream.
        partition: The partition.
        look: The kind of value.
        segments: First positions of the segments whose rows are needed, in order.
        positions: Positions of single rows that are needed.
    """

    stream: str
    partition: int
    look: Look
    segments: tuple[int, ...] = ()
    positions: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class SegmentValues:
    """The values of one segment's rows.

    Attributes:
        positions: The position of each row. Some positions of the segment may have no row.
        values: The value of each row.
        end: The position after the segment.
    """

    positions: IntArray
    values: Values | IntArray
    end: int

    def between(self, first: int, end: int) -> Values | IntArray:
        """Returns the values of the rows whose positions lie in [first, end)."""
        low, high = self.positions.searchsorted([first, end])
        return self.values[low:high]


@dataclass(frozen=True, slots=True, eq=False)
class FetchedValues:
    """The answer to a `Fetch`.

    Attributes:
        fetch: The request.
        segments: By the first position of a segment, the values of its rows.
        positions: By position, the value of the row there, or of the last row before it in its segment. The
            value is `None` if there is no such row, or the row was trimmed.
    """

    fetch: Fetch
    segments: Mapping[int, SegmentValues] = field(default_factory=dict)
    positions: Mapping[int, int | None] = field(default_factory=dict)


class RowsNeededError(Exception):
    """A shedder cannot decide yet, because values of rows are missing.

    Args:
        fetches: Requests for the missing values.
    """

    def __init__(self, fetches: Sequence[Fetch]) -> None:
        super().__init__(f"{len(fetches)} fetches")
        self.fetches = fetches


Key = tuple[str, int, Look]


class RowValues:
    """Remembers values of rows until all queries of the class have passed the rows."""

    def __init__(self) -> None:
        self._known: dict[Key, dict[int, SegmentValues]] = {}
        self._single: dict[Key, dict[int, int | None]] = {}
        """Values of single rows, by position. Only those of the last request are remembered."""
        self._missing: dict[Key, tuple[list[int], list[int]]] = {}

    @property
    def rows(self) -> int:
        """Number of values that are remembered."""
        return sum(found.values.size for known in self._known.values() for found in known.values())

    @property
    def is_empty(self) -> bool:
        return not self._known and not self._single

    def take_in(self, fetched: FetchedValues) -> None:
        """Takes in fetched values."""
        key = fetched.fetch.stream, fetched.fetch.partition, fetched.fetch.look
        self._known.setdefault(key, {}).update(fetched.segments)
        if fetched.positions:
            self._single[key] = dict(fetched.positions)

    def of(self, stream: str, part: Inside, look: Look) -> list[Values | IntArray]:
        """Returns the values of some rows, as an array for each segment.

        If values are missing, all arrays are empty, and the missing segments are noted for `check`.

        Args:
            stream: The id of the stream.
            part: The rows.
            look: The kind of value.
        """
        key = stream, part.part.partition, look
        known, segments = self._known.get(key, {}), part.segment.tolist()
        begins = np.maximum(part.segment, part.first)
        spans = list(zip(segments, begins.tolist(), (begins + part.rows).tolist(), strict=True))
        # the last segment of a partition may have grown since its rows were read
        missing = [segment for segment, _, end in spans if segment not in known or known[segment].end < end]
        if missing:
            self._missing.setdefault(key, ([], []))[0].extend(missing)
            return [np.empty(0) for _ in segments]
        return [known[segment].between(begin, end) for segment, begin, end in spans]

    def at(self, stream: str, partition: int, position: int, look: Look) -> int | None:
        """Returns the value of one row; `None` if the row was trimmed, or its value is missing.

        A missing value is noted for `check`.
        """
        key = stream, partition, look
        known = self._single.get(key, {})
        if position not in known:
            self._missing.setdefault(key, ([], []))[1].append(position)
        return known.get(position)

    def check(self) -> None:
        """Raises `RowsNeededError` if missing values were noted."""
        missing, self._missing = self._missing, {}
        if missing:
            raise RowsNeededError(
                [
                    Fetch(*key, tuple(sorted(set(segments))), tuple(positions))
                    for key, (segments, positions) in missing.items()
                ]
            )

    def forget(self, readers: Iterable[Reader]) -> None:
        """Forgets segments that all readers of the class have passed."""
        positions: dict[str, list[Positions]] = {}
        for reader in readers:
            positions.setdefault(reader.stream.id, []).append(reader.positions)
        for key, known in list(self._known.items()):
            # a reader that does not name a partition has all of it to come: the partition is new
            before = min((each.get(key[1], 0) for each in positions.get(key[0], [])), default=None)
            gone = [s for s, found in known.items() if before is None or found.end <= before]
            for segment in gone:
                del known[segment]
            if not known:
                del self._known[key]
        self._single = {key: single for key, single in self._single.items() if key[0] in positions}
