"""A log with gaps whose calls take long is governed in virtual time, and holds up no query of other logs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.gappy import Gappy, GappyLog, Slow

from penstock.grants.offset import Offset
from penstock.grants.selection import read_range, split_among_tasks
from penstock.sim.microbatch import Lab, Line, Machine, SimulatedQuery, VirtualCluster, delay
from penstock.sim.microbatch.line import Pause
from penstock.sim.microbatch.source import Attempts, GovernedSource, Planned, Waits
from penstock.sim.microbatch.tailers import VirtualTailers
from penstock.streams.protocol import StreamLog
from penstock.testing import ManualClock

TARGET_S = 6.0
UTILITY = {"by": "utility", "utility": "value % 10"}


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    made = Lab(tmp_path)
    with made.open:
        yield made


class SlowSource(GovernedSource):
    """A source whose planner makes slow calls, and whose tasks read the rows."""

    log: Slow
    read: list[tuple[int, int]]
    """Partitions and positions of the rows that its batches read."""

    def latest(self, start: Offset) -> Waits[Offset | None]:
        found = yield from super().latest(start)
        yield Pause(self.log.spent_s())
        return found

    def plan(self, offset: Offset) -> Waits[Planned]:
        planned = yield from super().plan(offset)
        yield Pause(self.log.spent_s())
        for task in split_among_tasks(self._selections(offset), 0, tasks=3, least_rows=100):
            for part in task:
                for piece in read_range(self.log, offset.plan, part):
                    self.read += [(part.partition, at) for at in piece.positions.tolist()]
        self.log.spent_s()  # other processes read
        return planned


def spent_s(log: StreamLog) -> float:
    return log.spent_s() if isinstance(log, Slow) else 0.0


def governed(lab: Lab, call_s: float, shed: object) -> tuple[VirtualCluster, SlowSource]:
    """A query over a slow log with three partitions, one of which comes later, and one over a quick log."""
    cluster = lab({"gold": {"target": TARGET_S, "shed": shed}, "bulk": {"target": "3s"}})
    cluster.tailers.takes_s = spent_s
    like = Gappy(1_000_000.0, births_s=(0.0, 0.0, 6.0))
    GappyLog.create(lab.folder / "topics", like, cluster.clock)
    made: list[SlowSource] = []

    def slow(lag_s: float) -> Slow:
        return Slow(GappyLog(lab.folder / "topics", cluster.clock, lag_s=lag_s), call_s)

    def source(query: SimulatedQuery, line: Line, offset: Offset) -> SlowSource:
        found = SlowSource(line, 10.0, 5.0, 0, query.attempts.get(offset.reader, Attempts()))
        found.log, found.read = slow(0.7), []  # type: ignore[assignment]
        made.append(found)
        return found

    machine = Machine(noise=0.1, row_s=100e-6)
    cluster.add("slow", "gold", slow(0.1), machine, source=source)  # type: ignore[arg-type]
    cluster.add("quick", "bulk", lab.stream(cluster, 6_000.0, 60.0), machine)
    cluster.run(40.0)
    return cluster, made[0]


def test_what_a_slow_look_finds_is_heard_when_the_look_is_over_and_other_streams_are_looked_at_meanwhile(
    tmp_path: Path,
) -> None:
    clock, heard = ManualClock(100.0), list[tuple[str, int]]()
    tailers = VirtualTailers(clock, lambda stream, new: heard.extend((stream, each.end) for each in new))
    tailers.takes_s = spent_s
    like = Gappy(90.0, per_s=100.0, births_s=(0.0,))
    slow = Slow(GappyLog.create(tmp_path / "slow", like, clock), 0.25)
    quick = GappyLog.create(tmp_path / "quick", like, clock)
    tailers.follow(slow, [{0: 0}])  # type: ignore[arg-type]
    tailers.follow(quick, [{0: 0}])
    ids = slow.ref.id, quick.ref.id
    assert heard == [(ids[0], 1_000), (ids[1], 1_000)], "a reader joins once the headers are there"
    assert tailers.due_s() == math.inf
    clock.advance(1.0)
    heard.clear()
    tailers.look()  # of the slow stream: start, end and headers, 0.75 s
    assert (heard, tailers.due_s()) == ([(ids[1], 1_100)], 101.75)
    clock.advance(0.5)
    tailers.look()
    assert heard == [(ids[1], 1_100), (ids[1], 1_150)]
    clock.advance(0.25)
    tailers.look()
    assert heard[2:] == [(ids[0], 1_100), (ids[1], 1_175)], "what was there when the look began"
    assert tailers.due_s() == 102.5, "the next look begins at once"
    tailers.follow(slow, [{0: 500}])  # type: ignore[arg-type]
    assert heard[-1] == (ids[0], 1_175), "a reader that joins needs all anew"
    assert tailers.due_s() == math.inf
    tailers.clear()
    assert tailers.logs == {}


@pytest.mark.briefly("20 ms a call")
@pytest.mark.parametrize(
    ("call_s", "shed", "too_late"),
    [(0.02, "sample", False), (0.05, "sample", False), (0.02, UTILITY, False), (0.05, UTILITY, True)],
    ids=["20 ms a call", "50 ms a call", "by utility", "by utility, with values that come too late"],
)
def test_a_log_whose_calls_take_long_is_governed_and_other_logs_are_not_held_up(
    lab: Lab, call_s: float, shed: object, too_late: bool, caplog: pytest.LogCaptureFixture
) -> None:
    cluster, source = governed(lab, call_s, shed)
    classes = cluster.status().classes
    status, quick = classes["gold"].queries["slow"], cluster.queries["quick"]
    assert status.offered == status.admitted + status.shed + status.waiting
    truth = GappyLog(lab.folder / "topics", cluster.clock, lag_s=0.0)
    there = sum(truth.end(p) for p in range(truth.partitions))
    assert 0.8 * there < status.offered <= there, "the control plane hears of rows when looks are over"
    assert status.shed > 0.3 * status.offered, "there is an overload"
    assert len(source.read) == len(set(source.read)), "no row is read twice"
    assert {p for p, _ in source.read} == {0, 1, 2}, "the partition that came later is read"
    assert delay(quick, 1.0, cluster.timer() - 20.0) < 1.1 * 3.0, "its rows are known at once"
    assert ("its shedder semantic failed (1 times so far); rows are sampled" in caplog.text) == too_late
    if not too_late:  # a plan by utility reads all segments: a fixed cost above what the target allows
        assert delay(cluster.queries["slow"], 1.0, cluster.timer() - 20.0) < 1.1 * TARGET_S
    assert all(query.error is None for query in cluster.queries.values())
