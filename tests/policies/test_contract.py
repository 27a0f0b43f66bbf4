"""What every load manager promises: sane decisions on any observation, snapshots that go on identically."""

from __future__ import annotations

import json
import math
from dataclasses import fields, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.policies.load import LOAD_MANAGERS, Manager, manager_config
from penstock.sim.engine.plant import Machine, SimulatedPlant
from penstock.sim.workloads.networks import qn_flat
from penstock.testing import observation
from penstock.vocabulary.errors import InvalidInputError
from penstock.vocabulary.model import Decision, DelayStats, Observation, QueryClass, WaitingRows

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in LOAD_MANAGERS},
    "aurora_in_the_network": ("aurora", {"shedding": "network"}),
    "baseline_in_the_network": ("baseline", {"shedding": "network"}),
    "ctrl_in_the_network": ("ctrl", {"shedding": "network"}),
    "deadline_oldest": ("deadline", {"victims": "oldest"}),
}


def build(variant: str) -> Manager[Any, Any]:
    name, chosen = VARIANTS[variant]
    manager: Manager[Any, Any] = manager_config(name, **chosen).build()
    return manager


@st.composite
def observations(draw: st.DrawFn) -> Observation:
    """Anything a plant could report, likely or not, as long as it adds up."""
    now_s, period_s = draw(st.floats(1.0, 1e5)), draw(st.floats(1e-3, 10.0))
    keep, cost_s = draw(st.floats(0.0, 1.0)), draw(st.none() | st.floats(1e-7, 1.0))
    rows = st.integers(0, 1_000_000)
    offered, waiting = draw(rows), draw(rows)
    network_load_s = draw(st.floats(0.0, 1e4))
    busy_s = period_s * draw(st.floats(0.0, 1.0))
    delays = draw(st.lists(st.floats(0.0, 1e3), max_size=5))
    outputs = draw(st.lists(st.floats(0.0, 1e3) | st.just(math.nan), min_size=2, max_size=2))
    ages = sorted(draw(st.lists(st.floats(0.0, 100.0), max_size=6)), reverse=True)
    return observation(
        id=draw(st.integers(1, 10**9)),
        now_s=now_s,
        period_s=period_s,
        delay_target_s=draw(st.floats(0.01, 60.0)),
        keep_fraction=keep,
        offered_rows=offered,
        admitted_rows=draw(rows),
        shed_rows=draw(rows),
        departed_rows=draw(rows),
        waiting_rows=waiting,
        offered_load=offered / period_s * (cost_s or 0.0),
        queued_load_s=network_load_s + waiting * keep * (cost_s or 0.0),
        network_load_s=network_load_s,
        cost_per_row_s=cost_s,
        work_s=busy_s * draw(st.floats(0.0, 4.0)),
        busy_s=busy_s,
        delay=DelayStats.of(np.array(delays)),
        output_delay_s=np.array(outputs),
        waiting=WaitingRows(now_s - np.array(ages), np.ones(len(ages)) * (waiting / max(1, len(ages)))),
    )


def check(decision: Decision, seen: Observation) -> None:
    assert decision.observation_id == seen.id
    assert 0.0 <= decision.keep_fraction <= 1.0
    assert decision.reason.strip()
    assert "\n" not in decision.reason
    assert "nan" not in decision.reason
    assert math.isfinite(decision.shed_load_s)
    assert decision.shed_load_s >= 0.0
    for number in (decision.expected.delay_s, decision.expected.admitted_rows, decision.headroom):
        assert number is None or (math.isfinite(number) and number >= 0.0)
    assert decision.headroom is None or decision.headroom > 0.0
    if decision.grant is not None:
        assert decision.grant.keep_fraction == decision.keep_fraction
        assert decision.grant.cut_s <= seen.now_s
        assert decision.grant.shed_before_s <= seen.now_s


@pytest.mark.parametrize("variant", VARIANTS)
@settings(max_examples=20, derandomize=True)
@given(seen=st.lists(observations(), min_size=1, max_size=6))
def test_any_observations_are_answered_with_a_sane_decision(variant: str, seen: list[Observation]) -> None:
    manager = build(variant)
    for one in seen:
        before = [getattr(one, f.name) for f in fields(one)]
        arrays = [one.output_delay_s.copy(), one.waiting.arrival_s.copy(), one.waiting.rows.copy()]
        check(manager.decide(one), one)
        assert all(a is getattr(one, f.name) for a, f in zip(before, fields(one), strict=True))
        after = [one.output_delay_s, one.waiting.arrival_s, one.waiting.rows]
        assert all(np.array_equal(a, b, equal_nan=True) for a, b in zip(arrays, after, strict=True))


@pytest.mark.parametrize("variant", VARIANTS)
@settings(max_examples=12, derandomize=True)
@given(seen=st.lists(observations(), min_size=2, max_size=8), data=st.data())
def test_a_manager_restored_from_json_goes_on_identically_after_any_observations(
    variant: str, seen: list[Observation], data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(seen)))
    manager, other = build(variant), build(variant)
    for one in seen[:at]:
        manager.decide(one)
    written = json.dumps(manager.snapshot(), allow_nan=False)
    other.restore(json.loads(written))
    for one in seen[at:]:
        assert other.decide(one) == manager.decide(one)
    assert json.dumps(other.snapshot()) == json.dumps(manager.snapshot())


@cache
def driven(variant: str) -> tuple[list[Observation], list[Decision], list[str]]:
    """A run on the simulated plant through bursts and calm: observations, decisions, snapshots as JSON."""
    name, _ = VARIANTS[variant]
    manager, network = build(variant), qn_flat()
    gaps = np.random.default_rng(7).exponential(1.0, 12_000)
    rate = np.where(np.arange(12_000) // 1500 % 2 == 0, 500.0, 120.0)
    plant = SimulatedPlant(
        network,
        [np.cumsum(gaps / rate)],
        QueryClass("gold", delay_target_s=2.0, manager=name),
        manager.config.period_s(2.0),
        run_s=40.0,
        machine=Machine(headroom=((0.0, 0.95), (20.0, 0.6))),
        grants=manager.traits.gives_grants,
        seed=3,
    )
    seen: list[Observation] = []
    decisions: list[Decision] = []
    snapshots: list[str] = []
    while (one := plant.observe()) is not None:
        snapshots.append(json.dumps(manager.snapshot(), allow_nan=False))
        seen.append(one)
        decisions.append(manager.decide(one))
        plant.apply(decisions[-1])
    return seen, decisions, snapshots


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_decision_of_a_run_is_sane_and_says_why(variant: str) -> None:
    seen, decisions, _ = driven(variant)
    assert len(seen) >= 80
    for one, decision in zip(seen, decisions, strict=True):
        check(decision, one)
    assert sum(one.shed_rows for one in seen) > 500, "the run overloads every manager"


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_manager_restored_mid_run_makes_the_decisions_of_the_one_that_ran_on(variant: str) -> None:
    seen, decisions, snapshots = driven(variant)
    for at in (0, 1, len(seen) // 3, len(seen) // 2, len(seen) - 1):
        manager = build(variant)
        manager.restore(json.loads(snapshots[at]))
        assert [manager.decide(one) for one in seen[at:]] == decisions[at:]


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_snapshot_stays_as_it_was_taken(variant: str) -> None:
    seen, _, snapshots = driven(variant)
    manager = build(variant)
    half = len(seen) // 2
    manager.restore(json.loads(snapshots[half]))
    taken = manager.snapshot()
    for one in seen[half : half + 20]:
        manager.decide(one)
    assert json.dumps(taken) == snapshots[half]


@pytest.mark.parametrize("name", LOAD_MANAGERS)
def test_a_snapshot_names_its_format_and_its_manager(name: str) -> None:
    snapshot = build(name).snapshot()
    assert set(snapshot) == {"format", "manager", "state"}
    assert (snapshot["format"], snapshot["manager"]) == (1, name)


def other_than(name: str) -> str:
    return next(other for other in LOAD_MANAGERS if other != name)


@pytest.mark.parametrize("name", LOAD_MANAGERS)
@pytest.mark.parametrize(
    ("change", "rule"),
    [
        pytest.param(lambda s: {**s, "format": 2}, "a snapshot has format 1; got: 2", id="another_format"),
        pytest.param(lambda s: {"state": s["state"]}, "a snapshot has format 1; got: None", id="no_format"),
        pytest.param(
            lambda s: {**s, "manager": other_than(s["manager"])},
            "a snapshot for .* was taken from .*; hint: restore its own",
            id="another_manager",
        ),
        pytest.param(
            lambda s: {**s, "state": {**s["state"], "surplus": 1}},
            "a snapshot holds every field of the state; got: .*surplus.*; hint: fields: ",
            id="a_field_too_many",
        ),
        pytest.param(
            lambda s: {**s, "state": "lost"},
            "a snapshot holds every field of the state; got: lost",
            id="no_fields_at_all",
        ),
    ],
)
def test_a_snapshot_that_does_not_fit_is_refused_and_changes_nothing(
    name: str, change: Any, rule: str
) -> None:
    manager = build(name)
    before = json.dumps(manager.snapshot())
    with pytest.raises(InvalidInputError, match=rule):
        manager.restore(change(json.loads(before)))
    assert json.dumps(manager.snapshot()) == before


@pytest.mark.parametrize("name", [name for name in LOAD_MANAGERS if name != "aurora"])
def test_a_snapshot_that_lacks_a_field_is_refused(name: str) -> None:
    snapshot = build(name).snapshot()
    state: Any = snapshot["state"]
    for field in list(state):
        lacking = {key: value for key, value in state.items() if key != field}
        with pytest.raises(InvalidInputError, match="a snapshot holds every field of the state"):
            build(name).restore({**snapshot, "state": lacking})


@pytest.mark.parametrize("name", LOAD_MANAGERS)
def test_a_snapshot_without_a_state_is_refused(name: str) -> None:
    with pytest.raises(InvalidInputError, match="a snapshot holds every field of the state"):
        build(name).restore({"format": 1, "manager": name})


@pytest.mark.parametrize("name", LOAD_MANAGERS)
def test_a_manager_knows_its_own_name_and_a_period_for_a_target(name: str) -> None:
    manager = build(name)
    assert manager.name == name
    assert 0.0 < manager.traits.period_s(2.0) <= 0.5
    assert manager.traits.period_s(4.0) == pytest.approx(2 * manager.traits.period_s(2.0))
    assert manager.config.period_s(2.0) == manager.traits.period_s(2.0)


@pytest.mark.parametrize("name", LOAD_MANAGERS)
def test_a_manager_says_with_which_setting_a_user_tells_it_its_headroom(name: str) -> None:
    config = manager_config(name)
    has_one = "headroom" in {each.name for each in fields(config)}
    assert config.traits().headroom_setting == ("headroom" if has_one else None)
    assert has_one == (name != "deadline"), "Deadline measures its headroom"


@pytest.mark.parametrize("name", LOAD_MANAGERS)
def test_a_configuration_is_frozen_and_builds_independent_managers(name: str) -> None:
    config = manager_config(name)
    with pytest.raises(AttributeError):
        config.max_drop_fraction = 0.5
    one, other = config.build(), config.build()
    before = json.dumps(other.snapshot())
    one.decide(observation(offered_rows=400, admitted_rows=400, output_delay_s=np.array([3.0]), work_s=0.1))
    assert json.dumps(other.snapshot()) == before


@pytest.mark.parametrize("name", ["seamless", "aloma", "deadline"])
def test_managers_that_learn_their_headroom_scale_it_with_a_redistribution(name: str) -> None:
    """pham2016 eq. 6.1: H_new = T_new / T * H."""
    managers = [manager_config(name).build() for _ in range(2)]
    busy = observation(offered_rows=50, offered_load=0.5, work_s=0.2, busy_s=0.25)
    idle = observation(id=busy.id + 1)
    before, halved = [
        [manager.decide(seen).headroom for seen in (busy, replace(idle, capacity_scale=scale))]
        for manager, scale in zip(managers, (1.0, 0.5), strict=True)
    ]
    assert before[0] == halved[0]
    assert before[1] is not None
    assert halved[1] == pytest.approx(before[1] / 2)
