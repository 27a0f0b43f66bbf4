"""The shed lane: exactly what grants dropped, which windows that touches, and what stays pinned for it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.effort import tries
from tests.segments import headers

from penstock.grants.journal import Journal, JournalWriter, read_journal
from penstock.grants.offset import Books, Offset
from penstock.grants.plans import KEEP_ALL, SamplePlan, ShedPlan, plan_for
from penstock.grants.selection import Range, grant_books, read_range, select
from penstock.lanes.lane import (
    Shed,
    decided,
    lane,
    pins_for,
    readable_rows,
    shed_of,
    shed_rows,
    with_shed_rows,
)
from penstock.lanes.progress import LaneProgress, LaneStore, Stretch, find_lanes
from penstock.lanes.windows import Windows, inside, merged, plan_windows, window_starts
from penstock.streams.embedded.index import record_type
from penstock.streams.embedded.log import EmbeddedLog
from penstock.streams.layout import LogConfig
from penstock.streams.marks import marks_at
from penstock.streams.registry import ReaderRegistry
from penstock.vocabulary.errors import InvalidInputError, UnknownNameError

SCHEMA = pa.schema([("id", pa.int64()), ("device", pa.string()), ("at", pa.timestamp("us", tz="UTC"))])
READER = "hot-0123456789ab"
DAY_US = 1_700_000_000_000_000 // 60_000_000 * 60_000_000


_open: list[Shedding] = []


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    """Files left open would be another test's warning."""
    yield
    while _open:
        _open.pop().close()


@dataclass
class Shedding:
    """A stream and a reader whose grants are made by hand, as the source would write them down."""

    folder: Path
    partitions: int = 1
    segment_rows: int = 50
    file_bytes: int = 1 << 20
    log: EmbeddedLog = field(init=False)
    offset: Offset = field(init=False)

    def __post_init__(self) -> None:
        config = LogConfig(
            partitions=self.partitions,
            key="device",
            key_buckets=16,
            segment_rows=self.segment_rows,
            file_bytes=self.file_bytes,
        )
        self.log = EmbeddedLog.create(self.folder / "readings", SCHEMA, config)
        self.offset = Offset.initial(READER, dict.fromkeys(range(self.partitions), 0))
        self.journal = JournalWriter(self.folder / "readings" / "plans", READER)
        _open.append(self)

    def append(self, rows: int, partition: int = 0, at_s: Sequence[float] | None = None) -> None:
        """Rows whose event times are given, or a second apart."""
        first = self.log.end(partition)
        ids = np.arange(first, first + rows) + partition * 1_000_000
        seconds = np.arange(first, first + rows) if at_s is None else np.array(at_s)
        at = pa.array(DAY_US + (seconds * 1e6).astype(np.int64), SCHEMA.field("at").type)
        devices = [f"d{i % 23}" for i in ids]
        self.log.append(pa.record_batch([pa.array(ids), devices, at], schema=SCHEMA), partition)

    def grant(
        self,
        plan: ShedPlan = KEEP_ALL,
        late: dict[int, int] | None = None,
        end: dict[int, int] | None = None,
        planned: bool = True,
        poison: bool = False,
        marked: bool = True,
    ) -> Offset:
        end = end or {p: self.log.end(p) for p in range(self.partitions)}
        draft = self.offset.advanced(end, late or {}, plan, Books())
        books = grant_books(self.log, draft, select(self.log, draft))
        marks = marks_at(self.log, end) if marked else {}
        offset = replace(draft, books=self.offset.books.plus(books), marks=marks)
        self.journal.proposed(offset)
        if planned:
            self.journal.planned(offset)
            self.offset = offset
        if poison:
            self.journal.set_aside(offset, books.admitted)
            moved = replace(offset.books, admitted=offset.books.admitted - books.admitted)
            self.offset = replace(offset, books=replace(moved, poison=moved.poison + books.admitted))
        return offset

    def read_journal(self) -> Journal:
        return read_journal(self.journal.path)

    @property
    def store(self) -> LaneStore:
        return LaneStore(self.folder / "readings", READER)

    def close(self) -> None:
        self.journal.close()
        self.log.close()


@pytest.fixture
def shedding(tmp_path: Path) -> Shedding:
    return Shedding(tmp_path)


plans = st.builds(
    plan_for,
    keep_fraction=st.floats(0, 1),
    sampling=st.sampled_from(["auto", "row", "segment", "key"]),
    seed=st.integers(0, 1000),
    key_buckets=st.just(16),
)
grants = st.tuples(plans, st.integers(1, 160), st.integers(1, 160), st.floats(0, 1.2), st.booleans())


@settings(max_examples=tries(20, 100))
@given(st.lists(grants, min_size=1, max_size=5), st.integers(20, 60))
def test_kept_and_shed_rows_are_all_rows_each_once(made: list[tuple], segment_rows: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        shedding = Shedding(Path(folder), partitions=2, segment_rows=segment_rows)
        for p in (0, 1):
            shedding.append(1000, p)
        for plan, rows_0, rows_1, late_part, poison in made:
            start = shedding.offset.end
            end = {0: start[0] + rows_0, 1: start[1] + rows_1}
            late = {p: start[p] + int(late_part * (end[p] - start[p])) for p in end}
            shedding.grant(plan, {p: min(late[p], end[p]) for p in end}, end, poison=poison)
        journal, log = shedding.read_journal(), shedding.log
        seen: list[tuple[int, int]] = []
        for entry in journal.logged():
            offset = entry.offset
            kept = []
            for p, end_p in offset.end.items():
                first = max(offset.start[p], offset.late.get(p, 0))
                if first < end_p and entry.poison_rows is None:
                    pieces = read_range(log, offset.plan, Range(p, first, end_p, 0))
                    kept += [(p, position) for piece in pieces for position in piece.positions.tolist()]
            shed = []
            for piece in shed_rows(log, entry):
                ids = piece.rows.column("id").to_numpy()
                assert (ids % 1_000_000 == piece.positions).all()
                shed += [(int(i) // 1_000_000, int(i) % 1_000_000) for i in ids]
            counted = shed_of(log, journal, entry)
            assert len(shed) == counted.rows == readable_rows(log, entry, counted)
            whole = [(p, i) for p, e in sorted(offset.end.items()) for i in range(offset.start[p], e)]
            assert sorted(kept + shed) == whole
            seen += shed
        found = lane(log, journal, journal.logged())
        assert (found.rows, found.gone) == (len(seen), 0)
        _open.pop().close()


def shed_by_grant(store: LaneStore, journal: Journal) -> dict[int, Shed]:
    """What lies in a lane, by grant."""
    undone = store.undone(journal, ended=True)
    found = {entry.offset.grant: shed_of(store.log, journal, entry) for entry in undone}
    return {grant: shed for grant, shed in found.items() if shed.rows}


@settings(max_examples=tries(15, 60))
@given(st.lists(grants, min_size=4, max_size=9), st.integers(0, 6), st.integers(0, 5))
def test_a_journal_that_was_cut_has_the_same_lane(made: list[tuple], done: int, keep: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        shedding = Shedding(Path(folder), partitions=2, segment_rows=40)
        for p in (0, 1):
            shedding.append(1600, p)
        for plan, rows_0, rows_1, late_part, poison in made[:-1]:
            start = shedding.offset.end
            end = {0: start[0] + rows_0, 1: start[1] + rows_1}
            late = {p: min(start[p] + int(late_part * (end[p] - start[p])), end[p]) for p in end}
            sampled = plan.row_keep if isinstance(plan, SamplePlan) else 2**32
            whole = plan if sampled < keep * 2**30 else KEEP_ALL
            shedding.grant(whole, late if keep > 2 else {}, end, poison=poison)
        journal, log, store = shedding.read_journal(), shedding.log, shedding.store
        done = min(done, len(made) - 2)
        ReaderRegistry(log).advance(READER, shedding.offset.start, pins_for(log, journal, 0))
        if done:
            store.folder.mkdir()
            store.finish(LaneProgress(), journal, Stretch(1, 1, done, "here"), 0, 0, {})
        found = shed_by_grant(store, journal)
        windows = Windows("at", 10.0)
        planned = plan_windows(log, journal, store.undone(journal, True), windows, closed=True)
        shedding.journal.cut(store.needed())
        after = shedding.read_journal()
        assert [entry.offset for entry in after.logged()][-2:] == [e.offset for e in journal.logged()][-2:]
        assert found == shed_by_grant(store, after)
        assert pins_for(log, after, done) == pins_for(log, journal, done)
        assert store.lane(ended=True) == lane(log, journal, store.undone(journal, True))
        again = plan_windows(log, after, store.undone(after, True), windows, closed=True)
        assert (again.touched.tolist(), again.ranges) == (planned.touched.tolist(), planned.ranges)
        assert again.incomplete.tolist() == planned.incomplete.tolist()
        shedding.close()


def test_a_segment_that_was_kept_whole_is_not_read(shedding: Shedding) -> None:
    shedding.append(200)
    shedding.grant(late={0: 60})
    (shedding.folder / "readings" / "p0000" / f"{0:020d}.data").write_bytes(
        (shedding.folder / "readings" / "p0000" / f"{0:020d}.data").read_bytes()[:-8]
    )  # damages the last segment: reading it would be an error
    (entry,) = shedding.read_journal().logged()
    assert sum(piece.rows.num_rows for piece in shed_rows(shedding.log, entry)) == 60


def test_the_lane_tells_rows_by_reason_and_when_they_came(shedding: Shedding) -> None:
    shedding.append(100)
    shedding.grant(late={0: 30})
    shedding.append(100)
    shedding.grant(plan_for(0.0, "row", 1))
    shedding.append(100)
    shedding.grant(poison=True)
    shedding.append(100)
    shedding.grant()
    journal = shedding.read_journal()
    found = lane(shedding.log, journal, journal.logged())
    assert (found.late, found.sampled, found.poison) == (30, 100, 100)
    assert found.grants == (1, 2, 3)
    segments = headers(shedding.log, 0, 0, 300)
    assert found.first_arrival_s == segments[0].arrival_min_us / 1e6
    assert found.last_arrival_s == segments[-1].arrival_max_us / 1e6
    assert shedding.offset.books.shed == found.rows


def test_rows_that_were_trimmed_are_said_to_be_gone(tmp_path: Path) -> None:
    shedding = Shedding(tmp_path, file_bytes=1)
    for _ in range(4):
        shedding.append(50)
    shedding.grant(late={0: 80}, end={0: 100})
    shedding.grant(plan_for(0.0, "row", 1), end={0: 200})
    shedding.log.trim(0, 50)
    journal = shedding.read_journal()
    assert lane(shedding.log, journal, journal.logged()).gone == 50
    shedding.log.trim(0, 150)
    found = lane(shedding.log, journal, journal.logged())
    assert (found.rows, found.gone) == (180, 130)


def test_rows_that_expired_unread_are_not_in_the_lane(tmp_path: Path) -> None:
    shedding = Shedding(tmp_path, file_bytes=1)
    for _ in range(4):
        shedding.append(50)
    shedding.log.trim(0, 50)
    assert shedding.grant(late={0: 80}).books.expired == 50
    journal = shedding.read_journal()
    found = lane(shedding.log, journal, journal.logged())
    assert (found.rows, found.gone) == (30, 0)


def test_the_last_grant_counts_once_its_batch_is_over(shedding: Shedding) -> None:
    shedding.append(100)
    shedding.grant()
    journal = shedding.read_journal()
    assert decided(journal, {0: 0}) == []
    assert len(decided(journal, {0: 100})) == len(decided(journal, {0: 0}, ended=True)) == 1
    shedding.append(100)
    shedding.grant(planned=False)  # the question for the next one: the first is over
    assert [entry.offset.grant for entry in decided(shedding.read_journal(), {0: 0})] == [1]


def test_a_pin_stays_at_the_first_grant_that_is_not_backfilled(shedding: Shedding) -> None:
    for late in (0, 150, 250, 0):
        shedding.append(100)
        shedding.grant(late={0: late})
    journal = shedding.read_journal()
    assert pins_for(shedding.log, journal, 0) == {0: 100}
    assert pins_for(shedding.log, journal, 2) == {0: 200}
    assert pins_for(shedding.log, journal, 3) == {}


def test_a_pin_covers_a_proposal_that_spark_has_not_logged(shedding: Shedding) -> None:
    shedding.append(100)
    shedding.grant(late={0: 20}, planned=False)
    journal = shedding.read_journal()
    assert journal.logged() == []
    assert pins_for(shedding.log, journal, 0) == {0: 0}


def test_finishing_a_stretch_moves_the_pin_and_lets_retention_trim(tmp_path: Path) -> None:
    shedding = Shedding(tmp_path, file_bytes=1)
    for late in (50, 150):
        shedding.append(100)
        shedding.grant(late={0: late})
    registry = ReaderRegistry(shedding.log)
    registry.advance(READER, {0: 200}, {0: 0})
    assert registry.trim() == {0: 0}
    store, journal = shedding.store, shedding.read_journal()
    with store.held():
        state = store.begin(store.load(journal), Stretch(1, 1, 1, "parquet here"))
        assert store.load(journal).pending == Stretch(1, 1, 1, "parquet here")
        store.finish(state, journal, Stretch(1, 1, 1, "parquet here"), 50, 0, {})
    assert registry.trim() == {0: 100}
    state = store.load(journal)
    assert (state.done, state.pending, state.rows, store.next_revision()) == (1, None, 50, 2)
    store.finish(state, journal, Stretch(2, 2, 2, "parquet here"), 50, 0, {})
    assert registry.readers()[0].pinned == {}


def test_rows_needed_beside_the_lane_stay_pinned(shedding: Shedding) -> None:
    for late in (50, 150):
        shedding.append(100)
        shedding.grant(late={0: late})
    ReaderRegistry(shedding.log).advance(READER, {0: 200}, {0: 0})
    shedding.store.move_pins(1, {0: 70})
    assert ReaderRegistry(shedding.log).readers()[0].pinned == {0: 70}


def test_a_forgotten_reader_is_not_registered_again(shedding: Shedding) -> None:
    shedding.append(100)
    shedding.grant(late={0: 50})
    shedding.store.move_pins(0, {})
    assert ReaderRegistry(shedding.log).readers() == []


def test_a_checkpoint_put_back_behind_the_backfill_is_noticed(shedding: Shedding) -> None:
    shedding.append(100)
    shedding.grant(late={0: 50}, end={0: 60})
    journal, store = shedding.read_journal(), shedding.store
    with store.held():
        store.finish(LaneProgress(), journal, Stretch(1, 1, 1, "here"), 50, 0, {})
    store.load(journal)
    shedding.offset = Offset.initial(READER, {0: 0})
    shedding.grant(late={0: 10})
    with pytest.raises(InvalidInputError, match="older checkpoint was restored"):
        store.load(shedding.read_journal())


def test_lanes_are_found_by_the_query_or_the_reader(shedding: Shedding, tmp_path: Path) -> None:
    assert [store.reader for store in find_lanes(tmp_path)] == [READER]
    assert find_lanes(tmp_path, "hot")[0].reader == find_lanes(tmp_path, READER)[0].reader == READER
    with pytest.raises(UnknownNameError, match="did you mean 'hot'"):
        find_lanes(tmp_path, "hott")
    with pytest.raises(InvalidInputError, match="a directory of streams"):
        find_lanes(tmp_path / "nowhere")


def test_a_stream_that_cannot_be_opened_does_not_hide_the_lanes_of_the_others(
    shedding: Shedding, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "stream.json").write_text("{")
    assert [store.reader for store in find_lanes(tmp_path)] == [READER]
    assert "lanes of stream a are left out: expected: a stream has format" in caplog.text


# -- a log that lost its last rows ------------------------------------------------------------------


def lose_the_last_append(shedding: Shedding, partition: int = 0) -> None:
    """Cuts the record of the last append off the index, as a power cut may; each append is one segment."""
    shedding.log.close()
    folder = shedding.folder / "readings" / f"p{partition:04d}"
    config = shedding.log.config
    record = record_type(config.key_buckets if config.key else 0).itemsize
    os.truncate(folder / "index", (folder / "index").stat().st_size - record)
    shedding.log = EmbeddedLog(shedding.folder / "readings")


def shed_three_times(shedding: Shedding, marked: bool = True) -> None:
    """Three grants of 50 rows each, of which the first 10, all and the first 30 are shed."""
    for late in (10, 100, 130):
        shedding.append(50)
        shedding.grant(late={0: late}, marked=marked)


def test_shed_rows_that_the_log_lost_are_refused_once_other_rows_have_their_positions(
    shedding: Shedding,
) -> None:
    shed_three_times(shedding)
    lose_the_last_append(shedding)
    shedding.append(50)
    first, second, third = shedding.read_journal().logged()
    there = [piece.rows.num_rows for entry in (first, second) for piece in shed_rows(shedding.log, entry)]
    assert there == [10, 50]
    way_out = f"--until.*; the lane holds its rows .* until penstock log forget {shedding.log.ref} {READER}$"
    refusal = f"grant 3 of {READER} ends at position 150, the rows before it are others now; .*{way_out}"
    with pytest.raises(InvalidInputError, match=refusal):
        list(shed_rows(shedding.log, third))
    journal, log = shedding.read_journal(), shedding.log
    with pytest.raises(InvalidInputError, match=refusal):
        with_shed_rows(log, journal, journal.logged())
    with pytest.raises(InvalidInputError, match=refusal):
        plan_windows(log, journal, journal.logged(), Windows("at", 10), closed=True)
    assert with_shed_rows(log, journal, [first, second]) == [first, second], "earlier rows can be backfilled"


def test_a_lane_that_lost_rows_is_listed_with_their_number(shedding: Shedding) -> None:
    shed_three_times(shedding)
    lose_the_last_append(shedding)
    shedding.append(50)
    found = shedding.store.lane(ended=True)
    assert (found.rows, found.gone, found.lost, found.grants) == (90, 0, 30, (1, 2, 3))
    assert found.last_arrival_s == headers(shedding.log, 0, 50, 100)[0].arrival_max_us / 1e6


def test_a_partition_that_lost_rows_before_a_grant_without_rows_there_does_not_matter(tmp_path: Path) -> None:
    shedding = Shedding(tmp_path, partitions=2, file_bytes=1)
    shedding.append(50, 1)
    shedding.grant()
    for _ in range(2):
        shedding.append(50, 0)
    shedding.grant(late={0: 80})
    shedding.log.trim(0, 50)
    lose_the_last_append(shedding, 1)
    found = shedding.store.lane(ended=True)
    assert (found.rows, found.gone, found.lost) == (80, 50, 0)
    _, entry = shedding.read_journal().logged()
    assert sum(piece.rows.num_rows for piece in shed_rows(shedding.log, entry)) == 30


@pytest.mark.parametrize("written", ["{", "[]", '{"done": 1}', '{"pending": null, "newer": 1}'])
def test_progress_that_cannot_be_read_is_refused_with_the_name_of_its_file(
    shedding: Shedding, written: str
) -> None:
    with shedding.store.held():
        (shedding.store.folder / f"{READER}.json").write_text(written)
    with pytest.raises(InvalidInputError, match=rf"as this Penstock writes it; got: .*{READER}\.json: "):
        shedding.store.load(Journal())


def test_windows_are_refused_if_kept_rows_of_another_partition_were_lost(tmp_path: Path) -> None:
    shedding = Shedding(tmp_path, partitions=2)
    shedding.append(50, 1)
    shedding.grant()
    shedding.append(50, 0)
    shedding.grant(late={0: 20})
    lose_the_last_append(shedding, 1)
    shedding.append(50, 1)
    journal = shedding.read_journal()
    assert len(with_shed_rows(shedding.log, journal, journal.logged())) == 1, "the shed rows are there"
    with pytest.raises(InvalidInputError, match=r"partition 1: grant 1 of .* the rows before it are others"):
        plan_windows(shedding.log, journal, journal.logged(), Windows("at", 10), closed=True)
    with pytest.raises(InvalidInputError, match=r"partition 1: grant 2 of .* the rows before it are others"):
        plan_windows(shedding.log, journal, journal.logged()[1:], Windows("at", 10), closed=True)


def test_grants_without_marks_are_refused_only_if_the_log_ends_before_them(shedding: Shedding) -> None:
    shed_three_times(shedding, marked=False)
    journal = shedding.read_journal()
    lose_the_last_append(shedding)
    shedding.append(10)
    with pytest.raises(InvalidInputError, match=r"grant 3 of .* ends at position 150, the log ends at 110;"):
        with_shed_rows(shedding.log, journal, journal.logged())
    shedding.append(40)
    assert len(with_shed_rows(shedding.log, journal, journal.logged())) == 3


def test_a_log_that_cannot_tell_is_backfilled(shedding: Shedding, monkeypatch: pytest.MonkeyPatch) -> None:
    shed_three_times(shedding)
    journal = shedding.read_journal()
    monkeypatch.setattr(shedding.log, "mark", lambda p, position: None)
    assert len(with_shed_rows(shedding.log, journal, journal.logged())) == 3


def test_rows_that_were_trimmed_are_not_lost(tmp_path: Path) -> None:
    shedding = Shedding(tmp_path, file_bytes=1)
    shed_three_times(shedding)
    shedding.append(50)
    journal = shedding.read_journal()
    for first in (50, 100, 150):
        shedding.log.trim(0, first)
        assert len(with_shed_rows(shedding.log, journal, journal.logged())) == 3
        assert lane(shedding.log, journal, journal.logged()).lost == 0


# -- windows ----------------------------------------------------------------------------------------


@given(
    st.lists(st.integers(-200, 200), max_size=30),
    st.integers(1, 20),
    st.integers(1, 20),
)
def test_windows_of_times_are_those_that_spark_would_make(times: list[int], length: int, slide: int) -> None:
    windows = Windows("at", max(length, slide) * 1e-6, min(length, slide) * 1e-6)
    size, step = windows.length_us, windows.slide_us
    wanted = {s for t in times for s in range((t // step - size) * step, t + 1, step) if s <= t < s + size}
    starts = window_starts(np.array(times, np.int64), windows)
    assert starts.tolist() == sorted(wanted)
    everything = np.arange(-300, 300)
    covered = inside(everything, *merged(starts, size))
    assert covered.tolist() == [any(s <= t < s + size for s in wanted) for t in everything.tolist()]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"length_s": 0}, "a window's length"),
        ({"length_s": 10, "slide_s": 20}, "at most its length"),
        ({"length_s": 10, "lateness_s": -1}, "lateness is 0 or more"),
    ],
)
def test_windows_that_make_no_sense_are_refused(values: dict[str, float], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        Windows("at", **values)


def starts_s(times: np.ndarray) -> list[int]:
    return ((times - DAY_US) // 1_000_000).tolist()


def test_closed_windows_that_shed_rows_touch_are_planned_and_open_ones_wait(shedding: Shedding) -> None:
    shedding.append(100)
    shedding.grant(late={0: 15})  # seconds 0 to 14 are shed
    shedding.append(50)
    shedding.grant(late={0: 142})  # seconds 100 to 141, of which 140 and 141 are in an open window
    shedding.append(5)
    shedding.grant()  # up to second 154: the watermark is at 149
    journal = shedding.read_journal()
    windows = Windows("at", 10, lateness_s=5)
    plan = plan_windows(shedding.log, journal, journal.logged(), windows)
    assert (plan.last, starts_s(plan.touched), plan.incomplete.size) == (1, [0, 10], 0)
    assert starts_s(plan.open) == [100, 110, 120, 130, 140]
    assert [(r.first, r.end) for r in plan.ranges] == [(0, 50)]
    assert plan.open_from == {0: 100}
    ended = plan_windows(shedding.log, journal, journal.logged(), windows, closed=True)
    assert (ended.last, starts_s(ended.touched)) == (3, [0, 10, 100, 110, 120, 130, 140])
    assert (ended.open.size, ended.open_from) == (0, {})


def test_shed_rows_do_not_move_the_watermark(shedding: Shedding) -> None:
    shedding.append(20)
    shedding.grant(late={0: 5})
    shedding.append(1, at_s=[10_000.0])
    shedding.grant(plan_for(0.0, "row", 1))
    journal = shedding.read_journal()
    assert plan_windows(shedding.log, journal, journal.logged(), Windows("at", 30)).last == 0


def test_rows_of_a_window_are_found_wherever_they_lie(shedding: Shedding) -> None:
    shedding.append(50, at_s=np.full(50, 500.0))  # long before the others of its window
    shedding.append(50, at_s=np.full(50, 20.0))
    shedding.append(50, at_s=np.full(50, 501.0))
    shedding.grant(late={0: 0})
    shedding.append(50, at_s=np.full(50, 505.0))
    shedding.grant(late={0: 180})
    journal = shedding.read_journal()
    plan = plan_windows(shedding.log, journal, journal.logged(), Windows("at", 10), closed=True)
    assert starts_s(plan.touched) == [500]
    assert [(r.first, r.end) for r in plan.ranges] == [(0, 50), (100, 200)]


def test_a_window_whose_rows_were_trimmed_is_left_as_it_was(tmp_path: Path) -> None:
    shedding = Shedding(tmp_path, segment_rows=5, file_bytes=1)
    for _ in range(10):
        shedding.append(5)
    shedding.grant(late={0: 30})
    shedding.log.trim(0, 10)
    journal = shedding.read_journal()
    windows = Windows("at", 5, lateness_s=2)
    plan = plan_windows(shedding.log, journal, journal.logged(), windows, closed=True)
    # row 10 to 14 are the first left: trimmed rows may be as new as second 16
    assert starts_s(plan.incomplete) == [10, 15]
    assert starts_s(plan.touched) == [20, 25]


def test_a_window_goes_by_a_timestamp_column(shedding: Shedding) -> None:
    shedding.append(10)
    shedding.grant(late={0: 5})
    journal = shedding.read_journal()
    with pytest.raises(InvalidInputError, match="event time is a timestamp column"):
        plan_windows(shedding.log, journal, journal.logged(), Windows("device", 10))
