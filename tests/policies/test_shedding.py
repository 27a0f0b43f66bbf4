"""The shedders on one seam: what each keeps, and that none keeps more than it may."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.policies.shedding import (
    SHEDDERS,
    ShedDecision,
    ShedObservation,
    TupleCost,
    TupleCostConfig,
    WaitingBatches,
    shedder_config,
)
from penstock.vocabulary.errors import InvalidInputError, UnknownNameError


def waiting(query: list[int], rows: list[int], sic: list[float] | None = None, **more: Any) -> WaitingBatches:
    size = len(query)
    arrival = more.pop("arrival_s", np.arange(size, dtype=float))
    return WaitingBatches(
        np.array(query, np.int64),
        np.array(rows, np.int64),
        np.array(sic if sic is not None else [0.01] * size, float),
        np.asarray(arrival, float),
        np.asarray(arrival, float),
        **{name: np.asarray(value) for name, value in more.items()},
    )


def seen(batches: WaitingBatches, capacity: float, queries: int = 3, **more: Any) -> ShedObservation:
    values: dict[str, Any] = {
        "reported_sic": np.full(queries, np.nan),
        "admitted_sic": np.zeros(queries),
    }
    return ShedObservation(
        more.pop("id", 1),
        10.0,
        batches,
        capacity=capacity,
        **values | {k: np.array(v) for k, v in more.items()},
    )


def decide(name: str, observation: ShedObservation, seed: int = 0, **settings: Any) -> ShedDecision:
    return shedder_config(name, **settings).build(seed).decide(observation)


SETTINGS: dict[str, dict[str, Any]] = {
    "semantic": {"by": "range", "shed_from": 5.0},
    "cohort": {"buckets": 4096},
}


@st.composite
def observations(draw: st.DrawFn) -> ShedObservation:
    queries = draw(st.integers(1, 6))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    size = draw(st.integers(0, 60))
    query = rng.integers(0, queries, size)
    rows = rng.integers(0, 50, size)
    # few different values, so that there are ties
    sic = rows * rng.choice([0.0, 0.001, 0.002, 1 / 3000], size)
    reported = rng.choice([np.nan, 0.0, 0.1, 0.2, 0.35], queries)
    cost = rng.uniform(1e-4, 1e-2, queries) if draw(st.booleans()) else None
    load = float((rows if cost is None else rows * cost[query]).sum())
    return ShedObservation(
        draw(st.integers(0, 1000)),
        10.0,
        WaitingBatches(
            query,
            rows,
            sic,
            rng.uniform(0, 10, size),
            rng.uniform(10, 20, size),
            window=rng.integers(0, 4, size),
            key=rng.integers(0, 10, size).astype(float),
            utility=rng.uniform(0, 1, size),
        ),
        reported,
        rng.choice([0.0, 0.05], queries),
        load * draw(st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.0, 2.0])),
        cost,
    )


@pytest.mark.parametrize("name", SHEDDERS)
@given(observation=observations(), seed=st.integers(0, 5))
@settings(max_examples=60, deadline=None)
def test_no_shedder_keeps_more_than_it_may_but_for_a_first_batch_that_is_too_large(
    name: str, observation: ShedObservation, seed: int
) -> None:
    config = shedder_config(name, **SETTINGS.get(name, {}))
    made = config.build(seed).decide(observation)
    load = observation.load
    fraction = made.keep.astype(float) if made.keep_fraction is None else made.keep_fraction
    assert made.kept_load == pytest.approx(float(load @ fraction))
    assert ((fraction > 0) == made.keep).all()
    # an empty batch costs nothing, but is dropped with its window
    assert made.keep[load <= 0].all() or name == "window"
    too_much = made.kept_load > observation.capacity * (1 + 1e-9)
    if too_much:
        one = made.keep & (load > 0)
        single = one.sum() == 1 or (name == "window" and len(set(_windows(observation)[one])) == 1)
        assert single or (name == "cohort" and made.keep_probability == 1 / 4096)
    if load.sum() <= observation.capacity:
        assert made.keep.all()
    assert np.isfinite(made.expected_sic).all()
    assert made.reason
    again = config.build(seed).decide(observation)
    assert (again.keep == made.keep).all()
    assert made.keep_probability is not None or name not in ("random", "cohort")


def _windows(observation: ShedObservation) -> np.ndarray:
    assert observation.batches.window is not None
    return observation.batches.query * 1000 + observation.batches.window


def test_random_gives_every_batch_the_same_chance() -> None:
    batches = waiting([0] * 8 + [1] * 2, [10] * 10)
    kept = np.zeros(10)
    for number in range(3000):
        kept += decide("random", seen(batches, 50.0, id=number)).keep
    assert kept / 3000 == pytest.approx(np.full(10, 0.5), abs=0.05)


def test_random_stops_at_the_first_batch_that_does_not_fit_so_that_large_ones_are_not_passed_over() -> None:
    batches = waiting([0] * 10, [100] * 5 + [1] * 5)
    kept = np.zeros(10)
    for number in range(2000):
        kept += decide("random", seen(batches, 250.0, id=number)).keep
    assert kept[:5].sum() / kept.sum() > 0.35


def test_oldest_first_keeps_the_newest() -> None:
    made = decide("oldest", seen(waiting([0, 1, 2, 0], [10] * 4, arrival_s=[4, 1, 3, 2]), 20.0))
    assert made.keep.tolist() == [True, False, True, False]
    assert made.reason == "40 waits for 20: 2 of 4 batches kept, oldest shed first"


def test_window_drop_keeps_windows_whole_and_in_the_next_period_the_same_ones() -> None:
    query, window = [0, 0, 0, 0, 1, 1, 1, 1], [1, 2, 1, 2, 1, 2, 1, 2]
    batches = waiting(query, [10] * 8, window=window)
    for seed in range(20):
        first = decide("window", seen(batches, 45.0, id=1), seed)
        kept = {(q, w) for q, w, k in zip(query, window, first.keep, strict=True) if k}
        assert first.kept_load == 40.0
        assert len(kept) == 2
        assert (decide("window", seen(batches, 45.0, id=2), seed).keep == first.keep).all()


def test_semantic_by_range_sheds_the_range_first_and_more_only_if_it_must() -> None:
    batches = waiting([0, 0, 1, 1, 2], [10] * 5, key=[1.0, 5.0, 7.0, 9.0, 2.0])
    settings = {"by": "range", "shed_from": 5.0, "shed_to": 8.0}
    made = decide("semantic", seen(batches, 30.0), **settings)
    assert made.keep.tolist() == [True, False, False, True, True]
    assert made.reason.endswith("utility 1 or more")
    assert decide("semantic", seen(batches, 20.0), **settings).keep[[1, 2]].tolist() == [False, False]


def test_semantic_by_utility_keeps_the_most_useful() -> None:
    made = decide("semantic", seen(waiting([0, 1, 2], [10] * 3, utility=[0.2, 0.9, 0.5]), 20.0))
    assert made.keep.tolist() == [False, True, True]


def test_a_cohort_keeps_one_fraction_of_keys_in_every_query() -> None:
    made = decide("cohort", seen(waiting([0, 1, 2], [100, 200, 100]), 100.0), seed=7, buckets=8)
    assert made.keep_fraction is not None
    assert made.keep_fraction.tolist() == [0.25] * 3
    assert (made.unit, made.seed, made.keep_probability, made.kept_load) == ("key", 7, 0.25, 100.0)
    assert made.reason == "400 waits for 100: keys of 2 of 8 buckets kept"


def test_capacity_is_in_cpu_seconds_where_costs_are_given() -> None:
    batches = waiting([0, 1], [100, 100])
    made = decide("oldest", seen(batches, 0.65, queries=2, cost_per_row_s=[0.004, 0.006]))
    assert (made.keep.tolist(), made.kept_load) == ([False, True], pytest.approx(0.6))
    made = decide("oldest", seen(batches, 0.65, queries=2, cost_per_row_s=[0.003, 0.003]))
    assert made.keep.all()


def test_what_is_expected_of_a_decision_is_the_report_less_what_is_shed() -> None:
    batches = waiting([0, 0, 1], [10] * 3, [0.02, 0.02, 0.03], arrival_s=[1, 2, 3])
    made = decide("oldest", seen(batches, 20.0, 2, reported_sic=[0.5, np.nan], admitted_sic=[0.1, 0.0]))
    assert made.keep.tolist() == [False, True, True]
    assert made.expected_sic == pytest.approx([0.5 - 0.02 + 0.1, 0.03])


def test_the_cost_model_by_the_example_of_fiscato_5_3() -> None:
    cost = TupleCost()
    assert (cost.cost_per_row_s, cost.keep_rows(0.25)) == (None, None)
    cost.measure(5000, 0.3)
    assert cost.cost_per_row_s == pytest.approx(0.06e-3)
    assert cost.keep_rows(0.25) == pytest.approx(4167, abs=1)  # the text: approximately 4100


def test_the_cost_model_looks_back_over_its_memory_and_past_idle_intervals() -> None:
    cost = TupleCostConfig(memory=2).build()
    for rows, busy_s in ((1000, 1.0), (0, 0.2), (0, 0.0), (400, 0.2)):
        cost.measure(rows, busy_s)
    assert cost.cost_per_row_s == pytest.approx(0.001)


def utilities(*values: Any) -> ShedObservation:
    return seen(waiting([0] * len(values), [10] * len(values), utility=list(values)), 10.0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: shedder_config("semantic", by="range"),
            "-inf to inf, which covers everything; hint: give shed_",
        ),
        (lambda: shedder_config("semantic", by="key"), "by 'range' or 'utility'; got: 'key'"),
        (lambda: shedder_config("semantic", by="range", shed_from=3.0, shed_to=1.0), "begins before it ends"),
        (lambda: shedder_config("semantic", by="range", shed_from=math.nan), "ends of a range are numbers"),
        (
            lambda: shedder_config("semantic", shed_from=3.0),
            "a range is shed by range; got: 3.0 to inf by util",
        ),
        (lambda: shedder_config("cohort", buckets=1), "needs two buckets of keys at the least; got: 1"),
        (
            lambda: decide("semantic", utilities(0.5, math.nan)),
            r"utility is a finite number; got: np.float64\(nan\)",
        ),
        (
            lambda: decide("semantic", utilities("a", "b")),
            "utility is a finite number; got: np.str_.'a'. ..U1",
        ),
        (lambda: decide("semantic", utilities(None, 1.0)), "utility is a finite number; got: None .object"),
        (
            lambda: decide("semantic", seen(waiting([0], [9]), 1.0)),
            "needs the utility of each batch; got: none",
        ),
        (
            lambda: decide("semantic", seen(waiting([0], [9]), 1.0), by="range", shed_to=1.0),
            "by range needs the key of each batch; got: none",
        ),
        (lambda: decide("window", seen(waiting([0], [9]), 1.0)), "by window needs the window of each batch"),
        (lambda: waiting([0, 1], [1, 2], [0.1]), "one sic each; got: 1 for 2 batches"),
        (lambda: waiting([0, 1], [1, 2], [0.1, math.nan]), "the SIC of a batch is 0 or more; got: nan"),
        (lambda: waiting([0], [1], [-0.1]), "the SIC of a batch is 0 or more; got: -0.1"),
        (lambda: seen(waiting([0], [1]), -1.0), "capacity is 0 or more; got: -1.0"),
        (lambda: seen(waiting([0], [1]), math.nan), "capacity is 0 or more; got: nan"),
        (lambda: seen(waiting([3], [1]), 1.0), "belongs to one of the 3 queries; got: query 3 to 3"),
        (
            lambda: seen(waiting([0], [1]), 1.0, admitted_sic=[0.0]),
            "one admitted_sic each; got: 1 for 3 queries",
        ),
        (lambda: TupleCostConfig(memory=0), "has one interval at the least; got: 0"),
        (lambda: TupleCost().measure(-1, 1.0), "rows and time are 0 or more; got: -1 rows in 1.0 s"),
        (lambda: TupleCost().keep_rows(0.0), "the interval must be a positive number; got: 0.0"),
    ],
)
def test_bad_input_is_refused_with_a_hint(make: Any, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        make()


def test_an_unknown_shedder_or_setting_gets_the_nearest_known() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'balance-sic'"):
        shedder_config("balance_sic")
    with pytest.raises(UnknownNameError, match="did you mean 'projection'"):
        shedder_config("balance-sic", projektion=False)
