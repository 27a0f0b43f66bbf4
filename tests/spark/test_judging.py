"""Whether a probe tells what a machine can process: scripted probes, no JVM."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from penstock.calibration import capacity
from penstock.calibration.judging import (
    LEAST_ROW_PART,
    Capacity,
    Doubt,
    Judged,
    TooFewBatchesError,
    doubts_of,
    find_capacity,
    probe_again,
    row_part,
    spread,
)
from penstock.demo.run import check_capacity
from penstock.vocabulary.errors import UnmetError

FIXED_S, ROW_S, LENGTH_S = 0.25, 1 / 400_000, 2.5
FULL = round((LENGTH_S - FIXED_S) / ROW_S)
"""Rows of a batch of the wanted length."""


class ScriptedMachine:
    """A machine whose batches take a fixed time and some time a row; some probes meet a stall.

    Args:
        stalls_s: By probe, how much longer each batch takes; none after the last.
        spreads: By probe, how much its halves differ.
    """

    def __init__(self, stalls_s: Sequence[float] = (), spreads: Sequence[float] = ()) -> None:
        self._stalls_s, self._spreads = iter(stalls_s), iter(spreads)
        self.asked: list[int] = []

    def __call__(self, rows: int) -> Capacity:
        self.asked.append(rows)
        batch_s = FIXED_S + ROW_S * rows + next(self._stalls_s, 0.0)
        return Capacity(rows / batch_s, rows, batch_s, 1.0, next(self._spreads, 0.0))


def test_on_a_quiet_machine_one_search_finds_the_capacity() -> None:
    machine = ScriptedMachine()
    found = find_capacity(machine, LENGTH_S, 140_000)
    assert found.doubts == {}
    assert found.capacity.rows_per_s == pytest.approx(FULL / LENGTH_S, rel=0.1)
    assert found.probes == len(machine.asked) <= 3


def test_batches_that_a_stall_has_made_tiny_are_searched_again_from_the_most_rows_that_were_tried() -> None:
    machine = ScriptedMachine(stalls_s=[12.0, 12.0])
    found = find_capacity(machine, LENGTH_S, 5600)
    assert machine.asked[:3] == [5600, 1400, 350], "a stalled search ends with batches of fixed cost alone"
    assert machine.asked[4] == 5600
    assert found.doubts == {}
    assert found.capacity.rows_per_s == pytest.approx(FULL / LENGTH_S, rel=0.1)


def test_a_stall_that_lasts_as_long_as_a_batch_should_is_not_taken_for_the_capacity() -> None:
    machine = ScriptedMachine(stalls_s=[2.25] * 2)
    found = find_capacity(machine, LENGTH_S, 3500)
    assert machine.asked[:2] == [3500, 1750], "the length is right by chance: half the rows tell"
    assert found.doubts == {}
    assert found.capacity.rows_per_s > 300_000


def test_a_machine_that_stalls_for_ever_is_probed_a_bounded_number_of_times_and_the_doubts_are_told() -> None:
    machine = ScriptedMachine(stalls_s=[12.0] * 100)
    found = find_capacity(machine, LENGTH_S, 100_000, tries=3, searches=3)
    assert len(machine.asked) == found.probes <= 3 * (3 + 1)
    assert Doubt.LENGTH in found.doubts
    assert not found.is_usable
    with pytest.raises(
        UnmetError, match=r"expected: a probe .* wanted length.*; got: .* rows took .*; hint: "
    ):
        check_capacity(found)


def test_halves_that_differ_are_probed_again_and_a_machine_that_stays_uneven_is_usable_and_uncertain() -> (
    None
):
    machine = ScriptedMachine(spreads=[0.0, 0.4, 0.0])
    assert find_capacity(machine, LENGTH_S, FULL).doubts == {}
    always = find_capacity(ScriptedMachine(spreads=[0.4] * 100), LENGTH_S, FULL)
    assert always.doubts == {Doubt.SPEED: "40 %"}
    assert always.is_usable
    check_capacity(always)


def test_a_capacity_that_can_be_used_is_not_given_up_for_a_search_that_met_a_stall() -> None:
    found = find_capacity(ScriptedMachine([0.0] * 4 + [12.0] * 100, [0.3] * 100), LENGTH_S, FULL)
    assert found.is_usable
    assert found.capacity.rows_per_s == pytest.approx(FULL / LENGTH_S, rel=0.1)


def test_a_search_of_the_benches_has_as_many_probes_as_it_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    machine = ScriptedMachine()

    def probe(spark: Any, stream: Any, start: Any, checkpoint: Path, rows: int, *_: Any) -> Capacity:
        return machine(rows)

    monkeypatch.setattr(capacity, "probe", probe)
    found = capacity.find_batch_rows(None, "", None, tmp_path, LENGTH_S, 10_000, 2)  # type: ignore[arg-type]
    assert machine.asked == [10_000, 80_000]
    assert found.batch_rows == 80_000
    judged = capacity.find_plausible(None, "", None, tmp_path, LENGTH_S, 10_000)  # type: ignore[arg-type]
    assert judged.doubts == {}


def test_a_log_that_is_too_short_for_a_later_search_leaves_what_was_found_before() -> None:
    machine = ScriptedMachine(spreads=[0.4] * 100)

    def probe(rows: int) -> Capacity:
        if len(machine.asked) > 4:
            raise TooFewBatchesError("a probe has more than 2 full batches", 1, "fill the stream")
        return machine(rows)

    found = find_capacity(probe, LENGTH_S, FULL)
    assert found.doubts == {Doubt.SPEED: "40 %"}
    with pytest.raises(TooFewBatchesError, match="more than 2 full batches"):
        find_capacity(probe, LENGTH_S, FULL)


def test_a_query_that_fails_in_a_later_search_is_no_log_that_is_too_short() -> None:
    machine = ScriptedMachine(spreads=[0.4] * 100)

    def probe(rows: int) -> Capacity:
        if len(machine.asked) > 4:
            raise UnmetError("the probed query runs", "a division by zero", "try it in a plain Spark session")
        return machine(rows)

    with pytest.raises(UnmetError, match="a division by zero"):
        find_capacity(probe, LENGTH_S, FULL)


class IdleQuery:
    """A query that reports again and again that it had nothing to do."""

    def __init__(self) -> None:
        self._looks = 0

    @property
    def recentProgress(self) -> list[dict[str, int]]:
        self._looks += 1
        assert self._looks < 10, "a probe of an empty log does not end"
        return [{"numInputRows": 0}] * self._looks

    def exception(self) -> None: ...

    def stop(self) -> None: ...


def test_a_probe_of_an_empty_log_ends_and_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("open_stream", "read_ungoverned"):
        monkeypatch.setattr(capacity, name, lambda *_: None)
    monkeypatch.setattr(capacity, "batches", lambda reports, log: [])
    with pytest.raises(TooFewBatchesError, match="more than 2 full batches; got: 0"):
        capacity.probe(None, "s", lambda *_: IdleQuery(), tmp_path, 1000)  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize(
    ("small_s", "large_s", "part"),
    [(1.0, 2.0, 1.0), (1.5, 2.0, 0.5), (2.0, 2.0, 0.0), (3.0, 2.0, 0.0)],
    ids=["all of it is rows", "half is rows", "all of it is fixed", "the smaller batch took longer"],
)
def test_the_part_of_a_batch_that_rows_take_comes_from_two_sizes(
    small_s: float, large_s: float, part: float
) -> None:
    small, large = Capacity(1.0, 500, small_s, 1.0), Capacity(1.0, 1000, large_s, 1.0)
    assert row_part(small, large) == row_part(large, small) == pytest.approx(part)
    assert (Doubt.ROWS in doubts_of(large, small, 2.0)) == (part < LEAST_ROW_PART)


@pytest.mark.parametrize(
    ("lengths_s", "differ"),
    [([2.0, 2.0, 2.0, 2.0], 0.0), ([4.0, 4.0, 2.0, 2.0], 0.5), ([1.0, 9.0, 2.0], 0.5), ([1.0], 0.0)],
    ids=["even", "the first half took twice as long", "a batch in the middle is in neither", "one batch"],
)
def test_halves_are_compared_by_the_mean_length_of_their_batches(
    lengths_s: list[float], differ: float
) -> None:
    assert spread(lengths_s) == pytest.approx(differ)


def scripted(probes: Iterator[Capacity]) -> Callable[[], Capacity]:
    return lambda: next(probes)


def test_a_later_probe_far_from_the_first_is_repeated_and_kept_if_it_stays_so() -> None:
    before = Capacity(400_000.0, 1_000_000, 2.5, 1.0)
    slow, near = Capacity(100_000.0, 1_000_000, 10.0, 1.0), Capacity(500_000.0, 1_000_000, 2.0, 1.0)
    slowest = Capacity(718.0, 1_000_000, 1400.0, 1.0)
    uneven = Capacity(400_000.0, 1_000_000, 2.5, 1.0, 0.3)
    assert probe_again(scripted(iter([slow, uneven, near])), before) is near
    assert probe_again(scripted(iter([slow, slow, slow])), before) is slow
    assert probe_again(scripted(iter([slowest])), before) is slowest, "three of them would take hours"


def test_a_plausible_capacity_is_not_refused() -> None:
    check_capacity(Judged(Capacity(400_000.0, 1_000_000, 2.5, 1.0), {}, 3))
