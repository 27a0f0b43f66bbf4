"""A log with gaps, with partitions that come and ends that are known late, is governed like any other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.gappy import Gappy, GappyLog, register

from penstock.grants.offset import Offset
from penstock.grants.selection import read_range, select, split_among_tasks
from penstock.sim.microbatch import Lab, Line, Machine, SimulatedQuery, VirtualCluster, check_books
from penstock.sim.microbatch.source import Attempts, GovernedSource, Planned, Waits
from penstock.streams import open_stream
from penstock.testing import ManualClock
from penstock.vocabulary.errors import InvalidInputError

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


def absent(log: GappyLog, offset: Offset) -> int:
    """How many positions of a grant, those that are late left out, have no row."""
    firsts = {p: max(offset.start.get(p, 0), offset.late.get(p, 0)) for p in offset.end}
    return sum(int((~log.has_row(p, np.arange(firsts[p], end))).sum()) for p, end in offset.end.items())


@pytest.mark.parametrize("shed", SHED, ids=lambda shed: shed if isinstance(shed, str) else shed["by"])
def test_books_are_exact_in_positions_and_every_row_is_read_once_or_shed(
    lab: Lab, shed: str | dict[str, str]
) -> None:
    like = Gappy(1_000_000.0, births_s=(0.0, 0.0, 6.0), lag_s=0.05)
    cluster, query, source = governed(lab, shed, like)
    cluster.run(20.0)
    log = source.reads
    status = cluster.status().classes["gold"].queries["q"]
    assert status.offered == status.admitted + status.shed + status.waiting
    assert status.shed > 0.3 * status.offered, "there is an overload"
    read = [each for rows in source.read.values() for each in rows]
    assert len(read) == len(set(read)), "no row is read twice"
    admitted = 0
    for batch in query.batches:
        rows = set(source.read[batch.offset.grant])
        assert rows <= positions(log, batch.offset)
        if "utility" in shed:  # whoever looks into rows sheds no position that has none
            assert batch.books.admitted - len(rows) == absent(log, batch.offset)
        assert len(rows) <= batch.books.admitted
        admitted += batch.books.admitted
    assert admitted == status.admitted
    assert {2} & {p for p, _ in read}, "rows of the partition that came later are read"


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


def test_a_new_kind_of_log_is_opened_by_its_name(tmp_path: Path) -> None:
    GappyLog.create(tmp_path / "s", Gappy(0.0), ManualClock(10.0))
    register()
    assert isinstance(open_stream(tmp_path / "s"), GappyLog)
    with pytest.raises(InvalidInputError, match="how a stream is reached must be one of"):
        open_stream("carrier-pigeon://loft/s")
