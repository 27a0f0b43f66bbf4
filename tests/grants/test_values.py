"""Plans that look into rows: the best by utility, or whole windows; exact counts, and the same rows again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.config.shedding import RangeSettings
from penstock.grants.journal import Entry
from penstock.grants.offset import Books, Offset
from penstock.grants.plans import SCALE, ShedPlan, UtilityPlan, WindowPlan
from penstock.grants.plans.values import (
    NO_WINDOW,
    WORTHLESS,
    check_window_column,
    keep_best,
    utilities,
    window_numbers,
)
from penstock.grants.sampling_units import drawn_by
from penstock.grants.selection import Range, fitted_plan, grant_books, read_range, select, split_among_tasks
from penstock.lanes.lane import shed_rows
from penstock.streams.embedded.log import EmbeddedLog
from penstock.streams.flight.client import FlightLog
from penstock.streams.flight.server import FlightServer
from penstock.streams.layout import LogConfig
from penstock.testing import ManualClock
from penstock.vocabulary.errors import InvalidInputError

SCHEMA = pa.schema([("v", pa.float64()), ("at", pa.timestamp("ms"))])
SECOND = 1_000_000


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EmbeddedLog]:
    """2,000 rows in segments of 100: v counts 0 to 9 over and over, at is a hundredth of a second a row."""
    clock = ManualClock(1000.0)
    with EmbeddedLog.create(tmp_path / "s", SCHEMA, LogConfig(segment_rows=100), clock=clock) as made:
        for first in range(0, 2000, 100):
            ids = np.arange(first, first + 100)
            made.append(pa.record_batch([ids % 10.0, pa.array(ids * 10, pa.timestamp("ms"))], schema=SCHEMA))
            clock.advance(1.0)
        yield made


BEST = UtilityPlan(row_keep=SCALE // 2, seed=3, by="v", least=7.0)
WHOLE = WindowPlan(by="at", size_us=SECOND, windows=(2, 3, 7), decided=8, chosen={0: (200, 300, 700)})


def offset_of(plan: ShedPlan) -> Offset:
    return Offset("r", {0: 250}, {0: 930}, 3, {0: 260}, plan, Books())


def kept_ids(log: EmbeddedLog, offset: Offset, tasks: int = 1) -> list[int]:
    shares = split_among_tasks(select(log, offset), 0, tasks, 1)
    return [
        position
        for share in shares
        for stretch in share
        for piece in read_range(log, offset.plan, stretch)
        for position in piece.positions.tolist()
    ]


def test_rows_above_the_level_are_kept_and_coins_choose_among_those_at_it(log: EmbeddedLog) -> None:
    kept = kept_ids(log, offset_of(BEST))
    assert [i for i in kept if i % 10 > 7] == [i for i in range(260, 930) if i % 10 > 7]
    at_level = [i for i in kept if i % 10 == 7]
    assert 15 <= len(at_level) <= 52, "about half of 67"
    assert len(kept) == len(at_level) + 134


def test_kept_windows_are_whole_and_others_are_not_read(log: EmbeddedLog) -> None:
    kept = kept_ids(log, offset_of(WHOLE))
    assert kept == [*range(260, 400), *range(700, 800)]
    assert select(log, offset_of(WHOLE))[0].first.tolist() == [260, 300, 700]


@pytest.mark.parametrize("plan", [BEST, WHOLE])
def test_books_tasks_and_the_shed_lane_agree_to_the_row(log: EmbeddedLog, plan: ShedPlan) -> None:
    offset = offset_of(plan)
    assert fitted_plan(log, offset) == plan
    books = grant_books(log, offset, select(log, offset))
    kept = kept_ids(log, offset)
    assert (books.admitted, books.late) == (len(kept), 10)
    assert books.offered == 930 - 250
    assert kept_ids(log, offset, tasks=4) == kept
    shed = [p for piece in shed_rows(log, Entry(offset)) for p in piece.positions.tolist()]
    assert sorted(kept + shed) == list(range(250, 930))
    again = Offset.from_json(json.loads(json.dumps(offset.to_json())))
    assert again == offset
    assert kept_ids(log, again) == kept


@pytest.mark.parametrize("plan", [BEST, WHOLE])
def test_no_row_has_a_known_chance(log: EmbeddedLog, plan: ShedPlan) -> None:
    assert plan.chance() is None
    assert not plan.keeps_all
    assert not drawn_by(log, offset_of(plan)).known


def test_a_log_behind_a_server_gives_the_same_rows(log: EmbeddedLog) -> None:
    with FlightServer(log.directory.parent) as server, FlightLog(server.address, "s") as remote:
        for plan in (BEST, WHOLE):
            assert kept_ids(remote, offset_of(plan)) == kept_ids(log, offset_of(plan))  # type: ignore


def test_null_and_nan_are_worth_least_and_infinities_are_finite() -> None:
    rows = pa.record_batch({"x": [1.0, None, float("nan"), float("inf"), float("-inf")]})
    assert utilities([rows], "x").tolist() == [1.0, WORTHLESS, WORTHLESS, -WORTHLESS, WORTHLESS]
    plan = UtilityPlan(by="x", row_keep=SCALE, least=1.0)
    nowhere: Any = None
    kept = plan.keeps(nowhere, 0, np.arange(5), [rows])
    assert kept is not None
    assert kept.tolist() == [True, False, False, True, False]


def test_an_expression_without_columns_is_worth_the_same_for_all_rows() -> None:
    rows = pa.record_batch({"_arrival": [1, 2, 3]})
    assert utilities([rows, rows], "1 + 1").tolist() == [2.0] * 6


NANOSECOND = 1_700_000_000_123_456_789


@pytest.mark.parametrize(
    ("text", "worth"),
    [
        ("id", [float(2**53), 5.0, float(NANOSECOND)]),
        ("id * 2.5", [2.5 * 2**53, 12.5, 2.5 * NANOSECOND]),
        ("id % 10", [3.0, 5.0, 9.0]),
        ("big", [1.8446744073709552e19, 0.0, 1.0]),
        ("amount * u", [3e9, 2.0, -3e9]),
        ("-small", [128.0, -1.0, -2.0]),
        ("3000000000 * 4000000000 + 1180591620717411303424", [1.2e19 + 2.0**70] * 3),
        ("CASE WHEN id >= 1000.0 THEN 0 WHEN id IS NOT NULL THEN 1 END", [0.0, 1.0, 0.0]),
        (f"CASE WHEN id > {2**53} AND id <= {NANOSECOND - 1} THEN 0 ELSE 1 END", [0.0, 1.0, 1.0]),
        (
            "CASE WHEN amount IN (3000000, -5) THEN round(amount / 7.0, 2) ELSE u END",
            [428571.43, 1.0, 1000.0],
        ),
    ],
)
def test_integers_neither_wrap_nor_are_refused_for_their_size(text: str, worth: list[float]) -> None:
    rows = pa.record_batch(
        {
            "id": pa.array([2**53 + 1, 5, NANOSECOND], pa.int64()),
            "big": pa.array([2**64 - 1, 0, 1], pa.uint64()),
            "amount": pa.array([3_000_000, 2, -3_000_000], pa.int32()),
            "u": pa.array([1000, 1, 1000], pa.int32()),
            "small": pa.array([-128, 1, 2], pa.int8()),
            "_arrival": [1, 2, 3],
        }
    )
    assert utilities([rows], text).tolist() == worth
    assert utilities([rows, rows], text).tolist() == worth * 2


def test_a_range_of_large_integers_is_exact_at_its_ends() -> None:
    ids = 2**60 + np.arange(-2, 3)
    range_of = RangeSettings(key="id", shed_from=2.0**60, shed_to=2.0**60)
    assert utilities([pa.record_batch({"id": ids})], range_of.worth).tolist() == [1, 1, 0, 1, 1]
    endless = RangeSettings(key="id", shed_from=-5.5, shed_to=1e300)
    assert utilities([pa.record_batch({"id": [-6, -5, 2**62]})], endless.worth).tolist() == [1, 0, 0]


def test_windows_are_aligned_at_the_epoch_and_rows_without_a_time_are_one() -> None:
    times = pa.array([0, 999, 1000, -1, None], pa.timestamp("ms", "UTC"))
    rows = pa.record_batch({"at": times, "_arrival": pa.array([0, 1, 2, 3, 2_000_000])})
    assert window_numbers([rows], "at", SECOND).tolist() == [0, 0, 1, -1, NO_WINDOW]
    assert window_numbers([rows, rows], "_arrival", SECOND).tolist() == [0, 0, 0, 0, 2] * 2


@given(
    st.lists(st.integers(0, 5).map(float) | st.floats(allow_nan=False), max_size=300), st.integers(-1, 320)
)
def test_as_many_of_the_best_are_kept_as_asked_for(values: list[float], count: int) -> None:
    worth = np.nan_to_num(np.array(values), posinf=-WORTHLESS, neginf=WORTHLESS)
    least, row_keep = keep_best(worth, count)
    wanted = min(max(count, 0), worth.size)
    above, level = int((worth > least).sum()), int((worth == least).sum())
    assert above <= wanted
    assert above + level * row_keep / SCALE == pytest.approx(wanted, abs=1e-6)


def test_a_column_that_has_no_time_is_refused_with_those_that_have() -> None:
    check_window_column(SCHEMA, "at", "s")
    check_window_column(SCHEMA, "_arrival", "s")
    with pytest.raises(InvalidInputError, match="a timestamp column of stream s; got: 'v'; hint: one of at"):
        check_window_column(SCHEMA, "v", "s")
    with pytest.raises(InvalidInputError, match="got: 'when'; hint: leave it out: windows are then by arr"):
        check_window_column(pa.schema([("v", pa.int64())]), "when", "s")


def test_a_range_of_a_task_reads_its_own_rows(log: EmbeddedLog) -> None:
    pieces = list(read_range(log, WHOLE, Range(0, 350, 720, 5)))
    assert [(piece.positions[0], piece.seq, piece.segment) for piece in pieces] == [
        (350, 5, 300),
        (700, 55, 700),
    ]
