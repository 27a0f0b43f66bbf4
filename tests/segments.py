"""Segments of a stream one by one, for tests that look at each."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from penstock.streams.protocol import SegmentReader, StreamIndex


@dataclass(frozen=True)
class Segment:
    """One column of `HeaderArrays`."""

    partition: int
    first_position: int
    rows: int
    arrival_min_us: int
    arrival_max_us: int
    key_counts: tuple[int, ...] = ()

    @property
    def end_position(self) -> int:
        return self.first_position + self.rows


def headers(log: StreamIndex, partition: int, start: int, end: int) -> list[Segment]:
    """The segments with positions in [start, end)."""
    found = log.header_arrays(partition, start, end)
    counts = [()] * len(found) if found.key_counts is None else [tuple(c) for c in found.key_counts.tolist()]
    columns = (found.first_position, found.rows, found.arrival_min_us, found.arrival_max_us)
    numbers = zip(*(column.tolist() for column in columns), strict=True)
    return [Segment(partition, *of, key_counts=c) for of, c in zip(numbers, counts, strict=True)]


def read(log: SegmentReader, segment: Segment) -> pa.RecordBatch:
    """All rows of a segment."""
    return log.read(segment.partition, segment.first_position, segment.end_position).batch
