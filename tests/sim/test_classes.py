"""Several classes on one engine: quotas, implicit sharing, shared streams, DILoS."""

from __future__ import annotations

from dataclasses import replace
from math import ceil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.benches import bench_module
from tests.capacity import DILOS

from penstock.control.decide.cycle import Cycle
from penstock.policies.capacity import capacity_policy
from penstock.policies.load import manager_config
from penstock.sim.classes import ClassesScenario, ClassResult, simulate_classes
from penstock.sim.engine.machine import Machine
from penstock.sim.engine.plant import Engine
from penstock.sim.workloads.network import Kind, Network, Operator
from penstock.sim.workloads.networks import PHAM_HEADROOM
from penstock.vocabulary.errors import InvalidInputError, UnknownNameError
from penstock.vocabulary.model import FloatArray, QueryClass

networks = bench_module("pham2016.class_networks")
CLASSES, qn_a = networks.CLASSES, networks.qn_a

COST_S = 0.001
HIGH, LOW = QueryClass("high", 1.0, 3.0, "aloma"), QueryClass("low", 1.0, 1.0, "aloma")


def chain(cls: str) -> list[Operator]:
    """A source and an output: two times the cost a row."""
    return [
        Operator(f"{cls}.source", Kind.SOURCE, COST_S, label=cls, cls=cls),
        Operator(f"{cls}.output", Kind.OUTPUT, COST_S, inputs=(f"{cls}.source",), label=cls, cls=cls),
    ]


def two_chains() -> Network:
    return Network("two", (*chain("high"), *chain("low")), batch_rows=5)


def shared_chain(queue_rows: int = 100) -> Network:
    """The low class reads what the high class's select lets through."""

    def of(cls: str, part: str, kind: Kind, *inputs: str, cost_s: float = COST_S) -> Operator:
        return Operator(f"{cls}.{part}", kind, cost_s, inputs=inputs, label=cls, cls=cls)

    return Network(
        "shared",
        (
            of("high", "source", Kind.SOURCE),
            of("high", "select", Kind.OPERATOR, "high.source"),
            of("high", "output", Kind.OUTPUT, "high.select"),
            of("low", "entry", Kind.OPERATOR, "high.select", cost_s=4 * COST_S),
            of("low", "output", Kind.OUTPUT, "low.entry"),
        ),
        batch_rows=5,
        queue_rows=queue_rows,
    )


def even(rate_per_s: float, seconds: float = 30.0) -> FloatArray:
    return np.arange(0.0, seconds, 1.0 / rate_per_s)


def scenario(*rates_per_s: float, **changes: object) -> ClassesScenario:
    plain = ClassesScenario(two_chains(), [even(rate) for rate in rates_per_s], (HIGH, LOW), run_s=30.0)
    return replace(plain, **changes)  # type: ignore[arg-type]


def completed(result: ClassResult) -> int:
    return result.delay.count


# -- quotas --------------------------------------------------------------------------------------------


def test_classes_that_always_have_work_get_time_by_priority() -> None:
    results = simulate_classes(scenario(2000.0, 2000.0, managers="none"))
    done = {name: completed(result) for name, result in results.items()}
    assert done["high"] / (done["high"] + done["low"]) == pytest.approx(0.75, abs=0.01)
    assert sum(done.values()) == pytest.approx(30.0 / (2 * COST_S), rel=0.02)


def test_a_class_that_runs_dry_passes_its_time_on() -> None:
    results = simulate_classes(scenario(50.0, 2000.0, managers="none"))
    assert completed(results["high"]) == pytest.approx(50 * 30, abs=2)
    assert completed(results["low"]) == pytest.approx((30 - 50 * 30 * 2 * COST_S) / (2 * COST_S), rel=0.02)
    assert results["high"].delay.p99_s is not None
    assert results["high"].delay.p99_s < 0.05


def test_one_class_on_the_engine_of_several_is_the_engine_of_one() -> None:
    """An idle second class changes nothing."""
    results = simulate_classes(scenario(400.0, 1e-3, managers="none"))
    alone = Engine(Network("one", tuple(chain("high")), batch_rows=5), [even(400.0)], [HIGH], run_s=30.0)
    while not alone.over:
        alone.advance(0.15)
    assert completed(results["high"]) == alone.views["high"].histogram.stats().count
    assert results["high"].delay.p95_s == pytest.approx(alone.views["high"].histogram.stats().p95_s, rel=0.01)


# -- managers ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("manager", ["aloma", "seamless", "deadline"])
def test_separate_managers_shed_only_the_class_that_is_overloaded(manager: str) -> None:
    classes = (replace(HIGH, manager=manager), replace(LOW, manager=manager))
    results = simulate_classes(scenario(200.0, 600.0, classes=classes))
    assert results["high"].shed == 0
    # the low class has what the high one leaves, 0.6 of the machine, for a load of 1.2
    assert 45.0 < results["low"].loss_percent < 65.0
    assert results["low"].delay.mean_s is not None
    assert results["low"].delay.mean_s < 1.1 * LOW.delay_target_s


def test_a_common_manager_sheds_all_alike() -> None:
    results = simulate_classes(scenario(200.0, 600.0, managers="common"))
    losses = [result.loss_percent for result in results.values()]
    assert losses[0] > 5.0
    assert losses[0] == pytest.approx(losses[1], abs=5.0)


def test_redistribution_gives_the_low_class_what_the_high_one_does_not_need() -> None:
    results = simulate_classes(scenario(100.0, 2000.0, policy=capacity_policy("dilos"), every=2))
    assert results["low"].shares[0] == pytest.approx(0.25)
    assert results["low"].shares[-1] > 0.6
    assert results["high"].shed == 0
    assert all(
        high + low == pytest.approx(1.0)
        for high, low in zip(results["high"].shares, results["low"].shares, strict=True)
    )


def test_a_burst_takes_its_share_back_within_one_redistribution_cycle() -> None:
    every, period_s, burst_s = 4, 0.15, 15.0
    quiet, busy = even(50.0, burst_s), burst_s + even(340.0, 15.0)
    results = simulate_classes(
        replace(
            scenario(1.0, 2000.0, policy=DILOS, every=every, period_s=period_s),
            arrivals_s=[np.concatenate((quiet, busy)), even(2000.0)],
        )
    )
    shares = results["high"].shares
    before = int(burst_s / period_s)
    assert shares[before - 1] < 0.3
    # load 0.68 of the machine: within the first redistribution after the burst began it has that again
    assert shares[before + every] > 0.6
    assert results["high"].loss_percent < 1.0


def test_a_class_that_has_more_than_it_needs_is_known_by_what_it_needs_in_full_batches() -> None:
    network = replace(two_chains(), turn_cost_s=2 * COST_S)
    engine = Engine(network, [even(50.0), even(50.0)], (HIGH, LOW), 30.0)
    engine.set_quotas({"high": 0.0075, "low": 0.0025})
    for _ in range(20):
        engine.advance(0.15)
        for view in engine.views.values():
            seen = view.observe()
    high = engine.views["high"]
    # a row at a time costs 2 x (1 + 2) ms, in batches of five 2 x (1 + 2 / 5) ms
    assert seen.offered_load == pytest.approx(50 * 2 * 3 * COST_S, rel=0.15)
    assert high.full_batch_load == pytest.approx(50 * 2 * 1.4 * COST_S, rel=0.15)


def test_dilos_on_the_thesis_s_network_loses_less_than_half_of_what_fixed_quotas_lose() -> None:
    network, seconds = qn_a(), 20.0
    sources = [even(950.0, seconds) + i / (950 * 39) for i in range(len(network.sources))]
    losses = {}
    for policy in ("cqc", "dilos"):
        results = simulate_classes(
            ClassesScenario(
                network,
                sources,
                CLASSES,
                "separate",
                capacity_policy(policy),
                headroom=PHAM_HEADROOM,
                round_s=0.002,
                run_s=seconds,
                machine=Machine(((0.0, PHAM_HEADROOM),)),
            )
        )
        losses[policy] = results["class3"].loss_percent
        assert results["class1"].shed == 0
        assert results["class2"].loss_percent < 1.0
        for cls in CLASSES[:2]:
            assert (results[cls.name].delay.p95_s or 0.0) < cls.delay_target_s
    assert losses["dilos"] < 0.5 * losses["cqc"]


# -- shared streams ------------------------------------------------------------------------------------


def test_a_full_shared_queue_holds_up_the_higher_class() -> None:
    """pham2016 fig. 5: without load management the low class's congestion reaches the high class."""
    alone = scenario(150.0, managers="none", network=shared_chain(), arrivals_s=[even(150.0)])
    results = simulate_classes(alone)
    assert results["high"].delay.max_s is not None
    assert results["high"].delay.max_s > 3.0


def test_with_a_load_manager_a_class_is_not_held_up_by_the_one_it_feeds() -> None:
    # claim 1: the low class needs room for target / cost rows; half as many more for swings of its delay
    room = ceil(1.5 * LOW.delay_target_s / (5 * COST_S))
    managed = scenario(150.0, network=shared_chain(room), arrivals_s=[even(150.0)])
    results = simulate_classes(managed)
    assert results["high"].delay.max_s is not None
    assert results["high"].delay.max_s < 0.3
    assert results["high"].shed == 0
    assert results["low"].shed > 0
    assert results["low"].offered == results["low"].admitted + results["low"].shed + results["low"].waiting


@pytest.mark.long
@settings(max_examples=15)
@given(
    target_s=st.sampled_from([0.2, 0.5, 1.0]),
    rate_per_s=st.floats(100.0, 240.0),
    factor=st.floats(2.0, 8.0),
    manager=st.sampled_from(["aloma", "seamless"]),
)
def test_claim_1_bounds_the_shared_queue(
    target_s: float, rate_per_s: float, factor: float, manager: str
) -> None:
    """pham2016 3.2.2: if no tuple of the low class takes longer than d, no more than R = d / c of them wait.

    d is the longest response time of the run, and c the CPU time of a tuple of the low class. Waiting rows
    that its shedder will drop cost nothing, so they count by the smallest keep fraction until they are read.
    """
    network, cost_s = shared_chain(100_000), factor * COST_S
    dear = {"low.entry": cost_s}
    operators = tuple(replace(op, cost_s=dear.get(op.name, op.cost_s)) for op in network.operators)
    low = replace(LOW, delay_target_s=target_s)
    engine = Engine(replace(network, operators=operators), [even(rate_per_s, 20.0)], [HIGH, low], 20.0)
    engine.set_quotas({"high": 0.0075, "low": 0.0025})
    view = engine.views["low"]
    cycle = Cycle(view, manager_config(manager, headroom=0.25).build())
    period_s, waiting, keeps = 0.05, [], []
    while not engine.over:
        engine.advance(period_s)
        step = cycle.step()
        assert step is not None
        waiting.append(view.waiting_rows)
        keeps.append(step.applied.keep_fraction)
    longest_s = view.histogram.stats().max_s
    assert longest_s is not None
    ahead = int(longest_s / period_s) + 2
    bound = longest_s / (cost_s + COST_S)
    for i, rows in enumerate(waiting[:-ahead]):
        admitted = rows * min(keeps[i : i + ahead])
        # coins are random: three standard deviations
        assert admitted <= bound + 3.0 * np.sqrt(admitted + 1.0)


# -- mistakes ------------------------------------------------------------------------------------------


def test_a_class_without_operators_and_an_operator_without_a_class_are_refused() -> None:
    with pytest.raises(UnknownNameError, match=r"operator low\.source: class"):
        Engine(two_chains(), [even(1.0)] * 2, [HIGH, replace(LOW, name="other")], 1.0)
    with pytest.raises(InvalidInputError, match="a class has operators; got: other has none"):
        Engine(two_chains(), [even(1.0)] * 2, [HIGH, LOW, replace(LOW, name="other")], 1.0)


def test_what_another_class_produced_does_not_enter_through_a_join() -> None:
    first, second = chain("high")[0], chain("low")[0]
    join = Operator("low.join", Kind.JOIN, COST_S, 0.1, ("high.source", "low.source"), 1.0, cls="low")
    output = Operator("low.output", Kind.OUTPUT, COST_S, inputs=("low.join",), cls="low")
    with pytest.raises(InvalidInputError, match="put a project in front of it"):
        Network("wrong", (first, second, join, output))


def test_a_manager_that_gives_grants_does_not_read_from_another_class() -> None:
    low = replace(LOW, manager="deadline")
    wrong = scenario(1.0, network=shared_chain(), classes=(HIGH, low), arrivals_s=[even(1.0)])
    with pytest.raises(InvalidInputError, match="choose a manager with a keep fraction"):
        simulate_classes(wrong)
