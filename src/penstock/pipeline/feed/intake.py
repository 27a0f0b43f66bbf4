"""Appends rows of files as files appear and grow, each row once, and notices files that change otherwise.

A mark beside the log says for each file up to which byte its rows are taken, and up to which byte rows are
being taken. Batches of these bytes are numbered; batches that the log has already are left out. After a crash
the same bytes are read again, whatever was written after them.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
import zlib
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import BinaryIO, NamedTuple

from penstock.pipeline.feed.files import ByteRange, files_of, has_lines, read_rows
from penstock.pipeline.spec.sources import FilesSource
from penstock.streams.files import replace_text
from penstock.streams.protocol import AppendKey, WritableLog
from penstock.vocabulary.errors import InvalidInputError, PenstockError, expected

LOOK_EVERY_S = 0.5
SETTLED_S = 1.0
"""A file whose last change is more recent than this may still be written."""
LAST_LINE_S = 10.0
"""A last line without a line end is taken this long after the file's last change: it may be half a line."""
_CHUNK = 1 << 20


class FileState(NamedTuple):
    """Size and time of a file; if either differs, the file has changed."""

    size: int
    mtime_ns: int


@dataclass(frozen=True, slots=True)
class Mark:
    """Which part of a file is in the log.

    Attributes:
        taken: Rows of the first `taken` bytes are in the log.
        batches: Number of appends with these rows.
        until: Rows of the bytes from `taken` to `until` are being taken; equal to `taken` if none are.
        digest: Digest of the first `until` bytes.
        size: Size of the file when it was last found to begin with these bytes.
        mtime_ns: Modification time of the file at that moment.
    """

    taken: int = 0
    batches: int = 0
    until: int = 0
    digest: str = ""
    size: int = 0
    mtime_ns: int = 0

    @property
    def state(self) -> FileState:
        return FileState(self.size, self.mtime_ns)


@dataclass(slots=True)
class Taken:
    """Problems that an intake found.

    Attributes:
        left_out: By file, why the file is left out; a file that has been taken since is not here.
        changed: By file, how the file changed after its rows were taken.
    """

    left_out: dict[Path, str]
    changed: dict[Path, str]

    @property
    def error(self) -> str | None:
        return _counted(self.left_out, "files were left out")

    @property
    def warning(self) -> str | None:
        return _counted(self.changed, "files changed after they were read")


def _counted(texts: dict[Path, str], what: str) -> str | None:
    """The last text, and the number of texts, so that a report does not grow with every file."""
    if not texts:
        return None
    last = next(reversed(texts.values()))
    return last if len(texts) == 1 else f"{len(texts):,} {what}; the last: {last}"


class Intake:
    """Appends the rows of files to a log, each row once.

    Args:
        log: Stream that gets the rows.
        source: The files.
        appended: Called after every append, with the number of rows.
        clock: Seconds since the epoch.
    """

    def __init__(
        self,
        log: WritableLog,
        source: FilesSource,
        appended: Callable[[int], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.taken = Taken({}, {})
        self._log, self._source, self._appended, self._clock = log, source, appended, clock
        self._marks = log.state.folder("files")
        self._marks.mkdir(parents=True, exist_ok=True)
        self._done: dict[Path, FileState] = {}  # a file in this state is done with

    def look(self, stop: threading.Event) -> None:
        """Takes new rows of files that have not changed for a moment."""
        paths = files_of(self._source.path)
        self._done = {path: self._done[path] for path in paths if path in self._done}
        for path in paths:
            state = _state(path)
            if state is None or self._done.get(path) == state or self._age_s(state) < SETTLED_S:
                continue
            if stop.is_set():
                return
            try:
                if self._take(path, state, stop):
                    self._done[path] = state
                    self.taken.left_out.pop(path, None)
            except InvalidInputError as error:
                self._done[path] = state  # until the file changes
                self._leave_out(path, str(error))
            except (PenstockError, OSError) as error:  # of the log, e.g. a full disk: it is tried again
                self._leave_out(path, str(error))

    def _leave_out(self, path: Path, why: str) -> None:
        self.taken.left_out.pop(path, None)
        self.taken.left_out[path] = why

    def _age_s(self, state: FileState) -> float:
        return self._clock() - state.mtime_ns / 1e9

    def _take(self, path: Path, state: FileState, stop: threading.Event) -> bool:
        """Takes rows of a file as far as possible; returns whether the file is done with until it changes."""
        if state.size == 0:
            return True  # somebody is about to write the file
        mark = self._mark(path, state)
        if mark.state != state and mark.until and not self._begins_as(path, mark):
            if self._known(path) >= 0:
                return self._changed(path, "it no longer begins with the rows that were taken")
            mark = Mark()  # no row of the file is in the log
        lines = has_lines(path, self._source.file_format)
        if not lines and mark.taken and state.size > mark.taken:
            return self._changed(path, "rows were added that its format does not let Penstock find")
        if lines and mark.until > mark.taken:  # a crash or an error interrupted the last append
            mark = self._append(path, mark, state, stop)
            if mark.until > mark.taken:
                return False
        until = self._whole_lines(path, mark.taken, state) if lines else state.size
        if lines and mark.taken and until > mark.taken and not _ended(path, mark.taken):
            return self._changed(path, "its last line was taken without its end, and went on")
        if until > mark.taken:
            mark = replace(mark, until=until, digest=_digest(path, until))
            mark = self._append(path, mark, state, stop)
        elif mark.state != state:
            self._note(path, mark, state)
        return mark.taken == state.size

    def _append(self, path: Path, mark: Mark, state: FileState, stop: threading.Event) -> Mark:
        """Appends the batches between `taken` and `until`, without batches that are in the log already."""
        self._note(path, mark, state)
        writer, known, number = file_writer(path), self._known(path), mark.batches
        part = ByteRange(mark.taken, mark.until) if has_lines(path, self._source.file_format) else None
        batches = read_rows(path, self._source.file_format, self._log.user_schema, self._log.name, part)
        for rows in batches:
            if stop.is_set():
                return mark
            if number > known and rows.num_rows:
                self._log.append(rows, self._partition(writer), AppendKey(writer, number))
                self._appended(rows.num_rows)
            number += 1
        if _state(path) != state and not self._begins_as(path, mark):
            self._changed(path, "it was rewritten while it was read")
        mark = replace(mark, taken=mark.until, batches=number)
        self._note(path, mark, state)
        return mark

    def _whole_lines(self, path: Path, first: int, state: FileState) -> int:
        """End of the last whole line; the end of the file if the file has not changed for long."""
        if self._age_s(state) >= LAST_LINE_S:
            return state.size
        end = state.size
        with _opened(path) as file:
            while end > first:
                start = max(first, end - _CHUNK)
                file.seek(start)
                at = file.read(end - start).rfind(b"\n")
                if at >= 0:
                    return start + at + 1
                end = start
        return first

    def _begins_as(self, path: Path, mark: Mark) -> bool:
        return _digest(path, mark.until) == mark.digest

    def _changed(self, path: Path, how: str) -> bool:
        self.taken.changed.pop(path, None)
        self.taken.changed[path] = expected(
            "a file does not change once its rows are taken",
            f"{path}, which changed: {how}",
            "its new rows are left out; write a file as .name, and rename it once it is whole",
        )
        return True

    def _partition(self, writer: str) -> int:
        return zlib.crc32(writer.encode()) % self._log.partitions

    def _known(self, path: Path) -> int:
        """The last batch of a file that is in the log; -1 for none."""
        writer = file_writer(path)
        return self._log.last_batch(writer, self._partition(writer))

    def _mark(self, path: Path, state: FileState) -> Mark:
        try:
            text = (self._marks / file_writer(path)).read_text()
        except FileNotFoundError:
            return Mark()
        if text:
            values = json.loads(text)
            return Mark(**{f.name: values[f.name] for f in fields(Mark)})
        # earlier versions left an empty mark when a file was taken: its present content counts as taken
        mark = Mark(state.size, self._known(path) + 1, state.size, _digest(path, state.size), *state)
        self._note(path, mark, state)
        return mark

    def _note(self, path: Path, mark: Mark, state: FileState) -> None:
        noted = replace(mark, size=state.size, mtime_ns=state.mtime_ns)
        replace_text(self._marks / file_writer(path), json.dumps(asdict(noted)))


def file_writer(path: Path) -> str:
    """The writer's name for appends of a file: 40 bytes, different for each file."""
    return hashlib.sha1(str(path).encode()).hexdigest()


def _state(path: Path) -> FileState | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return FileState(found.st_size, found.st_mtime_ns)


def _opened(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError as error:
        raise InvalidInputError("a file can be read", f"{path}: {error}", "may this user read it?") from None


def _digest(path: Path, size: int) -> str:
    """Digest of a file's first `size` bytes, or of all bytes if the file has fewer."""
    found = hashlib.blake2b(digest_size=16)
    with _opened(path) as file:
        while size > 0 and (chunk := file.read(min(_CHUNK, size))):
            found.update(chunk)
            size -= len(chunk)
    return found.hexdigest()


def _ended(path: Path, position: int) -> bool:
    """Whether a line ends at a position: right before it, or with the byte at it."""
    with _opened(path) as file:
        file.seek(position - 1)
        around = file.read(2)
    return around[:1] == b"\n" or around[1:] in (b"\n", b"\r")
