"""The first batches of a query on cores: how large the next one may be, and what a row costs.

Most of what the first batches take is not the work of their rows: Python workers start, the JVM compiles, and
tasks that start together slow each other down. A row seems to cost a thousand times what it will cost. Yet
the time of a batch is a bound: its rows did not cost more than that. So the next batch may have as many rows
as would take a given time if the batch had paid for rows alone. While batches are short they grow fast, and
one whose rows are dear is followed by a smaller one. Once two batches of different size show what rows add,
that is the cost of a row, and the rest is fixed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.control.tuning import TUNING, Tuning


@dataclass(frozen=True, slots=True)
class Point:
    """One batch.

    Attributes:
        rows: Of the batch.
        core_s: Seconds of its tasks.
    """

    rows: int
    core_s: float


@dataclass(frozen=True, slots=True)
class FirstFigures:
    """What the first batches say of all others.

    Attributes:
        fixed_s: Core seconds of a batch without rows.
        row_s: Core seconds of a row.
    """

    fixed_s: float
    row_s: float


@dataclass(slots=True)
class FirstBatches:
    """The batches of a query until the cost of its rows is known.

    Attributes:
        tuning: Figures.
        seen: How many batches there were, those included that no figure is taken from.
        points: The batches that count.
        least_row_s: The least core seconds of a batch over its rows: no row costs more. Infinite before the
            first batch with rows.
    """

    tuning: Tuning = TUNING
    seen: int = 0
    points: list[Point] = field(default_factory=list)
    least_row_s: float = float("inf")

    @property
    def is_cold(self) -> bool:
        """Whether the next batch is one of those that only warm up."""
        return self.seen < self.tuning.cold_batches

    def most_rows(self, core_s: float) -> float:
        """How many rows the next batch may have, so that it surely takes no more than so many core seconds.

        No batch is more than `first_growth` times as large as the largest one before: what a batch takes
        besides rows may grow as well.
        """
        first_rows = self.tuning.first_work_rows
        if self.least_row_s == float("inf"):
            return first_rows
        largest = max(self.points, key=_size, default=Point(first_rows, 0.0))
        most = self.tuning.first_growth * largest.rows
        if largest.core_s >= core_s / 2.0:  # it cannot be much larger, so a smaller one must tell
            most = largest.rows / self.tuning.told_by_rows
        return max(1.0, min(core_s / self.least_row_s, most))

    def learn(self, rows: int, core_s: float) -> FirstFigures | None:
        """Takes a batch in; returns the figures once the batches show what rows cost."""
        tuning, cold = self.tuning, self.is_cold
        self.seen += 1
        if rows:
            self.least_row_s = min(self.least_row_s, core_s / rows)
        if cold:
            return None
        self.points.append(Point(rows, core_s))
        small, large = min(self.points, key=_size), max(self.points, key=_size)
        is_larger = large.rows >= tuning.told_by_rows * max(1, small.rows)
        if is_larger and large.core_s >= tuning.told_by_time * small.core_s:
            row_s = (large.core_s - small.core_s) / (large.rows - small.rows)
            return FirstFigures(max(0.0, small.core_s - row_s * small.rows), row_s)
        if len(self.points) >= tuning.told_at_last and large.rows:
            half_s = large.core_s / 2.0
            return FirstFigures(half_s, half_s / large.rows)
        return None


def _size(point: Point) -> tuple[int, float]:
    return point.rows, point.core_s
