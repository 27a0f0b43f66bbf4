"""Arrival traces: the container, files and scaling."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from penstock.sim.workloads.traces import Arrivals, overload, read_trace, scale_rate
from penstock.vocabulary.errors import InvalidInputError

WriteTrace = Callable[[str | bytes], Path]


@pytest.fixture
def trace(tmp_path: Path) -> WriteTrace:
    def write(content: str | bytes) -> Path:
        path = tmp_path / "web.trace"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


def arrivals_at(*times_s: float, duration_s: float = 10.0) -> Arrivals:
    return Arrivals(np.array(times_s), duration_s, "test")


def test_arrivals_know_their_count_rate_and_bins() -> None:
    arrivals = arrivals_at(0.0, 0.5, 1.0, 2.0, duration_s=2.0)
    assert arrivals.count == 4
    assert arrivals.mean_rate_per_s == 2.0
    assert arrivals.counts_per(1.0).tolist() == [2, 2]  # the arrival at the very end counts in the last bin
    assert arrivals.counts_per(0.75).tolist() == [2, 1, 1]
    assert arrivals.counts_per(5.0).tolist() == [4]


def test_bins_do_not_suffer_from_rounding() -> None:
    arrivals = Arrivals(np.arange(11) / 10, 1.1, "tenths")
    assert arrivals.counts_per(0.1).tolist() == [1] * 11


def test_arrivals_are_a_read_only_copy() -> None:
    times_s = np.array([1.0, 2.0])
    arrivals = Arrivals(times_s, 3.0, "test")
    times_s[0] = 9.0
    assert arrivals.times_s.tolist() == [1.0, 2.0]
    with pytest.raises(ValueError, match="read-only"):
        arrivals.times_s[0] = 0.0


def test_a_workload_may_be_empty() -> None:
    assert arrivals_at().count == 0
    assert arrivals_at().counts_per(5.0).tolist() == [0, 0]


def test_a_file_of_times_is_read(trace: WriteTrace) -> None:
    arrivals = read_trace(trace("# a trace\n\n0.5\n 1.25 \r\n1.25\n  # note\n3e0\n"))
    assert arrivals.times_s.tolist() == [0.5, 1.25, 1.25, 3.0]
    assert arrivals.duration_s == 4.0  # to the end of the last second
    assert arrivals.name == "web.trace"


@pytest.mark.parametrize("header", ["", "second,count\n", "# made by hand\nt, n\n", "\ufeffsecond,count\n"])
def test_a_file_of_counts_is_read_and_spread_over_each_second(trace: WriteTrace, header: str) -> None:
    arrivals = read_trace(trace(header + "0,2\n1,0\n3, 4\n"))
    assert arrivals.times_s.tolist() == [0.0, 0.5, 3.0, 3.25, 3.5, 3.75]
    assert arrivals.duration_s == 4.0


def test_a_gzipped_file_is_told_by_its_content(trace: WriteTrace) -> None:
    assert read_trace(trace(gzip.compress(b"1\n2\n"))).times_s.tolist() == [1.0, 2.0]


def test_time_scale_multiplies_times_and_duration(trace: WriteTrace) -> None:
    arrivals = read_trace(trace("1\n2\n"), time_scale=0.5)
    assert arrivals.times_s.tolist() == [0.5, 1.0]
    assert arrivals.duration_s == 1.5


def test_origin_moves_times_of_day_to_zero(trace: WriteTrace) -> None:
    assert read_trace(trace("1700000001.5\n1700000002\n"), origin=1.7e9).times_s.tolist() == [1.5, 2.0]
    assert read_trace(trace("1700000001,2\n"), origin=1.7e9).times_s.tolist() == [1.0, 1.5]


def test_rate_scale_multiplies_times_by_replicas(trace: WriteTrace) -> None:
    arrivals = read_trace(trace("1\n2\n3\n4\n"), rate_scale=2.5, seed=1)
    assert arrivals.count == 10
    assert {1.0, 2.0, 3.0, 4.0} <= set(arrivals.times_s.tolist())


def test_rate_scale_multiplies_counts_and_diffuses_the_rounding(trace: WriteTrace) -> None:
    path = trace("".join(f"{second},1\n" for second in range(100)))
    counts = read_trace(path, rate_scale=0.3).counts_per(1.0)
    assert counts.sum() == 30
    assert np.abs(np.cumsum(counts) - 0.3 * np.arange(1, 101)).max() <= 0.5 + 1e-9


def test_counts_keep_their_silent_seconds_when_scaled(trace: WriteTrace) -> None:
    counts = read_trace(trace("0,3\n1,0\n2,3\n"), rate_scale=1.5).counts_per(1.0)
    assert counts[1] == 0
    assert counts.sum() == 9


def test_scaling_by_one_changes_nothing() -> None:
    arrivals = arrivals_at(1.0, 2.0)
    assert scale_rate(arrivals, 1.0) is arrivals


def test_thinning_keeps_a_seeded_choice_of_the_arrivals() -> None:
    arrivals = Arrivals(np.arange(1000.0), 1000.0, "test")
    thinned = scale_rate(arrivals, 0.25, seed=1)
    assert thinned.count == 250
    assert set(thinned.times_s) <= set(arrivals.times_s)
    assert thinned.name == "test x0.25"
    np.testing.assert_array_equal(thinned.times_s, scale_rate(arrivals, 0.25, seed=1).times_s)
    assert not np.array_equal(thinned.times_s, scale_rate(arrivals, 0.25, seed=2).times_s)


def test_replicas_stay_in_the_gap_before_the_next_arrival() -> None:
    scaled = scale_rate(arrivals_at(1.0, 5.0), 3.0)
    first, second = scaled.times_s[:3], scaled.times_s[3:]
    assert first[0] == 1.0
    assert np.all(np.diff(scaled.times_s) > 0)
    assert first[-1] < 5.0
    assert second[0] == 5.0
    assert second[-1] <= 10.0


@given(
    times_s=st.lists(st.floats(0.0, 100.0), min_size=1, max_size=50),
    rate_scale=st.floats(0.5, 7.0),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=150)
def test_scaled_arrivals_are_sorted_inside_the_duration_and_exactly_as_many_as_asked(
    times_s: list[float], rate_scale: float, seed: int
) -> None:
    arrivals = Arrivals(np.sort(times_s), 100.0, "test")
    total = round(len(times_s) * rate_scale)
    if total == 0:
        return
    scaled = scale_rate(arrivals, rate_scale, seed)  # Arrivals checks order and bounds
    assert scaled.count == total
    assert scaled.duration_s == 100.0


@given(times_s=st.lists(st.floats(0.0, 1e6), min_size=1, max_size=50))
@settings(max_examples=100)
def test_written_times_are_read_back_exactly(
    tmp_path_factory: pytest.TempPathFactory, times_s: list[float]
) -> None:
    assume(any(time_s != int(time_s) for time_s in times_s))  # whole seconds are spread
    path = tmp_path_factory.mktemp("trace") / "times"
    path.write_text("\n".join(map(repr, sorted(times_s))))
    assert read_trace(path).times_s.tolist() == sorted(times_s)


@pytest.mark.parametrize("factor", [0.5, 1.0, 1.7, 12.0])
def test_overload_offers_the_factor_times_the_capacity(factor: float) -> None:
    arrivals = Arrivals(np.sort(np.random.default_rng(1).random(5000)) * 50, 50.0, "test")
    offered = overload(arrivals, capacity_per_s=80.0, factor=factor, seed=3)
    assert offered.mean_rate_per_s == pytest.approx(80.0 * factor, abs=1 / 50)


JUNK = bytes(np.random.default_rng(0).integers(0, 256, 500, dtype=np.uint8))
BAD_FILES: dict[str, tuple[str | bytes, str]] = {
    "empty": ("", "a trace must hold at least one arrival; got: no data in "),
    "only comments": ("# nothing\n\n  # here\n", "a trace must hold at least one arrival; got: no data in "),
    "only a header": ("second,count\n", "a trace must hold at least one arrival; got: no data in "),
    "only zeros": ("0,0\n1,0\n", "a trace must hold at least one arrival; got: only counts of 0 in "),
    "unsorted": (
        "# c\n1\n3\n\n2\n",
        "arrival times must be sorted; got: '2' in {path}, line 5; hint: sort the file",
    ),
    "negative": ("-1\n2\n", "times must not be negative; got: '-1' in {path}, line 1"),
    "nan": ("1\nnan\n", "an arrival time must be a finite number; got: 'nan' in {path}, line 2"),
    "infinite": ("1\ninf\n", "an arrival time must be a finite number; got: 'inf' in {path}, line 2"),
    "overflow": ("1\n1e999\n", "an arrival time must be a finite number; got: '1e999' in {path}, line 2"),
    "text": ("1\n2\nthree\n", "an arrival time must be a number; got: 'three' in {path}, line 3"),
    "two on a line": ("1 2\n", "an arrival time must be a number; got: '1 2' in {path}, line 1"),
    "long text": ("1\n" + "x" * 99, f"must be a number; got: '{'x' * 37}...' in {{path}}, line 2"),
    "counts among times": ("1\n2,3\n", "every line must be one arrival time; got: '2,3' in {path}, line 2"),
    "times among counts": ("h,n\n1,2\n3\n", "every line must be second,count; got: '3' in {path}, line 3"),
    "three columns": ("1,2,3\n", "every line must be second,count; got: '1,2,3' in {path}, line 1"),
    "second is text": ("0,1\nx,2\n", "a second must be a number; got: 'x,2' in {path}, line 2"),
    "first second is text": ("x,2\n", "a second must be a number; got: 'x,2' in {path}, line 1"),
    "count is text": ("0,1\n1,\n", "a count must be a number; got: '1,' in {path}, line 2"),
    "count nan": ("0,nan\n", "a count must be a finite number; got: '0,nan' in {path}, line 1"),
    "second infinite": ("inf,1\n", "a second must be a finite number; got: 'inf,1' in {path}, line 1"),
    "negative count": (
        "0,1\n1,-2\n",
        "a count must be a whole number, 0 or more; got: '1,-2' in {path}, line 2",
    ),
    "part of a count": (
        "s,n\n0,1.5\n",
        "a count must be a whole number, 0 or more; got: '0,1.5' in {path}, line 2",
    ),
    "part of a second": ("0.5,1\n", "a second must be a whole number; got: '0.5,1' in {path}, line 1"),
    "negative second": ("-1,1\n", "times must not be negative; got: '-1,1' in {path}, line 1"),
    "second twice": ("0,1\n0,2\n", "seconds must be sorted, each named once; got: '0,2' in {path}, line 2"),
    "epoch": (
        "1700000000\n1700000001\n",
        "a trace must end within 1e+08 s of its origin; got: 1.7e+09 s in {path}; hint: pass origin=17000000",
    ),
    "too many": (
        "0,1e12\n",
        "the number of arrivals must not exceed 200000000; got: 1e+12; hint: lower the rate",
    ),
    "binary": (JUNK, " in {path}"),
    "zero bytes": (b"\0" * 20, "an arrival time must be a number; got: "),
    "utf-16": ("1\n2\n".encode("utf-16"), "an arrival time must be a number; got: "),
    "truncated gzip": (gzip.compress(b"1\n2\n3\n" * 99)[:-9], "a gzipped trace must be whole; got: {path}: "),
    "corrupt gzip": (b"\x1f\x8b" + JUNK, "a gzipped trace must be whole; got: {path}: "),
    "corrupt deflate": (gzip.compress(b"1\n")[:10] + JUNK, "a gzipped trace must be whole; got: {path}: "),
    "junk after gzip": (gzip.compress(b"1\n") + b"junk", "a gzipped trace must be whole; got: {path}: "),
}


@pytest.mark.parametrize(("content", "message"), BAD_FILES.values(), ids=BAD_FILES.keys())
def test_a_bad_file_is_rejected_by_name_and_line(
    trace: WriteTrace, content: str | bytes, message: str
) -> None:
    path = trace(content)
    with pytest.raises(InvalidInputError) as caught:
        read_trace(path)
    assert_one_line(caught.value, message.format(path=repr(str(path))))


def test_a_missing_file_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError) as caught:
        read_trace(tmp_path / "none")
    assert_one_line(caught.value, "the trace file must exist; got: ", "none'; hint: check the path")


def test_a_directory_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError) as caught:
        read_trace(tmp_path)
    assert_one_line(
        caught.value, "a trace must be a file; got: the directory ", "hint: name a file inside it"
    )


def test_an_unreadable_file_is_rejected_with_the_systems_reason(trace: WriteTrace) -> None:
    with pytest.raises(InvalidInputError) as caught:
        read_trace(trace("1\n") / "below a file")
    assert_one_line(caught.value, "the trace file must be readable; got: ", "Not a directory")


def test_a_file_name_with_a_line_break_keeps_the_message_on_one_line(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError) as caught:
        read_trace(tmp_path / "a\nb")
    assert_one_line(caught.value, "a\\nb")


BAD_CALLS: dict[str, tuple[Callable[[Path], object], str]] = {
    "time_scale": (
        lambda path: read_trace(path, time_scale=0),
        "time_scale must be a positive number; got: 0",
    ),
    "rate_scale": (
        lambda path: read_trace(path, rate_scale=-1),
        "rate_scale must be a positive number; got: -1",
    ),
    "scale nan": (
        lambda _: scale_rate(arrivals_at(1.0), float("nan")),
        "rate_scale must be a positive number; got: nan",
    ),
    "scale seed": (
        lambda _: scale_rate(arrivals_at(1.0), 2.0, seed=-1),
        "seed must be a whole number, 0 or more; got: -1; hint: use seed=0",
    ),
    "thinned to nothing": (
        lambda _: scale_rate(arrivals_at(1.0), 0.1),
        "a scaled workload must keep at least one arrival; got: none in test",
    ),
    "counts scaled to nothing": (
        lambda path: read_trace(path, rate_scale=0.01),
        "a scaled workload must keep at least one arrival; got: none in web.trace",
    ),
    "scaled too far": (
        lambda _: scale_rate(arrivals_at(1.0), 1e12),
        "the number of arrivals must not exceed",
    ),
    "capacity": (
        lambda _: overload(arrivals_at(1.0), 0, 1),
        "capacity_per_s must be a positive number; got: 0",
    ),
    "factor": (lambda _: overload(arrivals_at(1.0), 1, 0), "factor must be a positive number; got: 0"),
    "overload of nothing": (
        lambda _: overload(arrivals_at(), 1, 1),
        "must keep at least one arrival; got: none",
    ),
    "bins": (lambda _: arrivals_at(1.0).counts_per(0), "bin_s must be a positive number; got: 0"),
    "too many bins": (
        lambda _: arrivals_at(1.0).counts_per(1e-9),
        "the number of bins must not exceed 200000000",
    ),
    "duration": (lambda _: arrivals_at(duration_s=0), "duration_s must be a positive number; got: 0"),
    "matrix": (
        lambda _: Arrivals(np.zeros((2, 2)), 1.0, "test"),
        "times_s must be one list of numbers; got: 2 dimensions",
    ),
    "unsorted": (lambda _: arrivals_at(2.0, 1.0), "times_s must be sorted numbers; got: a time before"),
    "nan among times": (lambda _: arrivals_at(1.0, float("nan")), "times_s must be sorted numbers; got"),
    "only nan": (
        lambda _: arrivals_at(float("nan")),
        "times_s must lie between 0 and duration_s = 10; got: nan",
    ),
    "negative": (
        lambda _: arrivals_at(-1.0),
        "times_s must lie between 0 and duration_s = 10; got: -1 to -1",
    ),
    "late": (
        lambda _: arrivals_at(1.0, 11.0),
        "times_s must lie between 0 and duration_s = 10; got: 1 to 11",
    ),
}


@pytest.mark.parametrize(("call", "message"), BAD_CALLS.values(), ids=BAD_CALLS.keys())
def test_bad_arguments_are_rejected(trace: WriteTrace, call: Callable[[Path], object], message: str) -> None:
    path = trace("0,1\n1,2\n")
    with pytest.raises(InvalidInputError) as caught:
        call(path)
    assert_one_line(caught.value, message)


def assert_one_line(error: InvalidInputError, *parts: str) -> None:
    message = str(error)
    for part in parts:
        assert part in message
    assert "; hint: " in message
    assert "\n" not in message


def test_times_in_whole_seconds_are_spread_over_their_second(tmp_path: Path) -> None:
    trace = tmp_path / "whole.txt"
    trace.write_text("0\n0\n1\n2\n2\n2\n2\n")
    assert read_trace(trace).times_s.tolist() == [0.0, 0.5, 1.0, 2.0, 2.25, 2.5, 2.75]
    trace.write_text("0\n0\n1.5\n")
    assert read_trace(trace).times_s.tolist() == [0.0, 0.0, 1.5]
