"""What the paper benches share: one simulated run of one manager on one plant, and what came of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from penstock.control.decide.cycle import Cycle, Step
from penstock.policies.load import ManagerConfig
from penstock.sim.engine.machine import Machine
from penstock.sim.engine.plant import LabelTotals, SimulatedPlant
from penstock.sim.plot import plot_timelines
from penstock.sim.simulate import Timeline, timeline_of
from penstock.sim.workloads.network import Network
from penstock.vocabulary.model import (
    Decision,
    FloatArray,
    LoadManager,
    ManagerTraits,
    Observation,
    QueryClass,
)

DELAY_TARGET_S = 2.0


@dataclass(frozen=True)
class Outcome:
    """One run. Loss is of the rows whose fate was decided: rows that still wait at the end are neither."""

    labels: dict[str, LabelTotals]
    shed: int
    admitted: int
    waiting: int
    timeline: Timeline

    @property
    def loss_percent(self) -> float:
        return 100.0 * self.shed / max(1, self.shed + self.admitted)

    @property
    def completed(self) -> int:
        return sum(totals.completed for totals in self.labels.values())

    @property
    def violation_s(self) -> float:
        """Accumulated over all tuples (tu2006)."""
        return sum(totals.accumulated_s for totals in self.labels.values())

    @property
    def violation_avg_s(self) -> float:
        """Mean over all tuples that came out (pham2016)."""
        return self.violation_s / max(1, self.completed)

    @property
    def violation_max_s(self) -> float:
        return max(totals.max_s for totals in self.labels.values())

    @property
    def delayed(self) -> int:
        return sum(totals.delayed for totals in self.labels.values())

    def mean_delay_s(self, from_s: float, to_s: float) -> float:
        """Mean of the periods' mean delays between two moments."""
        inside = (self.timeline.now_s > from_s) & (self.timeline.now_s <= to_s)
        return float(np.nanmean(self.timeline.mean_s[inside]))


def drive(
    network: Network,
    arrivals_s: Sequence[FloatArray],
    config: ManagerConfig,
    machine: Machine,
    seed: int,
    period_s: float | None = None,
    run_s: float = 400.0,
    target_s: float = DELAY_TARGET_S,
    targets: Sequence[tuple[float, float]] = (),
    see: Callable[[Observation], Observation] | None = None,
) -> Outcome:
    """Runs one manager on one plant through the control cycle.

    Args:
        network: What runs.
        arrivals_s: One array a source.
        config: The manager's settings.
        machine: Headroom and cost over time.
        seed: For coins and selectivities.
        period_s: Control period; a manager that gives grants keeps its own.
        run_s: Virtual seconds.
        target_s: Delay target at the start.
        targets: (from_s, target_s) steps.
        see: Changes what the manager is shown, for ablations.
    """
    manager: LoadManager = config.build()
    grants = manager.traits.gives_grants
    own_s = config.period_s(target_s)
    plant = SimulatedPlant(
        network,
        arrivals_s,
        QueryClass("queries", target_s),
        own_s if grants or period_s is None else period_s,
        run_s,
        machine,
        targets=targets,
        grants=grants,
        seed=seed,
    )
    steps: list[Step] = []
    Cycle(plant, _Seeing(manager, see) if see else manager).run(steps.append)
    offered, shed, admitted, waiting = (
        plant.offered_rows,
        plant.shed_rows,
        plant.admitted_rows,
        plant.waiting_rows,
    )
    if offered != admitted + shed + waiting:
        raise AssertionError(f"books do not balance: {offered} != {admitted} + {shed} + {waiting}")
    return Outcome(plant.totals(), shed, admitted, waiting, timeline_of(steps))


class _Seeing:
    """A manager that is shown changed observations."""

    def __init__(self, manager: LoadManager, see: Callable[[Observation], Observation]) -> None:
        self._manager, self._see = manager, see

    @property
    def name(self) -> str:
        return self._manager.name

    @property
    def traits(self) -> ManagerTraits:
        return self._manager.traits

    def decide(self, observation: Observation) -> Decision:
        return self._manager.decide(self._see(observation))

    def snapshot(self) -> dict[str, object]:
        return self._manager.snapshot()

    def restore(self, snapshot: dict[str, object]) -> None:
        self._manager.restore(snapshot)


def averages(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """The usual figures, averaged over repeats."""
    names = ("violation_s", "violation_avg_s", "violation_max_s", "delayed", "loss_percent")
    return {name: float(np.mean([getattr(outcome, name) for outcome in outcomes])) for name in names}


def least_loss(figures: dict[str, dict[str, float]], violation_below_s: float = 0.1) -> float | None:
    """Least loss among the managers, but Deadline, whose average violation is below a bound."""
    fit = [
        f["loss_percent"]
        for name, f in figures.items()
        if not name.startswith("deadline") and f["violation_avg_s"] < violation_below_s
    ]
    return min(fit) if fit else None


def save_plot(
    plots: Path | None, name: str, outcomes: dict[str, Outcome], target_s: float = DELAY_TARGET_S
) -> None:
    """Delay, shedding and input over time of several managers, where plots are wanted."""
    if plots is not None:
        timelines = {manager: outcome.timeline for manager, outcome in outcomes.items()}
        plot_timelines(timelines, target_s, plots / f"{name}.png", title=name.replace("-", "/", 1))
