"""Runs a scenario to the end of its virtual time and sums it up."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from penstock.control.decide.cycle import Cycle, Recorder, Step
from penstock.sim.engine.plant import LabelTotals, SimulatedPlant
from penstock.sim.scenario import Scenario
from penstock.vocabulary.errors import UnmetError
from penstock.vocabulary.model import DelayStats, FloatArray


@dataclass(frozen=True, eq=False)
class Timeline:
    """Arrays with one value for each control period; NaN for a period without rows.

    Attributes:
        now_s: End of the period.
        period_s: Length of the period.
        offered_per_s: Rows that arrived, a second.
        admitted_rows: Rows admitted in the period; `shed_rows` are the rows shed in it.
        mean_s: Mean delay of rows completed in the period; `p95_s` and `max_s` are of the same rows.
        headroom: The manager's estimate after its decision.
    """

    now_s: FloatArray
    period_s: FloatArray
    offered_per_s: FloatArray
    admitted_rows: FloatArray
    shed_rows: FloatArray
    mean_s: FloatArray
    p95_s: FloatArray
    max_s: FloatArray
    headroom: FloatArray

    @property
    def kept_fraction(self) -> FloatArray:
        """Fraction of decided rows that was admitted, for grants too."""
        return self.admitted_rows / np.where(self._decided_rows > 0, self._decided_rows, np.nan)

    @property
    def _decided_rows(self) -> FloatArray:
        return self.admitted_rows + self.shed_rows

    def over_s(self, limit_s: float) -> float:
        """Seconds in which at least one row in twenty took longer; periods without rows count as the last."""
        known = np.maximum.accumulate(np.where(np.isnan(self.p95_s), -1, np.arange(self.p95_s.size)))
        late = (known >= 0) & (self.p95_s[known] > limit_s)
        return float(self.period_s[late].sum())


@dataclass(frozen=True, eq=False)
class SimulationResult:
    """Result of a run. offered = admitted + shed + waiting."""

    manager: str
    network: str
    workload: str
    seed: int
    dry_run: bool
    duration_s: float
    delay_target_s: float
    offered: int
    admitted: int
    shed: int
    waiting: int
    violation: LabelTotals
    labels: dict[str, LabelTotals]
    delay: DelayStats
    timeline: Timeline

    @property
    def loss_fraction(self) -> float:
        return self.shed / self.offered if self.offered else 0.0

    def to_json(self) -> dict[str, Any]:
        """The result as `penstock simulate --json` writes it; delays are null if no row completed."""
        delay = self.delay
        return {
            "manager": self.manager,
            "delay_target_s": self.delay_target_s,
            "offered": self.offered,
            "admitted": self.admitted,
            "shed": self.shed,
            "waiting": self.waiting,
            **_violations(self.violation),
            "loss_fraction": self.loss_fraction,
            "delay": {name: getattr(delay, name) for name in ("mean_s", "p50_s", "p95_s", "p99_s", "max_s")},
            "network": self.network,
            "workload": self.workload,
            "duration_s": self.duration_s,
            "seed": self.seed,
            "dry_run": self.dry_run,
            "labels": {
                label: {"completed": totals.completed, **_violations(totals)}
                for label, totals in self.labels.items()
            },
        }


def simulate(
    scenario: Scenario,
    recorder: Recorder | None = None,
    on_progress: Callable[[float, float], None] | None = None,
) -> SimulationResult:
    """Runs a scenario.

    Args:
        scenario: The scenario to run.
        recorder: Gets every step, for example a run directory.
        on_progress: Called after every control period with the virtual time reached and its end.
    """
    plant, manager = scenario.build()
    steps: list[Step] = []

    def on_step(step: Step) -> None:
        steps.append(step)
        if on_progress is not None:
            on_progress(min(step.observation.now_s, plant.run_s), plant.run_s)

    Cycle(plant, manager, dry_run=scenario.dry_run, recorder=recorder).run(on_step)
    _check_books(plant)
    labels = plant.totals()
    return SimulationResult(
        manager=manager.name,
        network=plant.network.name,
        workload=scenario.arrivals.name,
        seed=scenario.seed,
        dry_run=scenario.dry_run,
        duration_s=plant.run_s,
        delay_target_s=scenario.delay_target_s,
        offered=plant.offered_rows,
        admitted=plant.admitted_rows,
        shed=plant.shed_rows,
        waiting=plant.waiting_rows,
        violation=_over_all(labels),
        labels=labels,
        delay=plant.histogram.stats(),
        timeline=timeline_of(steps),
    )


def timeline_of(steps: Iterable[Step]) -> Timeline:
    """The steps of a run as columns."""
    rows = [_timeline_row(step) for step in steps]
    return Timeline(*np.array(rows, np.float64).reshape(-1, len(fields(Timeline))).T)


def _timeline_row(step: Step) -> tuple[float, ...]:
    seen, nothing = step.observation, float("nan")
    delays = (seen.delay.mean_s, seen.delay.p95_s, seen.delay.max_s)
    headroom = step.applied.headroom
    return (
        seen.now_s,
        seen.period_s,
        seen.offered_rate_per_s,
        seen.admitted_rows,
        seen.shed_rows,
        *(nothing if delay_s is None else delay_s for delay_s in delays),
        nothing if headroom is None else headroom,
    )


def _check_books(plant: SimulatedPlant) -> None:
    """Checks that every offered row is admitted, shed or waiting; a run that loses a row is wrong."""
    offered, decided, waiting = plant.offered_rows, plant.admitted_rows + plant.shed_rows, plant.waiting_rows
    if offered != decided + waiting:
        raise UnmetError(
            "offered = admitted + shed + waiting",
            f"{offered} = {plant.admitted_rows} + {plant.shed_rows} + {waiting}",
            "this is a bug in the simulated plant, please report the scenario and its seed",
        )


def _over_all(labels: dict[str, LabelTotals]) -> LabelTotals:
    return LabelTotals(
        completed=sum(totals.completed for totals in labels.values()),
        delayed=sum(totals.delayed for totals in labels.values()),
        accumulated_s=sum(totals.accumulated_s for totals in labels.values()),
        max_s=max((totals.max_s for totals in labels.values()), default=0.0),
    )


def _violations(totals: LabelTotals) -> dict[str, float]:
    return {
        "violation_avg_s": totals.average_s,
        "violation_max_s": totals.max_s,
        "violation_accumulated_s": totals.accumulated_s,
        "delayed_tuples": totals.delayed,
    }
