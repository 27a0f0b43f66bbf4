"""Delay percentiles in constant memory: how near they are to the samples'."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.sim.engine.histogram import DelayHistogram
from penstock.vocabulary.model import DelayStats


def test_an_empty_histogram_has_no_statistics() -> None:
    histogram = DelayHistogram()
    histogram.add(np.empty(0))
    assert histogram.stats() == DelayStats()


def test_count_mean_and_maximum_are_exact() -> None:
    histogram = DelayHistogram()
    for chunk in (np.array([0.1, 0.5]), np.array([2.0]), np.empty(0)):
        histogram.add(chunk)
    stats = histogram.stats()
    assert stats.count == 3
    assert stats.mean_s == pytest.approx(2.6 / 3)
    assert stats.max_s == 2.0


def test_one_delay_is_all_of_its_percentiles() -> None:
    histogram = DelayHistogram()
    histogram.add(np.array([0.25]))
    stats = histogram.stats()
    assert stats.p50_s == stats.p99_s == stats.max_s == 0.25


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_percentiles_are_within_half_a_percent_of_the_samples(seed: int) -> None:
    delays = np.random.default_rng(seed).lognormal(0.0, 2.0, 20_000)
    histogram = DelayHistogram()
    for chunk in np.array_split(delays, 17):
        histogram.add(chunk)
    stats, exact = histogram.stats(), DelayStats.of(delays)
    assert stats.p50_s == pytest.approx(exact.p50_s, rel=0.006)
    assert stats.p95_s == pytest.approx(exact.p95_s, rel=0.006)
    assert stats.p99_s == pytest.approx(exact.p99_s, rel=0.006)


@settings(max_examples=60, derandomize=True)
@given(st.lists(st.floats(1e-6, 1e4), min_size=1, max_size=60))
def test_a_percentile_is_the_samples_rounded_up_by_at_most_half_a_percent(samples: list[float]) -> None:
    delays = np.array(samples)
    histogram = DelayHistogram()
    histogram.add(delays)
    stats, exact = histogram.stats(), DelayStats.of(delays)
    assert stats.count == exact.count
    assert stats.max_s == exact.max_s
    for got, sample in ((stats.p50_s, exact.p50_s), (stats.p95_s, exact.p95_s), (stats.p99_s, exact.p99_s)):
        assert got is not None
        assert sample is not None
        assert sample * (1 - 1e-9) <= got <= sample * 1.005 * (1 + 1e-9)


def test_delays_outside_the_bins_fall_into_the_first_and_the_last() -> None:
    histogram = DelayHistogram()
    histogram.add(np.array([0.0, 1e9]))
    stats = histogram.stats()
    assert stats.count == 2
    assert stats.max_s == 1e9
    assert stats.p50_s is not None
    assert stats.p50_s < 2e-6
