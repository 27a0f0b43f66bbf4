"""Recovery, a writer's first step: cuts off records and rows that a crash or a power cut left incomplete."""

from __future__ import annotations

import logging
import os
import zlib
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa

from penstock.streams.embedded.compact import data_files, trimmed_before
from penstock.streams.embedded.index import Index, is_whole

_log = logging.getLogger(__name__)


def recover(folder: Path, index: Index) -> int:
    """Cuts off incomplete or damaged appends at the end and logs it; returns the number of bytes cut."""
    records, trimmed = index.records(), trimmed_before(folder)
    count = records.size
    while count > 0 and not _is_good(folder, records[count - 1 : count], trimmed):
        count -= 1
        while count > 0 and not records[count - 1]["last"]:
            count -= 1
    lost = _lost(records[count:])  # before the file is cut, because the records are a map of it
    size = count * index.dtype.itemsize
    cut = index.path.stat().st_size - size
    last_file, keep = (-1, 0)
    if count:
        last = records[count - 1]
        last_file, keep = int(last["file"]), int(last["offset"] + last["length"])
    if cut:
        os.truncate(index.path, size)
    segments, whole_bytes = 0, 0
    for first in data_files(folder):
        if first < last_file:
            continue
        path = folder / f"{first:020d}.data"
        keep_bytes = keep if first == last_file else 0
        surplus = path.stat().st_size - keep_bytes
        if surplus > 0:
            cut += surplus
            found = _whole_segments(path, keep_bytes)
            segments, whole_bytes = segments + found[0], whole_bytes + found[1]
            os.truncate(path, keep_bytes)
        if keep_bytes == 0:
            path.unlink()
    lost = lost or _unknown(segments, whole_bytes)
    if lost:
        _log.warning(
            "%s, partition %d: cut %d bytes: %s", folder.parent.name, int(folder.name[1:]), cut, lost
        )
    elif cut:
        _log.warning("%s: cut %d bytes of an unfinished append", folder.parent.name, cut)
    return cut


def _lost(records: np.ndarray) -> str:
    """Describes the complete appends that are lost with these records; empty if there are none."""
    if not records.size:
        return ""
    appends, rows = int((records["last"] == 1).sum()), int(records["rows"].sum())
    return (
        f"rows that were acknowledged are lost, {appends} complete appends with {rows} rows, from position "
        f"{int(records[0]['first_position'])} on; queries that have read them are refused"
    )


def _unknown(segments: int, whole_bytes: int) -> str:
    """Describes whole segments that lie behind the last index record; empty if there are none.

    A writer that is killed between writing rows and their index record leaves such segments, too. The rows do
    not tell where an append ends, so the two cases look alike.
    """
    if not segments:
        return ""
    return (
        f"{segments} segments of rows ({whole_bytes} bytes) have no index record; either an append was "
        "interrupted before it was acknowledged, or acknowledged appends are lost; queries that have read "
        "the rows are refused"
    )


def _whole_segments(path: Path, start: int) -> tuple[int, int]:
    """Number and bytes of the whole segments that follow one another in a data file from a place on.

    They are counted for a warning only, so a file that cannot be mapped has none.
    """
    count, size = 0, 0
    with suppress(EOFError, OSError, pa.ArrowException), pa.memory_map(str(path)) as file:
        file.seek(start)
        # an error is the file's end, half a segment, or other bytes
        while pa.ipc.read_message(file).type == "record batch":
            count, size = count + 1, file.tell() - start
    return count, size


def _is_good(folder: Path, record: np.ndarray, trimmed: int) -> bool:
    """Whether the rows of a record (an array of one) are in the data file, or were trimmed."""
    if not is_whole(record):
        return False
    file = int(record["file"][0])
    path = folder / f"{file:020d}.data"
    if not path.exists():
        return file < trimmed
    with path.open("rb") as data:
        data.seek(int(record["offset"][0]))
        return zlib.crc32(data.read(int(record["length"][0]))) == int(record["data_crc"][0])
