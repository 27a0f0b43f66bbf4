"""Rates of generated streams, and formats of files."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.pipeline.spec.sources import (
    ConstantRate,
    FilesSource,
    GeneratorSource,
    OnOffRate,
    RateStep,
    StepRate,
)

STEPS = StepRate(steps=(RateStep(from_s=0, rate_per_s=10), RateStep(from_s=5, rate_per_s=100)))
BURSTS = OnOffRate(high_per_s=100, low_per_s=10, high_s=2, low_s=8)


@pytest.mark.parametrize(
    ("rate", "at_s", "rows"),
    [
        (ConstantRate(rate_per_s=50), 4, 200),
        (STEPS, 0, 0),
        (STEPS, 5, 50),
        (STEPS, 7, 250),
        (BURSTS, 1, 100),
        (BURSTS, 2, 200),
        (BURSTS, 10, 280),
        (BURSTS, 11, 380),
    ],
)
def test_the_rows_that_are_due_are_the_rate_summed_over_time(
    rate: ConstantRate | StepRate | OnOffRate, at_s: float, rows: float
) -> None:
    assert rate.rows_until(at_s) == pytest.approx(rows)


@given(st.sampled_from([STEPS, BURSTS]), st.floats(0, 1000), st.floats(0, 100))
def test_the_rows_that_are_due_never_fall_and_never_exceed_the_highest_rate(
    rate: StepRate | OnOffRate, at_s: float, more_s: float
) -> None:
    rows = rate.rows_until(at_s + more_s) - rate.rows_until(at_s)
    assert -1e-6 <= rows <= 100 * more_s + 1e-6


def test_a_number_is_a_constant_rate() -> None:
    assert GeneratorSource.model_validate({"rate": 20}).rate == ConstantRate(rate_per_s=20)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("in/*.parquet", "parquet"),
        ("a.CSV", "csv"),
        ("*.jsonl", "json"),
        ("x.json", "json"),
        ("x.arrow", "arrow"),
    ],
)
def test_the_format_of_files_is_told_by_their_ending(path: str, expected: str) -> None:
    assert FilesSource(path=path).file_format == expected


def test_a_format_that_is_given_wins() -> None:
    assert FilesSource(path="in/*.csv", format="json").file_format == "json"
