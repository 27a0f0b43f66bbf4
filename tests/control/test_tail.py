"""Headers that tailers hand in: tails that grow and are dropped, and what they say waits for whom."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.control.backlog.backlog import Backlog, QueryBacklog
from penstock.control.backlog.tail import PartitionTail
from penstock.control.backlog.waiting import Waiting, WaitingSegments, cut
from penstock.streams.protocol import HeaderArrays
from penstock.streams.tailing import NewSegments
from penstock.vocabulary.model import Admission
from penstock.vocabulary.moment import Moment

NOW = Moment(100.0, 1e9)


def headers(first: int, *rows: int, at_s: float = 0.0) -> HeaderArrays:
    """Of segments one after the other, from a position on; each took a second, the first began at `at_s`."""
    counts = np.array(rows, np.int64)
    low_us = ((at_s + np.arange(counts.size)) * 1e6).astype(np.int64)
    return HeaderArrays(
        first + np.cumsum(counts) - counts, counts, low_us, low_us + 10**6, low_us.astype(np.float64)
    )


def news(first: int, *rows: int, start: int = 0, anew: bool = False, partition: int = 0) -> NewSegments:
    return NewSegments(partition, start, first + sum(rows), headers(first, *rows), anew)


def tail_of(*parts: NewSegments) -> PartitionTail:
    tail = PartitionTail()
    for part in parts:
        tail.take_in(part)
    return tail


def shown(part: WaitingSegments | None) -> list[tuple[int, int]]:
    """Where the segments of a view begin and end."""
    return [] if part is None else list(zip(part.segment.tolist(), part.ends.tolist(), strict=True))


def test_a_tail_grows_and_what_was_looked_at_before_stays_as_it_was() -> None:
    tail, views = PartitionTail(), []
    for i in range(500):  # beyond its first capacity, several times
        tail.take_in(news(3 * i, 1, 2))
        views.append(tail.after("r", 0, 0))
    for i, view in enumerate(views):
        whole = [(3 * k, 3 * k + 1) for k in range(i + 1)] + [(3 * k + 1, 3 * k + 3) for k in range(i + 1)]
        assert shown(view) == sorted(whole)
    assert (len(tail), tail.start, tail.end) == (1000, 0, 1500)


def test_a_tail_is_dropped_at_its_front_in_whole_segments() -> None:
    tail = tail_of(news(0, 10, 10, 10))
    before = tail.after("r", 0, 0)
    tail.drop_before(9)
    assert len(tail) == 3
    tail.drop_before(20)
    assert shown(tail.after("r", 0, 20)) == [(20, 30)]
    assert shown(before) == [(0, 10), (10, 20), (20, 30)]
    tail.drop_before(1000)
    assert len(tail) == 0
    assert tail.after("r", 0, 25) is None
    tail.take_in(news(30, 5))
    assert shown(tail.after("r", 0, 30)) == [(30, 35)]


def test_a_reader_has_what_comes_after_its_position_the_first_segment_in_part() -> None:
    tail = tail_of(news(0, 10, 10, 10))
    for position, begins in ((0, 0), (9, 0), (10, 10), (29, 20)):
        part = tail.after("r", 0, position)
        assert part is not None
        assert (part.start, int(part.segment[0]), part.rows) == (position, begins, 30 - position)
    assert tail.after("r", 0, 30) is None
    assert tail.after("r", 0, 99) is None


def test_a_trim_moves_where_what_waits_begins() -> None:
    tail = tail_of(news(0, 10, 10), NewSegments(0, 10, 20, headers(20)))
    part = tail.after("r", 0, 3)
    assert part is not None
    assert (part.start, part.rows) == (10, 10)
    all_gone = tail_of(news(0, 10), NewSegments(0, 10, 20, headers(20)))
    assert all_gone.after("r", 0, 3) is None, "the trim came before the headers"


def test_a_tail_that_comes_anew_has_nothing_of_the_one_before() -> None:
    tail = tail_of(news(0, 10, 10, 10))
    before = tail.after("r", 0, 0)
    tail.take_in(news(5, 7, 8, anew=True))
    assert shown(tail.after("r", 0, 0)) == [(5, 12), (12, 20)]
    assert shown(before) == [(0, 10), (10, 20), (20, 30)]
    assert tail.end == 20


def test_older_segments_come_before_those_that_are_there_and_none_comes_twice() -> None:
    tail = tail_of(news(0, 10, 10, 10, 10))
    tail.drop_before(20)
    before = tail.after("r", 0, 20)
    tail.take_in(news(10, 10, 10, 10, 5))  # for a reader that stands at 10
    assert shown(tail.after("r", 0, 0)) == [(10, 20), (20, 30), (30, 40), (40, 45)]
    assert shown(before) == [(20, 30), (30, 40)]
    tail.take_in(news(10, 10, 10, 10, 5))
    assert len(tail) == 4


@dataclass
class Plain:
    """A tail by its definition: a list of segments."""

    segments: list[tuple[int, int]] = field(default_factory=list)

    def after(self, position: int) -> list[tuple[int, int]]:
        return [segment for segment in self.segments if segment[1] > position]


@settings(max_examples=60)
@given(st.data())
def test_a_tail_has_what_a_list_of_segments_would_have(data: st.DataObject) -> None:
    tail, plain, log, views = PartitionTail(), Plain(), [0], []
    for _ in range(data.draw(st.integers(1, 40))):
        does = data.draw(st.sampled_from(["append", "append", "append", "drop", "join", "lose"]))
        if does == "append":
            rows = data.draw(st.lists(st.integers(1, 20), max_size=30))
            tail.take_in(NewSegments(0, 0, log[-1] + sum(rows), headers(log[-1], *rows)))
            for count in rows:
                plain.segments.append((log[-1], log[-1] + count))
                log.append(log[-1] + count)
        elif does == "drop":
            position = data.draw(st.integers(0, log[-1] + 5))
            tail.drop_before(position)
            plain.segments = plain.after(position)
        else:
            if does == "lose":
                log, plain.segments = log[: data.draw(st.integers(1, len(log)))], []
            first = data.draw(st.integers(0, len(log) - 1))  # all that comes after it is handed in
            rows = np.diff(log[first:]).tolist()
            tail.take_in(NewSegments(0, 0, log[-1], headers(log[first], *rows), does == "lose"))
            if plain.segments:
                first = min(first, log.index(plain.segments[0][0]))
            plain.segments = list(pairwise(log[first:]))
        position = data.draw(st.integers(0, log[-1] + 5))
        view = tail.after("r", 0, position)
        views.append((view, plain.after(position) if position < log[-1] else []))
    for view, expected in views:
        assert shown(view) == expected


@pytest.mark.parametrize("shed_before_s", [-np.inf, 0.0])
def test_rows_without_a_header_wait_with_the_segment_after_them_and_are_not_late_before_it(
    shed_before_s: float,
) -> None:
    part = tail_of(news(30, 10, 10)).after("r", 0, 12)
    assert part is not None
    assert (part.start, part.end, part.rows, part.oldest_s) == (12, 50, 38, 0.0)
    waiting = Waiting([part], {"r": {0: 50}})
    decided = cut(waiting, Admission(5.0, shed_before_s, 1.0), 1000)
    assert (decided.late, decided.ends, decided.rows) == ({"r": {0: 12}}, {"r": {0: 50}}, 38)
    late = cut(waiting, Admission(5.0, 1.75, 1.0), 1000)
    assert (late.late, late.late_rows) == ({"r": {0: 47}}, 35)


# -- what waits for queries -----------------------------------------------------------------------


def test_readers_of_one_stream_have_one_tail_and_each_its_own_position() -> None:
    backlog, near, far = Backlog(), QueryBacklog(), QueryBacklog()
    backlog.arrived("s", [news(0, 10, 10), news(0, 5, partition=1)], NOW)
    assert backlog.refresh(near, {"a": ("s", {0: 15, 1: 5})}, NOW)
    assert backlog.refresh(far, {"b": ("s", {0: 0})}, NOW)
    assert (near.waiting.rows, far.waiting.rows) == (5, 25)
    assert near.waiting.ends == {"a": {0: 20, 1: 5}}
    assert np.shares_memory(near.waiting.parts[0].ends, far.waiting.parts[0].ends)


def test_what_waits_is_made_anew_only_when_rows_came_or_the_reader_moved() -> None:
    backlog, query = Backlog(), QueryBacklog()
    backlog.arrived("s", [news(0, 10)], NOW)
    assert backlog.refresh(query, {"a": ("s", {0: 0})}, NOW)
    before = query.waiting
    assert not backlog.refresh(query, {"a": ("s", {0: 0})}, NOW)
    assert query.waiting is before
    assert backlog.refresh(query, {"a": ("s", {0: 4})}, NOW)
    assert query.waiting.rows == 6
    backlog.arrived("s", [news(10, 10)], NOW)
    assert backlog.refresh(query, {"a": ("s", {0: 4})}, NOW)
    assert query.waiting.rows == 16
    assert before.rows == 10


def test_a_stream_that_nobody_read_for_a_while_is_known_anew() -> None:
    backlog, query, reads = Backlog(), QueryBacklog(), {"a": ("s", {0: 0})}
    backlog.arrived("s", [news(0, 10)], NOW)
    backlog.refresh(query, reads, NOW)
    backlog.keep([])
    assert backlog.ends("s") == {}
    backlog.arrived("s", [news(0, 10, 10, anew=True)], NOW)
    assert backlog.refresh(query, reads, NOW)
    assert query.waiting.rows == 20


def test_segments_that_every_reader_is_past_are_forgotten_and_others_are_not() -> None:
    backlog, query = Backlog(), QueryBacklog()
    backlog.arrived("s", [news(0, 10, 10, 10)], NOW)
    backlog.arrived("t", [news(0, 10)], NOW)
    backlog.keep([("s", {0: 25}), ("s", {0: 12})])
    assert (backlog.ends("s"), backlog.ends("t")) == ({0: 30}, {})
    backlog.refresh(query, {"a": ("s", {0: 12})}, NOW)
    assert (query.waiting.rows, query.waiting.parts[0].start) == (18, 12)


def test_rows_that_are_there_when_a_reader_joins_are_not_offered_and_later_ones_are_once() -> None:
    backlog, query, reads = Backlog(), QueryBacklog(), {"a": ("s", {0: 0})}
    backlog.arrived("s", [news(0, 10)], NOW)
    backlog.refresh(query, reads, NOW)
    assert query.count_new() == {"a": 0}
    backlog.arrived("s", [news(10, 7)], NOW)
    backlog.refresh(query, reads, NOW)
    assert query.count_new() == {"a": 7}
    assert query.count_new() == {"a": 0}
    backlog.arrived("s", [news(0, 12, anew=True)], NOW)  # the log lost five rows, and got them again
    backlog.refresh(query, reads, NOW)
    assert query.count_new() == {"a": 0}
    backlog.arrived("s", [news(12, 8)], NOW)
    backlog.refresh(query, reads, NOW)
    assert query.count_new() == {"a": 3}


def test_what_is_left_counts_rows_that_a_trim_took_and_the_age_those_that_are_there() -> None:
    backlog = Backlog()
    backlog.arrived("s", [news(0, 10, 10), NewSegments(0, 10, 20, headers(20))], NOW)
    rows, oldest_s = backlog.left_of("s", {0: 4}, NOW)
    assert (rows, oldest_s) == (16, pytest.approx(1.0))
    assert backlog.left_of("s", {0: 20}, NOW) == (0, None)
    assert backlog.left_of("unknown", {0: 4}, NOW) == (0, None)
