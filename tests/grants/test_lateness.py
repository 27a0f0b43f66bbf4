"""Rows that a watermark drops, counted in the log."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.grants.offset import Books, Offset
from penstock.grants.plans import KEEP_ALL, ShedPlan, plan_for
from penstock.grants.selection import select
from penstock.lanes.windows import NO_TIME
from penstock.spark.driver import lateness
from penstock.spark.driver.lateness import LateRule, lost_of_grant, lost_rows
from penstock.streams.embedded.log import EmbeddedLog
from penstock.streams.layout import LogConfig

SCHEMA = pa.schema([("ts", pa.timestamp("us", tz="UTC"))])


def test_without_windows_a_row_at_the_watermark_is_late() -> None:
    assert lost_rows(np.array([9, 10, 11, NO_TIME]), LateRule("ts"), 10) == 2


def test_a_row_behind_the_watermark_whose_window_is_open_is_not_lost() -> None:
    rule = LateRule("ts", 10, 10)
    assert lost_rows(np.array([5, 12, 19, 25]), rule, 19) == 1
    assert lost_rows(np.array([5, 12, 19, 25]), rule, 20) == 3


def test_of_windows_that_overlap_a_row_loses_those_that_are_closed() -> None:
    assert lost_rows(np.array([7]), LateRule("ts", 10, 5), 10) == 0.5
    assert lost_rows(np.array([7]), LateRule("ts", 10, 5), 15) == 1.0


@given(
    st.lists(st.integers(-50, 200), max_size=20),
    st.integers(1, 30),
    st.integers(1, 30),
    st.integers(-20, 20),
    st.integers(-50, 200),
)
def test_it_is_what_looking_at_every_window_gives(
    times: list[int], length: int, slide: int, start: int, watermark: int
) -> None:
    slide = min(slide, length)
    expected = 0.0
    for t in times:
        windows = [s for s in range(start % slide - 300, 300) if (s - start) % slide == 0]
        ends = [s + length for s in windows if s <= t < s + length]
        expected += sum(end <= watermark for end in ends) / len(ends)
    rule = LateRule("ts", length, slide, start)
    assert lost_rows(np.array(times, np.int64), rule, watermark) == pytest.approx(expected)


def grant(log: EmbeddedLog, plan: ShedPlan) -> Offset:
    ends = {p: log.end(p) for p in range(log.partitions)}
    return Offset.initial("r", dict.fromkeys(ends, 0)).advanced(ends, {}, plan, Books())


@pytest.fixture
def log(tmp_path: Path) -> EmbeddedLog:
    """Two partitions of 200 segments, 10 rows each, of which three are before 1000."""
    made = EmbeddedLog.create(tmp_path / "s", SCHEMA, LogConfig(partitions=2))
    for i in range(400):
        times = [100 + i] * 3 + [2000 + i] * 7
        made.append(pa.record_batch([pa.array(times, SCHEMA.field("ts").type)], schema=SCHEMA), i % 2)
    return made


def test_all_rows_of_a_grant_are_counted_from_a_part_of_its_segments(log: EmbeddedLog) -> None:
    assert lost_of_grant(log, grant(log, KEEP_ALL), LateRule("ts"), 1000) == pytest.approx(1200)
    assert lost_of_grant(log, grant(log, KEEP_ALL), LateRule("ts"), 50) == 0
    assert lost_of_grant(log, grant(log, KEEP_ALL), LateRule("_arrival"), 1000) == 0


def test_only_rows_that_the_grant_admitted_count(log: EmbeddedLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lateness, "MOST_SEGMENTS", 1000)
    offset = grant(log, plan_for(0.5, "segment", seed=1))
    kept = sum(int(s.kept.sum()) for s in select(log, offset))
    assert 1000 < kept < 3000
    assert lost_of_grant(log, offset, LateRule("ts"), 1000) == pytest.approx(0.3 * kept)
    assert lost_of_grant(log, grant(log, plan_for(0.0, "segment", seed=1)), LateRule("ts"), 1000) == 0
