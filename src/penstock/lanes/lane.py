"""The shed lane: the rows that a reader's grants dropped, and that can still be read.

Nothing is copied. The plan journal says for every grant which rows were kept, so the dropped rows are known.
A pin in the reader registry keeps them in the log. Rows that expired unread are not in the lane.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.grants.journal import Entry, Journal
from penstock.grants.offset import Offset, Positions
from penstock.grants.selection import (
    Piece,
    Range,
    grant_books,
    kept_mask,
    rows_between,
    select,
)
from penstock.streams.marks import check_marks
from penstock.streams.protocol import PositionedRows, StreamIndex, StreamRows
from penstock.vocabulary.errors import InvalidInputError

NO_SEQ = -1
"""Sequence number of dropped rows, which have none."""


@dataclass(frozen=True, slots=True)
class Shed:
    """Number of rows that one grant dropped, by reason."""

    late: int = 0
    sampled: int = 0
    poison: int = 0

    @property
    def rows(self) -> int:
        return self.late + self.sampled + self.poison


def shed_of(log: StreamRows, journal: Journal, entry: Entry) -> Shed:
    """How many rows a grant dropped, by the books: known even if the rows have been trimmed."""
    offset = entry.offset
    earlier = journal.books_before(offset.grant)
    if earlier is not None:
        late, sampled = offset.books.late - earlier.late, offset.books.sampled - earlier.sampled
    else:  # the journal begins later than the reader
        books = grant_books(log, offset, select(log, offset))
        late, sampled = books.late, books.sampled
    return Shed(late, sampled, entry.poison_rows or 0)


def shed_rows(log: StreamRows, entry: Entry) -> Iterator[Piece]:
    """The dropped rows of a grant that are still in the log; segments that it kept whole are not read.

    Raises:
        InvalidInputError: The log has lost rows of the grant, and other rows may have their positions now.
    """
    for p, end in sorted(entry.offset.end.items()):
        yield from shed_range(log, entry, Range(p, entry.offset.start.get(p, 0), end, NO_SEQ))


def shed_range(log: StreamRows, entry: Entry, part: Range) -> Iterator[Piece]:
    """The dropped rows of a grant in a range of one partition; see `shed_rows`."""
    p, offset = part.partition, entry.offset
    if part.first >= part.end:
        return  # rows that the log lost before this place are not the grant's
    check_rows(log, entry, (p,))
    for first, end, is_open in _segments(log, offset, part):
        if is_open and _keeps_whole(entry, p, first):
            continue
        found = log.read(p, first, end)
        dropped = _dropped(log, entry, p, is_open, found)
        rows, positions = found.batch, found.positions
        if not dropped.all():
            rows, positions = rows.filter(pa.array(dropped)), positions[dropped]
        if rows.num_rows:
            yield Piece(rows, positions, None)


def check_rows(log: StreamIndex, entry: Entry, partitions: Collection[int] | None = None) -> None:
    """Refuses a grant of whose rows the log has lost some. Rows that were trimmed are not lost.

    Args:
        log: The stream.
        entry: The grant.
        partitions: The partitions to look at; by default those in which the grant has rows.
    """
    offset = entry.offset
    if partitions is None:
        partitions = [p for p, end in offset.end.items() if offset.start.get(p, 0) < end]
    check_marks(
        log,
        {p: offset.end[p] for p in partitions},
        offset.marks,
        f"grant {offset.grant} of {offset.reader} ends",
        "backfill only rows that arrived earlier (--until); the lane holds its rows in the log until "
        f"penstock log forget {log.ref} {offset.reader}",
    )


def with_shed_rows(log: StreamRows, journal: Journal, entries: Sequence[Entry]) -> list[Entry]:
    """The grants that dropped rows, to be read; refuses all if the log has lost rows of one of them."""
    found = [entry for entry in entries if shed_of(log, journal, entry).rows]
    for entry in found:
        check_rows(log, entry)
    return found


def _segments(log: StreamIndex, offset: Offset, part: Range) -> Iterator[tuple[int, int, bool]]:
    """For each segment, cut to a range: its first position, its end, and whether the plan opens it."""
    p, start = part.partition, max(part.first, log.start(part.partition))
    if start >= part.end:
        return
    headers = log.header_arrays(p, start, part.end, keys=False)
    firsts = np.maximum(headers.first_position, start)
    ends = np.minimum(headers.end_position, part.end)
    is_open = offset.plan.opens(p, headers.first_position)
    yield from zip(firsts.tolist(), ends.tolist(), is_open.tolist(), strict=True)


def _keeps_whole(entry: Entry, p: int, first: int) -> bool:
    return (
        entry.offset.plan.keeps_whole_segments
        and entry.poison_rows is None
        and first >= entry.offset.late.get(p, 0)
    )


def _dropped(
    log: StreamIndex, entry: Entry, partition: int, is_open: bool, found: PositionedRows
) -> npt.NDArray[np.bool_]:
    if entry.poison_rows is not None or not is_open:
        return np.ones(found.positions.size, np.bool_)
    kept = kept_mask(log, entry.offset.plan, partition, found)
    late: npt.NDArray[np.bool_] = found.positions < entry.offset.late.get(partition, 0)
    return late if kept is None else late | ~kept


def decided(journal: Journal, positions: Positions, ended: bool = False) -> list[Entry]:
    """The grants whose batch has ended, in order. A running batch may still fail and be set aside.

    Args:
        journal: The reader's journal.
        positions: The reader's progress in the registry.
        ended: The query will not run again, so its last grant has ended too.
    """
    logged = journal.logged()
    if ended or not logged:
        return logged
    last = logged[-1].offset
    followed = last.grant < max(journal.entries)
    passed = all(positions.get(p, 0) >= end for p, end in last.end.items())
    return logged if followed or passed else logged[:-1]


@dataclass(frozen=True, slots=True)
class Lane:
    """The content of a shed lane.

    Attributes:
        grants: Grants that dropped rows.
        late: Rows dropped because they would have completed after the target.
        sampled: Rows dropped by a plan.
        poison: Rows of grants that were set aside.
        gone: How many of all these rows have been trimmed and cannot be read.
        lost: Dropped rows of grants of whose rows the log has lost some; a backfill refuses these grants.
        first_arrival_s: First arrival in the grants' segments; `None` if no row can be read.
        last_arrival_s: Last arrival in the grants' segments; `None` if no row can be read.
    """

    grants: tuple[int, ...] = ()
    late: int = 0
    sampled: int = 0
    poison: int = 0
    gone: int = 0
    lost: int = 0
    first_arrival_s: float | None = None
    last_arrival_s: float | None = None

    @property
    def rows(self) -> int:
        return self.late + self.sampled + self.poison


def lane(log: StreamRows, journal: Journal, entries: Sequence[Entry]) -> Lane:
    """The lane of the given grants of a reader."""
    found = {entry.offset.grant: (entry, shed_of(log, journal, entry)) for entry in entries}
    found = {grant: (entry, shed) for grant, (entry, shed) in found.items() if shed.rows}
    there = [(entry, shed) for entry, shed in found.values() if not has_lost_rows(log, entry)]
    spans = [_arrivals(log, entry.offset) for entry, _ in there]
    return Lane(
        grants=tuple(found),
        late=sum(shed.late for _, shed in found.values()),
        sampled=sum(shed.sampled for _, shed in found.values()),
        poison=sum(shed.poison for _, shed in found.values()),
        gone=sum(shed.rows - readable_rows(log, entry, shed) for entry, shed in there),
        lost=sum(shed.rows for _, shed in found.values()) - sum(shed.rows for _, shed in there),
        first_arrival_s=min((low for low, _ in filter(None, spans)), default=None),
        last_arrival_s=max((high for _, high in filter(None, spans)), default=None),
    )


def has_lost_rows(log: StreamIndex, entry: Entry) -> bool:
    """Whether a backfill of the grant would be refused; a list of lanes says so, and has the other grants."""
    try:
        check_rows(log, entry)
    except InvalidInputError:
        return True
    return False


def readable_rows(log: StreamRows, entry: Entry, shed: Shed) -> int:
    """How many of a grant's dropped rows are still in the log; rows are read only if some were trimmed."""
    left = {p: max(entry.offset.start.get(p, 0), log.start(p)) for p in entry.offset.end}
    if all(position == entry.offset.start.get(p, 0) for p, position in left.items()):
        return shed.rows
    if all(position >= entry.offset.end[p] for p, position in left.items()):
        return 0
    return sum(piece.rows.num_rows for piece in shed_rows(log, entry))


def _arrivals(log: StreamIndex, offset: Offset) -> tuple[float, float] | None:
    spans = []
    for p, end in offset.end.items():
        first = max(offset.start.get(p, 0), log.start(p))
        headers = log.header_arrays(p, first, end, keys=False) if first < end else ()
        if len(headers):
            spans.append((headers.arrival_min_us[0] / 1e6, headers.arrival_max_us[-1] / 1e6))  # type: ignore
    return (min(low for low, _ in spans), max(high for _, high in spans)) if spans else None


def pins_for(log: StreamRows, journal: Journal, done: int) -> dict[int, int]:
    """By partition, the first row that must stay for the lane once all grants up to `done` are backfilled.

    Proposals that Spark has not logged yet count: once they are logged, their rows must still be there.
    """
    pins: dict[int, int] = {}
    for number, entry in sorted(journal.entries.items()):
        if number > done and shed_of(log, journal, entry).rows:
            for p, end in entry.offset.end.items():
                if entry.offset.start.get(p, 0) < end:
                    pins.setdefault(p, entry.offset.start.get(p, 0))
    return pins


def offered_rows(entry: Entry) -> int:
    """Number of rows that a grant decided about."""
    return rows_between(entry.offset.start, entry.offset.end)


def positions_within(start: Positions, end: Positions, log: StreamIndex) -> Mapping[int, tuple[int, int]]:
    """By partition, first position and end of the rows between two places; trimmed rows are left out."""
    return {p: (max(start.get(p, 0), log.start(p)), position) for p, position in end.items()}
