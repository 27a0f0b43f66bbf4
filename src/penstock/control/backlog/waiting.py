"""What waits for a query: from segment headers alone, whatever the number of rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from penstock.grants.offset import Positions
from penstock.vocabulary.model import NO_ROWS, Admission, FloatArray, WaitingRows

IntArray = npt.NDArray[np.int64]

_BINS = 128
"""Resolution of a waiting profile; a decision needs no more and a recorded run stays small."""


@dataclass(frozen=True, slots=True, eq=False)
class SegmentRows:
    """Waiting rows of some segments, an array a field.

    Attributes:
        segment: Where each segment begins, also the part of it that does not wait any more.
        first: The first waiting position of each segment.
        rows: How many rows of each segment wait.
        low_s: When the first waiting row of each segment arrived.
        high_s: When the last row of each segment arrived.
    """

    segment: IntArray
    first: IntArray
    rows: IntArray
    low_s: FloatArray
    high_s: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class WaitingSegments:
    """Segments with waiting rows, of one partition of one reader.

    The arrays are of whole segments and are shared with other readers of the stream, so that a long backlog
    costs no more than a short one. Of the first segment only the rows from `start` on wait.

    Attributes:
        reader: Whose rows.
        partition: Of which partition.
        segment: Where each segment begins.
        ends: Where each segment ends.
        low_s: When the first row of each segment arrived.
        high_s: When the last row of each segment arrived; it never falls from one segment to the next.
        start: The first waiting position. It lies before the first segment where the positions in between
            have no header: nothing is known of such rows, and they go with the first segment's.
    """

    reader: str
    partition: int
    segment: IntArray
    ends: IntArray
    low_s: FloatArray
    high_s: FloatArray
    start: int

    @property
    def end(self) -> int:
        return int(self.ends[-1])

    @property
    def rows(self) -> int:
        """How many rows wait."""
        return self.end - self.start

    @property
    def oldest_s(self) -> float:
        """When the first waiting row arrived; inside a segment arrivals are even."""
        low_s, begins = float(self.low_s[0]), int(self.segment[0])
        if self.start <= begins:
            return low_s
        part = (self.start - begins) / (int(self.ends[0]) - begins)
        return low_s + part * (float(self.high_s[0]) - low_s)

    def position_at(self, arrival_s: float) -> int:
        """The first waiting position that arrived after a moment; inside a segment arrivals are even."""
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

    def between(self, first: int, end: int) -> SegmentRows:
        """The segments that have waiting rows in [first, end), each with all its waiting rows."""
        first = max(first, self.start)
        low = int(self.ends.searchsorted(first, side="right"))
        high = max(low, int(self.segment.searchsorted(end, side="left"))) if end > first else low
        segment, ends = self.segment[low:high], self.ends[low:high]
        firsts, low_s = segment, self.low_s[low:high]
        if segment.size and self.start > segment[0]:  # a grant ended inside this segment
            firsts, low_s = segment.copy(), low_s.copy()
            firsts[0], low_s[0] = self.start, self.oldest_s
        return SegmentRows(segment, firsts, ends - firsts, low_s, self.high_s[low:high])

    def all(self) -> SegmentRows:
        """All segments."""
        return self.between(self.start, self.end)


@dataclass(frozen=True, slots=True)
class Waiting:
    """What waits for a query's readers.

    Attributes:
        parts: Partitions with waiting rows.
        ends: By reader, the positions at which nothing waits any more.
        rows: How many rows wait; this and the next are asked for far more often than they change.
        oldest_s: When the oldest of them arrived.
    """

    parts: Sequence[WaitingSegments] = ()
    ends: Mapping[str, Positions] = field(default_factory=dict)
    rows: int = field(init=False)
    oldest_s: float | None = field(init=False)

    def __post_init__(self) -> None:
        oldest_s = min((part.oldest_s for part in self.parts), default=None)
        object.__setattr__(self, "rows", sum(part.rows for part in self.parts))
        object.__setattr__(self, "oldest_s", oldest_s)


def profile(waiting: Waiting) -> WaitingRows:
    """Waiting rows by arrival time over all readers, in at most 128 bins."""
    parts = waiting.parts
    if not parts:
        return NO_ROWS
    if sum(part.ends.size for part in parts) <= _BINS:
        found = [part.all() for part in parts]
        arrival_s = np.concatenate([each.high_s for each in found])
        rows = np.concatenate([each.rows for each in found]).astype(np.float64)
        order = np.argsort(arrival_s, kind="stable")
        return WaitingRows(arrival_s[order], rows[order])
    edges = np.linspace(
        min(float(part.high_s[0]) for part in parts), max(float(part.high_s[-1]) for part in parts), _BINS
    )
    return WaitingRows(edges, np.sum([_rows_by(part, edges) for part in parts], axis=0))


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
    """Where a grant ends, and what of it is late, by reader.

    Attributes:
        ends: Positions by reader.
        late: Positions before which rows are late, by reader.
        rows: Rows between late and end: those the plan's coins are for.
        late_rows: Rows that are late.
    """

    ends: Mapping[str, dict[int, int]]
    late: Mapping[str, dict[int, int]]
    rows: int
    late_rows: int


def cut(waiting: Waiting, grant: Admission, row_limit: float) -> Cut:
    """Turns a grant's times into positions.

    Args:
        waiting: What was looked at for the decision.
        grant: In arrival times.
        row_limit: Admit no more than this, oldest first, beside the grant's own limit.
    """
    parts = waiting.parts
    limit = row_limit if grant.limit_rows is None else min(row_limit, grant.limit_rows)
    limit = limit / grant.keep_fraction if grant.keep_fraction > 0 else np.inf
    late_at = [part.position_at(np.nextafter(grant.shed_before_s, -np.inf)) for part in parts]
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
    """Ends that hold the oldest `limit` rows: by arrival time, and among rows of one time by position."""
    low_s = float(np.nextafter(min(part.oldest_s for part in waiting.parts), -np.inf))
    high_s = max(float(part.high_s[-1]) for part in waiting.parts)

    def ends_at(moment_s: float) -> list[int]:
        return [
            min(max(late, part.position_at(moment_s)), end)
            for part, late, end in zip(waiting.parts, late_at, until, strict=True)
        ]

    for _ in range(48):  # to less than a microsecond
        middle_s = (low_s + high_s) / 2
        if sum(ends_at(middle_s)) - sum(late_at) > limit:
            high_s = middle_s
        else:
            low_s = middle_s
    ends = ends_at(low_s)
    left = limit - (sum(ends) - sum(late_at))
    for i, most in enumerate(ends_at(high_s)):
        more = min(left, most - ends[i])
        ends[i] += more
        left -= more
    return ends
