"""From an offset to rows: what is counted beforehand is what tasks read, exactly once, in order."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.effort import tries
from tests.plans import kept_rows
from tests.segments import headers, read

from penstock.grants.offset import Books, Offset
from penstock.grants.plans import KEEP_ALL, SCALE, SamplePlan, plan_for
from penstock.grants.selection import (
    Piece,
    Range,
    _count_by_position,
    divided,
    fitted_plan,
    grant_books,
    read_range,
    rows_between,
    select,
    split_among_tasks,
)
from penstock.streams.embedded.log import EmbeddedLog
from penstock.streams.hashing import key_buckets
from penstock.streams.layout import LogConfig
from penstock.streams.protocol import PositionedRows
from penstock.testing import ManualClock

SCHEMA = pa.schema([("sensor", pa.string()), ("value", pa.int64())])
PARTITIONS, BUCKETS = 3, 16
TRIMMED = 1
"""The partition whose first rows are gone."""


def rows_of(first: int, count: int) -> pa.RecordBatch:
    """A row's value is its position, so that what was read can be told."""
    values = list(range(first, first + count))
    return pa.record_batch([[f"s{v * 7919 % 41}" for v in values], values], schema=SCHEMA)


@pytest.fixture(scope="module")
def log() -> Iterator[EmbeddedLog]:
    """Three partitions of segments of many sizes; of one the first files are trimmed."""
    random = np.random.default_rng(1)
    config = LogConfig(PARTITIONS, "sensor", BUCKETS, segment_rows=40, file_bytes=3000)
    with TemporaryDirectory() as folder:
        clock = ManualClock(100.0)
        with EmbeddedLog.create(Path(folder) / "readings", SCHEMA, config, clock=clock) as stream:
            for p in range(PARTITIONS):
                for _ in range(25):
                    clock.advance(0.1)
                    stream.append(rows_of(stream.end(p), int(random.integers(1, 100))), p)
            assert 0 < stream.trim(TRIMMED, 400) <= 400
            yield stream


def grants(log: EmbeddedLog) -> st.SearchStrategy[Offset]:
    """Any grant: a stretch of every partition, late rows, some plan."""

    @st.composite
    def one(draw: st.DrawFn) -> Offset:
        start, end, late = {}, {}, {}
        for p in range(PARTITIONS):
            points = st.integers(0, log.end(p))
            start[p], end[p] = sorted((draw(points), draw(points)))
            late[p] = draw(st.just(0) | st.integers(0, end[p]))
        sampling = draw(st.sampled_from(["auto", "row", "segment", "key"]))
        plan = plan_for(draw(st.floats(0.0, 1.0)), sampling, draw(st.integers(0, 999)), BUCKETS)
        before = Offset("fraud-1", {}, start, grant=4, books=Books(admitted=draw(st.integers(0, 10**6))))
        draft = before.advanced(end, late, plan, Books())
        books = grant_books(log, draft, select(log, draft))
        return before.advanced(end, late, plan, books)

    return one()


def is_kept(log: EmbeddedLog, offset: Offset, p: int) -> list[int]:
    """By brute force: the positions of a partition that a grant keeps."""
    positions = []
    for segment in headers(log, p, 0, log.end(p)):
        if offset.plan.unit == "key":
            buckets = key_buckets(read(log, segment).column("sensor"), BUCKETS)
            mask = offset.plan.kept_buckets(BUCKETS)[buckets]
        elif offset.plan.opens(p, np.array([segment.first_position]))[0]:
            mask = kept_rows(offset.plan, p, segment.first_position, segment.end_position)
        else:
            continue
        first = max(offset.start[p], offset.late.get(p, 0))
        positions += [
            position
            for position, keep in zip(range(segment.first_position, segment.end_position), mask, strict=True)
            if keep and first <= position < offset.end[p]
        ]
    return positions


def read_all(log: EmbeddedLog, offset: Offset, tasks: list[list[Range]]) -> list[tuple[int, Piece]]:
    return [
        (stretch.partition, piece)
        for task in tasks
        for stretch in task
        for piece in read_range(log, offset.plan, stretch)
    ]


any_grant = settings(max_examples=tries(25, 150), suppress_health_check=[HealthCheck.function_scoped_fixture])


@any_grant
@given(data=st.data(), tasks=st.integers(1, 7), least_rows=st.integers(1, 200), piece=st.integers(0, 60))
def test_every_kept_row_is_read_once_and_the_counts_said_so_beforehand(
    log: EmbeddedLog, data: st.DataObject, tasks: int, least_rows: int, piece: int
) -> None:
    offset = data.draw(grants(log))
    selections = select(log, offset)
    if piece:  # tasks may read a part of a segment
        selections = divided(log, offset.plan, selections, piece)
        if offset.plan.needs == "places" and offset.plan.keeps_whole_segments:
            assert all(int(s.kept.max(initial=0)) <= piece for s in selections)
    books = grant_books(log, offset, selections)
    before = offset.books.admitted - books.admitted
    shares = split_among_tasks(selections, before, tasks, least_rows)
    pieces = read_all(log, offset, shares)

    assert sum(piece.rows.num_rows for _, piece in pieces) == books.admitted
    assert len(shares) <= tasks
    for p in range(PARTITIONS):
        read = [int(position) for where, piece in pieces if where == p for position in piece.positions]
        assert read == is_kept(log, offset, p), "in order, each once"
        values = [v for where, piece in pieces if where == p for v in piece.rows.column("value").to_pylist()]
        assert values == read, "and the rows are those of the positions"
    seqs = [piece.seq + i for _, piece in pieces for i in range(piece.rows.num_rows)]
    assert seqs == list(range(before, offset.books.admitted)), "_seq is dense over grants, tasks and segments"


@any_grant
@given(data=st.data())
def test_offered_is_admitted_and_sampled_and_late_and_expired(log: EmbeddedLog, data: st.DataObject) -> None:
    offset = data.draw(grants(log))
    books = grant_books(log, offset, select(log, offset))
    assert books.admitted + books.sampled + books.late + books.expired == rows_between(
        offset.start, offset.end
    )
    assert books.offered == rows_between(offset.start, offset.end)
    assert min(books.admitted, books.sampled, books.late, books.expired) >= 0
    left = log.start(TRIMMED)
    assert books.expired == max(0, min(left, offset.end[TRIMMED]) - offset.start[TRIMMED])
    expected_late = 0
    for p in range(PARTITIONS):
        first = max(offset.start[p], log.start(p))
        expected_late += max(0, min(offset.late.get(p, 0), offset.end[p]) - first)
    assert books.late == expected_late, "a row that is gone is expired, not late"
    if offset.plan == KEEP_ALL:
        assert books.sampled == 0


@any_grant
@given(data=st.data(), cuts=st.lists(st.floats(0, 1), max_size=3))
def test_a_stretch_gives_the_same_rows_in_one_grant_or_in_several(
    log: EmbeddedLog, data: st.DataObject, cuts: list[float]
) -> None:
    whole = data.draw(grants(log))
    admitted = grant_books(log, whole, select(log, whole)).admitted
    total, start = 0, whole.start
    for part in [*sorted(cuts), 1.0]:
        end = {p: whole.start[p] + int(part * (whole.end[p] - whole.start[p])) for p in whole.end}
        piece = Offset("r", start, end, late=whole.late, plan=whole.plan)
        total += grant_books(log, piece, select(log, piece)).admitted
        start = end
    assert total == admitted


def test_a_segment_that_is_not_opened_is_not_read(log: EmbeddedLog) -> None:
    class Counting:
        """The log itself, with a count of its reads."""

        def __init__(self) -> None:
            self.read_firsts: list[int] = []

        def __getattr__(self, name: str) -> object:
            return getattr(log, name)

        def read(self, partition: int, first: int, end: int) -> PositionedRows:
            self.read_firsts.append(first)
            return log.read(partition, first, end)

    counting = Counting()
    plan = SamplePlan("row", segment_keep=SCALE // 4, row_keep=SCALE // 2, seed=3)
    stretch = Range(0, 0, log.end(0), 0)
    assert list(read_range(counting, plan, stretch))  # type: ignore[arg-type]
    firsts = np.array([s.first_position for s in headers(log, 0, 0, log.end(0))])
    assert counting.read_firsts == firsts[plan.opens(0, firsts)].tolist()
    assert 0 < len(counting.read_firsts) < firsts.size / 2


def test_counting_by_key_reads_only_the_segments_that_a_grant_cuts(log: EmbeddedLog) -> None:
    second, third = headers(log, 0, 0, log.end(0))[1:3]
    plan = plan_for(0.5, "key", 2, BUCKETS)
    whole = Offset("r", {0: second.first_position}, {0: third.end_position}, plan=plan)
    kept = plan.kept_buckets(BUCKETS)
    expected = sum(np.array(s.key_counts)[kept].sum() for s in (second, third))
    assert select(log, whole)[0].kept.sum() == expected
    cut = Offset("r", {0: second.first_position + 1}, {0: third.end_position}, plan=plan)
    (first_row,) = kept[key_buckets(read(log, second).column("sensor").slice(0, 1), BUCKETS)]
    assert select(log, cut)[0].kept.sum() == expected - first_row


@pytest.mark.parametrize("at_once", [1, 100, 1 << 15])
def test_rows_are_counted_alike_however_many_segments_are_looked_at_at_once(
    log: EmbeddedLog, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.grants.selection.ROWS_AT_ONCE", at_once)
    for seed in range(20):
        plan = SamplePlan("row", segment_keep=[SCALE, SCALE // 2][seed % 2], row_keep=SCALE // 3, seed=seed)
        (found,) = select(log, Offset("r", {0: seed}, {0: log.end(0) - seed}, plan=plan))
        assert found.kept.size > 1
        for first, end, kept in zip(found.first, found.end, found.kept, strict=True):
            assert kept == np.count_nonzero(plan.keeps(log, 0, np.arange(first, end), ()))


def estimates(log: EmbeddedLog, keep: float, sampling: str, seed: int, end: int) -> tuple[int, float, float]:
    """Rows kept of the first ones of a partition, and what their weights say of the number and the sum."""
    plan = plan_for(keep, sampling, seed)  # type: ignore[arg-type]
    plan = fitted_plan(log, Offset("r", {0: 0}, {0: end}, plan=plan))
    pieces = list(read_range(log, plan, Range(0, 0, end, 0)))
    values = np.concatenate([np.empty(0)] + [p.rows.column("value").to_numpy() for p in pieces])
    weight = 1 / plan.chance()
    return values.size, weight * values.size, weight * float(values.sum())


@pytest.mark.briefly("0.1-40-auto", "0.2-1000-segment", "0.02-1000-segment", "0.1-40-segment")
@pytest.mark.parametrize("sampling", ["auto", "segment"])
@pytest.mark.parametrize(("keep", "rows"), [(0.2, 1000), (0.02, 1000), (0.1, 40)])
def test_weighted_sums_are_right_on_average_also_where_segments_are_few(
    log: EmbeddedLog, sampling: str, keep: float, rows: int
) -> None:
    found = np.array([estimates(log, keep, sampling, seed, rows)[1:] for seed in range(400)])
    truth = np.array([rows, rows * (rows - 1) / 2])
    error = found.std(axis=0) / np.sqrt(len(found))
    # a ratio of two sums leans a little to segments of more than the mean size
    assert (np.abs(found.mean(axis=0) - truth) <= 4.5 * error + 0.02 * truth).all()


def test_the_weights_of_a_grant_add_up_to_its_rows_up_to_the_coins_of_rows(log: EmbeddedLog) -> None:
    rows = log.end(0)
    for seed in range(50):
        kept, total, _ = estimates(log, 0.3, "auto", seed, rows)
        assert total == pytest.approx(rows, abs=4.5 * rows * np.sqrt(0.5 / kept))
        assert estimates(log, 0.3, "segment", seed, rows)[1] == pytest.approx(rows, rel=1e-3)


def test_nothing_kept_makes_no_task(log: EmbeddedLog) -> None:
    empty = Offset("r", {0: 5, 1: log.end(1)}, {0: 5, 1: log.end(1)})
    assert split_among_tasks(select(log, empty), 0, 4, 1) == []
    shed = Offset("r", {0: 0}, {0: log.end(0)}, plan=plan_for(0.0, "row", 1))
    assert split_among_tasks(select(log, shed), 0, 4, 1) == []
    assert grant_books(log, shed, select(log, shed)) == Books(sampled=log.end(0))


def test_tasks_get_about_even_shares_and_small_grants_get_one(log: EmbeddedLog) -> None:
    offset = Offset("r", dict.fromkeys(range(PARTITIONS), 0), {p: log.end(p) for p in range(PARTITIONS)})
    selections = select(log, offset)
    total = sum(int(s.kept.sum()) for s in selections)
    shares = split_among_tasks(selections, 0, 4, 1)
    sizes = [sum(r.end - r.first for r in share) for share in shares]
    assert len(sizes) == 4
    assert sum(sizes) == total
    assert max(sizes) - min(sizes) <= 2 * 40, "borders lie between segments of at most 40 rows"
    assert len(split_among_tasks(selections, 0, 4, least_rows=total)) == 1


def test_a_segment_without_positions_counts_no_rows_and_takes_none_of_the_next(log: EmbeddedLog) -> None:
    plan = SamplePlan("row", segment_keep=SCALE, row_keep=SCALE // 2, seed=3)
    firsts, ends = np.array([0, 50, 50, 90, 120]), np.array([50, 50, 90, 120, 120])
    kept = plan.keeps(log, 0, np.arange(120), ())
    assert kept is not None
    counts = _count_by_position(log, plan, 0, firsts, ends)
    assert counts.tolist() == [int(kept[a:b].sum()) for a, b in zip(firsts, ends, strict=True)]
