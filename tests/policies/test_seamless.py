"""SEaMLeSS, by hand from pham2016 eq. 4.1 to 4.3. Starts at headroom 0.8; target 2 s, period 0.5 s."""

from __future__ import annotations

import pytest

from penstock.policies.load.seamless import SeamlessConfig
from penstock.testing import observation
from penstock.vocabulary.errors import InvalidInputError
from penstock.vocabulary.model import DelayStats, Observation


def queued(load_s: float, **others: object) -> Observation:
    """A load of 2 CPU seconds a second is offered; `load_s` waits inside the network."""
    return observation(
        **{"offered_rows": 200, "offered_load": 2.0, "queued_load_s": load_s, "network_load_s": load_s}
        | others
    )


def test_seamless_follows_its_equations_period_by_period() -> None:
    manager = SeamlessConfig(headroom=0.8).build()
    # y = 0.8 / 0.8 = 1; e = 1; u = 0.8 * 0.4 = 0.32; v = 0.32 + 0.4 = 0.72 of 1.0 CPU s
    decision = manager.decide(queued(0.8))
    assert decision.keep_fraction == pytest.approx(0.72)
    assert decision.reason == "estimated delay 1.00 s of 2 s, headroom 0.800"
    assert decision.expected.admitted_rows == pytest.approx(144)
    assert decision.headroom == 0.8
    # y = 2.2; e = -0.2; u = 0.8 * (-0.08 - 0.31) + 0.8 * 0.32 = -0.056; v = 0.344
    decision = manager.decide(queued(1.76))
    assert decision.keep_fraction == pytest.approx(0.344)
    # y = 1.5; e = 0.5; u = 0.8 * (0.2 + 0.062) + 0.8 * -0.056 = 0.1648; v = 0.5648
    decision = manager.decide(queued(1.2))
    assert decision.keep_fraction == pytest.approx(0.5648)


def test_more_queued_load_admits_less_which_fixes_the_sign_of_the_error() -> None:
    """Erratum 1: eq. 4.3 prints e = y - D, which would admit more the longer the queue."""
    keeps = [
        SeamlessConfig(headroom=0.8).build().decide(queued(load_s)).keep_fraction
        for load_s in (0.0, 0.8, 1.6, 2.4)
    ]
    assert keeps == sorted(keeps, reverse=True)
    assert keeps[0] > keeps[-1]
    at_target = SeamlessConfig(headroom=0.8).build().decide(queued(1.6)).keep_fraction
    assert at_target == pytest.approx(0.4), "at the target it admits what the period works off: H T of 1.0"


def test_seamless_counts_rows_at_the_entry_once_at_the_keep_fraction_in_force() -> None:
    # 0.4 CPU s of the 0.8 queued wait at the entry: 160 rows of 5 ms at keep 0.5; v = 0.72: 1.12 of 1.8
    entry = queued(0.8, network_load_s=0.4, keep_fraction=0.5, waiting_rows=160, cost_per_row_s=0.005)
    decision = SeamlessConfig(headroom=0.8).build().decide(entry)
    assert decision.keep_fraction == pytest.approx((0.4 + 0.72) / (0.8 + 1.0))


def shedding(mean_s: float | None, **others: object) -> Observation:
    delay = DelayStats() if mean_s is None else DelayStats(10, mean_s, mean_s, mean_s, mean_s, mean_s)
    return queued(1.6, **{"keep_fraction": 0.5, "delay": delay} | others)


def test_the_headroom_is_corrected_by_the_mean_delay_of_the_shedding_periods() -> None:
    manager = SeamlessConfig(headroom=0.8, adjustment_periods=3).build()
    assert manager.decide(shedding(5.0)).headroom == 0.8
    assert manager.decide(shedding(4.0)).headroom == 0.8
    # D' = (5 + 4 + 3) / 3 = 4: the headroom is half, in force at once
    decision = manager.decide(shedding(3.0))
    assert decision.headroom == pytest.approx(0.4)
    assert decision.reason.startswith("estimated delay 4.00 s")
    # the next three start anew: D' = 1
    for _ in range(2):
        assert manager.decide(shedding(1.0)).headroom == pytest.approx(0.4)
    assert manager.decide(shedding(1.0)).headroom == pytest.approx(0.8)


def test_only_periods_that_shed_and_have_a_delay_count_for_the_headroom() -> None:
    manager = SeamlessConfig(headroom=0.8, adjustment_periods=2).build()
    manager.decide(shedding(4.0))
    manager.decide(shedding(40.0, keep_fraction=1.0))
    manager.decide(shedding(None))
    assert manager.state.headroom == 0.8
    assert manager.decide(shedding(4.0)).headroom == pytest.approx(0.4)


def test_seamless_waits_for_a_cost_before_it_changes_anything() -> None:
    decision = (
        SeamlessConfig(headroom=0.8).build().decide(queued(0.8, cost_per_row_s=None, keep_fraction=0.6))
    )
    assert (decision.keep_fraction, decision.reason) == (0.6, "no cost measured yet")


def test_seamless_does_not_look_at_the_counts_of_rows_in_and_out() -> None:
    left, right = SeamlessConfig(headroom=0.8).build(), SeamlessConfig(headroom=0.8).build()
    for load_s in (0.5, 1.0, 2.0):
        one = left.decide(queued(load_s, admitted_rows=100, departed_rows=900))
        assert one == right.decide(queued(load_s, admitted_rows=300, departed_rows=0))


def test_seamless_never_drops_more_than_its_largest_drop() -> None:
    assert SeamlessConfig(headroom=0.8).build().decide(queued(500.0)).keep_fraction == pytest.approx(0.01)


def test_an_adjustment_takes_at_least_one_period() -> None:
    with pytest.raises(
        InvalidInputError, match="adjustment_periods must be at least 1; got: 0; hint: 30 is usual"
    ):
        SeamlessConfig(adjustment_periods=0)
    with pytest.raises(InvalidInputError, match="headroom must be a positive number"):
        SeamlessConfig(headroom=-1.0)
