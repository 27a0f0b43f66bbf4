"""Aurora: open loop, by hand. headroom / cost = 0.97 / 0.005 = 194 rows a second, 97 a period of 0.5 s."""

from __future__ import annotations

import pytest

from penstock.policies.load.aurora import AuroraConfig
from penstock.testing import observation
from penstock.vocabulary.errors import InvalidInputError


def test_aurora_admits_what_the_cpu_can_do_whatever_has_queued_up() -> None:
    manager = AuroraConfig(headroom=0.97).build()
    decision = manager.decide(observation(offered_rows=200, offered_load=2.0))
    assert decision.keep_fraction == pytest.approx(97 / 200)
    assert decision.reason == "load 2.000 above capacity 0.970"
    assert decision.expected.admitted_rows == pytest.approx(97)
    assert decision.expected.delay_s is None, "it promises no delay"
    queued = manager.decide(observation(offered_rows=200, offered_load=2.0, network_load_s=50.0))
    assert queued.keep_fraction == decision.keep_fraction


def test_aurora_readmits_everything_when_the_load_is_back_within_capacity() -> None:
    manager = AuroraConfig(headroom=0.97).build()
    assert manager.decide(observation(offered_rows=200, offered_load=2.0)).keep_fraction < 1.0
    calm = manager.decide(observation(offered_rows=90, offered_load=0.9, keep_fraction=0.485))
    assert calm.keep_fraction == 1.0
    assert calm.reason == "load 0.900 within capacity 0.970"
    assert manager.decide(observation(offered_rows=0, keep_fraction=0.485)).keep_fraction == 1.0


def test_aurora_counts_rows_that_wait_at_the_entry_once_at_the_keep_fraction_in_force() -> None:
    # 100 wait, of which 50 were to be kept; 97 more may come of 200: 147 of 300
    decision = (
        AuroraConfig(headroom=0.97)
        .build()
        .decide(observation(offered_rows=200, waiting_rows=100, keep_fraction=0.5))
    )
    assert decision.keep_fraction == pytest.approx(147 / 300)


def test_aurora_in_the_network_sheds_the_load_above_capacity_and_leaves_the_entry_open() -> None:
    manager = AuroraConfig(headroom=0.97, shedding="network").build()
    # Li = 200 * 0.005 = 1.0 CPU s, La = 0.97 * 0.5 = 0.485
    decision = manager.decide(observation(offered_rows=200, offered_load=2.0))
    assert decision.shed_load_s == pytest.approx(0.515)
    assert decision.keep_fraction == 1.0
    assert manager.decide(observation(offered_rows=90, offered_load=0.9)).shed_load_s == 0.0


def test_aurora_never_drops_more_than_its_largest_drop() -> None:
    flood = observation(offered_rows=10_000_000, offered_load=1e5)
    assert AuroraConfig().build().decide(flood).keep_fraction == pytest.approx(0.01)
    kept = AuroraConfig(max_drop_fraction=0.95).build().decide(flood).keep_fraction
    assert kept == pytest.approx(0.05)


def test_aurora_waits_for_a_cost_before_it_changes_anything() -> None:
    decision = AuroraConfig().build().decide(observation(cost_per_row_s=None, keep_fraction=0.7))
    assert (decision.keep_fraction, decision.reason) == (0.7, "no cost measured yet")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"headroom": 0.0}, "headroom must be a positive number; got: 0.0; hint: the fraction of the CPU"),
        ({"headroom": float("nan")}, "headroom must be a positive number; got: nan"),
        ({"max_drop_fraction": 0.0}, r"max_drop_fraction must lie in \(0, 1\]; got: 0.0; hint: 0.99 keeps"),
        ({"max_drop_fraction": 1.1}, r"max_drop_fraction must lie in \(0, 1\]; got: 1.1"),
    ],
)
def test_settings_that_break_a_rule_are_rejected(settings: dict[str, float], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        AuroraConfig(**settings)  # type: ignore[arg-type]
