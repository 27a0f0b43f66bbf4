"""Forgets readers that end with their run, because their checkpoints are in the run directory.

Such a run is never continued: the next run has a run directory, checkpoints and readers of its own. Readers
that stayed registered would keep their rows in the log for ever. So a run forgets its readers when it ends;
when it starts, it forgets readers of earlier runs that were killed. Rows that a shed lane pins stay, for a
backfill, with the plan journal; other journals of these readers are removed.

    <log>/.runs/<id>.json    a running run, locked by its driver; a run that was killed leaves the file behind
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import re
import socket
import uuid
from collections.abc import Iterator
from pathlib import Path

from penstock.lanes.forgetting import is_known, retire_reader
from penstock.pipeline.spec.pipeline import PipelineConfig
from penstock.streams.opening import load_stream, streams_in

_log = logging.getLogger(__name__)

FOLDER = ".runs"
_READER = re.compile(r'\\?"reader\\?":\s*\\?"([A-Za-z0-9._-]+)\\?"')


class PassingReaders:
    """The readers of one run that end with it.

    Args:
        config: The pipeline.
        run: The run directory.
    """

    def __init__(self, config: PipelineConfig, run: Path) -> None:
        self.log = config.log
        kept = config.checkpoints is not None
        passing = [name for name, query in config.queries.items() if not kept and query.checkpoint is None]
        self._checkpoints = [config.checkpoint_of(name, run) for name in passing]
        self._mark: Path | None = None
        self._lock = -1

    def begin(self) -> None:
        """Leaves a file that the next run finds if this run is killed."""
        if not self._checkpoints:
            return
        folder = self.log / FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        self._mark = folder / f"{uuid.uuid4().hex}.json"
        draft = self._mark.with_suffix(".draft")
        self._lock = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        fcntl.flock(self._lock, fcntl.LOCK_EX)  # before others can see the file
        mark = {"host": socket.gethostname(), "checkpoints": self._checkpoints}
        os.write(self._lock, json.dumps(mark).encode())
        draft.replace(self._mark)

    def end(self) -> None:
        """Forgets the readers. A reader whose planner does not end is left to the next run."""
        if self._mark is None:
            return
        try:
            if _retire(self.log, self._checkpoints, None):
                self._mark.unlink(missing_ok=True)
        finally:
            os.close(self._lock)
            self._mark = None


def forget_killed_runs(config: PipelineConfig) -> None:
    """Forgets readers of runs that were killed on this host. A checkpoint that the pipeline names is kept."""
    mine = {os.path.abspath(config.checkpoint_of(name, Path("."))) for name in config.queries}
    for mark in sorted((config.log / FOLDER).glob("*.json")):
        try:
            _forget_killed(config.log, mark, mine)
        except Exception as error:  # what an earlier run has left must not keep this one from starting
            why = type(error).__name__
            _log.warning("readers of an earlier run (%s) are not forgotten: %s: %s", mark, why, error)


def _forget_killed(log: Path, mark: Path, mine: set[str]) -> None:
    with mark.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return  # the run is still running
        left = json.load(file)
        if left["host"] != socket.gethostname():
            return  # this host may not see a lock of another host
        gone = [path for path in left["checkpoints"] if os.path.abspath(path) not in mine]
        if _retire(log, gone, 0.0):
            mark.unlink(missing_ok=True)


def _readers_of(checkpoints: list[str]) -> Iterator[str]:
    """The readers in Spark's offset logs."""
    for checkpoint in checkpoints:
        logged = [path for path in (Path(checkpoint) / "offsets").glob("*") if path.name.isdigit()]
        if logged:
            newest = max(logged, key=lambda path: int(path.name))
            yield from dict.fromkeys(_READER.findall(newest.read_text()))


def _retire(log: Path, checkpoints: list[str], wait_s: float | None) -> bool:
    """Forgets the readers of some checkpoints; returns whether all of them are forgotten."""
    forgotten = [_retire_reader(log, reader, wait_s) for reader in _readers_of(checkpoints)]
    return all(forgotten)


def _retire_reader(log: Path, reader: str, wait_s: float | None) -> bool:
    """Forgets a reader in each stream after its planner has ended, with its journal if no lane needs it.

    A stream that cannot be opened may know the reader, too. Such a stream is left to the next run, and so is
    a lane whose files are damaged.
    """
    all_done = True
    for place in streams_in(log):
        try:
            stream = load_stream(place)
            if is_known(stream.state, reader) and not retire_reader(stream, reader, wait_s):
                all_done = False
        except Exception as error:  # one broken stream or lane must not keep readers of the others
            why = type(error).__name__
            _log.warning("reader %s is not forgotten in stream %s: %s: %s", reader, place.name, why, error)
            all_done = False
    return all_done
