"""Shedding that evens out SIC: behind shared streams, beside silent ones, for lower classes. Virtual time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from penstock.control.shed.capacity_view import CapacityView, CapacityViews, Shown
from penstock.control.shed.class_shedding import Chosen, ClassShedding
from penstock.control.tuning import TUNING
from penstock.policies.quality.fairness import jain_index
from penstock.policies.shedding.base import ShedObservation
from penstock.sim.microbatch import Lab

TARGET_S, STW_S, WARM_S, MEASURED_S = 8.0, 20.0, 50.0, 60.0
CLASS = {"target": TARGET_S, "shedder": "balance-sic"}


def mean_sics(cluster: Any, names: list[str], seconds: float = MEASURED_S) -> np.ndarray:
    """Of queries, the mean over so much time, looked at every second."""
    found = []
    for _ in range(round(seconds)):
        cluster.run(1.0)
        queries = {k: q for c in cluster.status().classes.values() for k, q in c.queries.items()}
        found.append([queries[name].sic for name in names])
    return np.array(found, np.float64)


def test_a_query_whose_stream_never_sends_does_not_turn_the_shedder_of_its_class_off(virtual: Lab) -> None:
    cluster = virtual({"gold": CLASS}, stw=STW_S)
    machine = virtual.machine(noise=0.05)
    busy = [
        cluster.add(f"q{i}", "gold", virtual.stream(cluster, 2 / machine.row_s), machine, seed=i)
        for i in range(2)
    ]
    cluster.add("silent", "gold", virtual.stream(cluster, 1000.0, begin=False), machine)
    cluster.run(WARM_S)
    for query in busy:
        assert query.batches[-1].offset.plan.unit == "chosen"
        assert cluster.status().classes["gold"].queries[query.key].shed_reason
    virtual.check_books(cluster)


@pytest.mark.long
def test_behind_a_shared_stream_that_sheds_queries_keep_as_much_information_as_beside_it(
    virtual: Lab,
) -> None:
    cluster = virtual({"gold": {**CLASS, "target": 16.0}}, stw=40.0)
    machine = virtual.machine(noise=0.05)
    per_s = 0.6 / machine.row_s
    cluster.add("writer", "gold", virtual.stream(cluster, per_s, 300.0), machine)
    shared = virtual.shared_stream(cluster, "gold", "writer")
    behind, beside = [f"behind{i}" for i in range(3)], [f"beside{i}" for i in range(3)]
    for i, (one, other) in enumerate(zip(behind, beside, strict=True)):
        cluster.add(one, "gold", shared, machine, seed=i)
        cluster.add(other, "gold", virtual.stream(cluster, per_s, 300.0), machine, seed=9 + i)
    cluster.run(2 * WARM_S)
    found = mean_sics(cluster, behind + beside, 80.0)
    ratio = found[:, :3].mean() / found[:, 3:].mean()
    assert 0.9 <= ratio <= 1.1
    assert np.mean([jain_index(row) for row in found]) >= 0.97
    virtual.check_books(cluster)


def test_rows_behind_a_shared_stream_take_as_much_of_the_window_as_others_and_are_worth_less(
    virtual: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    observe, left = CapacityViews.observe, []

    def recording(views: CapacityViews, view: CapacityView, shown: Shown) -> ShedObservation:
        seen = observe(views, view, shown)
        levels = np.array([views._level(query, view) for query in view.queries])
        at = [query.key for query in view.queries].index("behind")
        if at and 0.0 < view.new_fractions[at] < 1.0:
            worth = float(view.batches[at].sic.sum())
            rest = (seen.reported_sic[at] - worth) / (1.0 - view.new_fractions[at])
            made_up = levels.mean() + TUNING.made_up * (levels[at] - levels.mean())
            left.append((rest / made_up, worth / view.new_fractions[at]))
        return seen

    monkeypatch.setattr(CapacityViews, "observe", recording)
    cluster = virtual({"gold": CLASS}, stw=STW_S)
    machine = virtual.machine(noise=0.05)
    cluster.add("writer", "gold", virtual.stream(cluster, 2 / machine.row_s), machine)
    cluster.add("behind", "gold", virtual.shared_stream(cluster, "gold", "writer"), machine, seed=1)
    cluster.add("beside", "gold", virtual.stream(cluster, 2 / machine.row_s), machine, seed=2)
    cluster.run(WARM_S)
    ratios, worth = np.array(left).T
    assert ratios == pytest.approx(1.0), "of the window stays what the new rows do not take"
    assert np.median(worth) < 0.9, "they are worth what their writer kept"


def test_a_query_does_not_take_from_its_class_for_lower_ones_that_read_what_it_writes(virtual: Lab) -> None:
    bulk = {"target": TARGET_S, "priority": 0.1, "shedder": "random"}
    cluster = virtual({"gold": {**CLASS, "priority": 6.0}, "bulk": bulk}, stw=STW_S)
    machine = virtual.machine(noise=0.05)
    cluster.add("writer", "gold", virtual.stream(cluster, 1 / machine.row_s, 200.0), machine)
    cluster.add("beside", "gold", virtual.stream(cluster, 1 / machine.row_s, 200.0), machine, seed=2)
    cluster.add("behind", "bulk", virtual.shared_stream(cluster, "gold", "writer"), machine, seed=3)
    cluster.run(WARM_S)
    writer, beside, behind = mean_sics(cluster, ["writer", "beside", "behind"]).mean(axis=0)
    assert behind < 0.5 * writer, "there is little for the lower class"
    assert writer == pytest.approx(beside, rel=0.15)


def test_what_one_query_lacks_is_made_up_for_in_batches_of_two_turns_at_most(
    virtual: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose, longest = ClassShedding.choose, []

    def recording(shedding: Any, *args: Any) -> Chosen | None:
        chosen = choose(shedding, *args)
        if chosen is not None:
            _, (query, *_), _, _, turn, _, _ = args
            longest.append(query.cost.batch_s(chosen.kept.rows) / turn.of(query.key))
        return chosen

    monkeypatch.setattr(ClassShedding, "choose", recording)
    cluster = virtual({"gold": CLASS}, stw=STW_S)
    machine = virtual.machine(noise=0.3)
    rates = np.array([1.0, 1.5, 2.5, 4.0])
    logs = [virtual.stream(cluster, 8 * rate / rates.sum() / machine.row_s, 200.0) for rate in rates]
    queries = [cluster.add(f"q{i}", "gold", log, machine, seed=i) for i, log in enumerate(logs)]
    cluster.run(WARM_S)
    found = mean_sics(cluster, [query.key for query in queries])
    assert len(longest) > 20
    assert max(longest) <= TUNING.longest + 1e-6
    assert np.mean([jain_index(row) for row in found]) >= 0.97


def test_a_stream_whose_rows_wait_is_not_silent_however_long_its_query_has_no_batch(virtual: Lab) -> None:
    cluster = virtual({"gold": {"target": 20.0}}, stw=1.0)
    cluster.add("q", "gold", virtual.stream(cluster, 1000.0, 300.0))
    cluster.run(50.0)
    for _ in range(30):
        cluster.run(1.0)
        assert cluster.status().classes["gold"].queries["q"].silent == ()


@pytest.mark.parametrize("seed", [0, 7])
def test_coins_of_a_class_have_the_seed_of_the_flow(virtual: Lab, seed: int) -> None:
    cluster = virtual({"gold": {"target": TARGET_S, "shedder": "random"}}, seed=seed)
    assert cluster.engine.classes["gold"].shedder.seed == seed
