"""What waits, and where a grant cuts it: against an evaluator that looks at every row."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.effort import tries

from penstock.control.backlog.waiting import Waiting, cut, look, profile
from penstock.streams.protocol import HeaderArrays
from penstock.vocabulary.model import Admission

EPOCH_US = 1_700_000_000_000_000
EPOCH_S = EPOCH_US / 1e6
A_MICROSECOND = 2e-6
"""And another one: seconds since the epoch, as floats, are exact to a quarter of it."""


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
def situations(draw: st.DrawFn) -> tuple[dict[str, tuple[Headers, dict[int, int]]], Admission, float]:
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


def waiting_rows(readers: dict[str, tuple[Headers, dict[int, int]]]) -> list[tuple[str, int, int, float]]:
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
    situation: tuple[dict[str, tuple[Headers, dict[int, int]]], Admission, float],
) -> None:
    readers, _, _ = situation
    waiting, rows = look(readers), waiting_rows(readers)  # type: ignore[arg-type]
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
    situation: tuple[dict[str, tuple[Headers, dict[int, int]]], Admission, float],
) -> None:
    readers, grant, row_limit = situation
    waiting, rows = look(readers), waiting_rows(readers)  # type: ignore[arg-type]
    decided = cut(waiting, grant, row_limit)
    late = [r for r in rows if r[2] < decided.late[r[0]].get(r[1], 0)]
    taken = [r for r in rows if decided.late[r[0]].get(r[1], 0) <= r[2] < decided.ends[r[0]].get(r[1], 0)]
    left = [r for r in rows if r[2] >= decided.ends[r[0]].get(r[1], 0)]
    assert (len(taken), len(late)) == (decided.rows, decided.late_rows)

    # by time: a row of a segment lies between two steps of its spread, so one row a stretch is in doubt
    step_s = A_MICROSECOND
    doubt = len(waiting.stretches)
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


def spread(readers: dict[str, tuple[Headers, dict[int, int]]]) -> float:
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
    situation: tuple[dict[str, tuple[Headers, dict[int, int]]], Admission, float], limit: float, keep: float
) -> None:
    readers, _, _ = situation
    grant = Admission(EPOCH_S + 60.0, -math.inf, keep, limit)
    for _ in range(look(readers).rows + 1):  # type: ignore[arg-type]
        waiting = look(readers)  # type: ignore[arg-type]
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
    assert [stretch.partition for stretch in waiting.stretches] == [1]
