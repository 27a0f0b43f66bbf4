"""Workload generators: the papers' arrival processes and the cost trace, deterministic given their seed.

Times are in seconds from 0. Sources: [CTRL] Tu et al., VLDB 2006; [ALoMa] Pham's thesis, 2016.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from penstock.sim.workloads.traces import Arrivals, Counts, Floats, read_trace, require_countable, seeded
from penstock.vocabulary.errors import InvalidInputError, require_positive

_S_R_FILE = Path("lbl-tcp-400s") / "arrivals_us.txt.gz"
_S_R_DURATION_S = 400.0
# this file -> the project root -> the data beside it (never part of the repository).
_DEFAULT_DATA_DIR = Path(__file__).resolve().parents[4].parent / "shared" / "data"

_RATE_HINT = "give tuples per second"
_DURATION_HINT = "give the length of the workload in seconds"


def constant(rate_per_s: float, duration_s: float) -> Arrivals:
    """Evenly spaced arrivals."""
    require_positive("rate_per_s", rate_per_s, _RATE_HINT)
    require_positive("duration_s", duration_s, _DURATION_HINT)
    times_s = _evenly(np.array([0.0, duration_s]), np.array([rate_per_s]))
    return Arrivals(times_s, duration_s, f"constant {rate_per_s:g}/s")


def step(levels: Sequence[tuple[float, float]], duration_s: float, name: str = "step") -> Arrivals:
    """Evenly spaced arrivals inside each level.

    Args:
        levels: (start_s, rate_per_s) of each level; the first starts at 0, each lasts until the next.
        duration_s: End of the last level.
        name: Name of the workload.
    """
    require_positive("duration_s", duration_s, _DURATION_HINT)
    if not levels or levels[0][0] != 0:
        raise InvalidInputError(
            "the first level must start at 0 s",
            levels[0] if levels else "no level",
            "levels=[(0, 200), (10, 350)]",
        )
    ends_s = [start_s for start_s, _ in levels[1:]] + [duration_s]
    for (start_s, rate_per_s), end_s in zip(levels, ends_s, strict=True):
        if not start_s < end_s:
            raise InvalidInputError(
                "each level must start before the next and before duration_s",
                f"a level from {start_s:g} to {end_s:g} s",
                "sort the levels, lengthen the duration",
            )
        if not 0 <= rate_per_s < np.inf:
            raise InvalidInputError(
                "the rate of a level must be 0 or a positive number", rate_per_s, _RATE_HINT
            )
    rates_per_s = np.array([rate_per_s for _, rate_per_s in levels], dtype=np.float64)
    return Arrivals(_evenly(np.array([0.0, *ends_s]), rates_per_s), duration_s, name)


def sinusoid(low_per_s: float, high_per_s: float, period_s: float, duration_s: float) -> Arrivals:
    """Arrivals whose rate swings between low and high, starting low ([CTRL] 4.2 uses [0, 400]).

    rate(t) = mid - swing * cos(2 pi t / period); arrival k is where the integrated rate reaches k.
    """
    if not 0 <= low_per_s <= high_per_s:
        raise InvalidInputError(
            "low_per_s must lie between 0 and high_per_s", f"{low_per_s:g} and {high_per_s:g}", "swap the two"
        )
    require_positive("high_per_s", high_per_s, _RATE_HINT)
    require_positive("period_s", period_s, "give the length of one swing in seconds")
    require_positive("duration_s", duration_s, _DURATION_HINT)
    mid, swing, omega = (low_per_s + high_per_s) / 2, (high_per_s - low_per_s) / 2, 2 * np.pi / period_s

    def integrated(t_s: Floats | float) -> Floats:
        return np.asarray(mid * t_s - swing / omega * np.sin(omega * t_s))

    rank = np.arange(_whole(float(integrated(duration_s))), dtype=np.float64)
    # Bisection, because Newton divides by the rate, which is 0 where low_per_s is. The sine moves an arrival
    # from rank / mid by at most this much.
    reach_s = swing / (omega * mid)
    low_s, high_s = rank / mid - reach_s, rank / mid + reach_s
    for _ in range(50):
        middle_s = (low_s + high_s) / 2
        early = integrated(middle_s) < rank
        low_s, high_s = np.where(early, middle_s, low_s), np.where(early, high_s, middle_s)
    times_s = np.clip((low_s + high_s) / 2, 0.0, duration_s)
    return Arrivals(np.maximum.accumulate(times_s), duration_s, f"sinusoid {low_per_s:g}-{high_per_s:g}/s")


def pareto(
    mean_rate_per_s: float,
    bias: float,
    duration_s: float,
    period_s: float = 1.0,
    seed: int = 0,
    peak_to_mean: float = 4.0,
) -> Arrivals:
    """Long-tailed arrivals: the count of each period is Pareto, spread evenly over it ([CTRL] section 5).

    The paper regulates burstiness by a bias factor, smaller is burstier, and gives no formula. Here it is the
    shape of a *bounded* Pareto distribution: up to shape 1 the plain one has no mean. The upper bound is
    `peak_to_mean` times the mean, and the lower bound follows; with a fixed ratio of the two, burstiness
    would peak at shape 1. The draws are rescaled to the exact mean. A peak of 4 is more dramatic than the
    real trace's 2.5, as the paper says of its figure 13.

    Args:
        mean_rate_per_s: Mean rate of the workload.
        bias: The bias factor beta; the paper uses 0.1, 0.25, 0.5, 1, 1.25 and 1.5.
        duration_s: Length of the workload.
        period_s: How long a drawn rate holds. 5 gives the paper's bursts of "4 to 5 seconds".
        seed: For the draws.
        peak_to_mean: Upper bound of the distribution over its mean.
    """
    require_positive("mean_rate_per_s", mean_rate_per_s, _RATE_HINT)
    require_positive("bias", bias, "the paper uses 0.1 to 1.5; smaller is burstier")
    require_positive("duration_s", duration_s, _DURATION_HINT)
    require_positive("period_s", period_s, "give the control period in seconds")
    periods = max(1, require_countable("periods", np.ceil(duration_s / period_s - 1e-9)))
    edges_s = np.minimum(np.arange(periods + 1) * period_s, duration_s)
    draws = _bounded_pareto(bias, peak_to_mean, periods, seeded(seed))
    rates_per_s = draws * (mean_rate_per_s * duration_s / np.dot(draws, np.diff(edges_s)))
    return Arrivals(_evenly(edges_s, rates_per_s), duration_s, f"pareto beta {bias:g}")


def s_c() -> Arrivals:
    """S_c of [ALoMa] 4.3.1: 200/s, then 350/s, which overloads, from the 10th to the 400th second."""
    return step([(0.0, 200.0), (10.0, 350.0)], 400.0, "S_c")


def s_step(
    first_per_s: float = 200.0,
    growth: float = 1.5,
    first_s: float = 10.0,
    hold_s: float = 40.0,
    duration_s: float = 400.0,
) -> Arrivals:
    """S_step of [ALoMa] 5.3.1: 200/s for 10 s, then a higher level every 40 s.

    The paper gives the timing and no heights, only that reading and dropping alone overload the system in the
    end. A growth of 1.5 ends at 11,533/s from the 370th second: total overload if a drop costs over 87 us.
    """
    require_positive("first_per_s", first_per_s, _RATE_HINT)
    require_positive("first_s", first_s, "give the length of the first level in seconds")
    require_positive("hold_s", hold_s, "give the length of a level in seconds")
    require_positive("duration_s", duration_s, _DURATION_HINT)
    rungs = require_countable("levels", np.ceil(max(0.0, duration_s - first_s) / hold_s))
    if not (growth > 1 and rungs * np.log(growth) < np.log(1e9)):
        raise InvalidInputError(
            f"growth must be above 1 and keep the last of {rungs + 1} levels below 1e9 times the first",
            growth,
            "1.5 makes each level half as high again",
        )
    higher = [(first_s + rung * hold_s, first_per_s * growth ** (rung + 1)) for rung in range(rungs)]
    return step([(0.0, first_per_s), *higher], duration_s, "S_step")


def s_r(data_dir: str | Path | None = None) -> Arrivals:
    """S_r of [ALoMa] 4.3.1, "Web" of [CTRL]: 400 s of LBL-PKT-4, or a synthetic stand-in; the name tells.

    Args:
        data_dir: Folder that holds lbl-tcp-400s. Without it, the environment variable PENSTOCK_DATA, then
            ../shared/data beside the project.
    """
    chosen = data_dir or os.environ.get("PENSTOCK_DATA") or _DEFAULT_DATA_DIR
    path = Path(chosen).resolve() / _S_R_FILE
    return _real_s_r(path) if path.is_file() else _synthetic_s_r()


@lru_cache(maxsize=4)
def _real_s_r(path: Path) -> Arrivals:
    trace = read_trace(path, time_scale=1e-6)
    # Counted from the first packet, all 105,413 fit in 400 s, with the peak of 656/s of the data's notes.
    return Arrivals(trace.times_s - trace.times_s[0], _S_R_DURATION_S, "S_r (LBL-PKT-4)")


@lru_cache(maxsize=1)
def _synthetic_s_r() -> Arrivals:
    # Of the seeds 0 to 11, 10 is nearest to the real trace's autocorrelation, which differs between seeds.
    like = self_similar(duration_s=_S_R_DURATION_S, seed=10)
    return Arrivals(like.times_s, like.duration_s, "S_r (synthetic)")


def self_similar(
    mean_rate_per_s: float = 264.0,
    peak_per_s: float | None = 656.0,
    variance_to_mean: float = 34.5,
    duration_s: float = 400.0,
    hurst: float = 0.9,
    seed: int = 0,
) -> Arrivals:
    """Self-similar arrivals calibrated on their counts per second; the defaults are LBL-PKT-4's.

    A Poisson process, given its total, whose rate is max(0, 1 + gain * (exp(skew * noise) / mean - 1)), with
    fractional Gaussian noise in steps of 10 ms. `gain` is searched for the variance and `skew` for the peak,
    with the same random numbers throughout. With Hurst 0.9 the counts per 10 ms, 0.1 s and 1 s have about the
    trace's variances, and those per 1 s its autocorrelation at lags of 1 to 5 s (0.8 forgets too fast).

    Args:
        mean_rate_per_s: Mean rate; the total is exact.
        peak_per_s: Highest count in a second. None leaves it to the variance, for short workloads.
        variance_to_mean: Ratio for the counts per second; above 1, which is Poisson.
        duration_s: Length of the workload.
        hurst: 0.5 has no memory, 1 is the limit of long memory.
        seed: For the noise and the arrivals.
    """
    require_positive("mean_rate_per_s", mean_rate_per_s, _RATE_HINT)
    if not 1 < variance_to_mean < np.inf:
        raise InvalidInputError(
            "variance_to_mean must be a number above 1", variance_to_mean, "use constant()"
        )
    if not 0.5 <= hurst < 1:
        raise InvalidInputError(
            "hurst must be at least 0.5 and below 1", hurst, "network traffic has 0.7 to 0.9"
        )
    if not 10 <= duration_s < np.inf:
        raise InvalidInputError(
            "duration_s must be at least 10", duration_s, "fewer seconds have no variance"
        )
    if peak_per_s is not None:
        require_positive("peak_per_s", peak_per_s, "give the highest count in a second, or None")
    steps = require_countable("steps", np.ceil(duration_s) * _STEPS_PER_S)
    total = max(1, require_countable("arrivals", np.rint(mean_rate_per_s * duration_s)))
    rng = seeded(seed)
    draw = _PoissonDraw(
        _fractional_gaussian_noise(steps, hurst, rng),
        np.minimum(np.arange(steps + 1) / _STEPS_PER_S, duration_s),
        np.sort(rng.random(total)),
    )
    if peak_per_s is None:
        counts, times_s = draw.fitted(_USUAL_SKEW, variance_to_mean)
    else:
        skew = _bisect(lambda s: draw.fitted(s, variance_to_mean)[0].max() - peak_per_s, 0.05, 4.0, 14)
        counts, times_s = draw.fitted(skew, variance_to_mean)
    got_ratio, got_peak = counts.var() / counts.mean(), int(counts.max())
    peak_is_off = peak_per_s is not None and abs(got_peak / peak_per_s - 1) > 0.15
    if peak_is_off or abs(got_ratio / variance_to_mean - 1) > 0.1:
        raise InvalidInputError(
            f"variance_to_mean {variance_to_mean:g} and peak_per_s {peak_per_s} must be possible together",
            f"{got_ratio:.3g} and {got_peak} at best in {duration_s:g} s",
            "pass peak_per_s=None, a longer duration, a higher hurst or another seed",
        )
    return Arrivals(times_s, duration_s, f"self-similar {mean_rate_per_s:g}/s")


_STEPS_PER_S = 100
_USUAL_SKEW = 0.64  # the median of the search's results for LBL-PKT-4's numbers


@dataclass(frozen=True, eq=False)
class _PoissonDraw:
    """Arrivals from one set of random numbers, for any marginal distribution of the rate."""

    noise: Floats
    edges_s: Floats
    ranks: Floats

    def fitted(self, skew: float, variance_to_mean: float) -> tuple[Counts, Floats]:
        """Counts per second and arrival times of the gain that gives the variance."""
        tail = np.exp(skew * self.noise)
        tail = tail / tail.mean() - 1.0

        def integrated(gain: float) -> Floats:
            rate = np.maximum(0.0, 1.0 + gain * tail)
            mass = np.concatenate(([0.0], np.cumsum(rate * np.diff(self.edges_s))))
            return np.asarray(mass / mass[-1])

        def counts(gain: float) -> Counts:
            return np.diff(np.searchsorted(self.ranks, integrated(gain)[::_STEPS_PER_S])).astype(np.int64)

        mean = self.ranks.size * _STEPS_PER_S / self.noise.size
        gain = _bisect(lambda g: counts(g).var() / mean - variance_to_mean, 0.0, 8.0 / skew, 20)
        return counts(gain), np.interp(self.ranks, integrated(gain), self.edges_s)


def _fractional_gaussian_noise(n: int, hurst: float, rng: np.random.Generator) -> Floats:
    """Standard fractional Gaussian noise by circulant embedding (Davies and Harte 1987)."""
    lag = np.arange(n + 1, dtype=np.float64)
    power = 2 * hurst
    covariance = (np.abs(lag - 1) ** power - 2 * lag**power + (lag + 1) ** power) / 2
    circle = np.concatenate((covariance, covariance[-2:0:-1]))
    spectrum = np.maximum(np.fft.fft(circle).real, 0.0)  # non-negative but for rounding
    white = rng.standard_normal(circle.size) + 1j * rng.standard_normal(circle.size)
    return np.asarray(np.fft.fft(np.sqrt(spectrum / circle.size) * white).real[:n])


@dataclass(frozen=True, eq=False)
class CostTrace:
    """A multiplier of the cost per tuple over time: factors[i] holds from times_s[i] to the next."""

    times_s: Floats
    factors: Floats

    def __post_init__(self) -> None:
        for field in ("times_s", "factors"):
            values = np.array(getattr(self, field), dtype=np.float64)
            values.setflags(write=False)
            object.__setattr__(self, field, values)
        if self.times_s.ndim != 1 or self.times_s.shape != self.factors.shape or not self.times_s.size:
            raise InvalidInputError(
                "times_s and factors must be lists of one length, at least 1",
                f"{self.times_s.shape} and {self.factors.shape}",
                "give each factor the time it starts at",
            )
        if self.times_s[0] != 0 or not np.all(np.diff(self.times_s) > 0):
            raise InvalidInputError(
                "times_s must start at 0 and increase",
                self.times_s[:3].tolist(),
                "sort the steps, start at 0",
            )
        if not np.all((self.factors > 0) & np.isfinite(self.factors)):
            raise InvalidInputError(
                "factors must be positive numbers", float(self.factors.min()), "1 is no change"
            )

    def factor_at(self, time_s: float) -> float:
        """The factor in force; the last one holds for ever."""
        return float(self.factors[max(0, int(np.searchsorted(self.times_s, time_s, side="right")) - 1)])


def cost_trace(
    duration_s: float = 400.0,
    step_s: float = 1.0,
    seed: int = 0,
    small_peak: float = 1.3,
    large_peak: float = 2.0,
    terrace: float = 1.5,
    noise_bias: float = 1.0,
    noise_peak: float = 1.2,
) -> CostTrace:
    """The cost per tuple of [CTRL] figure 14: slow bounded Pareto noise of mean 1, times three events.

    A small peak at the 50th second, 20 s wide; a jump at the 125th that fades over 25 s; a rise from the
    230th to a terrace from the 250th, which ends suddenly at the 350th. The paper gives these times and
    "widths on the order of tens of seconds", but no heights and no noise; these are parameters.
    The noise is drawn every 10 s and joined by straight lines, so it changes slowly compared with arrivals.
    """
    require_positive("duration_s", duration_s, _DURATION_HINT)
    require_positive("step_s", step_s, "give the time between changes in seconds")
    require_positive("noise_bias", noise_bias, "smaller is burstier")
    for name, height in (("small_peak", small_peak), ("large_peak", large_peak), ("terrace", terrace)):
        require_positive(name, height, "1 is no change, 2 twice the cost")
    steps = max(1, require_countable("steps", np.ceil(duration_s / step_s - 1e-9)))
    times_s = np.arange(steps, dtype=np.float64) * step_s
    knots_s = np.arange(require_countable("draws", duration_s / 10.0) + 2) * 10.0
    draws = _bounded_pareto(noise_bias, noise_peak, knots_s.size, seeded(seed))
    noise = np.interp(times_s, knots_s, draws / draws.mean())
    small = np.interp(times_s, [40, 50, 60], [0, 1, 0])
    large = np.where(times_s >= 125, np.interp(times_s, [125, 150], [1, 0]), 0.0)
    high = np.where(times_s < 350, np.interp(times_s, [230, 250], [0, 1]), 0.0)
    events = 1 + (small_peak - 1) * small + (large_peak - 1) * large + (terrace - 1) * high
    return CostTrace(times_s, noise * events)


def _bounded_pareto(shape: float, high: float, n: int, rng: np.random.Generator) -> Floats:
    """Draws from the Pareto distribution between a low bound and `high` that has the mean 1."""
    if not 1 < high < np.inf:
        raise InvalidInputError("the upper bound over the mean must be a number above 1", high, "4 is bursty")

    def mean(log_ratio: float) -> float:
        """Mean of the distribution whose low bound is exp(log_ratio) times the high bound."""
        ratio = np.exp(log_ratio)
        if shape == 1.0:
            return float(-high * ratio * log_ratio / (1 - ratio))
        below = np.expm1(shape * log_ratio)
        return float(high * shape / (1 - shape) * (1 + below - ratio) / -below)

    log_ratio = _bisect(lambda x: mean(x) - 1.0, -200.0, 0.0, 60)
    inverse_cdf = np.exp(log_ratio - np.log1p(rng.random(n) * np.expm1(shape * log_ratio)) / shape)
    return np.asarray(high * inverse_cdf)


def _bisect(rising: Callable[[float], float], low: float, high: float, rounds: int) -> float:
    """The point at which a rising function crosses 0; the nearer end if it does not cross 0."""
    for _ in range(rounds):
        middle = (low + high) / 2
        low, high = (middle, high) if rising(middle) < 0 else (low, middle)
    return (low + high) / 2


def _evenly(edges_s: Floats, rates_per_s: Floats) -> Floats:
    """Arrivals where the integral of a piecewise constant rate reaches 0, 1, 2, ..."""
    reached = np.concatenate(([0.0], np.cumsum(rates_per_s * np.diff(edges_s))))
    rank = np.arange(_whole(reached[-1]), dtype=np.float64)
    # The guard keeps an arrival that rounding puts a hair before an edge in the piece it opens; side="right"
    # skips the pieces with the rate 0.
    piece = np.minimum(np.searchsorted(reached, rank + 1e-9, side="right") - 1, rates_per_s.size - 1)
    times_s = edges_s[piece] + np.maximum(0.0, rank - reached[piece]) / rates_per_s[piece]
    return np.minimum(times_s, edges_s[piece + 1])  # or rounding could break the order at an edge


def _whole(integrated_rate: float) -> int:
    """Number of arrivals at 0, 1, 2, ... below the integrated rate; the guard ignores rounding."""
    return max(0, require_countable("arrivals", np.ceil(integrated_rate - 1e-6)))
