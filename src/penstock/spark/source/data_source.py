"""The governed source: a Python data source whose every offset is a grant of the control plane.

`latestOffset`, `partitions` and `commit` run in a planner process on the driver's host, one for each source;
`read` runs on the executors. The source decides nothing: it asks, journals the answer, and carries it out.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from penstock.grants.grant import Grant
from penstock.grants.journal import JournalWriter
from penstock.grants.offset import Books, Offset, Positions, limited
from penstock.grants.plans import KEEP_ALL, ShedPlan
from penstock.grants.sampling_units import Drawn, drawn_by, drawn_column
from penstock.grants.selection import (
    Piece,
    Range,
    Selection,
    evened,
    grant_books,
    read_range,
    select,
    split_among_tasks,
)
from penstock.grants.sic import row_sic
from penstock.lanes.progress import LaneStore
from penstock.policies.quality.sic import STW_S
from penstock.spark.source.link import Beside, ControlLink
from penstock.spark.source.metadata import coalesced, spark_schema, with_metadata
from penstock.streams.descriptor import read_about
from penstock.streams.hashing import key_buckets
from penstock.streams.marks import check_marks, marks_at
from penstock.streams.opening import open_stream
from penstock.streams.protocol import DRAWN, StreamLog
from penstock.streams.registry import ReaderRegistry
from penstock.vocabulary.errors import InvalidInputError, PenstockError

_log = logging.getLogger(__name__)

FORMAT_NAME = "penstock"
PLANNER = "pyspark.sql.streaming.python_streaming_source_runner"
LEAST_TASK_ROWS = 20_000
"""Least rows of a task: starting a Python worker and a task costs a few milliseconds."""
PROGRESS_EVERY_S = 1.0
ORPHANED_S = 1.0
"""How often a planner checks whether its driver lives."""


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Options that `flow.read_stream` gives to a source, as one string in Spark's options.

    Attributes:
        stream: The stream's directory, for the planner.
        read_from: Where executors read the stream: the same directory, or a Flight address.
        query: The query's name; readers of one query share their micro-batches.
        cls: The query's class.
        address: Address of the control plane; empty for an ungoverned source.
        metadata: Metadata columns, in order.
        tasks: Most tasks that read one batch.
        max_rows: Most rows of an ungoverned batch; 0 for all that wait.
        total_rows: Rows after which an ungoverned source ends; 0 for never.
        fail_open_after_s: Silence of the control plane after which the source goes on by itself.
        poison_after: Failures after which a grant is set aside; 0 for never.
        shed_lane: Whether shed rows stay in the log.
        starting: "earliest" or "latest".
        slot: Which of its query's readers this source is; empty for a reader that is a query of its own.
        token: Token of the `read_stream` call, by which the driver names its queries to the control plane.
        driver: Id of the flow, that is, of the Spark application.
        stw_s: The source time window, from which rows have their SIC.
        beside: For an ungoverned stream of changes: the query in whose micro-batches it is read; else empty.
    """

    stream: str
    read_from: str
    query: str = ""
    cls: str = ""
    address: str = ""
    metadata: tuple[str, ...] = ()
    tasks: int = 1
    max_rows: int = 0
    total_rows: int = 0
    fail_open_after_s: float = 5.0
    poison_after: int = 0
    shed_lane: bool = False
    starting: str = "earliest"
    slot: str = ""
    token: str = ""
    driver: str = ""
    stw_s: float = STW_S
    beside: str = ""

    @property
    def governed(self) -> bool:
        """Whether the source asks for grants."""
        return bool(self.address) and not self.beside

    def to_option(self) -> str:
        return json.dumps({name: getattr(self, name) for name in self.__slots__})

    @classmethod
    def from_option(cls, text: str) -> SourceOptions:
        values = json.loads(text)
        return cls(**{**values, "metadata": tuple(values["metadata"])})


class PenstockSource(DataSource):
    """`spark.readStream.format("penstock")`; made by `flow.read_stream`."""

    @classmethod
    def name(cls) -> str:
        return FORMAT_NAME

    def _options(self) -> SourceOptions:
        return SourceOptions.from_option(self.options["penstock"])

    def schema(self) -> StructType:
        options = self._options()
        return spark_schema(open_stream(options.stream).user_schema, options.metadata)

    def streamReader(self, schema: StructType) -> PenstockStreamReader:  # noqa: N802 - Spark's name
        if _is_planner():
            sys.excepthook = _quiet_end  # this process belongs to this source alone
            threading.Thread(target=_end_with_driver, args=(os.getppid(),), daemon=True).start()
        return PenstockStreamReader(self._options())


@dataclass
class ReadTask(InputPartition):
    """The part of a grant that one task reads."""

    stream: str
    plan: ShedPlan
    ranges: list[Range]
    metadata: tuple[str, ...]
    weight: float | None
    sic: float
    kept: float = 1.0
    drawn: Drawn | None = None


class PenstockStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Asks for a grant before every micro-batch, and reads the rows of the grant."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        self._planner: _Planner | None = None

    def _plan(self) -> _Planner:
        if self._planner is None:
            self._planner = _Planner(self.options)
        return self._planner

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return self._plan().initial().to_json()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._plan().stop_at_present_end()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(sys.maxsize)  # differs from the limit of Trigger.Once, ReadAllAvailable

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        if self.options.address and isinstance(limit, ReadAllAvailable):
            raise InvalidInputError(  # Trigger.Once asks once: out of turn, it would end with nothing done
                "a governed query has the default trigger", "Trigger.Once", "use .trigger(availableNow=True)"
            )
        offset = self._plan().next(Offset.from_json(start))
        return start if offset is None else offset.to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        return self._plan().report()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        # the end alone says what is read; the start may be missing, or belong to an earlier source
        before = Offset.from_json(start) if FORMAT_NAME in start else None
        return self._plan().tasks(Offset.from_json(end), before)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, ReadTask)
        return read_task(partition)

    def commit(self, end: dict[str, Any]) -> None:
        self._plan().progress(Offset.from_json(end))

    def stop(self) -> None:
        if self._planner is not None:
            self._planner.close()


def read_task(task: ReadTask) -> Iterator[pa.RecordBatch]:
    """The rows of one task, in batches of a useful size."""
    log = open_stream(task.stream)
    return coalesced(
        with_metadata(
            piece, task.metadata, task.weight, task.sic, task.kept, _drawing(task, log, part.partition)
        )
        for part in task.ranges
        for piece in _pieces(log, task.plan, part)
    )


def _drawing(task: ReadTask, log: StreamLog, partition: int) -> Callable[[Piece], pa.Array] | None:
    """Makes the column that says how rows were drawn; `None` if the query does not need it."""
    drawn = task.drawn
    if drawn is None:
        return None

    def column(piece: Piece) -> pa.Array:
        by_key = drawn.buckets is not None and log.key_column is not None
        buckets = key_buckets(piece.rows.column(log.key_column), log.key_buckets) if by_key else None
        return drawn_column(drawn, partition, piece, buckets)

    return column


def _pieces(log: StreamLog, plan: ShedPlan, part: Range) -> Iterator[Piece]:
    """The kept rows of a range; an error names the stream, the partition and the position."""
    at = part.first
    try:
        for piece in read_range(log, plan, part):
            yield piece
            at = int(piece.positions[-1]) + 1
    except PenstockError as error:
        where = f"stream {log.name}, partition {part.partition}, from position {at}"
        raise PenstockError(f"{where}: {error}") from error


def _is_planner() -> bool:
    """Whether Spark has started this process to plan one source."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec is not None and spec.name == PLANNER


def _end_with_driver(driver: int) -> None:
    """Ends a planner whose driver was killed: it would still own the journal that the next planner needs."""
    while os.getppid() == driver:
        time.sleep(ORPHANED_S)
    os._exit(1)


def _quiet_end(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Prints no traceback when a stopped query resets the socket of its planner; an `excepthook`."""
    if not issubclass(kind, BrokenPipeError | ConnectionResetError):
        sys.__excepthook__(kind, error, trace)


class _Planner:
    """The planning side of a reader: the log's headers, the journal, and the link to the control plane."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        self.log: StreamLog = open_stream(options.stream)
        self._stream = str(read_about(Path(options.stream)).get("id", ""))
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
        at_end = self.options.starting == "latest"
        positions = {p: self.log.end(p) if at_end else self.log.start(p) for p in range(self.log.partitions)}
        reader = f"{self.options.query or 'reader'}-{uuid.uuid4().hex[:12]}"
        return Offset.initial(reader, positions, self._stream, marks_at(self.log, positions))

    def _check_stream(self, offset: Offset) -> None:
        """Refuses an offset whose positions belong to another stream, or to rows that the stream has lost.

        With such positions, new rows would be skipped, or read in place of other rows.
        """
        if offset.stream and self._stream and offset.stream != self._stream:
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
        draft = replace(draft, plan=evened(self.log, draft), sic=sic, marks=marks)
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
                journal.cut(LaneStore(self.options.stream, reader).needed())
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
        if self._link is not None:
            self._link.planned(offset, admitted, set_aside)
        if set_aside:
            self._warn_set_aside(offset, admitted)
            journal.set_aside(offset, admitted)
            if self.options.shed_lane:
                self._pin(offset.reader, offset.start)
            return []
        before = offset.books.admitted - admitted
        parts = split_among_tasks(selections, before, self.options.tasks, LEAST_TASK_ROWS)
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
            self._journal = JournalWriter(Path(self.options.stream) / "plans", offset.reader)
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
