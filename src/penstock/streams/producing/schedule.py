"""When the segments of a paced stream arrive: arrays of times after the stream's beginning."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from penstock.vocabulary.errors import InvalidInputError, require_positive

SPAN_S = 0.02
"""Most time between the first and the last arrival of a segment; the end advances in steps of it."""


@dataclass(frozen=True, slots=True, eq=False)
class Schedule:
    """Segments of one partition in order of arrival.

    Attributes:
        rows: Rows of each segment.
        arrival_min_us: Arrival of each segment's first row, after the stream's beginning.
        arrival_max_us: Arrival of each segment's last row; from then on the segment can be read.
    """

    rows: npt.NDArray[np.int64]
    arrival_min_us: npt.NDArray[np.int64]
    arrival_max_us: npt.NDArray[np.int64]

    def __post_init__(self) -> None:
        sizes = {array.size for array in (self.rows, self.arrival_min_us, self.arrival_max_us)}
        if len(sizes) > 1:
            raise InvalidInputError(
                "a segment has rows and two arrival times",
                f"arrays of {sorted(sizes)} segments",
                "give arrays of the same length",
            )
        if self.rows.size and self.rows.min() < 1:
            raise InvalidInputError("a segment has at least 1 row", int(self.rows.min()), "leave it out")
        times = np.stack([self.arrival_min_us, self.arrival_max_us], axis=1).reshape(-1)
        if times.size and (times[0] < 0 or (np.diff(times) < 0).any()):
            raise InvalidInputError("arrival never goes back", "a time before the last", "sort the segments")

    @property
    def total_rows(self) -> int:
        """Rows of all segments."""
        return int(self.rows.sum())

    @property
    def seconds(self) -> float:
        """Time from the beginning to the last arrival."""
        return float(self.arrival_max_us[-1]) / 1e6 if self.rows.size else 0.0


def schedule_constant(
    rate_per_s: float, seconds: float, segment_rows: int = 8192, span_s: float = SPAN_S
) -> Schedule:
    """A constant rate: row i arrives at i / rate; segments are full or span at most `span_s`."""
    require_positive("rate_per_s", rate_per_s, "rows a second")
    require_positive("seconds", seconds, "how long the stream is")
    _check_cut(segment_rows, span_s)
    step = max(1, min(segment_rows, int(rate_per_s * span_s)))
    total = max(1, round(rate_per_s * seconds))
    first = np.arange(0, total, step, dtype=np.int64)
    rows = np.minimum(step, total - first)
    return Schedule(rows, _us(first / rate_per_s), _us((first + rows - 1) / rate_per_s))


def schedule_from_counts(
    counts: npt.ArrayLike,
    bin_s: float = 0.01,
    scale: float = 1.0,
    segment_rows: int = 8192,
    span_s: float = SPAN_S,
) -> Schedule:
    """A schedule from counts of rows by time bin, for example of a trace; arrivals are even inside a bin.

    Args:
        counts: Number of rows in each bin.
        bin_s: Length of a bin.
        scale: Multiplies the counts. Fractions of rows are carried on, so the total is right.
        segment_rows: Most rows of a segment.
        span_s: Most time between the first and the last arrival of a segment.
    """
    wanted = np.asarray(counts, np.float64)
    if wanted.ndim != 1 or not np.isfinite(wanted).all() or (wanted < 0).any():
        raise InvalidInputError("counts are rows by bin, 0 or more", f"{wanted.shape}", "one number a bin")
    require_positive("bin_s", bin_s, "seconds of a bin")
    require_positive("scale", scale, "1.0 leaves the counts as they are")
    _check_cut(segment_rows, span_s)
    slots = int(np.ceil(bin_s / span_s - 1e-9))
    slot_s = bin_s / slots
    by_bin = np.concatenate([[0.0], np.cumsum(wanted)]) * scale
    ends = np.arange(1, wanted.size * slots + 1) / slots
    until = np.rint(np.interp(ends, np.arange(by_bin.size), by_bin)).astype(np.int64)
    in_slot = np.diff(until, prepend=0)
    pieces = -(-in_slot // segment_rows)  # number of segments of each slot; an empty slot has none
    slot = np.repeat(np.arange(in_slot.size), pieces)
    piece = np.arange(slot.size) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    first = in_slot[slot] * piece // np.maximum(pieces[slot], 1)
    after = in_slot[slot] * (piece + 1) // np.maximum(pieces[slot], 1)
    per_row_s = slot_s / np.maximum(in_slot[slot], 1)
    began_s = slot * slot_s
    return Schedule(after - first, _us(began_s + first * per_row_s), _us(began_s + (after - 1) * per_row_s))


def schedule_from_arrivals(
    arrival_s: npt.ArrayLike,
    scale: float = 1.0,
    segment_rows: int = 8192,
    bin_s: float = 0.01,
    span_s: float = SPAN_S,
) -> Schedule:
    """A schedule from arrival times of single rows, counted by bin; `scale` multiplies the rows.

    See `schedule_from_counts`.
    """
    times = np.asarray(arrival_s, np.float64)
    if times.ndim != 1 or not np.isfinite(times).all() or (times < 0).any():
        raise InvalidInputError("arrivals are seconds, 0 or more", f"{times.shape}", "one number a row")
    counts = np.bincount((times / bin_s).astype(np.int64)) if times.size else np.zeros(0)
    return schedule_from_counts(counts, bin_s, scale, segment_rows, span_s)


def _check_cut(segment_rows: int, span_s: float) -> None:
    if segment_rows < 1:
        raise InvalidInputError("segment_rows must be at least 1", segment_rows, "leave it out")
    require_positive("span_s", span_s, "seconds, for example 0.02")


def _us(seconds: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    return np.rint(seconds * 1e6).astype(np.int64)
