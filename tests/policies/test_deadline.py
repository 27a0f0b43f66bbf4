"""Deadline, by hand. Target 2 s, a grant every 0.05 s; headroom 1 and cost 5 ms: 200 rows a second.

The network should hold 0.15 * 2 + 0.05 = 0.35 s of work, 70 rows; the least margin is 0.02 * 2 = 0.04 s.
At 10 s with an empty network, rows from before 8.04 s are hopeless and rows from before 8.39 s must be
decided now.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.policies.load.deadline import DeadlineConfig, DeadlineManager
from penstock.testing import observation
from penstock.vocabulary.errors import InvalidInputError
from penstock.vocabulary.model import Admission, BatchTiming, DelayStats, Observation, WaitingRows

HOPELESS_S, MUST_S = pytest.approx(8.04), pytest.approx(8.39)


def deadline(**settings: object) -> DeadlineManager:
    chosen: dict[str, object] = {
        "work_ahead_fraction": 0.15,
        "margin_fraction": 0.02,
        "grant_fraction": 0.025,
        "memory_fraction": 0.5,
    }
    return DeadlineConfig(**chosen | settings).build()  # type: ignore[arg-type]


def waiting(arrival_s: list[float], rows: list[float], **others: object) -> Observation:
    """At 10 s, after a period that was busy throughout."""
    values: dict[str, object] = {
        "now_s": 10.0,
        "period_s": 0.05,
        "work_s": 0.05,
        "busy_s": 0.05,
        "waiting": WaitingRows(np.array(arrival_s), np.array(rows, float)),
        "waiting_rows": int(sum(rows)),
    }
    return observation(**values | others)


def granted(manager: DeadlineManager, seen: Observation) -> Admission:
    decision = manager.decide(seen)
    assert decision.grant is not None
    assert decision.keep_fraction == decision.grant.keep_fraction
    return decision.grant


def test_the_oldest_rows_that_fit_are_admitted_and_nothing_is_shed() -> None:
    recent = [9.1, 9.2, 9.3, 9.4, 9.5, 9.6, 9.7, 9.8, 9.9]
    grant = granted(deadline(), waiting(recent, [10] * 9))
    # 70 of 90 rows, and none of them is from before 8.04 s
    assert grant == Admission(9.7, HOPELESS_S, 1.0, limit_rows=pytest.approx(70))


def test_rows_of_one_arrival_time_are_split_by_a_limit() -> None:
    assert granted(deadline(), waiting([9.5], [500])) == Admission(9.5, HOPELESS_S, 1.0, pytest.approx(70))


def test_all_that_waits_is_admitted_while_it_fits() -> None:
    grant = granted(deadline(), waiting([9.1, 9.9], [30, 40]))
    assert (grant.cut_s, grant.keep_fraction) == (9.9, 1.0)
    # half of the room is taken: 35 rows
    grant = granted(deadline(), waiting([9.1, 9.5, 9.9], [30, 5, 40], network_load_s=0.175))
    assert (grant.cut_s, grant.keep_fraction) == (9.5, 1.0)


def test_nothing_is_admitted_while_the_network_is_full() -> None:
    grant = granted(deadline(), waiting([9.1, 9.9], [30, 40], network_load_s=0.5))
    assert (grant.limit_rows, grant.keep_fraction) == (0.0, 1.0)
    assert grant.shed_before_s < 9.0


def test_rows_that_are_late_already_are_shed_and_the_rest_is_admitted() -> None:
    grant = granted(deadline(), waiting([7.0, 8.0, 8.2, 9.0], [500, 500, 60, 10]))
    assert grant == Admission(9.0, HOPELESS_S, 1.0, limit_rows=pytest.approx(70))


def test_work_ahead_makes_more_rows_hopeless() -> None:
    grant = granted(deadline(), waiting([8.2, 9.0], [60, 10], network_load_s=0.3))
    assert grant.shed_before_s == pytest.approx(8.34)


def test_of_more_urgent_rows_than_fit_a_uniform_sample_is_admitted() -> None:
    seen = waiting([8.1, 8.2, 8.3, 9.0], [100, 100, 100, 50])
    decision = deadline().decide(seen)
    assert decision.grant == Admission(MUST_S, HOPELESS_S, pytest.approx(70 / 300))
    assert decision.keep_fraction == pytest.approx(70 / 300)
    assert decision.expected.admitted_rows == pytest.approx(70)
    assert decision.reason == "room for 70 of 350 waiting rows, 0.00 s of work ahead, headroom 1.000"


def test_of_more_urgent_rows_than_fit_the_oldest_can_be_shed_instead() -> None:
    times = (8.05 + 0.001 * np.arange(300)).tolist()
    grant = granted(deadline(victims="oldest"), waiting(times, [1] * 300))
    # 230 of the 300 go: those before the 230th
    assert grant == Admission(MUST_S, pytest.approx(times[229]), 1.0)


def test_a_few_hopeless_rows_are_sampled_with_the_others_where_that_is_asked_for() -> None:
    times = np.concatenate([np.full(4, 7.0), np.linspace(8.1, 8.4, 300)]).tolist()
    seen = waiting(times, [1] * 304)
    assert granted(deadline(), seen).shed_before_s > 7.0
    sampled = granted(deadline(late_fraction=0.05), seen)
    assert sampled.shed_before_s == -math.inf
    assert sampled.keep_fraction < 1.0
    assert granted(deadline(late_fraction=0.001), seen).shed_before_s > 7.0, "these are more than a few"


def test_rows_that_an_overrun_would_make_late_are_decided_about_where_that_is_asked_for() -> None:
    seen = waiting((8.19 + 0.001 * np.arange(400)).tolist(), [1] * 400)
    planned, sooner = (granted(deadline(overrun_fraction=part), seen) for part in (0.0, 0.4))
    assert planned.cut_s == MUST_S
    assert sooner.cut_s == pytest.approx(8.39 + 0.4 * 0.35)
    assert sooner.keep_fraction < planned.keep_fraction < 1.0, "as many rows, of more"


def test_both_kinds_of_victims_admit_the_same_number_to_the_resolution_of_the_headers() -> None:
    times = 8.05 + 0.001 * np.arange(300)
    seen = waiting(times.tolist(), [1] * 300)
    uniform, oldest = granted(deadline(), seen), granted(deadline(victims="oldest"), seen)
    in_time = (times >= uniform.shed_before_s) & (times <= uniform.cut_s)
    kept = ((times >= oldest.shed_before_s) & (times <= oldest.cut_s)).sum()
    assert kept == pytest.approx(in_time.sum() * uniform.keep_fraction, abs=1)


def late(p95_s: float | None, **others: object) -> Observation:
    delay = DelayStats() if p95_s is None else DelayStats(10, p95_s, p95_s, p95_s, p95_s, p95_s)
    return waiting([9.0], [10], delay=delay, **others)


def test_the_margin_rises_after_a_p95_overrun_and_decays() -> None:
    manager = deadline()
    assert granted(manager, late(1.9)).shed_before_s == HOPELESS_S
    assert manager.state.margin_s == pytest.approx(0.04)
    # 0.7 s too late: 0.7 * 0.05 / 0.35 = 0.1 s more, less what a period forgets of the 0.04
    grant = granted(manager, late(2.7))
    raised = manager.state.margin_s
    assert 0.139 < raised < 0.14
    assert grant.shed_before_s == pytest.approx(8.0 + raised)
    granted(manager, late(2.0))
    forgets = manager.state.margin_s / raised
    assert 0.9 < forgets < 1.0
    granted(manager, late(None))
    assert manager.state.margin_s == pytest.approx(raised * forgets**2)
    for _ in range(2000):
        granted(manager, late(1.9))
    assert manager.state.margin_s == pytest.approx(0.04), "it never decays below the least margin"


def test_the_margin_leaves_a_fifth_of_the_target_however_late_rows_are() -> None:
    manager = deadline()
    for _ in range(20):
        granted(manager, late(50.0))
    assert manager.state.margin_s == pytest.approx(1.6)


def test_the_first_grant_is_bounded_however_much_waits() -> None:
    decision = deadline().decide(
        waiting([1.0, 1.2, 1.29, 1.4, 9.9], [5, 5, 5, 1000, 100_000], cost_per_row_s=None)
    )
    # 0.15 of the target from the first row on, all of it, nothing shed
    assert decision.grant == Admission(pytest.approx(1.3), -math.inf, 1.0)
    assert decision.expected.admitted_rows == 15
    assert decision.reason == "first rows, to learn their cost"


def test_the_first_grant_never_reaches_into_the_future() -> None:
    grant = granted(deadline(), waiting([9.9, 10.0], [5, 5], work_s=0.0, busy_s=0.0))
    assert grant.cut_s == 10.0


def test_nothing_waiting_is_answered_with_an_empty_grant() -> None:
    decision = deadline().decide(observation())
    assert decision.grant == Admission(-math.inf, -math.inf, 1.0)
    assert decision.reason == "nothing waits"
    assert decision.expected.admitted_rows == 0.0


def test_the_headroom_is_measured_from_the_first_busy_period_on() -> None:
    manager = deadline()
    assert manager.decide(observation()).headroom is None
    assert manager.decide(observation(work_s=0.02, busy_s=0.04)).headroom == pytest.approx(0.5)
    assert manager.decide(observation()).headroom == pytest.approx(0.5), "an idle period tells nothing"
    learned = manager.decide(observation(work_s=0.5, busy_s=0.5)).headroom
    # half a target is remembered: 0.5 + (1 - exp(-0.5 / 1.0)) * 0.5
    assert learned == pytest.approx(0.5 + (1 - math.exp(-0.5)) * 0.5)


def test_half_the_headroom_halves_the_room() -> None:
    seen = waiting([8.1, 8.2, 8.3], [100, 100, 100], work_s=0.025)
    assert granted(deadline(), seen).keep_fraction == pytest.approx(35 / 300)


def headers(from_s: float, most_rows: int) -> st.SearchStrategy[list[tuple[float, int]]]:
    """Segment headers: arrival time of the last row, and how many rows."""
    one = st.tuples(st.floats(from_s, 10.0), st.integers(0, most_rows))
    return st.lists(one, min_size=1, max_size=20, unique_by=lambda header: header[0])


@settings(max_examples=100, derandomize=True)
@given(
    headers(from_s=8.5, most_rows=20),
    st.floats(0.0, 0.2),
    st.sampled_from(["uniform", "oldest"]),
)
def test_nothing_is_shed_while_everything_that_waits_fits(
    rows: list[tuple[float, int]], ahead_s: float, victims: str
) -> None:
    arrival_s = sorted(at for at, _ in rows)
    counts = [count for _, count in rows]
    if sum(counts) > (0.35 - ahead_s) * 200:
        counts = [0] * len(counts)
        counts[-1] = 1
    grant = granted(deadline(victims=victims), waiting(arrival_s, counts, network_load_s=ahead_s))
    assert grant.keep_fraction == 1.0
    assert grant.shed_before_s < arrival_s[0]
    assert grant.cut_s >= arrival_s[-1]


@settings(max_examples=100, derandomize=True)
@given(
    headers(from_s=5.0, most_rows=200),
    st.floats(0.0, 3.0),
    st.sampled_from(["uniform", "oldest"]),
)
def test_a_grant_never_admits_more_than_there_is_room_for(
    rows: list[tuple[float, int]], ahead_s: float, victims: str
) -> None:
    """Counted as the manager knows it: a header's rows are at its arrival time."""
    rows = sorted(rows)
    arrival_s, counts = np.array([at for at, _ in rows]), np.array([count for _, count in rows], float)
    seen = waiting(arrival_s.tolist(), counts.tolist(), network_load_s=ahead_s)
    decision = deadline(victims=victims).decide(seen)
    grant = decision.grant
    assert grant is not None
    room = max(0.0, 0.35 - ahead_s) * 200
    # of the header at the cut a part may be newer than the cut, so it does not count
    reached = (
        counts[(arrival_s > grant.shed_before_s) & (arrival_s < grant.cut_s)].sum() * grant.keep_fraction
    )
    assert min(reached, math.inf if grant.limit_rows is None else grant.limit_rows) <= room + 1e-6
    assert decision.expected.admitted_rows is not None
    assert decision.expected.admitted_rows <= room + 1e-9


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"victims": "newest"},
            "victims are 'uniform' or 'oldest'; got: 'newest'; hint: uniform is unbiased",
        ),
        (
            {"work_ahead_fraction": 0.0},
            "work_ahead_fraction lies between 0 and 0.5; got: 0.0; hint: it is a part",
        ),
        ({"margin_fraction": 0.5}, "margin_fraction lies between 0 and 0.5; got: 0.5"),
        ({"grant_fraction": -0.1}, "grant_fraction lies between 0 and 0.5; got: -0.1"),
        ({"memory_fraction": 0.0}, "memory_fraction must be a positive number; got: 0.0; hint: 0.5 is usual"),
        ({"max_drop_fraction": 2.0}, r"max_drop_fraction must lie in \(0, 1\]; got: 2.0"),
    ],
)
def test_settings_that_break_a_rule_are_rejected(settings: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        deadline(**settings)


def test_the_time_between_grants_is_a_part_of_the_target() -> None:
    assert DeadlineConfig(grant_fraction=0.025).period_s(2.0) == pytest.approx(0.05)
    assert DeadlineConfig(grant_fraction=0.1).period_s(2.0) == pytest.approx(0.2)


BATCH = BatchTiming(fixed_s=0.2, row_s=0.001, length_s=0.8, cycle_s=1.0)
"""A micro-batch of this grant holds 600 rows; the next one ends 1.8 s from now."""


def test_a_micro_batch_holds_what_its_length_allows_and_the_oldest_rows_go_first() -> None:
    seen = waiting([9.0, 9.5, 9.9], [300, 290, 400], batch=BATCH)
    # it ends in 0.8 s: rows from before 8.84 s are hopeless; 590 from before 9.84 s must be decided, and fit
    assert granted(deadline(), seen) == Admission(9.9, pytest.approx(8.84), 1.0, pytest.approx(600))


def test_rows_that_would_be_late_at_the_end_of_the_next_micro_batch_are_sampled_now() -> None:
    seen = waiting([9.0, 9.5, 9.9], [400, 400, 200], batch=BATCH)
    decision = deadline().decide(seen)
    assert decision.grant == Admission(pytest.approx(9.84), pytest.approx(8.84), pytest.approx(0.75))
    assert decision.expected.admitted_rows == pytest.approx(600)
    oldest = granted(deadline(victims="oldest"), seen)
    assert (oldest.shed_before_s, oldest.keep_fraction) == (9.0, 1.0), "to the resolution of the headers"


def test_a_small_micro_batch_ends_sooner_and_saves_older_rows() -> None:
    few = granted(deadline(), waiting([8.4, 9.9], [50, 50], batch=BATCH))
    # 0.2 + 100 * 0.001 = 0.3 s
    assert few.shed_before_s == pytest.approx(8.34)
    many = granted(deadline(), waiting([8.4, 9.9], [50, 5000], batch=BATCH))
    assert many.shed_before_s == pytest.approx(8.84)


def test_a_micro_batch_is_planned_from_its_timing_alone() -> None:
    """Neither the headroom nor the cost a row is asked for: both are in the timing, and measured with it."""
    timing = waiting([9.0, 9.5], [400, 400], batch=BATCH, cost_per_row_s=None, work_s=0.0, busy_s=0.0)
    assert granted(deadline(), timing).keep_fraction == pytest.approx(0.75)
    busy = waiting([9.0, 9.5], [400, 400], batch=BATCH, network_load_s=50.0)
    assert granted(deadline(), busy).keep_fraction == pytest.approx(0.75)


def test_where_a_micro_batch_takes_longer_than_the_target_the_newest_rows_are_still_let_in() -> None:
    slow = BatchTiming(fixed_s=3.0, row_s=0.001, length_s=4.5, cycle_s=4.5)
    grant = granted(deadline(), waiting([6.0, 7.5, 8.0, 9.9], [100, 100, 100, 100], batch=slow))
    assert grant.shed_before_s == pytest.approx(10.0 - 4.5 / 2)
    assert (grant.cut_s, grant.keep_fraction) == (9.9, 1.0), "late results are better than none"


def test_a_micro_batch_has_room_for_one_row_however_short_it_is() -> None:
    short = BatchTiming(fixed_s=0.2, row_s=0.001, length_s=0.1, cycle_s=0.1)
    grant = granted(deadline(), waiting([9.9], [100], batch=short))
    assert grant.limit_rows == 1.0


def test_the_margin_of_micro_batches_leaves_three_quarters_of_the_target() -> None:
    manager = deadline()
    for _ in range(200):
        granted(manager, late(50.0, batch=BATCH))
    assert manager.state.margin_s == pytest.approx(0.5)


@settings(max_examples=100, derandomize=True)
@given(
    headers(from_s=5.0, most_rows=2000),
    st.builds(BatchTiming, st.floats(0.01, 1), st.floats(1e-6, 1e-2), st.floats(0.01, 3), st.floats(0.01, 5)),
    st.sampled_from(["uniform", "oldest"]),
)
def test_a_micro_batch_is_never_planned_fuller_than_its_length(
    rows: list[tuple[float, int]], batch: BatchTiming, victims: str
) -> None:
    rows = sorted(rows)
    seen = waiting([at for at, _ in rows], [count for _, count in rows], batch=batch)
    decision = deadline(victims=victims).decide(seen)
    grant, room = decision.grant, max(1.0, (batch.length_s - batch.fixed_s) / batch.row_s)
    assert grant is not None
    assert 0.0 <= grant.keep_fraction <= 1.0
    assert decision.expected.admitted_rows is not None
    assert decision.expected.admitted_rows <= room * (1 + 1e-9)
    if sum(count for _, count in rows) <= room and rows[0][0] >= grant.shed_before_s:
        assert grant.keep_fraction == 1.0, "nothing is shed while all that waits fits and is in time"
        assert grant.cut_s >= rows[-1][0]
