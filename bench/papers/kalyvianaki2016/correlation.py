"""kalyvianaki2016 7.1: whether the error of a result falls as its SIC rises, by query and data set."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from penstock.bench import BenchRun, bench
from penstock.policies.quality.sic import source_tuple_sic
from penstock.vocabulary.model import FloatArray

from .datasets import DATASETS, free_memory_kb, planetlab, readings, series
from .errors_of_results import deviation, kendall_distance, rank_correlation

WINDOW_S, INTERVALS = 1.0, 4
"""Queries answer every second; the shedder drops tuples at random every 250 ms."""
FITS = 10
"""So many queries a node can process. The paper overloads it by deploying more of them."""
DEPLOYED = (10, 11, 12, 14, 17, 20, 25, 33, 50, 70, 100)
MEASURED = 5
"""Of the deployed queries; the others are alike and only take their part of the node."""
FLAT = 0.15
"""Where even a SIC of 0.1 costs no more than this, a curve is called flat; COUNT loses 0.9 there."""
COUNTED_FROM = 50.0
LEAST_FREE_KB = 100_000.0
PLACES = 5

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Curve:
    """One query on one data set.

    Attributes:
        sic: Mean SIC at each level of overload.
        error: Mean error there (the deviation, for COV).
        by_level: Rank correlation of the two.
        by_window: Rank correlation of SIC and error of single windows of all levels.
    """

    sic: FloatArray
    error: FloatArray
    by_level: float
    by_window: float

    @property
    def is_flat(self) -> bool:
        return float(self.error.max()) < FLAT


@dataclass(frozen=True)
class Query:
    """A query of table 1.

    Attributes:
        name: Of it.
        sources: How many.
        rows_per_s: Of each.
        make: Data of all sources: windows x sources x rows.
        errors: Error of each window, from data and what was kept of it.
        is_deviation: Whether a level's error is the root of the mean square, not the mean.
    """

    name: str
    sources: int
    rows_per_s: int
    make: Callable[[str, int, np.random.Generator], FloatArray]
    errors: Callable[[FloatArray, Mask], FloatArray]
    is_deviation: bool = False


def kept(query: Query, windows: int, deployed: int, random: np.random.Generator) -> Mask:
    """What a node keeps of one of `deployed` queries: in every interval as many tuples as fit, at random.

    How many of them are this query's is a draw without replacement too.
    """
    mine = query.sources * query.rows_per_s // INTERVALS
    if deployed <= FITS:
        return np.ones((windows, query.sources, query.rows_per_s), np.bool_)
    count = windows * INTERVALS
    of_mine = random.hypergeometric(mine, mine * (deployed - 1), mine * FITS, count)
    order = np.argsort(random.random((count, mine)), axis=1)
    mask = np.zeros((count, mine), np.bool_)
    np.put_along_axis(mask, order, np.arange(mine) < of_mine[:, None], axis=1)
    shaped = mask.reshape(windows, INTERVALS, query.sources, -1)
    return shaped.swapaxes(1, 2).reshape(windows, query.sources, query.rows_per_s)


def sic_of_windows(query: Query, mask: Mask) -> FloatArray:
    """Eq. 2 with a window's tuples as T_s: rates are steady, so a longer STW has the same mean."""
    each = source_tuple_sic(np.full(query.sources, float(query.rows_per_s)), query.sources)
    return mask.sum(axis=2) @ each


def curve(run: BenchRun, query: Query, dataset: str) -> Curve:
    """SIC and error of a query at every level of overload."""
    windows, levels = (60, DEPLOYED[::2]) if run.quick else (300, DEPLOYED)
    sic, error, all_sic, all_error = [], [], [], []
    data = [
        query.make(dataset, windows, np.random.default_rng((run.seed, DATASETS.index(dataset), i)))
        for i in range(MEASURED)
    ]
    for deployed in levels:
        of_sic, of_error = [], []
        for i in range(MEASURED):
            random = np.random.default_rng((run.seed, DATASETS.index(dataset), i, deployed))
            mask = kept(query, windows, deployed, random)
            errors = query.errors(data[i], mask)
            known = ~np.isnan(errors)
            of_sic.append(sic_of_windows(query, mask)[known])
            of_error.append(errors[known])
        level_sic, level_error = np.concatenate(of_sic), np.concatenate(of_error)
        sic.append(level_sic.mean())
        mean = (
            deviation(level_error, np.zeros_like(level_error)) if query.is_deviation else level_error.mean()
        )
        error.append(mean)
        all_sic.append(level_sic)
        all_error.append(level_error)
        run.progress(advance=1 / len(levels))
    return Curve(
        np.array(sic),
        np.array(error),
        rank_correlation(np.array(sic), np.array(error)) or 0.0,
        rank_correlation(np.concatenate(all_sic), np.abs(np.concatenate(all_error))) or 0.0,
    )


# -- the queries of table 1 ---------------------------------------------------------------------------------


def _one_source(dataset: str, windows: int, random: np.random.Generator) -> FloatArray:
    return readings(dataset, windows * 400, random).reshape(windows, 1, 400)


def _node_sources(nodes: int, rows: int) -> Callable[[str, int, np.random.Generator], FloatArray]:
    def make(dataset: str, windows: int, random: np.random.Generator) -> FloatArray:
        return series(dataset, nodes, windows * rows, random).reshape(nodes, windows, rows).swapaxes(0, 1)

    return make


def _cpu_and_memory(dataset: str, windows: int, random: np.random.Generator) -> FloatArray:
    cpu = _node_sources(10, 20)(dataset, windows, random)
    memory = free_memory_kb(dataset, 10, windows * 20, random).reshape(10, windows, 20).swapaxes(0, 1)
    return np.concatenate([cpu, memory], axis=1)


def _relative(degraded: FloatArray, perfect: FloatArray) -> FloatArray:
    """Relative errors by window: 1 where nothing was left to answer from, NaN where the true answer is 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        errors = np.abs(np.where(np.isnan(degraded), 0.0, degraded) - perfect) / np.abs(perfect)
    return np.where(perfect == 0, np.nan, errors)


def _mean(data: FloatArray, mask: Mask) -> FloatArray:
    return data.sum(axis=-1, where=mask) / np.where(mask.any(axis=-1), mask.sum(axis=-1), np.nan)


def _flat(data: FloatArray, mask: Mask) -> tuple[FloatArray, Mask]:
    return data.reshape(len(data), -1), mask.reshape(len(mask), -1)


def avg_errors(data: FloatArray, mask: Mask) -> FloatArray:
    rows, left = _flat(data, mask)
    return _relative(_mean(rows, left), rows.mean(axis=1))


def max_errors(data: FloatArray, mask: Mask) -> FloatArray:
    rows, left = _flat(data, mask)
    degraded = np.where(left, rows, -np.inf).max(axis=1)
    return _relative(np.where(np.isinf(degraded), np.nan, degraded), rows.max(axis=1))


def count_errors(data: FloatArray, mask: Mask) -> FloatArray:
    rows, left = _flat(data, mask)
    high = rows >= COUNTED_FROM
    return _relative((high & left).sum(axis=1).astype(float), high.sum(axis=1).astype(float))


def top5_errors(data: FloatArray, mask: Mask) -> FloatArray:
    perfect, degraded = top5(data, np.ones_like(mask)), top5(data, mask)
    return np.array(
        [
            kendall_distance(p, d, max(len(p), len(d))) if p else np.nan
            for p, d in zip(perfect, degraded, strict=True)
        ]
    )


def top5(data: FloatArray, mask: Mask) -> list[list[int]]:
    """Nodes with most available CPU among those with free memory: averages, a filter, a join, top-k."""
    means = _mean(data, mask)
    cpu, memory = means[:, :10], means[:, 10:]
    available = np.where(memory >= LEAST_FREE_KB, 100.0 - cpu, np.nan)
    order = np.argsort(-np.where(np.isnan(available), -np.inf, available), axis=1, kind="stable")
    known = (~np.isnan(available)).sum(axis=1)
    return [line[: min(PLACES, n)].tolist() for line, n in zip(order, known.tolist(), strict=True)]


def cov_errors(data: FloatArray, mask: Mask) -> FloatArray:
    """Covariance of tuples of one moment that are both left, over the standard deviations of the sources."""
    both = mask.all(axis=1)
    pairs = both.sum(axis=1)
    spread = data[:, 0].std() * data[:, 1].std()
    return (
        _covariance(data, both, pairs) - _covariance(data, np.ones_like(both), np.full(len(data), 400))
    ) / spread


def _covariance(data: FloatArray, both: Mask, pairs: npt.NDArray[np.int64]) -> FloatArray:
    x, y = data[:, 0], data[:, 1]
    centred = (x - _mean(x, both)[:, None]) * (y - _mean(y, both)[:, None])
    products = np.where(both, centred, 0.0).sum(axis=1)
    return products / np.where(pairs > 1, pairs - 1.0, np.nan)


AGGREGATE = (
    Query("avg", 1, 400, _one_source, avg_errors),
    Query("max", 1, 400, _one_source, max_errors),
    Query("count", 1, 400, _one_source, count_errors),
)
COMPLEX = (
    Query("avg_all", 10, 20, _node_sources(10, 20), avg_errors),
    Query("top5", 20, 20, _cpu_and_memory, top5_errors),
    Query("cov", 2, 400, _node_sources(2, 400), cov_errors, is_deviation=True),
)


@bench("fig6", title="SIC and the error of AVG, MAX and COUNT on five data sets")
def fig6(run: BenchRun) -> None:
    measure(run, AGGREGATE, "fig6")


@bench("fig7", title="SIC and the error of AVG-all, TOP-5 and COV on five data sets")
def fig7(run: BenchRun) -> None:
    measure(run, COMPLEX, "fig7")


def measure(run: BenchRun, queries: tuple[Query, ...], figure: str) -> None:
    run.note(f"planetlab: {planetlab()[1]}; correlations are of mean SIC and mean error by level of overload")
    run.progress(total=len(queries) * len(DATASETS))
    curves: dict[str, dict[str, Curve]] = {}
    for query in queries:
        found = curves[query.name] = {}
        for dataset in DATASETS:
            run.progress(f"{query.name}, {dataset}")
            found[dataset] = curve(run, query, dataset)
            run.row(f"rank_correlation_{query.name}_{dataset}", found[dataset].by_level)
            run.note(f"{query.name}, {dataset}: {_said(found[dataset])}")
        run.row(f"rank_correlation_{query.name}_max", max(c.by_level for c in found.values()))
        run.row(f"window_correlation_{query.name}_max", max(c.by_window for c in found.values()))
        flat = [dataset for dataset, c in found.items() if c.is_flat]
        if flat:
            run.note(f"{query.name} is flat, its error is below {FLAT:.0%} at any SIC: {', '.join(flat)}")
    if run.plots is not None:
        plot(curves, run.plots / f"kalyvianaki2016-{figure}.png")


def _said(found: Curve) -> str:
    points = ", ".join(f"{s:.2f}: {e:.3g}" for s, e in zip(found.sic[::-2], found.error[::-2], strict=True))
    return f"error by SIC {points}; rank correlation {found.by_level:.2f}, of windows {found.by_window:.2f}"


def plot(curves: dict[str, dict[str, Curve]], path: Path) -> None:
    """The figure: a panel a query, a line a data set."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4 * len(curves), 3.4), layout="constrained")
    for axis, (name, found) in zip(figure.subplots(1, len(curves)), curves.items(), strict=True):
        for dataset, line in found.items():
            axis.plot(line.sic, line.error, marker="o", ms=3, lw=1.2, label=dataset)
        axis.set(title=name, xlabel="SIC", xlim=(0, 1))
        axis.set_ylim(bottom=0)
        axis.grid(True, color="#e8e8e8")
    axis.legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=150, format="png")
