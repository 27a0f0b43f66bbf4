"""ALoMa: every branch of algorithm 1, eq. 5.2, how drops compose, who has the majority."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest

from penstock.policies.load.aloma import AlomaConfig, AlomaManager
from penstock.policies.load.headroom import toward_load
from penstock.testing import observation
from penstock.vocabulary.errors import InvalidInputError
from penstock.vocabulary.model import Observation

nan = float("nan")
NORMAL, UT, OT = 0.15, 1.0, 2.5
"""Delays of an output whose smallest was 0.1 s and whose target is 2 s."""
RAISED = 0.8 + math.log2(26) / 25 * 0.2
"""Eq. 5.1 from 0.8 toward 1.0, a gap of 25 %."""
LOWERED = 0.8 - math.log2(51) / 50 * 0.4
"""Eq. 5.1 from 0.8 toward 0.4, a gap of 50 %."""


def aloma(
    capacity: float = 0.8,
    previous_s: Sequence[float] = (1.0,),
    smallest_s: Sequence[float] | None = None,
    **settings: object,
) -> AlomaManager:
    """A manager in the middle of a run."""
    manager = AlomaConfig(**settings).build()  # type: ignore[arg-type]
    state: dict[str, object] = {
        "capacity": capacity,
        "keep_fraction": 1.0,
        "smallest_s": list(smallest_s or [0.1] * len(previous_s)),
        "previous_s": list(previous_s),
        "since_refresh": 0,
        "readmissions_in_a_row": 0,
        "extra_drops_in_a_row": 0,
    }
    manager.restore({"format": 1, "manager": "aloma", "state": state})
    return manager


def seen(load: float, keep: float, *delays_s: float) -> Observation:
    """An observation whose admitted load, after the drop in force, is `load`."""
    return observation(
        offered_rows=100, offered_load=load / keep, keep_fraction=keep, output_delay_s=np.array(delays_s)
    )


@pytest.mark.parametrize(
    ("load", "keep", "before_s", "delay_s", "keep_after", "capacity_after", "action"),
    [
        pytest.param(
            1.0, 1.0, NORMAL, NORMAL, 1.0, RAISED, "raise capacity",
            id="load_above_capacity_but_normal_response_raises_the_capacity",
        ),
        pytest.param(
            1.0, 0.5, NORMAL, NORMAL, 0.5, RAISED, "raise capacity",
            id="raising_the_capacity_leaves_the_drop_as_it_is",
        ),
        pytest.param(
            1.0, 1.0, UT, OT, 0.8, 0.8, "shed the excess load",
            id="load_above_capacity_and_over_threshold_sheds_the_excess",
        ),
        pytest.param(
            1.0, 0.5, OT + 1, OT, 0.4, 0.8, "shed the excess load",
            id="over_threshold_sheds_the_excess_even_while_falling_and_composes_with_the_drop_in_force",
        ),
        pytest.param(
            1.0, 0.5, UT + 0.1, UT, 0.505, RAISED, "raise capacity, re-admit a little",
            id="under_threshold_shedding_and_falling_raises_the_capacity_and_readmits_one_percent",
        ),
        pytest.param(
            1.0, 0.5, UT, UT, 0.505, RAISED, "raise capacity, re-admit a little",
            id="under_threshold_and_steady_counts_as_not_rising",
        ),
        pytest.param(
            1.0, 0.5, UT - 0.1, UT, 0.5, 0.8, "agree, no change",
            id="under_threshold_and_rising_waits",
        ),
        pytest.param(
            1.0, 1.0, UT + 0.1, UT, 1.0, 0.8, "agree, no change",
            id="under_threshold_without_shedding_waits",
        ),
        pytest.param(
            0.4, 1.0, OT - 0.1, OT, 0.99, LOWERED, "lower capacity, shed a little more",
            id="load_within_capacity_but_over_threshold_and_rising_lowers_the_capacity_and_sheds_one_percent",
        ),
        pytest.param(
            0.4, 0.5, OT, OT, 0.495, LOWERED, "lower capacity, shed a little more",
            id="over_threshold_and_steady_counts_as_not_falling",
        ),
        pytest.param(
            0.4, 0.5, OT + 0.1, OT, 0.5, 0.8, "agree, no change",
            id="over_threshold_but_falling_waits",
        ),
        pytest.param(
            0.8, 0.5, OT - 0.1, OT, 0.495, 0.8, "lower capacity, shed a little more",
            id="a_load_of_exactly_the_capacity_is_within_it",
        ),
        pytest.param(
            0.6, 0.5, UT, NORMAL, 0.5 * 0.8 / 0.6, 0.8, "re-admit the free capacity",
            id="load_within_capacity_and_normal_readmits_the_free_capacity",
        ),
        pytest.param(
            0.6, 0.5, UT - 0.1, UT, 0.5 * 0.8 / 0.6, 0.8, "re-admit the free capacity",
            id="under_threshold_readmits_the_free_capacity_even_while_rising",
        ),
        pytest.param(
            0.2, 0.5, UT, NORMAL, 1.0, 0.8, "re-admit the free capacity",
            id="readmission_ends_at_keeping_everything",
        ),
        pytest.param(
            0.6, 1.0, NORMAL, NORMAL, 1.0, 0.8, "agree, no change",
            id="load_within_capacity_and_normal_without_shedding_changes_nothing",
        ),
        pytest.param(
            0.6, 1.0, UT - 0.1, UT, 1.0, 0.8, "agree, no change",
            id="load_within_capacity_and_under_threshold_without_shedding_changes_nothing",
        ),
    ],
)  # fmt: skip
def test_capacity_and_drop_move_as_algorithm_1_says(
    load: float,
    keep: float,
    before_s: float,
    delay_s: float,
    keep_after: float,
    capacity_after: float,
    action: str,
) -> None:
    manager = aloma(capacity=0.8, previous_s=[before_s])
    decision = manager.decide(seen(load, keep, delay_s))
    assert decision.keep_fraction == pytest.approx(keep_after)
    assert decision.headroom == pytest.approx(capacity_after)
    assert decision.reason.endswith(f": {action}")
    state = "OT" if delay_s > 2 else "UT" if delay_s > 0.2 else "normal"
    assert decision.reason.startswith(f"{state}: load {load:.3f}, ")
    assert decision.expected.admitted_rows == pytest.approx(100 * keep_after)


def test_each_extra_drop_in_a_row_is_larger_by_the_binary_logarithm() -> None:
    manager, keep = aloma(capacity=0.8, previous_s=[OT]), 1.0
    for x in (0.01, 0.02, 0.01 + 0.01 * math.log2(3), 0.03, 0.01 + 0.01 * math.log2(5)):
        after = manager.decide(seen(0.3 * keep, keep, OT)).keep_fraction
        assert after == pytest.approx(keep * (1 - x))
        keep = after


def test_each_readmission_in_a_row_is_larger_by_the_binary_logarithm() -> None:
    manager, keep, delay_s = aloma(capacity=0.8, previous_s=[1.5]), 0.5, 1.5
    for x in (0.01, 0.02, 0.01 + 0.01 * math.log2(3), 0.03):
        delay_s -= 0.01
        after = manager.decide(seen(2.0, keep, delay_s)).keep_fraction
        assert after == pytest.approx(keep * (1 + x))
        keep = after


def test_another_situation_in_between_starts_the_row_anew() -> None:
    manager = aloma(capacity=0.8, previous_s=[OT])
    assert manager.decide(seen(0.3, 1.0, OT)).keep_fraction == pytest.approx(0.99)
    assert manager.decide(seen(0.3, 1.0, OT)).keep_fraction == pytest.approx(0.98)
    falling = manager.decide(seen(0.3, 1.0, OT - 0.1))
    assert falling.reason.endswith("agree, no change")
    assert manager.decide(seen(0.3, 1.0, OT)).keep_fraction == pytest.approx(0.99)


def test_the_smallest_change_is_one_percent() -> None:
    assert aloma(0.8).decide(seen(0.801, 0.5, OT)).keep_fraction == pytest.approx(0.5 * 0.99)
    assert aloma(0.8).decide(seen(0.799, 0.5, NORMAL)).keep_fraction == pytest.approx(0.5 * 1.01)
    coarse = aloma(0.8, smallest_step=0.05)
    assert coarse.decide(seen(0.801, 0.5, OT)).keep_fraction == pytest.approx(0.5 * 0.95)


def test_the_drop_is_capped_at_ninety_nine_percent() -> None:
    manager = aloma(0.8)
    assert manager.decide(seen(800.0, 1.0, OT)).keep_fraction == pytest.approx(0.01)
    assert manager.decide(seen(8.0, 0.01, OT)).keep_fraction == pytest.approx(0.01)
    assert aloma(0.8, max_drop_fraction=0.95).decide(seen(800.0, 1.0, OT)).keep_fraction == pytest.approx(
        0.05
    )


@pytest.mark.parametrize(
    ("before_s", "delay_s", "drops"),
    [
        pytest.param([2.4, 2.4, 2.4], [2.5, 2.5, 2.3], True, id="two_of_three_late_outputs_rise"),
        pytest.param([2.4, 2.4, 2.4], [2.5, 2.3, 2.3], False, id="one_of_three_late_outputs_rises"),
        pytest.param([2.4, 2.4], [2.5, 2.3], False, id="half_is_no_majority"),
        pytest.param([2.4, 0.1, 0.1], [2.5, 0.1, 0.1], True, id="outputs_in_time_have_no_say"),
        pytest.param([2.6, 0.1, 0.1], [2.5, 0.2, 0.2], False, id="outputs_in_time_that_rise_have_no_say"),
        pytest.param([2.4, nan], [2.5, nan], True, id="an_output_without_rows_has_no_say"),
        pytest.param([nan, nan], [2.5, nan], True, id="a_first_delay_counts_as_steady"),
    ],
)
def test_rising_is_by_majority_of_the_outputs_over_the_target(
    before_s: list[float], delay_s: list[float], drops: bool
) -> None:
    manager = aloma(0.8, [v if v == v else None for v in before_s], [0.1] * len(before_s))  # type: ignore[misc]
    after = manager.decide(seen(0.4, 1.0, *delay_s)).keep_fraction
    assert after == pytest.approx(0.99 if drops else 1.0)


@pytest.mark.parametrize(
    ("before_s", "delay_s", "readmits"),
    [
        pytest.param([1.0, 1.0, 1.0], [0.9, 0.9, 1.1], True, id="two_of_three_outputs_fall"),
        pytest.param([1.0, 1.0, 1.0], [0.9, 1.1, 1.1], False, id="one_of_three_outputs_falls"),
        pytest.param([1.0, 1.0], [0.9, 1.1], False, id="half_is_no_majority"),
    ],
)
def test_falling_is_by_majority_of_the_outputs(
    before_s: list[float], delay_s: list[float], readmits: bool
) -> None:
    after = aloma(0.8, before_s).decide(seen(1.0, 0.5, *delay_s)).keep_fraction
    assert after == pytest.approx(0.505 if readmits else 0.5)


def test_one_late_output_is_enough_for_over_threshold() -> None:
    decision = aloma(0.8, [0.1, 0.1, 0.1]).decide(seen(1.0, 1.0, 0.1, 0.1, 2.1))
    assert decision.reason.startswith("OT")


def test_one_output_past_its_own_o_point_is_enough_for_under_threshold() -> None:
    manager = aloma(0.8, [0.1, 1.0], smallest_s=[0.1, 1.0])
    assert manager.decide(seen(1.0, 1.0, 0.1, 1.9)).reason.startswith("normal"), "twice 1.0 is the O point"
    assert manager.decide(seen(1.0, 1.0, 0.3, 1.9)).reason.startswith("UT")


def test_the_first_delays_become_the_smallest_and_lower_ones_replace_them() -> None:
    manager = AlomaConfig(headroom=0.8).build()
    assert manager.decide(seen(0.5, 1.0, 0.4)).reason.startswith("normal")
    assert manager.decide(seen(0.5, 1.0, 0.2)).reason.startswith("normal")
    assert manager.decide(seen(0.5, 1.0, 0.45)).reason.startswith("UT")
    assert manager.state.smallest_s.tolist() == [0.2]


def test_the_smallest_delay_is_forgotten_by_doubling_every_so_many_periods() -> None:
    manager = AlomaConfig(refresh_periods=3).build()
    reasons = [
        manager.decide(seen(0.5, 1.0, delay)).reason.split(":")[0] for delay in (0.1, 0.35, 0.35, 0.35)
    ]
    # doubled to 0.2 in the third period, so 0.35 is within twice that
    assert reasons == ["normal", "UT", "normal", "normal"]
    assert manager.state.since_refresh == 1


def test_a_network_with_another_number_of_outputs_starts_its_records_anew() -> None:
    manager = aloma(0.8, [0.1])
    assert manager.decide(seen(1.0, 1.0, 0.5, 0.5)).reason.startswith("normal")
    assert manager.state.smallest_s.tolist() == [0.5, 0.5]


@pytest.mark.parametrize(
    "silent",
    [
        pytest.param(observation(keep_fraction=0.6, cost_per_row_s=None), id="no_cost_yet"),
        pytest.param(observation(keep_fraction=0.6, offered_rows=9), id="no_output_yet"),
        pytest.param(
            observation(keep_fraction=0.6, waiting_rows=9, output_delay_s=np.array([nan])),
            id="no_row_came_out",
        ),
    ],
)
def test_without_a_response_time_nothing_changes(silent: Observation) -> None:
    manager = AlomaConfig(headroom=0.8).build()
    decision = manager.decide(silent)
    assert (decision.keep_fraction, decision.headroom) == (0.6, 0.8)


def test_the_previous_delay_of_a_silent_output_is_remembered() -> None:
    manager = aloma(0.8, [2.4, 0.1])
    manager.decide(seen(0.4, 1.0, nan, 0.1))
    assert manager.decide(seen(0.4, 1.0, 2.3, 0.1)).keep_fraction == 1.0, "2.3 has fallen from 2.4"


def test_a_capacity_estimated_too_low_is_found_by_raising_it() -> None:
    """Constant load, normal response: eq. 5.1 brings the capacity up to the load and stops there."""
    manager = AlomaConfig(headroom=0.8).build()
    capacities = [manager.decide(seen(0.95, 1.0, 0.1)).headroom for _ in range(12)]
    assert all(a is not None and b is not None and a <= b <= 0.95 for a, b in pairwise(capacities))
    assert capacities[0] == pytest.approx(toward_load(0.8, 0.95))
    assert capacities[-1] == pytest.approx(0.95)


def test_a_stream_that_has_fallen_silent_is_readmitted() -> None:
    decision = aloma(0.8, [0.1]).decide(
        observation(keep_fraction=0.5, offered_rows=0, offered_load=0.0, output_delay_s=np.array([0.1]))
    )
    assert decision.keep_fraction == 1.0


def test_a_drop_of_everything_that_another_left_behind_is_readmitted() -> None:
    manager, keep = aloma(0.8, [0.1]), 0.0
    for _ in range(20):
        keep = manager.decide(
            observation(offered_rows=50, offered_load=0.4, keep_fraction=keep, output_delay_s=np.array([0.1]))
        ).keep_fraction
    assert keep == 1.0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"smallest_step": 0.0}, "smallest_step lies between 0 and 1; got: 0.0; hint: 0.01 is the thesis's"),
        ({"smallest_step": 1.0}, "smallest_step lies between 0 and 1; got: 1.0"),
        ({"refresh_periods": 0}, "refresh_periods must be at least 1; got: 0; hint: 200 is usual"),
        ({"headroom": 0.0}, "headroom must be a positive number; got: 0.0"),
    ],
)
def test_settings_that_break_a_rule_are_rejected(settings: dict[str, float], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        AlomaConfig(**settings)  # type: ignore[arg-type]
