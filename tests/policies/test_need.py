"""What queries need of the capacity: `penstock plan`'s arithmetic, by hand and in general."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.policies.capacity.need import ClassCost, QueryCost, plan_capacity
from penstock.vocabulary.errors import InvalidInputError


def test_a_query_needs_its_rows_and_the_starts_of_its_batches() -> None:
    # 100,000 rows/s at 3 us are 0.3; a batch of 0.2 s each cycle of target / (1 + e)
    query = QueryCost("hot", 100_000, 3e-6, 0.2)
    assert query.need(2.0) == pytest.approx((0.3 + 0.1) / 0.9)
    assert query.need(2.0, rows=False) == pytest.approx(0.1 / 0.9)
    assert query.need(0.2) == math.inf


@given(st.floats(0.0, 1e6), st.floats(0.0, 1e-5), st.floats(0.0, 1.0), st.floats(0.1, 100.0))
def test_with_what_it_needs_a_row_that_just_missed_a_batch_is_in_time(
    rate_per_s: float, row_s: float, fixed_s: float, target_s: float
) -> None:
    query = QueryCost("q", rate_per_s, row_s, fixed_s)
    need = query.need(target_s)
    if need < 100.0:
        cycle_s = target_s / (1.0 + need)
        batch_s = fixed_s + rate_per_s * cycle_s * row_s
        assert batch_s == pytest.approx(need * cycle_s, abs=1e-9)
        assert cycle_s + batch_s == pytest.approx(target_s)


def three(bronze_rate: float = 50_000) -> list[ClassCost]:
    def of(name: str, priority: float, rate: float) -> ClassCost:
        return ClassCost(name, priority, 4.0, [QueryCost(f"{name}_query", rate, 4e-6, 0.2)])

    return [of("gold", 6, 50_000), of("silver", 3, 25_000), of("bronze", 1, bronze_rate)]


def test_a_plan_says_what_each_class_needs_has_and_could_have() -> None:
    gold, silver, bronze = plan_capacity(three())
    assert gold.gives == pytest.approx(0.6)
    assert gold.needs == pytest.approx(0.25 / 0.95)
    assert gold.queries == {"gold_query": gold.needs}
    assert silver.needs == pytest.approx(0.15 / 0.95)
    assert bronze.gives == pytest.approx(0.1)
    assert bronze.free == pytest.approx(0.9 - gold.needs - silver.needs)
    assert bronze.shed_fraction == 0.0
    assert gold.least_target_s is None


def test_what_a_higher_class_lacks_is_not_free_for_a_lower_one() -> None:
    classes = three()
    classes[1] = ClassCost("silver", 3, 4.0, [QueryCost("silver_query", 110_000, 4e-6, 0.2)])
    _, silver, bronze = plan_capacity(classes)
    assert silver.needs > silver.gives
    assert silver.shed_fraction == 0.0
    assert bronze.free == pytest.approx(0.6 - 0.25 / 0.95 - (silver.needs - 0.3))


def test_a_class_that_needs_more_than_there_is_is_told_what_would_be_shed() -> None:
    bronze = plan_capacity(three(bronze_rate=500_000))[2]
    assert bronze.needs > 2.0
    assert bronze.shed_fraction == pytest.approx(1 - (bronze.gives + bronze.free) / bronze.needs)


def test_a_target_that_no_allocation_can_meet_is_said_with_what_could_be() -> None:
    """Twelve queries of 0.2 s each cannot all run within a second."""
    many = [QueryCost(f"q{i}", 10.0, 1e-6, 0.2) for i in range(12)]
    (plan,) = plan_capacity([ClassCost("gold", 1, 1.0, many)])
    assert plan.least_target_s is not None
    starting = 0.2 / plan.least_target_s
    assert 12 * starting / (1 - starting) == pytest.approx(1.0)
    (fine,) = plan_capacity([ClassCost("gold", 1, plan.least_target_s * 1.01, many)])
    assert fine.least_target_s is None


def test_wrong_costs_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="query q: rate must not be negative"):
        QueryCost("q", -1.0, 0.0, 0.0)
    with pytest.raises(InvalidInputError, match="priority"):
        ClassCost("a", 0.0, 1.0, [])
    with pytest.raises(InvalidInputError, match="capacity"):
        plan_capacity([], 0.0)


def test_a_plan_can_be_said_in_sentences() -> None:
    gold, _, bronze = plan_capacity(three(bronze_rate=500_000))
    assert gold.sentences() == ["it needs 0.26 of the time: its share gives 0.60, 0.14 more is free"]
    assert bronze.sentences()[-1] == "about 73 % of its input would be shed"
    many = [QueryCost(f"q{i}", 10.0, 1e-6, 0.2) for i in range(12)]
    (plan,) = plan_capacity([ClassCost("gold", 1, 1.0, many)])
    assert plan.sentences()[-1] == (
        "no allocation meets its target of 1 s, at least 2.6 s could: too many queries"
    )
    (hopeless,) = plan_capacity([ClassCost("gold", 1, 0.1, [QueryCost("q", 1.0, 0.0, 0.2)])])
    assert "needs more than all" in hopeless.sentences()[0]
