"""The cores of the virtual cluster: tasks of the oldest job first, lost ones again, each counted once."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.sim.microbatch.machine import Cores, Stage
from penstock.vocabulary.errors import InvalidInputError


class Log:
    """Cores, and the stages that have ended on them, with their moments."""

    def __init__(self, count: int) -> None:
        self.cores = Cores(count, 0.0)
        self.ended: list[tuple[float, int]] = []
        self.now_s = 0.0

    def begin(self, job: int, *seconds: float, at_s: float = 0.0) -> Stage:
        return self.cores.begin(job, seconds, lambda stage: self.ended.append((self.now_s, stage.job)), at_s)

    def run(self, to_s: float = math.inf) -> None:
        while self.cores.due_s <= to_s and self.cores.due_s < math.inf:
            self.now_s = self.cores.due_s
            self.cores.pass_time(self.now_s)


def test_tasks_of_the_job_that_began_first_go_first() -> None:
    log = Log(2)
    first, second = log.cores.job(), log.cores.job()
    log.begin(second, 1.0, 1.0, 1.0)
    log.begin(first, 1.0)
    log.run()
    assert log.ended == [(2.0, first), (2.0, second)], "its task goes before the third of the other"


def test_a_later_stage_of_an_old_job_goes_before_the_waiting_tasks_of_a_young_one() -> None:
    log = Log(1)
    old, young = log.cores.job(), log.cores.job()
    log.cores.begin(old, [1.0], lambda _: log.begin(old, 1.0, at_s=1.0), 0.0)
    log.begin(young, 1.0)
    log.run()
    assert log.ended == [(2.0, old), (3.0, young)]


def test_a_task_whose_core_is_lost_begins_again_and_counts_once() -> None:
    log = Log(2)
    stage = log.begin(log.cores.job(), 2.0, 2.0)
    log.cores.resize(1, 1.0)
    assert log.cores.busy == 1
    log.cores.resize(2, 1.5)
    log.run()
    assert log.ended == [(3.5, 1)]
    assert (stage.core_s, log.cores.used_s) == (4.0, 5.0), "a second of it was in vain"


def test_without_cores_tasks_wait() -> None:
    log = Log(0)
    log.begin(log.cores.job(), 1.0)
    assert log.cores.due_s == math.inf
    log.cores.resize(1, 5.0)
    log.run()
    assert log.ended == [(6.0, 1)]


def test_a_task_on_a_core_that_had_none_before_takes_longer() -> None:
    log = Log(3)
    log.cores.begin(log.cores.job(), [1.0, 1.0], lambda stage: None, 0.0, cold_s=0.5)
    log.run()
    assert log.cores.used_s == 3.0
    log.cores.begin(log.cores.job(), [1.0, 1.0, 1.0], lambda stage: None, log.now_s, cold_s=0.5)
    log.run()
    assert log.cores.used_s == 6.5, "two cores are warm by now"


def test_a_batch_that_comes_to_nothing_frees_its_cores() -> None:
    log = Log(1)
    gone = log.begin(log.cores.job(), 10.0, 10.0)
    log.begin(log.cores.job(), 1.0)
    log.cores.cancel(gone, 2.0)
    log.run()
    assert log.ended == [(3.0, 2)]
    assert log.cores.used_s == 3.0


@given(
    count=st.integers(1, 6),
    stages=st.lists(st.lists(st.floats(0.0, 3.0), min_size=1, max_size=9), min_size=1, max_size=6),
)
def test_all_tasks_end_and_never_run_more_at_once_than_there_are_cores(
    count: int, stages: list[list[float]]
) -> None:
    log = Log(count)
    begun = [log.begin(log.cores.job(), *seconds) for seconds in stages]
    while log.cores.due_s < math.inf:
        assert log.cores.busy <= count
        log.run(log.cores.due_s)
    assert sorted(job for _, job in log.ended) == list(range(1, len(stages) + 1))
    for stage, seconds in zip(begun, stages, strict=True):
        assert (stage.is_done, stage.core_s) == (True, pytest.approx(sum(seconds)))
    assert log.cores.used_s == pytest.approx(sum(map(sum, stages)))


def test_a_stage_has_tasks_that_end_and_a_cluster_no_less_than_no_cores() -> None:
    with pytest.raises(InvalidInputError, match="a stage has tasks that end"):
        Log(1).begin(1)
    with pytest.raises(InvalidInputError, match="a cluster has cores"):
        Cores(-1, 0.0)
