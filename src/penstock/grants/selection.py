"""From an offset to rows: which segments a grant opens, how many rows it keeps, which task reads them.

Rows are counted by positions. A position without a row counts as kept wherever a plan looks into the rows of
its segment: nobody shed it. So the books are exact in positions, whatever a log lacks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.grants.offset import Books, Offset, Positions
from penstock.grants.plans import ShedPlan
from penstock.grants.plans.protocol import Span
from penstock.streams.protocol import HeaderArrays, PositionedRows, StreamIndex, StreamRows

Counts = npt.NDArray[np.int64]

ROWS_AT_ONCE = 1 << 15
"""Rows whose coins are tossed at once, if their segments are not longer: more of them do not fit into a
processor's cache."""


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """The opened segments of a grant in one partition of the log, clipped to the grant.

    Attributes:
        partition: Partition of the log.
        first: For each opened segment, position of its first row in the grant.
        end: For each opened segment, position after its last row in the grant.
        kept: For each opened segment, how many positions between `first` and `end` are kept.
    """

    partition: int
    first: Counts
    end: Counts
    kept: Counts


def select(log: StreamRows, offset: Offset) -> list[Selection]:
    """The segments that a grant opens, by partition, with exact counts of the rows that it keeps."""
    return [_select_partition(log, offset, p) for p in sorted(offset.end)]


def fitted_plan(log: StreamIndex, offset: Offset) -> ShedPlan:
    """A grant's plan, fitted to its segments; see `SamplePlan.fitted`."""
    return offset.plan.fitted(grant_span(log, offset, p) for p in offset.end)


def grant_span(log: StreamIndex, offset: Offset, p: int) -> Span:
    """The segments of a grant in one partition."""
    first, end = max(offset.start.get(p, 0), offset.late.get(p, 0), log.start(p)), offset.end[p]
    headers = log.header_arrays(p, first, end, keys=False)
    ends = np.minimum(headers.end_position, end)
    return p, headers.first_position, ends - np.maximum(headers.first_position, first)


def _select_partition(log: StreamRows, offset: Offset, p: int) -> Selection:
    first = max(offset.start.get(p, 0), offset.late.get(p, 0), log.start(p))
    end = offset.end[p]
    if first >= end:
        return Selection(p, *(np.empty(0, np.int64) for _ in range(3)))
    headers = log.header_arrays(p, first, end, keys=offset.plan.needs == "keys")
    mask = offset.plan.opens(p, headers.first_position)
    firsts = np.maximum(headers.first_position[mask], first)
    ends = np.minimum(headers.end_position[mask], end)
    return Selection(p, firsts, ends, _count_kept(log, offset.plan, p, headers, firsts, ends))


def _count_kept(
    log: StreamRows, plan: ShedPlan, p: int, headers: HeaderArrays, firsts: Counts, ends: Counts
) -> Counts:
    if headers.key_counts is not None and (buckets := plan.kept_buckets(log.key_buckets)) is not None:
        # headers count rows by bucket; only a segment that the grant cuts is read
        kept = headers.key_counts[:, buckets].sum(axis=1)
        absent = headers.rows - headers.key_counts.sum(axis=1)
        counts: Counts = (kept + absent).astype(np.int64)
        cut = (firsts != headers.first_position) | (ends != headers.end_position)
        counts[cut] = _count_by_reading(log, plan, p, firsts[cut], ends[cut])
        return counts
    if plan.needs != "places":
        return _count_by_reading(log, plan, p, firsts, ends)
    if plan.keeps_whole_segments or firsts.size == 0:
        return ends - firsts
    return _count_by_position(log, plan, p, firsts, ends)


def _count_by_position(log: StreamIndex, plan: ShedPlan, p: int, firsts: Counts, ends: Counts) -> Counts:
    """Counts by positions alone, of many segments at once: segments are short, and grants may be long."""
    rows = ends - firsts
    if not rows.all():  # `reduceat` would count the next row for a segment without positions
        counts, some = rows.copy(), rows > 0
        if some.any():
            counts[some] = _count_by_position(log, plan, p, firsts[some], ends[some])
        return counts
    before = np.cumsum(rows) - rows
    edges = np.flatnonzero(np.diff(before // ROWS_AT_ONCE, prepend=-1)).tolist()
    counts = rows.copy()
    for low, high in zip(edges, [*edges[1:], rows.size], strict=True):
        mask = plan.keeps(log, p, _positions(firsts[low:high], ends[low:high]), ())
        if mask is not None:
            counts[low:high] = np.add.reduceat(mask, before[low:high] - before[low], dtype=np.int64)
    return counts


def _positions(firsts: Counts, ends: Counts) -> Counts:
    """All positions of some segments, which are in order."""
    first, end, rows = int(firsts[0]), int(ends[-1]), ends - firsts
    if end - first == int(rows.sum()):  # no segment in between is left out
        return np.arange(first, end, dtype=np.int64)
    return np.concatenate([np.arange(a, b) for a, b in zip(firsts.tolist(), ends.tolist(), strict=True)])


def _count_by_reading(log: StreamRows, plan: ShedPlan, p: int, firsts: Counts, ends: Counts) -> Counts:
    """Counts by reading the opened segments, because headers do not have the values."""
    if firsts.size == 0:
        return firsts
    found = [log.read(p, first, end) for first, end in zip(firsts.tolist(), ends.tolist(), strict=True)]
    positions = np.concatenate([each.positions for each in found])
    mask = plan.keeps(log, p, positions, [each.batch for each in found])
    if mask is None:
        return ends - firsts
    # segments follow each other: each has the dropped rows between its first position and its end
    dropped = positions[~mask]
    kept: Counts = ends - firsts - (dropped.searchsorted(ends) - dropped.searchsorted(firsts))
    return kept


def grant_books(log: StreamIndex, offset: Offset, selections: Sequence[Selection]) -> Books:
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


def divided(log: StreamRows, plan: ShedPlan, selections: Sequence[Selection], rows: int) -> list[Selection]:
    """The same rows in pieces of about so many: rows may cost milliseconds, and a segment thousands of them.

    Segments stay whole where only the values of rows tell which of them are kept.

    Args:
        log: The log.
        plan: Of the grant.
        selections: Result of `select`.
        rows: Kept rows of a piece.
    """
    if plan.needs != "places":
        return list(selections)
    found = []
    for s in selections:
        pieces = np.maximum(1, np.minimum(-(-s.kept // max(1, rows)), s.end - s.first))
        if int(pieces.max(initial=1)) == 1:
            found.append(s)
            continue
        at = np.repeat(np.arange(pieces.size), pieces)
        number = np.arange(at.size) - np.repeat(np.cumsum(pieces) - pieces, pieces)
        length = (s.end - s.first)[at]
        firsts = s.first[at] + number * length // pieces[at]
        ends = s.first[at] + (number + 1) * length // pieces[at]
        kept = (
            ends - firsts
            if plan.keeps_whole_segments
            else _count_by_position(log, plan, s.partition, firsts, ends)
        )
        found.append(Selection(s.partition, firsts, ends, kept))
    return found


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
    seq: int | None
    """Number of the first row among those that the reader has admitted; `None` if nobody can number them."""
    segment: int = 0
    """First position of the segment."""


def read_range(log: StreamRows, plan: ShedPlan, part: Range) -> Iterator[Piece]:
    """The kept rows of a range, segment by segment; segments that the plan skips are not read."""
    seq = part.seq
    headers = log.header_arrays(part.partition, part.first, part.end, keys=False)
    opened = np.flatnonzero(plan.opens(part.partition, headers.first_position))
    segments, ends = headers.first_position[opened], np.minimum(headers.end_position[opened], part.end)
    for segment, end in zip(segments.tolist(), ends.tolist(), strict=True):
        found = log.read(part.partition, max(segment, part.first), end)
        rows, positions = found.batch, found.positions
        mask = kept_mask(log, plan, part.partition, found)
        if mask is not None:
            rows, positions = rows.filter(pa.array(mask)), positions[mask]
        if rows.num_rows:
            yield Piece(rows, positions, seq, segment)
            seq += rows.num_rows


def kept_mask(
    log: StreamIndex, plan: ShedPlan, partition: int, rows: PositionedRows
) -> npt.NDArray[np.bool_] | None:
    """Which rows of an opened segment are kept; `None` for all of them."""
    return plan.keeps(log, partition, rows.positions, [rows.batch])


def rows_between(start: Positions, end: Positions) -> int:
    return sum(end[p] - start.get(p, 0) for p in end)
