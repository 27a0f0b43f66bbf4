"""kalyvianaki2016 7.2 to 7.4: BALANCE-SIC on one node, on many, at scale, with bursts and on a WAN."""

from __future__ import annotations

from functools import partial

import numpy as np

from penstock.bench import BenchRun, bench
from penstock.sim.federation import COMPLEX, Bursts, QuerySpec, mixed, placement

from ..federations import LOCAL_ROWS_PER_S, NODES, SHEDDERS, Fairness, averaged, by_zipf, simulate

REPEATS = 2


def complex_queries(fragments: tuple[int, int], count: int, seed: int) -> list[QuerySpec]:
    """The complex workload on Emulab: 150 tuples/s in 3 batches a source."""
    return mixed(count, fragments, seed)


@bench("fig8", title="One node with more and more queries: Jain's index down to a mean SIC of 0.1")
def fig8(run: BenchRun) -> None:
    sizes = (15, 124) if run.quick else (15, 30, 60, 90, 124)
    times = run.times(REPEATS)
    run.progress(total=(len(sizes) + 1) * times)

    def one_node(count: int, seed: int, **config: bool) -> Fairness:
        specs = mixed(count, (1, 1), seed, rows_per_s=400.0, batches_per_s=5.0)
        return simulate(specs, np.zeros(count, np.int64), 1, "balance", seed, LOCAL_ROWS_PER_S, **config)

    fair: dict[int, Fairness] = {}
    for count in sizes:
        fair[count] = averaged(run, times, lambda seed, n=count: one_node(n, seed), f"{count} queries")
        run.row(f"mean_sic_{count}", fair[count].mean)
        run.row(f"jain_{count}", fair[count].jain)
    run.row("jain_min", min(f.jain for f in fair.values()))
    run.row("jain_of_means_min", min(f.jain_of_means for f in fair.values()))
    run.row("mean_sic_min", min(f.mean for f in fair.values()))
    most = max(sizes)
    alone = averaged(
        run,
        times,
        lambda seed: one_node(most, seed, count_admitted=False),
        f"{most} queries, by reports alone",
    )
    run.row(f"jain_{most}_by_reports_alone", alone.jain)


@bench("fig9", title="Shedding intervals from 50 ms to 1 s: 200 queries on 6 nodes")
def fig9(run: BenchRun) -> None:
    intervals_ms = (250, 1000) if run.quick else (50, 100, 250, 500, 1000)
    times = run.times(REPEATS)
    run.progress(total=len(intervals_ms) * times)
    fair: dict[int, Fairness] = {}
    for interval_ms in intervals_ms:

        def measure(seed: int, interval_s: float = interval_ms / 1000) -> Fairness:
            specs = complex_queries((1, 3), 200, seed)
            return simulate(specs, by_zipf(specs, 6, seed), 6, "balance", seed, interval_s=interval_s)

        fair[interval_ms] = averaged(run, times, measure, f"{interval_ms} ms")
        run.row(f"mean_sic_{interval_ms}ms", fair[interval_ms].mean)
        run.row(f"jain_{interval_ms}ms", fair[interval_ms].jain)
    means = [f.mean for f in fair.values()]
    run.row("jain_min", min(f.jain for f in fair.values()))
    run.row("mean_sic_max_to_min", max(means) / min(means))


FIG10 = {f"{n}": ((n, n), round(2000 / n)) for n in range(1, 7)} | {"mixed": ((1, 6), 571)}
"""Fragments a query, and queries: about 2,000 fragments in all cases."""
ABLATIONS = {"without_updates": {"updates": False}, "by_reports_alone": {"count_admitted": False}}
"""Nodes that know of no other's decisions; nodes that know only what coordinators report."""


def on_18_nodes(case: str, shedder: str, seed: int, skewed: bool = True, **config: bool) -> Fairness:
    """One of fig10's runs."""
    specs = complex_queries(*FIG10[case], seed)
    node = by_zipf(specs, NODES, seed)
    if not skewed:
        node = placement.uniform([s.fragments for s in specs], NODES, seed)
    return simulate(specs, node, NODES, shedder, seed, **config)


@bench(
    "fig10", title="18 nodes, about 2,000 fragments: BALANCE-SIC against random, 1 to 6 fragments and mixed"
)
def fig10(run: BenchRun) -> None:
    cases = ("1", "6", "mixed") if run.quick else tuple(FIG10)
    times = run.times(REPEATS)
    run.progress(total=(2 * len(cases) + (0 if run.quick else len(ABLATIONS) + 2)) * times)
    for name in cases:
        found: dict[str, Fairness] = {}
        for shedder in SHEDDERS:
            found[shedder] = averaged(
                run, times, partial(on_18_nodes, name, shedder), f"{shedder}, {name} fragments"
            )
            run.row(f"jain_{shedder}_{name}", found[shedder].jain)
            run.row(f"std_{shedder}_{name}", found[shedder].spread.std)
            run.row(f"mean_sic_{shedder}_{name}", found[shedder].mean)
        fair, random = found["balance"], found["random"]
        run.row(f"jain_ratio_{name}", fair.jain / random.jain)
        run.row(f"mean_sic_ratio_{name}", fair.mean / random.mean)
    if not run.quick:
        _ablations(run, times)


def _ablations(run: BenchRun, times: int) -> None:
    """fig10's mixed case with something left out: what nodes know of each other, or the skew."""
    for name, config in ABLATIONS.items():
        fair = averaged(run, times, partial(on_18_nodes, "mixed", "balance", **config), name)
        run.row(f"jain_mixed_{name}", fair.jain)
        run.row(f"mean_sic_mixed_{name}", fair.mean)
    for shedder in SHEDDERS:
        even = averaged(run, times, partial(on_18_nodes, "mixed", shedder, skewed=False), "without skew")
        run.row(f"jain_{shedder}_mixed_without_skew", even.jain)


@bench(
    "fig11", title="More and more queries with three fragments among those with one, 10 nodes, equal loads"
)
def fig11(run: BenchRun) -> None:
    percents = (0, 100) if run.quick else (0, 25, 50, 75, 100)
    times = run.times(REPEATS)
    run.progress(total=len(percents) * times)
    std = {}
    for percent in percents:

        def measure(seed: int, part: float = percent / 100) -> Fairness:
            specs = three_fragments(round(2000 / (1 + 2 * part)), part, seed)
            node = placement.uniform([s.fragments for s in specs], 10, seed)
            return simulate(specs, node, 10, "balance", seed)

        fair = averaged(run, times, measure, f"{percent} % of three fragments")
        std[percent] = fair.spread.std
        run.row(f"jain_{percent}", fair.jain)
        run.row(f"jain_of_means_{percent}", fair.jain_of_means)
        run.row(f"std_{percent}", fair.spread.std)
    run.row("std_100_to_0", std[100] / std[0])


def three_fragments(queries: int, part: float, seed: int) -> list[QuerySpec]:
    """A part of the queries of each kind has three fragments, the others one."""
    split = np.random.default_rng((seed, 11)).random(queries) < part
    return [QuerySpec(COMPLEX[i % 3], 3 if s else 1) for i, s in enumerate(split)]


@bench("fig12", title="500 queries on more and more nodes")
def fig12(run: BenchRun) -> None:
    sizes = (9, 18) if run.quick else (9, 12, 15, 18)
    _scale(run, {size: (500, size) for size in sizes})


@bench("fig13", title="More and more queries on 18 nodes")
def fig13(run: BenchRun) -> None:
    sizes = (180, 900) if run.quick else (180, 300, 500, 700, 900)
    _scale(run, {size: (size, NODES) for size in sizes})


def _scale(run: BenchRun, cases: dict[int, tuple[int, int]]) -> None:
    """Mean SIC and Jain's index for numbers of queries and nodes."""
    times = run.repeats  # where a node is not overloaded, a few queries of one fragment decide
    run.progress(total=len(cases) * times)
    found = []
    for size, (queries, nodes) in cases.items():

        def measure(seed: int, queries: int = queries, nodes: int = nodes) -> Fairness:
            specs = complex_queries((1, 6), queries, seed)
            return simulate(specs, by_zipf(specs, nodes, seed), nodes, "balance", seed)

        fair = averaged(run, times, measure, f"{queries} queries on {nodes} nodes")
        run.row(f"mean_sic_{size}", fair.mean)
        run.row(f"jain_{size}", fair.jain)
        found.append(fair)
    run.row("jain_min", min(fair.jain for fair in found))
    run.row("jain_of_means_min", min(fair.jain_of_means for fair in found))


BURSTS = Bursts(fraction=0.1, factor=10.0, length_s=1.0)
SETUPS = {
    "lan": {},
    "wan": {"delay_s": 0.05},
    "bursts": {"bursts": BURSTS},
    "fsps": {"delay_s": 0.05, "bursts": BURSTS},
}


@bench("fig14", title="Bursty sources and 50 ms between nodes: two fragments a query on 4 nodes")
def fig14(run: BenchRun) -> None:
    sizes = (200,) if run.quick else (150, 200, 300)
    times = run.times(REPEATS)
    run.progress(total=len(sizes) * (len(SETUPS) + 1) * times)
    jains = []
    for count in sizes:
        found = {}
        for name, config in SETUPS.items():
            found[name] = averaged(
                run,
                times,
                lambda seed, n=count, c=config: _four_nodes(n, seed, 1.0, c),
                f"{name}, {count} queries",
            )
            run.row(f"mean_sic_{name}_{count}", found[name].mean)
            run.row(f"jain_{name}_{count}", found[name].jain)
        # sources that burst send 1.9 times as much; this LAN has steady sources that send as much
        busy = averaged(
            run, times, lambda seed, n=count: _four_nodes(n, seed, 1.9, {}), f"lan at 1.9, {count}"
        )
        run.row(f"mean_sic_lan_1.9_{count}", busy.mean)
        run.row(f"fsps_to_lan_{count}", found["fsps"].mean / found["lan"].mean)
        run.row(f"wan_to_lan_{count}", found["wan"].mean / found["lan"].mean)
        run.row(f"fsps_to_lan_1.9_{count}", found["fsps"].mean / busy.mean)
        jains += [fair.jain for fair in found.values()]
    run.row("jain_min", min(jains))


def _four_nodes(count: int, seed: int, rate: float, config: dict[str, object]) -> Fairness:
    specs = mixed(count, (2, 2), seed, rows_per_s=150.0 * rate, batches_per_s=3.0 * rate)
    node = placement.uniform([2] * count, 4, seed)
    return simulate(specs, node, 4, "balance", seed, **config)
