"""Knowing that a log still has the rows that a reader has read.

A log can lose rows that it had acknowledged: in a power cut without fsync, in a restored backup, by a damaged
last segment. It then gives their positions to other rows. A reader that went on at its position would skip
those, or wait for ever. So a reader keeps a mark beside its position: the checksum of the index record that
holds the row before it. Index records have positions, arrival times and the checksum of the rows in them, so
another record has another mark, whoever wrote it and however the old one was lost.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.streams.embedded.log import EmbeddedLog
from penstock.streams.protocol import StreamLog
from penstock.vocabulary.errors import InvalidInputError


def marks_at(log: StreamLog, positions: Mapping[int, int]) -> dict[int, int]:
    """The marks of positions, by partition; none where no row lies before, or none can be lost."""
    if not isinstance(log, EmbeddedLog):
        return {}  # a paced stream is written beforehand; over Flight it is the server's to know
    found = {p: log.mark(p, position) for p, position in positions.items()}
    return {p: mark for p, mark in found.items() if mark}


def check_marks(log: StreamLog, positions: Mapping[int, int], marks: Mapping[int, int]) -> None:
    """Refuses to go on at positions before which the log has no rows, or others than those that were read.

    Without marks (an offset of an older Penstock) only rows that are missing are noticed.
    """
    if not isinstance(log, EmbeddedLog):
        return
    for p, position in positions.items():
        if position <= log.start(p):
            continue  # what lay before is trimmed, and its positions are not given again
        found = log.mark(p, position)
        if found and marks.get(p, found) == found:
            continue
        if not found and position <= log.start(p):
            continue  # trimmed, and its index compacted, since it was looked at
        there = "the rows before it are others now" if found else f"the log ends at {log.end(p)}"
        raise InvalidInputError(
            "the log still has the rows that this query has read",
            f"stream {log.name}, partition {p}: the checkpoint is at position {position}, {there}",
            "rows were lost (a power cut, a restored backup, a damaged file): put the log's files back, "
            "or start the query with a new checkpointLocation",
        )
