"""What the benches of kalyvianaki2016 and fiscato2012 share: one federation, one shedder, what came of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.bench import BenchRun
from penstock.policies.quality import Spread, jain_index
from penstock.policies.shedding import shedder_config
from penstock.sim.federation import Federation, FederationConfig, Layout, QuerySpec, placement

LOCAL_ROWS_PER_S = 52_800.0
"""A node of the local test-bed: at 528,000 tuples/s the mean SIC is around 0.1 (kalyvianaki2016 7.2)."""
EMULAB_ROWS_PER_S = LOCAL_ROWS_PER_S * 3.0 / 1.8
"""A node of the Emulab test-bed: the same, by the clock rates of table 2."""
NODES = 18
CLUSTERS = 3
"""Zipf as the thesis explains it: clusters of nodes, each with twice the fragments of the one before."""
RUN_S, SETTLED_S = 60.0, 20.0
SHEDDERS = {"balance": "balance-sic", "random": "random"}


@dataclass(frozen=True)
class Fairness:
    """SIC over queries, from `SETTLED_S` on.

    Attributes:
        jain: Jain's index of the SIC of one source time window, averaged over time.
        jain_of_means: Of each query's SIC averaged over time.
        spread: Of each query's SIC averaged over time.
    """

    jain: float
    jain_of_means: float
    spread: Spread

    @property
    def mean(self) -> float:
        return self.spread.mean


def simulate(
    specs: Sequence[QuerySpec],
    node: np.ndarray,
    nodes: int,
    shedder: str,
    seed: int,
    capacity: float = EMULAB_ROWS_PER_S,
    run_s: float = RUN_S,
    **config: Any,
) -> Fairness:
    """One run of a federation."""
    layout = Layout.of(specs, node, nodes)
    build = shedder_config(SHEDDERS[shedder]).build
    result = Federation(layout, FederationConfig(capacity, **config), build, seed).run(run_s)
    sic = result.after(SETTLED_S)
    means = sic.mean(axis=0)
    return Fairness(float(np.mean([jain_index(row) for row in sic])), jain_index(means), Spread.of(means))


def by_zipf(specs: Sequence[QuerySpec], nodes: int, seed: int) -> np.ndarray:
    """The deployment of the papers."""
    return placement.zipf_clusters([spec.fragments for spec in specs], nodes, seed, CLUSTERS)


def averaged(run: BenchRun, times: int, measure: Callable[[int], Fairness], text: str) -> Fairness:
    """The mean over seeds, each with its own workload, deployment and coins."""
    outcomes = []
    for i in range(times):
        run.progress(f"{text}, {i + 1} of {times}")
        outcomes.append(measure(run.seed + i))
        run.progress(advance=1)
    spreads = [outcome.spread for outcome in outcomes]
    spread = Spread(
        *(
            float(np.mean([getattr(s, name) for s in spreads]))
            for name in ("mean", "std", "iqr", "q95_q05", "jain")
        )
    )
    return Fairness(
        float(np.mean([outcome.jain for outcome in outcomes])),
        float(np.mean([outcome.jain_of_means for outcome in outcomes])),
        spread,
    )
