"""What the demo says of its own bounds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from penstock.grants.offset import Offset
from penstock.spark.capacity import Capacity
from penstock.spark.demo import CLASSES, GOVERNED_S, ClassRun, DemoResult
from penstock.spark.measured import Batch

CAPACITY = Capacity(300.0, 750, 2.5, 1.0)


def result(delay_s: float = 4.0, oldest_s: float = 2.0, rows: int = 100) -> DemoResult:
    """A run of batches of a second each, a class after the other, with the same delay of all rows."""
    status: dict[str, Any] = dict.fromkeys(("offered", "admitted", "shed", "waiting", "share"), 1)
    runs = {}
    for first, name in enumerate(CLASSES):
        done = [
            Batch(at, at + 1.0, rows, np.array([at + 1.0 - delay_s]), np.ones(1), Offset.initial("r", {}))
            for at in np.arange(float(first), GOVERNED_S, len(CLASSES)).tolist()
        ]
        runs[name] = ClassRun(done, 5.0, 1, oldest_s, status=status)
    return DemoResult(CAPACITY, CAPACITY, runs, 0.0, runs, 0.0)


def test_a_demo_that_keeps_its_bounds_says_nothing() -> None:
    good = result(rows=290)
    assert good.admitted_to_capacity == pytest.approx(290 / 300)
    assert good.missed == []


def test_a_demo_says_which_bound_it_missed() -> None:
    assert result(delay_s=5.5, rows=290).missed == [f"{name}'s p95: 5.50 s of 5 s" for name in CLASSES]
    assert result(oldest_s=6.0, rows=290).missed[0] == "gold's oldest waiting row: 6.00 s of 5 s"
    assert result(rows=200).missed == ["admitted 0.67 of the capacity, at least 0.8"]
