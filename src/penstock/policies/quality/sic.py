"""Source information content (SIC): what part of the source data a result stands on.

kalyvianaki2016 sections 4 and 6; fiscato2012 chapter 3 calls it source coverage ratio. A source's tuples of
one source time window (STW) share 1 / |S| of their query's SIC; operators pass on what they take in; what
is lost on the way, for whatever cause, is missing from the results.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from penstock.vocabulary.errors import InvalidInputError, require_positive
from penstock.vocabulary.model import FloatArray

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

STW_S = 10.0
"""Both papers: an order of magnitude more than the end-to-end delay."""
SLIDE_S = 0.25


class SlidingSums:
    """Sums over the last `stw_s` seconds of many series at once, in steps of `slide_s`.

    Attributes:
        stw_s: Length of the window.
        slide_s: Its slide; the window holds a whole number of them.
    """

    def __init__(self, series: int, stw_s: float = STW_S, slide_s: float = SLIDE_S) -> None:
        require_positive(
            "the source time window", stw_s, "10 s is ten times the delay of the papers' queries"
        )
        require_positive("the slide", slide_s, "0.25 s suits a window of 10 s")
        slides = round(stw_s / slide_s)
        if slides < 1 or not math.isclose(slides * slide_s, stw_s, rel_tol=1e-9):
            raise InvalidInputError(
                "a source time window holds a whole number of slides",
                f"{stw_s} / {slide_s}",
                "10 s and 0.25 s",
            )
        self.stw_s, self.slide_s = stw_s, slide_s
        self._ring = np.zeros((slides, series))
        self._slide = 0
        self._sums = np.zeros(series)
        self._fresh = True

    @property
    def series(self) -> int:
        return int(self._ring.shape[1])

    def slide_of(self, now_s: float) -> int:
        """The slide a moment lies in; a moment on an edge, rounding errors aside, opens a new one."""
        return math.floor(now_s / self.slide_s + 1e-9)

    def add(self, now_s: float, index: IntArray, amount: FloatArray) -> None:
        """Adds amounts to series at a moment; an index may occur more than once."""
        self.advance(now_s)
        self._ring[self._slide % len(self._ring)] += np.bincount(index, weights=amount, minlength=self.series)
        self._fresh = False

    def advance(self, now_s: float) -> None:
        """Lets slides fall out of the window. Time never goes back: late amounts count now."""
        slide = self.slide_of(now_s)
        passed = min(slide - self._slide, len(self._ring))
        if passed <= 0:
            return
        gone = np.arange(slide - passed + 1, slide + 1) % len(self._ring)
        self._ring[gone] = 0.0
        self._slide = slide
        self._fresh = False

    def sums(self, now_s: float) -> FloatArray:
        """The sum of each series over the window that ends with the slide of `now_s`."""
        self.advance(now_s)
        if not self._fresh:
            # summed anew, not kept up to date: a running difference of floats would drift
            self._sums = self._ring.sum(axis=0)
            self._fresh = True
        return self._sums

    def left(self, now_s: float, after_s: float) -> FloatArray:
        """The sum of each series over the slides that are still in the window `after_s` later."""
        self.advance(now_s)
        count = max(0, len(self._ring) - max(0, round(after_s / self.slide_s)))
        stay = np.arange(self._slide - count + 1, self._slide + 1) % len(self._ring)
        found: FloatArray = self._ring[stay].sum(axis=0)
        return found


class SourceTimeWindow:
    """How many tuples each source offers in a source time window, kept or not (|T_s| of eq. 1).

    Counts are of *offered* tuples, by slide. A source that has been watched for less than a window is
    scaled up from the time it was watched, else its first tuples would be worth too much.

    A source that does not send stays among the |S| of its query: its share of the query's SIC is missing
    (eq. 1 and 2: nothing of it is processed), and `silent` says that it is the one. Should it send, its
    first tuple is worth its whole share, 1 / |S|.

    A rate that changes by a large factor inside a window: tuples keep the SIC that they were given, by the
    counts up to then, so those of one window no longer sum up to 1 / |S|. `query_sic` corrects for that.
    """

    def __init__(self, sources: int, stw_s: float = STW_S, slide_s: float = SLIDE_S) -> None:
        self._counts = SlidingSums(sources, stw_s, slide_s)
        self._first_slide = np.full(sources, np.iinfo(np.int64).max)

    def offer(self, now_s: float, source: IntArray, rows: FloatArray) -> None:
        """Counts tuples that sources offer at a moment."""
        self._counts.add(now_s, source, rows)
        slide = self._counts.slide_of(now_s)
        self._first_slide[source] = np.minimum(self._first_slide[source], slide)

    def window_rows(self, now_s: float) -> FloatArray:
        """|T_s| of each source, the tuples that it offers in a window; at least one."""
        counts = self._counts
        rows = counts.sums(now_s)
        watched_s = (counts.slide_of(now_s) + 1 - self._first_slide).astype(np.float64) * counts.slide_s
        scale = counts.stw_s / np.clip(watched_s, counts.slide_s, counts.stw_s)
        return np.maximum(rows * np.where(rows > 0, scale, 1.0), 1.0)

    def silent(self, now_s: float) -> BoolArray:
        """Which sources offered nothing in the window."""
        return self._counts.sums(now_s) <= 0


def source_tuple_sic(window_rows: FloatArray, sources: FloatArray | float) -> FloatArray:
    """Eq. 1: SIC of one tuple of each source, 1 / (|T_s| |S|)."""
    result: FloatArray = 1.0 / (window_rows * sources)
    return result


def query_sic(result_sic: FloatArray, offered_sic: FloatArray, heard_fraction: FloatArray) -> FloatArray:
    """A query's SIC over a source time window, in [0, 1].

        query_sic = result_sic * heard_fraction / offered_sic

    Args:
        result_sic: Sum of the SIC of the results of the window (eq. 4).
        offered_sic: Sum of the SIC that was given to all tuples its sources offered in the window. At steady
            rates it is `heard_fraction`, and the query's SIC is eq. 4 itself; where rates change inside the
            window it is not, and the quotient is what takes the place of a T_s that nobody knew.
        heard_fraction: The part of the query's sources that are not silent.
    """
    offered = np.where(offered_sic > 0, offered_sic, 1.0)
    return np.clip(result_sic * heard_fraction / offered, 0.0, 1.0)


def one_query_sic(result_sic: float, offered_sic: float, heard_fraction: float) -> float:
    """`query_sic` of a single query, for which arrays would take far longer than the arithmetic."""
    offered = offered_sic if offered_sic > 0 else 1.0
    return min(max(result_sic * heard_fraction / offered, 0.0), 1.0)


@dataclass(frozen=True, slots=True)
class BatchSic:
    """The header of a batch: how many tuples it has, and their SIC together. Empty batches carry SIC too."""

    rows: int
    sic: float

    def __post_init__(self) -> None:
        if self.rows < 0 or not 0.0 <= self.sic < math.inf:
            raise InvalidInputError(
                "a batch has rows and a SIC that are not negative",
                f"{self.rows} rows, SIC {self.sic}",
                "0 or more",
            )

    @property
    def tuple_sic(self) -> float | None:
        """SIC of one of its tuples; `None` for an empty batch, whose SIC belongs to no tuple."""
        return self.sic / self.rows if self.rows else None


def derive(inputs: Iterable[BatchSic], output_rows: int) -> BatchSic:
    """What an operator puts out for the batches it took in at once (eq. 3): out = sum(in) / |out| a tuple.

    An operator that puts out nothing passes an empty batch with the SIC of its input: a filter that found
    nothing has lost nothing.
    """
    return BatchSic(output_rows, sum(batch.sic for batch in inputs))


def duplicate(batch: BatchSic, branches: int) -> list[BatchSic]:
    """The same tuples to several downstream operators: each branch carries its part of the SIC."""
    if branches < 1:
        raise InvalidInputError("a batch goes to one branch at the least", branches, "count the branches")
    return [BatchSic(batch.rows, batch.sic / branches)] * branches


def partition(batch: BatchSic, rows: Sequence[int]) -> list[BatchSic]:
    """Different tuples to several downstream operators: every tuple keeps its SIC."""
    if sum(rows) != batch.rows or batch.rows == 0:
        raise InvalidInputError(
            "a partition has every tuple of a batch once",
            f"{list(rows)} of {batch.rows}",
            "the rows of the parts",
        )
    return [BatchSic(part, batch.sic * part / batch.rows) for part in rows]


def share_among_windows(
    time_s: FloatArray, sic: FloatArray, range_s: float, slide_s: float
) -> tuple[IntArray, FloatArray]:
    """Divides each tuple's SIC among the sliding windows that it falls in (kalyvianaki2016 section 6).

    Window k covers [k * slide_s - range_s, k * slide_s). A tuple that falls between windows (a slide longer
    than the range) is used up by the next one to close, as by an operator that puts nothing out for it.

    Returns:
        The numbers of the windows in order, and the SIC that each takes in; both together conserve the sum.
    """
    require_positive("the window's range", range_s, "in seconds")
    require_positive("the window's slide", slide_s, "the range itself for tumbling windows")
    first = np.floor(time_s / slide_s).astype(np.int64) + 1
    last = np.maximum(np.floor((time_s + range_s) / slide_s).astype(np.int64), first)
    windows = last - first + 1
    tuples = np.repeat(np.arange(time_s.size), windows)
    number = first[tuples] + np.arange(tuples.size) - np.repeat(np.cumsum(windows) - windows, windows)
    found, index = np.unique(number, return_inverse=True)
    shares = np.bincount(index, weights=(sic / windows)[tuples], minlength=found.size)
    return found.astype(np.int64), shares.astype(np.float64)
