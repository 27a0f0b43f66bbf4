"""Many cores: batches run beside each other in virtual time, with noise that the cost model does not know."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.sim.microbatch import Lab, SimulatedQuery, VirtualCluster
from penstock.sim.microbatch.machine import TaskMachine
from penstock.vocabulary.model import FloatArray

TARGET_S, SETTLED_S, MEASURED_S = 2.0, 20.0, 20.0
ROW_S = 500e-6
NOISY = TaskMachine(row_s=ROW_S, noise=0.1, stragglers=0.01)


def begin(
    lab: Lab,
    queries: int,
    cores: int,
    machine: TaskMachine = NOISY,
    overload: float = 3.0,
    weights: tuple[float, ...] = (1.0,),
    **others: object,
) -> VirtualCluster:
    """A cluster whose streams bring so many times what its cores can do, with queries of classes in turn."""
    classes = {f"class{i}": {"target": TARGET_S, "priority": w} for i, w in enumerate(weights)}
    settings: dict[str, object] = {"slots": "auto", "cores": cores, **others}
    cluster = lab(classes, **settings)  # type: ignore[arg-type]
    for i in range(queries):
        log = lab.stream(cluster, overload * cores / machine.row_s / queries, 2 * (SETTLED_S + MEASURED_S))
        cluster.add(f"q{i}", f"class{i % len(weights)}", log, machine, seed=i)
    return cluster


def measured(cluster: VirtualCluster) -> float:
    """The part of all core seconds that tasks took in the measured stretch."""
    before_s = cluster.cores.used_s
    cluster.run(MEASURED_S)
    return (cluster.cores.used_s - before_s) / MEASURED_S / cluster.cores.count


def p95_s(queries: list[SimulatedQuery], from_s: float) -> float:
    done = [b for q in queries for b in q.batches if from_s <= b.done_s < np.inf and b.rows.size]
    delays_s, rows = np.concatenate([b.delays_s for b in done]), np.concatenate([b.rows for b in done])
    order = np.argsort(delays_s)
    return float(delays_s[order][np.searchsorted(np.cumsum(rows[order]), 0.95 * rows.sum())])


@pytest.mark.parametrize("shuffle", [0, 16], ids=["stateless", "with a shuffle"])
def test_queries_of_an_overloaded_cluster_use_all_its_cores_and_are_in_time(
    virtual: Lab, shuffle: int
) -> None:
    machine = TaskMachine(
        row_s=ROW_S,
        noise=0.1,
        stragglers=0.01,
        shuffle_tasks=shuffle,
        shuffle_row_s=ROW_S / 10 if shuffle else 0.0,
    )
    cluster = begin(virtual, 6, 16, machine)
    cluster.run(SETTLED_S)
    since_s = cluster.timer()
    assert measured(cluster) >= 0.95
    assert p95_s(list(cluster.queries.values()), since_s) <= 1.1 * TARGET_S
    virtual.check_books(cluster)


def test_one_batch_at_a_time_leaves_most_cores_idle(virtual: Lab) -> None:
    cluster = begin(virtual, 6, 16, slots=1)
    cluster.run(SETTLED_S)
    assert measured(cluster) <= 0.7, "what `slots: auto` is for"


def test_classes_share_core_seconds_by_their_weights(virtual: Lab) -> None:
    cluster = begin(virtual, 12, 16, weights=(6.0, 3.0, 1.0), capacity={"policy": "cqc"})
    cluster.run(SETTLED_S)
    before = dict(cluster.engine.scheduler.turns.used_s)
    measured(cluster)
    used = {name: used_s - before[name] for name, used_s in cluster.engine.scheduler.turns.used_s.items()}
    shares = [used_s / sum(used.values()) for used_s in used.values()]
    assert shares == pytest.approx([0.6, 0.3, 0.1], abs=0.05)
    assert sum(used.values()) == pytest.approx(MEASURED_S, rel=0.1), "machine seconds, of one machine"


def test_rows_that_cost_milliseconds_are_divided_among_the_cores(virtual: Lab) -> None:
    cluster = begin(virtual, 2, 16, TaskMachine(row_s=10e-3))
    cluster.run(SETTLED_S)
    assert measured(cluster) >= 0.9
    query = cluster.engine.members.queries["q0"]
    assert query.lease is None or max(query.lease.use.planned.values(), default=16) == 16


@pytest.mark.parametrize("row_s", [50e-6, 5e-3], ids=["50 us", "5 ms"])
def test_costs_are_learned_beside_workers_that_start_and_a_driver_that_compiles(
    virtual: Lab, row_s: float
) -> None:
    cold = TaskMachine(row_s=row_s, noise=0.1, cold_s=2.0, first_plan_s=3.0)
    cluster = begin(virtual, 6, 16, cold)
    cluster.run(SETTLED_S)
    since_s = cluster.timer()
    assert measured(cluster) >= 0.95
    assert p95_s(list(cluster.queries.values()), since_s) <= 1.1 * TARGET_S
    for query in cluster.engine.members.queries.values():
        assert query.cost.row_s * 16 == pytest.approx(row_s, rel=0.3)


def test_many_queries_use_few_tasks_each(virtual: Lab) -> None:
    cluster = begin(virtual, 16, 16)
    cluster.run(SETTLED_S)
    leases = [query.lease for query in cluster.engine.members.queries.values()]
    tasks = [sum(lease.use.planned.values()) for lease in leases if lease is not None and lease.logged]
    assert tasks
    assert max(tasks) <= 6, "each has a sixteenth of the cores, and a third of the interval for a batch"


def test_a_query_whose_tasks_never_end_is_named_and_its_class_pays_while_others_go_on(
    virtual: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = begin(virtual, 6, 16, weights=(1.0, 1.0))
    hangs_s = cluster.timer() + SETTLED_S

    class Hanging(TaskMachine):
        def stages(
            self, now_s: float, rows: int, tasks: int, random: np.random.Generator
        ) -> list[FloatArray]:
            found = super().stages(now_s, rows, tasks, random)
            return [np.append(found[0], 1e9)] if now_s > hangs_s else found

    log = virtual.stream(cluster, 1000.0, 200.0)
    cluster.add("stuck", "class0", log, Hanging(row_s=ROW_S))
    cluster.run(SETTLED_S + 20 * TARGET_S)
    before, used = cluster.timer(), dict(cluster.engine.scheduler.turns.used_s)
    assert measured(cluster) >= 0.85, "fifteen of the sixteen cores are left"
    others = [query for key, query in cluster.queries.items() if key != "stuck"]
    assert p95_s(others, before) <= 1.1 * TARGET_S
    paid = {name: s - used[name] for name, s in cluster.engine.scheduler.turns.used_s.items()}
    assert paid["class0"] == pytest.approx(paid["class1"], rel=0.15), "the core that hangs is paid for"
    stuck = cluster.status().classes["class0"].queries["stuck"]
    assert (stuck.stuck_tasks, stuck.stuck_s is not None) == (1, True)
    said = [record.message for record in caplog.records if "hold cores" in record.message]
    assert len(said) == 1
    assert said[0].startswith("query stuck: its batch has run for ")


def test_without_executors_nothing_is_shed_and_with_them_the_cores_are_used_again(virtual: Lab) -> None:
    cluster = begin(virtual, 4, 16)
    cluster.run(SETTLED_S)
    cluster.resize(0)
    cluster.run(2 * TARGET_S)
    offered = {key: q.offsets for key, q in cluster.queries.items()}
    cluster.run(3 * TARGET_S)
    assert {key: q.offsets for key, q in cluster.queries.items()} == offered, "nobody is granted anything"
    cluster.resize(16)
    cluster.run(SETTLED_S)
    assert measured(cluster) >= 0.95
    virtual.check_books(cluster)


@pytest.mark.parametrize("cores", [4, 32])
def test_the_capacity_follows_executors_that_come_and_go(virtual: Lab, cores: int) -> None:
    cluster = begin(virtual, 4, 16, overload=6.0)
    cluster.run(SETTLED_S)
    cluster.resize(cores)
    cluster.run(SETTLED_S / 2)
    since_s = cluster.timer()
    assert measured(cluster) >= 0.95
    assert p95_s(list(cluster.queries.values()), since_s) <= 1.15 * TARGET_S


def test_a_driver_that_tells_its_cores_and_never_what_tasks_take_is_governed_by_batch_times(
    virtual: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = begin(virtual, 2, 16)
    monkeypatch.setattr(cluster, "job_ended", lambda *_: None)
    cluster.run(SETTLED_S)
    query = cluster.engine.members.queries["q0"]
    assert query.cost.ready
    assert not query.costs.work.model.ready
    virtual.check_books(cluster)


def test_what_a_driver_says_late_of_a_batch_is_learned_all_the_same(
    virtual: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = begin(virtual, 2, 16)
    late: list[tuple[object, ...]] = []
    tell = cluster.job_ended

    def delayed(*job: object) -> None:
        late.append(job)
        if len(late) > 3:  # each word comes when a later batch runs
            tell(*late.pop(0))  # type: ignore[arg-type]

    monkeypatch.setattr(cluster, "job_ended", delayed)
    cluster.run(SETTLED_S)
    query = cluster.engine.members.queries["q0"]
    assert query.costs.work.model.ready
    assert query.cost.row_s * 16 == pytest.approx(ROW_S, rel=0.3)


def test_a_control_plane_that_is_replaced_hears_of_the_cores(virtual: Lab) -> None:
    cluster = begin(virtual, 4, 16)
    cluster.run(SETTLED_S)
    cluster.speak(anew=True)
    cluster.run(SETTLED_S)
    assert measured(cluster) >= 0.95
    virtual.check_books(cluster)
