"""Workload generators."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.sim.workloads import arrivals as workloads
from penstock.sim.workloads.arrivals import (
    CostTrace,
    constant,
    cost_trace,
    pareto,
    s_c,
    s_r,
    s_step,
    self_similar,
    sinusoid,
    step,
)
from penstock.sim.workloads.traces import Arrivals
from penstock.vocabulary.errors import InvalidInputError

BIASES = [0.1, 0.25, 0.5, 1.0, 1.25, 1.5]
SEEDED: dict[str, Callable[[int], Arrivals]] = {
    "pareto": lambda seed: pareto(200.0, 0.5, 60.0, seed=seed),
    "self_similar": lambda seed: self_similar(duration_s=60.0, peak_per_s=None, seed=seed),
}


def variance_to_mean(arrivals: Arrivals) -> float:
    counts = arrivals.counts_per(1.0)
    return float(counts.var() / counts.mean())


def autocorrelation(arrivals: Arrivals, lags: int) -> np.ndarray:
    counts = arrivals.counts_per(1.0)
    deviation = counts - counts.mean()
    return np.array(
        [np.mean(deviation[:-lag] * deviation[lag:]) / counts.var() for lag in range(1, lags + 1)]
    )


def test_constant_arrivals_are_evenly_spaced_from_zero() -> None:
    arrivals = constant(4.0, 2.0)
    np.testing.assert_allclose(arrivals.times_s, [0, 0.25, 0.5, 0.75, 1, 1.25, 1.5, 1.75])
    assert arrivals.duration_s == 2.0
    assert arrivals.mean_rate_per_s == 4.0
    assert arrivals.name == "constant 4/s"


def test_step_arrivals_are_evenly_spaced_inside_each_level() -> None:
    arrivals = step([(0, 2), (1, 4), (2, 0), (3, 1)], 5.0)
    np.testing.assert_allclose(arrivals.times_s, [0, 0.5, 1, 1.25, 1.5, 1.75, 3, 4])


def test_a_silent_last_level_has_no_arrivals() -> None:
    np.testing.assert_allclose(step([(0, 2), (1, 0)], 3.0).times_s, [0, 0.5])


def test_a_step_workload_may_be_silent_throughout() -> None:
    assert step([(0, 0)], 3.0).count == 0


@given(
    pieces=st.lists(st.tuples(st.floats(0.01, 20.0), st.floats(0.0, 300.0)), min_size=1, max_size=8),
)
@settings(max_examples=100)
def test_a_step_workload_has_as_many_arrivals_as_its_rates_integrate_to(
    pieces: list[tuple[float, float]],
) -> None:
    starts_s = np.concatenate(([0.0], np.cumsum([length_s for length_s, _ in pieces])))
    levels = [(float(start_s), rate) for start_s, (_, rate) in zip(starts_s, pieces, strict=False)]
    arrivals = step(levels, float(starts_s[-1]))
    expected = sum(length_s * rate for length_s, rate in pieces)
    assert abs(arrivals.count - expected) <= 1


def test_a_sinusoid_starts_low_and_peaks_after_half_a_period() -> None:
    counts = sinusoid(0.0, 400.0, 40.0, 80.0).counts_per(1.0)
    assert counts[0] <= 2
    assert counts[20] in (398, 399, 400)
    assert counts[40] <= 2
    assert counts.sum() == 200 * 80


def test_sinusoid_arrivals_are_where_the_integrated_rate_is_a_whole_number() -> None:
    arrivals = sinusoid(50.0, 150.0, 10.0, 25.0)
    omega = 2 * np.pi / 10.0
    integrated = 100.0 * arrivals.times_s - 50.0 / omega * np.sin(omega * arrivals.times_s)
    np.testing.assert_allclose(integrated, np.arange(arrivals.count), atol=1e-6)


def test_a_sinusoid_without_swing_is_constant() -> None:
    np.testing.assert_allclose(sinusoid(5.0, 5.0, 3.0, 4.0).times_s, constant(5.0, 4.0).times_s)


@pytest.mark.parametrize("bias", BIASES)
def test_pareto_has_the_requested_mean(bias: float) -> None:
    assert pareto(200.0, bias, 400.0).mean_rate_per_s == pytest.approx(200.0, rel=1e-4)


@pytest.mark.parametrize("seed", range(5))
def test_pareto_is_less_bursty_the_larger_the_bias_factor(seed: int) -> None:
    burstiness = [variance_to_mean(pareto(200.0, bias, 400.0, seed=seed)) for bias in BIASES]
    assert burstiness == sorted(burstiness, reverse=True)
    assert burstiness[0] > 1.5 * burstiness[-1]


def test_pareto_is_more_dramatic_than_the_web_trace() -> None:
    assert variance_to_mean(pareto(264.0, 1.0, 400.0)) > 34.5


def test_pareto_stays_near_its_upper_bound() -> None:
    peak = pareto(200.0, 1.0, 2000.0, peak_to_mean=3.0).counts_per(1.0).max()
    assert 500 < peak < 660


def test_a_pareto_rate_holds_for_its_period() -> None:
    counts = pareto(200.0, 0.5, 60.0, period_s=5.0).counts_per(1.0).reshape(-1, 5)
    assert np.all(np.ptp(counts, axis=1) <= 1)
    assert np.ptp(counts) > 100


def test_pareto_may_end_within_a_period() -> None:
    arrivals = pareto(200.0, 0.5, 2.5)
    assert arrivals.count == 500
    assert arrivals.times_s[-1] < 2.5


@pytest.mark.parametrize("generate", SEEDED.values(), ids=SEEDED.keys())
def test_the_same_seed_gives_the_same_arrivals(generate: Callable[[int], Arrivals]) -> None:
    np.testing.assert_array_equal(generate(7).times_s, generate(7).times_s)
    assert not np.array_equal(generate(7).counts_per(1.0), generate(8).counts_per(1.0))


def test_generators_leave_the_global_random_state_alone() -> None:
    np.random.seed(1)
    expected = np.random.random()
    np.random.seed(1)
    for generate in SEEDED.values():
        generate(1)
    assert np.random.random() == expected


def test_s_c_overloads_from_the_tenth_second() -> None:
    counts = s_c().counts_per(1.0)
    assert counts.size == 400
    assert set(counts[:10]) == {200}
    assert set(counts[10:]) == {350}
    assert s_c().name == "S_c"


def test_s_step_rises_every_forty_seconds_beyond_total_overload() -> None:
    arrivals = s_step()
    counts = arrivals.counts_per(10.0) / 10.0
    np.testing.assert_allclose(counts[:10], [200] + [300] * 4 + [450] * 4 + [675], atol=0.2)
    assert counts[-1] == pytest.approx(200 * 1.5**10, rel=0.001)
    assert arrivals.name == "S_step"


def test_s_step_may_end_before_the_first_rise() -> None:
    assert s_step(duration_s=5.0).count == 1000


def test_s_r_reads_the_real_trace_from_its_first_packet_on(tmp_path: Path) -> None:
    write_lbl(tmp_path, b"15000\n1015000\n399000000\n")
    arrivals = s_r(tmp_path)
    assert arrivals.name == "S_r (LBL-PKT-4)"
    np.testing.assert_allclose(arrivals.times_s, [0.0, 1.0, 398.985])
    assert arrivals.duration_s == 400.0


def test_s_r_finds_its_data_by_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_lbl(tmp_path, b"0\n1000000\n")
    monkeypatch.setenv("PENSTOCK_DATA", str(tmp_path))
    assert s_r().count == 2


def test_s_r_is_read_once_per_process(tmp_path: Path) -> None:
    write_lbl(tmp_path, b"0\n1000000\n")
    assert s_r(tmp_path) is s_r(tmp_path)
    assert s_r(tmp_path / "none") is s_r(tmp_path / "none")


def test_s_r_without_data_is_synthetic_and_says_so(tmp_path: Path) -> None:
    arrivals = s_r(tmp_path)
    assert arrivals.name == "S_r (synthetic)"
    assert arrivals.duration_s == 400.0
    assert_like_lbl(arrivals)


def write_lbl(data_dir: Path, content: bytes) -> None:
    folder = data_dir / "lbl-tcp-400s"
    folder.mkdir()
    (folder / "arrivals_us.txt.gz").write_bytes(gzip.compress(content))


def assert_like_lbl(arrivals: Arrivals) -> None:
    assert arrivals.mean_rate_per_s == pytest.approx(264.0, rel=0.01)
    assert variance_to_mean(arrivals) == pytest.approx(34.5, rel=0.1)
    assert arrivals.counts_per(1.0).max() == pytest.approx(656, rel=0.15)


@pytest.mark.parametrize("seed", range(4))
def test_self_similar_arrivals_have_the_mean_variance_and_peak_of_the_real_trace(seed: int) -> None:
    assert_like_lbl(self_similar(seed=seed))


def test_self_similar_arrivals_are_bursty_at_every_scale() -> None:
    ratios = []
    for bin_s in (0.01, 0.1, 1.0, 10.0):
        counts = self_similar(seed=1).counts_per(bin_s)
        ratios.append(counts.var() / counts.mean())
    assert ratios[0] > 1.5  # Poisson has 1 at every scale
    assert all(wide > 2 * narrow for narrow, wide in pairwise(ratios))


def test_self_similar_arrivals_without_a_wanted_peak_keep_the_variance() -> None:
    arrivals = self_similar(mean_rate_per_s=50.0, peak_per_s=None, variance_to_mean=5.0, duration_s=60.5)
    assert arrivals.count == 50 * 60.5
    assert variance_to_mean(arrivals) == pytest.approx(5.0, rel=0.1)
    assert arrivals.times_s[-1] <= 60.5


needs_real_trace = pytest.mark.skipif(
    not (workloads._DEFAULT_DATA_DIR / workloads._S_R_FILE).is_file(), reason="the shared data are absent"
)


@needs_real_trace
def test_the_real_trace_has_the_numbers_the_synthetic_one_is_calibrated_to() -> None:
    real = s_r(workloads._DEFAULT_DATA_DIR)
    assert real.count == 105_413
    assert real.counts_per(1.0).max() == 656
    assert variance_to_mean(real) == pytest.approx(34.5, abs=0.05)


@needs_real_trace
def test_synthetic_seconds_are_correlated_like_the_real_ones_up_to_five_seconds(tmp_path: Path) -> None:
    real = autocorrelation(s_r(workloads._DEFAULT_DATA_DIR), 5)  # 0.62 0.48 0.45 0.50 0.49
    synthetic = autocorrelation(s_r(tmp_path), 5)  # 0.60 0.45 0.38 0.42 0.44
    np.testing.assert_allclose(synthetic, real, atol=0.1)


@needs_real_trace
def test_synthetic_variance_is_like_the_real_one_at_finer_and_coarser_scales(tmp_path: Path) -> None:
    for bin_s in (0.01, 0.1, 10.0):
        real, synthetic = (
            a.counts_per(bin_s).var() for a in (s_r(workloads._DEFAULT_DATA_DIR), s_r(tmp_path))
        )
        assert synthetic == pytest.approx(real, rel=0.25)


def test_the_cost_changes_as_in_the_papers_figure() -> None:
    trace = cost_trace(noise_peak=1.0001)  # next to no noise
    assert trace.times_s.size == 400
    expected = {20: 1.0, 45: 1.15, 50: 1.3, 60: 1.0, 124: 1.0, 125: 2.0, 150: 1.0, 229: 1.0, 240: 1.25}
    expected |= {250: 1.5, 349: 1.5, 350: 1.0, 399: 1.0}
    for second, factor in expected.items():
        assert trace.factor_at(second + 0.5) == pytest.approx(factor, abs=0.001), second


@pytest.mark.parametrize("seed", range(3))
def test_the_cost_is_about_one_outside_the_events_and_changes_slowly(seed: int) -> None:
    trace = cost_trace(seed=seed)
    t = trace.times_s
    quiet = (t < 40) | ((t >= 60) & (t < 125)) | ((t >= 150) & (t < 230)) | (t >= 350)
    assert trace.factors[quiet].mean() == pytest.approx(1.0, abs=0.06)
    assert trace.factors[quiet].min() > 0.7
    assert trace.factors[quiet].max() < 1.4
    assert trace.factors[quiet].std() > 0.02
    assert np.abs(np.diff(trace.factors[(t >= 150) & (t < 230)])).max() < 0.05


def test_the_cost_trace_is_deterministic_and_read_only() -> None:
    np.testing.assert_array_equal(cost_trace(seed=3).factors, cost_trace(seed=3).factors)
    with pytest.raises(ValueError, match="read-only"):
        cost_trace().factors[0] = 2.0


def test_a_cost_factor_holds_until_the_next_and_the_last_for_ever() -> None:
    trace = CostTrace(np.array([0.0, 2.0]), np.array([1.0, 3.0]))
    assert [trace.factor_at(t) for t in (0.0, 1.99, 2.0, 1e6)] == [1.0, 1.0, 3.0, 3.0]


NAN, INF = float("nan"), float("inf")
REJECTED: dict[str, tuple[Callable[[], object], str]] = {
    "rate zero": (lambda: constant(0.0, 1.0), "rate_per_s must be a positive number; got: 0.0"),
    "rate infinite": (lambda: constant(INF, 1.0), "rate_per_s must be a positive number; got: inf"),
    "duration nan": (lambda: constant(1.0, NAN), "duration_s must be a positive number; got: nan"),
    "too many arrivals": (
        lambda: constant(1e9, 1e9),
        "the number of arrivals must not exceed 200000000; got: 1e+18",
    ),
    "no levels": (lambda: step([], 1.0), "the first level must start at 0 s; got: no level"),
    "late first level": (lambda: step([(1, 2)], 3.0), "the first level must start at 0 s; got: (1, 2)"),
    "unsorted levels": (
        lambda: step([(0, 1), (5, 2), (3, 1)], 9.0),
        "each level must start before the next and before duration_s; got: a level from 5 to 3 s",
    ),
    "level after the end": (lambda: step([(0, 1), (5, 2)], 4.0), "got: a level from 5 to 4 s"),
    "negative level": (
        lambda: step([(0, -1)], 4.0),
        "the rate of a level must be 0 or a positive number; got: -1",
    ),
    "level nan": (
        lambda: step([(0, NAN)], 4.0),
        "the rate of a level must be 0 or a positive number; got: nan",
    ),
    "step duration": (lambda: step([(0, 1)], -1.0), "duration_s must be a positive number; got: -1.0"),
    "swapped swing": (
        lambda: sinusoid(9, 2, 1, 1),
        "low_per_s must lie between 0 and high_per_s; got: 9 and 2",
    ),
    "swing high": (lambda: sinusoid(0, 0, 1, 1), "high_per_s must be a positive number; got: 0"),
    "swing period": (lambda: sinusoid(0, 1, 0, 1), "period_s must be a positive number; got: 0"),
    "swing duration": (lambda: sinusoid(0, 1, 1, 0), "duration_s must be a positive number; got: 0"),
    "pareto mean": (lambda: pareto(0, 1, 1), "mean_rate_per_s must be a positive number; got: 0"),
    "pareto bias": (lambda: pareto(1, 0, 1), "bias must be a positive number; got: 0; hint: the paper uses"),
    "pareto duration": (lambda: pareto(1, 1, 0), "duration_s must be a positive number; got: 0"),
    "pareto period": (lambda: pareto(1, 1, 1, period_s=0), "period_s must be a positive number; got: 0"),
    "pareto periods": (lambda: pareto(1, 1, 1, period_s=1e-9), "the number of periods must not exceed"),
    "pareto bound": (
        lambda: pareto(1, 1, 1, peak_to_mean=1.0),
        "the upper bound over the mean must be a number above 1; got: 1.0",
    ),
    "seed negative": (lambda: pareto(1, 1, 1, seed=-1), "seed must be a whole number, 0 or more; got: -1"),
    "seed text": (lambda: pareto(1, 1, 1, seed="x"), "seed must be a whole number, 0 or more; got: 'x'"),  # type: ignore[arg-type]
    "ladder falls": (
        lambda: s_step(growth=1.0),
        "growth must be above 1 and keep the last of 11 levels below",
    ),
    "ladder explodes": (lambda: s_step(growth=1e300), "below 1e9 times the first; got: 1e+300"),
    "ladder base": (lambda: s_step(first_per_s=0), "first_per_s must be a positive number; got: 0"),
    "ladder first": (lambda: s_step(first_s=0), "first_s must be a positive number; got: 0"),
    "ladder hold": (lambda: s_step(hold_s=0), "hold_s must be a positive number; got: 0"),
    "ladder duration": (lambda: s_step(duration_s=0), "duration_s must be a positive number; got: 0"),
    "ladder levels": (lambda: s_step(hold_s=1e-9), "the number of levels must not exceed"),
    "self-similar mean": (lambda: self_similar(-1), "mean_rate_per_s must be a positive number; got: -1"),
    "self-similar peak": (lambda: self_similar(peak_per_s=0), "peak_per_s must be a positive number; got: 0"),
    "smooth": (
        lambda: self_similar(variance_to_mean=1.0),
        "variance_to_mean must be a number above 1; got: 1.0; hint: use constant()",
    ),
    "hurst": (lambda: self_similar(hurst=1.0), "hurst must be at least 0.5 and below 1; got: 1.0"),
    "self-similar duration": (lambda: self_similar(duration_s=9), "duration_s must be at least 10; got: 9"),
    "impossible peak": (
        lambda: self_similar(peak_per_s=300, duration_s=50),
        "variance_to_mean 34.5 and peak_per_s 300 must be possible together; got: 34.5 and ",
    ),
    "cost duration": (lambda: cost_trace(0), "duration_s must be a positive number; got: 0"),
    "cost step": (lambda: cost_trace(step_s=0), "step_s must be a positive number; got: 0"),
    "cost steps": (lambda: cost_trace(step_s=1e-9), "the number of steps must not exceed"),
    "cost draws": (lambda: cost_trace(1e12, step_s=1e12), "the number of draws must not exceed"),
    "cost height": (
        lambda: cost_trace(terrace=0),
        "terrace must be a positive number; got: 0; hint: 1 is no",
    ),
    "cost bias": (lambda: cost_trace(noise_bias=0), "noise_bias must be a positive number; got: 0"),
    "cost lengths": (
        lambda: CostTrace(np.zeros(1), np.ones(2)),
        "times_s and factors must be lists of one length, at least 1; got: (1,) and (2,)",
    ),
    "cost origin": (
        lambda: CostTrace(np.array([1.0, 2.0]), np.ones(2)),
        "times_s must start at 0 and increase; got: [1.0, 2.0]",
    ),
    "cost factors": (
        lambda: CostTrace(np.zeros(1), np.array([-1.0])),
        "factors must be positive numbers; got: -1.0; hint: 1 is no change",
    ),
}


@pytest.mark.parametrize(("call", "message"), REJECTED.values(), ids=REJECTED.keys())
def test_bad_parameters_are_rejected_with_the_rule_in_one_line(
    call: Callable[[], object], message: str
) -> None:
    with pytest.raises(InvalidInputError) as caught:
        call()
    assert message in str(caught.value)
    assert "; hint: " in str(caught.value)
    assert "\n" not in str(caught.value)
