"""Estimates by hand: rows with p = 1/2 weigh 2, and each adds 2 * (2 - 1) = 2 to the variance of a count."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.policies.quality.estimates import (
    AGGREGATES,
    Aggregate,
    Products,
    SampledRows,
    Sums,
    bucket_contrasts,
    contrasts,
    estimate,
    expected_variance,
    student_quantile,
    sums_by_group,
)
from penstock.vocabulary.errors import InvalidInputError


def rows_of(value: list[float], weight: float, contrast: object = 0.0, unit: object = -1) -> SampledRows:
    """Rows of one grant; whole units unless they have none."""
    values = np.array(value, float)
    units = np.broadcast_to(np.asarray(unit, np.int64), values.shape)
    within = np.where(units < 0, weight - 1, 0.0)
    contrasts = np.broadcast_to(np.asarray(contrast, float), values.shape)
    ones = np.ones(values.size)
    return SampledRows(values, ones * weight, within, contrasts, units, ones, ones)


def sums_of(rows: SampledRows) -> Sums:
    return sums_by_group(rows, np.zeros(rows.value.size, np.int64), 1)[0]


def test_half_of_the_rows_count_twice_and_the_error_is_the_coins() -> None:
    got = estimate(sums_of(rows_of([3.0] * 50, 2.0)), "count")
    assert (got.value, got.units) == (100.0, 50)
    assert got.error == pytest.approx(math.sqrt(50 * 2))
    assert got.high == pytest.approx(100 + student_quantile(0.975, 49) * 10)
    assert got.low == pytest.approx(200 - got.high)


def test_a_sum_has_the_variance_of_its_values() -> None:
    values = [float(v) for v in range(40)]
    got = estimate(sums_of(rows_of(values, 4.0)), "sum")
    assert got.value == pytest.approx(4 * sum(values))
    assert got.error == pytest.approx(math.sqrt(sum(12 * v * v for v in values)))


def test_an_average_has_the_variance_of_what_values_differ_from_it() -> None:
    values = [1.0, 3.0] * 20
    got = estimate(sums_of(rows_of(values, 2.0)), "avg")
    assert got.value == 2.0
    assert got.error == pytest.approx(math.sqrt(40 * 2) / 80)


def test_where_nothing_is_shed_the_result_is_exact_however_few_rows() -> None:
    got = estimate(sums_of(rows_of([5.0, 7.0], 1.0)), "sum")
    assert (got.value, got.error, got.low, got.high) == (12.0, 0.0, 12.0, 12.0)
    assert got.reason == "nothing was shed"


@pytest.mark.parametrize("aggregate", AGGREGATES)
def test_rows_that_lie_only_in_a_bucket_without_a_partner_have_no_interval(aggregate: Aggregate) -> None:
    unit, contrast = bucket_contrasts(31, 124)
    assert contrast[-1] == 0
    got = estimate(sums_of(rows_of([3.0] * 40, 4.0, contrast[-1], unit[-1])), aggregate)
    assert got.value == {"count": 160, "sum": 480, "avg": 3}[aggregate]
    assert (got.error, got.low, got.high) == (None, None, None)
    assert got.reason == "0 units, fewer than 30"


def test_one_row_that_stands_for_two_among_a_million_was_sampled() -> None:
    kept = Sums(rows=1_000_000, weight=1_000_000.0)
    assert kept.whole
    assert not kept.plus(sums_of(rows_of([1.0], 2.0))).whole
    assert not Sums().whole


@pytest.mark.parametrize("aggregate", AGGREGATES)
@pytest.mark.parametrize("rows", [1, 10])
def test_units_that_do_not_differ_give_an_interval_without_width(rows: int, aggregate: Aggregate) -> None:
    unit, contrast = contrasts(np.full(30, 40), 0.25)
    alike = sums_of(rows_of([2.0] * 30 * rows, 4.0, np.repeat(contrast, rows), np.repeat(unit, rows)))
    assert not alike.whole
    got = estimate(alike, aggregate)
    assert got.value == {"count": 120 * rows, "sum": 240 * rows, "avg": 2}[aggregate]
    assert (got.error, got.low, got.high) == pytest.approx((0.0, got.value, got.value), abs=1e-9)
    assert got.reason == "30 units"


def test_few_units_that_do_not_differ_give_none() -> None:
    unit, contrast = contrasts(np.full(28, 40), 0.25)
    got = estimate(sums_of(rows_of([2.0] * 28, 4.0, contrast, unit)), "count")
    assert (got.value, got.low, got.reason) == (112.0, None, "28 units, fewer than 30")


@pytest.mark.parametrize("aggregate", AGGREGATES)
def test_of_no_rows_nothing_is_said(aggregate: Aggregate) -> None:
    got = estimate(Sums(), aggregate)
    assert (got.low, got.high, got.reason) == (None, None, "no rows were kept")


def test_rows_that_were_all_kept_add_their_value_and_no_error() -> None:
    part = sums_of(rows_of([3.0] * 50, 2.0))
    both = part.plus(sums_of(rows_of([3.0] * 1000, 1.0)))
    assert estimate(both, "count").value == 1100
    assert estimate(both, "count").error == estimate(part, "count").error


def test_grants_with_different_keep_fractions_are_strata() -> None:
    low, high = sums_of(rows_of([1.0] * 40, 10.0)), sums_of(rows_of([1.0] * 40, 2.0))
    got = estimate(low.plus(high), "count")
    assert got.value == 480
    assert got.error == pytest.approx(math.sqrt(40 * 90 + 40 * 2))


def test_values_far_from_zero_that_hardly_differ_keep_an_error_that_rounding_allows() -> None:
    got = estimate(sums_of(rows_of([1e9, 1e9 + 1e-3] * 50, 2.0)), "avg")
    assert got.error is not None
    assert 0 < got.error < 1e9 * 1e-6


@pytest.mark.parametrize(
    ("sums", "reason"),
    [
        pytest.param(Sums(), "no rows were kept", id="nothing"),
        pytest.param(sums_of(rows_of([1.0] * 29, 2.0)), "29 units, fewer than 30", id="29 rows"),
        pytest.param(
            Sums(rows=50, sampled=50, weight=100, within=Products(100, 0, 0), lost=1200),
            "1,200 rows of the same grants were late or expired: no chance to be kept",
            id="late rows",
        ),
        pytest.param(
            Sums(rows=50, sampled=50, weight=100, within=Products(100, 0, 0), resampled=50),
            "50 rows were sampled before, in another query",
            id="sampled twice",
        ),
        pytest.param(
            Sums(9000, 8000, 8, 4.0, 4.0, 20000, 0, Products(100.0), Products(10_000.0)),
            "the error rests on 4 differences between units, fewer than 5",
            id="a few segments among many rows",
        ),
    ],
)
def test_there_is_no_interval(sums: Sums, reason: str) -> None:
    got = estimate(sums, "avg" if not sums.rows else "count")
    assert (got.error, got.low, got.high) == (None, None, None)
    assert got.reason == reason


def test_a_value_stands_even_without_an_interval() -> None:
    assert estimate(sums_of(rows_of([1.0] * 29, 2.0)), "sum").value == 58


@pytest.mark.parametrize(
    ("aggregate", "confidence", "message"),
    [
        ("max", 0.95, "an estimate is a count, a sum or an avg; got: 'max'"),
        ("count", 95, "a confidence lies between 0 and 1; got: 95"),
    ],
)
def test_what_cannot_be_estimated_is_refused(aggregate: str, confidence: float, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        estimate(Sums(), aggregate, confidence)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("probability", "freedom", "table"),
    [
        (0.975, 5, 2.5706),
        (0.975, 15, 2.1314),
        (0.975, 29, 2.0452),
        (0.995, 20, 2.8453),
        (0.95, 10, 1.8125),
    ],
)
def test_quantiles_are_those_of_the_tables(probability: float, freedom: float, table: float) -> None:
    assert student_quantile(probability, freedom) == pytest.approx(table, abs=3e-3)


def test_without_limit_on_freedom_the_quantile_is_the_normal_one() -> None:
    assert student_quantile(0.975, math.inf) == pytest.approx(1.95996, abs=1e-5)


# -- contrasts ----------------------------------------------------------------------------------------------

sizes = st.lists(st.integers(1, 5000), min_size=2, max_size=60).map(lambda s: np.array(s, np.int64))


@given(sizes, st.floats(0.01, 0.99))
def test_what_is_proportional_to_rows_has_no_variance_between_segments(
    rows: np.ndarray, fraction: float
) -> None:
    unit, contrast = contrasts(rows, fraction)
    sums = np.bincount(unit, contrast * rows)
    assert np.abs(sums).max() <= 1e-9 * rows.sum()


@given(st.integers(2, 80), st.floats(0.01, 0.99))
def test_equal_segments_share_the_spread_whether_even_or_odd(count: int, fraction: float) -> None:
    _, contrast = contrasts(np.full(count, 7), fraction)
    assert (contrast**2).sum() == pytest.approx(count * (1 - fraction))
    assert (contrast != 0).all()


def test_a_single_segment_is_a_unit_by_itself() -> None:
    unit, contrast = contrasts(np.array([40]), 0.36)
    assert unit.tolist() == [0]
    assert contrast.tolist() == [pytest.approx(0.8)]


def test_no_segments_have_no_contrasts() -> None:
    assert contrasts(np.empty(0, np.int64), 0.5)[1].size == 0


def test_a_large_segment_stands_against_several_small_ones() -> None:
    unit, contrast = contrasts(np.array([10, 100, 30, 30, 30]), 0.0)
    assert len(set(unit.tolist())) == 1
    assert [math.copysign(1, c) for c in contrast] == [1, -1, 1, 1, 1]


@given(sizes, st.floats(0.01, 0.99))
def test_segments_whose_rows_are_alike_have_the_variance_of_all_of_them(
    rows: np.ndarray, fraction: float
) -> None:
    """No segment is left out, however large, and two sides that differ in size are no less spread."""
    unit, contrast = contrasts(rows, fraction)
    of_levels = np.bincount(unit, (contrast * rows) ** 2)  # expected squares of the units' sums
    assert of_levels.sum() == pytest.approx((1 - fraction) * (rows.astype(float) ** 2).sum())


def test_over_all_orders_contrasts_give_the_variance_of_a_simple_random_sample() -> None:
    totals = np.array([3.0, 8.0, 1.0, 5.0])
    squares = []
    for order in itertools.permutations(range(4)):
        unit, contrast = contrasts(np.full(4, 9), 0.25)
        squares.append((np.bincount(unit, contrast * totals[list(order)]) ** 2).sum())
    assert np.mean(squares) == pytest.approx(0.75 * 4 * totals.var(ddof=1))


def freedom(sizes: list[int], chance: float, paired: bool = False) -> float:
    expected, doubt = expected_variance(np.array(sizes), chance, paired)
    return expected**2 / doubt


def test_segments_of_one_size_count_one_each_and_two_that_are_set_against_each_other_one() -> None:
    assert freedom([70] * 50, 0.3) == pytest.approx(15)
    assert freedom([70] * 50, 0.3, paired=True) == pytest.approx(7.5)


def test_a_segment_that_has_most_rows_leaves_one_difference_whether_it_was_opened_or_not() -> None:
    assert freedom([1] * 200 + [2000], 0.5) == pytest.approx(0.5, rel=1e-3)
    assert freedom([1, 10, 100, 2000] * 50, 0.3) == pytest.approx(15, rel=0.01)


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=60), st.floats(0.01, 0.99))
def test_no_sizes_give_more_freedom_than_segments_that_are_opened(sizes: list[int], chance: float) -> None:
    assert chance * (1 - 1e-9) <= freedom(sizes, chance) <= chance * len(sizes) * (1 + 1e-9)


def test_segments_that_are_all_opened_or_never_expect_nothing() -> None:
    assert (
        expected_variance(np.array([5, 7]), 1.0, True)
        == expected_variance(np.array([5]), 0.0, True)
        == (0, 0)
    )


def test_an_interval_is_as_wide_as_the_sizes_of_all_segments_ask_for() -> None:
    even, uneven = (Sums(60, 0, 60, 60.0, 60.0 / n, 180, 0, between=Products(900.0)) for n in (1.0, 0.1))
    assert even.doubt < uneven.doubt
    wide, narrow = estimate(uneven, "count"), estimate(even, "count")
    assert (wide.error, narrow.error) == (30.0, 30.0)
    assert wide.high == pytest.approx(180 + 30 * student_quantile(0.975, 6))
    assert narrow.high == pytest.approx(180 + 30 * student_quantile(0.975, 60))


def test_buckets_are_set_against_their_neighbour_in_the_order() -> None:
    unit, contrast = bucket_contrasts(4, 16)
    assert unit.tolist() == [0, 0, 1, 1]
    assert contrast == pytest.approx(np.array([1, -1, 1, -1]) * math.sqrt(0.75))


def test_the_last_of_an_odd_number_of_buckets_has_no_part() -> None:
    _, contrast = bucket_contrasts(5, 20)
    assert contrast[-1] == 0
    assert (contrast**2).sum() == pytest.approx(5 * 0.75)


def test_one_bucket_and_none_are_no_error() -> None:
    assert bucket_contrasts(1, 4)[1].tolist() == [pytest.approx(math.sqrt(0.75))]
    assert bucket_contrasts(0, 4)[1].size == 0


# -- sums ---------------------------------------------------------------------------------------------------


@st.composite
def sampled_rows(draw: st.DrawFn) -> tuple[SampledRows, np.ndarray]:
    count = draw(st.integers(0, 40))
    columns = [draw(st.lists(st.floats(-9, 9), min_size=count, max_size=count)) for _ in range(4)]
    of_unit = np.arange(-1.0, 6.0)
    unit = draw(st.lists(st.integers(-1, 5), min_size=count, max_size=count))
    group = draw(st.lists(st.integers(0, 2), min_size=count, max_size=count))
    value, weight, within, contrast = (np.array(column, float) for column in columns)
    units = np.array(unit, np.int64)
    parts = of_unit[units + 1] + 2
    rows = SampledRows(value, 1 + np.abs(weight), np.abs(within), contrast, units, parts, parts**2)
    return rows, np.array(group, np.int64)


@settings(max_examples=60)
@given(sampled_rows())
def test_two_levels_of_aggregation_are_the_sums_of_the_formula(drawn: tuple[SampledRows, np.ndarray]) -> None:
    rows, group = drawn
    for g, sums in enumerate(sums_by_group(rows, group, 3)):
        mine = group == g
        assert sums.rows == mine.sum()
        assert sums.weighted == pytest.approx((rows.weight * rows.value)[mine].sum(), abs=1e-9)
        inner = (rows.weight * rows.within * rows.value**2)[mine].sum()
        assert sums.within.squares == pytest.approx(inner, abs=1e-9)
        outer = seen = expected = 0.0
        for u in set(rows.unit[mine].tolist()):
            of_unit = mine & (rows.unit == u)
            outer += float((rows.contrast * rows.weight * rows.value)[of_unit].sum()) ** 2
            if u >= 0:
                seen += float((rows.contrast[of_unit] > 0).any()) + float((rows.contrast[of_unit] < 0).any())
                expected += (u + 2) * float((rows.contrast[of_unit] != 0).any())
        assert sums.between.squares == pytest.approx(outer, abs=1e-7)
        assert sums.units == seen
        assert sums.expected == pytest.approx(expected)


@given(st.lists(st.floats(-100, 100), min_size=30, max_size=60), st.floats(-1e3, 1e3))
def test_a_shift_of_all_values_moves_the_average_and_not_its_error(values: list[float], shift: float) -> None:
    before = estimate(sums_of(rows_of(values, 3.0)), "avg")
    after = estimate(sums_of(rows_of([v + shift for v in values], 3.0)), "avg")
    assert before.value is not None
    assert before.error is not None
    assert after.value == pytest.approx(before.value + shift, abs=1e-7)
    assert after.error == pytest.approx(before.error, rel=1e-3, abs=1e-3)
