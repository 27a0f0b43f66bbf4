"""fiscato2012 chapter 6: fair against random shedding, scale, and quality against cost."""

from __future__ import annotations

import itertools
from functools import cache

from penstock.bench import BenchRun, bench
from penstock.sim.federation import mixed

from ..federations import NODES, SHEDDERS, Fairness, averaged, by_zipf, simulate

REPEATS = 2
SIZES = (180, 300, 480, 600, 900, 1200)
DROP_COSTS = (0.0, 0.05, 0.1)
"""Parts of a processed row's cost that dropping one takes, in fig6.11."""


@bench("fig6.5-6.8", title="Fair against random shedding: mean, IQR, std, Q.95-Q.05, 2 to 6 partitions")
def fig6_5(run: BenchRun) -> None:
    # table 6.4 counts the queries of one kind; there are three
    cases = {
        "2": ((2, 2), 334),
        "3": ((3, 3), 220),
        "4": ((4, 4), 170),
        "5": ((5, 5), 134),
        "6": ((6, 6), 112),
    }
    cases["2-6"] = ((2, 6), 190)
    if run.quick:
        cases = {name: cases[name] for name in ("2", "2-6")}
    times = run.times(REPEATS)
    run.progress(total=2 * len(cases) * times)
    for name, (fragments, of_a_kind) in cases.items():
        found: dict[str, Fairness] = {}
        for shedder in SHEDDERS:

            def measure(
                seed: int,
                shedder: str = shedder,
                fragments: tuple[int, int] = fragments,
                count: int = 3 * of_a_kind,
            ) -> Fairness:
                specs = mixed(count, fragments, seed)
                return simulate(specs, by_zipf(specs, NODES, seed), NODES, shedder, seed)

            found[shedder] = averaged(run, times, measure, f"{shedder}, {name} partitions")
            label = "fair" if shedder == "balance" else shedder
            for figure in ("mean", "iqr", "std", "q95_q05"):
                run.row(f"{figure}_{label}_{name}", getattr(found[shedder].spread, figure))
        fair, random = found["balance"].spread, found["random"].spread
        run.row(f"mean_ratio_{name}", fair.mean / random.mean)
        for figure in ("iqr", "std", "q95_q05"):
            # dispersion grows with the mean (6.3): both are compared relative to it
            ratio = (getattr(fair, figure) / fair.mean) / (getattr(random, figure) / random.mean)
            run.row(f"{figure}_ratio_{name}", ratio)


@cache
def scaled(queries: int, nodes: int, seed: int, drop_cost: float = 0.0) -> Fairness:
    """A run of the mixed workload; remembered, since fig6.10 and fig6.11 show the same ones."""
    specs = mixed(queries, (2, 6), seed)
    node = by_zipf(specs, nodes, seed)
    return simulate(specs, node, nodes, "balance", seed, drop_cost_fraction=drop_cost)


@bench("fig6.9", title="600 queries on 9 to 24 nodes")
def fig6_9(run: BenchRun) -> None:
    sizes = (9, 24) if run.quick else (9, 12, 15, 18, 21, 24)
    times = run.times(REPEATS)
    run.progress(total=len(sizes) * times)
    found = {}
    for nodes in sizes:
        found[nodes] = averaged(run, times, lambda seed, n=nodes: scaled(600, n, seed), f"{nodes} nodes")
        spread = found[nodes].spread
        for figure in ("mean", "iqr", "std", "q95_q05"):
            run.row(f"{figure}_{nodes}", getattr(spread, figure))
        run.row(f"variation_{nodes}", spread.std / spread.mean)
    run.row("mean_24_to_9", found[24].mean / found[9].mean)


@bench("fig6.10", title="180 to 1,200 queries on 18 nodes")
def fig6_10(run: BenchRun) -> None:
    sizes = (180, 900) if run.quick else SIZES
    times = run.times(REPEATS)
    run.progress(total=len(sizes) * times)
    means = []
    for queries in sizes:
        fair = averaged(run, times, lambda seed, n=queries: scaled(n, NODES, seed), f"{queries} queries")
        for figure in ("mean", "iqr", "std", "q95_q05"):
            run.row(f"{figure}_{queries}", getattr(fair.spread, figure))
        means.append(fair.mean)
    run.row("means_fall", float(all(a > b for a, b in itertools.pairwise(means))))


@bench("fig6.11", title="Cost saved against quality lost as queries are added; where it stops to pay")
def fig6_11(run: BenchRun) -> None:
    sizes = (180, 300, 900) if run.quick else SIZES
    times = run.times(REPEATS)
    run.progress(total=len(DROP_COSTS) * len(sizes) * times)
    for drop_cost in DROP_COSTS:
        label = f"_drop_{100 * drop_cost:g}" if drop_cost else ""
        means = {
            n: averaged(
                run, times, lambda seed, n=n, d=drop_cost: scaled(n, NODES, seed, d), f"{n} queries{label}"
            ).mean
            for n in sizes
        }
        gains = advantage_percent(means)
        for n, gain in gains.items():
            run.row(f"advantage_percent{label}_{n}", gain)
        tips = tipping_point(gains)
        run.row(f"tipping_queries{label}", max(gains) if tips is None else tips)
        if tips is None:
            run.note(f"dropping at {drop_cost:.0%}: the advantage is still above 0 at {max(gains)} queries")


def advantage_percent(means: dict[int, float]) -> dict[int, float]:
    """Cost saved less quality lost, against the fewest queries (eq. 6.3 and 6.4).

    Adding queries pays while the cost saved is more than the quality lost; eq. 6.5 has it reversed.
    """
    base = min(means)
    return {
        n: 100.0 * ((1.0 - base / n) - (1.0 - mean / means[base])) for n, mean in means.items() if n != base
    }


def tipping_point(gains: dict[int, float]) -> float | None:
    """Where the advantage crosses zero, on a line between neighbours; `None` if it does not."""
    points = list(gains.items())
    for (n, gain), (more, less) in itertools.pairwise(points):
        if gain > 0 >= less:
            return n + (more - n) * gain / (gain - less)
    return None
