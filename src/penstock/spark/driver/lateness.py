"""Counts, in the log, the rows of a grant that a watermark drops as late."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from penstock.grants.offset import Offset
from penstock.grants.selection import Range, read_range, select
from penstock.lanes.windows import NO_TIME, Times, event_times
from penstock.streams.protocol import ARRIVAL, StreamRows

MOST_SEGMENTS = 64
"""Sample at most this many segments of a grant, evenly spaced, so that counting stays cheap."""


@dataclass(frozen=True, slots=True)
class LateRule:
    """When Spark takes a row for late.

    Attributes:
        column: The event-time column, or `_arrival`.
        length_us: Length of windows. A window is late if its end is not after the watermark. 0 if there are
            no windows: a row is then late if its time is not after the watermark.
        slide_us: Time from the start of one window to the start of the next.
        start_us: A time at which a window starts.
    """

    column: str
    length_us: int = 0
    slide_us: int = 0
    start_us: int = 0


def lost_rows(times: Times, rule: LateRule, watermark_us: int) -> float:
    """How many rows a watermark drops; a row in several windows counts by the fraction that is late."""
    times = times[times != NO_TIME]
    if not rule.length_us:
        return float(np.count_nonzero(times <= watermark_us))
    newest = times - (times - rule.start_us) % rule.slide_us + rule.length_us
    late, windows = np.zeros(times.size), np.zeros(times.size)
    for back in range(-(-rule.length_us // rule.slide_us)):
        ends = newest - back * rule.slide_us
        inside = ends > times
        windows += inside
        late += inside & (ends <= watermark_us)
    return float((late / np.maximum(windows, 1)).sum())


def lost_of_grant(log: StreamRows, offset: Offset, rule: LateRule, watermark_us: int) -> float:
    """How many of a grant's admitted rows a watermark drops.

    Exact for up to `MOST_SEGMENTS` segments, else an estimate from that many segments. Rows that have been
    trimmed since do not count.
    """
    selections = select(log, offset)
    parts = np.concatenate([np.repeat(s.partition, s.first.size) for s in selections])
    first = np.concatenate([s.first for s in selections])
    end = np.concatenate([s.end for s in selections])
    kept = sum(int(s.kept.sum()) for s in selections)
    chosen = np.unique(np.linspace(0, first.size - 1, min(first.size, MOST_SEGMENTS)).astype(np.int64))
    examined, lost = 0, 0.0
    for i in chosen.tolist():
        for piece in read_range(log, offset.plan, Range(int(parts[i]), int(first[i]), int(end[i]), 0)):
            column = piece.rows.column(ARRIVAL).to_numpy() if rule.column == ARRIVAL else None
            times = event_times(piece.rows, rule.column) if column is None else column
            examined += times.size
            lost += lost_rows(times, rule, watermark_us)
    return lost * kept / examined if examined else 0.0
