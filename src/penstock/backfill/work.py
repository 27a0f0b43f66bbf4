"""Backfill: runs a query over the rows it shed, when there is time.

Results of a stateless query are appended. For a windowed query, windows with shed rows are computed anew from
kept and shed rows, once they are closed. Either way results have a `revision` and are written exactly once,
see `penstock.backfill.revisions`.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from pyspark.sql import DataFrame, SparkSession

from penstock.backfill.eligibility import check_stateless, check_windows, clear_window_errors, only_touched
from penstock.backfill.lane_source import all_parts, read_parts, shed_parts
from penstock.backfill.revisions import LogRevisions, ParquetRevisions, Published, is_staged, stage
from penstock.grants.journal import Entry, Journal
from penstock.lanes.forgetting import remove_backfilled
from penstock.lanes.lane import Shed, has_lost_rows, readable_rows, shed_of, with_shed_rows
from penstock.lanes.progress import LaneProgress, LaneStore, Stretch, find_lanes
from penstock.lanes.windows import Progress, WindowPlan, Windows, check_kept_rows, merged, plan_windows
from penstock.spark.source.metadata import metadata_columns
from penstock.streams.opening import stream_exists
from penstock.vocabulary.errors import InvalidInputError

STRETCH_ROWS = 2_000_000
"""Shed rows of a stateless query that make one revision: at most these are computed again after a crash."""

Transform = Callable[[DataFrame], DataFrame]


@dataclass(frozen=True, slots=True)
class Backfilled:
    """Report of a backfill.

    Attributes:
        reader: The reader whose lane was backfilled.
        sink: Name of the sink.
        rows: Number of shed rows that were run.
        gone: Number of shed rows that had been trimmed.
        result_rows: Number of rows written.
        revisions: Revisions written.
        windows: Number of windows computed anew.
        incomplete_windows: Number of windows left as they were, because some of their rows had been trimmed.
        open_windows: Number of windows that still take rows; a later backfill computes them.
        left: Number of rows still in the lane.
    """

    reader: str
    sink: str
    rows: int = 0
    gone: int = 0
    result_rows: int = 0
    revisions: tuple[int, ...] = ()
    windows: int = 0
    incomplete_windows: int = 0
    open_windows: int = 0
    left: int = 0


def backfill(
    spark: SparkSession,
    log_root: str | Path,
    reader: str,
    transform: Transform,
    sink: str | Path | Published,
    windows: Windows | None = None,
    until_s: float | None = None,
    metadata: bool | Sequence[str] = False,
    ended: bool = False,
    stretch_rows: int = STRETCH_ROWS,
    progress: Progress = lambda *_: None,
) -> Backfilled:
    """Runs a query over the rows that it shed, and releases the rows from the lane.

    A backfill that was killed goes on where it was when it is started again, and adds nothing twice.

    Args:
        spark: A session; the query itself may run meanwhile, here or elsewhere.
        log_root: The directory that holds the streams.
        reader: A reader's id, or its query's name.
        transform: The query: the function that was given the streaming DataFrame.
        sink: A directory for Parquet files, a stream's directory, or a sink of `penstock.backfill.revisions`.
        windows: The windows of a windowed query; left out for a stateless one.
        until_s: Only rows that arrived up to this time, in seconds since the epoch.
        metadata: Metadata columns that the query reads. `_seq` and `_sic` are null. `_weight` and `_kept` are
            1, except for rows of a shared stream. `_drawn` says that nothing was drawn.
        ended: The query will not run again: its last grant has ended and its open windows are final.
        stretch_rows: Shed rows of a stateless query that make one revision.
        progress: Called with what is being done and how much of it is done.
    """
    store = _only_lane(log_root, reader)
    columns = metadata_columns(metadata)
    with store.held(), TemporaryDirectory(prefix="penstock-lane-") as folder:
        work = _Work(spark, store, transform, _sink(sink), columns, windows, progress, Path(folder))
        try:
            return work.run(until_s, ended, stretch_rows)
        finally:
            work.sink.close()


def read_lane(
    spark: SparkSession, log_root: str | Path, reader: str, metadata: bool | Sequence[str] = False
) -> DataFrame:
    """The rows that are in a shed lane now, as a batch DataFrame; reading them backfills nothing."""
    store = _only_lane(log_root, reader)
    journal = store.journal()
    entries = with_shed_rows(store.log, journal, store.undone(journal))
    parts = shed_parts(store.log, entries)
    return read_parts(spark, store.stream.absolute().id, parts, entries, metadata_columns(metadata))


def _only_lane(log_root: str | Path, reader: str) -> LaneStore:
    found = find_lanes(log_root, reader)
    full = [store for store in found if store.lane(ended=True).rows]
    if len(full) > 1:
        raise InvalidInputError(
            f"{reader} has one lane with rows in it",
            ", ".join(store.reader for store in full),
            "give one of these readers",
        )
    return full[0] if full else found[-1]


def _sink(sink: str | Path | Published) -> Published:
    if not isinstance(sink, str | Path):
        return sink
    return LogRevisions(sink) if stream_exists(sink) else ParquetRevisions(sink)


class _Work:
    """One run over one lane."""

    def __init__(
        self,
        spark: SparkSession,
        store: LaneStore,
        transform: Transform,
        sink: Published,
        metadata: tuple[str, ...],
        windows: Windows | None,
        progress: Progress,
        folder: Path,
    ) -> None:
        self.folder = folder
        self.spark, self.store, self.transform, self.sink = spark, store, transform, sink
        self.metadata, self.windows, self.progress = metadata, windows, progress
        self.stream = store.stream.absolute().id
        self.report = Backfilled(store.reader, sink.name)
        self.floor: dict[int, int] = {}

    def run(self, until_s: float | None, ended: bool, stretch_rows: int) -> Backfilled:
        self._check()
        journal = self.store.journal()
        state, entries = self._take_up(
            journal, self.store.load(journal), self.store.undone(journal, ended, until_s)
        )
        if self.windows is None:
            self._run_stateless(journal, state, entries, stretch_rows)
        else:
            self._run_windowed(journal, state, entries, ended)
        self.store.move_pins(self.store.load(journal).done, self.floor)
        left = self.store.lane(ended=True).rows
        if not remove_backfilled(self.store):
            self.store.cut_journal()
        return replace(self.report, left=left)

    def _check(self) -> None:
        """Refuses, before anything is begun, a query or a sink that cannot be backfilled."""
        read = read_parts(self.spark, self.stream, [], [], self.metadata, folder=self.folder)
        results = self.transform(read)
        if self.windows is None:
            check_stateless(results)
        else:
            check_windows(self.store.log.schema, results, self.windows)
        self.sink.check(results, self.windows is not None)

    def _take_up(
        self, journal: Journal, state: LaneProgress, entries: list[Entry]
    ) -> tuple[LaneProgress, list[Entry]]:
        """Takes up a backfill that was begun; returns the progress, and the grants that are left to backfill.

        If its results are in the sink or staged, it is finished, even if the log has lost its rows since.
        Else its grants come first, whatever `until_s` and `ended` are. But if the log has lost their rows,
        the results can never be computed, and it is given up: nothing of it is in the sink.
        """
        pending = state.pending
        if pending is None:
            return state, entries
        self._check_pending(pending)
        begun = [entry for entry in journal.logged() if state.done < entry.offset.grant <= pending.last]
        later = [entry for entry in entries if entry.offset.grant > pending.last]
        if begun and self._has_results(pending):
            return self._run_stretch(journal, state, begun, None), later
        if self._lacks_rows(journal, begun):
            return self.store.give_up(state), entries
        return state, begun + later

    def _has_results(self, stretch: Stretch) -> bool:
        """Whether all results of a stretch are published or staged."""
        reader = self.store.reader
        staged = self.sink.staging(reader, self.store.folder)
        return is_staged(staged, reader, stretch) or self.sink.published(reader, stretch) is not None

    def _lacks_rows(self, journal: Journal, entries: Sequence[Entry]) -> bool:
        """Whether a backfill of some grants is refused, because the log has lost rows that it needs."""
        try:
            if self.windows is None:
                with_shed_rows(self.store.log, journal, entries)
            else:
                check_kept_rows(self.store.log, entries)
        except InvalidInputError:
            return True
        return False

    def _check_pending(self, pending: Stretch) -> None:
        if (pending.sink, pending.windowed) != (self.sink.name, self.windows is not None):
            kind = "windowed" if pending.windowed else "stateless"
            raise InvalidInputError(
                "a backfill that was begun is finished first",
                f"a begun backfill of grants {pending.first} to {pending.last}, {kind}, to {pending.sink}",
                "run that backfill again, with the same options",
            )

    def _run_stateless(
        self, journal: Journal, state: LaneProgress, entries: Sequence[Entry], stretch_rows: int
    ) -> None:
        shedding = with_shed_rows(self.store.log, journal, entries)  # refuses before anything is begun
        total = sum(shed_of(self.store.log, journal, entry).rows for entry in shedding)
        for group in self._groups(journal, entries, stretch_rows, state.pending):
            self.progress("running shed rows", self.report.rows + self.report.gone, total)
            shed = [entry for entry in group if shed_of(self.store.log, journal, entry).rows]
            parts = shed_parts(self.store.log, shed)
            read = read_parts(self.spark, self.stream, parts, group, self.metadata, folder=self.folder)
            state = self._run_stretch(journal, state, group, self.transform(read) if parts else None)
        self.progress("running shed rows", total, total)

    def _groups(
        self, journal: Journal, entries: Sequence[Entry], stretch_rows: int, pending: Stretch | None
    ) -> Iterator[list[Entry]]:
        """Groups of consecutive grants with about `stretch_rows` shed rows; begun grants are one group."""
        begun = 0 if pending is None else pending.last
        group: list[Entry] = []
        rows = 0
        for entry in entries:
            group.append(entry)
            rows += shed_of(self.store.log, journal, entry).rows
            grant = entry.offset.grant
            if grant == begun or (grant > begun and rows >= stretch_rows):
                yield group
                group, rows = [], 0
        if group:
            yield group

    def _run_windowed(
        self, journal: Journal, state: LaneProgress, entries: Sequence[Entry], ended: bool
    ) -> None:
        """Makes one revision of all closed windows; grants that were begun are a revision before that."""
        while entries:
            begun = state.pending
            taken = [e for e in entries if begun is None or e.offset.grant <= begun.last]
            state = self._run_windows(journal, state, entries, len(taken), begun is not None or ended)
            if begun is None:
                return
            entries = entries[len(taken) :]

    def _run_windows(
        self, journal: Journal, state: LaneProgress, entries: Sequence[Entry], taken: int, closed: bool
    ) -> LaneProgress:
        assert self.windows is not None
        plan = plan_windows(self.store.log, journal, entries, self.windows, taken, closed, self.progress)
        self.floor = plan.open_from
        self.report = replace(
            self.report,
            windows=self.report.windows + plan.touched.size,
            incomplete_windows=self.report.incomplete_windows + plan.incomplete.size,
            open_windows=plan.open.size,
        )
        group = [entry for entry in entries[:taken] if entry.offset.grant <= plan.last]
        if group:
            self.progress("computing windows anew", 0, 1)
            results = self._windows_anew(plan) if plan.ranges else None
            state = self._run_stretch(journal, state, group, results)
            self.progress("computing windows anew", 1, 1)
        return state

    def _windows_anew(self, plan: WindowPlan) -> DataFrame:
        assert self.windows is not None
        starts, ends = merged(plan.touched, self.windows.length_us)
        parts = all_parts(self.store.log, plan.ranges)
        spans = (starts.tolist(), ends.tolist())
        wanted = (self.windows.column, spans, self.folder)
        read = read_parts(self.spark, self.stream, parts, [], self.metadata, *wanted)
        return only_touched(self.transform(read), self.windows, plan.touched)

    def _run_stretch(
        self, journal: Journal, state: LaneProgress, group: Sequence[Entry], results: DataFrame | None
    ) -> LaneProgress:
        """Makes a group of grants one revision, or finishes the revision that was begun before."""
        stretch = state.pending or self._stretch(group)
        shed = [(entry, shed_of(self.store.log, journal, entry)) for entry in group]
        rows = sum(self._run_rows(entry, each) for entry, each in shed if each.rows)
        gone = sum(each.rows for _, each in shed) - rows
        if state.pending is not None or (rows and results is not None):
            state = self.store.begin(state, stretch)
            stretch = self._write(stretch, results)
        else:
            stretch = replace(stretch, revision=0)
        state = self.store.finish(state, journal, stretch, rows, gone, self.floor)
        shutil.rmtree(self.sink.staging(self.store.reader, self.store.folder), ignore_errors=True)
        for file in self.folder.iterdir():  # files with the tasks of this stretch
            file.unlink()
        self.report = replace(self.report, rows=self.report.rows + rows, gone=self.report.gone + gone)
        return state

    def _run_rows(self, entry: Entry, shed: Shed) -> int:
        """Number of a grant's dropped rows that are run; if the log has lost some since, all of them were."""
        log = self.store.log
        return shed.rows if has_lost_rows(log, entry) else readable_rows(log, entry, shed)

    def _write(self, stretch: Stretch, results: DataFrame | None) -> Stretch:
        """Brings a stretch's results into the sink, whether they are computed, staged or published."""
        reader = self.store.reader
        staged = self.sink.staging(reader, self.store.folder)
        revision, rows = self.sink.published(reader, stretch), 0
        if revision is None and (results is not None or is_staged(staged, reader, stretch)):
            with clear_window_errors():
                rows = stage(
                    None if results is None else self.sink.prepared(results, stretch), staged, reader, stretch
                )
            revision = self.sink.publish(staged, reader, stretch)
        if revision is None:
            return replace(stretch, revision=0)  # nothing had been staged, and the rows are trimmed now
        self.report = replace(
            self.report,
            revisions=(*self.report.revisions, revision),
            result_rows=self.report.result_rows + rows,
        )
        return replace(stretch, revision=revision)

    def _stretch(self, group: Sequence[Entry]) -> Stretch:
        revision = max(self.store.next_revision(), self.sink.last_revision() + 1)
        first, last = group[0].offset.grant, group[-1].offset.grant
        batch = self.sink.next_batch(self.store.reader)
        return Stretch(revision, first, last, self.sink.name, self.windows is not None, batch)
