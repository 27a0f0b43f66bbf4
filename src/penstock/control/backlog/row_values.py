"""What a class's shedder looks up in waiting rows: each segment is read once for all queries of the class.

The control plane reads no rows. What a shedder does not know yet is fetched by whoever hosts the control
plane, and the decision is taken when it is there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from penstock.control.backlog.waiting import Cut, WaitingSegments
from penstock.control.state.query import Reader
from penstock.grants.offset import Positions
from penstock.grants.plans.values import Values, utilities, window_numbers
from penstock.policies.quality.sic import IntArray
from penstock.streams.protocol import StreamRows


@dataclass(frozen=True, slots=True, eq=False)
class Inside:
    """The waiting rows of one partition that a cut decides about, or has as late.

    Attributes:
        part: The partition's waiting segments.
        segment: Where each segment begins that has such rows.
        rows: How many such rows each of them has.
        low_s: When the first waiting row of each segment arrived.
        high_s: When the last row of each segment arrived.
        first: The first such row.
    """

    part: WaitingSegments
    segment: IntArray
    rows: IntArray
    low_s: Values
    high_s: Values
    first: int


def inside(parts: Sequence[WaitingSegments], decided: Cut) -> list[Inside]:
    """By partition, the rows that a cut decides about."""
    return [
        _inside(part, decided.late[part.reader][part.partition], decided.ends[part.reader][part.partition])
        for part in parts
    ]


def late_part(parts: Sequence[WaitingSegments], decided: Cut) -> list[Inside]:
    """By partition, the rows that a cut has as late."""
    return [_inside(part, part.start, decided.late[part.reader][part.partition]) for part in parts]


def _inside(part: WaitingSegments, first: int, end: int) -> Inside:
    found = part.between(first, end)
    rows = np.minimum(found.first + found.rows, end) - np.maximum(found.first, first)
    at = np.flatnonzero(rows > 0)
    return Inside(part, found.segment[at], rows[at], found.low_s[at], found.high_s[at], first)


@dataclass(frozen=True, slots=True)
class Look:
    """What is looked up.

    Attributes:
        by: An expression in CQL that says what a row is worth, or the column with its time.
        size_us: Of windows; 0 for what rows are worth.
    """

    by: str
    size_us: int = 0


@dataclass(frozen=True, slots=True)
class Fetch:
    """Values of rows that a shedder needs, all of one partition.

    Attributes:
        stream: The id of the stream.
        partition: Which partition.
        look: What is looked up.
        segments: Where the segments begin whose rows are needed, in order.
        positions: Single rows that are needed.
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
        positions: The position of each row; some positions of the segment may have no row.
        values: The value of each row.
        end: Where the segment ends.
    """

    positions: IntArray
    values: Values | IntArray
    end: int

    def between(self, first: int, end: int) -> Values | IntArray:
        """The values of the rows whose positions lie in [first, end)."""
        low, high = self.positions.searchsorted([first, end])
        return self.values[low:high]


@dataclass(frozen=True, slots=True, eq=False)
class FetchedValues:
    """The answer to a `Fetch`.

    Attributes:
        fetch: What was asked for.
        segments: By where a segment begins, the values of its rows.
        positions: By position, the value of the row there, or of the last row before it in its segment;
            `None` if there is no such row, or not any more.
    """

    fetch: Fetch
    segments: Mapping[int, SegmentValues] = field(default_factory=dict)
    positions: Mapping[int, int | None] = field(default_factory=dict)


class RowsNeededError(Exception):
    """A shedder cannot decide yet: values of rows are missing.

    Args:
        fetches: What is missing.
    """

    def __init__(self, fetches: Sequence[Fetch]) -> None:
        super().__init__(f"{len(fetches)} fetches")
        self.fetches = fetches


Key = tuple[str, int, Look]


class RowValues:
    """Values of waiting rows, remembered while a query of the class still has the row to come."""

    def __init__(self) -> None:
        self._known: dict[Key, dict[int, SegmentValues]] = {}
        self._single: dict[Key, dict[int, int | None]] = {}
        """Values of single rows, by position: the last that was asked for."""
        self._missing: dict[Key, tuple[list[int], list[int]]] = {}

    @property
    def rows(self) -> int:
        """How many are remembered."""
        return sum(found.values.size for known in self._known.values() for found in known.values())

    @property
    def is_empty(self) -> bool:
        return not self._known and not self._single

    def take_in(self, fetched: FetchedValues) -> None:
        """Values that were missing."""
        key = fetched.fetch.stream, fetched.fetch.partition, fetched.fetch.look
        self._known.setdefault(key, {}).update(fetched.segments)
        if fetched.positions:
            self._single[key] = dict(fetched.positions)

    def of(self, stream: str, part: Inside, look: Look) -> list[Values | IntArray]:
        """The values of some rows, an array a segment; what is missing is noted, and empty here.

        Args:
            stream: The id of the stream.
            part: Which rows.
            look: What is looked up.
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
        """The value of one row, `None` if it is not there any more; where it is missing, that is noted."""
        key = stream, partition, look
        known = self._single.get(key, {})
        if position not in known:
            self._missing.setdefault(key, ([], []))[1].append(position)
        return known.get(position)

    def check(self) -> None:
        """Raises what is missing, if anything is."""
        missing, self._missing = self._missing, {}
        if missing:
            raise RowsNeededError(
                [
                    Fetch(*key, tuple(sorted(set(segments))), tuple(positions))
                    for key, (segments, positions) in missing.items()
                ]
            )

    def forget(self, readers: Iterable[Reader]) -> None:
        """Lets go of segments that all of a class's readers are past."""
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


def fetch_values(log: StreamRows, fetch: Fetch) -> FetchedValues:
    """Reads the rows that a shedder needs; a host does so where it holds up nobody.

    Args:
        log: The stream.
        fetch: What is needed.
    """
    p, wanted = fetch.partition, fetch.segments
    found: dict[int, SegmentValues] = {}
    if wanted:
        headers = log.header_arrays(p, wanted[0], wanted[-1] + 1, keys=False)
        at = np.flatnonzero(np.isin(headers.first_position, wanted))
        spans = list(zip(headers.first_position[at].tolist(), headers.end_position[at].tolist(), strict=True))
        rows = [log.read(p, first, end) for first, end in spans]
        values = _values([each.batch for each in rows], fetch.look)
        ends = np.cumsum([each.positions.size for each in rows]).tolist()
        for (first, end), each, upto in zip(spans, rows, ends, strict=True):
            found[first] = SegmentValues(each.positions, values[upto - each.positions.size : upto], end)
    return FetchedValues(fetch, found, {at: _value_at(log, fetch, at) for at in fetch.positions})


def _value_at(log: StreamRows, fetch: Fetch, position: int) -> int | None:
    headers = log.header_arrays(fetch.partition, position, position + 1, keys=False)
    if not len(headers):
        return None  # it was trimmed
    rows = log.read(fetch.partition, int(headers.first_position[0]), position + 1).batch
    return int(_values([rows.slice(rows.num_rows - 1)], fetch.look)[0]) if rows.num_rows else None


def _values(batches: Sequence[pa.RecordBatch], look: Look) -> Values | IntArray:
    """All of them are computed at once."""
    if look.size_us:
        return window_numbers(batches, look.by, look.size_us)
    return utilities(batches, look.by)
