"""The planning side of a governed reader: it asks, journals each answer, and divides a grant among tasks."""

from __future__ import annotations

import logging
import time
import uuid
from dataclasses import replace
from typing import Any

from pyspark.sql.datasource import InputPartition

from penstock.grants.grant import Grant
from penstock.grants.journal import JournalWriter
from penstock.grants.offset import Books, Offset, Positions, limited
from penstock.grants.plans import KEEP_ALL
from penstock.grants.sampling_units import drawn_by
from penstock.grants.selection import (
    Selection,
    divided,
    fitted_plan,
    grant_books,
    select,
    split_among_tasks,
)
from penstock.grants.sic import row_sic
from penstock.lanes.progress import LaneStore
from penstock.spark.source.link import Beside, ControlLink
from penstock.spark.source.options import SourceOptions
from penstock.spark.source.tasks import ReadTask
from penstock.streams.marks import check_marks, marks_at
from penstock.streams.opening import open_stream
from penstock.streams.protocol import DRAWN, StreamLog
from penstock.streams.registry import ReaderRegistry
from penstock.streams.starting import first_positions
from penstock.vocabulary.errors import InvalidInputError, PenstockError

_log = logging.getLogger(__name__)

LEAST_TASK_ROWS = 20_000
"""Least rows of a task where it is not known what rows cost: the start of a task costs some milliseconds."""
PIECES_A_TASK = 8
"""Rows are divided among tasks in pieces. With one piece for each task, some had two and some had none: a
batch took twice as long as its work on its cores. A task reads pieces that follow each other as one."""
PROGRESS_EVERY_S = 1.0


class Planner:
    """The planning side of a reader: the log's headers, the journal, and the link to the control plane."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        self.log: StreamLog = open_stream(options.stream)
        self._link = ControlLink(options) if options.governed else None
        self._beside = Beside(options) if options.beside else None
        self._journal: JournalWriter | None = None
        self._until: dict[int, int] | None = None
        self._registered_s: float | None = None
        """When this process last wrote the query's progress to the reader registry; `None` if never."""
        self._shown: Offset | None = None
        self._selected: tuple[Offset, list[int], list[Selection]] | None = None
        """The grant that was proposed last, the log's starts at that time, and the segments it opens."""
        self._attempt: tuple[int, int] | None = None
        """The grant that Spark planned last, and how often Spark has planned it."""

    def initial(self) -> Offset:
        positions = first_positions(self.log, self.options.starting)
        reader = f"{self.options.query or 'reader'}-{uuid.uuid4().hex[:12]}"
        return Offset.initial(reader, positions, self.log.uid, marks_at(self.log, positions))

    def _check_stream(self, offset: Offset) -> None:
        """Refuses an offset whose positions belong to another stream, or to rows that the stream has lost.

        With such positions, new rows would be skipped, or read in place of other rows.
        """
        if offset.stream and self.log.uid and offset.stream != self.log.uid:
            raise InvalidInputError(
                "a checkpoint goes on with the stream it was begun on",
                f"another stream at {self.options.stream}, created since or named instead",
                "use a new checkpointLocation, or restore the stream",
            )
        check_marks(self.log, offset.end, offset.marks)

    def stop_at_present_end(self) -> None:
        self._until = self._ends()

    def _ends(self) -> dict[int, int]:
        return {p: self.log.end(p) for p in range(self.log.partitions)}

    def report(self) -> dict[str, Any] | None:
        """The log's true end, from which Spark's own page shows the backlog."""
        if self._shown is None:
            return None
        return replace(self._shown, end=self._ends(), marks={}).to_json()

    def next(self, start: Offset) -> Offset | None:
        """The offset after the next grant; `None` if there is no grant now."""
        self._check_stream(start)
        self._shown = start
        self._journal_of(start)  # before the control plane hears of the reader: another query may own it
        self.progress(start)
        if self._until is not None:
            return self._next_available_now(start)
        if self._link is not None:
            given = self._link.ask(start, self._ends())
        else:
            given = self._take_all(start) if self._beside is None or self._beside.granted() else None
        return None if given is None else self._propose(start, given)

    def _next_available_now(self, start: Offset) -> Offset | None:
        """The next offset up to the log's end at the start of the query.

        Waits for the query's turn, because Spark takes "nothing new" as the end of the query.
        """
        assert self._until is not None
        link = self._link
        while any(position > start.end.get(p, 0) for p, position in self._until.items()):
            given = self._take_all(start) if link is None else link.ask(start, self._until, take_all=True)
            if given is not None:
                return self._propose(start, replace(given, end=_at_most(given.end, start.end, self._until)))
            if link is not None and not link.leads:
                return None  # the leading reader has a batch without this one, or waits for one
        if link is None:
            return None
        link.finish(start)
        if start.grant == 0 or start.tick:
            return None
        # replaces Spark's own empty last batch, which is off while governed: it closes the last windows
        return self._propose(start, Grant(start.end, {}, KEEP_ALL))

    def _take_all(self, start: Offset) -> Grant | None:
        """The grant that an ungoverned source takes: all waiting rows, or its row limit."""
        ends = self._ends() if self._until is None else self._until
        rows = self.options.max_rows or None
        if self.options.total_rows:
            left = max(0, self.options.total_rows - start.books.offered)
            rows = left if rows is None else min(rows, left)
        given = limited(start.end, ends, rows)
        return None if given == dict(start.end) else Grant(given, {}, KEEP_ALL)

    def _propose(self, start: Offset, given: Grant) -> Offset:
        draft = start.advanced(given.end, given.late, given.plan, Books(), given.ungoverned)
        sic = row_sic(self.log, draft.end, round(self.options.stw_s * 1e6), given.sources)
        marks = marks_at(self.log, draft.end)
        draft = replace(draft, plan=fitted_plan(self.log, draft), sic=sic, marks=marks)
        selections = select(self.log, draft)
        books = grant_books(self.log, draft, selections)
        journal = self._journal_of(start)
        poison = journal.poison_rows(start.grant)
        corrected = start.books.plus(_not_processed(journal, start.grant))
        offset = replace(draft, books=corrected.plus(books)).follows(start, poison > 0, books.admitted)
        self._selected = offset, self._starts(), selections
        journal.proposed(offset)
        if self.options.shed_lane and books.shed:
            self._pin(start.reader, start.end)
        self._cut(journal, start.reader)
        return offset

    def _cut(self, journal: JournalWriter, reader: str) -> None:
        """Cuts a long journal; one that cannot be cut only grows, so errors are only logged."""
        try:
            if journal.is_long:
                journal.cut(LaneStore(self.log.ref, reader).needed())
        except (OSError, ValueError, KeyError, PenstockError) as error:
            _log.warning("query %s: plan journal %s is not cut: %s", self.options.query, journal.path, error)

    def tasks(self, offset: Offset, start: Offset | None = None) -> list[InputPartition]:
        """The read tasks of a batch that Spark has logged.

        Args:
            offset: Offset at which the batch ends.
            start: The offset before it, if known.
        """
        self._check_stream(offset)
        journal = self._journal_of(offset)
        if self._registered_s is None:
            self._register(offset.reader, offset.start)  # from now on, no more rows of the batch are trimmed
        selections = self._selections(offset)
        admitted = sum(int(s.kept.sum()) for s in selections)
        self._count_lost(journal, offset, start, admitted)
        if self._attempt is None or self._attempt[0] != offset.grant:
            # Spark plans a batch once for each branch that reads it: only a new process is a new attempt
            self._attempt = offset.grant, journal.planned(offset)
        set_aside = 0 < self.options.poison_after < self._attempt[1]
        tasks = None if self._link is None else self._link.planned(offset, admitted, set_aside)
        if set_aside:
            self._warn_set_aside(offset, admitted)
            journal.set_aside(offset, admitted)
            if self.options.shed_lane:
                self._pin(offset.reader, offset.start)
            return []
        before = offset.books.admitted - admitted
        tasks = self.options.tasks if self.options.divided else tasks
        if tasks is None:
            parts = split_among_tasks(selections, before, self.options.tasks, LEAST_TASK_ROWS)
        else:
            pieces = divided(self.log, offset.plan, selections, -(-admitted // (PIECES_A_TASK * tasks)))
            parts = split_among_tasks(pieces, before, tasks, 1)
        keep = offset.plan.chance(self.log.key_buckets)
        weight = 1.0 / keep if keep else None
        drawn = drawn_by(self.log, offset) if DRAWN in self.options.metadata else None
        kept = admitted / max(1, offset.represented_rows)
        place, metadata = self.options.read_from, self.options.metadata
        return [
            ReadTask(place, offset.plan, part, metadata, weight, offset.sic, kept, drawn) for part in parts
        ]

    def _count_lost(
        self, journal: JournalWriter, offset: Offset, start: Offset | None, admitted: int
    ) -> None:
        """Counts rows that a grant admits but that were trimmed since: they count as expired."""
        firsts = {p: max(offset.start.get(p, 0), offset.late.get(p, 0)) for p in offset.end}
        trimmed = {
            p: (first, min(self.log.start(p), offset.end[p]))
            for p, first in firsts.items()
            if first < offset.end[p] and first < self.log.start(p)
        }
        if not trimmed or start is None or start.grant != offset.grant - 1:
            return
        before = start.books.plus(_not_processed(journal, start.grant))
        lost = offset.books.admitted - before.admitted - admitted
        if lost > 0:
            journal.lost(offset, lost)
            _log.warning(
                "query %s: stream %s: %d admitted rows were trimmed before their batch ran, "
                "positions by partition %s; they count as expired from the next grant on",
                *(self.options.query, self.log.name, lost),
                ", ".join(f"{p}: {first} to {end}" for p, (first, end) in trimmed.items()),
            )

    def _warn_set_aside(self, offset: Offset, rows: int) -> None:
        where = ", ".join(f"{p}: {offset.start.get(p, 0)} to {end}" for p, end in offset.end.items())
        _log.warning(
            "query %s: a batch of %d rows failed %d times and is set aside; stream %s, positions by "
            "partition %s; they count as poison%s",
            self.options.query,
            rows,
            self.options.poison_after,
            self.log.name,
            where,
            ", and penstock backfill can run them later" if self.options.shed_lane else "",
        )

    def _selections(self, offset: Offset) -> list[Selection]:
        """The segments that a grant opens.

        They are computed again for an older grant, or if rows were trimmed since the proposal.
        """
        if self._selected is not None and self._selected[:2] == (offset, self._starts()):
            return self._selected[2]
        return select(self.log, offset)

    def _starts(self) -> list[int]:
        return [self.log.start(p) for p in range(self.log.partitions)]

    def progress(self, offset: Offset) -> None:
        """Writes the query's progress to the reader registry, at most once a second."""
        self._register(offset.reader, offset.end)

    def _register(self, reader: str, positions: Positions) -> None:
        """Registers progress. Only the first time in a process may it go back: to a restored checkpoint."""
        if self._registered_s is None or time.monotonic() - self._registered_s >= PROGRESS_EVERY_S:
            ReaderRegistry(self.log).advance(reader, positions, back=self._registered_s is None)
            self._registered_s = time.monotonic()

    def _pin(self, reader: str, first: Positions) -> None:
        """Keeps rows from these positions on, because the shed lane needs some of them."""
        ReaderRegistry(self.log).pin(reader, first)

    def _journal_of(self, offset: Offset) -> JournalWriter:
        if self._journal is None:
            self._journal = JournalWriter(self.log.state.folder("plans"), offset.reader)
        return self._journal

    def close(self) -> None:
        if self._link is not None:
            self._link.close()
        if self._beside is not None:
            self._beside.close()
        if self._journal is not None:
            self._journal.close()


def _not_processed(journal: JournalWriter, grant: int) -> Books:
    """Correction of the books for a recent grant whose batch did not process all rows that it admits."""
    poison, lost = journal.poison_rows(grant), journal.lost_rows(grant)
    return Books(admitted=-poison - lost, expired=lost, poison=poison)


def _at_most(ends: Positions, start: Positions, until: Positions) -> dict[int, int]:
    """Ends limited to `until`, and not before the start."""
    return {p: max(start.get(p, 0), min(end, until.get(p, end))) for p, end in ends.items()}
