"""When batches must begin at the latest for all to be in time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.effort import tries

from penstock.control.schedule.urgency import latest_starts

HIGH, LOW = 3.0, 1.0


@dataclass(frozen=True)
class Job:
    """The next batch of a query: when it must have ended, how long it takes, the priority of its class."""

    due_s: float
    batch_s: float
    priority: float
    has_work: bool = True


jobs_strategy = st.lists(
    st.builds(
        Job,
        due_s=st.floats(-5, 20) | st.sampled_from([1.0, 2.0]),
        batch_s=st.floats(0.01, 3),
        priority=st.sampled_from([1.0, 3.0, 6.0]),
        has_work=st.sampled_from([True, True, True, False]),
    ),
    max_size=8,
)


def starts(jobs: Sequence[Job], parallel: float = 1.0) -> list[float]:
    """By job."""
    due_s, batch_s, priority = (
        np.array([getattr(job, name) for job in jobs], np.float64)
        for name in ("due_s", "batch_s", "priority")
    )
    which = np.array([job.has_work for job in jobs], np.bool_)
    found: list[float] = latest_starts(due_s, batch_s, priority, which, parallel).tolist()
    return found


def one_by_one(jobs: Sequence[Job], parallel: float = 1.0) -> list[float]:
    """The same by its definition: from the batch that is due last back to the one that is due first."""
    found = [math.inf] * len(jobs)
    there = [i for i, job in enumerate(jobs) if job.has_work]
    for level in {jobs[i].priority for i in there}:
        start_s = math.inf
        for i in sorted(there, key=lambda i: (jobs[i].due_s, i), reverse=True):
            job = jobs[i]
            if job.priority < level:
                continue
            start_s = min(job.due_s - job.batch_s, start_s - job.batch_s / parallel)
            if job.priority == level:
                found[i] = start_s
    return found


def test_batches_in_a_row_must_begin_the_sooner_the_more_of_them_follow() -> None:
    found = starts([Job(10.0, 1.0, HIGH), Job(10.0, 2.0, HIGH), Job(20.0, 1.0, HIGH)])
    assert found == [7.0, 8.0, 19.0], "of two that are due at once, by their places"


def test_a_batch_of_a_lower_class_comes_after_those_of_higher_ones() -> None:
    found = starts([Job(10.0, 1.0, HIGH), Job(10.0, 4.0, LOW)])
    assert found == [9.0, 6.0], "only of the lower one the other must be ahead"


def test_what_comes_before_makes_late_who_could_only_just_wait() -> None:
    first, second, unknown = starts([Job(3.0, 1.0, HIGH), Job(3.0, 1.0, HIGH), Job(3.0, 1.0, HIGH, False)])
    assert first == pytest.approx(1.0), "by itself it had 2 s, but the other runs after it"
    assert second == pytest.approx(2.0)
    assert unknown == math.inf, "a query without work is never late"
    assert starts([]) == []


def test_batches_that_overlap_follow_each_other_sooner() -> None:
    jobs = [Job(10.0, 2.0, HIGH), Job(10.0, 2.0, HIGH), Job(10.0, 2.0, LOW)]
    assert sorted(starts(jobs)[:2]) == [6.0, 8.0]
    assert sorted(starts(jobs, parallel=2.0)[:2]) == [7.0, 8.0]


@given(jobs_strategy)
def test_who_begins_at_its_latest_moment_is_in_time_and_so_are_those_after_it(jobs: list[Job]) -> None:
    found = starts(jobs)
    assert [math.isfinite(start_s) for start_s in found] == [job.has_work for job in jobs]
    there = [i for i, job in enumerate(jobs) if job.has_work]
    for first in there:
        now_s = found[first]
        place = jobs[first].due_s, first
        after = [i for i in there if jobs[i].priority >= jobs[first].priority and (jobs[i].due_s, i) > place]
        for i in [first, *sorted(after, key=lambda i: (jobs[i].due_s, i))]:
            now_s += jobs[i].batch_s
            assert now_s <= jobs[i].due_s + 1e-6


@given(jobs_strategy, st.floats(1.0, 3.0))
def test_overlap_never_makes_a_batch_due_sooner(jobs: list[Job], parallel: float) -> None:
    for alone_s, beside_s in zip(starts(jobs), starts(jobs, parallel), strict=True):
        assert beside_s >= alone_s - 1e-9


@given(st.lists(jobs_strategy, max_size=tries(3, 12)), st.floats(1.0, 3.0))
def test_all_at_once_they_are_what_they_are_one_by_one(lists: list[list[Job]], parallel: float) -> None:
    jobs = [job for each in lists for job in each]
    assert starts(jobs, parallel) == pytest.approx(one_by_one(jobs, parallel), abs=1e-9)
