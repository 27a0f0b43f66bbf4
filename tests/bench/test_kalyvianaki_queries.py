"""What the benches of kalyvianaki2016 7.1 and 7.5 compute, by hand."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from penstock.bench.registry import load_benches
from penstock.sim.federation import AVG_ALL, COV, Layout, QuerySpec


@pytest.fixture(scope="module")
def correlation() -> Any:
    return module("correlation")


@pytest.fixture(scope="module")
def optimum() -> Any:
    pytest.importorskip("scipy")
    return module("optimum")


def module(name: str) -> Any:
    load_benches()
    return next(found for full, found in sys.modules.items() if full.endswith(f"kalyvianaki2016.{name}"))


def test_a_node_keeps_as_many_tuples_as_it_can_process(correlation: Any) -> None:
    query = correlation.AGGREGATE[0]
    mask = correlation.kept(query, 200, 20, np.random.default_rng(1))
    assert mask.shape == (200, 1, 400)
    assert mask.mean() == pytest.approx(0.5, abs=0.01)
    assert correlation.sic_of_windows(query, mask) == pytest.approx(mask.mean(axis=(1, 2)))
    assert correlation.kept(query, 2, 10, np.random.default_rng(1)).all()


def test_a_count_loses_what_is_dropped(correlation: Any) -> None:
    data = np.array([[[60.0, 70.0, 50.0, 80.0, 10.0]], [[1.0, 2.0, 3.0, 4.0, 5.0]]])
    mask = np.array([[[True, False, False, False, True]], [[True] * 5]])
    errors = correlation.count_errors(data, mask)
    assert errors[0] == pytest.approx(0.75)
    assert np.isnan(errors[1])  # the true count is 0


def test_an_empty_window_is_wrong_by_all_of_it(correlation: Any) -> None:
    data, none = np.full((1, 1, 4), 5.0), np.zeros((1, 1, 4), bool)
    assert correlation.avg_errors(data, none).tolist() == [1.0]
    assert correlation.max_errors(data, none).tolist() == [1.0]


def test_top_5_joins_cpu_with_memory(correlation: Any) -> None:
    cpu, memory = np.arange(10.0) * 10, np.full(10, 150_000.0)
    memory[1] = 50_000.0
    data = np.concatenate([cpu, memory])[None, :, None]
    mask = np.ones_like(data, bool)
    assert correlation.top5(data, mask) == [[0, 2, 3, 4, 5]]
    mask[0, 12] = False  # memory of node 2 is not known any more
    assert correlation.top5(data, mask) == [[0, 3, 4, 5, 6]]


def test_covariance_is_of_pairs_that_are_both_left(correlation: Any) -> None:
    random = np.random.default_rng(3)
    x = random.normal(size=(1, 400))
    data = np.stack([x, 2 * x + random.normal(size=(1, 400))], axis=1)
    mask = np.ones_like(data, bool)
    assert correlation.cov_errors(data, mask) == pytest.approx([0.0])
    mask[0, 0, :200] = False
    left = np.cov(data[0, 0, 200:], data[0, 1, 200:])[0, 1] - np.cov(data[0])[0, 1]
    assert correlation.cov_errors(data, mask) == pytest.approx([left / (data[:, 0].std() * data[:, 1].std())])


def network_of(optimum: Any, specs: list[QuerySpec], capacity: float) -> Any:
    return optimum.Network.of(Layout.of(specs, np.zeros(len(specs), np.int64), 1), capacity)


def test_the_linear_program_fills_the_node_and_leaves_most_queries_out(optimum: Any) -> None:
    network = network_of(optimum, [QuerySpec(AVG_ALL)] * 5, 2.5 * 1500)
    admitted = optimum.most_throughput(network)
    assert (admitted * network.rows_per_s).sum() == pytest.approx(2.5 * 1500)
    assert sorted(np.round(admitted, 6)) == [0, 0, 0.5, 1, 1]


def test_log_utility_gives_equal_rates_to_unequal_queries(optimum: Any) -> None:
    network = network_of(optimum, [QuerySpec(AVG_ALL), QuerySpec(AVG_ALL), QuerySpec(COV)], 1300.0)
    rates = optimum.most_log_utility(network) * network.rows_per_s
    assert rates == pytest.approx([500, 500, 300], rel=1e-3)  # COV has no more than 300
