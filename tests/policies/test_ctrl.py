"""CTRL, by hand from tu2006 eq. 10, 11 and 13. headroom 1, cost 5 ms: 200 rows a second; H/(cT) = 400."""

from __future__ import annotations

import pytest

from penstock.policies.load.ctrl import CtrlConfig, CtrlManager
from penstock.policies.load.design import controller_from_poles
from penstock.testing import observation
from penstock.vocabulary.model import Observation


def ctrl(**settings: object) -> CtrlManager:
    return CtrlConfig(**{"headroom": 1.0, **settings}).build()  # type: ignore[arg-type]


def three_periods() -> list[Observation]:
    """Queues of 199, 229 and 599 rows: estimated delays of 1.0, 1.15 and 3.0 s."""
    return [
        observation(id=1, offered_rows=200, admitted_rows=249, departed_rows=50),
        observation(id=2, offered_rows=400, admitted_rows=130, departed_rows=100),
        observation(id=3, offered_rows=400, admitted_rows=470, departed_rows=100),
    ]


def test_ctrl_follows_its_equations_period_by_period() -> None:
    manager = ctrl()
    first, second, third = three_periods()
    decision = manager.decide(first)
    # e = 1; u = 400 * 0.4 = 160/s; v = 160 + 50/0.5 = 260/s, 130 rows of 200
    assert decision.keep_fraction == pytest.approx(130 / 200)
    assert decision.expected.admitted_rows == pytest.approx(130)
    assert decision.expected.delay_s == 2.0
    assert decision.reason == "estimated delay 1.00 s of 2 s, 199 rows queued"
    decision = manager.decide(second)
    # e = 0.85; u = 400 * (0.4 * 0.85 - 0.31 * 1) + 0.8 * 160 = 140/s; v = 340/s, 170 rows of 400
    assert decision.keep_fraction == pytest.approx(170 / 400)
    decision = manager.decide(third)
    # e = -1; u = 400 * (-0.4 - 0.31 * 0.85) + 0.8 * 140 = -153.4/s; v = 46.6/s, 23.3 rows of 400
    assert decision.keep_fraction == pytest.approx(23.3 / 400)


def test_ctrl_in_the_network_sheds_incoming_load_less_admissible_load() -> None:
    """Ls = Li - La. The text's Lq + Li - La counts the queue twice: v is already what may come beside it."""
    manager = ctrl(shedding="network")
    first, second, third = three_periods()
    decision = manager.decide(first)
    assert decision.shed_load_s == pytest.approx((200 - 130) * 0.005)
    assert decision.keep_fraction == 1.0, "the entry stays open"
    assert manager.decide(second).shed_load_s == pytest.approx((400 - 170) * 0.005)
    assert manager.decide(third).shed_load_s == pytest.approx((400 - 23.3) * 0.005)


def test_ctrl_in_the_network_sheds_from_the_queue_when_more_than_everything_new_is_too_much() -> None:
    manager = ctrl(shedding="network")
    # 1199 queued: y = 6, e = -4; u = -640/s; v = -640/s with nothing leaving: Ls = 0.5 + 320 * 0.005
    decision = manager.decide(observation(offered_rows=100, admitted_rows=1199))
    assert decision.shed_load_s == pytest.approx((100 + 320) * 0.005)
    assert decision.expected.admitted_rows == 0.0


def test_ctrl_sheds_nothing_in_the_network_when_all_may_come() -> None:
    decision = ctrl(shedding="network").decide(observation(offered_rows=100))
    assert decision.shed_load_s == 0.0


def test_ctrl_admits_more_below_the_target_and_less_above_it() -> None:
    keeps = [
        ctrl().decide(observation(offered_rows=1000, admitted_rows=queue)).keep_fraction
        for queue in (0, 200, 399, 450, 600)
    ]
    assert keeps == sorted(keeps, reverse=True)
    assert keeps[2] == pytest.approx(0.01), "at the target nothing leaves, so nothing may come"


def test_a_virtual_queue_that_runs_negative_is_no_queue() -> None:
    """pham2016 3.3.1: with shared operators a row leaves several times, and CTRL cannot see the overload."""
    manager = ctrl()
    overloaded = observation(
        offered_rows=400, admitted_rows=100, departed_rows=300, queued_load_s=90.0, network_load_s=90.0
    )
    decision = manager.decide(overloaded)
    assert decision.reason == "estimated delay 0.01 s of 2 s, 0 rows queued"
    assert decision.keep_fraction == 1.0
    # the count stays wrong: 200 more rows in the network only bring it to zero
    decision = manager.decide(observation(offered_rows=400, admitted_rows=200, departed_rows=0))
    assert decision.reason.endswith(" 0 rows queued")
    assert manager.decide(overloaded).keep_fraction == 1.0


def test_ctrl_counts_rows_at_the_entry_at_the_keep_fraction_in_force() -> None:
    # 398 wait at 0.5: 199 queued, as in the first period above; (199 + 80) of (398 + 200)
    decision = ctrl().decide(observation(offered_rows=200, waiting_rows=398, keep_fraction=0.5))
    assert decision.reason.endswith("199 rows queued")
    assert decision.keep_fraction == pytest.approx((199 + 80) / (398 + 200))


def test_ctrl_counts_rows_but_controls_nothing_before_a_cost_is_known() -> None:
    manager = ctrl()
    decision = manager.decide(observation(cost_per_row_s=None, admitted_rows=199, keep_fraction=0.6))
    assert (decision.keep_fraction, decision.reason) == (0.6, "no cost measured yet")
    # no e(k-1) and no u(k-1) yet: u = 400 * 0.4 * 1 = 160/s, 80 rows
    decision = manager.decide(observation(offered_rows=200, departed_rows=0))
    assert decision.keep_fraction == pytest.approx(80 / 200)


def test_ctrl_uses_the_controller_it_is_given() -> None:
    # one step design: poles at 0 and a = 0 give b0 = 1, b1 = 0: the whole error at once
    decision = ctrl(controller=controller_from_poles(0.0, 0.0, a=0.0)).decide(three_periods()[0])
    # u = 400 * 1; v = 400 + 100; 250 rows of 200
    assert decision.keep_fraction == 1.0
    assert decision.expected.admitted_rows == pytest.approx(250)


def test_one_period_cut_short_does_not_blind_the_controller() -> None:
    manager = ctrl()
    # below the target in a period of 1 ms: 80 rows may come, which is 80,000 a second
    manager.decide(observation(offered_rows=200, admitted_rows=199, period_s=0.001))
    # twice the target in an ordinary period: u(k-1) of 80,000 a second outweighs any error
    decision = manager.decide(observation(offered_rows=400, admitted_rows=600))
    assert decision.reason.startswith("estimated delay 4.00 s")
    assert decision.keep_fraction < 0.5


@pytest.mark.parametrize("true_headroom", [1.0, 0.5])
def test_on_its_own_model_ctrl_settles_at_the_target_over_the_true_headroom(true_headroom: float) -> None:
    """Eq. 2 as the plant, twice overloaded: y converges to target * told / true headroom (pham fig. 10)."""
    manager, period_s, cost_s = ctrl(), 0.5, 0.005
    queue = 0.0
    seen = observation(offered_rows=200)
    for _ in range(80):
        keep = manager.decide(seen).keep_fraction
        admitted = 200 * keep
        departed = min(queue + admitted, true_headroom / cost_s * period_s)
        queue += admitted - departed
        seen = observation(
            offered_rows=200,
            admitted_rows=admitted,
            departed_rows=departed,
            keep_fraction=keep,
        )
    assert queue * cost_s / true_headroom == pytest.approx(2.0 / true_headroom, rel=0.01)
    assert keep == pytest.approx(true_headroom / 2, rel=0.01)
