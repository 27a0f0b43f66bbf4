"""From an offset to rows: which segments a grant opens, how many rows it keeps, which task reads them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.grants.offset import Books, Offset, Positions
from penstock.grants.plans import KeyPlan, SamplePlan, ShedPlan
from penstock.streams.protocol import HeaderArrays, ReadableStream, Segment

Counts = npt.NDArray[np.int64]


class ReadableLog(ReadableStream, Protocol):
    """The part of a stream log that selection needs."""

    def headers(self, partition: int, start: int, end: int) -> Sequence[Segment]: ...

    def read(self, segment: Segment) -> pa.RecordBatch: ...


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """The opened segments of a grant in one partition of the log, clipped to the grant.

    Attributes:
        partition: Partition of the log.
        first: For each opened segment, position of its first row in the grant.
        end: For each opened segment, position after its last row in the grant.
        kept: For each opened segment, how many rows between `first` and `end` are kept.
    """

    partition: int
    first: Counts
    end: Counts
    kept: Counts


def select(log: ReadableLog, offset: Offset) -> list[Selection]:
    """The segments that a grant opens, by partition, with exact counts of the rows that it keeps."""
    return [_select_partition(log, offset, p) for p in sorted(offset.end)]


def evened(log: ReadableStream, offset: Offset) -> ShedPlan:
    """A grant's plan, fitted to its segments; see `SamplePlan.fitted`."""
    plan = offset.plan
    if isinstance(plan, SamplePlan) and plan.draws_segments:
        return plan.fitted(grant_span(log, offset, p) for p in offset.end)
    return plan


def grant_span(log: ReadableStream, offset: Offset, p: int) -> tuple[int, Counts, Counts]:
    """A partition, first positions of its segments in a grant, and rows of the grant in each segment."""
    first, end = max(offset.start.get(p, 0), offset.late.get(p, 0), log.start(p)), offset.end[p]
    headers = log.header_arrays(p, first, end, keys=False)
    ends = np.minimum(headers.first_position + headers.rows, end)
    return p, headers.first_position, ends - np.maximum(headers.first_position, first)


def _select_partition(log: ReadableLog, offset: Offset, p: int) -> Selection:
    first = max(offset.start.get(p, 0), offset.late.get(p, 0), log.start(p))
    end = offset.end[p]
    if first >= end:
        return Selection(p, *(np.empty(0, np.int64) for _ in range(3)))
    headers = log.header_arrays(p, first, end, keys=offset.plan.needs == "keys")
    mask = offset.plan.opens(p, headers.first_position)
    firsts = np.maximum(headers.first_position[mask], first)
    ends = np.minimum((headers.first_position + headers.rows)[mask], end)
    return Selection(p, firsts, ends, _count_kept(log, offset.plan, p, headers, firsts, ends))


def _count_kept(
    log: ReadableLog, plan: ShedPlan, p: int, headers: HeaderArrays, firsts: Counts, ends: Counts
) -> Counts:
    if isinstance(plan, KeyPlan) and headers.key_counts is not None:
        return _count_by_key(log, plan, p, headers, firsts, ends)
    if plan.needs != "places":
        return _count_by_reading(log, plan, p, firsts, ends)
    if plan.keeps_whole_segments or firsts.size == 0:
        return ends - firsts
    counts = [
        _kept_in(plan.keeps(log, p, np.arange(a, b, dtype=np.int64), ()), b - a)
        for a, b in zip(firsts.tolist(), ends.tolist(), strict=True)
    ]
    return np.array(counts, np.int64)


def _kept_in(mask: npt.NDArray[np.bool_] | None, rows: int) -> int:
    return rows if mask is None else int(mask.sum())


def _count_by_key(
    log: ReadableLog, plan: KeyPlan, p: int, headers: HeaderArrays, firsts: Counts, ends: Counts
) -> Counts:
    """Counts by the headers' counts per key bucket; only a segment that the grant cuts is read."""
    assert headers.key_counts is not None
    counts: Counts = headers.key_counts[:, plan.kept_buckets(log.key_buckets)].sum(axis=1).astype(np.int64)
    whole = (firsts == headers.first_position) & (ends == headers.first_position + headers.rows)
    cut = np.flatnonzero(~whole)
    counts[cut] = [
        int(_count_by_reading(log, plan, p, firsts[i : i + 1], ends[i : i + 1])[0]) for i in cut.tolist()
    ]
    return counts


def _count_by_reading(log: ReadableLog, plan: ShedPlan, p: int, firsts: Counts, ends: Counts) -> Counts:
    """Counts by reading the opened segments, because headers do not have the values."""
    if firsts.size == 0:
        return firsts
    wanted = dict(zip(firsts.tolist(), ends.tolist(), strict=True))
    batches = []
    for segment in log.headers(p, int(firsts[0]), int(ends[-1])):
        first = max(segment.first_position, int(firsts[0]))
        if first in wanted:
            rows = log.read(segment)
            batches.append(rows.slice(first - segment.first_position, wanted[first] - first))
    positions = np.concatenate([np.arange(first, end) for first, end in wanted.items()])
    mask = plan.keeps(log, p, positions, batches)
    if mask is None:
        return ends - firsts
    upto = np.cumsum(mask)[np.cumsum(ends - firsts) - 1]
    kept: Counts = np.diff(upto, prepend=0)
    return kept


def grant_books(log: ReadableLog, offset: Offset, selections: Sequence[Selection]) -> Books:
    """Books of one grant alone: how many of its rows are admitted, sampled, late, expired."""
    admitted = late = expired = offered = 0
    for selection in selections:
        p = selection.partition
        start, end = offset.start.get(p, 0), offset.end[p]
        expired_end = min(max(log.start(p), start), end)
        late_end = min(max(offset.late.get(p, 0), expired_end), end)
        offered += end - start
        expired += expired_end - start
        late += late_end - expired_end
        admitted += int(selection.kept.sum())
    return Books(admitted, offered - admitted - late - expired, late, expired)


@dataclass(frozen=True, slots=True)
class Range:
    """Rows of one partition that one task reads.

    Attributes:
        partition: Partition of the log.
        first: Position of the first row.
        end: Position after the last row.
        seq: How many rows the reader had admitted before `first`.
    """

    partition: int
    first: int
    end: int
    seq: int


def split_among_tasks(
    selections: Sequence[Selection], admitted_before: int, tasks: int, least_rows: int
) -> list[list[Range]]:
    """Divides the kept rows among tasks, about evenly, at borders of segments, in order.

    Args:
        selections: Result of `select`.
        admitted_before: Number of rows that the reader admitted before this grant.
        tasks: Most tasks.
        least_rows: Least rows of a task, on average: fewer are not worth the start of a task.
    """
    total = sum(int(s.kept.sum()) for s in selections)
    if total == 0:
        return []
    count = max(1, min(tasks, total // max(1, least_rows)))
    shares: list[list[Range]] = [[] for _ in range(count)]
    done = 0
    for s in selections:
        used = s.kept > 0
        firsts, ends, kept = s.first[used], s.end[used], s.kept[used]
        before = done + np.cumsum(kept) - kept
        task = np.minimum((before + kept // 2) * count // total, count - 1)
        for t in np.unique(task).tolist():
            mine = np.flatnonzero(task == t)
            seq = admitted_before + int(before[mine[0]])
            shares[t].append(Range(s.partition, int(firsts[mine[0]]), int(ends[mine[-1]]), seq))
        done += int(kept.sum())
    return [share for share in shares if share]


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """Kept rows of one segment: the columns of the log, and the position of each row."""

    rows: pa.RecordBatch
    positions: Counts
    seq: int
    segment: int = 0
    """First position of the segment."""


def read_range(log: ReadableLog, plan: ShedPlan, part: Range) -> Iterator[Piece]:
    """The kept rows of a range, segment by segment; segments that the plan skips are not read."""
    seq = part.seq
    headers = log.header_arrays(part.partition, part.first, part.end, keys=False)
    # a header as an object costs microseconds, so objects are made for opened segments only
    for at in headers.first_position[plan.opens(part.partition, headers.first_position)].tolist():
        (segment,) = log.headers(part.partition, at, at + 1)
        first = max(segment.first_position, part.first)
        end = min(segment.end_position, part.end)
        rows = log.read(segment)
        mask = kept_mask(log, plan, segment, first, end, rows)
        rows = rows.slice(first - segment.first_position, end - first)
        positions = np.arange(first, end, dtype=np.int64)
        if mask is not None:
            rows, positions = rows.filter(pa.array(mask)), positions[mask]
        if rows.num_rows:
            yield Piece(rows, positions, seq, at)
            seq += rows.num_rows


def kept_mask(
    log: ReadableLog, plan: ShedPlan, segment: Segment, first: int, end: int, rows: pa.RecordBatch
) -> npt.NDArray[np.bool_] | None:
    """Which rows of [first, end), inside an opened segment, are kept; `None` for all of them."""
    inside = rows.slice(first - segment.first_position, end - first)
    return plan.keeps(log, segment.partition, np.arange(first, end, dtype=np.int64), [inside])


def rows_between(start: Positions, end: Positions) -> int:
    return sum(end[p] - start.get(p, 0) for p in end)
