"""Several classes on one simulated engine: load managers, the capacity policy, results of each class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from penstock.control.decide.cycle import Cycle, Step
from penstock.control.schedule.shares import Redistribution
from penstock.control.tuning import LEAST_SHARE
from penstock.policies.capacity import CapacityPolicy, capacity_policy, quotas
from penstock.policies.load import Manager, manager_config
from penstock.sim.engine.machine import Machine
from penstock.sim.engine.plant import Engine
from penstock.sim.engine.view import ClassView
from penstock.sim.simulate import Timeline, timeline_of
from penstock.sim.workloads.network import Network
from penstock.vocabulary.errors import UnmetError, require_positive
from penstock.vocabulary.model import Decision, DelayStats, FloatArray, Observation, QueryClass

Managers = Literal["none", "common", "separate"]


@dataclass(frozen=True)
class ClassesScenario:
    """A simulation of several classes.

    Attributes:
        network: Operators, each with its class.
        arrivals_s: Arrival times, one array a source.
        classes: Classes in the order of their turns; `manager` names the load manager of each class.
        managers: One for each class, one for all of them (the manager of the first class), or none.
        policy: Divides the capacity; by default the fixed quotas of CQC.
        settings: Settings of the load managers.
        headroom: Capacity of the whole machine that the managers expect at the start.
        round_s: Time in which every class has one turn.
        period_s: Length of a load-management cycle; 150 ms in pham2016 6.2.1.
        every: Number of cycles in a capacity redistribution cycle.
        run_s: Length of the run.
        machine: Headroom and cost over time.
        seed: Fixes selectivities and coins.
    """

    network: Network
    arrivals_s: Sequence[FloatArray]
    classes: Sequence[QueryClass]
    managers: Managers = "separate"
    policy: CapacityPolicy = field(default_factory=lambda: capacity_policy("cqc"))
    settings: Mapping[str, Any] = field(default_factory=dict)
    headroom: float = 1.0
    round_s: float = 0.01
    period_s: float = 0.15
    every: int = 10
    run_s: float = 60.0
    machine: Machine = field(default_factory=Machine)
    seed: int = 0

    def __post_init__(self) -> None:
        require_positive("round", self.round_s, "the time in which every class has one turn, e.g. 10ms")
        require_positive("period", self.period_s, "a load-management cycle, e.g. 150ms")


@dataclass(frozen=True, eq=False)
class ClassResult:
    """Result of one class. offered = admitted + shed + waiting."""

    offered: int
    admitted: int
    shed: int
    waiting: int
    delay: DelayStats
    timeline: Timeline
    shares: FloatArray
    """The class's part of the capacity after each cycle."""

    @property
    def loss_percent(self) -> float:
        """Percentage of shed rows among the rows that were admitted or shed."""
        return 100.0 * self.shed / max(1, self.shed + self.admitted)


class CommonPlant:
    """All classes as one system, for a single load manager that knows no quotas and priorities."""

    def __init__(self, views: Sequence[ClassView]) -> None:
        self._views = views

    def observe(self) -> Observation:
        each = [view.observe() for view in self._views]
        first, rows = each[0], sum(seen.offered_rows for seen in each)
        costs = [(seen.cost_per_row_s, seen.offered_rows) for seen in each if seen.cost_per_row_s is not None]
        weight = sum(count for _, count in costs)
        return Observation(
            id=first.id,
            cls="all",
            now_s=first.now_s,
            period_s=first.period_s,
            delay_target_s=max(seen.delay_target_s for seen in each),
            keep_fraction=first.keep_fraction,
            offered_rows=rows,
            admitted_rows=sum(seen.admitted_rows for seen in each),
            shed_rows=sum(seen.shed_rows for seen in each),
            departed_rows=sum(seen.departed_rows for seen in each),
            waiting_rows=sum(seen.waiting_rows for seen in each),
            offered_load=sum(seen.offered_load for seen in each),
            queued_load_s=sum(seen.queued_load_s for seen in each),
            network_load_s=sum(seen.network_load_s for seen in each),
            cost_per_row_s=sum(cost * count for cost, count in costs) / weight if weight else None,
            work_s=sum(seen.work_s for seen in each),
            busy_s=max(seen.busy_s for seen in each),
            delay=DelayStats.of(np.concatenate([view.period_delays_s for view in self._views])),
            output_delay_s=np.concatenate([seen.output_delay_s for seen in each]),
        )

    def apply(self, decision: Decision) -> None:
        for view in self._views:
            view.apply(decision)


def simulate_classes(scenario: ClassesScenario) -> dict[str, ClassResult]:
    """Runs a scenario to the end of its virtual time; results by class."""
    managers = _managers(scenario)
    grants = [name for name, manager in managers.items() if manager.traits.gives_grants]
    engine = Engine(
        scenario.network,
        scenario.arrivals_s,
        scenario.classes,
        scenario.run_s,
        scenario.machine,
        grants,
        scenario.seed,
    )
    redistribution = Redistribution(scenario.policy, scenario.classes, scenario.every)
    engine.set_quotas(quotas(redistribution.shares, scenario.round_s))
    cycles = _cycles(scenario, engine, managers)
    steps: dict[str, list[Step]] = {name: [] for name in cycles}
    shares: list[dict[str, float]] = []
    while not engine.over:
        engine.advance(scenario.period_s)
        for name, cycle in cycles.items():
            step = cycle.step()
            assert step is not None
            steps[name].append(step)
        if scenario.managers == "separate":
            usages = {
                name: _usage(steps[name][-1], view, scenario.headroom * redistribution.shares[name])
                for name, view in engine.views.items()
            }
            scales = redistribution.report(usages)
            if scales is not None:
                engine.set_quotas(quotas(redistribution.shares, scenario.round_s))
                for name, view in engine.views.items():
                    view.capacity_scale *= scales[name]
        shares.append(redistribution.shares)
    return {name: _result(view, steps.get(name, []), shares) for name, view in engine.views.items()}


def _managers(scenario: ClassesScenario) -> dict[str, Manager[Any, Any]]:
    """Managers by class; each expects its class's original part of the capacity, and learns the real one."""
    if scenario.managers == "none":
        return {}
    weight = sum(cls.priority for cls in scenario.classes)
    shared = scenario.managers == "common"
    chosen = (
        {"all": (scenario.classes[0].manager, 1.0)}
        if shared
        else {cls.name: (cls.manager, cls.priority / weight) for cls in scenario.classes}
    )
    managers = {}
    for name, (manager, share) in chosen.items():
        settings = dict(scenario.settings)
        if (told := manager_config(manager).traits().headroom_setting) is not None:
            settings.setdefault(told, scenario.headroom * share)
        managers[name] = manager_config(manager, **settings).build()
    return managers


def _cycles(
    scenario: ClassesScenario, engine: Engine, managers: Mapping[str, Manager[Any, Any]]
) -> dict[str, Cycle]:
    if scenario.managers == "common":
        return {"all": Cycle(CommonPlant(list(engine.views.values())), managers["all"])}
    return {name: Cycle(engine.views[name], manager) for name, manager in managers.items()}


def _usage(step: Step, view: ClassView, given: float) -> float | None:
    """u_k = L_k / L_Ck, with the manager's estimate of the capacity, but at most what the class is given.

    A manager also learns the capacity that its class takes from classes that run dry, which is no part of its
    share. With that counted, a class that needs more than its share would seem to have capacity to lend.

    L_k is the load in full batches. A class with more capacity than it needs spends it on small batches, and
    by their cost it would always seem to need it. In a smaller share its batches grow, which frees capacity
    (pham2016 6.2.2).
    """
    headroom = step.applied.headroom
    return None if headroom is None else view.full_batch_load / min(headroom, max(given, LEAST_SHARE))


def _result(view: ClassView, steps: list[Step], shares: list[dict[str, float]]) -> ClassResult:
    offered, decided, waiting = view.offered_rows, view.admitted_rows + view.shed_rows, view.waiting_rows
    if offered != decided + waiting:
        raise UnmetError(
            f"class {view.cls.name}: offered = admitted + shed + waiting",
            f"{offered} = {view.admitted_rows} + {view.shed_rows} + {waiting}",
            "this is a bug in the simulated plant, please report the scenario and its seed",
        )
    return ClassResult(
        offered,
        view.admitted_rows,
        view.shed_rows,
        waiting,
        view.histogram.stats(),
        timeline_of(steps),
        np.array([each[view.cls.name] for each in shares]),
    )
