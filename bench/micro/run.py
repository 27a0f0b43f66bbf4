"""Micro-benchmarks: what a decision costs, and how fast the simulated engine runs."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from itertools import cycle, islice
from time import perf_counter, perf_counter_ns

import numpy as np

from penstock.bench import BenchRun, bench
from penstock.policies.load import LOAD_MANAGERS, manager_config
from penstock.policies.load.estimation import incoming_load, load_coefficients, queued_load
from penstock.sim.engine.machine import Machine
from penstock.sim.engine.plant import SimulatedPlant
from penstock.sim.workloads import arrivals as workloads
from penstock.sim.workloads import networks
from penstock.sim.workloads.network import Network
from penstock.sim.workloads.traces import Arrivals
from penstock.vocabulary.model import Observation, QueryClass

from .coverage import measure
from .grant import measure as measure_grants

DELAY_TARGET_S = 2.0
OBSERVED_S = 20.0
"""Long enough for the delay to reach its target, so that the managers are at work."""
RATE_PER_S = 264.0
"""Mean of S_r; QN-complex processes about 177 rows/s a source."""


@bench("decide", title="decide() for 1,140 operators and 240 outputs, without load estimation")
def decide(run: BenchRun) -> None:
    calls = 2_000 if run.quick else 20_000
    run.progress(total=len(LOAD_MANAGERS) + 1)
    for name in LOAD_MANAGERS:
        run.progress(name, advance=1)
        observations = _observations(name, run.seed)
        manager = manager_config(name).build()
        run.row(f"{name}_us", _median_us(manager.decide, observations, calls))
    run.progress("load estimation", advance=1)
    run.row("load_estimation_us", _load_estimation_us(networks.qn_complex(), calls // 20))


@bench("coverage", title="how often 95 % intervals of count, sum and avg hold the true value")
def coverage(run: BenchRun) -> None:
    measure(run)


@bench("fuzz", title="random cases of the real control plane, planner, journal, log and lanes")
def fuzz(run: BenchRun) -> None:
    from .fuzz.campaign import measure as run_campaign  # needs pyspark, but no JVM

    run_campaign(run)


@bench("grant", title="a question to the control plane: granted, or not yet, among up to 1,000 queries")
def grant(run: BenchRun) -> None:
    measure_grants(run)


@bench("engine", title="400 virtual seconds of S_r under SEaMLeSS, on one core")
def engine(run: BenchRun) -> None:
    arrivals = workloads.s_r()
    run.note(f"input: {arrivals.name}; compiling is excluded by a run of one second before")
    tested = {"qn_flat": networks.qn_flat()}
    if not run.quick:
        tested["qn_complex"] = networks.qn_complex()
    run.progress(total=len(tested))
    for name, network in tested.items():
        run.progress(name, advance=1)
        _simulate("seamless", network, arrivals, 1.0, run.seed)
        start = perf_counter()
        plant, _ = _simulate("seamless", network, arrivals, arrivals.duration_s, run.seed)
        wall_s = perf_counter() - start
        run.row(f"{name}_wall_s", wall_s)
        run.row(f"{name}_rows_per_s", plant.admitted_rows / wall_s)


def _simulate(
    manager_name: str, network: Network, arrivals: Arrivals, run_s: float, seed: int
) -> tuple[SimulatedPlant, list[Observation]]:
    config = manager_config(manager_name)
    manager = config.build()
    plant = SimulatedPlant(
        network,
        [arrivals.times_s] * len(network.sources),
        QueryClass("bench", DELAY_TARGET_S),
        config.period_s(DELAY_TARGET_S),
        run_s,
        Machine(headroom=((0.0, networks.PHAM_HEADROOM),)),
        grants=manager.traits.gives_grants,
        seed=seed,
    )
    observations = []
    while (observation := plant.observe()) is not None:
        observations.append(observation)
        plant.apply(manager.decide(observation))
    return plant, observations


def _observations(manager_name: str, seed: int) -> list[Observation]:
    """What the manager sees in the second half of an overloaded run that it controls itself."""
    arrivals = workloads.constant(RATE_PER_S, OBSERVED_S)
    _, observations = _simulate(manager_name, networks.qn_complex(), arrivals, OBSERVED_S, seed)
    return observations[len(observations) // 2 :]


def _median_us(function: Callable[[Observation], object], inputs: Sequence[Observation], calls: int) -> float:
    """Median time of a call, over inputs in turn; the first tenth warms up and does not count."""
    times_ns = []
    gc.disable()
    try:
        for value in islice(cycle(inputs), calls):
            start = perf_counter_ns()
            function(value)
            times_ns.append(perf_counter_ns() - start)
    finally:
        gc.enable()
    return float(np.median(times_ns[calls // 10 :])) / 1e3


def _load_estimation_us(network: Network, calls: int) -> float:
    cost_s = np.array([operator.cost_s for operator in network.operators])
    selectivity = np.array([operator.selectivity for operator in network.operators])
    sources, queues = np.array(network.sources), np.full(cost_s.size, 10.0)
    rates_per_s = np.full(sources.size, RATE_PER_S)

    def estimate(_: object) -> float:
        coefficients = load_coefficients(cost_s, selectivity, network.downstream)
        return incoming_load(rates_per_s, coefficients[sources]) + queued_load(queues, coefficients)

    return _median_us(estimate, [None], calls)  # type: ignore[list-item]
