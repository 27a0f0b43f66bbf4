"""Estimates from sampled rows: value, standard error and interval of count, sum and avg.

A kept row represents `weight` = 1 / keep probability rows. Sums over kept rows with that weight are therefore
right on average under every plan (Horvitz and Thompson 1952). How far a sum may be off depends on which rows
were drawn together. A plan draws in up to two stages, and the variance has a part for each stage:

    between = sum over units of (sum over its rows of contrast * weight * value)^2
    within  = sum over rows of weight * within * value^2,   within = 1 / row_keep - 1

A segment or a bucket has a `contrast` (`contrasts`, `bucket_contrasts`), a grant has a `within`. Both parts
are plain sums over rows and over units, so SQL can compute them; docs/estimates.md has the derivation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Literal

import numpy as np
import numpy.typing as npt

from penstock.vocabulary.errors import InvalidInputError
from penstock.vocabulary.model import FloatArray

Aggregate = Literal["count", "sum", "avg"]
AGGREGATES: tuple[Aggregate, ...] = ("count", "sum", "avg")

LEAST_UNITS = 30
"""An estimate from fewer units has no interval, because its variance would be too uncertain itself."""
LEAST_FREEDOM = 5.0
"""The least degrees of freedom of a variance. From 5 on, `student_quantile` is right; see `_freedom`."""

_ROUNDING = 1e-13
"""A difference below this part of its terms may be no more than a rounding error of double precision."""

WITHOUT_CHANCES: Mapping[str, str] = {
    "oldest": "which rows go depends on their age, not on chance",
    "window": "a window is kept whole or not at all; those that are kept are exact",
    "semantic": "which rows go depends on their values, and the others have no chance",
    "balance-sic": "batches are chosen by their SIC and the queries' SIC, not by chance",
}
"""Shedders after which no estimate is possible, and why. Their results have SIC alone."""


@dataclass(frozen=True, slots=True)
class Products:
    """Sums of products of 1 and the value: a quadratic form. Forms of different rows or units add up."""

    ones: float = 0.0
    cross: float = 0.0
    squares: float = 0.0

    def plus(self, other: Products) -> Products:
        return Products(self.ones + other.ones, self.cross + other.cross, self.squares + other.squares)

    def about(self, centre: float) -> float:
        """The sum of the squares of value - centre, and at least what rounding leaves uncertain."""
        terms = (self.squares, -2.0 * centre * self.cross, centre * centre * self.ones)
        return max(sum(terms), _ROUNDING * sum(abs(term) for term in terms))


@dataclass(frozen=True, slots=True)
class Sums:
    """What SQL aggregates of the kept rows of one group in one window, without rows whose value is null.

    Attributes:
        rows: The number of kept rows.
        sampled: How many of these rows had a coin of their own: they have no unit, and a weight above 1.
        units: How many segments or buckets have some of these rows, if segments or buckets were drawn.
        expected: The sum of the units' `expected`: the variance that the sizes of segments alone predict.
        doubt: The sum of the units' `doubt`: the square of that variance over its degrees of freedom.
        weight: The sum of weight.
        weighted: The sum of weight * value.
        within: The sums over rows of weight * within, times 1, value and value^2.
        between: Products of the units' sums of contrast * weight and of contrast * weight * value.
        lost: Rows of the same grants that had no chance to be kept: they were late or expired.
        resampled: Rows that were sampled before, by the query that wrote a shared stream.
    """

    rows: int = 0
    sampled: int = 0
    units: int = 0
    expected: float = 0.0
    doubt: float = 0.0
    weight: float = 0.0
    weighted: float = 0.0
    within: Products = field(default_factory=Products)
    between: Products = field(default_factory=Products)
    lost: int = 0
    resampled: int = 0

    @property
    def whole(self) -> bool:
        """Whether nothing was shed: the weights of the rows add up to their number.

        The variance does not show this. It is also 0 if the units do not differ, or if all rows are in a
        segment or bucket that nothing is set against.
        """
        return self.rows > 0 and abs(self.weight - self.rows) <= _ROUNDING * self.rows

    def plus(self, other: Sums) -> Sums:
        """The sums of both sets of rows. The two sets must not share a unit."""
        return Sums(
            self.rows + other.rows,
            self.sampled + other.sampled,
            self.units + other.units,
            self.expected + other.expected,
            self.doubt + other.doubt,
            self.weight + other.weight,
            self.weighted + other.weighted,
            self.within.plus(other.within),
            self.between.plus(other.between),
            self.lost + other.lost,
            self.resampled + other.resampled,
        )


@dataclass(frozen=True, slots=True)
class Estimate:
    """An estimate. `reason` says why it has no interval, or how many units the interval is based on."""

    value: float | None
    error: float | None
    low: float | None
    high: float | None
    units: int
    reason: str


def estimate(sums: Sums, aggregate: Aggregate, confidence: float = 0.95) -> Estimate:
    """The estimate of an aggregate.

    A count is the sum of weight, a sum is the sum of weight * value, and an avg is the ratio of the two. To
    first order, the variance of the ratio is that of the weighted sum of value - avg, divided by the square
    of the count (Taylor linearisation).
    """
    if aggregate not in AGGREGATES:
        raise InvalidInputError("an estimate is a count, a sum or an avg", repr(aggregate), "choose one")
    if not 0.0 < confidence < 1.0:
        raise InvalidInputError("a confidence lies between 0 and 1", confidence, "0.95 is usual")
    value, within, between = _parts(sums, aggregate)
    units = sums.units + sums.sampled
    missing = _no_interval(sums, units, value)
    if value is None or missing:
        return Estimate(value, None, None, None, units, missing)
    if sums.whole:
        return Estimate(value, 0.0, value, value, units, "nothing was shed")
    freedom = _freedom(sums, within, between)
    if freedom < LEAST_FREEDOM:
        reason = f"the error rests on {freedom:.0f} differences between units, fewer than {LEAST_FREEDOM:.0f}"
        return Estimate(value, None, None, None, units, reason)
    # A variance of 0 counts like any other: 30 units or more do not differ. A count over whole segments of
    # one size is such a case, and it is exact: a sum that is proportional to a segment's rows has no error.
    error = math.sqrt(within + between)
    reach = student_quantile(0.5 + confidence / 2, freedom) * error
    return Estimate(value, error, value - reach, value + reach, units, f"{units:,} units")


def _parts(sums: Sums, aggregate: Aggregate) -> tuple[float | None, float, float]:
    """The value, and the parts of its variance within and between units."""
    if aggregate == "count":
        return sums.weight, sums.within.ones, sums.between.ones
    if aggregate == "sum":
        return sums.weighted, sums.within.squares, sums.between.squares
    if sums.weight <= 0:
        return None, 0.0, 0.0
    mean, over = sums.weighted / sums.weight, sums.weight**2
    return mean, sums.within.about(mean) / over, sums.between.about(mean) / over


def _no_interval(sums: Sums, units: int, value: float | None) -> str:
    if value is None or not sums.rows:
        return "no rows were kept"
    if sums.lost:
        return f"{sums.lost:,} rows of the same grants were late or expired: no chance to be kept"
    if sums.resampled:
        return f"{sums.resampled:,} rows were sampled before, in another query"
    if units < LEAST_UNITS and not sums.whole:
        return f"{units} units, fewer than {LEAST_UNITS}"
    return ""


def _freedom(sums: Sums, within: float, between: float) -> float:
    """Degrees of freedom of the variance (Satterthwaite 1946); infinite for a variance of 0.

    The freedom of the part between units follows from the sizes of all segments, also of segments that were
    not opened (`expected_variance`). It must not follow from the differences between the opened segments. A
    sample that misses the one large segment looks even, and would be trusted most.
    """
    differences = sums.expected**2 / sums.doubt if sums.doubt > 0 else 1.0
    loss = within**2 / max(1, sums.rows - 1) + between**2 / differences
    return math.inf if loss == 0 else (within + between) ** 2 / loss


def student_quantile(probability: float, freedom: float) -> float:
    """Quantile of Student's t, expanded about that of the normal distribution (Abramowitz and Stegun 26.7.5).

    The expansion is plain arithmetic, so SQL can compute it. Its error at 95 % is below 0.003 from 5 degrees
    of freedom on.
    """
    z = NormalDist().inv_cdf(probability)
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3


# -- what travels with a row --------------------------------------------------------------------------------

_BALANCED = 1.25
"""The two sides of a contrast differ in size by at most this factor, if the sizes of segments allow it."""


def contrasts(
    sizes: npt.NDArray[np.int64], opened_fraction: float
) -> tuple[npt.NDArray[np.int64], FloatArray]:
    """Units and contrasts of the opened segments of a grant whose weights add up to its rows (`drawn`).

    Such a weighted sum is a ratio estimate: it has no error for a sum that is proportional to a segment's
    rows. Its variance is that of the residuals

        (1 - opened_fraction) * sum over opened segments of (weight * (total - rows * rate))^2

    The rate is a sum over the whole grant. To avoid this sum, segments are set against each other at random:
    some with a plus, and others, of about as many rows, with a minus. The part that is proportional to rows
    cancels. The square of the difference is, on average, the sum of the squared residuals. If both sides have
    equally many rows, this holds for all residuals. Otherwise it holds for residuals that grow with a
    segment's rows, as they do where the rows of a segment are alike.

    Args:
        sizes: By opened segment, its rows inside the grant. Segments are in random order.
        opened_fraction: The part of the grant's rows that these segments have.

    Returns:
        By segment, the number of its unit, from 0, and its contrast. A single segment is a unit by itself.
    """
    count = sizes.size
    unit = np.zeros(count, np.int64)
    contrast = np.zeros(count)
    spread = math.sqrt(max(0.0, 1.0 - opened_fraction))
    if count == 1:
        contrast[0] = spread
        return unit, contrast
    for number, (plus, minus) in enumerate(_balanced_groups(sizes.tolist())):
        up, down = float(sizes[plus].sum()), float(sizes[minus].sum())
        high, low = float((sizes[plus] ** 2).sum()), float((sizes[minus] ** 2).sum())
        scale = math.sqrt((down**2 * high + up**2 * low) / (high + low))
        contrast[plus], contrast[minus] = down / scale, -up / scale
        unit[plus + minus] = number
    return unit, contrast * spread


def _balanced_groups(sizes: list[int]) -> list[tuple[list[int], list[int]]]:
    """Groups of segments, in order, with two sides of about equal size; the last group may be less equal.

    No segment is left out: it would mostly be a large one, and the others cannot represent it.
    """
    groups: list[tuple[list[int], list[int]]] = []
    plus: list[int] = []
    minus: list[int] = []
    up = down = 0
    for i, size in enumerate(sizes):
        if up <= down:
            plus.append(i)
            up += size
        else:
            minus.append(i)
            down += size
        if down and max(up, down) <= _BALANCED * min(up, down):
            groups.append((plus, minus))
            plus, minus, up, down = [], [], 0, 0
    if minus:
        groups.append((plus, minus))
    elif plus and groups:  # a single segment is added to the smaller side of the group before
        sides = sorted(groups.pop(), key=lambda side: sum(sizes[j] for j in side))
        groups.append((sides[0] + plus, sides[1]))
    return groups


def expected_variance(sizes: npt.NDArray[np.int64], chance: float, paired: bool) -> tuple[float, float]:
    """The variance that the sizes of a grant's segments predict, and the square of it over its freedom.

    If the rows of a segment are alike, the segment adds to the variance in proportion to the square of its
    rows. The prediction is (1 - chance) / chance * sum of rows^2. An estimate of it from the opened segments
    has about chance * (sum of rows^2)^2 / (sum of rows^4) degrees of freedom (Satterthwaite). That is the
    number of opened segments if all have one size, and few if few segments are large. Two segments that are
    set against each other count as one.

    Args:
        sizes: By segment of the grant, opened or not, its rows inside the grant.
        chance: The chance that a segment is opened.
        paired: Whether segments are set against each other.
    """
    if not 0.0 < chance < 1.0:
        return 0.0, 0.0
    odds, rows = (1.0 - chance) / chance, sizes.astype(np.float64)
    fourth = float((rows**4).sum()) / (chance / 2 if paired else chance)
    return odds * float((rows**2).sum()), odds**2 * fourth


def bucket_contrasts(kept: int, buckets: int) -> tuple[npt.NDArray[np.int64], FloatArray]:
    """Units and contrasts of the kept buckets of a key, by their rank in the plan's random order.

    Kept buckets are a simple random sample without replacement. The sample is the same in every grant, except
    for buckets that come and go as `kept` changes. The buckets with ranks 2i and 2i + 1 are set against each
    other. They are kept in the same grants, so the part that all buckets have in common cancels. If the
    number of buckets is odd, the last has contrast 0, and the contrasts of the others are larger.
    """
    ranks = np.arange(kept)
    contrast = np.where(ranks % 2 == 0, 1.0, -1.0) * math.sqrt(max(0.0, 1.0 - kept / buckets))
    if kept == 1:
        return ranks // 2, contrast
    if kept % 2:
        contrast[-1] = 0.0
        contrast *= math.sqrt(kept / (kept - 1))
    return ranks // 2, contrast


# -- the sums, as SQL computes them -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class SampledRows:
    """Kept rows with the figures that travel with each row, as one array a figure.

    Attributes:
        value: The value that is summed or averaged.
        weight: 1 / keep probability (`_weight`).
        within: The `within` of the row's grant (`_within`).
        contrast: The contrast of the row's segment or bucket (`_contrast`); 0 if none were drawn.
        unit: The number of the row's unit (`_unit`): segments or buckets that are set against each other. -1
            if none were drawn.
        expected: The unit's part of the grant's predicted variance (`expected_variance`).
        doubt: The unit's part of the square of that variance over its freedom.
    """

    value: FloatArray
    weight: FloatArray
    within: FloatArray
    contrast: FloatArray
    unit: npt.NDArray[np.int64]
    expected: FloatArray
    doubt: FloatArray


def sums_by_group(rows: SampledRows, group: npt.NDArray[np.int64], groups: int) -> list[Sums]:
    """The sums of each group, aggregated twice as in SQL: by group and unit, and then by group."""
    units, unit = np.unique(rows.unit, return_inverse=True)
    pairs, at = np.unique(group * max(1, units.size) + unit, return_inverse=True)
    signed = rows.contrast * rows.weight
    ones = _summed(at, signed, pairs.size)
    values = _summed(at, signed * rows.value, pairs.size)
    of_group, drawn = pairs // max(1, units.size), units[pairs % max(1, units.size)] >= 0
    sides = _any(at, rows.contrast > 0, pairs.size) + _any(at, rows.contrast < 0, pairs.size)
    inner = rows.weight * rows.within

    def by_row(terms: FloatArray) -> FloatArray:
        return _summed(group, terms, groups)

    def by_unit(terms: FloatArray) -> FloatArray:
        return _summed(of_group, terms, groups)

    kept = by_row(np.ones(group.size))
    sampled = by_row(_number((rows.unit < 0) & (rows.weight > 1)))
    seen = by_unit(sides * _number(drawn))
    expected, doubt = (
        by_unit(_greatest(at, column * _number(rows.contrast != 0), pairs.size) * _number(drawn))
        for column in (rows.expected, rows.doubt)
    )
    weight, weighted = by_row(rows.weight), by_row(rows.weight * rows.value)
    within = [by_row(inner * rows.value**power) for power in (0, 1, 2)]
    between = [by_unit(terms) for terms in (ones * ones, ones * values, values * values)]
    return [
        Sums(
            int(kept[g]),
            int(sampled[g]),
            int(seen[g]),
            float(expected[g]),
            float(doubt[g]),
            float(weight[g]),
            float(weighted[g]),
            Products(*(float(column[g]) for column in within)),
            Products(*(float(column[g]) for column in between)),
        )
        for g in range(groups)
    ]


def _summed(of: npt.NDArray[np.int64], terms: FloatArray, size: int) -> FloatArray:
    return np.bincount(of, terms, size).astype(np.float64)


def _number(mask: npt.NDArray[np.bool_]) -> FloatArray:
    return mask.astype(np.float64)


def _greatest(at: npt.NDArray[np.int64], terms: FloatArray, size: int) -> FloatArray:
    """The term of each unit: all rows of a unit have the same term."""
    greatest = np.zeros(size)
    np.maximum.at(greatest, at, terms)
    return greatest


def _any(at: npt.NDArray[np.int64], mask: npt.NDArray[np.bool_], size: int) -> FloatArray:
    return _number(_summed(at, _number(mask), size) > 0)
