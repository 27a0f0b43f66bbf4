"""Follows a stream: which segments are new since the last look, as headers.

A tailer does the reading for the control plane, which looks nothing up by itself: log calls may be slow, and
whoever hosts the control plane makes them where they hold up nobody.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

import pyarrow as pa

from penstock.streams.protocol import HeaderArrays, StreamIndex

LogT = TypeVar("LogT", bound=StreamIndex)


@dataclass(frozen=True, slots=True, eq=False)
class StreamInfo:
    """What a stream is, apart from its rows.

    Attributes:
        id: The id of the stream's reference: no other stream has it.
        name: What a user calls the stream.
        partitions: How many partitions the stream had when it was looked at; more may come.
        key_column: The column whose hash groups rows, if the stream declares one.
        key_buckets: Buckets of that hash.
        user_schema: Columns that queries see.
        event_time: The event-time column that the stream declares, as a paced one does.
        dense: Whether each position has a row.
    """

    id: str
    name: str
    partitions: int = 1
    key_column: str | None = None
    key_buckets: int = 64
    user_schema: pa.Schema | None = None
    event_time: str | None = None
    dense: bool = True


def info_of(log: StreamIndex) -> StreamInfo:
    """What an open stream is."""
    return StreamInfo(
        log.ref.id,
        log.name,
        log.partitions,
        log.key_column,
        log.key_buckets,
        log.user_schema,
        log.event_time,
        log.dense,
    )


@dataclass(frozen=True, slots=True, eq=False)
class NewSegments:
    """What has changed in one partition since the last look.

    Attributes:
        partition: Which partition.
        start: The first position that has not been trimmed.
        end: The position after the last row.
        headers: Of the segments that are new.
        anew: Whether these are all segments that are there: what was known before does not hold any more.
    """

    partition: int
    start: int
    end: int
    headers: HeaderArrays
    anew: bool = False


def furthest_back(several: Iterable[Mapping[int, int]]) -> dict[int, int]:
    """By partition, the least position of several readers. A reader needs all of one it does not name."""
    positions = list(several)
    named = {partition for each in positions for partition in each}
    return {partition: min(each.get(partition, 0) for each in positions) for partition in sorted(named)}


class Tailer(Generic[LogT]):
    """Follows one stream from the position of its slowest reader on.

    The stream may get more partitions meanwhile: a new partition is read from its beginning.

    Args:
        log: The stream. Its index is enough; who needs more of it has it back as `log`.
    """

    def __init__(self, log: LogT) -> None:
        self.log = log
        self.first: Mapping[int, int] = {}
        """By partition, the first row that a reader needs."""
        self._known: dict[int, tuple[int, int]] = {}
        """By partition, start and end at the last look."""

    def follow(self, positions: Mapping[int, int]) -> list[NewSegments]:
        """All that is there from these positions on, anew: who gets it may have let go of what it had before.

        Args:
            positions: By partition, the first row that one of all readers needs.
        """
        self.first, self._known = dict(positions), {}
        return self.look()

    def look(self) -> list[NewSegments]:
        """What is new since the last look that went well, partitions without news left out."""
        known, found = dict(self._known), []
        for partition in range(self.log.partitions):
            new = self._look_at(partition)
            if new is not None:
                known[partition] = new.start, new.end
                found.append(new)
        self._known = known
        return found

    def _look_at(self, partition: int) -> NewSegments | None:
        start, end = self.log.start(partition), self.log.end(partition)
        known = self._known.get(partition)
        if known == (start, end):
            return None
        anew = known is None or end < known[1]  # the log lost its tail, or a paced stream's clock went back
        since = max(start, self.first.get(partition, 0) if known is None or anew else known[1])
        return NewSegments(
            partition, start, end, self.log.header_arrays(partition, since, end, keys=False), anew
        )
