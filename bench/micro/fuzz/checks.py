"""What must hold after every step, whatever happens."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.grants.journal import Entry, read_journal
from penstock.grants.offset import Books, Offset
from penstock.lanes.lane import decided, shed_of, shed_rows
from penstock.lanes.progress import LaneStore
from penstock.streams.embedded.log import EmbeddedLog
from penstock.streams.registry import ReaderRegistry
from penstock.vocabulary.status import QueryStatus

if TYPE_CHECKING:
    from .world import Running, World

Ids = npt.NDArray[np.int64]
NONE: Ids = np.empty(0, np.int64)


class BrokenError(AssertionError):
    """Something that must always hold does not."""


def require(holds: bool, text: str) -> None:
    if not holds:
        raise BrokenError(text)


class Truth:
    """Which row lies where in a stream: read once when it is new, before anything can remove it."""

    def __init__(self, log: EmbeddedLog) -> None:
        self.log = log
        self._ids: list[Ids] = [NONE for _ in range(log.partitions)]

    def update(self) -> None:
        for p in range(self.log.partitions):
            known, end = self._ids[p].size, self.log.end(p)
            if end > known:
                headers = self.log.header_arrays(p, known, end, keys=False)
                spans = zip(headers.first_position.tolist(), headers.end_position.tolist(), strict=True)
                new = [self.log.read(p, *span).batch.column("id").to_numpy() for span in spans]
                self._ids[p] = np.concatenate([self._ids[p], *new])
                require(self._ids[p].size == end, f"{self.log.name}: positions without rows")

    def between(self, p: int, first: int, end: int) -> Ids:
        return self._ids[p][first:end]


@dataclass(eq=False)
class Ledger:
    """What one reader has read, by grant.

    Attributes:
        first: Its initial offset.
        truth: Of its stream.
        lane: Whether what it sheds stays in the log.
        offsets: By grant, as it was planned last.
        kept: By grant, the rows that its tasks read.
        aside: Grants that were set aside.
        last: The rows of the batch that was planned last.
        backfilled: Rows of its lane that were run later.
        backfilled_to: The grant up to which they were.
    """

    first: Offset
    truth: Truth
    lane: bool
    offsets: dict[int, Offset] = field(default_factory=dict)
    kept: dict[int, Ids] = field(default_factory=dict)
    aside: dict[int, int] = field(default_factory=dict)
    last: Ids = field(default_factory=lambda: NONE)
    backfilled: Ids = field(default_factory=lambda: NONE)
    backfilled_to: int = 0

    @property
    def reader(self) -> str:
        return self.first.reader

    def before(self, offset: Offset) -> Offset:
        return self.offsets.get(offset.grant - 1, self.first)

    def last_has_poison(self, every: int) -> bool:
        return bool((self.last % every == every - 1).any())


def check_grant(ledger: Ledger, offset: Offset, rows: pa.Table | None) -> None:
    """A batch was planned and read: agrees with its books, its earlier runs, the journal and the lane."""
    grant, before = offset.grant, ledger.before(offset)
    ids = NONE if rows is None else rows.column("id").to_numpy()
    ledger.last = ids
    where = f"{ledger.reader}, grant {grant}"
    admitted, poison = _admitted(offset.books, before.books)
    if grant in ledger.offsets:
        require(ledger.offsets[grant] == offset, f"{where}: run again with another offset")
    require(dict(offset.start) == dict(before.end), f"{where}: begins at {offset.start}, not {before.end}")
    require(poison == ledger.aside.get(grant - 1, 0), f"{where}: poison {poison} of the grant before")
    journal = read_journal(ledger.truth.log.directory / "plans" / f"{ledger.reader}.jsonl")
    require(grant in journal.entries, f"{where}: not in the journal")
    entry = journal.entries[grant]
    require(entry.offset == offset, f"{where}: the journal has {entry.offset}")
    if entry.poison_rows is not None:
        require(ids.size == 0, f"{where}: set aside, and {ids.size} rows read")
        require(entry.poison_rows == admitted, f"{where}: {entry.poison_rows} set aside of {admitted}")
        ledger.aside[grant] = admitted
    else:
        require(ids.size == admitted, f"{where}: {ids.size} rows read, {admitted} admitted in the books")
        if grant in ledger.kept:
            require(np.array_equal(ledger.kept[grant], ids), f"{where}: run again with other rows")
        _check_columns(where, offset, rows, admitted)
    ledger.offsets[grant] = offset
    ledger.kept[grant] = ids
    _check_whole(where, ledger, entry, ids)


def _admitted(books: Books, before: Books) -> tuple[int, int]:
    """Rows that a grant admits, and rows of the one before that were set aside, from two books."""
    poison = books.poison - before.poison
    return books.admitted - before.admitted + poison, poison


def _check_columns(where: str, offset: Offset, rows: pa.Table | None, admitted: int) -> None:
    if rows is None:
        return
    first = offset.books.admitted - admitted
    numbers, dense = np.sort(rows.column("_seq").to_numpy()), np.arange(first, first + admitted)
    require(np.array_equal(numbers, dense), f"{where}: _seq is not dense from {first} on")


def _check_whole(where: str, ledger: Ledger, entry: Entry, kept: Ids) -> None:
    """Kept rows and those of the lane are all rows of the grant, each once."""
    log, offset = ledger.truth.log, entry.offset
    dropped = _ids(log, entry)
    parts = [
        ledger.truth.between(p, max(offset.start.get(p, 0), log.start(p)), end)
        for p, end in offset.end.items()
    ]
    there = np.sort(np.concatenate([NONE, *parts]))
    both = np.sort(np.concatenate([kept, dropped]))
    require(
        np.array_equal(both, there),
        f"{where}: kept {kept.size} and dropped {dropped.size} of {there.size} rows; "
        f"{np.setdiff1d(there, both).size} in neither, {both.size - np.unique(both).size} in both",
    )


def _ids(log: EmbeddedLog, entry: Entry) -> Ids:
    return np.concatenate([NONE, *(p.rows.column("id").to_numpy() for p in shed_rows(log, entry))])


# -- the whole world ------------------------------------------------------------------------------


def check_all(world: World) -> None:
    """Books, checkpoints and what is left in the log, of every query."""
    require(not world.errors, f"errors were logged: {world.errors[:1]}")
    status = None if world.cluster.silent else world.cluster.status()
    for name, running in world.running.items():
        error = running.query.error
        lost = error is None or type(error).__name__ == "QueryLostError"
        require(lost, f"{name}: ended with {error!r}")
        for ledger in running.ledgers.values():
            _check_reader(running, ledger)
        if status is not None:
            found = status.classes[running.case.cls].queries.get(running.query.key)
            if found is not None:
                _check_status(world, running, found)


def _check_reader(running: Running, ledger: Ledger) -> None:
    offset, log = running.query.offsets[ledger.reader], ledger.truth.log
    decided_rows = sum(end - ledger.first.end[p] for p, end in offset.end.items())
    require(
        offset.books.offered == decided_rows,
        f"{ledger.reader}: {offset.books} for {decided_rows} rows up to {offset.end}",
    )
    require(min(offset.books.to_json()) >= 0, f"{ledger.reader}: {offset.books}")
    unfinished = running.query.unfinished.get(ledger.reader)
    needed = offset.end if unfinished is None else unfinished.start
    for p, position in needed.items():
        require(
            log.start(p) <= position,
            f"{ledger.reader}: trimmed to {log.start(p)} in partition {p}, and {position} is needed",
        )
    require(offset.books.expired == 0, f"{ledger.reader}: {offset.books.expired} rows expired unread")


def _check_status(world: World, running: Running, found: QueryStatus) -> None:
    name = running.case.name
    books = ("offered", "admitted", "shed", "waiting")
    for key, each in [(name, found), *found.readers.items()]:
        require(
            each.offered == each.admitted + each.shed + each.waiting,
            f"{key}: offered = admitted + shed + waiting; got: {[getattr(each, k) for k in books]}",
        )
    for rows in books:
        total = sum(getattr(each, rows) for each in found.readers.values())
        require(getattr(found, rows) == total, f"{name}: {rows} {getattr(found, rows)}, its readers {total}")
    for ledger in running.ledgers.values():
        reader = world.cluster.engine.members.readers.get(ledger.reader)
        if reader is None:
            continue
        each, log = found.readers[ledger.reader], ledger.truth.log
        there = sum(log.end(p) - ledger.first.end[p] for p in range(log.partitions))
        require(each.offered == there, f"{ledger.reader}: offered {each.offered}, the log has {there}")
        known = ledger.offsets.get(reader.counted.grant, ledger.first)
        if reader.counted.grant in (0, known.grant):
            shown = Books(*(getattr(each, k) for k in ("admitted", "sampled", "late", "expired", "poison")))
            require(
                shown == known.books, f"{ledger.reader}: the status has {shown}, its offset {known.books}"
            )
        latest = running.query.offsets[ledger.reader].grant
        require(
            latest - 1 <= reader.counted.grant <= latest,
            f"{ledger.reader}: the control plane is at grant {reader.counted.grant}, Spark at {latest}",
        )


def check_lanes(running: Running) -> None:
    """The journal against everything that was read: every row of every grant is somewhere, once."""
    for ledger in running.ledgers.values():
        if not ledger.lane:
            continue
        store = LaneStore(ledger.truth.log.directory, ledger.reader)
        journal = store.journal()
        registered = store.registered()
        entries = decided(journal, {} if registered is None else registered.positions)
        undone = [entry for entry in entries if entry.offset.grant > ledger.backfilled_to]
        in_lane = [_ids(ledger.truth.log, entry) for entry in undone]
        for entry, ids in zip(undone, in_lane, strict=True):
            shed = shed_of(ledger.truth.log, journal, entry)
            require(
                ids.size == shed.rows,
                f"{ledger.reader}, grant {entry.offset.grant}: {ids.size} rows in the lane, {shed} shed",
            )
        last = max((entry.offset.grant for entry in entries), default=0)
        kept = [ids for grant, ids in ledger.kept.items() if grant <= last]
        every = np.sort(np.concatenate([NONE, *kept, ledger.backfilled, *in_lane]))
        ends = entries[-1].offset.end if entries else ledger.first.end
        parts = [ledger.truth.between(p, ledger.first.end[p], end) for p, end in ends.items()]
        there = np.sort(np.concatenate([NONE, *parts]))
        require(
            np.array_equal(every, there),
            f"{ledger.reader}: kept + backfilled + lane are {every.size} rows, {np.unique(every).size} of "
            f"them different; its grants have {there.size}",
        )
        _check_pins(ledger, store, undone)


def _check_pins(ledger: Ledger, store: LaneStore, undone: list[Entry]) -> None:
    reader = next((r for r in ReaderRegistry(ledger.truth.log).readers() if r.name == ledger.reader), None)
    if reader is None or not undone:
        return
    shed = [entry.offset for entry in undone if _ids(ledger.truth.log, entry).size]
    for p in undone[0].offset.end:
        first = [offset.start.get(p, 0) for offset in shed if offset.start.get(p, 0) < offset.end[p]]
        if first:
            require(reader.needs_from(p) <= first[0], f"{ledger.reader}: {reader.pinned} pins not {first[0]}")
