"""The vocabulary and its errors: every message says the rule, the value and a hint."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.policies.load import LOAD_MANAGERS, manager_config
from penstock.testing import observation
from penstock.vocabulary.errors import (
    InvalidInputError,
    MissingExtraError,
    PenstockError,
    UnknownNameError,
    require_fraction,
    require_positive,
)
from penstock.vocabulary.model import NO_ROWS, DelayStats, QueryClass, WaitingRows, reject_duplicates


def message_of(error: pytest.ExceptionInfo[InvalidInputError]) -> tuple[str, object, str]:
    """Checks that the text holds all three parts, and gives them."""
    e = error.value
    assert str(e) == f"expected: {e.rule}; got: {e.got}; hint: {e.hint}"
    return e.rule, e.got, e.hint


@pytest.mark.parametrize(
    ("settings", "rule", "got", "hint"),
    [
        pytest.param({"name": ""}, "a class needs a name", "''", "gold", id="an_empty_name"),
        pytest.param({"name": "  "}, "a class needs a name", "'  '", "gold", id="a_blank_name"),
        pytest.param(
            {"priority": 0.0},
            "class gold: priority must be a positive number",
            0.0,
            "higher means more important",
            id="a_priority_of_zero",
        ),
        pytest.param(
            {"priority": -1.0},
            "class gold: priority must be a positive number",
            -1.0,
            "higher means more important",
            id="a_negative_priority",
        ),
        pytest.param(
            {"delay_target_s": 0.0},
            "class gold: delay target must be a positive number",
            0.0,
            "give it in seconds",
            id="a_target_of_zero",
        ),
        pytest.param(
            {"delay_target_s": math.inf},
            "class gold: delay target must be a positive number",
            math.inf,
            "give it in seconds",
            id="an_infinite_target",
        ),
        pytest.param(
            {"period_s": -0.5},
            "class gold: period must be a positive number",
            -0.5,
            "a quarter of the delay target",
            id="a_negative_period",
        ),
    ],
)
def test_a_class_that_breaks_a_rule_is_rejected_with_rule_value_and_hint(
    settings: dict[str, Any], rule: str, got: object, hint: str
) -> None:
    with pytest.raises(InvalidInputError) as error:
        QueryClass(**{"name": "gold", **settings})
    said = message_of(error)
    assert said[:2] == (rule, got)
    assert hint in said[2]


@pytest.mark.parametrize("field", ["priority", "delay_target_s", "period_s"])
def test_a_class_rejects_nan_wherever_it_wants_a_number(field: str) -> None:
    with pytest.raises(InvalidInputError, match="must be a positive number; got: nan"):
        QueryClass(**{"name": "gold", field: math.nan})


def test_a_class_may_leave_the_period_to_its_manager() -> None:
    assert QueryClass("gold").period_s is None
    assert QueryClass("gold", period_s=0.5).period_s == 0.5


def test_names_that_differ_pass_and_a_name_that_occurs_twice_is_named() -> None:
    reject_duplicates("class", ["gold", "silver", "Gold"])
    with pytest.raises(InvalidInputError) as error:
        reject_duplicates("class", ["gold", "silver", "gold"])
    rule, got, hint = message_of(error)
    assert (rule, got) == ("class names must differ", "'gold'")
    assert hint.startswith("rename one of them")


def test_a_number_must_be_positive_and_finite() -> None:
    require_positive("cost", 1e-12, "unused")
    for bad in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(
            InvalidInputError, match=r"^expected: cost must be a positive .*; got: .*; hint: h$"
        ):
            require_positive("cost", bad, "h")


def test_a_fraction_lies_between_zero_and_one_inclusive() -> None:
    for good in (0.0, 0.5, 1.0):
        require_fraction("keep", good, "unused")
    for bad in (-0.01, 1.01, math.nan):
        with pytest.raises(
            InvalidInputError, match=r"^expected: keep must lie between .*; got: .*; hint: h$"
        ):
            require_fraction("keep", bad, "h")


def test_a_missing_extra_says_what_to_install() -> None:
    error = MissingExtraError("the simulated plant", "numba", "sim")
    assert isinstance(error, PenstockError)
    assert str(error) == (
        "expected: the simulated plant needs the package 'numba'; got: a Python without this package; "
        "hint: pip install 'penstock[sim]'"
    )
    assert (error.got, error.hint) == ("a Python without this package", "pip install 'penstock[sim]'")


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("alomo", "aloma"),
        ("ALOMA", "aloma"),
        ("contrl", "ctrl"),
        ("seemless", "seamless"),
        ("dedline", "deadline"),
        ("arora", "aurora"),
        ("base-line", "baseline"),
    ],
)
def test_an_unknown_manager_is_answered_with_the_nearest_known_one(written: str, meant: str) -> None:
    with pytest.raises(UnknownNameError) as error:
        manager_config(written)
    rule, got, hint = message_of(error)
    assert rule == f"manager must be one of {', '.join(sorted(LOAD_MANAGERS))}"
    assert (got, hint) == (repr(written), f"did you mean {meant!r}?")


def test_a_name_near_to_nothing_is_answered_with_the_whole_list() -> None:
    with pytest.raises(UnknownNameError) as error:
        manager_config("xyz")
    assert error.value.hint == "choose one of aloma, aurora, baseline, ctrl, deadline, seamless"


def test_an_unknown_setting_is_answered_with_the_nearest_setting_of_that_manager() -> None:
    with pytest.raises(UnknownNameError) as error:
        manager_config("ctrl", headrom=0.9)
    rule, got, hint = message_of(error)
    assert rule == "a setting of ctrl must be one of controller, headroom, max_drop_fraction, shedding"
    assert (got, hint) == ("'headrom'", "did you mean 'headroom'?")


def test_a_known_setting_reaches_the_configuration() -> None:
    assert manager_config("seamless", headroom=0.5, adjustment_periods=7).adjustment_periods == 7


def test_no_delays_have_no_statistics() -> None:
    assert DelayStats.of(np.empty(0)) == DelayStats(0, None, None, None, None, None)


def test_one_delay_is_all_of_its_statistics() -> None:
    assert DelayStats.of(np.array([0.3])) == DelayStats(1, 0.3, 0.3, 0.3, 0.3, 0.3)


def test_delay_statistics_do_not_depend_on_the_order_of_the_samples() -> None:
    samples = np.arange(101.0)
    shuffled = np.random.default_rng(1).permutation(samples)
    assert DelayStats.of(shuffled) == DelayStats.of(samples) == DelayStats(101, 50.0, 50.0, 95.0, 99.0, 100.0)
    assert shuffled.tolist() != sorted(shuffled.tolist()), "the samples themselves are left as they were"


@settings(max_examples=60, derandomize=True)
@given(st.lists(st.floats(0, 1e4), min_size=1, max_size=50))
def test_delay_percentiles_are_samples_and_rise(samples: list[float]) -> None:
    stats = DelayStats.of(np.array(samples))
    assert stats.count == len(samples)
    assert {stats.p50_s, stats.p95_s, stats.p99_s, stats.max_s} <= set(samples)
    assert stats.p50_s is not None
    assert stats.mean_s is not None
    assert stats.p50_s <= stats.p95_s <= stats.p99_s <= stats.max_s  # type: ignore[operator]
    assert min(samples) - 1e-9 <= stats.mean_s <= max(samples) + 1e-9


def test_waiting_rows_are_summed() -> None:
    assert NO_ROWS.total == 0.0
    assert WaitingRows(np.array([1.0, 2.0]), np.array([3.0, 4.0])).total == 7.0


def test_an_observation_derives_rate_and_admitted_load() -> None:
    seen = observation(period_s=0.5, offered_rows=100, offered_load=1.5, keep_fraction=0.4)
    assert seen.offered_rate_per_s == 200.0
    assert seen.admitted_load == pytest.approx(0.6)


def test_delay_statistics_go_through_json() -> None:
    stats = DelayStats.of(np.array([0.1, 0.2]))
    values = {name: getattr(stats, name) for name in DelayStats.__slots__}
    assert DelayStats(**json.loads(json.dumps(values))) == stats
