"""Estimates from sampled rows: value, standard error and interval of count, sum and avg.

A kept row stands for `weight` = 1 / keep probability rows, so sums over kept rows with that weight are right
on average whatever the plan (Horvitz and Thompson 1952). How far one of them may be off depends on what was
drawn together. A plan draws in up to two stages, and the variance has a part for each:

    between = sum over units of (sum over its rows of contrast * weight * value)^2
    within  = sum over rows of weight * within * value^2,   within = 1 / row_keep - 1

`contrast` belongs to a segment or a bucket (`contrasts`, `bucket_contrasts`), `within` to the grant. Both
parts are plain sums over rows and over units, so SQL computes them; docs/estimates.md has the derivation.
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
"""From fewer units no interval is given: the variance itself would rest on too little."""
LEAST_FREEDOM = 5.0
"""Degrees of freedom that a variance must have. From 5 on `student_quantile` is right; see `_freedom`."""

_ROUNDING = 1e-13
"""A difference below this part of its terms cannot be told from a rounding error of double precision."""

WITHOUT_CHANCES: Mapping[str, str] = {
    "oldest": "which rows go depends on their age, not on chance",
    "window": "a window is kept whole or not at all; those that are kept are exact",
    "semantic": "which rows go depends on their values, and the others have no chance",
    "balance-sic": "batches are chosen by their SIC and the queries' SIC, not by chance",
}
"""Shedders that no estimate can be made from, and why. Their results have their SIC alone."""


@dataclass(frozen=True, slots=True)
class Products:
    """Sums of products of 1 and the value: a quadratic form, additive over what is summed."""

    ones: float = 0.0
    cross: float = 0.0
    squares: float = 0.0

    def plus(self, other: Products) -> Products:
        return Products(self.ones + other.ones, self.cross + other.cross, self.squares + other.squares)

    def about(self, centre: float) -> float:
        """The sum of squares of value - centre, never less than rounding leaves uncertain."""
        terms = (self.squares, -2.0 * centre * self.cross, centre * centre * self.ones)
        return max(sum(terms), _ROUNDING * sum(abs(term) for term in terms))


@dataclass(frozen=True, slots=True)
class Sums:
    """What SQL aggregates give of the kept rows of one group in one window; null values are left out.

    Attributes:
        rows: Kept rows.
        sampled: Of these, rows that a coin was tossed for by themselves: no unit, and a weight above 1.
        units: Segments or buckets that some of the rows lie in, where those were drawn.
        expected: Of the units' `expected`: what the sizes of segments alone let expect of the variance.
        doubt: Of the units' `doubt`: the square of it over its degrees of freedom.
        weight: Sum of weight.
        weighted: Sum of weight * value.
        within: Of weight * within times 1, value, value^2, over rows.
        between: Of the units' sums of contrast * weight times 1 and value: products of the two.
        lost: Rows of the same grants that had no chance: late or expired.
        resampled: Rows that were sampled before, on the way through an internal stream.
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
        """Whether nothing was shed: the rows weigh as much as they are.

        The variance does not tell. It is 0 as well where rows lie only in a segment or bucket that found no
        partner, and where the units do not differ.
        """
        return self.rows > 0 and abs(self.weight - self.rows) <= _ROUNDING * self.rows

    def plus(self, other: Sums) -> Sums:
        """Sums of both, which share no unit."""
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
    """An estimate; `reason` says why it has no interval, or what the interval rests on."""

    value: float | None
    error: float | None
    low: float | None
    high: float | None
    units: int
    reason: str


def estimate(sums: Sums, aggregate: Aggregate, confidence: float = 0.95) -> Estimate:
    """The estimate of an aggregate.

    count is the sum of weights, sum that of weight * value, avg their ratio. A ratio's variance is, to first
    order, that of the weighted sum of value - avg, over count squared (Taylor linearisation).

    Args:
        sums: Of the kept rows.
        aggregate: Which.
        confidence: Of the interval.
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
    # A variance of 0 is stated like any other: 30 units or more, none of which differ. A count under whole
    # segments of one size is of that kind, and exact: what is proportional to a segment's rows has no error.
    error = math.sqrt(within + between)
    reach = student_quantile(0.5 + confidence / 2, freedom) * error
    return Estimate(value, error, value - reach, value + reach, units, f"{units:,} units")


def _parts(sums: Sums, aggregate: Aggregate) -> tuple[float | None, float, float]:
    """The value, and its variance within and between units."""
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
    """Degrees of freedom of the variance (Satterthwaite 1946); no limit to those of none.

    Those of the part between units are known before anything is drawn: the sizes of all segments give them,
    also of those that stay closed (`expected_variance`). To take them from the differences themselves would
    be wrong: a sample that misses the one large segment looks even, and so would be trusted most.
    """
    differences = sums.expected**2 / sums.doubt if sums.doubt > 0 else 1.0
    loss = within**2 / max(1, sums.rows - 1) + between**2 / differences
    return math.inf if loss == 0 else (within + between) ** 2 / loss


def student_quantile(probability: float, freedom: float) -> float:
    """Quantile of Student's t by the expansion about the normal one (Abramowitz and Stegun 26.7.5).

    Plain arithmetic, so that SQL can do it; right within 0.003 at 95 % from 5 degrees of freedom on.
    """
    z = NormalDist().inv_cdf(probability)
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3


# -- what travels with a row --------------------------------------------------------------------------------

_BALANCED = 1.25
"""Two sides of a contrast differ in size by at most this factor, where segments allow it."""


def contrasts(
    sizes: npt.NDArray[np.int64], opened_fraction: float
) -> tuple[npt.NDArray[np.int64], FloatArray]:
    """Units and contrasts of the opened segments of a grant whose weights add up to its rows (`drawn`).

    Given which part is opened, the weighted sum is a ratio estimate: right without error for whatever is
    proportional to a segment's rows. Its variance is that of the residuals

        (1 - opened_fraction) * sum over opened segments of (weight * (total - rows * rate))^2

    and the rate is a sum over the whole grant. To need no such sum, segments are set against each other at
    random: some with a plus and as many rows with a minus. What is proportional to rows cancels, and the
    square of the difference is on average the sum of the residuals' squares: for any residuals where both
    sides have as many rows, else for those that grow with a segment's rows, as where its rows are alike.

    Args:
        sizes: Rows of each opened segment inside the grant, in random order.
        opened_fraction: Part of the grant's rows that they hold.

    Returns:
        A unit number, from 0, and a contrast for each segment. A single segment is a unit by itself.
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
    """Segments, in order, on two sides of about equal size; the last group may be less equal.

    No segment is left out. It would be a large one in most cases, for which the others cannot make up.
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
    elif plus and groups:  # a single one: to the smaller side of the group before
        sides = sorted(groups.pop(), key=lambda side: sum(sizes[j] for j in side))
        groups.append((sides[0] + plus, sides[1]))
    return groups


def expected_variance(sizes: npt.NDArray[np.int64], chance: float, paired: bool) -> tuple[float, float]:
    """The variance that the sizes of a grant's segments let expect, and its square over its freedom.

    If the rows of a segment are alike, a segment adds to the variance by the square of its rows. With
    `chance` to be opened, all of them together expect (1 - chance) / chance * sum of rows^2, and an estimate
    of it from the opened ones rests on about chance * (sum of rows^2)^2 / (sum of rows^4) of them: on all of
    one size, on few where few are large (Satterthwaite). Two that are set against each other count as one.

    Args:
        sizes: Rows inside the grant of all its segments, opened or not.
        chance: That a segment is opened.
        paired: Whether segments are set against each other.
    """
    if not 0.0 < chance < 1.0:
        return 0.0, 0.0
    odds, rows = (1.0 - chance) / chance, sizes.astype(np.float64)
    fourth = float((rows**4).sum()) / (chance / 2 if paired else chance)
    return odds * float((rows**2).sum()), odds**2 * fourth


def bucket_contrasts(kept: int, buckets: int) -> tuple[npt.NDArray[np.int64], FloatArray]:
    """Units and contrasts of the kept buckets of a key, by their rank in the plan's random order.

    Kept buckets are a simple random sample without replacement, the same in every grant but for those that
    come and go as `kept` changes. Ranks 2i and 2i + 1 are set against each other: they are kept in the same
    grants, so what is common to all buckets cancels without being known. Of an odd number the last has
    contrast 0, and the others make up for it.
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
    """Kept rows with what travels with them, column by column.

    Attributes:
        value: What is summed or averaged.
        weight: 1 / keep probability (`_weight`).
        within: Of the row's grant (`_within`).
        contrast: Of its segment or bucket (`_contrast`); 0 where those were not drawn.
        unit: Segments or buckets that are set against each other (`_unit`); -1 where none were drawn.
        expected: The unit's part of the grant's expected variance (`expected_variance`).
        doubt: The unit's part of the square of that over its freedom.
    """

    value: FloatArray
    weight: FloatArray
    within: FloatArray
    contrast: FloatArray
    unit: npt.NDArray[np.int64]
    expected: FloatArray
    doubt: FloatArray


def sums_by_group(rows: SampledRows, group: npt.NDArray[np.int64], groups: int) -> list[Sums]:
    """The sums of each group, by two levels of aggregation as in SQL: by group and unit, then by group."""
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
    """Of each unit: its rows have the same."""
    greatest = np.zeros(size)
    np.maximum.at(greatest, at, terms)
    return greatest


def _any(at: npt.NDArray[np.int64], mask: npt.NDArray[np.bool_], size: int) -> FloatArray:
    return _number(_summed(at, _number(mask), size) > 0)
