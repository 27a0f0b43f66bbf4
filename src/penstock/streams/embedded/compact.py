"""Drops index records of trimmed data files, but still remembers the last batch of each writer.

First, the last batch of each writer among the dropped records goes to a small file, so that a repeated
append is still recognised. Then the new index replaces the old one whole. A crash in between leaves the old
index: nothing is lost.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np

from penstock.streams.embedded.index import Index, last_batches
from penstock.streams.embedded.noted import noted_batches
from penstock.streams.files import replace_bytes, replace_text

_DATA_FILE = re.compile(r"[0-9]{20}\.data")

LEAST_RECORDS = 256
"""Fewer dead records than this are not worth three fsyncs."""


def data_files(folder: Path) -> list[int]:
    """First positions of a partition's data files, in order; files with other names are ignored."""
    return sorted(int(path.stem) for path in folder.glob("*.data") if _DATA_FILE.fullmatch(path.name))


def trimmed_before(folder: Path) -> int:
    """First position of a partition that has not been trimmed."""
    try:
        return int((folder / "trimmed").read_text())
    except FileNotFoundError:
        return 0


def known_batches(folder: Path, records: np.ndarray) -> dict[str, int]:
    """The last batch of each writer, by index records, dropped records and notes.

    Args:
        folder: The partition's folder.
        records: Index records, read before this call: a compaction in between then loses no batch.
    """
    known = _of_records(folder, records)
    end = int(records[-1]["first_position"] + records[-1]["rows"]) if records.size else 0
    noted = noted_batches(folder, max(end, trimmed_before(folder)))
    return {writer: max(known.get(writer, -1), noted.get(writer, -1)) for writer in {**known, **noted}}


def _of_records(folder: Path, records: np.ndarray) -> dict[str, int]:
    """The last batch of each writer, by index records and dropped records, without notes."""
    known = last_batches(records)
    try:
        dropped = json.loads((folder / "batches").read_text())
    except FileNotFoundError:
        return known
    return {writer: max(known.get(writer, -1), dropped.get(writer, -1)) for writer in {**dropped, **known}}


def compact(folder: Path, index: Index) -> bool:
    """Drops index records of trimmed files, once they are most of the index; returns whether it did.

    Only the holder of the partition's lock may call this.
    """
    records = index.records()
    dead = int(np.searchsorted(records["file"], trimmed_before(folder), side="left"))
    if dead < LEAST_RECORDS or dead <= records.size // 2 or dead == records.size:
        return False
    # The file gets batches of dropped records only. A power cut may still take kept records; their batches
    # are then appended again, and must not count as known.
    replace_text(folder / "batches", json.dumps(_of_records(folder, records[:dead])))
    replace_bytes(index.path, records[dead:].tobytes())
    return True
