"""The plan journal: what Spark may have logged is on disk before it hears of it."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from penstock.grants.cutting import Needed
from penstock.grants.journal import Journal, JournalOwnedError, JournalWriter, read_journal
from penstock.grants.offset import Books, Offset
from penstock.grants.plans import KEEP_ALL, SCALE, SamplePlan, ShedPlan
from penstock.vocabulary.errors import InvalidInputError

START = Offset.initial("fraud-1", {0: 0})


def grown(offset: Offset, rows: int, plan: ShedPlan = KEEP_ALL) -> Offset:
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
        offset = grown(offset, 10, SamplePlan("row", row_keep=SCALE // 2, seed=seed))
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
        offset = grown(offset, 10, SamplePlan("row", row_keep=SCALE // 2, seed=seed))
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
        with pytest.raises(InvalidInputError, match=f"got: {said}; hint: .*newer Penstock"):
            read()


@pytest.mark.parametrize("line", ["7", "null", '{"proposed": 3}', '{"planned": []}', '{"poison": 4}'])
def test_a_line_of_a_journal_that_is_none_counts_as_torn(writer: JournalWriter, line: str) -> None:
    writer.proposed(grown(START, 10))
    writer.path.write_text(writer.path.read_text() + line + "\n")
    journal = read_journal(writer.path)
    assert (list(journal.entries), journal.torn) == ([1], 1)


# -- cutting ----------------------------------------------------------------------------------------


def long_journal(writer: JournalWriter, grants: int = 200) -> list[Offset]:
    offsets = [START]
    for seed in range(grants):
        offsets.append(grown(offsets[-1], 10, SamplePlan("row", row_keep=SCALE // 2, seed=seed)))
        writer.proposed(offsets[-1])
        writer.planned(offsets[-1])
    return offsets[1:]


def test_a_long_journal_is_cut_behind_what_is_needed_and_goes_on(
    writer: JournalWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.grants.journal.CUT_BYTES", 1000)
    offsets = long_journal(writer)
    size, whole = writer.path.stat().st_size, read_journal(writer.path)
    assert writer.is_long
    assert writer.cut(Needed({0: 1500}))
    assert not writer.is_long
    assert writer.path.stat().st_size < size / 3
    after = read_journal(writer.path)
    assert [entry.offset for entry in after.logged()] == offsets[150:]
    assert after.entries == {n: entry for n, entry in whole.entries.items() if n > 150}
    assert after.began() == whole.began() == (1, {0: 0})
    assert after.books_before(151) == offsets[149].books
    assert after.torn == 0
    following = grown(offsets[-1], 5)
    writer.proposed(following)
    assert writer.planned(following) == 1
    writer = again(writer)
    assert writer.planned(following) == 2, "the lock and the file are those of the journal that was cut"
    assert ends(read_journal(writer.path))[-2:] == [2000, 2005]
    assert writer.cut(Needed({0: 10_000}))
    assert ends(read_journal(writer.path)) == [2000, 2005], "a restart needs the last two"
    assert read_journal(writer.path).began() == (1, {0: 0})


def test_a_journal_is_cut_only_where_half_of_it_goes(writer: JournalWriter) -> None:
    long_journal(writer, 100)
    before = writer.path.read_bytes()
    assert not writer.cut(Needed({0: 400}))
    assert not writer.cut(Needed({}))
    assert not writer.cut(Needed({0: 10_000}, done=3, pending=True)), "a backfill has begun with grant 4"
    assert writer.path.read_bytes() == before


def test_a_crash_at_any_step_of_a_cut_leaves_a_journal_that_is_whole(
    writer: JournalWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    offsets = long_journal(writer)
    steps = [
        "fcntl.flock",
        "shutil.copyfileobj",
        "os.fsync",
        "pathlib.Path.replace",
        "penstock.grants.journal.sync_directory",
    ]
    for number, step in enumerate(steps):

        def die(*_: object) -> None:
            raise OSError("killed here")

        with monkeypatch.context() as patch:
            patch.setattr(step, die)
            with pytest.raises(OSError, match="killed here"):
                writer.cut(Needed({0: 1200 + 100 * number}))
        found = read_journal(writer.path)
        assert [entry.offset for entry in found.logged()] == offsets[min(found.entries) - 1 :]
        assert set(range(120 + 10 * number + 1, 201)) <= set(found.entries)
        writer.path.with_name(f"{writer.path.name}.77.new").write_text("half a li")  # killed, not raised
        writer = again(writer)
        assert [path.name for path in writer.path.parent.iterdir()] == ["fraud-1.jsonl"]
        assert writer.planned(offsets[-1]) == number + 2, "the planner that starts goes on"


def test_a_cut_leaves_the_proposals_that_hold_when_numbers_were_proposed_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Orphans, and checkpoints that are put back: numbers are not in order in the file."""
    monkeypatch.setattr("os.fsync", lambda _: None)  # thousands of them take a while
    dice = random.Random(7)
    for turn in range(60):
        writer = JournalWriter(tmp_path / str(turn), "fraud-1")
        chain = [START]
        for _ in range(dice.randrange(20, 80)):
            if dice.random() < 0.15:  # what follows is proposed anew
                del chain[max(1, len(chain) - dice.choice([1, 1, 1, 2, 10])) :]
                writer = again(writer)
            chain.append(grown(chain[-1], dice.randrange(1, 20)))
            writer.proposed(chain[-1])
            if dice.random() < 0.9:
                writer.planned(chain[-1])
        whole = read_journal(writer.path)
        needed = Needed({0: dice.randrange(0, chain[-1].end[0] + 1)})
        writer.cut(needed)
        after = read_journal(writer.path)
        stay = {n: e for n, e in whole.entries.items() if not needed.may_go(e.offset) or n > len(chain) - 3}
        assert after.entries == {n: e for n, e in whole.entries.items() if n in after.entries}
        assert set(stay) <= set(after.entries)
        for number in stay:
            assert after.books_before(number) == whole.books_before(number)
        assert after.began() == whole.began()
        writer.close()


def test_a_checkpoint_put_back_behind_a_cut_is_a_journal_that_begins_there(writer: JournalWriter) -> None:
    offsets = long_journal(writer)
    assert writer.cut(Needed({0: 1500}))
    writer = again(writer)
    other = grown(offsets[99], 1)
    writer.proposed(other)
    writer.planned(other)
    found = read_journal(writer.path)
    assert list(found.entries) == [101]
    assert found.books_before(101) is None
    assert found.cut is not None
    assert found.cut.last == 100


def test_a_backfilled_grant_that_was_proposed_anew_is_not_cut(writer: JournalWriter) -> None:
    """A lane command must still find that the checkpoint was put back behind the backfill."""
    offsets = long_journal(writer, 120)
    backfilled = Needed({0: 2000}, 50, offsets[49].to_json())
    writer = again(writer)
    for seed in range(100):
        offsets[20 + seed] = grown(offsets[19 + seed], 10, SamplePlan("row", row_keep=SCALE // 3, seed=seed))
        writer.proposed(offsets[20 + seed])
        writer.planned(offsets[20 + seed])
    assert not writer.cut(backfilled)
    assert 50 in read_journal(writer.path).entries
    assert writer.cut(Needed({0: 2000}, 50, offsets[49].to_json()))


# -- one owner --------------------------------------------------------------------------------------


def test_a_journal_has_one_owner_until_its_process_ends_however_it_does(tmp_path: Path) -> None:
    code = (
        "import subprocess, sys; from pathlib import Path\n"
        "from penstock.grants.journal import JournalWriter\n"
        "writer = JournalWriter(Path(sys.argv[1]), 'fraud-1')\n"
        "child = subprocess.Popen(['cat'], stdin=subprocess.PIPE)\n"
        "print(child.pid, flush=True); sys.stdin.read()\n"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "plans")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert owner.stdin is not None
    assert owner.stdout is not None
    with owner.stdin, owner.stdout:
        child = int(owner.stdout.readline())
        with pytest.raises(
            JournalOwnedError, match=r"used by one query at a time; got: reader fraud-1, .* hint"
        ):
            JournalWriter(tmp_path / "plans", "fraud-1", wait_s=0.0)
        JournalWriter(tmp_path / "plans", "fraud-2", wait_s=0.0).close()
        os.kill(child, signal.SIGSTOP)  # a child that its process leaves behind
        owner.kill()
        owner.wait()
        try:
            JournalWriter(tmp_path / "plans", "fraud-1", wait_s=0.0).close()
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_journal_that_was_cut_is_still_owned(writer: JournalWriter) -> None:
    long_journal(writer)
    assert writer.cut(Needed({0: 1500}))
    with pytest.raises(InvalidInputError, match="used by one query at a time"):
        JournalWriter(writer.path.parent, "fraud-1", wait_s=0.0)
    writer.close()
    JournalWriter(writer.path.parent, "fraud-1", wait_s=0.0).close()


def test_a_journal_that_cannot_be_read_is_not_owned_by_the_process_that_tried(tmp_path: Path) -> None:
    (tmp_path / "plans").mkdir()
    (tmp_path / "plans" / "fraud-1.jsonl").write_text('{"proposed": {"penstock": 99}}\n')
    for _ in range(2):
        with pytest.raises(InvalidInputError, match="has format") as refused:
            JournalWriter(tmp_path / "plans", "fraud-1", wait_s=0.0)
        assert not isinstance(refused.value, JournalOwnedError)


def test_a_planner_waits_for_the_one_before_it_to_end(writer: JournalWriter) -> None:
    opened: list[JournalWriter] = []
    waiting = threading.Thread(
        target=lambda: opened.append(JournalWriter(writer.path.parent, "fraud-1", 600))
    )
    waiting.start()
    writer.close()
    waiting.join()
    opened[0].close()
