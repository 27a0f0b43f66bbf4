"""When batches must begin at the latest for all to be in time."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from penstock.control.schedule.urgency import Job, Latest, latest_starts

HIGH, LOW = 3.0, 1.0
jobs_strategy = st.lists(
    st.builds(
        Job,
        due_s=st.floats(-5, 20),
        key=st.text("abcdefgh", min_size=1, max_size=3),
        batch_s=st.floats(0.01, 3),
        priority=st.sampled_from([1.0, 3.0, 6.0]),
    ),
    unique_by=lambda job: job.key,
    max_size=8,
)


def test_batches_in_a_row_must_begin_the_sooner_the_more_of_them_follow() -> None:
    latest = latest_starts([Job(10.0, "a", 1.0, HIGH), Job(10.0, "b", 2.0, HIGH), Job(20.0, "c", 1.0, HIGH)])
    assert latest.starts_s == {"c": 19.0, "b": 8.0, "a": 7.0}, "of two that are due at once, by name"


def test_a_batch_of_a_lower_class_comes_after_those_of_higher_ones() -> None:
    latest = latest_starts([Job(10.0, "a", 1.0, HIGH), Job(10.0, "b", 4.0, LOW)])
    assert latest.starts_s == {"a": 9.0, "b": 6.0}, "only of the lower one the other must be ahead"


def test_what_comes_before_makes_late_who_could_only_just_wait() -> None:
    latest = latest_starts([Job(3.0, "a", 1.0, HIGH), Job(3.0, "b", 1.0, HIGH)])
    first = min(latest.starts_s, key=lambda key: latest.starts_s[key])
    assert not latest.is_late_after(first, 1.0)
    assert latest.is_late_after(first, 1.1), "by itself it had 2 s, but the other runs after it"
    assert not latest.is_late_after("unknown", 100.0)
    assert "unknown" not in Latest()


def test_batches_that_overlap_follow_each_other_sooner() -> None:
    jobs = [Job(10.0, "a", 2.0, HIGH), Job(10.0, "b", 2.0, HIGH), Job(10.0, "c", 2.0, LOW)]
    alone, beside = latest_starts(jobs), latest_starts(jobs, parallel=2.0)
    assert sorted(alone.starts_s[key] for key in "ab") == [6.0, 8.0]
    assert sorted(beside.starts_s[key] for key in "ab") == [7.0, 8.0]


@given(jobs_strategy)
def test_who_begins_at_its_latest_moment_is_in_time_and_so_are_those_after_it(jobs: list[Job]) -> None:
    latest = latest_starts(jobs)
    assert latest.starts_s.keys() == {job.key for job in jobs}
    for first in jobs:
        now_s = latest.starts_s[first.key]
        assert math.isfinite(now_s)
        after = [job for job in jobs if job.priority >= first.priority and job.key != first.key]
        after = [job for job in after if (job.due_s, job.key) > (first.due_s, first.key)]
        for job in [first, *sorted(after, key=lambda job: (job.due_s, job.key))]:
            now_s += job.batch_s
            assert now_s <= job.due_s + 1e-6


@given(jobs_strategy, st.floats(1.0, 3.0))
def test_overlap_never_makes_a_batch_due_sooner(jobs: list[Job], parallel: float) -> None:
    alone, beside = latest_starts(jobs), latest_starts(jobs, parallel)
    for job in jobs:
        assert beside.starts_s[job.key] >= alone.starts_s[job.key] - 1e-9
