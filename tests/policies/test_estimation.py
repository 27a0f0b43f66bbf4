"""Load estimation: eq. 3.1, 3.2 with fan-out, and 4.1, by hand and against following every path."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.policies.load.estimation import incoming_load, load_coefficients, queued_load


def test_a_chain_costs_each_operator_times_what_reaches_it() -> None:
    # eq. 3.2: 1 + 0.5 * 2 + 0.5 * 0.4 * 10 = 4
    got = load_coefficients(np.array([1.0, 2.0, 10.0]), np.array([0.5, 0.4, 1.0]), [(1,), (2,), ()])
    assert got.tolist() == pytest.approx([4.0, 6.0, 10.0])


def test_a_shared_operator_counts_every_branch_it_feeds() -> None:
    """pham2016 fig. 6 without the join: a select whose result two queries read."""
    #   0 source -> 1 select (0.5) -> 2 project -> 4 output
    #                              -> 3 output
    cost = np.array([1.0, 2.0, 4.0, 8.0, 16.0])
    selectivity = np.array([1.0, 0.5, 0.25, 1.0, 1.0])
    got = load_coefficients(cost, selectivity, [(1,), (2, 3), (4,), (), ()])
    # project: 4 + 0.25 * 16 = 8;  select: 2 + 0.5 * (8 + 8) = 10;  source: 1 + 10 = 11
    assert got.tolist() == pytest.approx([11.0, 10.0, 8.0, 8.0, 16.0])


def test_an_operator_that_passes_nothing_on_costs_only_itself() -> None:
    got = load_coefficients(np.array([3.0, 100.0]), np.array([0.0, 1.0]), [(1,), ()])
    assert got.tolist() == [3.0, 100.0]


def test_an_operator_that_multiplies_costs_more_than_its_successor() -> None:
    got = load_coefficients(np.array([1.0, 2.0]), np.array([3.0, 1.0]), [(1,), ()])
    assert got.tolist() == [7.0, 2.0]


@st.composite
def networks(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, list[list[int]]]:
    """Operators in topological order, each reading one earlier operator or two of them."""
    n = draw(st.integers(1, 9))
    cost = draw(st.lists(st.floats(0.001, 10.0), min_size=n, max_size=n))
    selectivity = draw(st.lists(st.floats(0.0, 3.0), min_size=n, max_size=n))
    downstream: list[list[int]] = [[] for _ in range(n)]
    for i in range(1, n):
        for upstream in draw(st.sets(st.integers(0, i - 1), min_size=1, max_size=2)):
            downstream[upstream].append(i)
    return np.array(cost), np.array(selectivity), downstream


def paths_from(i: int, downstream: list[list[int]]) -> list[list[int]]:
    """Every way a tuple can go from operator i, cut off at every length."""
    return [[i]] + [[i, *path] for d in downstream[i] for path in paths_from(d, downstream)]


@settings(max_examples=80, derandomize=True)
@given(networks())
def test_coefficients_are_the_cost_of_following_a_tuple_along_every_path(
    network: tuple[np.ndarray, np.ndarray, list[list[int]]],
) -> None:
    cost, selectivity, downstream = network
    got = load_coefficients(cost, selectivity, downstream)
    for i in range(cost.size):
        followed = sum(
            cost[path[-1]] * math.prod(selectivity[a] for a, _ in pairwise(path))
            for path in paths_from(i, downstream)
        )
        assert got[i] == pytest.approx(followed)


def test_incoming_load_is_rate_times_coefficient_summed_over_the_streams() -> None:
    assert incoming_load(np.array([100.0, 50.0]), np.array([0.004, 0.01])) == pytest.approx(0.9)
    assert incoming_load(np.array([0.0, 0.0]), np.array([0.004, 0.01])) == 0.0


def test_queued_load_is_queue_length_times_coefficient_summed_over_the_operators() -> None:
    # 10 tuples before the source's successor, 2 before the last operator
    assert queued_load(np.array([10.0, 0.0, 2.0]), np.array([0.004, 0.003, 0.001])) == pytest.approx(0.042)
    assert queued_load(np.empty(0), np.empty(0)) == 0.0
