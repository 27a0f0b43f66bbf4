"""A forgotten reader's plan journal goes, unless a planner owns it or its lane needs it."""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from threading import Thread

import pyarrow as pa
import pytest

from penstock.cli import main
from penstock.grants.journal import Journal, JournalWriter, read_journal
from penstock.grants.offset import Books, Offset
from penstock.grants.plans import KEEP_ALL
from penstock.grants.selection import grant_books, select
from penstock.lanes.forgetting import forget_reader, is_known, remove_backfilled, retire_reader
from penstock.lanes.lane import check_rows
from penstock.lanes.progress import LaneProgress, LaneStore, Stretch, find_lanes
from penstock.streams.embedded.log import EmbeddedLog
from penstock.streams.layout import LogConfig
from penstock.streams.marks import marks_at
from penstock.streams.registry import ReaderRegistry
from penstock.vocabulary.errors import InvalidInputError, UnknownNameError

SCHEMA = pa.schema([("n", pa.int64())])
READER = "hot-0123456789ab"


@pytest.fixture
def log(tmp_path: Path) -> EmbeddedLog:
    log = EmbeddedLog.create(tmp_path / "numbers", SCHEMA, LogConfig(segment_rows=10, file_bytes=1))
    for _ in range(10):
        log.append(pa.record_batch([list(range(10))], schema=SCHEMA))
    log.close()
    return log


def journal_path(log: EmbeddedLog) -> Path:
    return log.directory / "plans" / f"{READER}.jsonl"


def read(log: EmbeddedLog, late: int = 0, pinned: bool = True) -> Journal:
    """A reader that has read all rows in one grant, of which the first `late` are shed."""
    draft = Offset.initial(READER, {0: 0}).advanced({0: 100}, {0: late}, KEEP_ALL, Books())
    books = grant_books(log, draft, select(log, draft))
    journal = JournalWriter(log.directory / "plans", READER)
    journal.proposed(replace(draft, books=books, marks=marks_at(log, {0: 100})))
    journal.planned(draft)
    journal.close()
    ReaderRegistry(log).advance(READER, {0: 100}, {0: 0} if pinned and late else {})
    return read_journal(journal_path(log))


def test_a_forgotten_reader_leaves_no_journal(log: EmbeddedLog) -> None:
    read(log)
    assert forget_reader(log, READER) == ""
    assert not list((log.directory / "plans").iterdir())
    with pytest.raises(UnknownNameError):
        forget_reader(log, READER)


def test_a_reader_without_a_journal_is_forgotten(log: EmbeddedLog) -> None:
    ReaderRegistry(log).advance(READER, {0: 100})
    assert forget_reader(log, READER) == ""
    assert not (log.directory / "plans").exists()


def test_names_that_cannot_be_are_refused_before_a_journal_is_looked_for(log: EmbeddedLog) -> None:
    (log.directory / "secret.jsonl").write_text("")
    with pytest.raises(InvalidInputError, match="a reader's name"):
        forget_reader(log, "../secret")
    assert (log.directory / "secret.jsonl").exists()


@pytest.mark.parametrize("pinned", [True, False], ids=["pinned", "not pinned"])
def test_the_journal_stays_until_the_rows_of_the_lane_are_backfilled(log: EmbeddedLog, pinned: bool) -> None:
    journal = read(log, late=30, pinned=pinned)
    for _ in range(2):
        assert forget_reader(log, READER).startswith("30 rows that it shed are still in the log")
    assert ReaderRegistry(log).readers() == []
    store = LaneStore(log.directory, READER)
    assert store.lane(ended=True).rows == 30
    store.finish(LaneProgress(), journal, Stretch(1, 1, 1, "here"), 30, 0, {})
    assert forget_reader(log, READER) == ""
    assert not journal_path(log).exists()


def backfilled(log: EmbeddedLog, journal: Journal, revision: int = 1) -> LaneStore:
    """The lane of a reader whose grant was backfilled."""
    store = LaneStore(log.directory, READER)
    with store.held():
        store.finish(LaneProgress(), journal, Stretch(revision, 1, 1, "here"), 30, 0, {})
    return store


def test_a_reader_that_was_backfilled_and_forgotten_and_comes_back_has_a_lane_of_its_own(
    log: EmbeddedLog,
) -> None:
    store = backfilled(log, read(log, late=30), revision=7)
    assert forget_reader(log, READER) == ""
    back = JournalWriter(log.directory / "plans", READER)
    for grant in range(2, 200):
        offset = Offset(READER, {0: 100}, {0: 100}, grant=grant)
        back.proposed(offset)
        back.planned(offset)
    ReaderRegistry(log).advance(READER, {0: 100})
    assert store.load(store.journal()) == LaneProgress()
    assert store.lane().rows == 0
    assert back.cut(store.needed()), "the lane needs no grant of the new journal"
    back.close()
    assert store.next_revision() == 8, "a log stream has results of revision 7"


@pytest.mark.parametrize("twice", [False, True])
def test_revisions_of_removed_lanes_stay_known_whatever_the_order(log: EmbeddedLog, twice: bool) -> None:
    for revision in (9, 4) if twice else (9,):
        store = backfilled(log, read(log, late=30), revision)
        assert forget_reader(log, READER) == ""
    assert store.next_revision() == 10
    assert [path.name for path in store.folder.glob("*.json")] == ["_removed.json"]


def test_progress_of_a_lane_that_a_crash_left_without_its_journal_is_removed(log: EmbeddedLog) -> None:
    store = backfilled(log, read(log, late=30))
    ReaderRegistry(log).forget(READER)
    journal_path(log).unlink()
    assert is_known(log.state, READER)
    assert forget_reader(log, READER) == ""
    assert not is_known(log.state, READER)
    assert not journal_path(log).exists()
    assert store.next_revision() == 2


def test_the_journal_goes_once_the_shed_rows_are_trimmed(log: EmbeddedLog) -> None:
    read(log, late=30)
    assert forget_reader(log, READER)
    log.trim(0, 30)
    assert forget_reader(log, READER) == ""


def test_a_lane_that_lost_rows_is_given_up_as_its_error_says(
    log: EmbeddedLog, capsys: pytest.CaptureFixture[str]
) -> None:
    read(log, late=30)
    os.truncate(log.directory / "p0000" / "index", 0)
    lost = EmbeddedLog(log.directory)
    (entry,) = read_journal(journal_path(log)).logged()
    with pytest.raises(InvalidInputError) as refused:
        check_rows(lost, entry)
    assert ReaderRegistry(lost).readers()[0].pinned == {0: 0}
    command = str(refused.value).rpartition("until penstock ")[2]
    assert main(command.split()) == 0
    assert ReaderRegistry(lost).readers() == []
    assert not journal_path(log).exists()


def test_the_journal_of_a_begun_backfill_stays(log: EmbeddedLog) -> None:
    read(log, late=30)
    store = LaneStore(log.directory, READER)
    with store.held():
        store.begin(LaneProgress(), Stretch(1, 1, 1, "here"))
    log.trim(0, 30)
    assert forget_reader(log, READER) == "a backfill of it was begun and is not finished"


def test_the_journal_of_a_lane_that_cannot_be_read_stays(log: EmbeddedLog) -> None:
    journal = read(log, late=30)
    store = LaneStore(log.directory, READER)
    with store.held():
        store.finish(LaneProgress(), journal, Stretch(1, 1, 1, "here"), 30, 0, {})
    read(log, late=40)  # an older checkpoint was restored
    assert forget_reader(log, READER).startswith("its lane cannot be read: expected: backfilled grants stay")
    assert journal_path(log).exists()


def test_a_journal_that_a_planner_owns_stays(log: EmbeddedLog) -> None:
    read(log)
    planner = JournalWriter(log.directory / "plans", READER)
    assert forget_reader(log, READER) == "its query still runs, and registers the reader again"
    planner.proposed(Offset(READER, {0: 100}, {0: 100}, grant=2))
    planner.close()
    assert list(read_journal(journal_path(log)).entries) == [1, 2]


def test_a_journal_of_a_newer_penstock_stays_and_is_not_said_to_have_a_planner(log: EmbeddedLog) -> None:
    read(log)
    journal_path(log).write_text('{"proposed": {"penstock": 99}}\n')
    assert forget_reader(log, READER).startswith("it cannot be read: expected: an offset of a governed")
    assert journal_path(log).exists()


def test_a_journal_stays_while_the_stream_is_backfilled(log: EmbeddedLog) -> None:
    read(log)
    with LaneStore(log.directory, "another-1").held():
        assert forget_reader(log, READER) == "the stream is being backfilled"
    assert forget_reader(log, READER) == ""


def test_a_planner_that_waits_for_a_journal_that_is_removed_begins_a_new_one(log: EmbeddedLog) -> None:
    read(log)
    owned, found = JournalWriter(log.directory / "plans", READER), []
    planner = Thread(target=lambda: found.append(JournalWriter(log.directory / "plans", READER)))
    planner.start()
    owned.remove()
    planner.join()
    found[0].proposed(Offset(READER, {0: 100}, {0: 100}, grant=2))
    found[0].close()
    assert list(read_journal(journal_path(log)).entries) == [2]


def test_the_command_says_why_a_journal_stays(log: EmbeddedLog, capsys: pytest.CaptureFixture[str]) -> None:
    read(log, late=30)
    assert main(["log", "forget", str(log.directory), READER]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == f"forgot {READER} of numbers"
    assert said[1].startswith("its plan journal stays: 30 rows that it shed")
    assert main(["log", "forget", str(log.directory), "hut"]) == 2


@pytest.mark.parametrize("forgotten", [False, True], ids=["ended with its run", "forgotten"])
def test_the_backfill_that_empties_the_lane_of_a_reader_that_will_not_come_back_removes_its_journal(
    log: EmbeddedLog, forgotten: bool
) -> None:
    journal, registry = read(log, late=30), ReaderRegistry(log)
    assert forget_reader(log, READER) if forgotten else retire_reader(log, READER, 0.0)
    store = LaneStore(log.directory, READER)
    with store.held():
        assert not remove_backfilled(store), "the lane has rows"
        state = store.begin(LaneProgress(), Stretch(1, 1, 1, "here"))
        assert not remove_backfilled(store)
        store.finish(state, journal, Stretch(1, 1, 1, "here"), 30, 0, {})
        assert remove_backfilled(store)
    assert registry.readers() == []
    assert not is_known(log.state, READER)
    assert find_lanes(log.directory.parent) == []
    with pytest.raises(InvalidInputError, match="a run's journal is removed once its lane is backfilled"):
        find_lanes(log.directory.parent, READER)


def test_a_backfill_leaves_the_journal_of_a_reader_that_goes_on(log: EmbeddedLog) -> None:
    store = backfilled(log, read(log, late=30))
    with store.held():
        assert not remove_backfilled(store)
        ReaderRegistry(log).forget(READER)
        with closing(JournalWriter(store.plans, READER)):
            assert not remove_backfilled(store), "its planner registers it again"
        assert remove_backfilled(store)
        assert remove_backfilled(store), "there is nothing to remove"
    assert not list(store.plans.iterdir())


def test_a_backfill_makes_no_journal_for_a_reader_that_is_forgotten_while_it_waits(log: EmbeddedLog) -> None:
    read(log)
    (store,) = find_lanes(log.directory.parent)
    assert forget_reader(log, READER) == ""
    with store.held():
        store.cut_journal()
        assert not list(store.plans.iterdir())
        assert remove_backfilled(store)
    assert not list(store.plans.iterdir())
