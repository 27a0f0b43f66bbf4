"""kalyvianaki2016 7.5: BALANCE-SIC against optima with everything known: throughput (FIT) and log utility.

Both optima decide which part `admitted` of the tuples of each fragment's sources is let in, so that no node
has more than it can process:

    FIT (Tatbul, Cetintemel, Zdonik 2007)    max sum over queries of rate_q,      a linear program
    log utility (Zhao, Xia, Liu, Towsley 2010)   max sum over queries of log rate_q,  concave

with rate_q the sum over its fragments of source rows/s * admitted. A query's SIC is the mean of `admitted`
over its sources. BALANCE-SIC is told nothing and runs in the simulated federation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from penstock.bench import BenchRun, bench
from penstock.policies.quality import jain_index
from penstock.sim.federation import AVG_ALL, COV, TOP_5, Layout, QuerySpec, placement
from penstock.vocabulary.errors import MissingExtraError
from penstock.vocabulary.model import FloatArray

from ..federations import simulate

FITTING = 3.5
"""In the paper's optimum 3 of 60 AVG-all queries are processed whole and one in part: so many fit a node."""
NODE_ROWS_PER_S = FITTING * AVG_ALL.sources * 150.0
NODES = 4
LOADS = (1.0, 2.5, 5.0)
"""Nodes so many times as fast, for an ablation: the paper does not say how overloaded its nodes were."""
LONG_STW_S = 20.0
"""Twice the paper's source time window, for an ablation."""
REPEATS = 3


@dataclass(frozen=True)
class Network:
    """A deployment as the optima see it, an entry a fragment.

    Attributes:
        rows_per_s: What its sources offer.
        query: Whose it is.
        node: Where it runs.
        room_per_s: What each node can process of it, results of other fragments taken off.
    """

    rows_per_s: FloatArray
    query: np.ndarray
    node: np.ndarray
    room_per_s: FloatArray

    @classmethod
    def of(cls, layout: Layout, capacity_per_s: float) -> Network:
        rows = np.bincount(layout.source_fragment, layout.source_rows_per_s, layout.fragments)
        sends = layout.downstream >= 0
        to = layout.node[layout.downstream[sends]]
        passed = np.bincount(to, layout.output_rows[sends].astype(float), layout.nodes)
        return cls(rows, layout.query, layout.node, np.maximum(0.0, capacity_per_s - passed))

    def by_query(self, values: FloatArray) -> FloatArray:
        return np.bincount(self.query, values)

    def by_node(self) -> FloatArray:
        """Load of each node, a line each, by what is admitted of each fragment."""
        return np.where(np.arange(self.room_per_s.size)[:, None] == self.node, self.rows_per_s, 0.0)

    def sic(self, admitted: FloatArray) -> FloatArray:
        """Of each query: every fragment has as many sources, all of one rate."""
        return self.by_query(admitted) / self.by_query(np.ones_like(admitted))


def most_throughput(network: Network) -> FloatArray:
    """What FIT's linear program admits of each fragment; the simplex method ends in a corner, as in GLPK."""
    optimize = _scipy()
    found = optimize.linprog(
        -network.rows_per_s,
        A_ub=network.by_node(),
        b_ub=network.room_per_s,
        bounds=(0.0, 1.0),
        method="highs-ds",
    )
    if found.status != 0:
        raise AssertionError(f"the linear program was not solved: {found.message}")
    return np.asarray(found.x)


def most_log_utility(network: Network) -> FloatArray:
    """What maximises the sum of log rates."""
    optimize = _scipy()
    load, unit = network.by_node(), network.rows_per_s.mean()

    def value(admitted: FloatArray) -> tuple[float, FloatArray]:
        rate = network.by_query(network.rows_per_s * admitted) / unit
        return -float(np.log(rate).sum()), -(network.rows_per_s / unit) / rate[network.query]

    share = float(np.min(network.room_per_s / np.maximum(load.sum(axis=1), 1e-9)))
    found = optimize.minimize(
        value,
        np.full(network.query.size, min(1.0, share)),
        jac=True,
        method="SLSQP",
        bounds=[(1e-6, 1.0)] * network.query.size,
        constraints={
            "type": "ineq",
            "fun": lambda admitted: (network.room_per_s - load @ admitted) / unit,
            "jac": lambda admitted: -load / unit,
        },
        options={"maxiter": 1000, "ftol": 1e-10},
    )
    if not found.success:
        raise AssertionError(f"the log utility was not maximised: {found.message}")
    return np.asarray(found.x)


def _scipy():  # type: ignore[no-untyped-def]
    try:
        from scipy import optimize
    except ImportError as missing:  # pragma: no cover - exercised only without the extra
        raise MissingExtraError("the optima of kalyvianaki2016/sec7.5", "scipy", "sim") from missing
    return optimize


def simple() -> tuple[list[QuerySpec], np.ndarray]:
    """60 AVG-all queries of two fragments on two nodes: all roots on one, all others on the other."""
    return [QuerySpec(AVG_ALL, 2)] * 60, np.tile([1, 0], 60)


def complex_queries(seed: int) -> tuple[list[QuerySpec], np.ndarray]:
    """20 AVG-all of three fragments, 20 COV and 20 TOP-5 of two, at random on four nodes."""
    specs = [QuerySpec(kind, n) for kind, n in ((AVG_ALL, 3), (COV, 2), (TOP_5, 2)) for _ in range(20)]
    return specs, placement.uniform([spec.fragments for spec in specs], NODES, seed)


@bench("sec7.5", title="BALANCE-SIC against the throughput LP and the log-utility optimum")
def sec7_5(run: BenchRun) -> None:
    times, loads = run.times(REPEATS), LOADS[:1] if run.quick else LOADS
    run.progress(total=1 + times * len(loads))
    _simple(run)
    for load in loads:
        _complex(run, times, load, "" if load == 1.0 else f"_capacity_x{load:g}")


def _simple(run: BenchRun) -> None:
    run.progress("60 AVG-all on 2 nodes", advance=1)
    specs, node = simple()
    network = Network.of(Layout.of(specs, node, 2), NODE_ROWS_PER_S)
    throughput, log_utility = (network.sic(of(network)) for of in (most_throughput, most_log_utility))
    balance = simulate(specs, node, 2, "balance", run.seed, NODE_ROWS_PER_S)
    small = simulate(_small_batches(specs), node, 2, "balance", run.seed, NODE_ROWS_PER_S)
    run.row("jain_throughput", jain_index(throughput))
    run.row("queries_whole_throughput", float((throughput > 0.999).sum()))
    run.row("queries_nothing_throughput", float((throughput < 0.001).sum()))
    run.row("jain_log_utility_simple", jain_index(log_utility))
    run.row("jain_balance_simple", balance.jain)
    run.row("jain_balance_simple_small_batches", small.jain)
    run.row("mean_sic_throughput_simple", float(throughput.mean()))
    run.row("mean_sic_log_utility_simple", float(log_utility.mean()))
    run.row("mean_sic_balance_simple", balance.mean)


def _complex(run: BenchRun, times: int, load: float, suffix: str) -> None:
    found: dict[str, list[float]] = {}
    for i in range(times):
        run.progress(f"complex, capacity x{load:g}, {i + 1} of {times}", advance=1)
        for name, value in _one_complex(run.seed + i, load * NODE_ROWS_PER_S).items():
            found.setdefault(name, []).append(value)
    for name, values in found.items():
        run.row(f"{name}{suffix}", float(np.mean(values)))


def _one_complex(seed: int, capacity_per_s: float) -> dict[str, float]:
    specs, node = complex_queries(seed)
    network = Network.of(Layout.of(specs, node, NODES), capacity_per_s)
    log_utility, throughput = most_log_utility(network), most_throughput(network)
    balance = simulate(specs, node, NODES, "balance", seed, capacity_per_s)
    small = simulate(_small_batches(specs), node, NODES, "balance", seed, capacity_per_s)
    longer = simulate(specs, node, NODES, "balance", seed, capacity_per_s, stw_s=LONG_STW_S)
    sic = network.sic(log_utility)
    return {
        "jain_balance": balance.jain,
        "jain_of_means_balance": balance.jain_of_means,
        "jain_balance_small_batches": small.jain,
        "jain_balance_long_stw": longer.jain,
        "jain_log_utility": jain_index(sic),
        "jain_log_rates": jain_index(normalised_log_rates(network, log_utility)),
        "jain_throughput_complex": jain_index(network.sic(throughput)),
        "mean_sic_balance": balance.mean,
        "mean_sic_log_utility": float(sic.mean()),
    }


def _small_batches(specs: Sequence[QuerySpec]) -> list[QuerySpec]:
    """The same rates in batches of ten tuples instead of fifty: what is shed is whole batches."""
    return [replace(spec, batches_per_s=15.0) for spec in specs]


def normalised_log_rates(network: Network, admitted: FloatArray) -> FloatArray:
    """log(1 + rate) of each query over what it would be if all were admitted."""
    rate, offered = (network.by_query(network.rows_per_s * part) for part in (admitted, 1.0))
    return np.log1p(rate) / np.log1p(offered)
