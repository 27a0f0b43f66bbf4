"""Source information content (SIC): the part of the source data on which a result is based.

See kalyvianaki2016 sections 4 and 6; fiscato2012 chapter 3 calls SIC source coverage ratio. The tuples of one
source in one source time window (STW) share 1 / |S| of their query's SIC. Operators pass on the SIC that they
take in. The SIC of tuples that are lost on the way, for whatever cause, is missing from the results.
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
"""Of both papers: ten times as long as the end-to-end delay."""
SLIDE_S = 0.25


class SlidingSums:
    """Sums over the last `stw_s` seconds of many series at once, in steps of `slide_s`.

    Attributes:
        stw_s: The length of the window.
        slide_s: The slide of the window. The window holds a whole number of slides.
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
        """The number of the slide in which a moment lies; a moment on an edge opens a new slide."""
        return math.floor(now_s / self.slide_s + 1e-9)

    def add(self, now_s: float, index: IntArray, amount: FloatArray) -> None:
        """Adds amounts to series at a moment; an index may occur more than once."""
        self.advance(now_s)
        self._ring[self._slide % len(self._ring)] += np.bincount(index, weights=amount, minlength=self.series)
        self._fresh = False

    def advance(self, now_s: float) -> None:
        """Lets slides fall out of the window. Time never goes back: amounts that come late count now."""
        slide = self.slide_of(now_s)
        passed = min(slide - self._slide, len(self._ring))
        if passed <= 0:
            return
        reused = np.arange(slide - passed + 1, slide + 1) % len(self._ring)
        self._ring[reused] = 0.0
        self._slide = slide
        self._fresh = False

    def sums(self, now_s: float) -> FloatArray:
        """The sum of each series over the window that ends with the slide of `now_s`."""
        self.advance(now_s)
        if not self._fresh:
            # the sum is computed anew, because running differences of floats would drift
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

    Counts are of *offered* tuples, by slide. If a source has been watched for less than a window, its count
    is scaled up to a whole window. Otherwise its first tuples would be worth too much.

    A source that sends nothing stays among the |S| sources of its query. Its share of the query's SIC is
    missing (eq. 1 and 2: none of its tuples is processed), and `silent` names the source. When the source
    sends again, its first tuple is worth the whole share, 1 / |S|.

    If a rate changes by a large factor inside a window, tuples keep the SIC that the counts up to then gave
    them. The SIC of the tuples of one window no longer adds up to 1 / |S|. `query_sic` corrects that.
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
        """|T_s| of each source: how many tuples the source offers in a window, at least one."""
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
        offered_sic: Sum of the SIC that was given to all tuples that the query's sources offered in the
            window. At steady rates this sum equals `heard_fraction`, and the query's SIC is eq. 4 itself. If
            rates change inside the window, T_s was not known when SIC was given out; the quotient corrects
            that.
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
    """The header of a batch: how many tuples it has, and their SIC together. Empty batches have SIC, too."""

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
        """The SIC of each tuple of the batch; `None` for an empty batch, whose SIC belongs to no tuple."""
        return self.sic / self.rows if self.rows else None


def derive(inputs: Iterable[BatchSic], output_rows: int) -> BatchSic:
    """The batch that an operator puts out for its input batches (eq. 3): each tuple has sum(in) / |out|.

    An operator that puts out no tuple passes on an empty batch with the SIC of its input: a filter that found
    no tuple has lost no information.
    """
    return BatchSic(output_rows, sum(batch.sic for batch in inputs))


def duplicate(batch: BatchSic, branches: int) -> list[BatchSic]:
    """Sends the same tuples to several downstream operators: each branch has an equal part of the SIC."""
    if branches < 1:
        raise InvalidInputError("a batch goes to one branch at the least", branches, "count the branches")
    return [BatchSic(batch.rows, batch.sic / branches)] * branches


def partition(batch: BatchSic, rows: Sequence[int]) -> list[BatchSic]:
    """Divides tuples among several downstream operators: every tuple keeps its SIC."""
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
    """Divides each tuple's SIC among the sliding windows in which the tuple lies (kalyvianaki2016 section 6).

    Window k covers [k * slide_s - range_s, k * slide_s). If the slide is longer than the range, a tuple may
    lie between windows. The SIC of such a tuple goes to the next window that closes.

    Returns:
        The numbers of the windows in order, and the SIC that each window takes in. The sum of the SIC of all
        windows is the sum of the SIC of all tuples.
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
