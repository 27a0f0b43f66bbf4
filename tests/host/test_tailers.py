"""Threads that follow streams: one that fails, hangs or grows is followed all the same; others go on."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.gappy import Gappy, GappyLog
from tests.host.watched import Watched, made
from tests.waits import until

from penstock.control.backlog.tail import StreamTail
from penstock.host import tailers as tailers_module
from penstock.host.tailers import HUNG_S, SLOW_S, Tailers
from penstock.streams.tailing import NewSegments
from penstock.testing import ManualClock


class Followed:
    """Tailers on a clock that a test moves, and what the control plane would know of the streams."""

    def __init__(self, folder: Path, clock: ManualClock) -> None:
        self.folder, self.clock = folder, clock
        self.logs: dict[str, Watched] = {}
        self.made: list[Watched] = []
        self.opened_anew: list[str] = []
        self.tails: dict[str, StreamTail] = {}
        self._handing = threading.Lock()  # a control plane takes headers in and looks at them in one thread
        self.tailers = Tailers(self._found, self._reopen)

    def _found(self, stream: str, new: list[NewSegments]) -> None:
        with self._handing:
            self.tails.setdefault(stream, StreamTail()).take_in(new)

    def _reopen(self, stream: str) -> Watched:
        self.opened_anew.append(stream)
        return self.logs[Path(stream).name]

    def stream(self, name: str, partitions: int = 1, position: int = 0) -> Watched:
        log = self.logs.setdefault(name, made(self.folder, name, partitions))
        self.made.append(log)
        self.join(log, dict.fromkeys(range(partitions), position))
        return log

    def join(self, log: Watched, positions: dict[int, int]) -> None:
        ready = threading.Event()
        self.tailers.follow(log, positions, ready.set)  # type: ignore[arg-type]
        until(ready.is_set, "the headers")

    def known(self, log: Watched, partition: int = 0) -> int:
        """The end up to which the control plane knows a stream, each segment once and none missing."""
        with self._handing:
            tail = self.tails.get(log.ref.id)
            found = None if tail is None else tail.partitions.get(partition)
            waiting = None if found is None else found.after("r", partition, 0)
        if waiting is None:
            return 0
        assert waiting.segment.tolist() == [0, *waiting.ends.tolist()[:-1]], "each once, none missing"
        return int(waiting.ends[-1])

    def pass_time(self, seconds: float) -> None:
        """Time passes while nobody looks at a stream, but for streams that hang.

        If it passed in the middle of another stream's look, that look would have taken long, too.
        """
        hung = {log.ref.id for log in self.made if not log.free.is_set()}
        with ExitStack() as nobody_looks:
            for name, stream in self.tailers._streams.items():
                if name not in hung:
                    nobody_looks.enter_context(stream.looking)
            self.clock.advance(seconds)
            self.tailers.check()


@pytest.fixture
def followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Followed]:
    clock = ManualClock(100.0)
    times = SimpleNamespace(monotonic=clock, thread_time=time.thread_time)
    monkeypatch.setattr(tailers_module, "time", times)
    found = Followed(tmp_path, clock)
    yield found
    found.tailers.close()
    for log in found.logs.values():
        log.error = None
        log.free.set()
        log.log.close()


def said(caplog: pytest.LogCaptureFixture, log: Watched) -> list[str]:
    return [r.getMessage() for r in caplog.records if str(log.directory) in r.getMessage()]


def test_rows_that_arrive_are_found_and_each_segment_once(followed: Followed) -> None:
    log = followed.stream("a")
    for rows in (30, 100, 70):
        log.write(rows)
        until(lambda: followed.known(log) == log.end(), "the rows")
    followed.join(log, {0: 0})
    assert followed.known(log) == 200, "a second reader changes nothing"


def test_a_log_with_gaps_whose_calls_take_time_is_followed_and_holds_up_no_other(followed: Followed) -> None:
    like = Gappy(50.0, per_s=100.0, births_s=(0.0, 50.4), lag_s=0.1)
    log = Watched(GappyLog.create(followed.folder / "topics", like, followed.clock))  # type: ignore[arg-type]
    other = followed.stream("other")
    followed.join(log, {0: 0})
    assert followed.known(log) == log.log.end(0) == 4_990
    for has_thread in (False, True, True):  # it gets a thread of its own when it is found to be slow
        log.hang()
        until(log.inside.is_set, "a call that takes its time")
        followed.clock.advance(0.25)  # not so long that the log is opened anew
        log.partitions = log.log.partitions
        if has_thread:
            other.write(10)
            until(lambda: followed.known(other) == other.end(), "the rows of the other stream")
        assert followed.known(log) < log.log.end(0), "its call has not come back"
        log.free.set()
        until(lambda: followed.known(log) == log.log.end(0), "its rows")
        followed.tailers.check()
    until(lambda: followed.known(log, 1) == log.log.end(1) > 0, "the partition that came meanwhile")
    assert followed.opened_anew == []


@pytest.mark.parametrize("error", [OSError("no disk"), SystemExit(1)], ids=["it fails", "it would end"])
def test_a_stream_that_cannot_be_looked_at_is_said_once_and_its_rows_arrive_when_it_works_again(
    followed: Followed, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    broken, other = followed.stream("broken", 2), followed.stream("other")
    broken.write(40)
    until(lambda: followed.known(broken) == 40, "the first rows")
    broken.error = error
    broken.write(60)
    broken.write(20, partition=1)
    other.write(10)
    until(lambda: followed.known(other) == 10, "the rows of the other stream")
    looked = len(broken.called)
    until(lambda: len(broken.called) > looked + 3, "it is looked at again and again")
    assert followed.known(broken) == 40, "what is known stays"
    broken.error = None
    until(lambda: (followed.known(broken), followed.known(broken, 1)) == (100, 20), "its rows")
    until(lambda: len(said(caplog, broken)) == 2, "the line that comes after its rows")
    assert [("cannot be looked at" in line) for line in said(caplog, broken)] == [True, False]
    assert "can be looked at again" in said(caplog, broken)[1]
    assert not said(caplog, other)


def test_a_reader_that_joins_a_stream_that_fails_is_told_when_it_works_again(followed: Followed) -> None:
    log = followed.logs["late"] = made(followed.folder, "late")
    log.write(30)
    log.error = OSError("no disk")
    ready, nobody = threading.Event(), threading.Event()
    followed.tailers.follow(log, {0: 0}, ready.set)  # type: ignore[arg-type]
    give_up = followed.tailers.follow(log, {0: 0}, nobody.set)  # type: ignore[arg-type]
    give_up()
    until(lambda: len(log.called) > 3, "it is looked at")
    assert not ready.is_set()
    log.error = None
    until(ready.is_set, "the headers")
    assert followed.known(log) == 30
    assert not nobody.is_set(), "nobody waits for it any more"


def test_a_stream_that_hangs_is_said_once_opened_anew_and_others_do_not_notice(
    followed: Followed, caplog: pytest.LogCaptureFixture
) -> None:
    hung, other = followed.stream("hung"), followed.stream("other")
    hung.write(40)
    until(lambda: followed.known(hung) == 40, "the first rows")
    hung.hang()
    hung.write(60)
    until(hung.inside.is_set, "it hangs")
    followed.pass_time(HUNG_S)
    until(lambda: len(followed.opened_anew) == 1, "it is opened anew")
    for rows in (10, 20):
        other.write(rows)
        until(lambda: followed.known(other) == other.end(), "the rows of the other stream")
    until(lambda: len([name for name, _ in hung.called if name == "start"]) > 1, "it hangs again")
    hung.inside.clear()
    followed.pass_time(HUNG_S)
    assert len(followed.opened_anew) == 1, "it has twice the time now"
    followed.pass_time(HUNG_S)
    until(lambda: len(followed.opened_anew) == 2, "it is opened anew again")
    assert followed.known(hung) == 40, "what is known stays"
    assert len(said(caplog, hung)) == 1
    hung.free.set()
    until(lambda: followed.known(hung) == 100, "its rows")
    hung.write(5)
    until(lambda: followed.known(hung) == 105, "those that come later, each once")
    assert len(said(caplog, hung)) == 2
    assert "can be looked at again" in said(caplog, hung)[1]
    assert not said(caplog, other)


def test_a_reader_whose_join_hangs_is_told_when_its_stream_was_opened_anew(followed: Followed) -> None:
    log = followed.stream("a")
    log.write(30)
    log.hang()
    until(log.inside.is_set, "it hangs")
    ready = threading.Event()
    followed.tailers.follow(log, {0: 0}, ready.set)  # type: ignore[arg-type]
    followed.logs["a"] = Watched(log.log)
    followed.pass_time(HUNG_S)
    until(ready.is_set, "the headers")
    assert followed.known(log) == 30
    log.free.set()


def test_a_thread_that_was_left_to_itself_hands_out_nothing_when_it_comes_back(followed: Followed) -> None:
    log = followed.stream("a")
    log.hang()
    until(log.inside.is_set, "it hangs")
    log.write(30)
    followed.logs["a"] = Watched(log.log)
    followed.pass_time(HUNG_S)
    until(lambda: followed.known(log) == 30, "the rows, by another thread")
    version = followed.tails[str(log.directory)].version
    ended = [thread for thread in threading.enumerate() if thread.name == "penstock-tailer"]
    log.free.set()
    until(lambda: sum(t.is_alive() for t in ended) < len(ended), "the old thread's end")
    assert followed.tails[str(log.directory)].version == version
    assert followed.known(log) == 30


def test_a_stream_that_is_slow_gets_a_thread_of_its_own(followed: Followed) -> None:
    slow, other = followed.stream("slow"), followed.stream("other")
    slow.hang()
    until(slow.inside.is_set, "a look takes long")
    followed.clock.advance(2 * SLOW_S)
    slow.free.set()
    until(lambda: followed.tailers._main.slow, "it is noticed")
    followed.tailers.check()
    slow.hang()
    until(slow.inside.is_set, "a look takes long again")
    other.write(10)
    until(lambda: followed.known(other) == 10, "the rows of the other stream, without a check")
    slow.write(20)
    slow.free.set()
    until(lambda: followed.known(slow) == 20, "its own rows")


def test_a_stream_whose_partitions_grow_is_followed_in_all_of_them(followed: Followed) -> None:
    log = followed.logs["grows"] = made(followed.folder, "grows", 3)
    log.partitions = 1
    followed.join(log, {0: 0})
    log.write(10)
    until(lambda: followed.known(log) == 10, "the rows of the first partition")
    log.write(20, 1)
    log.write(30, 2)
    log.partitions = 3
    until(lambda: [followed.known(log, p) for p in (1, 2)] == [20, 30], "the rows of the new partitions")
    log.write(5, 2)
    until(lambda: followed.known(log, 2) == 35, "those that come later")
    assert followed.known(log) == 10


def test_a_stream_that_nobody_reads_is_not_looked_at_any_more(followed: Followed) -> None:
    read, left = followed.stream("read"), followed.stream("left")
    followed.tailers.keep({str(read.directory): {0: 0}})
    assert set(followed.tailers.logs) == {str(read.directory)}
    before = len(read.called)
    until(lambda: len(read.called) > before + 10, "looks at the other stream")
    looked = len(left.called)
    until(lambda: len(read.called) > before + 40, "more looks")
    assert len(left.called) == looked
    left.write(10)
    followed.join(left, {0: 0})
    assert followed.known(left) == 10


def test_a_stream_that_was_made_anew_in_the_same_place_is_another_one(followed: Followed) -> None:
    log = followed.stream("a")
    log.write(30)
    until(lambda: followed.known(log) == 30, "the rows")
    again = Watched(log.log)
    followed.join(again, {0: 0})
    before = len(again.called)
    until(lambda: len(again.called) > before + 2, "looks at the new one")
    assert followed.tailers.logs[str(log.directory)] is again
    assert followed.known(again) == 30


def test_nothing_is_logged_while_streams_are_well(
    followed: Followed, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, "penstock.host"):
        log = followed.stream("a")
        log.write(30)
        until(lambda: followed.known(log) == 30, "the rows")
        followed.tailers.check()
    assert not said(caplog, log)
