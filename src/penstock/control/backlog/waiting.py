"""What waits for a query: from segment headers alone, whatever the number of rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from penstock.grants.offset import Positions
from penstock.streams.protocol import HeaderArrays, ReadableStream
from penstock.vocabulary.model import NO_ROWS, Admission, FloatArray, WaitingRows

_BINS = 128
"""Resolution of a waiting profile; a decision needs no more and a recorded run stays small."""


@dataclass(frozen=True, slots=True, eq=False)
class Stretch:
    """Waiting rows of one partition of one reader, by segment, the first one clipped."""

    reader: str
    partition: int
    segment: npt.NDArray[np.int64]
    """Where each segment begins, also the part of it that does not wait any more."""
    first: npt.NDArray[np.int64]
    rows: npt.NDArray[np.int64]
    arrival_min_s: FloatArray
    arrival_max_s: FloatArray

    @property
    def end(self) -> int:
        return int(self.first[-1] + self.rows[-1])

    def position_at(self, arrival_s: float) -> int:
        """The first waiting position that arrived after a moment; inside a segment arrivals are even."""
        i = int(np.searchsorted(self.arrival_max_s, arrival_s, side="right"))
        if i == self.rows.size:
            return self.end
        low_s, high_s = float(self.arrival_min_s[i]), float(self.arrival_max_s[i])
        if arrival_s < low_s or high_s <= low_s:
            return int(self.first[i])
        part = (arrival_s - low_s) / (high_s - low_s)
        return int(self.first[i]) + min(int(part * self.rows[i]), int(self.rows[i]))


@dataclass(frozen=True, slots=True)
class Waiting:
    """What waits for a query's readers.

    Attributes:
        stretches: Partitions with waiting rows.
        ends: By reader, the positions at which nothing waits any more.
        rows: How many; this and the next are asked for far more often than they change.
        oldest_s: When the oldest of them arrived.
    """

    stretches: Sequence[Stretch]
    ends: Mapping[str, Positions]
    rows: int = field(init=False)
    oldest_s: float | None = field(init=False)

    def __post_init__(self) -> None:
        oldest_s = min((float(stretch.arrival_min_s[0]) for stretch in self.stretches), default=None)
        object.__setattr__(self, "rows", sum(int(stretch.rows.sum()) for stretch in self.stretches))
        object.__setattr__(self, "oldest_s", oldest_s)


def as_stamped(stretch: Stretch) -> Stretch:
    """Takes time stamps as they are."""
    return stretch


def look(
    readers: Mapping[str, tuple[ReadableStream, Positions]],
    corrected: Callable[[Stretch], Stretch] = as_stamped,
) -> Waiting:
    """What waits now.

    Args:
        readers: By reader, its log and the positions it has reached.
        corrected: Says when rows arrived where their time stamps cannot be right.
    """
    stretches, ends = [], {}
    for name, (log, positions) in readers.items():
        ends[name] = {p: max(log.end(p), positions.get(p, 0)) for p in range(log.partitions)}
        for p, end in ends[name].items():
            first = max(positions.get(p, 0), log.start(p))
            headers = log.header_arrays(p, first, end, keys=False)
            if end > first and len(headers):  # none when a trim came in between
                stretches.append(corrected(_stretch(name, p, headers, first, end)))
    return Waiting(stretches, ends)


def left_of(
    log: ReadableStream, positions: Positions, corrected: Callable[[Stretch], Stretch] = as_stamped
) -> tuple[int, float | None]:
    """Rows after positions, those that a trim took included, and when the oldest that is there arrived."""
    waiting = look({"": (log, positions)}, corrected)
    return sum(end - positions.get(p, 0) for p, end in waiting.ends[""].items()), waiting.oldest_s


def _stretch(reader: str, partition: int, headers: HeaderArrays, first: int, end: int) -> Stretch:
    firsts = np.maximum(headers.first_position, first)
    ends = np.minimum(headers.first_position + headers.rows, end)
    low_s, high_s = headers.arrival_min_us / 1e6, headers.arrival_max_us / 1e6
    if firsts[0] > headers.first_position[0]:  # a grant ended inside this segment
        part = (firsts[0] - headers.first_position[0]) / headers.rows[0]
        low_s = np.concatenate(([low_s[0] + part * (high_s[0] - low_s[0])], low_s[1:]))
    return Stretch(reader, partition, headers.first_position, firsts, ends - firsts, low_s, high_s)


def profile(waiting: Waiting) -> WaitingRows:
    """Waiting rows by arrival time over all readers, in at most 128 bins."""
    if not waiting.stretches:
        return NO_ROWS
    arrival_s = np.concatenate([stretch.arrival_max_s for stretch in waiting.stretches])
    rows = np.concatenate([stretch.rows for stretch in waiting.stretches]).astype(np.float64)
    order = np.argsort(arrival_s, kind="stable")
    arrival_s, rows = arrival_s[order], rows[order]
    if arrival_s.size <= _BINS:
        return WaitingRows(arrival_s, rows)
    edges = np.linspace(arrival_s[0], arrival_s[-1], _BINS)
    edges[-1] = arrival_s[-1]
    index = np.minimum(np.searchsorted(edges, arrival_s, side="left"), _BINS - 1)
    return WaitingRows(edges, np.bincount(index, weights=rows, minlength=_BINS).astype(np.float64))


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
    limit = row_limit if grant.limit_rows is None else min(row_limit, grant.limit_rows)
    limit = limit / grant.keep_fraction if grant.keep_fraction > 0 else np.inf
    late_at = [s.position_at(np.nextafter(grant.shed_before_s, -np.inf)) for s in waiting.stretches]
    until = [
        max(late, s.position_at(grant.cut_s)) for s, late in zip(waiting.stretches, late_at, strict=True)
    ]
    if sum(until) - sum(late_at) > limit:
        until = _oldest(waiting, late_at, until, int(limit))
    ends: dict[str, dict[int, int]] = {name: {} for name in waiting.ends}
    late: dict[str, dict[int, int]] = {name: {} for name in waiting.ends}
    for stretch, late_end, end in zip(waiting.stretches, late_at, until, strict=True):
        ends[stretch.reader][stretch.partition] = end
        late[stretch.reader][stretch.partition] = late_end
    late_rows = sum(at - int(s.first[0]) for s, at in zip(waiting.stretches, late_at, strict=True))
    return Cut(ends, late, sum(until) - sum(late_at), late_rows)


def _oldest(waiting: Waiting, late_at: Sequence[int], until: Sequence[int], limit: int) -> list[int]:
    """Ends that hold the oldest `limit` rows: by arrival time, and among rows of one time by position."""
    low_s = np.nextafter(min(float(s.arrival_min_s[0]) for s in waiting.stretches), -np.inf)
    high_s = max(float(s.arrival_max_s[-1]) for s in waiting.stretches)

    def ends_at(moment_s: float) -> list[int]:
        return [
            min(max(late, s.position_at(moment_s)), end)
            for s, late, end in zip(waiting.stretches, late_at, until, strict=True)
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
