"""How far a shed lane has been backfilled, durably, and the pins that keep the rest of the lane.

<stream>/lanes/<reader>.json   replaced whole; a revision is written here before it is begun
<stream>/lanes/_removed.json   the highest revision of lanes whose progress was removed
<stream>/lanes/lock            held by the one backfill of the stream
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from penstock.grants.cutting import Needed
from penstock.grants.journal import Entry, Journal, JournalOwnedError, JournalWriter, read_journal
from penstock.grants.offset import Positions
from penstock.lanes.lane import Lane, decided, lane, pins_for
from penstock.streams.files import locked, replace_text
from penstock.streams.opening import open_stream, streams_in
from penstock.streams.registry import Reader, ReaderRegistry
from penstock.vocabulary.errors import InvalidInputError, PenstockError, UnknownNameError
from penstock.vocabulary.stream_ref import StreamRef

_log = logging.getLogger(__name__)

REMOVED = "_removed.json"
"""Stands for lanes whose progress was removed. No reader's name begins like this."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Consecutive grants that are backfilled as one revision: all its results are in the sink, or none.

    Attributes:
        revision: Number of the revision, higher than any before.
        first: First grant.
        last: Last grant.
        sink: Name of the sink that gets the results.
        windowed: Whether whole windows are computed anew.
        batch: For a log stream, the number of the revision's first append.
    """

    revision: int
    first: int
    last: int
    sink: str
    windowed: bool = False
    batch: int = 0


@dataclass(frozen=True, slots=True)
class LaneProgress:
    """How far a lane has been backfilled.

    Attributes:
        done: All grants up to this one are backfilled.
        done_offset: Offset of grant `done`, by which a restored older checkpoint is noticed.
        revision: The last revision.
        rows: Rows backfilled so far.
        gone: Rows that were not backfilled, because they had been trimmed.
        pending: Grants whose backfill was begun and is not known to be finished.
    """

    done: int = 0
    done_offset: Mapping[str, Any] | None = None
    revision: int = 0
    rows: int = 0
    gone: int = 0
    pending: Stretch | None = None


class LaneStore:
    """A reader's journal, lane progress and pins, in files of its stream's state.

    Args:
        stream: The stream.
        reader: The reader's id.
    """

    def __init__(self, stream: str | Path | StreamRef, reader: str) -> None:
        self.log, self.reader = open_stream(stream), reader
        self.stream = self.log.ref
        self.folder, self.plans = (self.log.state.folder(kind) for kind in ("lanes", "plans"))
        self._path, self._journal_path = self.folder / f"{reader}.json", self.plans / f"{reader}.jsonl"

    def journal(self) -> Journal:
        return read_journal(self._journal_path)

    @property
    def has_journal(self) -> bool:
        return self._journal_path.exists()

    def registered(self) -> Reader | None:
        """The reader in the registry; `None` if it was forgotten."""
        return next((r for r in ReaderRegistry(self.log).readers() if r.name == self.reader), None)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Holds the lock of the stream's backfills; waits while another backfill holds it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with locked(self.folder / "lock"):
            yield

    @contextmanager
    def held_now(self) -> Iterator[bool]:
        """Holds the lock as `held` does, without waiting; gives whether it is held."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with ExitStack() as held:
            try:
                held.enter_context(locked(self.folder / "lock", wait=False))
                is_held = True
            except BlockingIOError:
                is_held = False
            yield is_held

    def load(self, journal: Journal) -> LaneProgress:
        """The progress; an error if the last backfilled grant is no longer the same in the journal."""
        progress = _load(self._path)
        entry = journal.entries.get(progress.done)
        is_cut = journal.cut is not None and progress.done <= journal.cut.last  # compared before the cut
        if progress.done and not is_cut and (entry is None or entry.offset.to_json() != progress.done_offset):
            raise InvalidInputError(
                f"backfilled grants stay as they were, here up to grant {progress.done}",
                f"another grant of that number, or none, in the journal of {self.reader}",
                "an older checkpoint was restored, or the reader was forgotten and came back; remove "
                f"{self._path} to backfill all of the new grants",
            )
        return progress

    def undone(self, journal: Journal, ended: bool = False, until_s: float | None = None) -> list[Entry]:
        """The grants whose batch has ended and that are not backfilled, in order.

        Args:
            journal: The reader's journal.
            ended: The query will not run again, so its last grant has ended too.
            until_s: Only grants whose rows arrived up to this time, in seconds since the epoch.
        """
        known, done = self.registered(), self.load(journal).done
        entries = decided(journal, {} if known is None else known.positions, ended)
        entries = [entry for entry in entries if entry.offset.grant > done]
        if until_s is not None:
            ends = {p: self.log.position_at(p, round(until_s * 1e6)) for p in range(self.log.partitions)}
            within = [all(end <= ends[p] for p, end in entry.offset.end.items()) for entry in entries]
            entries = entries[: within.index(False)] if False in within else entries
        return entries

    def lane(self, ended: bool = False, until_s: float | None = None, journal: Journal | None = None) -> Lane:
        """The lane that a backfill would find."""
        journal = journal or self.journal()
        return lane(self.log, journal, self.undone(journal, ended, until_s))

    def begin(self, progress: LaneProgress, stretch: Stretch) -> LaneProgress:
        """Saves, before the work, which grants a revision is going to backfill."""
        return self._save(replace(progress, pending=stretch))

    def give_up(self, progress: LaneProgress) -> LaneProgress:
        """Saves that a backfill that was begun is not finished; its revision stays unused."""
        begun = 0 if progress.pending is None else progress.pending.revision
        return self._save(replace(progress, pending=None, revision=max(progress.revision, begun)))

    def finish(
        self,
        progress: LaneProgress,
        journal: Journal,
        stretch: Stretch,
        rows: int,
        gone: int,
        floor: Positions,
    ) -> LaneProgress:
        """Saves that a revision is done, then releases the pins of its rows."""
        done = LaneProgress(
            stretch.last,
            journal.entries[stretch.last].offset.to_json(),
            max(stretch.revision, progress.revision),
            progress.rows + rows,
            progress.gone + gone,
        )
        self._save(done)
        self.move_pins(done.done, floor)
        return done

    def next_revision(self) -> int:
        """A revision number higher than any in the stream's lanes."""
        known = [_load(path) for path in self.folder.glob("*.json")]
        return 1 + max((max(p.revision, p.pending.revision if p.pending else 0) for p in known), default=0)

    def needed(self) -> Needed:
        """The part of the journal that must stay, because the query or its lane may still need it."""
        known, progress = self.registered(), _load(self._path)
        positions = {} if known is None else {p: known.needs_from(p) for p in known.positions}
        return Needed(positions, progress.done, progress.done_offset, progress.pending is not None)

    def cut_journal(self) -> None:
        """Cuts the journal of a query that does not run; a running planner cuts its own journal.

        The lock of the stream's backfills is held. The reader may have been forgotten before it was.
        """
        if not self.has_journal:
            return
        with suppress(JournalOwnedError):
            writer = JournalWriter(self.plans, self.reader, wait_s=0.0)
            try:
                if writer.is_long:
                    writer.cut(self.needed())
            finally:
                writer.close()

    def remove(self, owned: JournalWriter) -> None:
        """Removes a reader's journal, then the lane's progress; the lock of the stream's backfills is held.

        A crash in between leaves progress without a journal. The other way round, it would leave backfilled
        grants to be backfilled again. The highest revision stays known, because a log stream does not tell
        which revisions it has.
        """
        if self._path.exists():
            kept = LaneProgress(revision=self.next_revision() - 1)
            replace_text(self.folder / REMOVED, json.dumps(asdict(kept)))
        owned.remove()
        self._path.unlink(missing_ok=True)

    def move_pins(self, done: int, floor: Positions) -> None:
        """Pins what is left of the lane, so that all earlier rows can be trimmed.

        The planner pins a grant's rows after it has journaled the grant, unless a pin covers them already. So
        the journal is read again after the pins are written: either this method or the planner then notices
        a grant that was proposed meanwhile.

        Args:
            done: All grants up to this one are backfilled.
            floor: By partition, first row that open windows need, besides the rows of the lane.
        """
        journal, pins = self.journal(), None
        while self.registered() is not None:
            wanted = pins_for(self.log, journal, done)
            wanted = {p: min(position, floor.get(p, position)) for p, position in wanted.items()}
            if wanted == pins:
                return
            ReaderRegistry(self.log).advance(self.reader, {}, wanted)
            journal, pins = self.journal(), wanted

    def _save(self, progress: LaneProgress) -> LaneProgress:
        replace_text(self._path, json.dumps(asdict(progress)))
        return progress


def _load(path: Path) -> LaneProgress:
    if not path.exists():
        return LaneProgress()
    try:
        stored = json.loads(path.read_text())
        pending = stored.pop("pending")
        return LaneProgress(**stored, pending=None if pending is None else Stretch(**pending))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidInputError(
            "the progress of a lane is as this Penstock writes it",
            f"{path}: {error!r}",
            "the file is damaged or of a newer Penstock; without it, the whole lane is backfilled again",
        ) from None


def find_lanes(root: str | Path, name: str | None = None) -> list[LaneStore]:
    """The lanes of a log's readers: all lanes, or those of one reader or query.

    A stream that cannot be opened is left out, with a warning.

    Args:
        root: The directory that holds the streams.
        name: A reader's id, or the name of a query, which may have had several readers.
    """
    root = Path(root)
    if not root.is_dir():
        raise InvalidInputError(
            "a log is a directory of streams", root, "give the directory that holds the streams"
        )
    found = []
    for stream in streams_in(root):
        try:
            plans = open_stream(stream).state.folder("plans")
        except PenstockError as error:  # one broken stream must not hide the lanes of the others
            _log.warning("lanes of stream %s are left out: %s", stream.name, error)
            continue
        found += [LaneStore(stream, journal.stem) for journal in sorted(plans.glob("*.jsonl"))]
    if name is None:
        return found
    of_query = re.compile(rf"{re.escape(name)}(-[0-9a-f]{{12}})?")
    chosen = [store for store in found if of_query.fullmatch(store.reader)]
    if not chosen and found:
        known = {re.sub(r"-[0-9a-f]{12}$", "", store.reader) for store in found}
        raise UnknownNameError("a query or reader of the log", name, known)
    if not chosen:
        raise InvalidInputError(
            "a lane has a plan journal",
            f"no journal in {root}",
            "run its query first; a run's journal is removed once its lane is backfilled",
        )
    return chosen
