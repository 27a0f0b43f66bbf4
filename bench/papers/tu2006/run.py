"""tu2006: load shedding by feedback control. Its plant is a Borealis node with fourteen delay operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from penstock.bench import BenchRun, bench
from penstock.policies.load import manager_config
from penstock.sim.engine.machine import Machine
from penstock.sim.workloads import arrivals as workloads
from penstock.sim.workloads import networks
from penstock.sim.workloads.network import Kind, Network, Operator
from penstock.vocabulary.model import FloatArray, Observation

from ..runs import DELAY_TARGET_S, Outcome, averages, drive, least_loss, save_plot

PERIOD_S = 1.0
"""Control period of section 5."""
HEADROOM = networks.TU_HEADROOM
MANAGERS = ("ctrl", "baseline", "aurora", "deadline")


@cache
def cost_steps() -> tuple[tuple[float, float], ...]:
    """The cost over time of fig. 14."""
    trace = workloads.cost_trace()
    return tuple(zip(trace.times_s.tolist(), trace.factors.tolist(), strict=True))


def web() -> FloatArray:
    return workloads.s_r().times_s


def pareto(bias: float = 1.0, mean_per_s: float = 264.0, seed: int = 3) -> FloatArray:
    return workloads.pareto(mean_per_s, bias, 400.0, seed=seed).times_s


def run_one(
    name: str,
    arrivals: FloatArray,
    seed: int,
    network: Network | None = None,
    true_headroom: float = HEADROOM,
    varying_cost: bool = True,
    period_s: float = PERIOD_S,
    targets: Sequence[tuple[float, float]] = (),
    target_s: float = DELAY_TARGET_S,
    see: Callable[[Observation], Observation] | None = None,
    **settings: Any,
) -> Outcome:
    """One manager on the paper's plant; every source gets its share of the stream."""
    network = network or networks.borealis()
    sources = len(network.sources)
    machine = Machine(((0.0, true_headroom),), cost_steps() if varying_cost else ((0.0, 1.0),))
    if name != "deadline":
        settings = {"headroom": HEADROOM, **settings}
    return drive(
        network,
        [arrivals[i::sources] for i in range(sources)],
        manager_config(name, **settings),
        machine,
        seed,
        period_s,
        targets=targets,
        target_s=target_s,
        see=see,
    )


def repeated(run: BenchRun, name: str, arrivals: FloatArray, **more: Any) -> list[Outcome]:
    outcomes = []
    for i in range(run.repeats):
        run.progress(name, advance=1)
        outcomes.append(run_one(name, arrivals, run.seed + i, **more))
    return outcomes


def compared(
    run: BenchRun, arrivals: FloatArray, names: Sequence[str], **more: Any
) -> dict[str, dict[str, float]]:
    return {
        name: averages(
            repeated(run, name, arrivals, **(more if name != "deadline" else _without_shedding(more)))
        )
        for name in names
    }


def _without_shedding(more: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in more.items() if key != "shedding"}


@bench("fig12", title="AURORA and BASELINE relative to CTRL over 400 s, web trace, varying cost")
def fig12(run: BenchRun) -> None:
    run.progress(total=run.repeats * (len(MANAGERS) + 3 * len(ABLATIONS)))
    run.note(f"input: {workloads.s_r().name}; shedding at the entry (eq. 13); means of {run.repeats} seeds")
    first = {name: run_one(name, web(), run.seed) for name in MANAGERS}
    figures = compared(run, web(), MANAGERS)
    ctrl = figures["ctrl"]
    for name in ("aurora", "baseline"):
        run.row(f"{name}_to_ctrl_violation", figures[name]["violation_s"] / ctrl["violation_s"])
        run.row(f"{name}_to_ctrl_loss", figures[name]["loss_percent"] / ctrl["loss_percent"])
        run.row(f"{name}_to_ctrl_delayed", figures[name]["delayed"] / ctrl["delayed"])
        run.row(f"{name}_to_ctrl_overshoot", figures[name]["violation_max_s"] / ctrl["violation_max_s"])
    spread = max(
        abs(figures[name]["loss_percent"] / ctrl["loss_percent"] - 1) for name in ("aurora", "baseline")
    )
    run.row("loss_spread", spread)
    for name in MANAGERS:
        run.row(f"{name}_violation_sum_s", figures[name]["violation_s"])
        run.row(f"{name}_loss_percent", figures[name]["loss_percent"])
    run.row("deadline_violation_avg_s", figures["deadline"]["violation_avg_s"])
    best = min(figures[name]["violation_avg_s"] for name in ("ctrl", "baseline", "aurora"))
    run.row("deadline_over_best_violation_s", figures["deadline"]["violation_avg_s"] - best)
    least = least_loss(figures)
    if least is not None:
        run.row("deadline_to_best_loss", figures["deadline"]["loss_percent"] / least)
    for label, change in ABLATIONS.items():
        if run.quick and label not in ("network", "headroom_093"):
            continue
        changed = compared(run, web(), ("ctrl", "baseline", "aurora"), **change())
        for name in ("aurora", "baseline"):
            ratio = changed[name]["violation_s"] / max(changed["ctrl"]["violation_s"], 1e-9)
            run.row(f"{label}_{name}_to_ctrl_violation", ratio)
        run.row(
            f"{label}_aurora_to_ctrl_loss",
            changed["aurora"]["loss_percent"] / changed["ctrl"]["loss_percent"],
        )
        run.row(f"{label}_ctrl_violation_sum_s", changed["ctrl"]["violation_s"])
    save_plot(run.plots, "tu2006-fig12", first)


def _fresh_cost() -> dict[str, Any]:
    """Managers are told the cost of the coming period instead of the last one's."""
    trace, cost_s = workloads.cost_trace(), networks.borealis().cost_per_row_s()

    def see(observation: Observation) -> Observation:
        if observation.cost_per_row_s is None:
            return observation
        return replace(observation, cost_per_row_s=cost_s * trace.factor_at(observation.now_s + PERIOD_S / 2))

    return {"see": see}


def _single_server() -> dict[str, Any]:
    total_s = networks.borealis().cost_per_row_s()
    source = Operator("source", Kind.SOURCE, 1e-9)
    server = Operator("server", Kind.OUTPUT, total_s - 1e-9, inputs=("source",))
    return {"network": Network("single server", (source, server), batch_rows=1, delay_of_filtered=True)}


ABLATIONS: dict[str, Callable[[], dict[str, Any]]] = {
    "network": lambda: {"shedding": "network"},
    "fresh_cost": _fresh_cost,
    "constant_cost": lambda: {"varying_cost": False},
    "single_server": _single_server,
    "headroom_095": lambda: {"true_headroom": 0.95},
    "headroom_093": lambda: {"true_headroom": 0.93},
    "network_headroom_093": lambda: {"shedding": "network", "true_headroom": 0.93},
}
"""What is changed, one at a time, to see which property of the plant moves the ratios."""


@bench("fig16", title="AURORA with a headroom of 0.96 instead of 0.97, web and Pareto")
def fig16(run: BenchRun) -> None:
    loads = {"web": web(), "pareto": pareto(), "pareto_light": pareto(mean_per_s=165.0)}
    run.progress(total=3 * len(loads) * run.repeats)
    for label, arrivals in loads.items():
        ctrl = averages(repeated(run, "ctrl", arrivals, varying_cost=label != "pareto_light"))
        for headroom in (0.97, 0.96):
            aurora = averages(
                repeated(run, "aurora", arrivals, headroom=headroom, varying_cost=label != "pareto_light")
            )
            suffix = f"{label}_{round(headroom * 100):03d}"
            run.row(f"aurora_violation_avg_s_{suffix}", aurora["violation_avg_s"])
            run.row(f"aurora_to_ctrl_loss_{suffix}", aurora["loss_percent"] / ctrl["loss_percent"])
        run.row(f"ctrl_loss_percent_{label}", ctrl["loss_percent"])


@bench("fig17", title="Burstiness: bias factor 0.1 to 1.5, relative to 1.5")
def fig17(run: BenchRun) -> None:
    biases = (0.1, 0.5, 1.5) if run.quick else (0.1, 0.25, 0.5, 1.0, 1.25, 1.5)
    run.progress(total=4 * len(biases) * run.repeats)
    spreads = {}
    for name in ("ctrl", "baseline", "aurora", "deadline"):
        sums = {}
        for bias in biases:
            outcomes = []
            for i in range(run.repeats):
                run.progress(f"{name} at {bias}", advance=1)
                outcomes.append(run_one(name, pareto(bias, seed=run.seed + i), run.seed + i))
            figures = averages(outcomes)
            sums[bias] = figures["violation_s"]
            if name in ("ctrl", "aurora"):
                run.row(f"{name}_violation_sum_s_{bias:g}", figures["violation_s"])
        reference = max(sums[1.5], 1e-9)
        spreads[name] = sums[0.1] - sums[1.5]
        if name in ("ctrl", "aurora"):
            run.row(f"{name}_violation_01_to_15", sums[0.1] / reference)
    run.row("aurora_to_ctrl_change", spreads["aurora"] / max(spreads["ctrl"], 1e-9))
    run.row("deadline_change_s", spreads["deadline"])


@bench("fig18", title="Target changed from 1 to 3 to 5 s while running")
def fig18(run: BenchRun) -> None:
    steps = ((150.0, 3.0), (300.0, 5.0))
    names = ("ctrl", "baseline", "aurora", "deadline")
    run.progress(total=len(names) * run.repeats)
    shown: dict[str, Outcome] = {}
    for name in names:
        outcomes = repeated(run, name, web(), target_s=1.0, targets=steps)
        shown[name] = outcomes[0]
        for target_s, (from_s, to_s) in {1.0: (50, 150), 3.0: (200, 300), 5.0: (350, 400)}.items():
            delay_s = float(np.mean([outcome.mean_delay_s(from_s, to_s) for outcome in outcomes]))
            run.row(f"{name}_delay_to_target_{target_s:g}s", delay_s / target_s)
        if name in ("ctrl", "baseline"):
            run.row(
                f"{name}_settle_s", float(np.mean([_settle_s(outcome, 300.0, 5.0) for outcome in outcomes]))
            )
    save_plot(run.plots, "tu2006-fig18", shown, 5.0)


def _settle_s(outcome: Outcome, changed_s: float, target_s: float) -> float:
    """Seconds from a change until the delay is first within a tenth of the new target."""
    timeline = outcome.timeline
    reached = (timeline.now_s > changed_s) & (np.abs(timeline.mean_s - target_s) < 0.1 * target_s)
    return float(timeline.now_s[reached][0] - changed_s) if reached.any() else 400.0 - changed_s


@bench("fig19", title="CTRL's control period from 31 ms to 8 s")
def fig19(run: BenchRun) -> None:
    periods = (0.25, 0.5, 1.0, 4.0) if run.quick else (0.03125, 0.0625, 0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
    run.progress(total=len(periods) * run.repeats)
    sums = {
        period_s: averages(repeated(run, "ctrl", web(), period_s=period_s))["violation_s"]
        for period_s in periods
    }
    lowest = min(sums.values())
    for period_s, violation_s in sums.items():
        run.row(f"violation_to_lowest_{period_s * 1000:g}ms", violation_s / lowest)
    run.row("lowest_violation_sum_s", lowest)
    run.row("best_period_ms", 1000 * min(sums, key=lambda period_s: sums[period_s]))
