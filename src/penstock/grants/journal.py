"""The plan journal: every grant of a reader, written and fsynced before Spark hears of it.

Spark purges its own offset log after a hundred batches; this file is the archive. One JSON line each:

    {"proposed": offset}            before the answer
    {"planned": grant, "attempt": n}  when Spark plans the batch, again after a restart
    {"poison": grant, "rows": n}    set aside instead of run

A grant that was proposed but never logged by Spark is an orphan: a later one has the same number. What counts
is the last proposal of each number up to the last one known to be logged.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.grants.offset import Offset

TAIL_BYTES = 1 << 16


@dataclass(slots=True)
class Entry:
    """What the journal knows of one grant."""

    offset: Offset
    attempts: int = 0
    poison_rows: int | None = None


@dataclass(slots=True)
class Journal:
    """All grants of a reader by number, and how many lines could not be read (a torn last line)."""

    entries: dict[int, Entry] = field(default_factory=dict)
    torn: int = 0

    def logged(self) -> list[Entry]:
        """The grants that Spark has logged, in order: those it planned, and all before one it planned."""
        last = max((number for number, entry in self.entries.items() if entry.attempts), default=0)
        return [self.entries[number] for number in sorted(self.entries) if number <= last]


def read_journal(path: Path) -> Journal:
    """Reads a journal, whole or cut off."""
    return _parse(path.read_bytes()) if path.exists() else Journal()


def _parse(lines: bytes) -> Journal:
    journal = Journal()
    for line in lines.split(b"\n"):
        if not line:
            continue
        try:
            _take(journal, json.loads(line))
        except (ValueError, KeyError, TypeError, AttributeError):  # what a newer Penstock wrote is refused
            journal.torn += 1
    return journal


def _take(journal: Journal, line: Mapping[str, Any]) -> None:
    if "proposed" in line:
        offset = Offset.from_json(line["proposed"])
        # what was proposed from here on is an orphan, or follows a checkpoint that was put back
        while journal.entries and next(reversed(journal.entries)) >= offset.grant:
            journal.entries.popitem()
        journal.entries[offset.grant] = Entry(offset)
    elif "planned" in line:
        if line["planned"] in journal.entries:
            journal.entries[line["planned"]].attempts = line["attempt"]
    elif "poison" in line:
        journal.entries[line["poison"]].poison_rows = line["rows"]


class JournalWriter:
    """Appends to the journal of one reader; only its planner does."""

    def __init__(self, folder: Path, reader: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"{reader}.jsonl"
        self._recent = _recent(self.path)
        self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        if os.fstat(self._file).st_size:  # a torn last line must not swallow the next one
            os.write(self._file, b"\n")

    def proposed(self, offset: Offset) -> None:
        """Writes a grant down, surely on disk on return."""
        before = {number: entry for number, entry in self._recent.items() if number == offset.grant - 1}
        self._recent = {**before, offset.grant: Entry(offset)}
        self._write({"proposed": offset.to_json()})
        os.fsync(self._file)

    def planned(self, offset: Offset) -> int:
        """Spark plans the grant; returns for which time."""
        entry = self._entry(offset)
        entry.attempts += 1
        self._write({"planned": offset.grant, "attempt": entry.attempts})
        return entry.attempts

    def set_aside(self, offset: Offset, rows: int) -> None:
        """The grant's admitted rows are not processed: they count as shed."""
        entry = self._entry(offset)
        if entry.poison_rows is None:
            entry.poison_rows = rows
            self._write({"poison": offset.grant, "rows": rows})
            os.fsync(self._file)

    def poison_rows(self, grant: int) -> int:
        """How many rows of a recent grant were set aside."""
        entry = self._recent.get(grant)
        return 0 if entry is None else entry.poison_rows or 0

    def close(self) -> None:
        os.close(self._file)

    def _entry(self, offset: Offset) -> Entry:
        if offset.grant not in self._recent:
            # the journal was lost or moved; what Spark logged counts
            self.proposed(offset)
        return self._recent[offset.grant]

    def _write(self, line: Mapping[str, Any]) -> None:
        data = json.dumps(line, separators=(",", ":")).encode() + b"\n"
        if os.write(self._file, data) < len(data):  # a disk that fills up takes a part without an error
            raise OSError(errno.ENOSPC, "a plan is journaled whole or not answered", str(self.path))


def _recent(path: Path) -> dict[int, Entry]:
    """The last two grants: the last may be an orphan, and Spark then goes on from the one before it.

    Read from the end: a journal grows for as long as its query is used.
    """
    if not path.exists():
        return {}
    with path.open("rb") as file:
        size, tail = file.seek(0, os.SEEK_END), TAIL_BYTES
        while True:
            file.seek(max(0, size - tail))
            entries = _parse(file.read()).entries  # a line that is cut in front cannot be read
            if len(entries) >= 2 or tail >= size:
                return dict(list(entries.items())[-2:])
            tail *= 4
