"""Shed plans: a function of positions alone, unbiased, and cheap where little is kept."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.plans import kept_rows

from penstock.grants.plans import (
    KEEP_ALL,
    SCALE,
    KeyPlan,
    SamplePlan,
    ShedPlan,
    grant_seed,
    plan_for,
    plan_from_json,
)
from penstock.vocabulary.errors import InvalidInputError

SEGMENT_ROWS = 100
fractions = st.floats(0.0, 1.0)
seeds = st.integers(0, 2**31 - 1)


def kept(plan: ShedPlan, partition: int, segments: int) -> np.ndarray:
    """Which of the rows of whole segments are kept."""
    firsts = np.arange(segments, dtype=np.int64) * SEGMENT_ROWS
    inside = kept_rows(plan, partition, 0, segments * SEGMENT_ROWS)
    return inside & np.repeat(plan.opens(partition, firsts), SEGMENT_ROWS)


@given(fractions, seeds, st.integers(0, 40), st.integers(0, 10**12), st.integers(1, 300), st.data())
def test_whoever_asks_for_a_row_gets_the_same_answer(
    keep: float, seed: int, partition: int, first: int, rows: int, data: st.DataObject
) -> None:
    plan = plan_for(keep, "row", seed)
    whole = kept_rows(plan, partition, first, first + rows)
    cut = data.draw(st.integers(0, rows))
    parts = (
        kept_rows(plan, partition, first, first + cut),
        kept_rows(plan, partition, first + cut, first + rows),
    )
    np.testing.assert_array_equal(np.concatenate(parts), whole)


@given(fractions, seeds, st.integers(0, 40), st.lists(st.integers(0, 2**40), min_size=1, max_size=50))
def test_a_segment_is_opened_or_not_whatever_it_is_asked_together_with(
    keep: float, seed: int, partition: int, firsts: list[int]
) -> None:
    plan = plan_for(keep, "segment", seed)
    together = plan.opens(partition, np.array(firsts, np.int64))
    alone = [bool(plan.opens(partition, np.array([first], np.int64))[0]) for first in firsts]
    assert together.tolist() == alone


@pytest.mark.parametrize("seed", [0, 1, 12345])
@pytest.mark.parametrize("keep", [1.0, 0.5, 0.05])
@pytest.mark.parametrize("sampling", ["row", "segment", "auto"])
def test_the_kept_part_is_the_keep_fraction_within_binomial_bounds(
    sampling: str, keep: float, seed: int
) -> None:
    plan = plan_for(keep, sampling, seed)  # type: ignore[arg-type]
    segments = 20_000
    rows = segments * SEGMENT_ROWS
    # rows of a segment share its coin: the variance of a sum over segments, worked out for both coins
    o, r = plan.segment_keep / SCALE, plan.row_keep / SCALE
    of_segment = o * (SEGMENT_ROWS * r * (1 - r) + (SEGMENT_ROWS * r) ** 2) - (SEGMENT_ROWS * keep) ** 2
    deviation = math.sqrt(max(0.0, segments * of_segment))
    assert abs(int(kept(plan, 3, segments).sum()) - keep * rows) <= 4.5 * deviation
    assert plan.chance() == pytest.approx(keep, abs=1e-8)


def test_rows_are_kept_evenly_along_the_stream_and_partitions_differ() -> None:
    plan = plan_for(0.3, "row", 7)
    for stretch in kept_rows(plan, 0, 0, 100_000).reshape(10, -1):
        assert stretch.sum() == pytest.approx(3000, abs=4.5 * math.sqrt(10_000 * 0.3 * 0.7))
    same = (kept_rows(plan, 0, 0, 10_000) == kept_rows(plan, 1, 0, 10_000)).mean()
    assert same == pytest.approx(0.3**2 + 0.7**2, abs=0.03), "two partitions are independent"
    other = (kept_rows(plan, 0, 0, 10_000) == kept_rows(plan_for(0.3, "row", 8), 0, 0, 10_000)).mean()
    assert other == pytest.approx(0.3**2 + 0.7**2, abs=0.03), "and so are two seeds"
    further = (kept_rows(plan, 0, 1, 10_001) == kept_rows(plan_for(0.3, "row", 8), 0, 0, 10_000)).mean()
    assert further == pytest.approx(0.3**2 + 0.7**2, abs=0.03), "also one position further on"


def test_the_coins_of_rows_do_not_follow_those_of_their_segment() -> None:
    plan = SamplePlan("row", segment_keep=SCALE // 2, row_keep=SCALE // 2, seed=5)
    firsts = np.arange(4000, dtype=np.int64) * SEGMENT_ROWS
    is_open = plan.opens(0, firsts)
    first_rows = kept_rows(plan, 0, 0, 4000 * SEGMENT_ROWS)[firsts]
    assert first_rows[is_open].mean() == pytest.approx(0.5, abs=0.05)


@given(fractions.filter(lambda keep: keep < 1.0), seeds)
def test_auto_skips_whole_segments_where_little_is_kept_and_opens_the_others_for_half(
    keep: float, seed: int
) -> None:
    plan = plan_for(keep, "auto", seed)
    assert plan.row_keep >= 0.5 * SCALE
    if keep >= 0.5:
        assert plan.segment_keep == SCALE
    else:
        assert plan.segment_keep == pytest.approx(2 * keep * SCALE, abs=1)
    assert plan.chance() == pytest.approx(keep, abs=1e-9)


@given(seeds, st.integers(1, 256), fractions, fractions)
def test_a_cohort_of_keys_only_grows_with_the_keep_fraction(
    seed: int, buckets: int, one: float, two: float
) -> None:
    fewer, more = sorted((one, two))
    small = KeyPlan(key_keep=round(fewer * buckets), seed=seed).kept_buckets(buckets)
    large = KeyPlan(key_keep=round(more * buckets), seed=seed).kept_buckets(buckets)
    assert small.sum() == round(fewer * buckets)
    assert not (small & ~large).any()


@given(fractions, st.sampled_from(["auto", "row", "segment", "key"]), seeds)
def test_a_plan_survives_json(keep: float, sampling: str, seed: int) -> None:
    plan = plan_for(keep, sampling, seed, key_buckets=64)  # type: ignore[arg-type]
    assert plan_from_json(json.loads(json.dumps(plan.to_json()))) == plan
    assert plan.chance(64) == pytest.approx(keep, abs=0.5 / 64 if sampling == "key" else 1e-8)


def test_keeping_everything_is_said_in_no_bytes() -> None:
    assert plan_for(1.0, "key", 9, 64) == KEEP_ALL
    assert KEEP_ALL.to_json() == {}
    assert KEEP_ALL.keeps_all
    assert not plan_for(0.999, "row", 9).keeps_all


@pytest.mark.parametrize("sampling", ["auto", "row", "segment", "key"])
def test_keeping_nothing_keeps_nothing(sampling: str) -> None:
    plan = plan_for(0.0, sampling, 3, key_buckets=8)  # type: ignore[arg-type]
    if sampling == "key":
        assert not plan.kept_buckets(8).any()
    else:
        assert not kept(plan, 0, 50).any()


@pytest.mark.parametrize("keep", [-0.1, 1.1, math.nan])
def test_a_keep_fraction_outside_0_and_1_is_refused(keep: float) -> None:
    with pytest.raises(
        InvalidInputError, match=r"a keep fraction lies between 0 and 1; got: .*; hint: clamp it"
    ):
        plan_for(keep, "auto", 1)


def test_sampling_by_key_is_refused_on_a_stream_without_one() -> None:
    with pytest.raises(InvalidInputError, match=r"sampling by key needs a stream with a key; .* declare key"):
        plan_for(0.5, "key", 1)


def test_the_seed_of_a_grant_does_not_depend_on_the_version_of_python() -> None:
    """Offsets that a run recorded are compared with those of later runs."""
    assert [grant_seed(7, grant) for grant in (1, 2, 1_000)] == [1329792355, 2000695030, 446689685]
    assert len({grant_seed(7, grant) for grant in range(2_000)}) == 2_000
    assert grant_seed(8, 1) != grant_seed(7, 1)
