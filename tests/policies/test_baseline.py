"""BASELINE, by hand. headroom 1 and cost 5 ms: 200 rows a second, (2 s + 0.5 s) * 200 = 500 rows in all."""

from __future__ import annotations

import pytest

from penstock.policies.load.baseline import BaselineConfig
from penstock.testing import observation


def test_baseline_fills_the_queue_to_the_target_in_one_step() -> None:
    manager = BaselineConfig(headroom=1.0).build()
    # 300 in, 100 out: 200 queued, 300 more allowed of 400
    first = manager.decide(observation(offered_rows=400, admitted_rows=300, departed_rows=100))
    assert first.keep_fraction == pytest.approx(300 / 400)
    assert first.reason == "estimated delay 1.00 s of 2 s, 200 rows queued"
    assert first.expected.admitted_rows == pytest.approx(300)
    assert first.expected.delay_s == 2.0
    # 300 in, 100 out: 400 queued, which is the target; only what the period works off may come
    second = manager.decide(observation(offered_rows=400, admitted_rows=300, departed_rows=100))
    assert second.keep_fraction == pytest.approx(100 / 400)
    # 300 in, 100 out: 600 queued, more than is allowed
    third = manager.decide(observation(offered_rows=400, admitted_rows=300, departed_rows=100))
    assert third.keep_fraction == pytest.approx(0.01)
    # the queue is empty again
    fourth = manager.decide(observation(offered_rows=400, admitted_rows=0, departed_rows=600))
    assert fourth.keep_fraction == 1.0


def test_baseline_sees_rows_at_the_entry_at_the_keep_fraction_in_force() -> None:
    # 400 wait at 0.5: 200 queued; (200 + 300) of (400 + 600)
    decision = (
        BaselineConfig(headroom=1.0)
        .build()
        .decide(observation(offered_rows=600, waiting_rows=400, keep_fraction=0.5))
    )
    assert decision.reason.endswith("200 rows queued")
    assert decision.keep_fraction == pytest.approx(500 / 1000)


def test_baseline_counts_rows_in_and_out_before_a_cost_is_known() -> None:
    manager = BaselineConfig(headroom=1.0).build()
    unknown = observation(cost_per_row_s=None, offered_rows=400, admitted_rows=400, keep_fraction=0.9)
    decision = manager.decide(unknown)
    assert (decision.keep_fraction, decision.reason) == (0.9, "no cost measured yet")
    known = manager.decide(observation(offered_rows=400, departed_rows=100))
    assert known.reason.endswith("300 rows queued")
    assert known.keep_fraction == pytest.approx(200 / 400)


def test_baseline_in_the_network_sheds_incoming_load_less_what_may_come() -> None:
    manager = BaselineConfig(headroom=1.0, shedding="network").build()
    # 400 queued: La = 100 * 0.005, Li = 400 * 0.005
    decision = manager.decide(observation(offered_rows=400, admitted_rows=500, departed_rows=100))
    assert decision.shed_load_s == pytest.approx((400 - 100) * 0.005)
    assert decision.keep_fraction == 1.0
    # 700 queued: 200 rows more than allowed must go beside everything that comes
    decision = manager.decide(observation(offered_rows=400, admitted_rows=400, departed_rows=100))
    assert decision.shed_load_s == pytest.approx((400 + 200) * 0.005)
