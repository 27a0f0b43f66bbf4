"""Tailers: what is new in a stream since the last look, and all that a reader needs when it joins."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.control.backlog.tail import PartitionTail
from penstock.streams.embedded.log import EmbeddedLog
from penstock.streams.layout import LogConfig
from penstock.streams.protocol import HeaderArrays
from penstock.streams.tailing import NewSegments, Tailer, furthest_back, info_of


class Segments:
    """A log that is its segments alone: by partition, where each ends."""

    def __init__(self, partitions: int = 1) -> None:
        self.ends: list[list[int]] = [[] for _ in range(partitions)]
        self.starts = [0] * partitions
        self.calls = 0

    @property
    def partitions(self) -> int:
        return len(self.ends)

    def append(self, *rows: int, partition: int = 0) -> None:
        for count in rows:
            self.ends[partition].append(self.end(partition) + count)

    def start(self, partition: int = 0) -> int:
        return self.starts[partition]

    def end(self, partition: int = 0) -> int:
        return self.ends[partition][-1] if self.ends[partition] else 0

    def header_arrays(self, partition: int, start: int, end: int, keys: bool = True) -> HeaderArrays:
        self.calls += 1
        ends = np.array(self.ends[partition], np.int64)
        firsts = np.concatenate(([0], ends[:-1])).astype(np.int64) if ends.size else ends
        found = (firsts < end) & (ends > max(start, self.starts[partition]))
        rows, times = (ends - firsts)[found], ends[found] * 10**6
        return HeaderArrays(firsts[found], rows, times, times, times.astype(np.float64))


def tailer(log: Any) -> Tailer:
    return Tailer(log)


def ends_of(new: Iterable[NewSegments]) -> dict[int, tuple[list[int], bool]]:
    """By partition with news, where its segments end, and whether it comes anew."""
    found = {}
    for each in new:
        assert each.partition not in found
        ends = (each.headers.first_position + each.headers.rows).tolist()
        found[each.partition] = ends, each.anew
    return found


def test_the_first_reader_gets_all_from_its_position_on() -> None:
    log = Segments()
    log.append(10, 10, 10)
    assert ends_of(tailer(log).follow({0: 15})) == {0: ([20, 30], True)}
    assert ends_of(tailer(log).follow({})) == {0: ([10, 20, 30], True)}


def test_a_look_finds_what_is_new_and_a_partition_without_news_is_left_out() -> None:
    log = Segments(3)
    log.append(10)
    follows = tailer(log)
    assert ends_of(follows.follow({0: 0, 1: 0, 2: 0})) == {0: ([10], True), 1: ([], True), 2: ([], True)}
    assert follows.look() == []
    log.append(5, 5)
    log.append(7, partition=2)
    asked = log.calls
    assert ends_of(follows.look()) == {0: ([15, 20], False), 2: ([7], False)}
    assert log.calls == asked + 2, "of partitions without news no headers are read"
    assert follows.look() == []


def test_a_reader_from_further_back_has_all_come_anew() -> None:
    log = Segments()
    log.append(10, 10, 10)
    follows = tailer(log)
    follows.follow({0: 20})
    log.append(10)
    assert ends_of(follows.follow({0: 5})) == {0: ([10, 20, 30, 40], True)}
    log.append(10)
    assert ends_of(follows.look()) == {0: ([50], False)}


def test_a_reader_that_joins_gets_also_what_was_handed_out_before() -> None:
    """Whoever had it may have let go of what no other reader needed."""
    log = Segments(2)
    log.append(10, 10, 10)
    follows = tailer(log)
    follows.follow({0: 0, 1: 0})
    assert ends_of(follows.follow({0: 10, 1: 0})) == {0: ([20, 30], True), 1: ([], True)}
    assert follows.look() == []


def test_the_position_furthest_back_is_by_partition_and_what_is_not_named_is_needed_whole() -> None:
    assert furthest_back([{0: 5, 1: 9}, {0: 7, 1: 2}]) == {0: 5, 1: 2}
    assert furthest_back([{0: 5, 1: 9}, {0: 7}]) == {0: 5, 1: 0}
    assert furthest_back([]) == {}


def test_a_partition_that_a_stream_gets_later_is_read_from_its_beginning() -> None:
    log = Segments()
    log.append(10)
    follows = tailer(log)
    follows.follow({0: 10})
    log.ends.append([])
    log.starts.append(0)
    log.append(5, partition=1)
    assert ends_of(follows.look()) == {1: ([5], True)}


def test_a_look_that_failed_is_made_up_for_by_the_next() -> None:
    log = Segments(2)
    follows = tailer(log)
    follows.follow({})
    log.append(10)
    log.append(10, partition=1)
    whole, log.header_arrays = log.header_arrays, None  # type: ignore[assignment, method-assign]
    with pytest.raises(TypeError):
        follows.look()
    log.header_arrays = whole  # type: ignore[method-assign]
    assert ends_of(follows.look()) == {0: ([10], False), 1: ([10], False)}


def test_a_trim_is_news_and_brings_no_segment() -> None:
    log = Segments()
    log.append(10, 10, 10)
    follows = tailer(log)
    follows.follow({0: 0})
    log.starts[0] = 20
    (new,) = follows.look()
    assert (new.start, new.end, len(new.headers), new.anew) == (20, 30, 0, False)


def test_a_log_that_lost_its_tail_comes_anew_from_the_slowest_reader_on() -> None:
    log = Segments()
    log.append(10, 10, 10)
    follows = tailer(log)
    follows.follow({0: 5})
    log.ends[0] = [10, 17]
    assert ends_of(follows.look()) == {0: ([10, 17], True)}
    log.ends[0] = []
    assert ends_of(follows.look()) == {0: ([], True)}
    log.append(4, 4)
    assert ends_of(follows.look()) == {0: ([4, 8], False)}


def test_a_reader_beyond_the_end_gets_what_comes_after_it() -> None:
    log = Segments()
    log.append(10)
    follows = tailer(log)
    assert ends_of(follows.follow({0: 100})) == {0: ([], True)}
    log.append(10)
    assert ends_of(follows.look()) == {0: ([20], False)}


@settings(max_examples=60)
@given(st.data())
def test_a_tail_that_takes_in_what_a_tailer_finds_has_what_the_log_has(data: st.DataObject) -> None:
    """For every reader, whatever is appended, lost, trimmed, dropped, and whoever joins in between."""
    log, tail, readers = Segments(), PartitionTail(), list[int]()
    follows = tailer(log)

    def take_in(found: Iterable[NewSegments]) -> None:
        for new in found:
            tail.take_in(new)

    for _ in range(data.draw(st.integers(1, 25))):
        does = data.draw(
            st.sampled_from(["append", "append", "move", "lose", "trim", "drop", "join", "join"])
        )
        if does == "append":
            log.append(*data.draw(st.lists(st.integers(1, 9), max_size=9)))
        elif does == "move" and readers:
            readers = [data.draw(st.integers(at, max(at, log.end()))) for at in readers]
        elif does == "lose":
            kept = data.draw(st.integers(0, len(log.ends[0])))
            log.ends[0] = log.ends[0][:kept]
            take_in(follows.look())  # a tailer looks often: it sees the end before it is where it was
        elif does == "trim":
            past = [end for end in log.ends[0] if end <= min(readers, default=0)]
            log.starts[0] = max([log.start(), *past])
        elif does == "drop" and readers:
            tail.drop_before(min(readers))
        elif does == "join":
            readers.append(data.draw(st.integers(0, log.end())))
            take_in(follows.follow(furthest_back({0: at} for at in readers)))
        take_in(follows.look())
        for at in readers:
            part = tail.after("r", 0, at)
            expected = [end for end in log.ends[0] if end > max(at, log.start())]
            assert ([] if part is None else part.ends.tolist()) == expected


def test_a_stream_says_what_it_is(tmp_path: Path) -> None:
    schema: Any = pa.schema([("v", pa.int64()), ("k", pa.string())])
    with EmbeddedLog.create(tmp_path / "orders", schema, LogConfig(key="k", key_buckets=8)) as log:
        info = info_of(log)
    assert (info.id, info.name, info.partitions) == (str(tmp_path / "orders"), "orders", 1)
    assert (info.key_column, info.key_buckets, info.event_time) == ("k", 8, None)
    assert info.user_schema == schema
