"""A class as a plant: what its manager sees."""

from __future__ import annotations

import pytest

from penstock.control.decide.observing import ClassPlant
from penstock.vocabulary.model import NO_ROWS, Observation, QueryClass


def observed(offered: dict[str, int], waiting: dict[str, int], costs_s: dict[str, float]) -> Observation:
    plant = ClassPlant(QueryClass("gold", 2.0), 0.0)
    plant.keep_fraction = 0.5
    for query, rows in offered.items():
        plant.came(query, rows)
    plant.prepare(100.0, 2.0, sorted(offered), NO_ROWS, waiting, costs_s, 0.1, None)
    found = plant.observe()
    assert found is not None
    return found


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
