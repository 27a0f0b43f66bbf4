"""`spark/coverage` must be able to see intervals that are too narrow: which results it looks at."""

from __future__ import annotations

import sys
from types import ModuleType

import pyarrow as pa
import pytest

from penstock.bench import load_benches


@pytest.fixture(scope="module")
def coverage() -> ModuleType:
    return sys.modules[load_benches()["spark/coverage"].function.__module__]


def test_rows_that_weigh_more_than_they_are_were_shed_whatever_the_estimate_says(
    coverage: ModuleType,
) -> None:
    said = ["nothing was shed", "nothing was shed", "40 units", "none: rows were dropped"]
    results = pa.table(
        {"count": [40.0, 160.0, 41.0, None], "kept": [40.0, 40.0, 40.0, 40.0], "interval": said}
    )
    assert coverage.was_shed(results).tolist() == [False, True, True, True]


def test_an_interval_without_width_beside_the_true_value_does_not_hold_it(coverage: ModuleType) -> None:
    results = pa.table(
        {
            "count_low": [160.0, 160.0, None, 100.0],
            "count_high": [160.0, 160.0, None, 200.0],
            "true_count": [120.0, 160.0, 7.0, 150.0],
        }
    )
    assert coverage._inside(results, "count") == pytest.approx(2 / 3)
    assert coverage._inside(results.slice(2, 1), "count") == 0.0
