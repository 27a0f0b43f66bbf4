"""A log with gaps, with partitions that come and ends that are known late, is governed like any other."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.gappy import KIND, Gappy, GappyKind, GappyLog, bucket_of

from penstock.control.core import granting
from penstock.control.measure.lines import ShedLine
from penstock.control.shed.class_shedding import Chosen
from penstock.control.state.query import Query
from penstock.grants.grant import Grant
from penstock.grants.offset import Offset
from penstock.grants.plans import SCALE, ChosenPlan, KeyPlan, SamplePlan, ShedPlan, UtilityPlan, WindowPlan
from penstock.grants.plans.coins import row_tosses
from penstock.grants.selection import read_range, select, split_among_tasks
from penstock.sim.microbatch import Lab, Line, Machine, SimulatedQuery, VirtualCluster, check_books
from penstock.sim.microbatch.source import Attempts, GovernedSource, Planned, Waits
from penstock.spark.source.options import SourceOptions
from penstock.spark.source.planner import Planner
from penstock.spark.source.tasks import ReadTask, read_task
from penstock.streams import opening
from penstock.streams.starting import first_positions
from penstock.testing import ManualClock
from penstock.vocabulary.errors import InvalidInputError
from penstock.vocabulary.moment import Moment

SHED: list[str | dict[str, str]] = [
    "sample",
    "oldest",
    "random",
    {"by": "utility", "utility": "value % 10"},
    {"by": "window", "size": "500ms"},
]


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    made = Lab(tmp_path)
    with made.open:
        yield made


class ReadingSource(GovernedSource):
    """A source that reads the rows of its batches, with a log object of its own that knows ends later."""

    reads: GappyLog
    read: dict[int, list[tuple[int, int]]]
    """By grant, the partitions and positions of the rows that its batch read."""

    def plan(self, offset: Offset) -> Waits[Planned]:
        planned = yield from super().plan(offset)
        found = []
        for task in split_among_tasks(select(self.reads, offset), 0, tasks=3, least_rows=100):
            for part in task:
                for piece in read_range(self.reads, offset.plan, part):
                    assert np.array_equal(piece.rows.column("value"), piece.positions)
                    found += [(part.partition, at) for at in piece.positions.tolist()]
        self.read[offset.grant] = found if planned.rows else []
        return planned


def governed(lab: Lab, shed: object, like: Gappy) -> tuple[VirtualCluster, SimulatedQuery, ReadingSource]:
    cluster = lab({"gold": {"target": "2s", "shed": shed}})
    log = GappyLog.create(lab.folder / "topics", like, cluster.clock)
    made: list[ReadingSource] = []

    def source(query: SimulatedQuery, line: Line, offset: Offset) -> ReadingSource:
        found = ReadingSource(line, 10.0, 5.0, 0, query.attempts.get(offset.reader, Attempts()))
        found.reads, found.read = GappyLog(lab.folder / "topics", cluster.clock, lag_s=0.7), {}
        made.append(found)
        return found

    query = cluster.add("q", "gold", log, Machine(noise=0.1, row_s=100e-6), source=source)
    cluster.checks.append(check_books)
    return cluster, query, made[0]


def positions(log: GappyLog, offset: Offset) -> set[tuple[int, int]]:
    """All positions of a grant that have a row."""
    found = set()
    for p, end in offset.end.items():
        of = np.arange(offset.start.get(p, 0), end)
        found |= {(p, at) for at in of[log.has_row(p, of)].tolist()}
    return found


def kept(log: GappyLog, offset: Offset) -> tuple[set[tuple[int, int]], int]:
    """The rows that a grant keeps, and how many positions it admits: nothing here reads or plans."""
    plan, block, rows, admitted = offset.plan, log.like.block, set(), 0
    for p, end in offset.end.items():
        at = np.arange(max(offset.start.get(p, 0), offset.late.get(p, 0)), end)
        is_kept, there = plan.opens(p, at // block * block), log.has_row(p, at)
        match plan:
            case SamplePlan():  # coins are tossed for positions, whether they have a row or not
                is_kept &= row_tosses(plan.seed, p, at) < np.uint64(plan.row_keep)
            case KeyPlan():
                buckets = plan.kept_buckets(log.key_buckets)
                keys = np.array([buckets[bucket_of(each, log.key_buckets)] for each in at.tolist()], bool)
                is_kept &= keys | ~there
            case UtilityPlan():
                worth, tosses = at % 10, row_tosses(plan.seed, p, at) < np.uint64(plan.row_keep)
                is_kept &= (worth > plan.least) | (worth == plan.least) & tosses | ~there
            case WindowPlan():
                is_kept &= np.isin(log._arrival_us(p, at) // plan.size_us, plan.windows) | ~there
            case ChosenPlan():
                pass
        rows |= {(p, each) for each in at[is_kept & there].tolist()}
        admitted += int(is_kept.sum())
    return rows, admitted


@pytest.mark.briefly("sample", "utility", "key without counts in headers")
@pytest.mark.parametrize(
    ("shed", "keyed"),
    [
        *((shed, {}) for shed in SHED),
        ("key", {"keyed": True}),
        ("key", {"keyed": True, "counts_keys": False}),
    ],
    ids=["sample", "oldest", "random", "utility", "window", "key", "key without counts in headers"],
)
def test_books_are_exact_in_positions_and_every_row_is_read_once_or_shed(
    lab: Lab, shed: str | dict[str, str], keyed: dict[str, bool]
) -> None:
    like = Gappy(1_000_000.0, births_s=(0.0, 0.0, 6.0), lag_s=0.05, **keyed)
    cluster, query, source = governed(lab, shed, like)
    cluster.run(20.0)
    log = source.reads
    status = cluster.status().classes["gold"].queries["q"]
    assert status.offered == status.admitted + status.shed + status.waiting
    assert status.in_positions == ("topics",)
    assert status.shed > 0.3 * status.offered, "there is an overload"
    read = [each for rows in source.read.values() for each in rows]
    assert len(read) == len(set(read)), "no row is read twice"
    admitted = 0
    for batch in query.batches:
        rows = set(source.read[batch.offset.grant])
        assert rows <= positions(log, batch.offset)
        expected, admitted_here = kept(log, batch.offset)
        assert rows == expected, "just the rows of the plan are read"
        assert batch.books.admitted == admitted_here
        admitted += batch.books.admitted
    assert admitted == status.admitted
    assert {2} & {p for p, _ in read}, "rows of the partition that came later are read"


def test_rows_that_are_worth_least_go_first_where_half_of_the_positions_have_no_row(lab: Lab) -> None:
    like = Gappy(1_000_000.0, births_s=(0.0, 0.0, 0.0), gap_percent=50)
    cluster, query, source = governed(lab, {"by": "utility", "utility": "value % 10"}, like)
    cluster.run(20.0)
    plans = [(batch.offset, batch.offset.plan) for batch in query.batches]
    chosen = [(offset, plan.least) for offset, plan in plans if isinstance(plan, UtilityPlan)]
    assert len([least for _, least in chosen if least >= 1.0]) > 5, "a good part is not worth enough"
    for offset, least in chosen:
        there = {each for each in positions(source.reads, offset) if each[1] >= offset.late.get(each[0], 0)}
        better = {(p, at) for p, at in there if at % 10 > least}
        assert better <= set(source.read[offset.grant]), "all that are worth more"


@pytest.mark.parametrize("shed", SHED[3:], ids=["utility", "window"])
def test_what_a_shedder_says_of_each_stream_is_what_the_books_say(
    lab: Lab, shed: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = lab({"gold": {"target": "2s", "shed": shed}})
    logs = {
        slot: GappyLog.create(lab.folder / slot, Gappy(1_000_000.0, gap_percent=gaps), cluster.clock)
        for slot, gaps in (("a", 60), ("b", 5))
    }
    said: dict[int, Chosen] = {}
    query = cluster.add("join", "gold", logs, Machine(noise=0.1, row_s=100e-6))

    def shed_line(granted: Query, shedder: str | None, chosen: Chosen, at: Moment) -> ShedLine:
        said[query.offsets["join-a"].grant + 1] = chosen
        return line(granted, shedder, chosen, at)

    line = granting._shed_line
    monkeypatch.setattr(granting, "_shed_line", shed_line)
    cluster.run(20.0)
    chosen = [grant for grant in said if said[grant].kept.shed["join-a"] and said[grant].kept.shed["join-b"]]
    assert len(chosen) > 3
    for grant in chosen[:-1]:
        books = {b.offset.reader: b.books for b in query.batches if b.offset.grant == grant}
        coins = 0 if shed["by"] == "window" else 150
        for reader, expected in said[grant].kept.shed.items():
            assert abs(books[reader].sampled - expected) <= coins
        assert abs(sum(each.admitted for each in books.values()) - said[grant].kept.rows) <= coins


def test_a_batch_that_keeps_all_reads_each_row_and_counts_each_position(lab: Lab) -> None:
    cluster, query, source = governed(lab, "sample", Gappy(1_000_000.0, per_s=500.0, births_s=(0.0, 3.0)))
    cluster.run(15.0)
    assert sum(batch.books.shed for batch in query.batches) == 0
    for batch in query.batches:
        assert set(source.read[batch.offset.grant]) == positions(source.reads, batch.offset)
        assert batch.books.admitted == batch.offset.rows
    absent = sum(b.books.admitted - len(source.read[b.offset.grant]) for b in query.batches)
    assert absent > 0.1 * sum(b.books.admitted for b in query.batches), "a good part has no row"


def test_a_batch_that_runs_again_reads_the_same_rows(lab: Lab) -> None:
    cluster, query, source = governed(lab, "sample", Gappy(1_000_000.0))
    cluster.run(12.0)
    late = GappyLog(lab.folder / "topics", cluster.clock, lag_s=3.0)
    shedding = [batch.offset for batch in query.batches if batch.books.sampled]
    assert shedding
    for offset in shedding:
        again = [
            (part.partition, at)
            for task in split_among_tasks(select(late, offset), 0, tasks=1, least_rows=1)
            for part in task
            for piece in read_range(late, offset.plan, part)
            for at in piece.positions.tolist()
        ]
        assert again == sorted(source.read[offset.grant])


def test_rows_that_the_log_itself_removes_unread_are_expired(lab: Lab) -> None:
    cluster, query, _ = governed(lab, "sample", Gappy(1_000_000.0, per_s=2_000.0, retention_s=5.0))
    cluster.run(5.0)
    cluster.stop(query)
    cluster.run(10.0)
    cluster.start(query)
    cluster.run(5.0)
    assert sum(batch.books.expired for batch in query.batches) > 10_000


def test_an_end_that_a_caller_names_is_looked_up_again(tmp_path: Path) -> None:
    clock = ManualClock(100.0)
    GappyLog.create(tmp_path / "s", Gappy(90.0, per_s=1000.0, births_s=(0.0, 9.5)), clock)
    old = GappyLog(tmp_path / "s", clock, lag_s=2.0)
    assert (old.partitions, old.end(0)) == (1, 8_000)
    assert old.header_arrays(0, 9_000, 9_500).end_position[-1] >= 9_500
    assert old.header_arrays(1, 0, 300).end_position[-1] >= 300
    assert old.partitions == 2
    assert old.partition_name(1) == "orders/0"


def test_an_error_names_a_partition_as_its_log_does(tmp_path: Path) -> None:
    clock = ManualClock(100.0)
    log = GappyLog.create(tmp_path / "s", Gappy(90.0, per_s=1000.0, births_s=(0.0, 9.5)), clock)
    with pytest.raises(
        InvalidInputError, match=r"partition 1 \(orders/0\) of stream s has positions 0 to 500"
    ):
        first_positions(log, {"positions": {1: 501}})


@pytest.mark.parametrize(
    ("plan", "keyed"),
    [
        (SamplePlan("row", segment_keep=SCALE // 2, row_keep=SCALE // 2, seed=3), False),
        (SamplePlan("segment", segment_keep=SCALE // 2, seed=3), False),
        (KeyPlan(key_keep=20, seed=3), True),
        (UtilityPlan(by="value % 10", least=6.0, row_keep=SCALE // 3, seed=3), False),
        (WindowPlan(by="_arrival", size_us=400_000, windows=(2_499_952, 2_499_955, 2_499_961)), False),
    ],
    ids=["row", "segment", "key", "utility", "window"],
)
def test_the_planner_of_spark_and_its_tasks_read_just_the_rows_of_the_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plan: ShedPlan, keyed: bool
) -> None:
    clock = ManualClock(1_000_000.0)
    like = Gappy(999_980.0, per_s=500.0, births_s=(0.0, 0.0, 25.0), lag_s=0.5, keyed=keyed)
    GappyLog.create(tmp_path / "s", like, clock)
    monkeypatch.setitem(opening._DIRECTORIES, KIND, GappyKind(clock))
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # a planner sets its own
    place, truth = str(tmp_path / "s"), GappyLog(tmp_path / "s", clock, lag_s=0.0)
    planner = Planner(SourceOptions(place, place, query="hot", metadata=("_position", "_seq"), tasks=3))
    before = planner.initial()
    while before.grant < 4:
        ends = {p: truth.end(p) for p in range(truth.partitions)}  # later than the planner's log object knows
        if isinstance(plan, WindowPlan):
            segments = {p: tuple(range(0, end, like.block)) for p, end in ends.items()}
            plan = replace(plan, chosen=segments)
        planner._journal_of(before)
        offset = planner._propose(before, Grant(ends, {0: before.end[0] + 70}, plan))
        rows, admitted = kept(truth, offset)
        tasks = [task for task in planner.tasks(offset, before) if isinstance(task, ReadTask)]
        found = [batch for task in tasks for batch in read_task(task)]
        read = [at for batch in found for at in batch.column("_position").to_pylist()]
        assert sorted(read) == sorted(at for _, at in rows)
        assert all(batch.column("_seq").null_count == batch.num_rows for batch in found)
        assert offset.books.admitted - before.books.admitted == admitted
        assert offset.books.offered == sum(offset.end.values())
        before = offset
        clock.advance(4.0)
    planner.close()
    assert 2 in before.end, "a partition came meanwhile"
    assert before.books.sampled > 0.2 * before.books.offered
