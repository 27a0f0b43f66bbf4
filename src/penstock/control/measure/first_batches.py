"""The first batches of a query on cores: how large the next one may be, and what a row costs.

Most of what the first batches take is not the work of their rows: Python workers start, the JVM compiles, and
tasks that start together slow each other down. A row seems to cost a thousand times what it will cost. Yet
the time of a batch is a bound: its rows did not cost more than that. So the next batch may have as many rows
as would take a given time if the batch had paid for rows alone. While batches are short they grow fast, and
one whose rows are dear is followed by a smaller one.

All these batches have as many tasks, so that only their rows make them differ. Once the last few of them lie
on a line, its slope is the cost of a row and the rest is fixed. Batches that other queries' starts have
slowed down lie on no line; they are forgotten, and the query stays with small batches until that is over.
"""

from __future__ import annotations

from collections.abc import Sequence
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
        points: The last batches that count.
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
        largest = max((point.rows for point in self.points), default=first_rows)
        most = self.tuning.first_growth * largest
        if self.points and self.points[-1].core_s >= core_s / 2.0:
            most = (
                self.points[-1].rows / self.tuning.told_by_rows
            )  # none can be larger: a smaller one must tell
        return max(1.0, min(core_s / self.least_row_s, most))

    def learn(self, rows: int, core_s: float) -> FirstFigures | None:
        """Takes a batch in; returns the figures once the batches show what rows cost."""
        cold = self.is_cold
        self.seen += 1
        if rows:
            self.least_row_s = min(self.least_row_s, core_s / rows)
        if cold or core_s <= 0.0:
            return None
        self.points = [*self.points, Point(rows, core_s)][-self.tuning.told_points :]
        found = self._line()
        largest = max(self.points, key=lambda point: point.rows)
        if found is None and self.seen >= self.tuning.told_at_last and largest.rows:
            half_s = largest.core_s / 2.0
            return FirstFigures(half_s, half_s / largest.rows)
        return found

    def _line(self) -> FirstFigures | None:
        """The line on which the last batches lie, if they differ enough to tell and are near to it."""
        tuning, rows = self.tuning, [point.rows for point in self.points]
        times = [point.core_s for point in self.points]
        tells = max(rows) >= tuning.told_by_rows * max(1, min(rows)) and max(
            times
        ) >= tuning.told_by_time * min(times)
        if len(rows) < tuning.told_points or not tells:
            return None
        fixed_s, row_s = fitted(self.points)
        off = max(abs(fixed_s + row_s * point.rows - point.core_s) / point.core_s for point in self.points)
        return FirstFigures(fixed_s, row_s) if row_s > 0.0 and off <= tuning.told_within else None


def fitted(points: Sequence[Point]) -> tuple[float, float]:
    """Fixed time and time of a row, by least squares of the relative errors; neither is negative."""
    weights = [1.0 / point.core_s**2 for point in points]
    total = sum(weights)
    rows = sum(w * p.rows for w, p in zip(weights, points, strict=True)) / total
    time_s = sum(w * p.core_s for w, p in zip(weights, points, strict=True)) / total
    both = sum(w * (p.rows - rows) * (p.core_s - time_s) for w, p in zip(weights, points, strict=True))
    square = sum(w * (p.rows - rows) ** 2 for w, p in zip(weights, points, strict=True))
    row_s = max(0.0, both / square) if square > 0.0 else 0.0
    fixed_s = time_s - row_s * rows
    if fixed_s < 0.0:  # a line through the origin
        across = sum(w * p.rows**2 for w, p in zip(weights, points, strict=True))
        return 0.0, sum(w * p.rows * p.core_s for w, p in zip(weights, points, strict=True)) / across
    return fixed_s, row_s
