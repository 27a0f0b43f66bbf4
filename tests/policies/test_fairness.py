"""Jain's index, the spreads, and quality of data."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.policies.quality import Spread, jain_index, qod_percent
from penstock.vocabulary.errors import InvalidInputError


def test_jain_is_1_when_all_are_equal_and_1_over_n_when_one_has_everything() -> None:
    assert jain_index(np.full(7, 0.3)) == pytest.approx(1.0)
    assert jain_index(np.array([0.0, 0.0, 0.8, 0.0])) == pytest.approx(0.25)
    assert jain_index(np.zeros(3)) == 1.0


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=30), st.floats(0.1, 10.0))
def test_jain_lies_between_1_over_n_and_1_and_does_not_depend_on_the_scale(
    values: list[float], scale: float
) -> None:
    array = np.array(values)
    array[array < 1e-6] = 0.0
    jain = jain_index(array)
    assert 1 / len(values) - 1e-9 <= jain <= 1 + 1e-9
    assert jain_index(array * scale) == pytest.approx(jain)


def test_a_spread_by_hand() -> None:
    spread = Spread.of(np.arange(101) / 100)
    assert (spread.mean, spread.iqr, spread.q95_q05) == pytest.approx((0.5, 0.5, 0.9))
    assert spread.std == pytest.approx(np.sqrt((101**2 - 1) / 12) / 100)
    assert spread.jain == pytest.approx(0.5**2 / (0.5**2 + spread.std**2))


def test_fairness_of_nothing_or_of_unknown_values_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="over at least one query; got: none; hint: give their SIC"):
        jain_index(np.empty(0))
    with pytest.raises(InvalidInputError, match=r"not negative; got: .nan.; hint: leave unknown ones out"):
        Spread.of(np.array([0.1, np.nan]))


def test_quality_of_data_is_the_output_that_shedding_left() -> None:
    assert qod_percent(30, 40) == 75.0
    assert qod_percent(0, 0) is None
    with pytest.raises(InvalidInputError, match="between none and all of the output; got: 5 of 4"):
        qod_percent(5, 4)
