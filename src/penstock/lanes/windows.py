"""Event-time windows over a log: which windows shed rows touch, which are closed, where their rows lie."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.grants.journal import Entry, Journal
from penstock.grants.offset import Offset
from penstock.grants.selection import Piece, Range, ReadableLog, read_range
from penstock.lanes.lane import positions_within, shed_rows
from penstock.vocabulary.errors import InvalidInputError, require_positive

Times = npt.NDArray[np.int64]
"""Microseconds since the epoch."""

NO_TIME = np.iinfo(np.int64).min
"""The time of a row that has none: it belongs to no window."""

Progress = Callable[[str, int, int], None]
"""What is being done, how much of it is done, how much there is."""


@dataclass(frozen=True, slots=True)
class Windows:
    """The windows of a query, as in Spark's `window(column, length, slide)`: aligned at the epoch.

    Attributes:
        column: The event-time column.
        length_s: How long a window is.
        slide_s: From the beginning of one to that of the next; the length if left out.
        lateness_s: How late a row may be: the query's watermark.
        result: The result's column with the window, or with its start; needed where windows overlap.
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
    """The windows that hold some of the times, by their start, each once, in order."""
    times = np.unique(times[times != NO_TIME])
    last = times // windows.slide_us * windows.slide_us
    count = -(-windows.length_us // windows.slide_us)
    found = [np.empty(0, np.int64)]
    for back in range(count):
        starts = last - back * windows.slide_us
        found.append(starts[starts + windows.length_us > times])
    return np.unique(np.concatenate(found))


def merged(starts: Times, length_us: int) -> tuple[Times, Times]:
    """Windows as stretches of time that do not touch: their starts and ends."""
    if starts.size == 0:
        return starts, starts
    new = np.concatenate([[True], starts[1:] > starts[:-1] + length_us])
    ends = np.concatenate([(starts[:-1] + length_us)[new[1:]], starts[-1:] + length_us])
    return starts[new], ends


def inside(times: Times, starts: Times, ends: Times) -> npt.NDArray[np.bool_]:
    """Which times lie in one of the stretches."""
    if starts.size == 0:
        return np.zeros(times.size, np.bool_)
    at = np.searchsorted(starts, times, side="right") - 1
    return (at >= 0) & (times < ends[at])


@dataclass(frozen=True, slots=True, eq=False)
class WindowPlan:
    """What a windowed query's backfill computes anew.

    Attributes:
        last: Last grant whose shed rows touch only windows that are closed; 0 for none.
        touched: The windows to compute, by their start.
        incomplete: Touched windows whose earlier rows have been trimmed: what was computed stands.
        open: Touched windows that still take rows; their grants wait.
        ranges: Where rows of the touched windows lie.
        open_from: By partition, where rows of the open windows begin.
    """

    last: int
    touched: Times
    incomplete: Times
    open: Times
    ranges: list[Range]
    open_from: dict[int, int]


def plan_windows(
    log: ReadableLog,
    journal: Journal,
    entries: Sequence[Entry],
    windows: Windows,
    taken: int | None = None,
    closed: bool = False,
    progress: Progress = lambda *_: None,
) -> WindowPlan:
    """Finds the closed windows that shed rows of some grants touch, and where their rows lie.

    A window is closed when the query's watermark has passed it: no row is added to it any more.

    Args:
        log: The stream.
        journal: Of the reader.
        entries: The grants that are over and not backfilled, in order.
        windows: The query's.
        taken: How many of them, from the first on, to backfill; all if left out.
        closed: The windows that these touch are known to be closed.
        progress: Told how far the work is.
    """
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
    for stretch in _ranges(log, journal, entries, windows, waiting, progress):
        open_from.setdefault(stretch.partition, stretch.first)
    last = entries[count - 1].offset.grant if count else 0
    return WindowPlan(last, touched, incomplete, waiting, ranges, open_from)


def _starts(pieces: Iterable[Piece], windows: Windows) -> Times:
    return _union([window_starts(event_times(piece.rows, windows.column), windows) for piece in pieces])


def _union(found: Sequence[Times]) -> Times:
    return np.unique(np.concatenate([np.empty(0, np.int64), *found]))


def _watermark(log: ReadableLog, entries: Sequence[Entry], windows: Windows, progress: Progress) -> int:
    """At most the query's watermark: the newest event time that these grants kept, less the lateness."""
    newest = NO_TIME
    for i, entry in enumerate(entries):
        progress("looking for the watermark", i, len(entries))
        for times in _kept_times(log, entry, windows.column):
            newest = max(newest, int(times.max()))
    return newest - windows.lateness_us if newest != NO_TIME else NO_TIME


def _kept_times(log: ReadableLog, entry: Entry, column: str) -> Iterable[Times]:
    if entry.poison_rows is not None:
        return
    offset: Offset = entry.offset
    for p, end in offset.end.items():
        first = max(offset.start.get(p, 0), offset.late.get(p, 0), log.start(p))
        if first < end:
            for piece in read_range(log, offset.plan, Range(p, first, end, 0)):
                yield event_times(piece.rows, column)


def _unknown_up_to(log: ReadableLog, journal: Journal, windows: Windows) -> int:
    """Windows that begin up to here may lack rows that were trimmed; `NO_TIME` if none does.

    A row that is not late is at most `lateness` behind any earlier one, so none of the trimmed rows is
    newer than the first rows that are left by more than that.
    """
    first, start = journal.began()
    bounds = [NO_TIME]
    for p in journal.entries[min(journal.entries)].offset.end:
        left = log.start(p)
        if first == 1 and left <= start.get(p, 0):
            continue
        segments = log.headers(p, left, left + 1)
        times = event_times(log.read(segments[0]), windows.column) if segments else np.empty(0, np.int64)
        newest = int(times.max()) if times.size else NO_TIME
        bounds.append(np.iinfo(np.int64).max if newest == NO_TIME else newest + windows.lateness_us)
    return max(bounds)


def _ranges(
    log: ReadableLog,
    journal: Journal,
    entries: Sequence[Entry],
    windows: Windows,
    touched: Times,
    progress: Progress,
) -> list[Range]:
    """Segments with rows of the touched windows; event time is in no header, so all are looked at."""
    if touched.size == 0:
        return []
    _, start = journal.began()
    starts, ends = merged(touched, windows.length_us)
    found: list[Range] = []
    for p, (first, end) in positions_within(start, entries[-1].offset.end, log).items():
        headers = log.headers(p, first, end) if first < end else ()
        for i, segment in enumerate(headers):
            progress("looking for rows of these windows", i, len(headers))
            if not inside(event_times(log.read(segment), windows.column), starts, ends).any():
                continue
            low, high = max(first, segment.first_position), min(end, segment.end_position)
            if found and (found[-1].partition, found[-1].end) == (p, low):
                low = found.pop().first
            found.append(Range(p, low, high, 0))
    return found
