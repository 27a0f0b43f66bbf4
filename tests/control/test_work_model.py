"""The core seconds of batches by tasks and rows: followed, told apart, and never a trap of tiny batches."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.control.measure.work_model import WorkModel

TASK_S, ROW_S = 0.1, 1e-3


def batches(
    model: WorkModel, count: int, task_s: float = TASK_S, row_s: float = ROW_S, seed: int = 1
) -> None:
    """Batches of different size and width, a tenth off each."""
    random = np.random.default_rng(seed)
    for _ in range(count):
        tasks, rows = int(random.integers(1, 9)), int(random.integers(100, 2000))
        noise = 1.0 + 0.1 * float(random.standard_normal())
        model.learn(tasks, rows, (task_s * tasks + row_s * rows) * noise)


def begun(task_s: float = TASK_S, row_s: float = ROW_S) -> WorkModel:
    model = WorkModel()
    model.begin(4, task_s, row_s)
    return model


@pytest.mark.parametrize(("task_s", "row_s"), [(0.0, 5e-3), (0.5, 1e-5)], ids=["rows", "tasks"])
def test_both_costs_are_found_whatever_the_first_batches_seemed_to_tell(task_s: float, row_s: float) -> None:
    model = begun(task_s, row_s)
    batches(model, 40)
    assert (model.task_s, model.row_s) == (pytest.approx(TASK_S, rel=0.2), pytest.approx(ROW_S, rel=0.1))
    assert 0.0 < model.error < 0.2


def test_a_machine_of_half_the_speed_is_followed_within_twenty_batches() -> None:
    model = begun()
    batches(model, 40)
    batches(model, 20, 2 * TASK_S, 2 * ROW_S)
    assert model.row_s == pytest.approx(2 * ROW_S, rel=0.2)


def test_starts_that_take_longer_are_no_cost_of_rows() -> None:
    model = begun()
    batches(model, 30)
    batches(model, 20, task_s=10 * TASK_S)
    assert model.task_s == pytest.approx(10 * TASK_S, rel=0.3)
    assert model.row_s < 2 * ROW_S


def test_a_task_is_never_shorter_than_some_of_its_starts() -> None:
    assert begun(task_s=0.001).least_task_s == 0.05
    assert begun(task_s=0.2).least_task_s == pytest.approx(0.8)


def test_for_a_young_query_small_batches_make_rows_cheaper_so_that_larger_ones_tell() -> None:
    model = begun(task_s=0.0, row_s=0.1)
    for _ in range(12):
        model.learn(8, 20, 2.0)  # all in starts, in truth; nothing tells that apart
    assert model.row_s < 0.05
    assert model.task_s * 8 + model.row_s * 20 == pytest.approx(2.0, rel=0.1), "what is known stays so"


def test_one_batch_that_took_far_too_long_changes_little() -> None:
    model = begun()
    batches(model, 40)
    before = model.row_s
    model.learn(4, 1000, 60.0)
    assert model.row_s < 2 * before


def test_what_cannot_be_learned_from_is_left_out() -> None:
    model = begun()
    for tasks, core_s in ((0, 1.0), (4, 0.0), (4, float("nan")), (4, -1.0)):
        model.learn(tasks, 100, core_s)
    assert (model.task_s, model.row_s, model.learned) == (TASK_S, ROW_S, 0)
