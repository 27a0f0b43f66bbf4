"""pham2016 chapters 3 and 6: DILoS, three classes on one engine, with and without shared streams."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np

from penstock.bench import BenchRun, bench
from penstock.policies.capacity import capacity_policy
from penstock.sim.classes import ClassesScenario, ClassResult, Managers, simulate_classes
from penstock.sim.engine.machine import Machine
from penstock.sim.workloads import arrivals as workloads
from penstock.sim.workloads import networks
from penstock.sim.workloads.network import Network, Operator
from penstock.vocabulary.model import FloatArray

from .class_networks import CLASSES, SOURCES, qn_a

MACHINE = Machine(((0.0, networks.PHAM_HEADROOM),))
PERIOD_S, EVERY = 0.15, 10
"""A load-management cycle, and how many of them a capacity redistribution cycle has (6.2.1)."""
ROUND_S = 0.002
"""Time in which every class has a turn; the thesis gives none. The shorter, the smaller are light batches."""
CASES: dict[str, tuple[Managers, str, bool]] = {
    "none": ("none", "cqc", False),
    "common": ("common", "cqc", False),
    "separate": ("separate", "cqc", False),
    "dilos": ("separate", "dilos", False),
    "sharing": ("separate", "dilos", True),
}
"""Load managers, capacity policy, and whether classes 1 and 3 share a stream."""
SETTLE_S = 100.0
"""Length of runs at a constant rate."""

Results = dict[str, ClassResult]


def run_case(
    case: str, rates: dict[str, FloatArray], seed: int, run_s: float, first: int = 1, every: int = EVERY
) -> Results:
    """One of the five cases.

    Args:
        case: See `CASES`.
        rates: Arrival times of one source, by class.
        seed: Fixes selectivities and coins.
        run_s: How long.
        first: How often class 1 has its queries.
        every: Load-management cycles in a redistribution cycle.
    """
    managers, policy, sharing = CASES[case]
    return run_network(qn_a(sharing=sharing, first=first), rates, managers, policy, seed, run_s, every)


def run_network(
    network: Network,
    rates: dict[str, FloatArray],
    managers: Managers,
    policy: str,
    seed: int,
    run_s: float,
    every: int = EVERY,
) -> Results:
    """Three classes on a network, with the arrivals of one source by class."""
    sources = [_rate_of(network.operators[i]) for i in network.sources]
    return simulate_classes(
        ClassesScenario(
            network,
            [staggered(rates[cls], i) for i, cls in enumerate(sources)],
            CLASSES,
            managers,
            capacity_policy(policy),
            headroom=networks.PHAM_HEADROOM,
            round_s=ROUND_S,
            period_s=PERIOD_S,
            every=every,
            run_s=run_s,
            machine=MACHINE,
            seed=seed,
        )
    )


def _rate_of(source: Operator) -> str:
    """The class whose rate a source has: what class 3 may share comes at class 3's rate (6.2.1)."""
    return "class3" if source.name.startswith("class1.0.join0.") else source.cls


def staggered(times_s: FloatArray, number: int) -> FloatArray:
    """A source's arrivals a little after those of the one before, or all sources would have bursts of one."""
    gap_s = float(times_s[-1]) / max(1, times_s.size)
    return times_s + gap_s * (number % SOURCES) / SOURCES


def mean_ms(results: Sequence[Results], cls: str) -> float:
    return 1000.0 * float(np.mean([r[cls].delay.mean_s or 0.0 for r in results]))


def loss(results: Sequence[Results], cls: str) -> float:
    return float(np.mean([r[cls].loss_percent for r in results]))


@cache
def sd_c(run_s: float) -> FloatArray:
    """SD_c: 950 tuples/s on every source."""
    return workloads.constant(950.0, run_s).times_s


def constant_rates(run_s: float) -> dict[str, FloatArray]:
    return {cls.name: sd_c(run_s) for cls in CLASSES}


def run_cases(run: BenchRun, names: Sequence[str], run_s: float = SETTLE_S) -> dict[str, list[Results]]:
    run.progress(total=len(names) * run.repeats)
    found: dict[str, list[Results]] = {}
    for name in names:
        run.progress(name)
        found[name] = []
        for i in range(run.repeats):
            found[name].append(run_case(name, constant_rates(run_s), run.seed + i, run_s))
            run.progress(advance=1)
    return found


@bench("table8", title="DILoS in five cases, QN-A, SD_c")
def table8(run: BenchRun) -> None:
    results = run_cases(run, list(CASES))
    for case, runs in results.items():
        for cls in CLASSES:
            run.row(f"{case}_{cls.name}_response_ms", mean_ms(runs, cls.name))
            run.row(f"{case}_{cls.name}_loss_percent", loss(runs, cls.name))
    losses = {case: loss(runs, "class3") for case, runs in results.items()}
    run.row("dilos_to_separate_loss", losses["dilos"] / losses["separate"])
    run.row("sharing_to_dilos_loss", losses["sharing"] / losses["dilos"])
    run.row("common_to_separate_loss", losses["common"] / losses["separate"])
    run.row("dilos_to_common_loss", losses["dilos"] / losses["common"])
    common = [loss(results["common"], cls.name) for cls in CLASSES]
    run.row("common_loss_spread", (max(common) - min(common)) / float(np.mean(common)))
    last = CLASSES[-1]
    run.row("none_class3_to_target", mean_ms(results["none"], last.name) / 1000.0 / last.delay_target_s)
    for cls in ("class1", "class2"):
        worst = max(loss(results[case], cls) for case in ("separate", "dilos", "sharing"))
        run.row(f"{cls}_loss_percent", worst)
        late = max((r[cls].delay.p95_s or 0.0) for case in ("dilos", "sharing") for r in results[case])
        target_s = next(c.delay_target_s for c in CLASSES if c.name == cls)
        run.row(f"{cls}_p95_to_target", late / target_s)


@bench("fig5", title="Class 3's congestion reaches class 1 through a shared stream, and not with DILoS")
def fig5(run: BenchRun) -> None:
    run_s = SETTLE_S
    grown: dict[str, list[float]] = {"unshared": [], "unmanaged": [], "dilos": []}
    run.progress(total=len(grown) * run.repeats)
    for i in range(run.repeats):
        seed = run.seed + i
        apart = run_case("none", constant_rates(run_s), seed, run_s)
        shared_only = run_network(qn_a(sharing=True), constant_rates(run_s), "none", "cqc", seed, run_s)
        managed = run_case("sharing", constant_rates(run_s), seed, run_s)
        for name, results in (("unshared", apart), ("unmanaged", shared_only), ("dilos", managed)):
            grown[name].append(results["class1"].delay.max_s or 0.0)
            run.progress(advance=1)
    for name, worst in grown.items():
        run.row(f"{name}_class1_max_s", float(np.mean(worst)))


@bench("fig26-27", title="Headroom that each class's ALoMa estimates, without and with redistribution, SD_c")
def fig26_27(run: BenchRun) -> None:
    results = run_cases(run, ("separate", "dilos"))
    for case, runs in results.items():
        for cls in CLASSES:
            late = [np.nanmean(r[cls.name].timeline.headroom[-200:]) for r in runs]
            run.row(f"{case}_{cls.name}_headroom", float(np.mean(late)))
    headroom = {case: _headroom(runs, "class3") for case, runs in results.items()}
    run.row("dilos_to_separate_class3_headroom", headroom["dilos"] / headroom["separate"])
    run.note("means of the last 200 load-management cycles (30 s)")


def _headroom(runs: Sequence[Results], cls: str) -> float:
    return float(np.mean([np.nanmean(r[cls].timeline.headroom[-200:]) for r in runs]))


VARYING_S = 400.0
CLASS_1_RANGES = (
    (300, 800),
    (500, 1000),
    (800, 1300),
    (300, 800),
    (600, 1100),
    (900, 1400),
    (400, 900),
    (300, 800),
)
"""Tuples/s of class 1 in SD_p, for 50 s each; fig. 24 is a sketch without numbers."""
RANGES = {"class2": (800, 1300), "class3": (300, 800)}


def pareto_rates(ranges: Sequence[tuple[float, float]], seed: int, run_s: float = VARYING_S) -> FloatArray:
    """A rate for every load-management cycle, Pareto with skewness 1 between two bounds."""
    random = np.random.default_rng(seed)
    cycles = int(np.ceil(run_s / PERIOD_S))
    stretch = np.minimum(np.arange(cycles) * len(ranges) // cycles, len(ranges) - 1)
    low, high = np.array(ranges, float)[stretch].T
    rates = low / (1.0 - random.random(cycles) * (1.0 - low / high))
    levels = [(float(i * PERIOD_S), float(rate)) for i, rate in enumerate(rates)]
    return workloads.step(levels, run_s, name="SD_p").times_s


def varying_rates(real: bool, seed: int, run_s: float = VARYING_S) -> dict[str, FloatArray]:
    """SD_p, or SD_r with the real trace for class 1."""
    first = workloads.s_r().times_s if real else pareto_rates(CLASS_1_RANGES, 3 * seed, run_s)
    others = {
        name: pareto_rates([bounds], 3 * seed + k + 1, run_s)
        for k, (name, bounds) in enumerate(RANGES.items())
    }
    return {"class1": first[first < run_s], **others}


def _varying_tables(run: BenchRun, real: bool) -> None:
    cases = ("separate", "dilos", "sharing")
    run.progress(total=len(cases) * run.repeats)
    losses = {}
    for case in cases:
        run.progress(case)
        runs = []
        for i in range(run.repeats):
            rates = varying_rates(real, run.seed + i)
            runs.append(run_case(case, rates, run.seed + i, VARYING_S, first=3 if real else 1))
            run.progress(advance=1)
        for cls in CLASSES:
            run.row(f"{case}_{cls.name}_response_ms", mean_ms(runs, cls.name))
            run.row(f"{case}_{cls.name}_loss_percent", loss(runs, cls.name))
        losses[case] = loss(runs, "class3")
    run.row("dilos_to_separate_loss", losses["dilos"] / losses["separate"])
    run.row("sharing_to_dilos_loss", losses["sharing"] / losses["dilos"])


@bench("table9-10", title="DILoS when class 1's load changes every 50 s, QN-A, SD_p")
def table9_10(run: BenchRun) -> None:
    _varying_tables(run, real=False)


@bench("table11-12", title="DILoS with a real trace in class 1, QN-B, SD_r")
def table11_12(run: BenchRun) -> None:
    _varying_tables(run, real=True)


@bench("fig32", title="Length of the capacity redistribution cycle, QN-B, SD_r")
def fig32(run: BenchRun) -> None:
    lengths = (1, 10, 20) if run.quick else (1, 2, 5, 10, 15, 20)
    run.progress(total=len(lengths) * run.repeats)
    for every in lengths:
        runs = []
        for i in range(run.repeats):
            rates = varying_rates(True, run.seed + i)
            runs.append(run_case("sharing", rates, run.seed + i, VARYING_S, first=3, every=every))
            run.progress(advance=1)
        for cls in CLASSES:
            run.row(f"crc{every}_{cls.name}_loss_percent", loss(runs, cls.name))
