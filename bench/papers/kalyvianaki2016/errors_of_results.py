"""How far degraded results are from perfect ones: the errors of kalyvianaki2016 7.1 and fiscato2012 6.2.

    AVG, COUNT, MAX   relative absolute error, its mean over results is the papers' MAE
    TOP-k             Kendall's distance of two lists (Fagin, Kumar, Sivakumar 2003), from 0 to 1
    COV               deviation of results from the perfect ones as a standard deviation

and Spearman's rank correlation, which says whether an error falls as SIC rises.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from itertools import combinations

import numpy as np

from penstock.vocabulary.errors import InvalidInputError
from penstock.vocabulary.model import FloatArray


def relative_errors(degraded: FloatArray, perfect: FloatArray) -> FloatArray:
    """|degraded - perfect| / |perfect| of each result; 1 where a result is missing (NaN).

    Results whose perfect value is 0 have no relative error and are left out.
    """
    _same_length(degraded, perfect)
    known = perfect != 0
    errors = np.abs((degraded[known] - perfect[known]) / perfect[known])
    return np.where(np.isnan(errors), 1.0, errors)


def mean_absolute_error(degraded: FloatArray, perfect: FloatArray) -> float | None:
    """The papers' MAE, the mean of the relative errors; `None` if no result has one."""
    errors = relative_errors(degraded, perfect)
    return float(errors.mean()) if errors.size else None


def deviation(degraded: FloatArray, perfect: FloatArray) -> float | None:
    """The standard deviation of results about the perfect ones; missing ones (NaN) are left out."""
    _same_length(degraded, perfect)
    off = (degraded - perfect)[~np.isnan(degraded)]
    return math.sqrt(float(np.mean(off**2))) if off.size else None


def kendall_distance(
    first: Sequence[Hashable], second: Sequence[Hashable], places: int, neither: float = 0.5
) -> float:
    """Kendall's distance of two top-k lists over its largest value: 0 for the same list, 1 for disjoint ones.

    Over all pairs of elements of either list, a pair counts 1 if the lists order it differently, where an
    element that a list lacks comes after all that it has; and `neither` if both elements are in one list and
    none in the other, which says nothing of their order. A list with empty places is filled up with
    elements of its own: what is missing counts as what is wrong.

    Args:
        first: The best first.
        second: Likewise.
        places: k, how long the lists are meant to be.
        neither: The penalty p of Fagin, Kumar and Sivakumar; a half is neutral.
    """
    if places < 1 or max(len(first), len(second)) > places:
        raise InvalidInputError(
            "a top-k list has at most k elements", f"{len(first)} and {len(second)} of {places}", "cut them"
        )
    ranks = []
    for number, listed in enumerate((first, second)):
        rank: dict[Hashable, int] = {element: i for i, element in enumerate(listed)}
        if len(rank) != len(listed):
            raise InvalidInputError("a top-k list has no element twice", list(listed), "group by it first")
        rank |= {("empty place", number, i): i for i in range(len(listed), places)}
        ranks.append(rank)
    a, b = ranks
    found = sum(_penalty(x, y, a, b, neither) for x, y in combinations(sorted(a | b, key=repr), 2))
    return found / (places**2 + neither * places * (places - 1))


def _penalty(
    x: Hashable, y: Hashable, a: dict[Hashable, int], b: dict[Hashable, int], neither: float
) -> float:
    for one, other in ((a, b), (b, a)):
        if x in one and y in one and x not in other and y not in other:
            return neither
    last = len(a) + len(b)
    ahead_a = a.get(x, last) - a.get(y, last)
    ahead_b = b.get(x, last) - b.get(y, last)
    return 1.0 if ahead_a * ahead_b < 0 else 0.0


def rank_correlation(first: FloatArray, second: FloatArray) -> float | None:
    """Spearman's rank correlation, ties at their mean rank; `None` where one side never changes."""
    _same_length(first, second)
    a, b = _ranks(first), _ranks(second)
    a, b = a - a.mean() if a.size else a, b - b.mean() if b.size else b
    scale = math.sqrt(float(a @ a) * float(b @ b))
    return float(a @ b) / scale if scale > 0 else None


def _ranks(values: FloatArray) -> FloatArray:
    _, at, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    means: FloatArray = ends - (counts - 1) / 2.0
    return means[at]


def _same_length(first: FloatArray, second: FloatArray) -> None:
    if first.shape != second.shape:
        raise InvalidInputError(
            "results are compared one by one", f"{first.shape} and {second.shape}", "align them first"
        )
