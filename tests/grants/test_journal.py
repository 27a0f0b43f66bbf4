"""The plan journal: what Spark may have logged is on disk before it hears of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.errors import InvalidInputError
from penstock.grants.journal import Journal, JournalWriter, read_journal
from penstock.grants.offset import Books, Offset
from penstock.grants.plan import KEEP_ALL, SCALE, Plan

START = Offset.initial("fraud-1", {0: 0})


def grown(offset: Offset, rows: int, plan: Plan = KEEP_ALL) -> Offset:
    return offset.advanced({0: offset.end[0] + rows}, {}, plan, Books(rows))


def ends(journal: Journal) -> list[int]:
    return [entry.offset.end[0] for entry in journal.logged()]


@pytest.fixture
def writer(tmp_path: Path) -> JournalWriter:
    return JournalWriter(tmp_path / "plans", "fraud-1")


def again(writer: JournalWriter) -> JournalWriter:
    """The planner's next process."""
    writer.close()
    return JournalWriter(writer.path.parent, "fraud-1")


def test_a_planner_that_starts_reads_only_the_end_of_a_long_journal(
    writer: JournalWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    offset = START
    for seed in range(50):
        offset = grown(offset, 10, Plan("row", row_keep=SCALE // 2, seed=seed))
        writer.proposed(offset)
        assert writer.planned(offset) == 1
    orphan = grown(offset, 7)
    writer.proposed(orphan)
    for tail in (8, 100, 300, 1000, 1 << 20):
        monkeypatch.setattr("penstock.grants.journal.TAIL_BYTES", tail)
        after = again(writer)
        writer = after
        assert after.planned(offset) >= 2, "it knows that it was planned before"
        assert list(after._recent) == [50, 51]


def test_grants_are_read_back_in_order_with_their_plans(writer: JournalWriter) -> None:
    offset, offsets = START, []
    for seed in range(5):
        offset = grown(offset, 10, Plan("row", row_keep=SCALE // 2, seed=seed))
        writer.proposed(offset)
        assert writer.planned(offset) == 1
        offsets.append(offset)
    assert [entry.offset for entry in read_journal(writer.path).logged()] == offsets
    assert read_journal(writer.path).torn == 0


def test_a_proposal_is_in_the_file_when_it_returns_and_counts_once_it_is_planned(
    writer: JournalWriter,
) -> None:
    first = grown(START, 10)
    writer.proposed(first)
    journal = read_journal(writer.path)
    assert journal.entries[1].offset == first
    assert journal.logged() == []
    writer.planned(first)
    assert ends(read_journal(writer.path)) == [10]


def test_an_orphan_is_replaced_by_the_next_proposal_of_its_number(writer: JournalWriter) -> None:
    first = grown(START, 10)
    writer.proposed(first)
    writer.planned(first)
    writer.proposed(grown(first, 500))  # Spark died before it logged it
    writer = again(writer)
    second = grown(first, 7)
    writer.proposed(second)
    assert ends(read_journal(writer.path)) == [10], "not known to be logged yet"
    writer.planned(second)
    third = grown(second, 3)
    writer.proposed(third)
    writer.planned(third)
    assert ends(read_journal(writer.path)) == [10, 17, 20]


def test_a_grant_before_a_planned_one_was_logged_even_if_its_own_line_is_lost(writer: JournalWriter) -> None:
    first = grown(START, 10)
    second = grown(first, 10)
    writer.proposed(first)
    writer.proposed(second)
    writer.planned(second)
    assert ends(read_journal(writer.path)) == [10, 20]


def test_attempts_are_counted_over_restarts(writer: JournalWriter) -> None:
    first = grown(START, 10)
    writer.proposed(first)
    assert writer.planned(first) == 1
    writer = again(writer)
    assert writer.planned(first) == 2
    writer = again(writer)
    assert writer.planned(first) == 3
    second = grown(first, 5)
    writer.proposed(second)
    assert writer.planned(second) == 1
    assert [e.attempts for e in read_journal(writer.path).logged()] == [3, 1]


def test_a_torn_last_line_is_left_out_and_does_not_swallow_the_next(writer: JournalWriter) -> None:
    first = grown(START, 10)
    writer.proposed(first)
    writer.planned(first)
    whole = writer.path.read_bytes()
    writer.close()
    for size in range(len(whole)):
        writer.path.write_bytes(whole[:size])
        after = JournalWriter(writer.path.parent, "fraud-1")
        second = grown(first, 5)
        after.proposed(first)
        after.planned(first)
        after.proposed(second)
        after.planned(second)
        after.close()
        journal = read_journal(writer.path)
        assert ends(journal) == [10, 15]
        assert journal.torn <= 1


def test_a_journal_that_is_lost_begins_again_with_what_spark_logged(writer: JournalWriter) -> None:
    sixth = Offset("fraud-1", {0: 50}, {0: 60}, grant=6, books=Books(60))
    assert writer.planned(sixth) == 1
    assert ends(read_journal(writer.path)) == [60]


def test_a_poisoned_grant_is_known_when_the_next_one_is_proposed(writer: JournalWriter) -> None:
    first = grown(START, 10)
    writer.proposed(first)
    writer.planned(first)
    assert writer.poison_rows(1) == 0
    writer = again(writer)
    writer.planned(first)
    writer.set_aside(first, 10)
    writer.set_aside(first, 10)
    assert writer.poison_rows(1) == 10
    assert writer.path.read_text().count("poison") == 1, "said once"
    writer = again(writer)
    assert writer.poison_rows(1) == 10
    assert writer.poison_rows(2) == 0
    assert [e.poison_rows for e in read_journal(writer.path).logged()] == [10]


def test_a_poisoned_grant_is_remembered_behind_an_orphan(writer: JournalWriter) -> None:
    """Spark dies between the next question and its offset log: the correction must not be lost with it."""
    first = grown(START, 10)
    writer.proposed(first)
    writer.planned(first)
    writer.set_aside(first, 10)
    writer.proposed(grown(first, 3))
    assert writer.poison_rows(1) == 10, "nor when Spark asks again in one life"
    writer = again(writer)
    assert writer.poison_rows(1) == 10
    assert writer.planned(first) == 2, "nor are the attempts"


def test_a_checkpoint_that_was_put_back_makes_later_grants_void(writer: JournalWriter) -> None:
    offsets = [START]
    for _ in range(5):
        offsets.append(grown(offsets[-1], 10))
        writer.proposed(offsets[-1])
        writer.planned(offsets[-1])
    writer = again(writer)
    other = grown(offsets[2], 1)
    writer.proposed(other)
    assert writer.planned(other) == 1
    assert ends(read_journal(writer.path)) == [10, 20, 21]


def test_a_journal_that_does_not_exist_is_empty(tmp_path: Path) -> None:
    assert read_journal(tmp_path / "none.jsonl").logged() == []


def test_a_full_disk_is_an_error_and_not_a_plan_that_is_half_there(writer: JournalWriter) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    import os

    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, writer._file)
    os.close(full)
    with pytest.raises(OSError, match="No space left"):
        writer.proposed(grown(START, 10))
    writer.close()


@pytest.mark.parametrize(("newer", "said"), [({"plan": {"tide": 1}}, "unknown tide"), ({"penstock": 9}, "9")])
def test_a_journal_of_a_newer_penstock_is_refused_with_a_hint(
    writer: JournalWriter, newer: dict[str, object], said: str
) -> None:
    writer.path.write_text(json.dumps({"proposed": {**grown(START, 10).to_json(), **newer}}) + "\n")
    for read in (lambda: read_journal(writer.path), lambda: again(writer)):
        with pytest.raises(InvalidInputError, match=f"got {said}; hint: .*newer Penstock"):
            read()


@pytest.mark.parametrize("line", ["7", "null", '{"proposed": 3}', '{"planned": []}', '{"poison": 4}'])
def test_a_line_of_a_journal_that_is_none_counts_as_torn(writer: JournalWriter, line: str) -> None:
    writer.proposed(grown(START, 10))
    writer.path.write_text(writer.path.read_text() + line + "\n")
    journal = read_journal(writer.path)
    assert (list(journal.entries), journal.torn) == ([1], 1)
