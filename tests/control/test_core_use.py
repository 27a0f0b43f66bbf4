"""How the cores of an application are expected to be used by the batches that run."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.control.cores.core_use import CoreUse, Work

NOW_S = 1_000_000.0
"""A timer that began long ago: seconds of it are coarse."""


def use(cores: int, *works: tuple[float, float, int]) -> CoreUse:
    """Batches that began one after the other: when their tasks can begin, core seconds, tasks."""
    made = CoreUse(cores, NOW_S)
    for i, (ready_s, core_s, tasks) in enumerate(works):
        made.begin(str(i), Work(NOW_S + ready_s, core_s, tasks))
    return made


def test_a_batch_takes_as_many_cores_as_it_has_tasks_and_the_next_one_what_is_left() -> None:
    cores = use(16, (0.0, 10.0, 10), (0.0, 12.0, 12))
    assert cores.free_at(NOW_S) == 0.0
    assert cores.ends_s() == pytest.approx({"0": NOW_S + 1.0, "1": NOW_S + 1.5})
    assert cores.free_at(NOW_S + 1.2) == 4.0
    assert cores.frees_s() == pytest.approx(NOW_S + 1.0)
    assert cores.frees_s(16.0) == pytest.approx(NOW_S + 1.5)


def test_a_batch_that_is_being_planned_takes_no_core_yet_and_is_counted_when_it_does() -> None:
    cores = use(4, (0.5, 4.0, 4))
    assert cores.free_at(NOW_S + 0.4) == 4.0
    assert cores.free_at(NOW_S + 0.6) == 0.0
    assert cores.ends_s() == pytest.approx({"0": NOW_S + 1.5})


def test_the_batch_that_began_first_goes_first_however_late_its_tasks_come() -> None:
    cores = use(4, (0.5, 2.0, 4), (0.0, 4.0, 4))
    assert cores.ends_s() == pytest.approx({"0": NOW_S + 1.0, "1": NOW_S + 1.5})


def test_without_cores_nothing_is_free_and_nothing_ends() -> None:
    cores = use(0, (0.0, 4.0, 4))
    assert (cores.free_at(NOW_S + 100.0), cores.frees_s(), cores.ends_s()) == (0.0, math.inf, {"0": math.inf})
    assert cores.pass_time(NOW_S + 100.0) == {}
    cores.cores = 4
    assert cores.ends_s() == pytest.approx({"0": NOW_S + 101.0})


def test_a_batch_that_takes_longer_than_expected_keeps_no_cores_from_others() -> None:
    cores = use(4, (0.0, 4.0, 4))
    cores.pass_time(NOW_S + 2.0)
    assert cores.free_at(NOW_S + 2.0) == 4.0
    cores.end("0")
    assert cores.ends_s() == {}


batches = st.lists(
    st.tuples(st.floats(0.0, 3.0), st.floats(0.0, 50.0), st.integers(1, 40)), min_size=1, max_size=8
)


@given(cores=st.integers(1, 32), works=batches, steps=st.lists(st.floats(0.0, 5.0), max_size=6))
def test_batches_have_what_they_need_and_all_together_no_more_than_the_cores_can_do(
    cores: int, works: list[tuple[float, float, int]], steps: list[float]
) -> None:
    made, now_s, had_s = use(cores, *works), NOW_S, 0.0
    for step_s in [*steps, 1e4]:
        now_s += step_s
        had = made.pass_time(now_s)
        assert sum(had.values()) <= cores * step_s + 1e-3
        had_s += sum(had.values())
    assert had_s == pytest.approx(sum(core_s for _, core_s, _ in works), abs=1e-3)
    assert made.free_at(now_s) == cores
