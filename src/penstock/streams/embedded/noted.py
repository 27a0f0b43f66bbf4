"""Notes of batches that had no rows for a partition, so that the partition knows them all the same.

<partition>/noted    one JSON line a note: writer, batch, the partition's end when the note was made

A note says that a partition has all it will ever have of a writer's batches up to this one. A note holds only
while the rows before it are there. A partition that lost its last rows ends before the note's position; its
writer then drops the note, so that the lost rows are sent again.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from penstock.streams.files import replace_text

MOST_BYTES = 1 << 16
"""A file longer than this is rewritten with only the last note of each writer."""


def noted_batches(folder: Path, end: int) -> dict[str, int]:
    """The last noted batch of each writer; notes beyond the partition's end do not count."""
    return {writer: batch for writer, (batch, _) in _read(folder, end).items()}


def note_batch(folder: Path, writer: str, batch: int, end: int, sync: bool) -> None:
    """Adds a note; with `sync` the note is on disk when this returns."""
    path = folder / "noted"
    with path.open("ab") as file:
        file.write(_line(writer, batch, end))
        file.flush()
        if sync:
            os.fsync(file.fileno())
        long = file.tell() > MOST_BYTES
    if long:
        _rewrite(folder, _read(folder, end))


def drop_notes_beyond(folder: Path, end: int) -> None:
    """Forgets notes that were made after rows that are lost.

    The holder of the partition's lock calls this before the lost positions are given to other rows.
    """
    kept = _read(folder, end)
    if kept != _read(folder, None):
        _rewrite(folder, kept)


def _read(folder: Path, end: int | None) -> dict[str, tuple[int, int]]:
    try:
        lines = (folder / "noted").read_bytes().splitlines()
    except FileNotFoundError:
        return {}
    found: dict[str, tuple[int, int]] = {}
    for line in lines:
        try:
            writer, batch, at = json.loads(line)
        except ValueError:
            continue  # a crash left half a line
        if (end is None or at <= end) and batch > found.get(writer, (-1, 0))[0]:
            found[writer] = batch, at
    return found


def _rewrite(folder: Path, notes: dict[str, tuple[int, int]]) -> None:
    lines = b"".join(_line(writer, batch, at) for writer, (batch, at) in notes.items())
    replace_text(folder / "noted", lines.decode())


def _line(writer: str, batch: int, at: int) -> bytes:
    return json.dumps([writer, batch, at]).encode() + b"\n"
