"""`spark/dilos`: five ways to manage three classes with twelve queries, as in pham2016 table 8."""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

import penstock
from penstock.bench import BenchRun, bench
from penstock.calibration.measured import Batch
from penstock.control.measure.delays import stats
from penstock.spark.driver.flow import Flow
from penstock.vocabulary.errors import PenstockError

from .rig import Rig, median, spread, tuned
from .twelve import PRIORITIES, Costs, Running, idle_round_s, measure_kinds, start_all, streams

CASES = ("none", "common", "separate", "dilos", "sharing")
FIXED = ("none", "separate")
"""Cases with fixed quotas. In these cases a batch starts as soon as one row waits."""
ROUNDS, LEAST_S = 20.0, 60.0
HEAP = "6g"
"""With 2 GB, full collections stopped all twelve queries for 0.4 s every 45 s."""
READY_S, SETTLE_S, SETTLE_ROUNDS = 180.0, 15.0, 5.0
"""Rows that waited while costs were learned are late when they are known: that is not the case's doing."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one class in one case.

    Attributes:
        loss_percent: Mean over its queries of rows shed / rows decided.
        losses_percent: The same by query.
        needs: Part of the time that its whole input needs, by the costs that the control plane has learned.
        mean_s: Delay of its rows.
        p95_s: The same, the 95th percentile.
        target_s: Its target in this case.
        batch_rows: Median rows of its batches.
        batches_per_s: How many.
    """

    loss_percent: float
    losses_percent: list[float]
    needs: float | None
    mean_s: float
    p95_s: float
    target_s: float
    batch_rows: float
    batches_per_s: float

    @property
    def lateness(self) -> float:
        return self.p95_s / self.target_s


@bench("dilos", title="three classes with four queries each, managed in five ways")
def dilos(run: BenchRun) -> None:
    repeats = run.times(3)
    cases = ("separate", "dilos", "sharing") if run.quick else CASES
    run.progress("measuring the queries", total=repeats * len(cases))
    found: dict[str, list[dict[str, Outcome]]] = defaultdict(list)
    drawn = random.Random(run.seed)
    with Rig(memory=HEAP) as rig:
        rig.warm_up()
        fixed_s, row_s = measure_kinds(rig)
        for _ in range(repeats):
            run.progress("an idle round")  # the machine drifts: targets of each repeat are by its own
            costs = Costs(fixed_s, row_s, idle_round_s(rig))
            _say_costs(run, costs)
            for case in drawn.sample(cases, len(cases)):
                run.progress(case, advance=1)
                found[case].append(_run_case(rig, costs, case))
    _report(run, found)


def _say_costs(run: BenchRun, costs: Costs) -> None:
    for kind, fixed_s in costs.fixed_s.items():
        run.note(f"{kind}: {fixed_s:.3f} s a batch, {costs.row_s[kind] * 1e6:.2f} us a row")
    targets = ", ".join(f"{value:.1f}" for value in costs.targets_s().values())
    loads = ", ".join(f"{value:.2f}" for value in costs.loads().values())
    run.note(f"idle round of twelve queries {costs.round_s:.2f} s; targets {targets} s")
    run.note(f"row work of the classes {loads} s a second, batches' fixed costs not counted")


def _config(costs: Costs, case: str) -> dict[str, Any]:
    targets = costs.targets_s()
    if case == "common":
        # one manager for all keeps the strictest target, or class 1 misses its own. The paper's decides once
        # for all queries, where Deadline decides with each grant
        return {"classes": {"all": {"target": min(targets.values()), "manager": "aloma"}}}
    classes = {cls: {"target": targets[cls], "priority": weight} for cls, weight in PRIORITIES.items()}
    return {"classes": classes, "capacity": {"policy": "cqc" if case in FIXED else "dilos"}}


def _run_case(rig: Rig, costs: Costs, case: str) -> dict[str, Outcome]:
    measured_s = max(LEAST_S, ROUNDS * costs.round_s)
    settle_s = max(SETTLE_S, SETTLE_ROUNDS * costs.round_s)
    root, logs = streams(rig, costs.rates(), READY_S + settle_s + measured_s + 30.0)
    config = {"log": root, **_config(costs, case)}
    with tuned(eager=case in FIXED), penstock.attach(rig.spark, config) as flow:
        flow.set_shedding(case != "none")
        running = start_all(rig, flow, case == "sharing", case == "common")
        for log in logs:
            log.begin()
        _await_costs(flow, running)
        time.sleep(settle_s)
        from_s, before = time.time(), _books(flow)
        time.sleep(measured_s)
        until_s, after = time.time(), _books(flow)
        needs = {cls: each["needs"] for cls, each in flow.plan()["classes"].items()}
        time.sleep(1.0)  # for Spark's last reports
        _check(running)
        done = {each.name: each.batches(root) for each in running}
    measured = Measured(done, before, after, from_s, until_s)
    return {
        cls: _outcome(measured, [r.name for r in running if r.cls == cls], target_s, needs.get(cls))
        for cls, target_s in costs.targets_s().items()
    }


def _await_costs(flow: Flow, running: list[Running]) -> None:
    """Nothing of a query is shed before its cost is known: the measured stretch begins after that."""
    deadline = time.monotonic() + READY_S
    while True:
        _check(running)
        known = {name for cls in flow.plan()["classes"].values() for name in cls["queries"]}
        unknown = sorted({each.name for each in running} - known)
        if not unknown:
            return
        if time.monotonic() > deadline:
            rule = f"all costs are known in {READY_S:g} s"
            raise PenstockError(f"{rule}; got: none of {', '.join(unknown)}; hint: see Spark's log")
        time.sleep(0.5)


def _check(running: list[Running]) -> None:
    for each in running:
        if (error := each.query.exception()) is not None:
            raise PenstockError(f"query {each.name} runs; got: {error}")


def _books(flow: Flow) -> dict[str, tuple[int, int]]:
    """By query, rows shed and admitted since its start."""
    queries = [q for cls in flow.status().to_json()["classes"].values() for q in cls["queries"].values()]
    return {query["name"]: (query["shed"], query["admitted"]) for query in queries}


@dataclass(frozen=True, slots=True)
class Measured:
    """A measured stretch: by query its batches, and its books before and after."""

    done: Mapping[str, list[Batch]]
    before: Mapping[str, tuple[int, int]]
    after: Mapping[str, tuple[int, int]]
    from_s: float
    until_s: float

    def batches(self, name: str) -> list[Batch]:
        return [b for b in self.done[name] if self.from_s <= b.ended_s < self.until_s]

    def loss_percent(self, name: str) -> float:
        shed, admitted = (now - then for now, then in zip(self.after[name], self.before[name], strict=True))
        return 100.0 * shed / max(1, shed + admitted)


def _outcome(measured: Measured, names: list[str], target_s: float, needs: float | None) -> Outcome:
    inside = [b for name in names for b in measured.batches(name)]
    # a join has one for each of its sources, which begin and end together
    count = len({(name, b.ended_s) for name in names for b in measured.batches(name)})
    losses = [measured.loss_percent(name) for name in names]
    times = np.concatenate([b.ended_s - b.arrival_s for b in inside] or [np.empty(0)])
    delay = stats(times, np.concatenate([b.weight for b in inside] or [np.empty(0)]))
    return Outcome(
        float(np.mean(losses)),
        losses,
        needs,
        delay.mean_s or 0.0,
        delay.p95_s or 0.0,
        target_s,
        float(np.median([b.rows for b in inside])) if inside else 0.0,
        count / (measured.until_s - measured.from_s),
    )


def _report(run: BenchRun, found: Mapping[str, list[dict[str, Outcome]]]) -> None:
    for case, results in found.items():
        for cls in PRIORITIES:
            each = [result[cls] for result in results]
            losses, p95s = [o.loss_percent for o in each], [o.lateness for o in each]
            run.row(f"{case}_{cls}_loss_percent", median(losses))
            run.row(f"{case}_{cls}_p95_to_target", median(p95s))
            run.note(
                f"{case} {cls}: loss {spread(losses)} %, mean {median([o.mean_s for o in each]):.2f} s, "
                f"p95/target {spread(p95s)}, batches of {median([o.batch_rows for o in each]):,.0f} rows, "
                f"{median([o.batches_per_s for o in each]):.2f} a second"
            )
            by_query = [median(values) for values in zip(*(o.losses_percent for o in each), strict=True)]
            needs = [o.needs for o in each if o.needs is not None]
            run.note(
                f"{case} {cls}: its queries lose {', '.join(f'{value:.1f}' for value in by_query)} %; "
                + (f"its input needs {spread(needs)} of the time" if needs else "one class has all")
            )

    def loss(case: str, cls: str) -> float:
        return median([result[cls].loss_percent for result in found[case]])

    def late(case: str, cls: str) -> float:
        return median([result[cls].lateness for result in found[case]])

    for cls in ("class1", "class2"):
        run.row(f"{cls}_loss_percent", max(loss(case, cls) for case in ("dilos", "sharing")))
        run.row(f"{cls}_p95_to_target", max(late(case, cls) for case in ("dilos", "sharing")))
    if "common" in found:
        alike = [loss("common", cls) for cls in PRIORITIES]
        run.row("common_loss_spread", (max(alike) - min(alike)) / max(float(np.mean(alike)), 1e-9))
    run.row("dilos_to_separate_loss", loss("dilos", "class3") / max(loss("separate", "class3"), 1e-9))
    run.row("sharing_to_dilos_loss", loss("sharing", "class3") / max(loss("dilos", "class3"), 1e-9))
