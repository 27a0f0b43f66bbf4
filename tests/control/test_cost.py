"""The cost model against a simulated micro-batch machine: level * (fixed + row * rows) * (1 + noise)."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.control.measure.batch_cost import alone
from penstock.control.measure.cost import CostConfig, CostModel
from penstock.vocabulary.errors import InvalidInputError

FIXED_S, ROW_S = 0.15, 20e-6
WARM_UP = CostConfig().warm_up_batches
SEEDS = range(6)


def true_s(rows: float) -> float:
    return FIXED_S + ROW_S * rows


class MicroBatches:
    """A machine that runs batches and a model that learns from them."""

    def __init__(self, seed: int = 0, noise: float = 0.1, warm_up_factor: float = 6.0) -> None:
        self.model, self.random = CostModel(), np.random.default_rng(seed)
        self.noise, self.warm_up_factor, self.level = noise, warm_up_factor, 1.0

    def run(self, rows: int, factor: float = 1.0) -> float:
        """One batch; returns what the model now expects of one of 20,000 rows."""
        warm = self.warm_up_factor if self.model.warming else 1.0
        noise = max(0.3, 1.0 + self.noise * float(self.random.standard_normal()))
        self.model.learn(rows, self.level * true_s(rows) * noise * factor * warm)
        return self.model.batch_s(20_000)

    def run_many(self, batches: int, rows: Callable[[], int]) -> list[float]:
        return [self.run(rows()) for _ in range(batches)]

    def varied(self) -> int:
        return int(self.random.integers(500, 40_000))

    def grow_to(self, rows: int) -> None:
        """As the governor begins: small batches, then each at most four times the largest before."""
        largest = 1000
        for _ in range(WARM_UP):
            self.run(largest)
        while largest < rows:
            self.run(largest)
            largest = min(4 * largest, rows)


@pytest.mark.parametrize("seed", SEEDS)
def test_fixed_and_row_cost_are_recovered_from_noisy_batches_of_many_sizes(seed: int) -> None:
    machine = MicroBatches(seed)
    machine.run_many(60, machine.varied)
    model = machine.model
    assert model.ready
    assert model.fixed_s == pytest.approx(FIXED_S, rel=0.5)
    assert model.row_s == pytest.approx(ROW_S, rel=0.25)
    for rows in (5_000, 20_000, 40_000):
        assert model.batch_s(rows) == pytest.approx(true_s(rows), rel=0.2)
        assert alone(model).rows_in(model.batch_s(rows)) == pytest.approx(rows)


def test_without_noise_the_costs_are_exact_in_the_end() -> None:
    machine = MicroBatches(noise=0.0)
    machine.run_many(200, machine.varied)
    assert machine.model.fixed_s == pytest.approx(FIXED_S, rel=0.1)
    assert machine.model.row_s == pytest.approx(ROW_S, rel=0.05)


@pytest.mark.parametrize("noise", [0.0, 0.1, 0.3])
def test_the_usual_error_of_an_expected_time_is_learned(noise: float) -> None:
    machine = MicroBatches(noise=noise)
    errors = [machine.run_many(1, machine.varied) and machine.model.error for _ in range(200)]
    # the mean of |x| of a normal distribution is 0.8 of its deviation; the level follows noise as well
    assert 0.6 * noise <= float(np.mean(errors[50:])) <= 1.1 * noise + 0.01


@pytest.mark.parametrize("seed", SEEDS)
def test_a_machine_of_half_the_speed_is_followed_within_a_few_batches(seed: int) -> None:
    machine = MicroBatches(seed)
    machine.run_many(40, machine.varied)
    machine.level = 2.0
    after = machine.run_many(8, machine.varied)
    assert after[3] > 1.5 * true_s(20_000), "most of it after four batches"
    assert after[-1] == pytest.approx(2 * true_s(20_000), rel=0.2)
    machine.level = 1.0
    assert machine.run_many(10, machine.varied)[-1] == pytest.approx(true_s(20_000), rel=0.2)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("factor", [5.0, 50.0, 0.2])
def test_a_single_outlier_moves_the_prediction_by_less_than_a_third(seed: int, factor: float) -> None:
    machine = MicroBatches(seed)
    before = machine.run_many(40, machine.varied)[-1]
    assert machine.run(machine.varied(), factor) == pytest.approx(before, rel=0.3)
    assert machine.run_many(10, machine.varied)[-1] == pytest.approx(true_s(20_000), rel=0.25)


def test_the_warm_up_is_not_learned_from() -> None:
    slow, warm = MicroBatches(1, warm_up_factor=40.0), MicroBatches(1, warm_up_factor=1.0)
    for machine in (slow, warm):
        for _ in range(WARM_UP):
            assert machine.model.warming
            machine.run(1000)
        assert not machine.model.warming
        assert not machine.model.ready
        machine.run_many(10, machine.varied)
    assert slow.model.batch_s(20_000) == warm.model.batch_s(20_000)


@pytest.mark.parametrize("seed", SEEDS)
def test_at_a_steady_load_the_fixed_cost_stays_near_its_anchor(seed: int) -> None:
    """All batches are of one size: nothing tells the two parts apart, and noise must not."""
    machine = MicroBatches(seed)
    machine.grow_to(40_000)
    for _ in range(300):
        machine.run(40_000)
        assert 0.4 * FIXED_S < machine.model.fixed_s < 2.5 * FIXED_S
        assert (
            machine.model.fixed_s <= machine.model.state.level * (machine.model.state.anchor_s or 0.0) + 1e-9
        )
        assert machine.model.batch_s(40_000) == pytest.approx(true_s(40_000), rel=0.25)


@settings(max_examples=100)
@given(
    st.floats(0.005, 2.0),
    st.floats(1e-7, 1e-2),
    st.integers(0, 1000),
    st.floats(0.0, 0.3),
    st.lists(st.integers(0, 100_000), min_size=1, max_size=25),
)
def test_row_cost_is_never_zero_nor_many_times_a_batchs_own_in_the_first_batches(
    fixed_s: float, row_s: float, seed: int, noise: float, sizes: list[int]
) -> None:
    model, random = CostModel(), np.random.default_rng(seed)
    highest_s, smallest = 0.0, 10**9
    for rows in [1000] * WARM_UP + sizes:
        took_s = (fixed_s + row_s * rows) * max(0.3, 1.0 + noise * float(random.standard_normal()))
        model.learn(rows, took_s)
        if rows:
            highest_s, smallest = max(highest_s, took_s), min(smallest, rows)
        assert math.isfinite(model.fixed_s)
        if model.ready:
            assert model.row_s > 0.0
            assert model.fixed_s > 0.0
            assert model.row_s <= 5 * highest_s / smallest, "a row costs no more than batches took"


def test_before_anything_is_known_a_model_promises_nothing() -> None:
    model = CostModel()
    assert (model.ready, model.warming, model.batch_s(100)) == (False, True, 0.0)
    assert alone(model).rows_in(1.0) == math.inf
    for took_s in (0.2, 0.0, -1.0, math.nan, math.inf):
        model.learn(0, took_s)
    assert not model.ready
    for _ in range(20):
        model.learn(0, 0.2)
    assert not model.ready, "batches without rows tell nothing of rows"


def test_a_small_input_is_ready_after_several_batches_though_rows_hardly_show() -> None:
    machine = MicroBatches(2)
    ready_after = next(i for i in range(1, 30) if machine.run(300) is not None and machine.model.ready)
    assert ready_after <= WARM_UP + 6
    machine.run_many(50, lambda: 300)
    assert machine.model.batch_s(300) == pytest.approx(true_s(300), rel=0.2)


def test_nothing_fits_a_turn_that_is_shorter_than_the_fixed_cost() -> None:
    machine = MicroBatches(noise=0.0)
    machine.run_many(40, machine.varied)
    assert alone(machine.model).rows_in(0.5 * machine.model.fixed_s) == 0.0
    assert alone(machine.model).rows_in(-1.0) == 0.0


def test_a_model_goes_on_from_its_snapshot() -> None:
    one, two = MicroBatches(3), MicroBatches(3)
    one.run_many(20, one.varied)
    two.run_many(20, two.varied)
    snapshot = json.loads(json.dumps(one.model.snapshot()))
    restored = CostModel()
    restored.restore(snapshot)
    two.model = restored
    one.run_many(20, one.varied)
    two.run_many(20, two.varied)
    assert two.model.snapshot() == one.model.snapshot()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"shape_memory_batches": 0.0}, "shape_memory_batches must be a positive number; got: 0.0"),
        ({"level_memory_batches": -1.0}, "level_memory_batches must be a positive number"),
        ({"anchor_batches": math.inf}, "anchor_batches must be a positive number"),
        ({"outlier_ratio": 1.0}, "outlier_ratio is above 1; got: 1.0; hint: 1.6 is usual"),
    ],
)
def test_settings_that_break_a_rule_are_refused(values: Mapping[str, float], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        CostConfig(**values)  # type: ignore[arg-type]
