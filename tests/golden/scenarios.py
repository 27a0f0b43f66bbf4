"""The scenarios of the golden traces. Each makes a cluster and lets things happen to it; seeds fix it.

A scenario gets a laboratory and a function that makes its cluster, which records. It is there for one part of
the control plane, which its name says. All numbers are chosen so that this part has something to do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from penstock.control.core.events import ChangeClass, RemoveClass, SetShedding
from penstock.control.tuning import TUNING
from penstock.sim.microbatch import Lab, Machine, Point, VirtualCluster
from penstock.streams.producing.schedule import Schedule, schedule_constant, schedule_from_counts

TARGET_S = 2.0
MACHINE = Machine(noise=0.1)
CAPACITY_PER_S = MACHINE.capacity_per_s(TARGET_S)
GOLD: dict[str, dict[str, Any]] = {"gold": {"target": TARGET_S}}
THREE: dict[str, dict[str, Any]] = {
    "gold": {"target": TARGET_S, "priority": 6},
    "silver": {"target": TARGET_S, "priority": 3},
    "bronze": {"target": 2 * TARGET_S, "priority": 1},
}

Make = Callable[..., VirtualCluster]
Scenario = Callable[[Lab, Make], VirtualCluster]
SCENARIOS: dict[str, Scenario] = {}


def scenario(made: Scenario) -> Scenario:
    SCENARIOS[made.__name__] = made
    return made


def steps(*parts: tuple[int, float]) -> Schedule:
    """Seconds, and the rate in them in times the capacity of one query."""
    rates = [times * CAPACITY_PER_S for seconds, times in parts for _ in range(seconds)]
    return schedule_from_counts(rates, bin_s=1.0)


def burst(usual: float, high: float) -> Schedule:
    """A high rate for three seconds."""
    return steps((6, usual), (3, high), (60, usual))


def one(lab: Lab, make: Make, times: float = 2.0, seconds: float = 12.0, **settings: Any) -> VirtualCluster:
    """A query at so many times its capacity."""
    others = settings.pop("flow", {})
    cluster = make({"gold": {"target": TARGET_S, **settings}}, **others)
    cluster.add("q", "gold", lab.stream(cluster, times * CAPACITY_PER_S, key="sensor"), MACHINE)
    cluster.run(seconds)
    return cluster


# -- load managers --------------------------------------------------------------------------------


def _manager(name: str, **settings: Any) -> None:
    def manager(lab: Lab, make: Make) -> VirtualCluster:
        cluster = make({"gold": {"target": TARGET_S, "manager": name, "settings": settings}})
        cluster.add("q", "gold", lab.stream(cluster, burst(0.8, 3.0)), MACHINE)
        cluster.run(16.0)
        return cluster

    manager.__name__ = f"manager_{name}"
    scenario(manager)


for _name in ("deadline", "aurora", "baseline", "ctrl", "seamless", "aloma"):
    _manager(_name)


@scenario
def deadline_tolerates_a_few_late(lab: Lab, make: Make) -> VirtualCluster:
    return one(lab, make, 3.0, settings={"late_fraction": 0.1, "overrun_fraction": 0.2})


@scenario
def least_keep_fraction(lab: Lab, make: Make) -> VirtualCluster:
    return one(lab, make, 4.0, min_keep_fraction=0.5)


@scenario
def dry_run(lab: Lab, make: Make) -> VirtualCluster:
    return one(lab, make, 1.5, dry_run=True)


# -- sampling -------------------------------------------------------------------------------------


def _sampling(unit: str) -> None:
    def sampling(lab: Lab, make: Make) -> VirtualCluster:
        cluster = make({"gold": {"target": TARGET_S, "sampling": unit}})
        schedules = [schedule_constant(2.0 * CAPACITY_PER_S, 60.0) for _ in range(3)]
        cluster.add("q", "gold", lab.stream(cluster, schedules, key="sensor"), MACHINE)
        cluster.run(10.0)
        return cluster

    sampling.__name__ = f"sampling_by_{unit}"
    scenario(sampling)


for _name in ("row", "segment", "auto", "key"):
    _sampling(_name)


# -- shedders of a class --------------------------------------------------------------------------


def _shedder(name: str, **settings: Any) -> None:
    def shedder(lab: Lab, make: Make) -> VirtualCluster:
        gold = {"target": 3 * TARGET_S, "shedder": name, "shedder_settings": settings}
        cluster = make({"gold": gold}, stw="20s")
        for i, times in enumerate((0.5, 2.5)):
            log = lab.stream(cluster, times * CAPACITY_PER_S, key="sensor")
            cluster.add(f"q{i}", "gold", log, MACHINE, seed=i)
        cluster.run(25.0)
        return cluster

    shedder.__name__ = f"shedder_{name.replace('-', '_')}"
    scenario(shedder)


_shedder("random")
_shedder("oldest")
_shedder("cohort")
_shedder("balance-sic")
_shedder("semantic", utility="value % 100 + 0.5")
_shedder("window", size="400ms")


# -- classes --------------------------------------------------------------------------------------


def _capacity(policy: str, **settings: Any) -> None:
    def capacity(lab: Lab, make: Make) -> VirtualCluster:
        cluster = make(THREE, capacity={"policy": policy, **settings})
        for i, (name, times) in enumerate({"gold": 0.3, "silver": 0.2, "bronze": 1.5}.items()):
            cluster.add(name, name, lab.stream(cluster, burst(times, 3 * times)), MACHINE, seed=i)
        cluster.run(20.0)
        return cluster

    capacity.__name__ = f"capacity_{policy}"
    scenario(capacity)


for _name in ("dilos", "cqc", "absolute", "hybrid", "strict"):
    _capacity(_name)


@scenario
def eager_batches(lab: Lab, make: Make) -> VirtualCluster:
    return one(lab, make, 0.3, 8.0, flow={"tuning": replace(TUNING, eager=True)})


def _slots(name: str, slots: int, machine: Machine) -> None:
    def many(lab: Lab, make: Make) -> VirtualCluster:
        cluster = make(THREE, slots=slots)
        for i in range(6):
            cls = list(THREE)[i % 3]
            cluster.add(f"q{i}", cls, lab.stream(cluster, 0.4 * CAPACITY_PER_S), machine, seed=i)
        cluster.run(15.0)
        return cluster

    many.__name__ = name
    scenario(many)


_slots("slots_1", 1, MACHINE)
_slots("slots_2", 2, MACHINE)
_slots("batches_overlap_at_their_last_stage", 1, Machine(noise=0.1, jobs=1, last_stage_fraction=0.3))


# -- streams and readers --------------------------------------------------------------------------


@scenario
def shared_stream(lab: Lab, make: Make) -> VirtualCluster:
    cluster = make({"gold": {"target": 5 * TARGET_S}, "bulk": {"target": 8 * TARGET_S, "priority": 0.5}})
    cluster.add("writer", "gold", lab.stream(cluster, 0.4 * CAPACITY_PER_S), MACHINE)
    shared = lab.shared_stream(cluster, "gold", "writer")
    cluster.add("behind", "gold", shared, MACHINE, seed=2)
    cluster.add("below", "bulk", shared, MACHINE, seed=3)
    cluster.add("beside", "gold", lab.stream(cluster, 0.6 * CAPACITY_PER_S), MACHINE, seed=4)
    cluster.run(25.0)
    return cluster


@scenario
def several_readers_of_a_query(lab: Lab, make: Make) -> VirtualCluster:
    cluster = make(GOLD)
    logs = {"left": lab.stream(cluster, CAPACITY_PER_S), "right": lab.stream(cluster, 0.5 * CAPACITY_PER_S)}
    cluster.add("join", "gold", logs, MACHINE)
    cluster.add("other", "gold", lab.stream(cluster, 0.3 * CAPACITY_PER_S), MACHINE, seed=2)
    cluster.run(12.0)
    return cluster


@scenario
def ticks_close_the_windows_of_a_quiet_stream(lab: Lab, make: Make) -> VirtualCluster:
    cluster = make(GOLD)
    log = lab.stream(cluster, steps((4, 0.5), (4, 0.0), (4, 0.05)))
    cluster.add("q", "gold", log, MACHINE, token="t")
    cluster.windowed("t")
    cluster.run(18.0)
    return cluster


@scenario
def drain(lab: Lab, make: Make) -> VirtualCluster:
    cluster = make(GOLD)
    log = lab.stream(cluster, steps((8, 2.5)))
    query = cluster.add("q", "gold", log, MACHINE)
    cluster.run(6.0)
    cluster.drain(query)
    cluster.run(20.0)
    return cluster


@scenario
def available_now_beside_others(lab: Lab, make: Make) -> VirtualCluster:
    cluster = make(GOLD)
    cluster.add("stays", "gold", lab.stream(cluster, 0.5 * CAPACITY_PER_S), MACHINE)
    log = lab.stream(cluster, CAPACITY_PER_S)
    both = {"left": log, "right": lab.stream(cluster, 0.2 * CAPACITY_PER_S)}
    cluster.run(5.0)
    cluster.add("once", "gold", log, MACHINE, seed=2, available_now=True)
    cluster.add("twice", "gold", both, MACHINE, seed=3, available_now=True)
    cluster.run(20.0)
    return cluster


# -- ends of leases -------------------------------------------------------------------------------


def _lost(point: Point) -> None:
    def lost(lab: Lab, make: Make) -> VirtualCluster:
        cluster = make(GOLD)
        query = cluster.add("q", "gold", lab.stream(cluster, 2 * CAPACITY_PER_S), MACHINE)
        cluster.add("other", "gold", lab.stream(cluster, 0.5 * CAPACITY_PER_S), MACHINE, seed=2)
        cluster.run(6.0)
        cluster.crash(query, point)
        cluster.run(3.0)
        cluster.start(query)
        cluster.run(6.0)
        return cluster

    lost.__name__ = f"lost_when_{point.value}"
    scenario(lost)


for _point in Point:
    _lost(_point)


@scenario
def stopped_through_the_gate_and_in_a_batch(lab: Lab, make: Make) -> VirtualCluster:
    cluster = make(GOLD)
    query = cluster.add("q", "gold", lab.stream(cluster, CAPACITY_PER_S), MACHINE)
    other = cluster.add("other", "gold", lab.stream(cluster, CAPACITY_PER_S), MACHINE, seed=2)
    cluster.run(6.0)
    cluster.refuse(query)
    cluster.run(3.0)
    cluster.stop(query)
    cluster.stop(other)
    cluster.run(1.0)
    cluster.start(query)
    cluster.start(other)
    cluster.run(5.0)
    return cluster


@scenario
def a_connection_is_lost_and_made_again(lab: Lab, make: Make) -> VirtualCluster:
    cluster = make(GOLD)
    query = cluster.add("q", "gold", lab.stream(cluster, CAPACITY_PER_S), MACHINE)
    cluster.run(6.0)
    for _ in range(3):
        cluster.connect(query, "q")
        cluster.run(1.3)
    return cluster


@scenario
def poison_is_set_aside(lab: Lab, make: Make) -> VirtualCluster:
    cluster = make({"gold": {"target": TARGET_S, "poison_after": 2}})
    query = cluster.add("q", "gold", lab.stream(cluster, 0.5 * CAPACITY_PER_S), MACHINE)
    query.fails = lambda offsets: any(offset.grant == 5 for offset in offsets.values())
    for _ in range(14):
        cluster.run(1.0)
        if query.stopped:
            cluster.start(query)
    return cluster


@scenario
def the_control_plane_is_silent_and_then_another(lab: Lab, make: Make) -> VirtualCluster:
    cluster = make(GOLD, fail_open_after="1s")
    for i in range(2):
        cluster.add(f"q{i}", "gold", lab.stream(cluster, 0.6 * CAPACITY_PER_S), MACHINE, seed=i)
    cluster.run(6.0)
    cluster.hush()
    cluster.run(4.0)
    cluster.speak()
    cluster.run(3.0)
    cluster.speak(anew=True)
    cluster.run(6.0)
    return cluster


# -- clocks and changes ---------------------------------------------------------------------------


@scenario
def clocks_that_differ(lab: Lab, make: Make) -> VirtualCluster:
    cluster = make({"gold": {"target": TARGET_S, "priority": 4}, "bulk": {"target": 5 * TARGET_S}})
    cluster.add("gold", "gold", lab.stream(cluster, 0.8 * CAPACITY_PER_S), MACHINE)
    ahead = lab.stream(cluster, 0.5 * CAPACITY_PER_S, skew_s=2.5)
    cluster.add("bulk", "bulk", ahead, MACHINE, seed=2)
    cluster.run(12.0)
    return cluster


@scenario
def a_clock_that_is_set(lab: Lab, make: Make) -> VirtualCluster:
    cluster = make(GOLD)
    cluster.add("q", "gold", lab.stream(cluster, 0.8 * CAPACITY_PER_S, 400.0), MACHINE)
    cluster.run(8.0)
    cluster.clock.now_s -= 1.5
    cluster.run(6.0)
    cluster.clock.now_s += 4.0
    cluster.run(6.0)
    return cluster


@scenario
def changes_while_it_runs(lab: Lab, make: Make) -> VirtualCluster:
    cluster = make(THREE)
    for i, name in enumerate(THREE):
        cluster.add(name, name, lab.stream(cluster, 0.8 * CAPACITY_PER_S), MACHINE, seed=i)
    cluster.run(8.0)
    changes: list[Mapping[str, Any]] = [
        {"target": "4s"},
        {"priority": 2.0},
        {"manager": "aloma"},
        {"sampling": "segment"},
        {"shedder": "balance-sic"},
    ]
    for change in changes:
        cluster.command(ChangeClass("silver", change))
        cluster.run(2.0)
    cluster.command(SetShedding(False))
    cluster.run(2.0)
    cluster.command(SetShedding(True))
    cluster.stop(cluster.queries["bronze"])
    cluster.command(RemoveClass("bronze"))
    del cluster.queries["bronze"]  # its books went with its class
    cluster.run(3.0)
    return cluster
