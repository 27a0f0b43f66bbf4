"""Errors of results by hand, and Spearman's correlation against its definition."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.benches import bench_module

from penstock.vocabulary.errors import InvalidInputError

of = bench_module("kalyvianaki2016.errors_of_results")
deviation, kendall_distance, rank_correlation = (
    of.deviation,
    of.kendall_distance,
    of.rank_correlation,
)
mean_absolute_error, relative_errors = of.mean_absolute_error, of.relative_errors


def numbers(*values: float) -> np.ndarray:
    return np.array(values, float)


def test_the_error_is_relative_to_the_perfect_result() -> None:
    assert mean_absolute_error(numbers(90, 55), numbers(100, 50)) == pytest.approx(0.1)


def test_a_missing_result_is_wrong_by_all_of_it() -> None:
    assert relative_errors(numbers(math.nan, 50), numbers(10, 50)).tolist() == [1.0, 0.0]


def test_a_perfect_result_of_zero_has_no_relative_error() -> None:
    assert relative_errors(numbers(3, 4), numbers(0, 4)).tolist() == [0.0]
    assert mean_absolute_error(numbers(3), numbers(0)) is None


def test_negative_results_have_positive_errors() -> None:
    assert mean_absolute_error(numbers(-8), numbers(-10)) == pytest.approx(0.2)


def test_deviation_is_about_the_perfect_results_not_about_their_mean() -> None:
    assert deviation(numbers(3, 3), numbers(1, 1)) == 2.0
    assert deviation(numbers(4, math.nan, -3), numbers(0, 0, 0)) == pytest.approx(math.sqrt(12.5))
    assert deviation(numbers(math.nan), numbers(1)) is None


def test_results_that_do_not_belong_together_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="results are compared one by one"):
        deviation(numbers(1, 2), numbers(1))


@pytest.mark.parametrize(
    ("first", "second", "places", "distance"),
    [
        pytest.param("abcde", "abcde", 5, 0.0, id="the same list"),
        pytest.param("abcde", "vwxyz", 5, 1.0, id="nothing in common"),
        pytest.param("ab", "ba", 2, 1 / 5, id="two swapped: 1 of 2 * 2 + 0.5 * 2"),
        pytest.param("ab", "ac", 2, 1 / 5, id="b before c in one, after it in the other"),
        pytest.param("ab", "ca", 2, 2 / 5, id="c comes before both of the others"),
        pytest.param("ab", "a", 2, 1 / 5, id="an empty place is a wrong element"),
        pytest.param("ab", "", 2, 1.0, id="no list at all"),
    ],
)
def test_kendalls_distance(first: str, second: str, places: int, distance: float) -> None:
    assert kendall_distance(first, second, places) == pytest.approx(distance)


lists = st.lists(st.integers(0, 9), unique=True, max_size=5)


@given(lists, lists)
def test_kendalls_distance_is_symmetric_and_between_0_and_1(first: list[int], second: list[int]) -> None:
    distance = kendall_distance(first, second, 5)
    assert 0 <= distance <= 1
    assert distance == kendall_distance(second, first, 5)
    assert kendall_distance(first, first, 5) == 0 or len(first) < 5


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [("abc", "ab", "a top-k list has at most k elements"), ("aa", "ab", "has no element twice")],
)
def test_what_is_no_top_k_list_is_refused(first: str, second: str, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        kendall_distance(first, second, 2)


def test_a_falling_error_correlates_with_minus_one_however_it_falls() -> None:
    sic = np.linspace(0.1, 1, 10)
    assert rank_correlation(sic, np.exp(-9 * sic)) == pytest.approx(-1.0)


def test_ties_have_their_mean_rank() -> None:
    # ranks 1, 2.5, 2.5, 4 and 1, 2, 3, 4: covariance 4.5 / sqrt(4.5 * 5)
    assert rank_correlation(numbers(1, 2, 2, 3), numbers(1, 2, 3, 4)) == pytest.approx(math.sqrt(0.9))


def test_what_never_changes_correlates_with_nothing() -> None:
    assert rank_correlation(numbers(1, 1, 1), numbers(1, 2, 3)) is None
    assert rank_correlation(numbers(), numbers()) is None


@given(st.lists(st.integers(-9, 9), min_size=3, max_size=20, unique=True))
def test_without_ties_it_is_spearmans_formula(values: list[int]) -> None:
    first, second = np.arange(len(values), dtype=float), np.array(values, float)
    difference = np.argsort(np.argsort(second)) - first
    count = len(values)
    expected = 1 - 6 * (difference**2).sum() / (count * (count**2 - 1))
    assert rank_correlation(first, second) == pytest.approx(expected)
