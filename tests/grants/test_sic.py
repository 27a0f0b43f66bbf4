"""What a row is worth in a grant, from the log's headers; and plans that a shedder chose."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from penstock.grants.offset import Books, Offset
from penstock.grants.plans import SCALE, ChosenPlan, SamplePlan
from penstock.grants.sampling_units import DRAWN_TYPE, drawn_by, drawn_column
from penstock.grants.selection import Range, fitted_plan, grant_books, read_range, select
from penstock.grants.sic import row_sic, window_rows
from penstock.streams.embedded.log import EmbeddedLog
from penstock.streams.layout import LogConfig
from penstock.testing import ManualClock

SCHEMA = pa.schema([("v", pa.int64())])
SECOND = 1_000_000


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EmbeddedLog]:
    """Twenty seconds of 100 rows each, a segment a second."""
    clock = ManualClock(1000.0)
    with EmbeddedLog.create(tmp_path / "s", SCHEMA, clock=clock) as made:
        for second in range(20):
            made.append(pa.record_batch([np.arange(100) + 100 * second], schema=SCHEMA))
            clock.advance(1.0)
        yield made


def test_rows_of_one_window_share_the_sic_of_their_source(log: EmbeddedLog) -> None:
    assert window_rows(log, {0: 2000}, 10 * SECOND) == pytest.approx(1000, rel=0.11)
    one = row_sic(log, {0: 2000}, 10 * SECOND, 1)
    assert one == pytest.approx(1 / window_rows(log, {0: 2000}, 10 * SECOND))
    assert row_sic(log, {0: 2000}, 10 * SECOND, 4) == pytest.approx(one / 4)


def test_a_stream_younger_than_the_window_is_scaled_up(log: EmbeddedLog) -> None:
    assert window_rows(log, {0: 300}, 10 * SECOND) == pytest.approx(300 * 10 / 2, rel=0.01)


def test_a_stream_without_rows_has_a_sic_all_the_same(log: EmbeddedLog) -> None:
    assert row_sic(log, {0: 0}, 10 * SECOND, 2) == 0.5


def test_a_position_beyond_the_end_of_the_log_has_no_rows_of_a_window(log: EmbeddedLog) -> None:
    """A log that lost its last rows is refused by the source; whoever looks in between gets no error."""
    assert window_rows(log, {0: 2500}, 10 * SECOND) == 0.0
    assert row_sic(log, {0: 2500}, 10 * SECOND, 2) == 0.5


def test_of_the_sic_that_rows_of_a_segment_bring_a_query_counts_the_part_of_one_source(
    tmp_path: Path,
) -> None:
    with EmbeddedLog.create(tmp_path / "hot", SCHEMA, LogConfig(origin=True)) as segment:
        assert row_sic(segment, {0: 0}, 10 * SECOND, 1) == 1.0
        assert row_sic(segment, {0: 0}, 10 * SECOND, 4) == 0.25


def chosen(drawn: int = 0) -> Offset:
    plan = ChosenPlan(chosen={0: (300, 500, 600)}, drawn=drawn)
    return Offset("r", {0: 250}, {0: 900}, 3, {0: 0}, plan, Books())


def test_chosen_segments_are_kept_whole_and_counted_exactly(log: EmbeddedLog) -> None:
    offset = chosen()
    selections = select(log, offset)
    assert grant_books(log, offset, selections) == Books(admitted=300, sampled=350)
    pieces = read_range(log, offset.plan, Range(0, offset.start[0], offset.end[0], 0))
    rows = [v for piece in pieces for v in piece.rows.column("v").to_pylist()]
    assert rows == [*range(300, 400), *range(500, 700)]
    assert fitted_plan(log, offset) == offset.plan


def test_a_chosen_plan_and_its_sic_survive_the_offset_log() -> None:
    offset = Offset("r", {0: 250}, {0: 900}, 3, {}, chosen(SCALE // 2).plan, Books(), sic=0.001)
    read = Offset.from_json(json.loads(json.dumps(offset.to_json())))
    assert read == offset
    assert not read.plan.keeps_all


def test_a_chance_is_known_only_where_coins_chose() -> None:
    assert chosen().plan.chance() is None
    assert chosen(SCALE // 2).plan.chance() == pytest.approx(0.5)
    assert chosen().plan.opens(1, np.array([300])).tolist() == [False], "of another partition"


def test_rows_say_how_they_were_drawn(log: EmbeddedLog) -> None:
    offset = chosen(SCALE // 2)
    drawn = drawn_by(log, offset)
    pieces = list(read_range(log, offset.plan, Range(0, 250, 900, 0)))
    columns = [drawn_column(drawn, 0, piece) for piece in pieces]
    assert all(column.type == DRAWN_TYPE for column in columns)
    first = [column[0].as_py() for column in columns]
    assert all(row["known"] and row["within"] == 0.0 for row in first)
    assert len({row["unit"] for row in first}) <= 2, "segments are set against each other"
    assert not drawn_by(log, chosen()).known
    late = Offset("r", {0: 250}, {0: 900}, 3, {0: 350}, SamplePlan(), Books())
    assert not drawn_by(log, late).known, "late rows had no chance"
