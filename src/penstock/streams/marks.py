"""Marks, which tell a reader that the log still has the rows that the reader has read.

A log can lose rows that it had acknowledged: in a power cut without fsync, in a restored backup, by a damaged
last segment. The log then gives the lost positions to other rows. A reader that went on at its position would
skip these rows, or wait for ever. So a reader keeps a mark beside its position: the checksum of the index
record that holds the row before it. An index record has positions, arrival times and the checksum of its
rows. So another record has another mark, whoever wrote it and however the old record was lost.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.streams.descriptor import partition_label
from penstock.streams.protocol import StreamIndex
from penstock.vocabulary.errors import InvalidInputError


def marks_at(log: StreamIndex, positions: Mapping[int, int]) -> dict[int, int]:
    """The marks of positions, by partition; a position with no row before it has no mark.

    A log that cannot tell has no marks either.
    """
    found = {p: log.mark(p, position) for p, position in positions.items()}
    return {p: mark for p, mark in found.items() if mark}


def check_marks(
    log: StreamIndex,
    positions: Mapping[int, int],
    marks: Mapping[int, int],
    whose: str = "the checkpoint is",
    otherwise: str = "start the query with a new checkpointLocation",
) -> None:
    """Refuses positions if the rows before them are missing, or are not the rows that were read.

    Without marks (an offset of an older Penstock) only missing rows are noticed.

    Args:
        log: The stream.
        positions: Positions by partition.
        marks: The marks that were kept beside the positions.
        whose: For the error: what is at the position, with its verb.
        otherwise: For the error: what to do if the rows cannot be put back.
    """
    for p, position in positions.items():
        if position <= log.start(p):
            continue  # the rows before were trimmed, and their positions are not given to other rows
        found = log.mark(p, position)
        if found is None:
            continue  # the log cannot tell
        if found and marks.get(p, found) == found:
            continue
        if not found and position <= log.start(p):
            continue  # the rows were trimmed and the index compacted during this check
        there = "the rows before it are others now" if found else f"the log ends at {log.end(p)}"
        where = f"stream {log.name}, {partition_label(log, p)}"
        raise InvalidInputError(
            "the log still has the rows that this query has read",
            f"{where}: {whose} at position {position}, {there}",
            "rows were lost (a power cut, a restored backup, a damaged file): put the log's files back, "
            f"or {otherwise}",
        )
