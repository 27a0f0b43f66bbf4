"""What was drawn together, from real plans; and how often intervals hold the true value."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.benches import bench_module
from tests.effort import tries

from penstock.grants.offset import Books, Offset
from penstock.grants.plans import SCALE, KeyPlan, SamplePlan, Sampling, plan_for
from penstock.grants.plans.sample import effective_segments
from penstock.grants.sampling_units import NO_UNIT, UnitColumns, drawn_by
from penstock.grants.selection import fitted_plan

windows = bench_module("micro.sampled_windows")
MadeStream, Overload, StreamShape = windows.MadeStream, windows.Overload, windows.StreamShape
coverage, sampled, true_sums = windows.coverage, windows.sampled, windows.true_sums

STREAM = MadeStream(StreamShape(seconds=6.0, partitions=2), seed=4)


def granted(
    keep: float, sampling: Sampling, seed: int = 7, grant_rows: int = 2000, grants: int = 1
) -> Offset:
    offset = Offset.initial("reader", {0: 0, 1: 0})
    for i in range(grants):
        plan = plan_for(keep, sampling, seed + i, STREAM.key_buckets)
        end = {p: position + grant_rows for p, position in offset.end.items()}
        offset = offset.advanced(end, {}, plan, Books())
    return replace(offset, plan=fitted_plan(STREAM, offset))


def all_segments(columns: dict[int, UnitColumns]) -> tuple[np.ndarray, np.ndarray]:
    return tuple(
        np.concatenate([getattr(c, name) for c in columns.values()]) for name in ("unit", "contrast")
    )


def test_rows_by_themselves_have_no_unit() -> None:
    drawn = drawn_by(STREAM, granted(0.25, "row"))
    assert (drawn.segments, drawn.buckets) == ({}, None)
    assert drawn.within == pytest.approx(3.0)


def test_a_grant_that_keeps_all_draws_nothing() -> None:
    drawn = drawn_by(STREAM, granted(1.0, "auto"))
    assert (drawn.within, drawn.segments) == (0.0, {})


def test_a_grant_that_keeps_nothing_draws_nothing() -> None:
    assert drawn_by(STREAM, granted(0.0, "row")).within == 0.0
    assert drawn_by(STREAM, granted(0.0, "segment")).segments == {}


def test_the_opened_segments_are_those_with_a_unit() -> None:
    offset = granted(0.2, "auto")
    drawn = drawn_by(STREAM, offset)
    for p, columns in drawn.segments.items():
        first = STREAM.header_arrays(p, 0, offset.end[p]).first_position
        assert columns.first.tolist() == first[offset.plan.opens(p, first)].tolist()
    assert drawn.within == pytest.approx(SCALE / offset.plan.row_keep - 1)


def test_segments_of_evened_grants_are_set_against_each_other() -> None:
    unit, contrast = all_segments(drawn_by(STREAM, granted(0.3, "segment")).segments)
    assert 2 <= np.unique(unit[contrast != 0]).size <= unit.size / 2
    assert (contrast > 0).any()
    assert (contrast < 0).any()


def test_few_segments_whose_weights_are_their_chance_are_units_by_themselves() -> None:
    offset = granted(0.1, "segment", grant_rows=800)
    assert offset.plan.drawn == 0
    unit, contrast = all_segments(drawn_by(STREAM, offset).segments)
    assert np.unique(unit).size == unit.size > 0
    assert contrast == pytest.approx(np.full(unit.size, np.sqrt(0.9)))


def test_units_of_two_grants_differ() -> None:
    first, second = (drawn_by(STREAM, granted(0.3, "segment", grants=n)) for n in (1, 2))
    assert not set(all_segments(first.segments)[0]) & set(all_segments(second.segments)[0])


def test_units_of_buckets_last_and_buckets_that_are_shed_have_none() -> None:
    one, more = (granted(keep, "key") for keep in (0.25, 0.5))
    few, many = (drawn_by(STREAM, offset).buckets for offset in (one, more))
    assert few is not None
    assert many is not None
    kept = one.plan.kept_buckets(STREAM.key_buckets)
    assert (few.unit[kept] == many.unit[kept]).all()
    assert ((few.unit == NO_UNIT) == ~kept).all()


def test_units_of_two_readers_differ() -> None:
    offset = granted(0.5, "key")
    mine, other = (drawn_by(STREAM, o).buckets for o in (offset, replace(offset, reader="another")))
    assert mine is not None
    assert other is not None
    kept = offset.plan.kept_buckets(STREAM.key_buckets)
    assert not set(mine.unit[kept]) & set(other.unit[kept])


def test_ranks_and_tosses_say_what_is_kept() -> None:
    plan = KeyPlan(key_keep=9, seed=3)
    assert sorted(plan.ranks(32)) == list(range(32))
    assert (plan.kept_buckets(32) == (plan.ranks(32) < 9)).all()
    plan, first = SamplePlan("segment", segment_keep=SCALE // 3, seed=3), np.arange(0, 900, 9)
    assert (plan.opens(1, first) == (plan.tosses(1, first) < SCALE // 3)).all()


def test_weights_of_an_evened_grant_of_whole_segments_add_up_to_its_rows() -> None:
    shape = StreamShape(seconds=2.0, window_s=100.0, groups=1)
    stream = MadeStream(shape, seed=1)
    rows, _ = sampled(stream, Overload("segment", 0.4, 0.4, grant_s=2.0), seed=5)
    assert rows.weight.sum() == pytest.approx(true_sums(stream)[0].rows, rel=1e-6)
    between = np.bincount(np.unique(rows.unit, return_inverse=True)[1], rows.contrast * rows.weight)
    assert np.abs(between).max() < 1e-6 * rows.weight.sum()  # and the estimate knows it


CASES = {
    "rows": (StreamShape(), Overload("row", 0.1, 0.4)),
    "rows in chosen segments": (StreamShape(), Overload("auto", 0.1, 0.4)),
    "segments": (StreamShape(), Overload("segment", 0.2, 0.5)),
    "segments in long grants, values that grow": (
        StreamShape(values="trend", window_s=3.0),
        Overload("segment", 0.4, 0.6, grant_s=2.0),
    ),
    "a cohort of keys": (StreamShape(), Overload("key", 0.3, 0.3)),
    "a cohort that grows and shrinks": (StreamShape(), Overload("key", 0.3, 0.5)),
}


@pytest.mark.briefly("rows", "segments", "a cohort of keys")
@pytest.mark.parametrize(("shape", "overload"), CASES.values(), ids=CASES)
def test_intervals_of_95_percent_hold_the_true_value_so_often(shape: Any, overload: Any) -> None:
    for aggregate, found in coverage(shape, overload, repeats=tries(80, 160), seed=2).items():
        assert found.intervals > tries(750, 1500), aggregate
        assert 93 <= found.percent <= 97, aggregate


def uneven(sampling: Sampling, keep: float, sizes: str, sigma: float = 1.0) -> tuple[Any, Any]:
    shape = StreamShape(sizes=sizes, size_sigma=sigma, values="segment", seconds=8.0)
    return shape, Overload(sampling, keep, keep)


UNEVEN = {
    "segments, sigma 1": uneven("segment", 0.3, "lognormal"),
    "rows in segments, sigma 2": uneven("auto", 0.2, "lognormal", 2.0),
    "segments of 1, 10, 100 and 2,000 rows": uneven("segment", 0.3, "decades"),
}


@pytest.mark.briefly("segments, sigma 1")
@pytest.mark.parametrize(("shape", "overload"), UNEVEN.values(), ids=UNEVEN)
def test_intervals_hold_as_often_where_segments_differ_in_size_and_their_rows_are_alike(
    shape: Any, overload: Any
) -> None:
    streams = 40 if shape.sizes == "decades" else tries(50, 100)
    for aggregate, found in coverage(shape, overload, 4 * streams, seed=2, streams=streams).items():
        assert found.intervals > tries(500, 1000), aggregate
        assert abs(found.percent - 95) <= tries(3, 2), aggregate


def test_a_few_segments_with_most_of_the_rows_give_no_interval_whatever_the_others_are() -> None:
    shape, overload = uneven("segment", 0.3, "lognormal", 2.0)
    found = coverage(shape, overload, repeats=40, seed=2, streams=20)
    assert all(tally.intervals <= 0.02 * tally.without for tally in found.values())


def test_where_a_few_segments_have_most_rows_more_are_opened_and_their_rows_sampled() -> None:
    even = np.full(100, 20)
    large = np.where(np.arange(100) % 50 == 0, 20_000, 20)
    assert effective_segments(even) == pytest.approx(100)
    assert effective_segments(large) == pytest.approx(2.2, abs=0.01)
    assert effective_segments(np.empty(0, np.int64)) == 0.0
    stream = MadeStream(StreamShape(sizes="lognormal", size_sigma=2.0, seconds=2.0), seed=1)
    offset = Offset.initial("r", {0: 0})
    offset = offset.advanced({0: stream.end()}, {}, plan_for(0.2, "auto", 3), Books())
    plan = fitted_plan(stream, offset)
    assert plan.segment_keep > offset.plan.segment_keep
    assert plan.chance() == pytest.approx(0.2, rel=1e-6)
