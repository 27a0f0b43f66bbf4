"""From an offset to rows: which segments a grant opens, how many rows it keeps, how tasks share them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.grants.offset import Books, Offset, Positions
from penstock.grants.plan import SCALE, Plan, kept_buckets, kept_rows, opened
from penstock.grants.values import kept_by_value
from penstock.streams.protocol import HeaderArrays, ReadableStream, Segment

Counts = npt.NDArray[np.int64]


class ReadableLog(ReadableStream, Protocol):
    """The part of a stream log that selection needs."""

    def headers(self, partition: int, start: int, end: int) -> Sequence[Segment]: ...

    def read(self, segment: Segment) -> pa.RecordBatch: ...


FEW_SEGMENTS = 8
"""So many segments are expected to open where rows are sampled: from fewer, weights would lean to large ones,
and a result would rest on a few moments of the stream. Counted as `effective_segments` does."""


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """The opened segments of a grant in one partition of the log, clipped to the grant.

    Attributes:
        partition: Of the log.
        first: First position of each opened segment that belongs to the grant.
        end: Position after its last row of the grant.
        kept: How many of these rows are kept.
    """

    partition: int
    first: Counts
    end: Counts
    kept: Counts


def select(log: ReadableLog, offset: Offset) -> list[Selection]:
    """The segments that a grant opens, by partition, with exact counts of what it keeps."""
    return [_select_partition(log, offset, p) for p in sorted(offset.end)]


def evened(log: ReadableStream, offset: Offset) -> Plan:
    """A grant's plan, fitted to its segments and to which of them the coins open.

    How many rows these hold varies (by a fifth at twenty times the capacity), and with it a grant's size, its
    delay and every count over its rows. So the coins of rows are set to what was opened, and weights are
    taken from it: those of a grant then add up to its rows. Where rows are sampled, so many segments are
    expected to open that this is sound; where whole segments are and only few open, weights stay one over
    the chance, which is right on average for any number.
    """
    plan = offset.plan
    if plan.unit in ("key", "chosen") or plan.segment_keep in (0, SCALE):
        return plan
    spans = [grant_span(log, offset, p) for p in offset.end]
    segments = effective_segments(np.concatenate([inside for _, _, inside in spans]))
    if plan.unit == "row" and segments * plan.segment_keep < FEW_SEGMENTS * SCALE:
        keep = plan.segment_keep / SCALE * plan.row_keep / SCALE
        opening = min(1.0, FEW_SEGMENTS / max(1.0, segments))
        plan = replace(plan, segment_keep=round(opening * SCALE), row_keep=round(keep / opening * SCALE))
    rows = sum(int(inside.sum()) for _, _, inside in spans)
    opened_rows = sum(int(inside[opened(plan, p, firsts)].sum()) for p, firsts, inside in spans)
    if not opened_rows:
        return plan
    row_keep, drawn = plan.row_keep, 0
    if plan.unit == "row":
        keep = plan.segment_keep / SCALE * plan.row_keep / SCALE
        row_keep = min(SCALE, max(1, round(keep * rows / opened_rows * SCALE)))
    if plan.unit == "row" or segments * plan.segment_keep >= FEW_SEGMENTS * SCALE:
        drawn = max(1, round(opened_rows / rows * SCALE))
    return replace(plan, row_keep=row_keep, drawn=drawn)


def effective_segments(rows: Counts) -> float:
    """As many segments of one size would vary as much. If one of 25 segments has nearly all rows, 1 would."""
    sizes = rows.astype(np.float64)
    squares = float((sizes**2).sum())
    return float(sizes.sum()) ** 2 / squares if squares else 0.0


def grant_span(log: ReadableStream, offset: Offset, p: int) -> tuple[int, Counts, Counts]:
    """A partition, where its segments of a grant begin, and how many rows of the grant each has."""
    first, end = max(offset.start.get(p, 0), offset.late.get(p, 0), log.start(p)), offset.end[p]
    headers = log.header_arrays(p, first, end, keys=False)
    ends = np.minimum(headers.first_position + headers.rows, end)
    return p, headers.first_position, ends - np.maximum(headers.first_position, first)


def _select_partition(log: ReadableLog, offset: Offset, p: int) -> Selection:
    first = max(offset.start.get(p, 0), offset.late.get(p, 0), log.start(p))
    end = offset.end[p]
    if first >= end:
        return Selection(p, *(np.empty(0, np.int64) for _ in range(3)))
    headers = log.header_arrays(p, first, end, keys=offset.plan.unit == "key")
    mask = opened(offset.plan, p, headers.first_position)
    firsts = np.maximum(headers.first_position[mask], first)
    ends = np.minimum((headers.first_position + headers.rows)[mask], end)
    return Selection(p, firsts, ends, _count_kept(log, offset.plan, p, headers, mask, firsts, ends))


def _count_kept(
    log: ReadableLog,
    plan: Plan,
    p: int,
    headers: HeaderArrays,
    mask: npt.NDArray[np.bool_],
    firsts: Counts,
    ends: Counts,
) -> Counts:
    if plan.unit == "key":
        return _count_by_key(log, plan, p, headers, firsts, ends)
    if plan.looks_into_rows:
        return _count_by_value(log, plan, p, firsts, ends)
    if plan.row_keep == SCALE or firsts.size == 0:
        return ends - firsts
    # one pass over the opened rows: a call for each of hundreds of segments would cost more than the hash
    counts = [
        int(kept_rows(plan, p, int(a), int(b)).sum())
        for a, b in zip(firsts.tolist(), ends.tolist(), strict=True)
    ]
    return np.array(counts, np.int64)


def _count_by_key(
    log: ReadableLog, plan: Plan, p: int, headers: HeaderArrays, firsts: Counts, ends: Counts
) -> Counts:
    """By the headers' counts per key bucket; only a segment that the grant cuts has to be read."""
    kept = kept_buckets(plan, log.key_buckets)
    assert headers.key_counts is not None
    counts = headers.key_counts[:, kept].sum(axis=1).astype(np.int64)
    whole = (firsts == headers.first_position) & (ends == headers.first_position + headers.rows)
    for i in np.flatnonzero(~whole):
        (segment,) = log.headers(p, int(firsts[i]), int(firsts[i]) + 1)
        counts[i] = int(_key_mask(log, plan, segment, int(firsts[i]), int(ends[i])).sum())
    return counts


def _count_by_value(log: ReadableLog, plan: Plan, p: int, firsts: Counts, ends: Counts) -> Counts:
    """No header knows the values: the opened segments are read."""
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
    kept = np.cumsum(kept_by_value(plan, batches, p, positions))
    upto = kept[np.cumsum(ends - firsts) - 1]
    return np.diff(upto, prepend=0)


def grant_books(log: ReadableLog, offset: Offset, selections: Sequence[Selection]) -> Books:
    """What became of the rows of one grant."""
    admitted = late = expired = offered = 0
    for selection in selections:
        p = selection.partition
        start, end = offset.start.get(p, 0), offset.end[p]
        gone = min(max(log.start(p), start), end)
        lost = min(max(offset.late.get(p, 0), gone), end)
        offered += end - start
        expired += gone - start
        late += lost - gone
        admitted += int(selection.kept.sum())
    return Books(admitted, offered - admitted - late - expired, late, expired)


@dataclass(frozen=True, slots=True)
class Range:
    """A stretch of one partition that one task reads.

    Attributes:
        partition: Of the log.
        first: First position.
        end: Position after the last.
        seq: How many rows the reader had admitted before this stretch.
    """

    partition: int
    first: int
    end: int
    seq: int


def share_out(
    selections: Sequence[Selection], admitted_before: int, tasks: int, least_rows: int
) -> list[list[Range]]:
    """Divides the kept rows among tasks, about evenly, at borders of segments, in order.

    Args:
        selections: From `select`.
        admitted_before: Rows that the reader admitted before this grant.
        tasks: At most so many.
        least_rows: A further task is worth its start only for so many rows.
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
    """Kept rows of one segment: the columns of the log, and where each row comes from."""

    rows: pa.RecordBatch
    positions: Counts
    seq: int
    segment: int = 0
    """Where their segment begins."""


def read_range(log: ReadableLog, plan: Plan, stretch: Range) -> Iterator[Piece]:
    """The kept rows of a range, segment by segment; segments that the plan skips are not read."""
    seq = stretch.seq
    headers = log.header_arrays(stretch.partition, stretch.first, stretch.end, keys=False)
    # headers as objects cost microseconds each: only of segments that are opened
    for at in headers.first_position[opened(plan, stretch.partition, headers.first_position)].tolist():
        (segment,) = log.headers(stretch.partition, at, at + 1)
        first = max(segment.first_position, stretch.first)
        end = min(segment.end_position, stretch.end)
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
    log: ReadableLog, plan: Plan, segment: Segment, first: int, end: int, rows: pa.RecordBatch
) -> npt.NDArray[np.bool_] | None:
    """Which rows of [first, end), inside an opened segment, are kept; `None` for all of them."""
    if plan.unit == "key":
        return _key_mask(log, plan, segment, first, end, rows)
    if plan.looks_into_rows:
        inside = rows.slice(first - segment.first_position, end - first)
        return kept_by_value(plan, [inside], segment.partition, np.arange(first, end))
    return None if plan.row_keep == SCALE else kept_rows(plan, segment.partition, first, end)


def _key_mask(
    log: ReadableLog, plan: Plan, segment: Segment, first: int, end: int, rows: pa.RecordBatch | None = None
) -> npt.NDArray[np.bool_]:
    from penstock.streams.embedded.writer import key_buckets

    column = (log.read(segment) if rows is None else rows).column(log.key_column)
    clipped = column.slice(first - segment.first_position, end - first)
    return kept_buckets(plan, log.key_buckets)[key_buckets(clipped, log.key_buckets)]


def rows_between(start: Positions, end: Positions) -> int:
    return sum(end[p] - start.get(p, 0) for p in end)
