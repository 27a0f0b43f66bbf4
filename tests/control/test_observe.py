"""A class as a plant: what its manager sees."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.control.decide.observing import ClassPlant, ClassView
from penstock.vocabulary.model import NO_ROWS, Decision, Observation, QueryClass
from penstock.vocabulary.moment import Moment

NOW = Moment(2.0, 100.0)


def observed(offered: dict[str, int], waiting: dict[str, int], costs_s: dict[str, float]) -> Observation:
    plant = ClassPlant(QueryClass("gold", 2.0), 0.0)
    plant.keep_fraction = 0.5
    for query, rows in offered.items():
        plant.arrived(query, rows)
    return plant.observe(NOW, ClassView(sorted(offered), NO_ROWS, waiting, costs_s, 0.1))


def test_the_load_of_a_class_is_the_sum_over_its_queries_of_rows_at_their_own_cost() -> None:
    found = observed(
        {"select": 1000, "join": 10}, {"select": 100, "join": 30}, {"select": 1e-4, "join": 0.01}
    )
    assert found.offered_load == pytest.approx((1000 * 1e-4 + 10 * 0.01) / 2.0)
    assert found.queued_load_s == pytest.approx(0.1 + 0.5 * (100 * 1e-4 + 30 * 0.01))
    assert (found.offered_rows, found.waiting_rows) == (1010, 130)
    assert found.cost_per_row_s == pytest.approx((0.2 + 0.31) / 1140)


def test_rows_of_a_query_that_is_still_learned_count_as_those_of_the_others() -> None:
    found = observed({"known": 10, "new": 10}, {}, {"known": 0.01})
    assert found.offered_load == pytest.approx(20 * 0.01 / 2.0)
    assert observed({"new": 10}, {"new": 5}, {}).cost_per_row_s is None
    assert observed({}, {}, {"known": 0.01}).cost_per_row_s == pytest.approx(0.01)


def test_an_observation_closes_its_period_and_the_next_begins_with_nothing() -> None:
    plant, view = ClassPlant(QueryClass("gold", 2.0), 0.0), ClassView(["q"], NO_ROWS, {}, {}, 0.0)
    plant.arrived("q", 7)
    plant.decided(5, 2)
    plant.completed("q", np.array([0.5, 1.5]), np.array([3.0, 1.0]), learned_from=True)
    plant.completed("q", np.array([9.0]), np.array([1.0]), learned_from=False)
    plant.capacity_scale = 3.0
    first = plant.observe(NOW, view)
    assert (first.id, first.now_s, first.period_s, first.capacity_scale) == (1, 100.0, 2.0, 3.0)
    assert (first.offered_rows, first.admitted_rows, first.shed_rows, first.departed_rows) == (7, 5, 2, 5)
    assert (first.delay.count, first.delay.max_s) == (4, 1.5), "a warm-up is not learned from"
    assert first.output_delay_s.tolist() == [0.75]
    plant.apply(Decision(1, 0.25, "too much"))
    then = plant.observe(Moment(2.0, 50.0), view)
    assert (then.id, then.keep_fraction, then.capacity_scale) == (2, 0.25, 1.0)
    assert then.period_s == pytest.approx(1e-3), "two within a moment make no rate infinite"
    assert (then.offered_rows, then.admitted_rows, then.shed_rows, then.departed_rows) == (0, 0, 0, 0)
    assert then.delay.count == 0
