"""What waits, and where a grant cuts it: against an evaluator that looks at every row."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.effort import tries

from penstock.control.backlog.backlog import Backlog, QueryBacklog
from penstock.control.backlog.waiting import Waiting, WaitingSegments, cut, profile
from penstock.streams.protocol import HeaderArrays
from penstock.streams.tailing import Tailer
from penstock.vocabulary.model import Admission
from penstock.vocabulary.moment import Moment

EPOCH_US = 1_700_000_000_000_000
EPOCH_S = EPOCH_US / 1e6
A_MICROSECOND = 2e-6
"""And another one: seconds since the epoch, as floats, are exact to a quarter of it."""
LATER = Moment(0.0, EPOCH_S + 1e9)
"""When all rows have arrived, whatever is stamped on them."""


@dataclass
class Headers:
    """A log of segment headers alone: (rows, first arrival, last arrival) of each, in microseconds."""

    segments: list[list[tuple[int, int, int]]]
    trimmed: dict[int, int]

    key_column, key_buckets = None, 0

    @property
    def partitions(self) -> int:
        return len(self.segments)

    def start(self, partition: int = 0) -> int:
        return self.trimmed.get(partition, 0)

    def end(self, partition: int = 0) -> int:
        return sum(rows for rows, _, _ in self.segments[partition])

    def position_at(self, partition: int, arrival_us: int) -> int:
        raise NotImplementedError

    def header_arrays(self, partition: int, start: int, end: int, keys: bool = True) -> HeaderArrays:
        table = np.array(self.segments[partition], np.int64).reshape(-1, 3)
        first = np.cumsum(table[:, 0]) - table[:, 0]
        found = (first < end) & (first + table[:, 0] > start)
        low, high = table[found, 1] + EPOCH_US, table[found, 2] + EPOCH_US
        return HeaderArrays(first[found], table[found, 0], low, high, (low + high) / 2)

    def arrivals_s(self, partition: int) -> np.ndarray:
        """When every row arrived, as a header tells it: evenly, the last one at the segment's end."""
        times = [np.empty(0)]
        for rows, low, high in self.segments[partition]:
            times.append(EPOCH_S + (low + (np.arange(rows) + 1) / rows * (high - low)) / 1e6)
        return np.concatenate(times)


Readers = dict[str, tuple[Headers, dict[int, int]]]


def look(readers: Readers) -> Waiting:
    """What waits for a query whose readers read a log each, as tailers tell it."""
    backlog, query = Backlog(), QueryBacklog()
    for name, (log, positions) in readers.items():
        stream: Any = log
        backlog.arrived(name, Tailer(stream).follow(positions), LATER)
    backlog.refresh(query, {name: (name, positions) for name, (_, positions) in readers.items()}, LATER)
    return query.waiting


@st.composite
def logs(draw: st.DrawFn) -> Headers:
    partitions = []
    for _ in range(draw(st.integers(1, 3))):
        at, segments = draw(st.integers(0, 10**6)), []
        for _ in range(draw(st.integers(0, 8))):
            # every other segment arrived in one moment, as appends without arrival times do
            low = at + draw(st.integers(0, 400_000))
            high = low + draw(st.just(0) | st.integers(1, 300_000))
            segments.append((draw(st.integers(1, 30)), low, high))
            at = high
        partitions.append(segments)
    trimmed = {
        p: draw(st.just(0) | st.integers(0, sum(s[0] for s in partitions[p]))) for p in range(len(partitions))
    }
    return Headers(partitions, trimmed)


@st.composite
def situations(draw: st.DrawFn) -> tuple[Readers, Admission, float]:
    readers = {}
    for name in draw(st.sampled_from([["left"], ["left", "right"]])):
        log = draw(logs())
        readers[name] = (log, {p: draw(st.integers(0, log.end(p))) for p in range(log.partitions)})
    moment = st.floats(-0.5, 8.0).map(lambda s: EPOCH_S + s)
    grant = Admission(
        draw(moment | st.just(math.inf)),
        draw(moment | st.just(-math.inf)),
        draw(st.sampled_from([1.0, 0.5, 0.1, 0.0])),
        draw(st.none() | st.floats(0, 200)),
    )
    return readers, grant, draw(st.floats(1, 300))


def waiting_rows(readers: Readers) -> list[tuple[str, int, int, float]]:
    """Every waiting row: reader, partition, position, arrival. Times inside a clipped segment are its own."""
    rows = []
    for name, (log, positions) in readers.items():
        for p in range(log.partitions):
            first = max(positions[p], log.start(p))
            rows += [(name, p, i, t) for i, t in enumerate(log.arrivals_s(p).tolist()) if i >= first]
    return rows


@settings(max_examples=60)
@given(situations())
def test_what_waits_is_every_row_that_is_there_and_not_reached(
    situation: tuple[Readers, Admission, float],
) -> None:
    readers, _, _ = situation
    waiting, rows = look(readers), waiting_rows(readers)
    assert waiting.rows == len(rows)
    for name, (log, _) in readers.items():
        assert waiting.ends[name] == {p: log.end(p) for p in range(log.partitions)}
    if not rows:
        assert waiting.oldest_s is None
    else:
        # a header gives the first row's arrival, the even spread puts it a step later
        assert waiting.oldest_s is not None
        assert waiting.oldest_s <= min(t for _, _, _, t in rows) + A_MICROSECOND


@settings(max_examples=tries(60, 300))
@given(situations())
def test_a_cut_takes_the_oldest_rows_between_its_times_within_its_limit(
    situation: tuple[Readers, Admission, float],
) -> None:
    readers, grant, row_limit = situation
    waiting, rows = look(readers), waiting_rows(readers)
    decided = cut(waiting, grant, row_limit)
    late = [r for r in rows if r[2] < decided.late[r[0]].get(r[1], 0)]
    taken = [r for r in rows if decided.late[r[0]].get(r[1], 0) <= r[2] < decided.ends[r[0]].get(r[1], 0)]
    left = [r for r in rows if r[2] >= decided.ends[r[0]].get(r[1], 0)]
    assert (len(taken), len(late)) == (decided.rows, decided.late_rows)

    # by time: a row of a segment lies between two steps of its spread, so one row a partition is in doubt
    step_s = A_MICROSECOND
    doubt = len(waiting.parts)
    assert all(t < grant.shed_before_s + step_s for *_, t in late)
    assert all(t <= max(grant.cut_s, grant.shed_before_s) + step_s for *_, t in taken)
    certainly_late = sum(t < grant.shed_before_s - step_s for *_, t in rows)
    assert (
        certainly_late - doubt
        <= len(late)
        <= certainly_late + doubt + sum(abs(t - grant.shed_before_s) <= step_s for *_, t in rows)
    )

    # by number
    most = row_limit if grant.limit_rows is None else min(row_limit, grant.limit_rows)
    limit = most / grant.keep_fraction if grant.keep_fraction else math.inf
    assert decided.rows <= limit
    inside = [r for r in rows if r not in late and r[3] < grant.cut_s - step_s]
    assert decided.rows >= min(len(inside) - doubt, limit - 1)

    # oldest first: what goes on waiting is no older than what is taken
    if taken and left and decided.rows > limit - 1:
        assert max(t for *_, t in taken) <= min(t for *_, t in left) + spread(readers)


def spread(readers: Readers) -> float:
    """The largest step between two rows of one segment: positions are whole rows, moments are not."""
    steps = [
        (high - low) / rows / 1e6
        for log, _ in readers.values()
        for partition in log.segments
        for rows, low, high in partition
    ]
    return max(steps, default=0.0) + A_MICROSECOND


@settings(max_examples=25)
@given(situations(), st.sampled_from([1.0, 1.5, 7.0]), st.sampled_from([1.0, 0.3]))
def test_a_limit_of_one_row_or_more_always_advances(
    situation: tuple[Readers, Admission, float], limit: float, keep: float
) -> None:
    readers, _, _ = situation
    grant = Admission(EPOCH_S + 60.0, -math.inf, keep, limit)
    for _ in range(look(readers).rows + 1):
        waiting = look(readers)
        if not waiting.rows:
            return
        decided = cut(waiting, grant, 1000.0)
        assert 1 <= decided.rows <= limit / keep
        readers = {
            name: (log, {**positions, **decided.ends[name]}) for name, (log, positions) in readers.items()
        }
    pytest.fail("rows are left after as many grants as there were rows")


def test_many_rows_of_one_arrival_time_are_split_by_the_limit_and_none_is_passed_over() -> None:
    log = Headers([[(1000, 0, 0), (1000, 0, 0)], [(500, 0, 0)]], {})
    positions, taken = {0: 0, 1: 0}, 0
    while (waiting := look({"r": (log, positions)})).rows:
        decided = cut(waiting, Admission(EPOCH_S + 1.0, -math.inf, 1.0), 300)
        assert decided.rows == min(300, 2500 - taken)
        taken += decided.rows
        positions = decided.ends["r"] | {p: end for p, end in positions.items() if p not in decided.ends["r"]}
    assert (taken, positions) == (2500, {0: 2000, 1: 500})


def test_a_cut_inside_a_segment_is_where_its_rows_arrived() -> None:
    log = Headers([[(100, 0, 1_000_000)]], {})
    waiting = look({"r": (log, {0: 0})})
    decided = cut(waiting, Admission(EPOCH_S + 0.75, EPOCH_S + 0.25, 1.0), 1000)
    assert decided.late["r"][0] == pytest.approx(25, abs=1)
    assert decided.ends["r"][0] == pytest.approx(75, abs=1)
    # the rest of the segment is looked at as what it is: rows of its last quarter second
    rest = look({"r": (log, decided.ends["r"])})
    assert rest.oldest_s == pytest.approx(EPOCH_S + 0.75, abs=0.011)
    assert cut(rest, Admission(EPOCH_S + 0.74, -math.inf, 1.0), 1000).rows <= 1


def test_rows_that_are_trimmed_do_not_wait() -> None:
    log = Headers([[(10, 0, 0), (10, 5, 5)]], {0: 12})
    waiting = look({"r": (log, {0: 3})})
    assert waiting.rows == 8
    assert cut(waiting, Admission(math.inf, -math.inf, 1.0), 100).ends == {"r": {0: 20}}


def test_a_reader_that_is_ahead_of_a_log_that_went_back_waits_for_nothing() -> None:
    waiting = look({"r": (Headers([[(10, 0, 0)]], {}), {0: 15})})
    assert (waiting.rows, waiting.ends) == (0, {"r": {0: 15}})


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(1, 50), st.integers(0, 50_000), st.integers(0, 9_000)), max_size=400))
def test_a_profile_has_every_row_in_at_most_128_bins_and_none_too_early(
    steps: list[tuple[int, int, int]],
) -> None:
    at, segments = 0, []
    for rows, pause, length in steps:
        segments.append((rows, at + pause, at + pause + length))
        at += pause + length
    waiting: Waiting = look({"r": (Headers([segments], {}), {0: 0})})
    seen = profile(waiting)
    assert seen.total == sum(rows for rows, _, _ in segments)
    assert seen.rows.size <= 128
    assert seen.rows.dtype == np.float64
    assert (np.diff(seen.arrival_s) >= 0).all()
    if segments:
        upto = np.cumsum(seen.rows)
        last_s = EPOCH_S + np.array([high for _, _, high in segments]) / 1e6
        counts = np.array([rows for rows, _, _ in segments])
        width_s = float(last_s[-1] - last_s[0]) / 127 + 1e-6
        for edge, total in zip(seen.arrival_s, upto, strict=True):
            assert counts[last_s <= edge - width_s].sum() <= total <= counts[last_s <= edge + 1e-6].sum()


def test_a_reader_beyond_the_end_has_nothing_waiting_and_does_not_go_back() -> None:
    """Its source refuses the log, which lost rows; until then nobody decides about positions of others."""
    log = Headers([[(700, EPOCH_US, EPOCH_US + 9)], [(50, EPOCH_US, EPOCH_US + 9)]], {})
    waiting = look({"r": (log, {0: 1000, 1: 20})})
    assert (waiting.ends, waiting.rows) == ({"r": {0: 1000, 1: 50}}, 30)
    assert [part.partition for part in waiting.parts] == [1]


# -- by search, and row by row --------------------------------------------------------------------


@dataclass
class Clipped:
    """Waiting rows of a partition by their definition: a segment after the other, the first one clipped."""

    segment: list[int]
    first: list[int]
    rows: list[int]
    low_s: list[float]
    high_s: list[float]

    @property
    def end(self) -> int:
        return self.first[-1] + self.rows[-1]

    def position_at(self, arrival_s: float) -> int:
        for first, rows, low_s, high_s in zip(self.first, self.rows, self.low_s, self.high_s, strict=True):
            if high_s <= arrival_s:
                continue
            if arrival_s < low_s:
                return first
            return first + min(int((arrival_s - low_s) / (high_s - low_s) * rows), rows)
        return self.end

    def between(self, first: int, end: int) -> list[tuple[int, int, int, float, float]]:
        fields = zip(self.segment, self.first, self.rows, self.low_s, self.high_s, strict=True)
        return [each for each in fields if max(each[1], first) < min(each[1] + each[2], end)]


def clipped(log: Headers, partition: int, position: int) -> Clipped | None:
    """What waits in a partition for a reader at a position."""
    found, at = Clipped([], [], [], [], []), 0
    start = max(position, log.start(partition))
    for rows, low, high in log.segments[partition]:
        low_s, high_s, first = (EPOCH_US + low) / 1e6, (EPOCH_US + high) / 1e6, max(at, start)
        if first < at + rows:
            found.segment.append(at)
            found.first.append(first)
            found.rows.append(at + rows - first)
            found.low_s.append(low_s + (first - at) / rows * (high_s - low_s) if first > at else low_s)
            found.high_s.append(high_s)
        at += rows
    return found if found.rows else None


@settings(max_examples=tries(60, 300))
@given(situations(), st.data())
def test_what_is_found_by_search_is_what_is_found_segment_by_segment(
    situation: tuple[Readers, Admission, float], data: st.DataObject
) -> None:
    readers, grant, _ = situation
    parts = {(part.reader, part.partition): part for part in look(readers).parts}
    for name, (log, positions) in readers.items():
        for p in range(log.partitions):
            plain, part = clipped(log, p, positions[p]), parts.pop((name, p), None)
            if plain is None or part is None:
                assert plain is part, "nothing waits by both"
                continue
            assert (part.start, part.end, part.rows) == (plain.first[0], plain.end, sum(plain.rows))
            assert part.oldest_s == plain.low_s[0]
            moments_s = [grant.cut_s, grant.shed_before_s, *plain.low_s, *plain.high_s]
            moments_s += [np.nextafter(moment_s, -np.inf) for moment_s in moments_s]
            for moment_s in moments_s:
                assert part.position_at(moment_s) == plain.position_at(moment_s)
            first, end = data.draw(st.integers(0, log.end(p) + 2)), data.draw(st.integers(0, log.end(p) + 2))
            assert segments_of(part, first, end) == plain.between(first, end)
            assert segments_of(part, part.start, part.end) == plain.between(part.start, part.end)
    assert parts == {}


def segments_of(part: WaitingSegments, first: int, end: int) -> list[tuple[int, int, int, float, float]]:
    found = part.between(first, end)
    fields = (found.segment, found.first, found.rows, found.low_s, found.high_s)
    return list(zip(*(field.tolist() for field in fields), strict=True))


@settings(max_examples=tries(25, 150))
@given(st.integers(0, 2**32))
def test_a_profile_of_many_segments_is_the_histogram_of_their_last_arrivals(seed: int) -> None:
    rng = np.random.default_rng(seed)
    segments = []
    for _ in range(int(rng.integers(3, 5))):
        count = int(rng.integers(60, 200))
        lengths = rng.integers(0, 9_000, count) * (rng.random(count) < 0.5)  # many are of one moment
        first = rng.integers(0, 100_000) + np.cumsum(rng.integers(0, 50_000, count) + lengths) - lengths
        rows = rng.integers(1, 50, count)
        segments.append(list(zip(rows.tolist(), first.tolist(), (first + lengths).tolist(), strict=True)))
    log = Headers(segments, {})
    positions = {p: int(rng.integers(0, log.end(p) // 4)) for p in range(log.partitions)}
    waiting = look({"r": (log, positions)})
    plain = [found for p in positions if (found := clipped(log, p, positions[p])) is not None]
    arrival_s = np.concatenate([np.array(found.high_s) for found in plain])
    counts = np.concatenate([np.array(found.rows) for found in plain])
    assume(arrival_s.size > 128)
    edges = np.linspace(arrival_s.min(), arrival_s.max(), 128)
    index = np.minimum(np.searchsorted(edges, arrival_s, side="left"), 127)
    seen = profile(waiting)
    assert seen.arrival_s.tolist() == edges.tolist()
    assert seen.rows.tolist() == np.bincount(index, weights=counts, minlength=128).tolist()


def some_partitions(rng: np.random.Generator) -> Waiting:
    """What waits in up to thirty partitions; some times are equal, some segments arrived at one moment."""
    parts = []
    for partition in range(int(rng.integers(1, 30))):
        count, first = int(rng.integers(1, 20)), int(rng.integers(0, 100))
        rows = rng.integers(1, 50, count)
        ends = first + np.cumsum(rows)
        high_s = EPOCH_S + np.sort(np.round(rng.uniform(0.0, 5.0, count), int(rng.integers(0, 7))))
        low_s = high_s - np.round(rng.exponential(0.3, count) * (rng.random(count) < 0.8), 2)
        start = first + int(rng.integers(0, rows[0]))
        parts.append(WaitingSegments.of("r", partition, ends - rows, ends, low_s, high_s, start))
    return Waiting(parts, {"r": {part.partition: part.end for part in parts}})


@settings(max_examples=tries(60, 600), deadline=None)
@given(st.integers(0, 2**32), st.floats(-1.0, 6.0), st.floats(-1.0, 6.0), st.integers(0, 2000))
def test_many_partitions_at_once_are_decided_about_as_one_after_the_other(
    seed: int, cut_s: float, shed_before_s: float, limit: int
) -> None:
    waiting = some_partitions(np.random.default_rng(seed))
    grant = Admission(EPOCH_S + cut_s, EPOCH_S + shed_before_s, 1.0)
    at_once, binned = cut(waiting, grant, limit), profile(waiting)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("penstock.control.backlog.waiting._SEVERAL", math.inf)
        patch.setattr("penstock.control.backlog.waiting._FEW", 0)
        assert cut(waiting, grant, limit) == at_once
        assert profile(waiting).arrival_s.tolist() == binned.arrival_s.tolist()
        assert profile(waiting).rows.tolist() == binned.rows.tolist()
