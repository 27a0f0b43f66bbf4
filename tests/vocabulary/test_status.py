"""The status: histograms that watchers subtract, and JSON there and back."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.control.measure.delays import DelayLedger, stats
from penstock.vocabulary.histogram import Delays
from penstock.vocabulary.model import DelayStats
from penstock.vocabulary.status import ClassStatus, Status

delays = st.lists(st.floats(1e-3, 1e4), min_size=1, max_size=30).map(np.array)


def ledger(*parts: np.ndarray) -> DelayLedger:
    made = DelayLedger()
    for part in parts:
        made.add(part, np.ones(part.size))
    return made


@given(delays)
def test_percentiles_are_those_of_the_rows_to_a_bin(found: np.ndarray) -> None:
    ours, exact = ledger(found).so_far().stats(), stats(found, np.ones(found.size))
    assert (ours.count, ours.max_s) == (exact.count, exact.max_s)
    for name in ("p50_s", "p95_s", "p99_s"):
        assert getattr(exact, name) <= getattr(ours, name) * (1 + 1e-9)
        assert getattr(ours, name) <= getattr(exact, name) * 1.0201


@given(delays, delays)
def test_two_watchers_each_see_what_came_since_they_looked(first: np.ndarray, second: np.ndarray) -> None:
    early, late = ledger(first).so_far(), ledger(first, second).so_far()
    since, alone = late.since(early).stats(), ledger(second).so_far().stats()
    assert since.count == alone.count
    assert since.mean_s == pytest.approx(alone.mean_s, rel=1e-6, abs=1e-6)
    for name in ("p50_s", "p95_s", "p99_s"):
        assert getattr(since, name) == pytest.approx(getattr(alone, name), rel=0.0201)
    assert late.since(Delays()).rows == late.rows
    assert late.since(late) == Delays()


@given(delays)
def test_a_histogram_survives_json(found: np.ndarray) -> None:
    made = ledger(found).so_far()
    assert Delays.from_json(json.loads(json.dumps(made.to_json()))) == made


@given(st.integers(1, 10**9))
def test_without_bins_percentiles_are_kept_to_two_bins(count: int) -> None:
    said = {"count": count, "mean_s": 0.1, "p50_s": 0.052, "p95_s": 0.38, "p99_s": 0.9, "max_s": 2.0}
    made = Delays.from_json(said)
    for name, value in said.items():
        assert getattr(made.stats(), name) == pytest.approx(value, rel=0.04), name
    assert Delays.from_json(Delays().to_json(bins=False)).stats() == DelayStats()


def test_of_a_stretch_nothing_is_known_where_one_end_has_no_bins() -> None:
    counted = ledger(np.array([1.0, 2.0])).so_far()
    made_up = Delays.from_json(counted.to_json(bins=False))
    for stretch in (counted.since(made_up), made_up.since(counted)):
        assert stretch.stats() == DelayStats()


def a_class(found: Delays) -> ClassStatus:
    encoded = {
        "target_s": 2.0,
        "offered": 3,
        "admitted": 2,
        "shed": 1,
        "waiting": 0,
        "delay": found.to_json(),
    }
    return ClassStatus.from_json({**encoded, "queries": {"q": {"name": "q", "readers": {"r": {}}}}})


def test_a_status_survives_json_and_an_older_report_is_read() -> None:
    made = Status(1.0, 2.0, 1, True, {"gold": a_class(ledger(np.array([1.0, 2.0])).so_far())})
    assert Status.from_json(json.loads(json.dumps(made.to_json(bins=True)))) == made
    assert "classes" in made
    assert list(made) == list(made.to_json())
    assert made.classes["gold"].queries["q"].shed_reason is None, "what a report does not have is not known"
    assert made.classes["gold"].queries["q"].in_positions == (), "earlier logs had no gaps"


def test_figures_since_a_mark_are_those_of_the_one_who_marked() -> None:
    early, late = ledger(np.array([1.0])), ledger(np.array([1.0]), np.array([4.0, 4.0]))
    mine = Status(
        1.0, 2.0, 1, True, {"gold": a_class(late.so_far())}, marked={"gold": a_class(early.so_far())}
    )
    theirs = Status(1.0, 2.0, 1, True, {"gold": a_class(late.so_far())})
    assert mine.to_json()["classes"]["gold"]["admitted_since_mark"] == 2
    assert theirs.to_json()["classes"]["gold"]["admitted_since_mark"] == 3


def test_a_status_is_still_read_like_a_dict_and_says_that_this_is_old() -> None:
    made = Status(1.0, 2.0, 1, True, {"gold": a_class(Delays())})
    with pytest.warns(DeprecationWarning, match=r'status\["classes"\] is old: use status.classes'):
        assert made["classes"]["gold"]["target_s"] == 2.0
    with pytest.warns(DeprecationWarning, match="is old"):
        assert dict(made) == made.to_json()
