"""The rows that wait for a query, from segment headers alone: the work does not grow with the rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from penstock.grants.offset import Positions
from penstock.vocabulary.model import NO_ROWS, Admission, FloatArray, WaitingRows

IntArray = npt.NDArray[np.int64]

_BINS = 128
"""Number of bins of a waiting profile. More bins would not improve decisions, but make records larger."""
_FEW = 1024
"""With up to this many segments in a partition, looking at each segment is faster than a search for bins."""
_SEVERAL = 8
"""From this number of partitions on, looking at all partitions at once is faster than one after the other."""


@dataclass(frozen=True, slots=True, eq=False)
class SegmentRows:
    """The waiting rows of some segments. Each field is an array with one entry for each segment.

    Attributes:
        segment: The first position of the segment, whether or not it waits.
        first: The first waiting position of the segment.
        rows: Number of waiting rows.
        low_s: Arrival time of the first waiting row.
        high_s: Arrival time of the last row.
    """

    segment: IntArray
    first: IntArray
    rows: IntArray
    low_s: FloatArray
    high_s: FloatArray


@dataclass(slots=True, eq=False)
class WaitingSegments:
    """The segments of one partition with rows that wait for one reader.

    Nobody changes an object of this class. Still the class is not frozen. A frozen object takes twice as long
    to make, and every look at a stream makes an object for each partition.

    The arrays describe whole segments, and all readers of the stream share them. So a long backlog costs no
    more than a short one. Of the first segment only the rows from `start` on wait.

    Attributes:
        reader: The id of the reader.
        partition: The partition.
        segment: The first position of each segment.
        ends: The position after each segment.
        low_s: By segment, the arrival time of its first row.
        high_s: By segment, the arrival time of its last row. It never falls from one segment to the next.
        start: The first waiting position. It may lie before the first segment, if positions in between have
            no header. Nothing is known of such rows; they count with the first segment.
        end: The position after the last row, as in `ends`.
        newest_s: The arrival time of the last row, as in `high_s`.
    """

    reader: str
    partition: int
    segment: IntArray
    ends: IntArray
    low_s: FloatArray
    high_s: FloatArray
    start: int
    end: int
    newest_s: float

    @classmethod
    def of(
        cls,
        reader: str,
        partition: int,
        segment: IntArray,
        ends: IntArray,
        low_s: FloatArray,
        high_s: FloatArray,
        start: int,
    ) -> WaitingSegments:
        """Makes an object. `end` and `newest_s` are those of the last segment."""
        return cls(reader, partition, segment, ends, low_s, high_s, start, int(ends[-1]), float(high_s[-1]))

    @property
    def rows(self) -> int:
        """How many rows wait."""
        return self.end - self.start

    @property
    def oldest_s(self) -> float:
        """Arrival time of the first waiting row. Rows of a segment are taken to arrive evenly."""
        low_s, begins = float(self.low_s[0]), int(self.segment[0])
        if self.start <= begins:
            return low_s
        part = (self.start - begins) / (int(self.ends[0]) - begins)
        return low_s + part * (float(self.high_s[0]) - low_s)

    def position_at(self, arrival_s: float) -> int:
        """Returns the first waiting position with a row that arrived after a moment.

        Rows of a segment are taken to arrive evenly.
        """
        i = int(self.high_s.searchsorted(arrival_s, side="right"))
        if i == self.ends.size:
            return self.end
        first = self.start if i == 0 else int(self.segment[i])
        low_s = self.oldest_s if i == 0 else float(self.low_s[i])
        high_s = float(self.high_s[i])
        if arrival_s < low_s or high_s <= low_s:
            return first
        rows = int(self.ends[i]) - first
        return first + min(int((arrival_s - low_s) / (high_s - low_s) * rows), rows)

    def which(self, first: int, end: int) -> slice:
        """Returns which segments have waiting rows in [first, end)."""
        low = 0 if first <= self.start else int(self.ends.searchsorted(first, side="right"))
        if end >= self.end:
            return slice(low, self.ends.size)
        high = int(self.segment.searchsorted(end, side="left")) if end > max(first, self.start) else low
        return slice(low, max(low, high))

    def between(self, first: int, end: int) -> SegmentRows:
        """Returns the segments with waiting rows in [first, end), each with all its waiting rows."""
        at = self.which(first, end)
        segment, ends = self.segment[at], self.ends[at]
        firsts, low_s = segment, self.low_s[at]
        if segment.size and self.start > segment[0]:  # a grant ended inside this segment
            firsts, low_s = segment.copy(), low_s.copy()
            firsts[0], low_s[0] = self.start, self.oldest_s
        return SegmentRows(segment, firsts, ends - firsts, low_s, self.high_s[at])


@dataclass(frozen=True, slots=True)
class Waiting:
    """The rows that wait for a query's readers.

    The last three fields are computed once, because they are read far more often than they change.

    Attributes:
        parts: Partitions with waiting rows.
        ends: By reader, the positions after the last waiting rows.
        rows: Number of waiting rows.
        oldest_s: Arrival time of the oldest waiting row; `None` if no row waits.
        newest_s: Arrival time of the newest waiting row; minus infinity if no row waits.
    """

    parts: Sequence[WaitingSegments] = ()
    ends: Mapping[str, Positions] = field(default_factory=dict)
    rows: int = field(init=False)
    oldest_s: float | None = field(init=False)
    newest_s: float = field(init=False)

    def __post_init__(self) -> None:
        oldest_s = min((part.oldest_s for part in self.parts), default=None)
        object.__setattr__(self, "rows", sum(part.rows for part in self.parts))
        object.__setattr__(self, "oldest_s", oldest_s)
        newest_s = max((part.newest_s for part in self.parts), default=-np.inf)
        object.__setattr__(self, "newest_s", newest_s)


def profile(waiting: Waiting) -> WaitingRows:
    """Waiting rows by arrival time over all readers, in at most 128 bins."""
    parts = waiting.parts
    if not parts:
        return NO_ROWS
    segments = sum(part.ends.size for part in parts)
    if segments <= _BINS:
        arrival_s, rows = np.concatenate([part.high_s for part in parts]), _segment_rows(parts)
        order = arrival_s.argsort(kind="stable")
        return WaitingRows(arrival_s[order], rows[order])
    edges = np.linspace(min(float(part.high_s[0]) for part in parts), waiting.newest_s, _BINS)
    if segments > _FEW * len(parts):
        return WaitingRows(edges, np.sum([_rows_by(part, edges) for part in parts], axis=0))
    at = edges.searchsorted(np.concatenate([part.high_s for part in parts]), side="left")
    at = np.minimum(at, _BINS - 1)  # linspace may round its last edge down
    binned = np.bincount(at, weights=_segment_rows(parts), minlength=_BINS)
    return WaitingRows(edges, binned.astype(np.float64))


def _segment_rows(parts: Sequence[WaitingSegments]) -> FloatArray:
    """How many rows wait in each segment of some partitions, one partition after the other."""
    begins = np.concatenate([part.segment for part in parts])
    # of the first segment of a partition, rows before `start` do not wait any more
    begins[list(accumulate((part.ends.size for part in parts[:-1]), initial=0))] = [p.start for p in parts]
    rows: FloatArray = (np.concatenate([part.ends for part in parts]) - begins).astype(np.float64)
    return rows


def _rows_by(part: WaitingSegments, edges: FloatArray) -> FloatArray:
    """Waiting rows of a partition by bin; a segment counts where its last row arrived.

    Bins are found by search: a backlog of a million segments costs no more than one of a thousand.
    """
    at = part.high_s.searchsorted(edges, side="right")
    upto = np.where(at > 0, part.ends[np.maximum(at - 1, 0)], part.start)
    upto[-1] = part.end  # linspace may round its last edge down
    return np.diff(upto, prepend=part.start).astype(np.float64)


@dataclass(frozen=True, slots=True)
class Cut:
    """The positions at which a grant ends, and the positions before which its rows are late.

    Attributes:
        ends: By reader, the positions at which the grant ends.
        late: By reader, the positions before which rows are late.
        rows: Number of rows between `late` and `ends`. The grant's plan decides about these rows.
        late_rows: Number of late rows.
    """

    ends: Mapping[str, dict[int, int]]
    late: Mapping[str, dict[int, int]]
    rows: int
    late_rows: int


def cut(waiting: Waiting, grant: Admission, row_limit: float) -> Cut:
    """Turns a grant's times into positions.

    Args:
        waiting: The waiting rows on which the decision was made.
        grant: The decision, in arrival times.
        row_limit: Most rows to admit, oldest first. The grant's own limit holds, too.
    """
    parts = waiting.parts
    limit = row_limit if grant.limit_rows is None else min(row_limit, grant.limit_rows)
    limit = limit / grant.keep_fraction if grant.keep_fraction > 0 else np.inf
    if waiting.oldest_s is None or grant.shed_before_s <= waiting.oldest_s:
        late_at = [part.start for part in parts]
    else:
        late_at = [part.position_at(np.nextafter(grant.shed_before_s, -np.inf)) for part in parts]
    if grant.cut_s >= waiting.newest_s:
        until = [part.end for part in parts]
    else:
        until = [max(late, part.position_at(grant.cut_s)) for part, late in zip(parts, late_at, strict=True)]
    if sum(until) - sum(late_at) > limit:
        until = _oldest(waiting, late_at, until, int(limit))
    ends: dict[str, dict[int, int]] = {name: {} for name in waiting.ends}
    late: dict[str, dict[int, int]] = {name: {} for name in waiting.ends}
    for part, late_end, end in zip(parts, late_at, until, strict=True):
        ends[part.reader][part.partition] = end
        late[part.reader][part.partition] = late_end
    late_rows = sum(at - part.start for part, at in zip(parts, late_at, strict=True))
    return Cut(ends, late, sum(until) - sum(late_at), late_rows)


def _oldest(waiting: Waiting, late_at: Sequence[int], until: Sequence[int], limit: int) -> list[int]:
    """Returns ends before which the oldest `limit` rows lie. Rows of one time are taken by position."""
    assert waiting.oldest_s is not None
    low_s, high_s = float(np.nextafter(waiting.oldest_s, -np.inf)), waiting.newest_s
    ends_at, full = _ends_by_time(waiting.parts, late_at, until), sum(late_at) + limit
    for _ in range(48):  # to less than a microsecond
        middle_s = (low_s + high_s) / 2
        if middle_s in (low_s, high_s):  # there is no moment in between
            break
        rows = sum(ends_at(middle_s))
        low_s, high_s = (low_s, middle_s) if rows > full else (middle_s, high_s)
        if rows == full:  # every later moment with as many rows has the same ones
            break
    ends = ends_at(low_s)
    left = full - sum(ends)
    for i, most in enumerate(ends_at(high_s)) if left else ():
        more = min(left, most - ends[i])
        ends[i] += more
        left -= more
    return ends


def _ends_by_time(
    parts: Sequence[WaitingSegments], late_at: Sequence[int], until: Sequence[int]
) -> Callable[[float], list[int]]:
    """Returns a function: it gives, for a moment, the ends of a grant of all rows that arrived until then.

    Args:
        parts: The partitions.
        late_at: By partition, the end of the late rows; no end is before it.
        until: By partition, the bound of all ends.
    """
    sizes = [part.ends.size for part in parts]
    if len(parts) < _SEVERAL or sum(sizes) > _FEW * len(parts):
        bounds = list(zip(parts, late_at, until, strict=True))
        return lambda moment_s: [
            min(max(late, part.position_at(moment_s)), end) for part, late, end in bounds
        ]
    # after the segments of a partition comes an empty one in which all that arrives later would be
    begins, upto, low_s, high_s = (
        np.concatenate([np.append(column, last) for column, last in columns])
        for columns in (
            [(part.segment, part.end) for part in parts],
            [(part.ends, part.end) for part in parts],
            [(part.low_s, 0.0) for part in parts],
            [(part.high_s, np.inf) for part in parts],
        )
    )
    at = np.cumsum([0, *(size + 1 for size in sizes[:-1])])
    begins[at], low_s[at] = [part.start for part in parts], [part.oldest_s for part in parts]
    rows, takes_s = upto - begins, np.where(high_s > low_s, high_s - low_s, np.inf)
    late, most = np.array(late_at), np.array(until)

    def ends_at(moment_s: float) -> list[int]:  # as `position_at` of each partition says
        i = at + np.add.reduceat(high_s <= moment_s, at, dtype=np.int64)
        inside = ((moment_s - low_s[i]) / takes_s[i] * rows[i]).astype(np.int64)
        found = begins[i] + np.minimum(np.maximum(inside, 0), rows[i])
        ends: list[int] = np.minimum(np.maximum(late, found), most).tolist()
        return ends

    return ends_at
