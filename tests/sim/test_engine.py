"""The simulated plant: nothing gets lost, time and cost pass as the network says, and the seam reports it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.effort import tries

from penstock.policies.load import LOAD_MANAGERS, Manager, manager_config
from penstock.sim.engine.plant import Machine, SimulatedPlant
from penstock.sim.workloads.network import Kind, Network, Operator
from penstock.sim.workloads.networks import PHAM_HEADROOM, borealis, qn_flat
from penstock.vocabulary.errors import InvalidInputError
from penstock.vocabulary.model import Admission, Decision, FloatArray, Observation, QueryClass

GOLD = QueryClass("gold", delay_target_s=2.0)


def chain(*costs_s: float, selectivity: float = 1.0, **settings: Any) -> Network:
    """Source, operators, output; the first operator behind the source has the selectivity."""
    operators = [Operator("op0", Kind.SOURCE, costs_s[0])]
    for i, cost_s in enumerate(costs_s[1:], start=1):
        kind = Kind.OUTPUT if i == len(costs_s) - 1 else Kind.OPERATOR
        passed = selectivity if i == 1 and kind is Kind.OPERATOR else 1.0
        operators.append(Operator(f"op{i}", kind, cost_s, passed, (f"op{i - 1}",)))
    return Network("chain", tuple(operators), **settings)


def steady(rate_per_s: float, until_s: float) -> FloatArray:
    return np.arange(1, int(rate_per_s * until_s) + 1) / rate_per_s


def run_to_end(plant: SimulatedPlant, manager: Manager[Any, Any] | None = None) -> list[Observation]:
    """Runs with a manager, or keeps everything."""
    seen = []
    while (one := plant.observe()) is not None:
        seen.append(one)
        plant.apply(manager.decide(one) if manager else Decision(one.id, 1.0, "keep all"))
    return seen


class Recorder:
    """Stands in for the histogram and keeps the delays in the order of completion."""

    def __init__(self) -> None:
        self.delays_s = np.empty(0)

    def add(self, delays_s: FloatArray) -> None:
        self.delays_s = np.concatenate([self.delays_s, delays_s])


def recording(plant: SimulatedPlant) -> Recorder:
    recorder = Recorder()
    plant.view.histogram = recorder  # type: ignore[assignment]
    return recorder


# -- the books ------------------------------------------------------------------------------------------


@st.composite
def networks(draw: st.DrawFn) -> Network:
    """Chains, shared operators, and joins, with small queues and batches."""
    costs = st.floats(1e-4, 4e-3)
    selectivity = st.sampled_from([0.0, 0.3, 1.0, 1.6])
    operators = [Operator("s0", Kind.SOURCE, draw(costs), weight=draw(st.sampled_from([0.5, 1.0, 1.5])))]
    last = "s0"
    shape = draw(st.sampled_from(["chain", "shared", "join", "two sources"]))
    if shape in ("join", "two sources"):
        operators.append(Operator("s1", Kind.SOURCE, draw(costs)))
    if shape == "join":
        operators.append(
            Operator(
                "join",
                Kind.JOIN,
                draw(costs),
                draw(st.sampled_from([0.01, 0.2])),
                ("s0", "s1"),
                window_s=draw(st.sampled_from([0.1, 1.0])),
                probe_cost_s=1e-6,
            )
        )
        last = "join"
    for i in range(draw(st.integers(0, 3))):
        operators.append(Operator(f"x{i}", Kind.OPERATOR, draw(costs), draw(selectivity), (last,)))
        last = f"x{i}"
    operators.append(Operator("out", Kind.OUTPUT, draw(costs), inputs=(last,)))
    if shape == "shared":
        operators.append(Operator("out2", Kind.OUTPUT, draw(costs), inputs=(last,), label="second"))
    if shape == "two sources":
        operators.append(Operator("out3", Kind.OUTPUT, draw(costs), inputs=("s1",)))
    return Network(
        "random",
        tuple(operators),
        turn_cost_s=draw(st.sampled_from([0.0, 1e-4])),
        drop_cost_s=draw(st.sampled_from([0.0, 1e-4])),
        batch_rows=draw(st.sampled_from([1, 7, 50])),
        queue_rows=draw(st.sampled_from([4, 64, 1024])),
        delay_of_filtered=draw(st.booleans()),
    )


@st.composite
def managers(draw: st.DrawFn, network: Network) -> Manager[Any, Any]:
    name = draw(st.sampled_from(sorted(LOAD_MANAGERS)))
    chosen: dict[str, Any] = {}
    if name in ("aurora", "baseline", "ctrl") and network.is_tree_of_rows:
        chosen["shedding"] = draw(st.sampled_from(["entry", "network"]))
    if name == "deadline":
        chosen["victims"] = draw(st.sampled_from(["uniform", "oldest"]))
    manager: Manager[Any, Any] = manager_config(name, **chosen).build()
    return manager


def bursty(seed: int, rate_per_s: float, until_s: float) -> FloatArray:
    """Poisson arrivals whose rate changes every half second."""
    random = np.random.default_rng(seed)
    bursts = rate_per_s * random.uniform(0.0, 2.0, int(until_s * 2))
    return np.sort(
        np.concatenate(
            [random.uniform(i / 2, (i + 1) / 2, random.poisson(r / 2)) for i, r in enumerate(bursts)]
        )
    )


@settings(max_examples=tries(25, 150), derandomize=True)
@given(st.data())
def test_every_offered_row_is_admitted_shed_or_waiting_in_every_period_of_every_run(
    data: st.DataObject,
) -> None:
    network = data.draw(networks())
    manager = data.draw(managers(network))
    seed = data.draw(st.integers(0, 10**6))
    rate = data.draw(st.sampled_from([20.0, 150.0, 500.0]))
    target_s = data.draw(st.sampled_from([0.3, 1.0, 2.0]))
    steps = data.draw(st.lists(st.tuples(st.floats(0.1, 4.0), st.floats(0.2, 1.5)), max_size=3))
    plant = SimulatedPlant(
        network,
        [bursty(seed + i, rate, 3.0) for i in range(len(network.sources))],
        QueryClass("gold", delay_target_s=target_s),
        manager.config.period_s(target_s),
        run_s=4.0,
        machine=Machine(headroom=((0.0, 1.0), *sorted(steps))),
        grants=manager.traits.gives_grants,
        seed=seed,
    )
    offered = admitted = shed = departed = 0
    while (seen := plant.observe()) is not None:
        assert plant.offered_rows == plant.admitted_rows + plant.shed_rows + plant.waiting_rows
        assert seen.waiting_rows == plant.waiting_rows >= 0
        offered, admitted = offered + seen.offered_rows, admitted + seen.admitted_rows
        shed, departed = shed + seen.shed_rows, departed + seen.departed_rows
        assert (offered, admitted, shed) == (plant.offered_rows, plant.admitted_rows, plant.shed_rows)
        assert 0.0 <= seen.keep_fraction <= 1.0
        assert seen.busy_s <= seen.period_s + 1e-9
        assert 0.0 <= seen.network_load_s <= seen.queued_load_s + 1e-12
        if len(network.sources) == 1 and seen.cost_per_row_s is not None:
            entry_s = seen.waiting_rows * seen.keep_fraction * seen.cost_per_row_s
            assert seen.queued_load_s - seen.network_load_s == pytest.approx(entry_s, abs=1e-9)
        if network.is_tree_of_rows:
            assert departed <= admitted, "nothing leaves that did not come in"
        plant.apply(manager.decide(seen))
        assert plant.offered_rows == plant.admitted_rows + plant.shed_rows + plant.waiting_rows


def test_the_periods_add_up_to_the_run_and_grants_count_in_the_period_they_govern() -> None:
    manager = manager_config("deadline").build()
    plant = SimulatedPlant(qn_flat(), [bursty(1, 300.0, 20.0)], GOLD, 0.05, 20.0, grants=True)
    seen = []
    while (one := plant.observe()) is not None:
        seen.append(one)
        counted = plant.admitted_rows + plant.shed_rows
        assert sum(o.admitted_rows + o.shed_rows for o in seen) == counted, "up to the last decision"
        plant.apply(manager.decide(one))
    assert len(seen) == 400
    assert sum(o.period_s for o in seen) == pytest.approx(seen[-1].now_s)
    assert sum(o.offered_rows for o in seen) == plant.offered_rows == bursty(1, 300.0, 20.0).size
    assert sum(o.shed_rows for o in seen) > 0
    assert [o.id for o in seen] == list(range(1, 401))


# -- determinism ----------------------------------------------------------------------------------------


def told(seen: Sequence[Observation]) -> list[tuple[object, ...]]:
    arrays = ("output_delay_s", "waiting")
    return [tuple(getattr(o, f.name) for f in fields(o) if f.name not in arrays) for o in seen]


@pytest.mark.parametrize("name", LOAD_MANAGERS)
def test_a_seed_fixes_the_run_and_another_gives_another(name: str) -> None:
    def run(seed: int) -> list[tuple[object, ...]]:
        manager = manager_config(name).build()
        period_s = manager.config.period_s(2.0)
        arrivals = [steady(400.0, 10.0)]
        plant = SimulatedPlant(
            qn_flat(), arrivals, GOLD, period_s, 10.0, grants=manager.traits.gives_grants, seed=seed
        )
        return told(run_to_end(plant, manager))

    assert run(5) == run(5)
    assert run(5) != run(6)


# -- time, cost, queues ---------------------------------------------------------------------------------


def test_rows_leave_in_the_order_they_came_one_service_time_apart() -> None:
    """A single server: when busy, a completion is one cost after the one before, whatever arrives."""
    arrivals = np.sort(np.random.default_rng(3).uniform(0.0, 2.0, 400))
    plant = SimulatedPlant(chain(0.004, 0.006, batch_rows=1), [arrivals], GOLD, 0.5, 10.0)
    recorder = recording(plant)
    run_to_end(plant)
    completed_s = arrivals + recorder.delays_s
    assert completed_s.size == 400
    np.testing.assert_allclose(np.diff(completed_s), 0.010, atol=1e-9)
    assert completed_s[0] == pytest.approx(arrivals[0] + 0.010)


def test_a_row_alone_takes_its_cost_over_the_headroom() -> None:
    machine = Machine(headroom=((0.0, 0.5),))
    plant = SimulatedPlant(chain(0.001, 0.002, 0.003), [np.array([1.0])], GOLD, 0.5, 3.0, machine)
    recorder = recording(plant)
    seen = run_to_end(plant)
    assert recorder.delays_s.tolist() == pytest.approx([0.012])
    assert sum(o.work_s for o in seen) == pytest.approx(0.006)
    assert sum(o.busy_s for o in seen) == pytest.approx(0.012)
    assert seen[1].cost_per_row_s is None or seen[2].cost_per_row_s == pytest.approx(0.006)
    assert seen[0].cost_per_row_s is None, "no row was processed yet"


def test_a_full_queue_pauses_its_upstream_operator_and_loses_nothing() -> None:
    # the output gets one tuple a turn where the others get fifty, and queues hold four
    operators = (
        Operator("in", Kind.SOURCE, 1e-5),
        Operator("x", Kind.OPERATOR, 1e-5, inputs=("in",)),
        Operator("out", Kind.OUTPUT, 1e-2, inputs=("x",), weight=0.02),
    )
    network = Network("narrow", operators, queue_rows=4)
    plant = SimulatedPlant(network, [steady(500.0, 1.0)], GOLD, 0.5, 10.0)
    first, second, *rest = run_to_end(plant)
    assert first.admitted_rows <= 4 + 4 + first.departed_rows
    assert first.waiting_rows > 100, "the rest waits where it came in"
    assert second.network_load_s <= 4 * 0.01002 + 4 * 0.01001 + 1e-9
    assert (plant.admitted_rows, plant.shed_rows, plant.waiting_rows) == (500, 0, 0)
    assert first.departed_rows + second.departed_rows + sum(o.departed_rows for o in rest) == 500
    assert plant.totals()["all"].completed == 500


def test_a_full_queue_does_not_change_a_selectivity() -> None:
    operators = (
        Operator("in", Kind.SOURCE, 1e-5),
        Operator("half", Kind.OPERATOR, 1e-5, 0.5, ("in",)),
        Operator("out", Kind.OUTPUT, 1e-2, inputs=("half",), weight=0.02),
    )
    passed = []
    for queue_rows in (4, 4096):
        network = Network("narrow", operators, queue_rows=queue_rows)
        plant = SimulatedPlant(network, [steady(1000.0, 4.0)], GOLD, 0.5, 60.0)
        run_to_end(plant)
        assert plant.admitted_rows == 4000
        passed.append(plant.totals()["all"].completed)
    assert passed[1] == pytest.approx(2000, rel=0.05)
    assert passed[0] == pytest.approx(passed[1], rel=0.05)


def test_a_queue_smaller_than_what_one_tuple_gives_does_not_stop_the_engine() -> None:
    network = chain(1e-3, 1e-3, 1e-3, selectivity=5.0, queue_rows=4)
    plant = SimulatedPlant(network, [steady(50.0, 2.0)], GOLD, 0.5, 5.0)
    seen = run_to_end(plant)
    assert plant.admitted_rows == 100
    assert seen[-1].network_load_s == 0.0


def test_a_full_batch_shares_the_fixed_cost_that_a_lone_row_pays_alone() -> None:
    network = chain(0.001, 0.002, turn_cost_s=0.005, batch_rows=50)
    lone = run_to_end(SimulatedPlant(network, [steady(10.0, 4.0)], GOLD, 0.5, 4.0))
    assert lone[-1].cost_per_row_s == pytest.approx(0.003 + 2 * 0.005)
    flooded = run_to_end(SimulatedPlant(network, [steady(2000.0, 4.0)], GOLD, 0.5, 4.0))
    assert flooded[-1].cost_per_row_s == pytest.approx(0.003 + 2 * 0.005 / 50)
    processed_per_s = sum(o.departed_rows for o in flooded[2:]) / sum(o.period_s for o in flooded[2:])
    assert processed_per_s == pytest.approx(1 / 0.0032, rel=0.03)


def overloaded(machine: Machine, run_s: float = 10.0) -> list[Observation]:
    return run_to_end(SimulatedPlant(chain(0.002, 0.003), [steady(600.0, run_s)], GOLD, 0.5, run_s, machine))


def test_half_the_headroom_halves_the_throughput() -> None:
    whole = sum(o.departed_rows for o in overloaded(Machine()))
    half = sum(o.departed_rows for o in overloaded(Machine(headroom=((0.0, 0.5),))))
    assert whole == pytest.approx(2000, rel=0.03)
    assert half == pytest.approx(whole / 2, rel=0.03)


def test_a_background_job_takes_headroom_from_when_it_starts_to_when_it_ends() -> None:
    seen = overloaded(Machine(headroom=((0.0, 1.0), (4.0, 0.5), (8.0, 1.0))), run_s=12.0)
    rates = [sum(o.departed_rows for o in seen if a < o.now_s <= a + 3.2) / 3 for a in (0.8, 4.8, 8.8)]
    assert rates == pytest.approx([200, 100, 200], rel=0.05)
    paces = [o.work_s / o.busy_s for o in seen]
    assert paces[4] == pytest.approx(1.0)
    assert paces[12] == pytest.approx(0.5)
    assert paces[20] == pytest.approx(1.0)


def test_a_cost_factor_multiplies_every_cost_from_its_step_on() -> None:
    seen = overloaded(Machine(cost_factor=((0.0, 1.0), (5.0, 2.0))))
    assert seen[5].cost_per_row_s == pytest.approx(0.005)
    assert seen[-1].cost_per_row_s == pytest.approx(0.010)
    assert seen[-1].departed_rows == pytest.approx(seen[5].departed_rows / 2, rel=0.25)
    assert seen[-1].work_s / seen[-1].busy_s == pytest.approx(1.0), "dearer work is not less headroom"


def test_dropping_a_row_costs_its_part_of_the_cpu() -> None:
    """Work on shed rows is time but no useful work: measured headroom falls below the machine's."""
    network = chain(0.002, 0.003, drop_cost_s=0.001)
    plant = SimulatedPlant(network, [steady(300.0, 5.0)], GOLD, 0.5, 5.0)
    shed = busy_s = work_s = 0.0
    while (one := plant.observe()) is not None:
        shed, busy_s, work_s = shed + one.shed_rows, busy_s + one.busy_s, work_s + one.work_s
        plant.apply(Decision(one.id, 0.5, "half"))
    assert shed == pytest.approx(675, rel=0.1)
    assert busy_s - work_s == pytest.approx(shed * 0.001, rel=0.01)


def test_the_keep_fraction_is_the_part_of_the_rows_that_is_admitted() -> None:
    plant = SimulatedPlant(chain(1e-4, 1e-4), [steady(2000.0, 5.0)], GOLD, 0.5, 5.0, seed=4)
    first = plant.observe()
    assert first is not None
    assert first.admitted_rows >= 998, "all of them: nothing is shed unless told"
    plant.apply(Decision(first.id, 0.3, "keep three tenths"))
    rest = []
    while (one := plant.observe()) is not None:
        assert one.keep_fraction == 0.3
        rest.append(one)
    assert sum(o.admitted_rows for o in rest) == pytest.approx(0.3 * 9000, rel=0.05)
    assert sum(o.shed_rows for o in rest) == pytest.approx(0.7 * 9000, rel=0.05)


def test_weighted_round_robin_serves_one_and_a_half_times_as_much() -> None:
    operators = (
        Operator("high.in", Kind.SOURCE, 1e-3, weight=1.5),
        Operator("high.out", Kind.OUTPUT, 1e-3, inputs=("high.in",), weight=1.5, label="high"),
        Operator("low.in", Kind.SOURCE, 1e-3),
        Operator("low.out", Kind.OUTPUT, 1e-3, inputs=("low.in",), label="low"),
    )
    plant = SimulatedPlant(Network("two", operators), [steady(1000.0, 10.0)] * 2, GOLD, 0.5, 10.0)
    run_to_end(plant)
    totals = plant.totals()
    assert totals["high"].completed / totals["low"].completed == pytest.approx(1.5, rel=0.05)
    assert totals["high"].completed + totals["low"].completed == pytest.approx(5000, rel=0.03)


def joined(window_s: float) -> int:
    operators = (
        Operator("left", Kind.SOURCE, 1e-6),
        Operator("right", Kind.SOURCE, 1e-6),
        Operator("join", Kind.JOIN, 1e-6, 0.01, ("left", "right"), window_s=window_s),
        Operator("out", Kind.OUTPUT, 1e-6, inputs=("join",)),
    )
    arrivals = [steady(100.0, 20.0), steady(50.0, 20.0)]
    plant = SimulatedPlant(Network("join", operators), arrivals, GOLD, 0.5, 20.0)
    run_to_end(plant)
    return plant.totals()["all"].completed


def test_a_window_join_outputs_more_the_longer_its_window() -> None:
    # pairs a second: 100 * 50 * 2 * window, of which one in a hundred matches; the windows fill at first
    outputs = {window_s: joined(window_s) for window_s in (0.5, 1.0, 2.0)}
    for window_s, got in outputs.items():
        assert got == pytest.approx(0.01 * 100 * 50 * 2 * window_s * (20.0 - window_s / 2), rel=0.1)


def test_a_join_pays_for_every_tuple_it_probes() -> None:
    operators = (
        Operator("left", Kind.SOURCE, 1e-6),
        Operator("right", Kind.SOURCE, 1e-6),
        Operator("join", Kind.JOIN, 1e-6, 0.0, ("left", "right"), window_s=1.0, probe_cost_s=1e-6),
        Operator("out", Kind.OUTPUT, 1e-6, inputs=("join",)),
    )
    plant = SimulatedPlant(Network("join", operators), [steady(100.0, 10.0)] * 2, GOLD, 1.0, 10.0)
    last = run_to_end(plant)[-1]
    # 200 rows a second, each in the source and in the join, meeting about 100 others
    assert last.work_s == pytest.approx(200 * (1e-6 + 1e-6 + 100 * 1e-6), rel=0.05)


def test_a_join_takes_the_older_of_its_two_heads_first() -> None:
    operators = (
        Operator("left", Kind.SOURCE, 1e-6),
        Operator("right", Kind.SOURCE, 1e-6),
        Operator("join", Kind.JOIN, 1e-2, 0.01, ("left", "right"), window_s=10.0),
        Operator("out", Kind.OUTPUT, 1e-6, inputs=("join",)),
    )
    arrivals = [np.full(100, 1.0), np.full(200, 0.5)]
    plant = SimulatedPlant(Network("join", operators, batch_rows=1), arrivals, GOLD, 0.5, 5.0)
    completed = []
    while plant.observe() is not None:
        completed.append(plant.totals()["all"].completed)
    # the right rows take until 2.5 s and meet an empty window; then every left row meets all 200 of them
    assert completed[:4] == [0, 0, 0, 0]
    assert completed[-1] == 200


def test_the_selectivity_of_a_join_is_measured_not_specified() -> None:
    """Its output depends on its windows: the cost of a row is known only after rows have met."""
    operators = (
        Operator("left", Kind.SOURCE, 1e-6),
        Operator("right", Kind.SOURCE, 1e-6),
        Operator("join", Kind.JOIN, 1e-6, 0.05, ("left", "right"), window_s=1.0),
        Operator("out", Kind.OUTPUT, 1e-4, inputs=("join",)),
    )
    plant = SimulatedPlant(Network("join", operators), [steady(100.0, 10.0)] * 2, GOLD, 1.0, 10.0)
    last = run_to_end(plant)[-1]
    # a row meets a hundred others, of which five match
    assert last.cost_per_row_s == pytest.approx(2e-6 + 5 * 1e-4, rel=0.1)


def test_a_shared_operator_feeds_every_reader() -> None:
    operators = (
        Operator("in", Kind.SOURCE, 1e-4),
        Operator("shared", Kind.OPERATOR, 1e-4, 0.5, ("in",)),
        Operator("a", Kind.OUTPUT, 1e-4, inputs=("shared",), label="a"),
        Operator("b", Kind.OUTPUT, 1e-4, inputs=("shared",), label="b"),
    )
    plant = SimulatedPlant(Network("shared", operators), [steady(100.0, 10.0)], GOLD, 0.5, 11.0)
    seen = run_to_end(plant)
    totals = plant.totals()
    assert totals["a"].completed == totals["b"].completed == pytest.approx(500, rel=0.1)
    filtered = 1000 - totals["a"].completed
    assert sum(o.departed_rows for o in seen) == 2 * totals["a"].completed + filtered
    assert seen[-3].output_delay_s.shape == (2,)


def test_an_operator_that_multiplies_gives_as_many_as_its_selectivity() -> None:
    network = chain(1e-4, 1e-4, 1e-4, selectivity=2.5)
    plant = SimulatedPlant(network, [steady(200.0, 10.0)], GOLD, 0.5, 11.0)
    run_to_end(plant)
    assert plant.totals()["all"].completed == pytest.approx(5000, rel=0.03)


def test_qn_flat_overloaded_processes_what_its_headroom_and_cost_allow() -> None:
    machine = Machine(headroom=((0.0, PHAM_HEADROOM),))
    plant = SimulatedPlant(qn_flat(), [steady(400.0, 40.0)], GOLD, 0.5, 40.0, machine)
    seen = run_to_end(plant)
    late = [o for o in seen if o.now_s > 10.0]
    processed_per_s = sum(o.admitted_rows for o in late) / sum(o.period_s for o in late)
    assert processed_per_s == pytest.approx(0.985 / 4.67e-3, rel=0.02)


# -- what is reported -----------------------------------------------------------------------------------


def test_the_queue_a_manager_sees_is_what_waits_times_the_keep_fraction_now_in_force() -> None:
    plant = SimulatedPlant(chain(0.004, 0.006, batch_rows=1), [steady(400.0, 6.0)], GOLD, 0.5, 6.0)
    for keep in (1.0, 0.5, 0.1, 0.8, 1.0, 0.02):
        one = plant.observe()
        assert one is not None
        assert one.waiting_rows > 0
        source_coefficient_s = one.cost_per_row_s
        assert source_coefficient_s == pytest.approx(0.010)
        assert one.queued_load_s - one.network_load_s == pytest.approx(
            one.waiting_rows * one.keep_fraction * 0.010
        )
        plant.apply(Decision(one.id, keep, "scripted"))


def test_offered_load_is_the_rate_times_the_measured_cost() -> None:
    plant = SimulatedPlant(chain(0.002, 0.003), [steady(100.0, 5.0)], GOLD, 0.5, 5.0)
    last = run_to_end(plant)[-1]
    assert last.offered_load == pytest.approx(0.5, rel=0.03)
    assert last.offered_rate_per_s == pytest.approx(100.0, rel=0.03)


def test_violations_are_summed_over_the_rows_that_are_late() -> None:
    plant = SimulatedPlant(chain(0.004, 0.006), [steady(200.0, 6.0)], GOLD, 0.5, 9.0)
    recorder = recording(plant)
    run_to_end(plant)
    late_s = recorder.delays_s[recorder.delays_s > 2.0] - 2.0
    totals = plant.totals()["all"]
    assert totals.completed == recorder.delays_s.size
    assert totals.delayed == late_s.size > 100
    assert totals.accumulated_s == pytest.approx(late_s.sum())
    assert totals.max_s == pytest.approx(late_s.max())
    assert totals.average_s == pytest.approx(late_s.sum() / recorder.delays_s.size)


@pytest.mark.parametrize("counts", [True, False])
def test_a_filtered_row_has_a_delay_only_where_the_network_says_so(counts: bool) -> None:
    network = chain(1e-4, 1e-4, 1e-4, selectivity=0.4, delay_of_filtered=counts)
    plant = SimulatedPlant(network, [steady(100.0, 10.0)], GOLD, 0.5, 11.0)
    seen = run_to_end(plant)
    assert sum(o.departed_rows for o in seen) == 1000, "for CTRL's count it leaves either way"
    completed = plant.totals()["all"].completed
    assert completed == 1000 if counts else completed == pytest.approx(400, rel=0.15)


def test_a_silent_output_reports_nan_and_no_delay() -> None:
    first, *_, last = run_to_end(SimulatedPlant(chain(1e-3, 1e-3), [np.array([0.1])], GOLD, 0.5, 2.0))
    assert first.output_delay_s.tolist() == pytest.approx([first.delay.mean_s])
    assert np.isnan(last.output_delay_s).all()
    assert last.delay.mean_s is None


def test_a_target_that_changes_is_in_force_from_its_step_on() -> None:
    plant = SimulatedPlant(
        chain(1e-3, 1e-3), [steady(10.0, 3.0)], GOLD, 0.5, 3.0, targets=[(1.0, 5.0), (2.0, 1.0)]
    )
    assert [o.delay_target_s for o in run_to_end(plant)] == [2.0, 5.0, 5.0, 1.0, 1.0, 1.0]


def test_a_run_without_rows_is_a_run() -> None:
    plant = SimulatedPlant(qn_flat(), [np.empty(0)], GOLD, 0.5, 2.0)
    seen = run_to_end(plant)
    assert [o.offered_rows for o in seen] == [0, 0, 0, 0]
    assert all(o.cost_per_row_s is None for o in seen)
    assert plant.observe() is None


# -- grants ---------------------------------------------------------------------------------------------


def granted_plant(queue_rows: int = 4096) -> SimulatedPlant:
    """Rows at 0.01, 0.02, ... 1.00 s that wait until they are granted."""
    network = chain(1e-4, 1e-4, queue_rows=queue_rows)
    return SimulatedPlant(network, [steady(100.0, 1.0)], GOLD, 1.0, 4.0, grants=True)


def test_rows_wait_until_they_are_granted() -> None:
    plant = granted_plant()
    for _ in range(3):
        one = plant.observe()
        assert one is not None
        assert (one.admitted_rows, one.shed_rows, one.waiting_rows) == (0, 0, 100)
        plant.apply(Decision(one.id, 1.0, "no grant"))


def test_a_grant_sheds_what_is_late_admits_up_to_its_cut_and_leaves_the_rest_waiting() -> None:
    plant = granted_plant()
    one = plant.observe()
    assert one is not None
    # before 0.205 s: 20 rows; from there to 0.605 s: 40; the other 40 wait
    plant.apply(Decision(one.id, 1.0, "scripted", grant=Admission(0.605, 0.205, 1.0)))
    assert (plant.admitted_rows, plant.shed_rows, plant.waiting_rows) == (40, 20, 40)
    two = plant.observe()
    assert two is not None
    assert (two.admitted_rows, two.shed_rows, two.departed_rows) == (40, 20, 40)
    plant.apply(Decision(two.id, 0.5, "scripted", grant=Admission(99.0, -np.inf, 0.5)))
    assert plant.waiting_rows == 0
    assert 55 - 15 <= plant.admitted_rows <= 65 + 15


def test_a_grant_into_a_full_queue_leaves_the_rest_waiting() -> None:
    plant = granted_plant(queue_rows=8)
    one = plant.observe()
    assert one is not None
    plant.apply(Decision(one.id, 1.0, "scripted", grant=Admission(1.0, -np.inf, 1.0)))
    assert (plant.admitted_rows, plant.shed_rows, plant.waiting_rows) == (8, 0, 92)


def test_a_grant_with_a_limit_splits_rows_of_one_arrival_time_and_takes_the_oldest_first() -> None:
    arrivals = np.repeat([0.1, 0.2, 0.3], 10)
    plant = SimulatedPlant(chain(1e-3, 1e-3), [arrivals], GOLD, 0.5, 4.0, grants=True)
    one = plant.observe()
    assert one is not None
    # of the ten at 0.1 s, late, all are shed; of the twenty others thirteen come in
    plant.apply(Decision(one.id, 1.0, "scripted", grant=Admission(0.4, 0.15, 1.0, limit_rows=13.0)))
    assert (plant.admitted_rows, plant.shed_rows, plant.waiting_rows) == (13, 10, 7)
    two = plant.observe()
    assert two is not None
    assert two.waiting.arrival_s[0] == pytest.approx(0.3)
    plant.apply(Decision(two.id, 1.0, "scripted", grant=Admission(0.4, 0.0, 1.0, limit_rows=0.0)))
    assert (plant.admitted_rows, plant.shed_rows, plant.waiting_rows) == (13, 10, 7)


def test_a_limit_is_shared_by_the_sources_in_proportion_to_what_waits() -> None:
    operators = [
        operator
        for i in "abc"
        for operator in (
            Operator(f"{i}.in", Kind.SOURCE, 1e-3),
            Operator(f"{i}.out", Kind.OUTPUT, 1e-3, inputs=(f"{i}.in",), label=i),
        )
    ]
    arrivals = [steady(300.0, 1.0), steady(100.0, 1.0), steady(100.0, 1.0)]
    plant = SimulatedPlant(Network("three", tuple(operators)), arrivals, GOLD, 1.0, 8.0, grants=True)
    for limit in (50.0, 50.0, 7.0, 1.0, 1.0, 1.0):
        one = plant.observe()
        assert one is not None
        before = plant.admitted_rows
        plant.apply(Decision(one.id, 1.0, "scripted", grant=Admission(one.now_s, 0.0, 1.0, limit_rows=limit)))
        assert plant.admitted_rows - before == limit
    assert plant.observe() is not None
    completed = [plant.totals()[label].completed for label in "abc"]
    assert sum(completed) == 110
    assert completed == pytest.approx([66, 22, 22], abs=3)


def test_rows_that_are_shed_take_no_share_of_a_limit() -> None:
    operators = (
        Operator("a.in", Kind.SOURCE, 1e-3),
        Operator("a.out", Kind.OUTPUT, 1e-3, inputs=("a.in",)),
        Operator("b.in", Kind.SOURCE, 1e-3),
        Operator("b.out", Kind.OUTPUT, 1e-3, inputs=("b.in",)),
    )
    arrivals = [np.full(900, 0.1), np.full(100, 0.8)]
    plant = SimulatedPlant(Network("two", operators), arrivals, GOLD, 1.0, 4.0, grants=True)
    assert plant.observe() is not None
    plant.apply(Decision(1, 1.0, "scripted", grant=Admission(1.0, 0.5, 1.0, limit_rows=50.0)))
    assert (plant.admitted_rows, plant.shed_rows, plant.waiting_rows) == (50, 900, 50)


def test_the_waiting_rows_are_told_by_arrival_time() -> None:
    arrivals = bursty(5, 300.0, 3.0)
    plant = SimulatedPlant(chain(1e-3, 1e-3), [arrivals], GOLD, 1.5, 3.0, grants=True)
    one = plant.observe()
    assert one is not None
    told_s, rows = one.waiting.arrival_s, one.waiting.rows
    assert one.waiting.total == one.waiting_rows == (arrivals <= one.now_s).sum()
    assert (np.diff(told_s) > 0).all()
    assert told_s[-1] <= one.now_s
    waiting = arrivals[arrivals <= one.now_s]
    for i in (0, 30, 64, 127):
        assert rows[: i + 1].sum() == pytest.approx((waiting <= told_s[i] + 1e-12).sum(), abs=1)


def test_without_grants_no_waiting_rows_are_listed() -> None:
    one = SimulatedPlant(chain(1.0, 1.0), [steady(100.0, 3.0)], GOLD, 1.5, 3.0).observe()
    assert one is not None
    assert one.waiting_rows > 0
    assert one.waiting.rows.size == 0


# -- in-network shedding --------------------------------------------------------------------------------


def test_in_network_shedding_drops_the_load_it_is_told_and_counts_it() -> None:
    plant = SimulatedPlant(borealis(), [steady(150.0, 10.0)] * 3, GOLD, 1.0, 10.0, seed=2)
    for _ in range(4):
        one = plant.observe()
        assert one is not None
        plant.apply(Decision(one.id, 1.0, "keep all"))
    before = (plant.admitted_rows, plant.shed_rows, plant.waiting_rows)
    assert before[1] == 0
    assert one.cost_per_row_s is not None
    plant.apply(Decision(one.id, 1.0, "shed a second", shed_load_s=1.0))
    dropped = plant.shed_rows
    assert dropped >= 1.0 / one.cost_per_row_s, "no tuple inside costs more than one that has just come"
    assert dropped <= 5 * 1.0 / one.cost_per_row_s
    assert plant.offered_rows == plant.admitted_rows + plant.shed_rows + plant.waiting_rows
    two = plant.observe()
    assert two is not None
    assert two.shed_rows == dropped
    assert two.keep_fraction == 1.0, "the queues held enough, the entry stays open"


def test_what_the_queues_do_not_hold_is_shed_at_the_entry() -> None:
    plant = SimulatedPlant(chain(0.001, 0.001), [steady(100.0, 4.0)], GOLD, 1.0, 4.0)
    one = plant.observe()
    assert one is not None
    # 100 rows of 2 ms come in a period: 0.1 s is half of that, and nothing waits
    plant.apply(Decision(one.id, 1.0, "shed", shed_load_s=0.1))
    two = plant.observe()
    assert two is not None
    assert two.keep_fraction == pytest.approx(0.5, abs=0.03)
    assert two.shed_rows == pytest.approx(50, abs=20)


def test_in_network_shedding_is_refused_where_a_tuple_is_not_one_row() -> None:
    operators = (
        Operator("in", Kind.SOURCE, 1e-3),
        Operator("a", Kind.OUTPUT, 1e-3, inputs=("in",)),
        Operator("b", Kind.OUTPUT, 1e-3, inputs=("in",)),
    )
    plant = SimulatedPlant(Network("shared", operators), [steady(100.0, 4.0)], GOLD, 1.0, 4.0)
    one = plant.observe()
    assert one is not None
    with pytest.raises(InvalidInputError) as error:
        plant.apply(Decision(one.id, 1.0, "shed", shed_load_s=0.1))
    assert str(error.value) == (
        "expected: in-network shedding needs a network of one class in which every tuple is one source row; "
        "got: network shared with shared operators, joins or classes; "
        "hint: use entry shedding: shedding='entry'"
    )


# -- bad input ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param(
            {"arrivals_s": []},
            r"network chain needs one arrival array a source \(1\); got: 0; hint: repeat the array",
            id="an_array_missing",
        ),
        pytest.param(
            {"period_s": 0.0}, "period must be a positive number; got: 0.0; hint: a quarter", id="no_period"
        ),
        pytest.param(
            {"run_s": -1.0}, "run length must be a positive number; got: -1.0; hint: in seconds", id="no_run"
        ),
    ],
)
def test_a_plant_that_cannot_run_is_rejected(change: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {
        "network": chain(0.001, 0.001),
        "arrivals_s": [steady(10.0, 1.0)],
        "cls": GOLD,
        "period_s": 0.5,
        "run_s": 1.0,
    }
    with pytest.raises(InvalidInputError, match=message):
        SimulatedPlant(**given | change)


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        pytest.param({"headroom": ()}, r"headroom steps start at 0 s; got: \(\); hint: ", id="no_steps"),
        pytest.param(
            {"headroom": ((1.0, 0.5),)}, r"headroom steps start at 0 s; got: \(\(1.0", id="late_start"
        ),
        pytest.param({"cost_factor": ((0.5, 1.0),)}, "cost factor steps start at 0 s", id="late_factor"),
        pytest.param(
            {"headroom": ((0.0, 1.0), (5.0, 0.0))},
            "headroom must be a positive number; got: 0.0; hint: a background job leaves at least a little",
            id="no_headroom_at_all",
        ),
        pytest.param({"cost_factor": ((0.0, -1.0),)}, "cost factor must be a positive number", id="negative"),
    ],
)
def test_a_machine_that_cannot_run_is_rejected(steps: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        Machine(**steps)


def test_steps_out_of_order_are_rejected() -> None:
    with pytest.raises(
        InvalidInputError, match=r"headroom steps follow each other in time; got: .*; hint: sort"
    ):
        Machine(headroom=((0.0, 1.0), (100.0, 0.5), (50.0, 0.8)))


def test_every_period_has_a_length_to_divide_by_even_where_turns_are_longer_than_periods() -> None:
    # a turn of 50 rows takes 23 ms of QN-flat, a period 12.5 ms
    plant = SimulatedPlant(qn_flat(), [steady(400.0, 5.0)], QueryClass("gold", 0.05), 0.0125, 5.0)
    seen = run_to_end(plant)
    assert min(o.period_s for o in seen) > 1e-6
    assert sum(o.period_s for o in seen) == pytest.approx(seen[-1].now_s)
    assert [o.id for o in seen] == list(range(1, len(seen) + 1))
