"""Event-time windows over a log: which windows have shed rows, which are closed, where their rows are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.grants.journal import Entry, Journal
from penstock.grants.offset import Offset
from penstock.grants.selection import Piece, Range, read_range
from penstock.lanes.lane import check_rows, positions_within, shed_rows
from penstock.streams.protocol import StreamRows
from penstock.vocabulary.errors import InvalidInputError, require_positive

Times = npt.NDArray[np.int64]
"""Microseconds since the epoch."""

NO_TIME = np.iinfo(np.int64).min
"""Event time of a row without one; such a row belongs to no window."""

Progress = Callable[[str, int, int], None]
"""Reports progress: what is being done, how much of it is done, how much there is in all."""


@dataclass(frozen=True, slots=True)
class Windows:
    """The windows of a query, as in Spark's `window(column, length, slide)`: aligned at the epoch.

    Attributes:
        column: The event-time column.
        length_s: Length of a window.
        slide_s: Time from the beginning of one window to that of the next; by default the length.
        lateness_s: How late a row may be: the delay of the query's watermark.
        result: The result's column with the window, or with its start; needed if windows overlap.
    """

    column: str
    length_s: float
    slide_s: float | None = None
    lateness_s: float = 0.0
    result: str | None = "window"

    def __post_init__(self) -> None:
        require_positive("a window's length", self.length_s, "seconds, for example 10")
        if self.slide_s is not None and not 0 < self.slide_s <= self.length_s:
            raise InvalidInputError(
                "a window's slide is positive and at most its length", self.slide_s, "leave it out"
            )
        if self.lateness_s < 0:
            raise InvalidInputError(
                "lateness is 0 or more", self.lateness_s, "the query's watermark, in seconds"
            )

    @property
    def length_us(self) -> int:
        return round(self.length_s * 1e6)

    @property
    def slide_us(self) -> int:
        return self.length_us if self.slide_s is None else round(self.slide_s * 1e6)

    @property
    def lateness_us(self) -> int:
        return round(self.lateness_s * 1e6)

    @property
    def overlap(self) -> bool:
        return self.slide_us < self.length_us


def event_times(rows: pa.RecordBatch, column: str) -> Times:
    """Event time of each row; `NO_TIME` for a null."""
    if column not in rows.schema.names or not pa.types.is_timestamp(rows.schema.field(column).type):
        raise InvalidInputError(
            "event time is a timestamp column of the stream", repr(column), f"one of {rows.schema.names}"
        )
    field = rows.schema.field(column).type
    times = rows.column(column).cast(pa.timestamp("us", field.tz), safe=False).cast(pa.int64())
    filled: Times = times.fill_null(NO_TIME).to_numpy(zero_copy_only=False)
    return filled


def window_starts(times: Times, windows: Windows) -> Times:
    """Starts of all windows that hold one of the times; each window once, in order."""
    times = np.unique(times[times != NO_TIME])
    last = times // windows.slide_us * windows.slide_us
    count = -(-windows.length_us // windows.slide_us)
    found = [np.empty(0, np.int64)]
    for back in range(count):
        starts = last - back * windows.slide_us
        found.append(starts[starts + windows.length_us > times])
    return np.unique(np.concatenate(found))


def merged(starts: Times, length_us: int) -> tuple[Times, Times]:
    """Starts and ends of the spans that windows cover together; adjacent windows are one span."""
    if starts.size == 0:
        return starts, starts
    new = np.concatenate([[True], starts[1:] > starts[:-1] + length_us])
    ends = np.concatenate([(starts[:-1] + length_us)[new[1:]], starts[-1:] + length_us])
    return starts[new], ends


def inside(times: Times, starts: Times, ends: Times) -> npt.NDArray[np.bool_]:
    """Which times lie in one of the spans."""
    if starts.size == 0:
        return np.zeros(times.size, np.bool_)
    at = np.searchsorted(starts, times, side="right") - 1
    return (at >= 0) & (times < ends[at])


@dataclass(frozen=True, slots=True, eq=False)
class WindowPlan:
    """Windows that the backfill of a windowed query computes anew. A window with shed rows is *touched*.

    Attributes:
        last: Last grant up to which shed rows are in closed windows only; 0 for none.
        touched: Starts of the windows to compute.
        incomplete: Touched windows some of whose rows may have been trimmed: their old results stay.
        open: Touched windows that still take rows; their grants are backfilled later.
        ranges: Ranges of the log with rows of the touched windows.
        open_from: By partition, first row of the open windows.
    """

    last: int
    touched: Times
    incomplete: Times
    open: Times
    ranges: list[Range]
    open_from: dict[int, int]


def check_kept_rows(log: StreamRows, entries: Iterable[Entry]) -> None:
    """Refuses grants if the log has lost rows before their ends: windows need the kept rows, too."""
    for entry in entries:
        check_rows(log, entry, entry.offset.end)


def plan_windows(
    log: StreamRows,
    journal: Journal,
    entries: Sequence[Entry],
    windows: Windows,
    taken: int | None = None,
    closed: bool = False,
    progress: Progress = lambda *_: None,
) -> WindowPlan:
    """Finds the closed windows that have shed rows of some grants, and where the windows' rows are.

    A window is closed when the query's watermark has passed it: no row is added to it any more.

    Args:
        log: The stream.
        journal: The reader's journal.
        entries: The grants that have ended and are not backfilled, in order.
        windows: The query's windows.
        taken: How many of the grants, from the first on, to backfill; by default all.
        closed: Whether all windows touched by these grants are known to be closed.
        progress: Called with the progress of the work.

    Raises:
        InvalidInputError: The log has lost rows that it had before one of the grants' ends.
    """
    check_kept_rows(log, entries)
    by_grant = []
    for i, entry in enumerate(entries[:taken]):
        progress("looking for touched windows", i, len(entries))
        by_grant.append(_starts(shed_rows(log, entry), windows))
    watermark = NO_TIME if closed else _watermark(log, entries, windows, progress)
    passed = [closed or bool((starts + windows.length_us <= watermark).all()) for starts in by_grant]
    count = passed.index(False) if False in passed else len(passed)
    touched, waiting = _union(by_grant[:count]), _union(by_grant[count:])
    bound = _unknown_up_to(log, journal, windows)
    incomplete = touched[touched <= bound]
    touched = touched[touched > bound]
    ranges = _ranges(log, journal, entries, windows, touched, progress)
    open_from: dict[int, int] = {}
    for part in _ranges(log, journal, entries, windows, waiting, progress):
        open_from.setdefault(part.partition, part.first)
    last = entries[count - 1].offset.grant if count else 0
    return WindowPlan(last, touched, incomplete, waiting, ranges, open_from)


def _starts(pieces: Iterable[Piece], windows: Windows) -> Times:
    return _union([window_starts(event_times(piece.rows, windows.column), windows) for piece in pieces])


def _union(found: Sequence[Times]) -> Times:
    return np.unique(np.concatenate([np.empty(0, np.int64), *found]))


def _watermark(log: StreamRows, entries: Sequence[Entry], windows: Windows, progress: Progress) -> int:
    """A lower bound of the query's watermark: the newest event time that these grants kept, less lateness."""
    newest = NO_TIME
    for i, entry in enumerate(entries):
        progress("looking for the watermark", i, len(entries))
        for times in _kept_times(log, entry, windows.column):
            newest = max(newest, int(times.max()))
    return newest - windows.lateness_us if newest != NO_TIME else NO_TIME


def _kept_times(log: StreamRows, entry: Entry, column: str) -> Iterable[Times]:
    if entry.poison_rows is not None:
        return
    offset: Offset = entry.offset
    for p, end in offset.end.items():
        first = max(offset.start.get(p, 0), offset.late.get(p, 0), log.start(p))
        if first < end:
            for piece in read_range(log, offset.plan, Range(p, first, end, 0)):
                yield event_times(piece.rows, column)


def _unknown_up_to(log: StreamRows, journal: Journal, windows: Windows) -> int:
    """Windows that begin up to this time may lack trimmed rows; `NO_TIME` if no window does.

    A row that is not late is at most `lateness` older than any row before it. So no trimmed row is newer
    than the first rows that are left by more than `lateness`.
    """
    first, start = journal.began()
    bounds = [NO_TIME]
    for p in journal.entries[min(journal.entries)].offset.end:
        left = log.start(p)
        if first == 1 and left <= start.get(p, 0):
            continue
        there = log.header_arrays(p, left, left + 1, keys=False)
        rows = log.read(p, int(there.first_position[0]), int(there.end_position[0])) if len(there) else None
        times = np.empty(0, np.int64) if rows is None else event_times(rows.batch, windows.column)
        newest = int(times.max()) if times.size else NO_TIME
        bounds.append(np.iinfo(np.int64).max if newest == NO_TIME else newest + windows.lateness_us)
    return max(bounds)


def _ranges(
    log: StreamRows,
    journal: Journal,
    entries: Sequence[Entry],
    windows: Windows,
    touched: Times,
    progress: Progress,
) -> list[Range]:
    """Ranges of segments with rows of the touched windows. All segments are read: headers lack event time."""
    if touched.size == 0:
        return []
    _, start = journal.began()
    starts, ends = merged(touched, windows.length_us)
    found: list[Range] = []
    for p, (first, end) in positions_within(start, entries[-1].offset.end, log).items():
        if first >= end:
            continue
        headers = log.header_arrays(p, first, end, keys=False)
        lows, highs = np.maximum(headers.first_position, first), np.minimum(headers.end_position, end)
        for i, (low, high) in enumerate(zip(lows.tolist(), highs.tolist(), strict=True)):
            progress("looking for rows of these windows", i, len(headers))
            if not inside(event_times(log.read(p, low, high).batch, windows.column), starts, ends).any():
                continue
            follows = bool(found) and (found[-1].partition, found[-1].end) == (p, low)
            found.append(Range(p, found.pop().first if follows else low, high, 0))
    return found
