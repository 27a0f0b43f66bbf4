"""The plan journal: every grant of a reader, written and fsynced before Spark hears of it.

Spark purges its own offset log after a hundred batches; this file is the archive. It has these JSON lines:

    {"proposed": offset}            a grant, written before the source answers Spark
    {"planned": grant, "attempt": n}  Spark plans the batch, again after a restart
    {"poison": grant, "rows": n}    the grant is set aside instead of run
    {"lost": grant, "rows": n}      rows of the grant were trimmed before its batch ran
    {"cut": grant, ...}             only as first line: earlier grants, up to this one, were cut off

A grant that was proposed but never logged by Spark is an orphan: a later proposal has the same number. The
last proposal of each number counts, up to the last grant that is known to be logged.

A journal has one owner, the planner of its reader, which holds a lock on the file for as long as it lives.
Once the file has grown long, the owner cuts off grants that nobody needs any more.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

from penstock.grants.cutting import Needed, Place, find_cut
from penstock.grants.offset import Books, Offset, Positions
from penstock.streams.files import sync_directory
from penstock.vocabulary.errors import InvalidInputError

TAIL_BYTES = 1 << 16
CUT_BYTES = 1 << 22
"""Each time a journal has grown by this, its owner tries to cut it: about 13,000 grants of one partition."""
WAIT_S, LOOK_S = 20.0, 0.05
"""How long a planner waits for the previous planner to end, and how often it looks. A planner that outlives
its driver ends within about a second; on a busy machine that takes longer."""


@dataclass(slots=True)
class Entry:
    """One grant in the journal."""

    offset: Offset
    attempts: int = 0
    poison_rows: int | None = None
    lost_rows: int = 0


@dataclass(frozen=True, slots=True)
class Cut:
    """Grants that were cut off from a journal.

    Attributes:
        last: Number of the last grant that was cut off.
        books: The reader's books up to grant `last`; `None` if they are not known.
        first: Number of the first grant that the journal ever had.
        start: Positions at which grant `first` begins.
    """

    last: int
    books: Books | None
    first: int
    start: Positions

    def to_json(self) -> dict[str, Any]:
        books = None if self.books is None else self.books.to_json()
        start = {str(p): position for p, position in self.start.items()}
        return {"cut": self.last, "books": books, "first": self.first, "start": start}

    @classmethod
    def from_json(cls, line: Mapping[str, Any]) -> Cut:
        books = None if line["books"] is None else Books(*line["books"])
        return cls(line["cut"], books, line["first"], {int(p): at for p, at in line["start"].items()})


@dataclass(slots=True)
class Journal:
    """All grants of a reader by number, and how many lines could not be read (a torn last line)."""

    entries: dict[int, Entry] = field(default_factory=dict)
    torn: int = 0
    cut: Cut | None = None

    def began(self) -> tuple[int, Positions]:
        """Number of the first grant that the journal ever had, and the positions at which it begins."""
        if self.cut is not None:
            return self.cut.first, self.cut.start
        first = min(self.entries)
        return first, self.entries[first].offset.start

    def books_before(self, grant: int) -> Books | None:
        """The books up to the grant before this one; `None` if the journal begins later."""
        if grant == 1:
            return Books()
        if grant - 1 in self.entries:
            return self.entries[grant - 1].offset.books
        return self.cut.books if self.cut is not None and self.cut.last == grant - 1 else None

    def logged(self) -> list[Entry]:
        """The grants that Spark has logged, in order: all grants up to the last one that Spark planned."""
        last = max((number for number, entry in self.entries.items() if entry.attempts), default=0)
        return [self.entries[number] for number in sorted(self.entries) if number <= last]


def read_journal(path: Path) -> Journal:
    """Reads a journal; a file that does not exist is an empty journal."""
    return _parse(path.read_bytes()) if path.exists() else Journal()


def _parse(lines: bytes) -> Journal:
    journal = Journal()
    for line in lines.split(b"\n"):
        if not line:
            continue
        try:
            _take(journal, json.loads(line))
        except (ValueError, KeyError, TypeError, AttributeError):  # a newer format raises its own error
            journal.torn += 1
    return journal


def _take(journal: Journal, line: Mapping[str, Any]) -> None:
    if "proposed" in line:
        offset = Offset.from_json(line["proposed"])
        # earlier proposals of this number and higher ones are void: orphans, or an older checkpoint is back
        while journal.entries and next(reversed(journal.entries)) >= offset.grant:
            journal.entries.popitem()
        if journal.cut is not None and journal.cut.last >= offset.grant:
            journal.cut = replace(journal.cut, last=offset.grant - 1, books=None)
        journal.entries[offset.grant] = Entry(offset)
    elif "planned" in line:
        if line["planned"] in journal.entries:
            journal.entries[line["planned"]].attempts = line["attempt"]
    elif "poison" in line:
        journal.entries[line["poison"]].poison_rows = line["rows"]
    elif "lost" in line:
        journal.entries[line["lost"]].lost_rows = line["rows"]
    elif "cut" in line:
        journal.cut = Cut.from_json(line)


class JournalOwnedError(InvalidInputError):
    """Another process owns a journal; in most cases it is the planner of the journal's reader."""


class JournalWriter:
    """Appends to the journal of one reader, and holds its lock. Only the reader's planner has a writer.

    Args:
        folder: Folder of the stream's journals.
        reader: The reader's id.
        wait_s: How long to wait for another owner to end; `WAIT_S` by default.

    Raises:
        JournalOwnedError: Another process owns the journal.
        InvalidInputError: A newer Penstock has written the journal.
    """

    def __init__(self, folder: Path, reader: str, wait_s: float | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"{reader}.jsonl"
        self._file = _owned(self.path, reader, WAIT_S if wait_s is None else wait_s)
        self._looked_bytes = 0
        try:
            for left in folder.glob(f"{self.path.name}.*.new"):
                left.unlink(missing_ok=True)  # the previous planner was killed while it cut the journal
            self._recent = _recent(self.path)
            if os.fstat(self._file).st_size:  # a torn last line must not swallow the next one
                os.write(self._file, b"\n")
        except BaseException:
            self.close()  # the lock would last as long as this process
            raise

    def proposed(self, offset: Offset) -> None:
        """Writes a proposed grant; it is on disk when this returns."""
        before = {number: entry for number, entry in self._recent.items() if number == offset.grant - 1}
        self._recent = {**before, offset.grant: Entry(offset)}
        self._write({"proposed": offset.to_json()})
        os.fsync(self._file)

    def planned(self, offset: Offset) -> int:
        """Writes that Spark plans the grant; returns how often Spark has planned it."""
        entry = self._entry(offset)
        entry.attempts += 1
        self._write({"planned": offset.grant, "attempt": entry.attempts})
        return entry.attempts

    def set_aside(self, offset: Offset, rows: int) -> None:
        """Writes that the grant's admitted rows are not processed: they count as shed."""
        entry = self._entry(offset)
        if entry.poison_rows is None:
            entry.poison_rows = rows
            self._write({"poison": offset.grant, "rows": rows})
            os.fsync(self._file)

    def poison_rows(self, grant: int) -> int:
        """How many rows of a recent grant were set aside."""
        entry = self._recent.get(grant)
        return 0 if entry is None else entry.poison_rows or 0

    def lost(self, offset: Offset, rows: int) -> None:
        """Writes how many admitted rows of the grant are no longer in the log: they count as expired."""
        entry = self._entry(offset)
        if rows > entry.lost_rows:
            entry.lost_rows = rows
            self._write({"lost": offset.grant, "rows": rows})
            os.fsync(self._file)

    def lost_rows(self, grant: int) -> int:
        """How many rows of a recent grant were trimmed before its batch ran."""
        entry = self._recent.get(grant)
        return 0 if entry is None else entry.lost_rows

    @property
    def is_long(self) -> bool:
        """Whether the journal has grown so much that `cut` should be tried."""
        return os.fstat(self._file).st_size - self._looked_bytes >= CUT_BYTES

    def cut(self, needed: Needed) -> bool:
        """Cuts off grants that nobody needs, if that makes the journal at most half as long.

        The last two grants and the last one that Spark planned always stay. The kept lines are written to a
        new file, which is synced and then replaces the journal: a crash leaves the old file or the new one.
        """
        kept = [number for number, entry in self._recent.items() if entry.attempts]
        size = os.fstat(self._file).st_size
        self._looked_bytes = size
        if not kept:
            return False
        with self.path.open("rb") as old:
            before = _first_line(old)
            earlier = 0 if before.cut is None else before.cut.last
            place = find_cut(old, needed, min(self._recent), earlier)
            if place is None or 2 * (size - place.at) > size:
                return False
            self._replace_by(old, place, Cut(place.last.grant, place.last.books, *before.began()))
        self._looked_bytes = os.fstat(self._file).st_size
        return True

    def _replace_by(self, old: BinaryIO, place: Place, cut: Cut) -> None:
        beside = self.path.with_name(f"{self.path.name}.{os.getpid()}.new")
        file = os.open(beside, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)  # before it has the journal's name: nobody else can lock it
            with os.fdopen(os.dup(file), "wb") as new:
                new.write(_line(cut.to_json()))
                old.seek(place.at)
                shutil.copyfileobj(old, new, 1 << 20)
            os.fsync(file)
            beside.replace(self.path)
        except BaseException:
            os.close(file)
            beside.unlink(missing_ok=True)
            raise
        os.close(self._file)
        self._file = file
        sync_directory(self.path.parent)

    def remove(self) -> None:
        """Removes the journal and releases it. A planner that waits for it begins a new one."""
        self.path.unlink(missing_ok=True)
        sync_directory(self.path.parent)
        self.close()

    def close(self) -> None:
        """Releases the journal; a second call is a no-op."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _entry(self, offset: Offset) -> Entry:
        if offset.grant not in self._recent:
            # the journal was lost or moved; the offset that Spark logged counts
            self.proposed(offset)
        return self._recent[offset.grant]

    def _write(self, line: Mapping[str, Any]) -> None:
        data = _line(line)
        if os.write(self._file, data) < len(data):  # a disk that fills up writes a part without an error
            raise OSError(errno.ENOSPC, "a plan is journaled whole or not answered", str(self.path))


def _line(line: Mapping[str, Any]) -> bytes:
    return json.dumps(line, separators=(",", ":")).encode() + b"\n"


def _owned(path: Path, reader: str, wait_s: float) -> int:
    """Opens and locks a journal. The lock ends with this process: child processes do not inherit it."""
    until_s = time.monotonic() + wait_s
    while True:
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _has_name(file, path):
                return file
            os.close(file)  # the journal was cut or removed just now
            continue
        except BlockingIOError:
            os.close(file)
        if time.monotonic() >= until_s:
            raise JournalOwnedError(
                "a checkpoint is used by one query at a time",
                f"reader {reader}, whose plan journal {path} another process owns",
                "the checkpoint was copied, or its query still runs: stop that query, or use a new "
                "checkpointLocation",
            )
        time.sleep(LOOK_S)


def _has_name(file: int, path: Path) -> bool:
    """Whether a path still names an open file."""
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False


def _first_line(file: BinaryIO) -> Journal:
    """A journal with the first readable line alone: a cut, or the first grant."""
    file.seek(0)
    found = Journal()
    while not found.entries and found.cut is None and (line := file.readline()):
        found = _parse(line)
    return found


def _recent(path: Path) -> dict[int, Entry]:
    """The last two grants. If the last one is an orphan, Spark goes on from the one before it.

    The file is read from its end, because a journal grows for as long as its query is used.
    """
    if not path.exists():
        return {}
    with path.open("rb") as file:
        size, tail = file.seek(0, os.SEEK_END), TAIL_BYTES
        while True:
            file.seek(max(0, size - tail))
            entries = _parse(file.read()).entries  # a first line that is not whole counts as torn
            if len(entries) >= 2 or tail >= size:
                return dict(list(entries.items())[-2:])
            tail *= 4
