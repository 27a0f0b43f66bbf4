"""The O point: twice the smallest delay seen, forgotten by doubling."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.policies.load.opoint import is_accumulating, refresh_smallest, track_smallest

nan = float("nan")


def test_the_smallest_delay_of_each_output_is_kept() -> None:
    smallest = track_smallest(np.array([nan, nan]), np.array([0.3, nan]))
    assert smallest[0] == 0.3
    assert np.isnan(smallest[1])
    smallest = track_smallest(smallest, np.array([0.5, 0.2]))
    assert smallest.tolist() == [0.3, 0.2]
    smallest = track_smallest(smallest, np.array([0.1, nan]))
    assert smallest.tolist() == [0.1, 0.2]


@pytest.mark.parametrize(
    ("delays", "accumulating"),
    [
        pytest.param([0.1, 0.2], False, id="at_the_smallest"),
        pytest.param([0.2, 0.4], False, id="at_exactly_twice"),
        pytest.param([0.2, 0.41], True, id="one_output_past_twice"),
        pytest.param([0.1, nan], False, id="an_output_without_rows_says_nothing"),
        pytest.param([nan, 9.0], True, id="an_output_without_rows_hides_no_other"),
    ],
)
def test_queueing_accumulates_past_twice_the_smallest_of_any_output(
    delays: list[float], accumulating: bool
) -> None:
    assert is_accumulating(np.array([0.1, 0.2]), np.array(delays)) is accumulating


def test_the_first_delay_is_its_own_smallest_and_so_normal() -> None:
    first = np.array([7.0])
    assert not is_accumulating(track_smallest(np.array([nan]), first), first)


def test_a_refresh_doubles_so_that_a_slower_system_sets_a_new_record() -> None:
    smallest = np.array([0.1])
    slower = np.array([0.35])
    assert is_accumulating(track_smallest(smallest, slower), slower)
    smallest = refresh_smallest(smallest)
    assert smallest.tolist() == [0.2]
    assert not is_accumulating(track_smallest(smallest, slower), slower)
    assert track_smallest(smallest, np.array([0.15])).tolist() == [0.15], "the new record is measured"


def test_a_refresh_leaves_an_output_that_was_never_seen_unseen() -> None:
    assert np.isnan(refresh_smallest(np.array([nan]))).all()
