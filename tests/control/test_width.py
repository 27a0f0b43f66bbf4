"""Into how many tasks a batch is divided, and how long it takes on so many cores."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.control.cores.width import takes_s, tasks_of
from penstock.control.schedule.turns import Demand, plan_turns
from penstock.control.tuning import TUNING

CORES = 16


@pytest.mark.parametrize(
    ("core_s", "task_s", "tasks"),
    [
        pytest.param(0.01, 0.05, 1, id="little work is one task"),
        pytest.param(0.2, 0.05, 4, id="a task is worth its start from some work on"),
        pytest.param(8.0, 0.05, 16, id="at most one for each core"),
        pytest.param(8.0, 1.0, 8, id="long tasks where the batch has time"),
        pytest.param(8.09, 1.0, 8, id="a little too much work is no further task"),
        pytest.param(8.2, 1.0, 9, id="more work is one"),
    ],
)
def test_a_batch_has_as_many_tasks_as_it_needs_to_end_in_time(
    core_s: float, task_s: float, tasks: int
) -> None:
    assert tasks_of(core_s, CORES, task_s) == tasks


def test_a_batch_that_counts_as_alone_takes_its_machine_time() -> None:
    one = np.array([1.0])
    assert takes_s(np.array([0.7]), one, one, 3.0 * one) == [0.7]


def test_a_batch_on_few_cores_takes_longer_and_is_stretched_by_others() -> None:
    cores, half = np.array([16.0]), np.array([0.5])
    assert takes_s(half, cores, np.array([1.0]), np.array([1.0])) == [1.0]
    assert takes_s(half, cores, np.array([1.0]), np.array([1.5])) == [1.5]


def test_turn_intervals_leave_time_for_batches_that_use_few_cores() -> None:
    demands = {"all": Demand(2.0, None, 10, 0.01)}
    wide, narrow = (plan_turns(demands, {"all": 1.0}, narrow=f)["all"] for f in (0.0, TUNING.narrow))
    assert wide.cycle_s == pytest.approx(2.0 / 1.1)
    assert narrow.cycle_s == pytest.approx(2.0 / (1.0 + TUNING.narrow))
    assert narrow.task_s == pytest.approx(TUNING.narrow * narrow.cycle_s)
    assert wide.task_s == 0.0


def test_a_query_whose_batches_follow_each_other_waits_twice_for_the_part_without_tasks() -> None:
    demands = {"all": Demand(1.8, None, 1, 0.01, idle_s=0.2)}
    turn = plan_turns(demands, {"all": 1.0}, narrow=TUNING.narrow)["all"]
    assert 2.0 * (turn.cycle_s + 0.2) == pytest.approx(2.0)
