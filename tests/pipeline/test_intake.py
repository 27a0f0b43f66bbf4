"""Files that are written while they are read: each row once, and nothing is left out in silence."""

from __future__ import annotations

import errno
import gzip
import json
import os
import threading
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.segments import headers, read

from penstock.pipeline.feed.process import Progress, take_files
from penstock.pipeline.spec.sources import FilesSource
from penstock.streams.embedded.log import EmbeddedLog
from penstock.streams.layout import LogConfig
from penstock.streams.protocol import AppendKey

SCHEMA = pa.schema([("n", pa.int64())])
NOW_S = 1_700_000_000.0
Step = Callable[[], object]


class Scripted(threading.Event):
    """A stop event: each wait does the next step, and the one after the last sets it."""

    def __init__(self, *steps: Step) -> None:
        super().__init__()
        self.steps = list(steps)

    def wait(self, timeout: float | None = None) -> bool:
        if self.steps:
            self.steps.pop(0)()
        else:
            self.set()
        return self.is_set()


class Folder:
    """A folder, the log that its files go to, and a clock that files are a minute older than."""

    def __init__(self, tmp_path: Path, kind: str = "csv") -> None:
        self.kind, self.folder = kind, tmp_path / "in"
        self.folder.mkdir()
        self.log = EmbeddedLog.create(tmp_path / "readings", SCHEMA, LogConfig(partitions=2))
        self.changes = 0

    def path(self, name: str = "a") -> Path:
        return self.folder / f"{name}.{self.kind}"

    def settle(self, path: Path, age_s: float = 60.0) -> None:
        """As if nobody had touched it since; never twice with one time."""
        self.changes += 1
        os.utime(path, ns=(0, round((NOW_S - age_s) * 1e9) + self.changes))

    def write(self, text: str, name: str = "a", age_s: float = 60.0) -> None:
        self.path(name).write_text(text)
        self.settle(self.path(name), age_s)

    def add(self, text: str, name: str = "a", age_s: float = 60.0) -> None:
        with self.path(name).open("a") as file:
            file.write(text)
        self.settle(self.path(name), age_s)

    def lines(self, numbers: range, header: bool = True) -> str:
        if self.kind == "json":
            return "".join(json.dumps({"n": n}) + "\n" for n in numbers)
        return ("n\n" if header else "") + "".join(f"{n}\n" for n in numbers)

    def take(self, *steps: Step) -> Progress:
        """A producer that looks once, and once more after each step."""
        progress = Progress()
        source = FilesSource(path=str(self.folder / f"*.{self.kind}"))
        take_files(self.log, source, Scripted(*steps), progress, clock=lambda: NOW_S)
        return progress

    def numbers(self) -> list[int]:
        return [
            n
            for p in range(self.log.partitions)
            for segment in headers(self.log, p, 0, self.log.end(p))
            for n in read(self.log, segment).column("n").to_pylist()
        ]


@pytest.mark.parametrize("kind", ["csv", "json"])
@pytest.mark.parametrize("again", [False, True], ids=["in one run", "in another run"])
def test_what_is_added_to_a_file_after_it_was_read_is_taken_too(
    tmp_path: Path, kind: str, again: bool
) -> None:
    folder = Folder(tmp_path, kind)
    folder.write(folder.lines(range(500)))

    def add(first: int) -> Step:
        return lambda: folder.add(folder.lines(range(first, first + 100), header=False))

    if again:
        for first in (500, 600):
            folder.take()
            add(first)()
        progress = folder.take()
    else:
        progress = folder.take(add(500), add(600))
    assert folder.numbers() == list(range(700))
    assert (progress.error, progress.warning, progress.changed) == (None, None, 0)


@pytest.mark.parametrize("kind", ["csv", "json"])
def test_half_a_line_waits_for_its_end(tmp_path: Path, kind: str) -> None:
    folder = Folder(tmp_path, kind)
    whole = folder.lines(range(123, 126))
    folder.write(whole[:-3], age_s=2.0)
    folder.take()
    assert folder.numbers() == [123, 124]
    folder.add(whole[-3:], age_s=2.0)
    folder.take()
    assert folder.numbers() == [123, 124, 125]


def test_a_last_line_without_its_end_is_taken_once_nobody_writes_any_more(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.write("n\n1\n2")
    folder.take()
    assert folder.numbers() == [1, 2]
    folder.add("\n3\n")
    assert folder.take().changed == 0
    assert folder.numbers() == [1, 2, 3]


def test_a_line_that_goes_on_after_it_was_taken_is_said(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.write("n\n1\n2")
    folder.take()
    folder.add("4\n3\n")
    progress = folder.take()
    assert folder.numbers() == [1, 2]
    assert progress.changed == 1
    assert "went on" in (progress.warning or "")


@pytest.mark.parametrize("text", ["n\n7\n8\n9\n", "n\n1\n"], ids=["other rows", "fewer rows"])
def test_a_file_that_is_written_anew_after_it_was_read_is_said_and_its_rows_are_not_taken_twice(
    tmp_path: Path, text: str
) -> None:
    folder = Folder(tmp_path)
    folder.write("n\n1\n2\n")
    progress = folder.take(lambda: folder.write(text), lambda: None)
    assert folder.numbers() == [1, 2]
    assert progress.changed == 1
    assert (progress.warning or "").startswith(
        "expected: a file does not change once its rows are taken; got: "
    )
    assert str(folder.path()) in (progress.warning or "")
    assert progress.error is None


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_file_that_was_only_touched_is_no_change(tmp_path: Path, kind: str) -> None:
    folder = Folder(tmp_path, kind)
    if kind == "csv":
        folder.write(folder.lines(range(5)))
    else:
        pq.write_table(pa.table({"n": np.arange(5)}), folder.path())
        folder.settle(folder.path())
    progress = folder.take(lambda: folder.settle(folder.path()))
    assert (progress.changed, progress.error) == (0, None)
    assert folder.numbers() == [0, 1, 2, 3, 4]


def test_a_parquet_file_that_was_caught_half_way_is_read_when_it_is_whole(tmp_path: Path) -> None:
    folder = Folder(tmp_path, "parquet")
    pq.write_table(pa.table({"n": np.arange(1000)}), tmp_path / "whole")
    content = (tmp_path / "whole").read_bytes()

    def put(part: bytes) -> None:
        folder.path().write_bytes(part)
        folder.settle(folder.path())

    put(content[:900])
    assert "a.parquet" in (folder.take().error or "")
    progress = folder.take(lambda: put(content))
    assert folder.numbers() == list(range(1000))
    assert (progress.error, progress.left_out) == (None, 0)


def test_a_parquet_file_that_grew_after_it_was_read_is_said(tmp_path: Path) -> None:
    folder = Folder(tmp_path, "parquet")

    def put(rows: int) -> None:
        pq.write_table(pa.table({"n": np.arange(rows)}), folder.path())
        folder.settle(folder.path())

    put(3)
    progress = folder.take(lambda: put(5000))
    assert folder.numbers() == [0, 1, 2]
    assert progress.changed == 1
    assert "a.parquet" in (progress.warning or "")


def test_an_empty_file_is_one_that_somebody_is_about_to_write(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.write("")
    progress = folder.take(lambda: folder.write("n\n1\n"))
    assert folder.numbers() == [1]
    assert progress.error is None


def test_a_csv_that_has_its_header_alone_has_no_rows_yet(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.write("n\n")
    progress = folder.take(lambda: folder.add("1\n2\n"), lambda: folder.add("\n"), lambda: folder.add("3\n"))
    assert folder.numbers() == [1, 2, 3]
    assert (progress.error, progress.changed) == (None, 0)


def test_a_file_that_did_not_fit_is_taken_when_it_was_put_right(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.write("n\n1\nx\n")
    progress = folder.take(lambda: folder.write("n\n1\n2\n"))
    assert folder.numbers() == [1, 2]
    assert progress.error is None


@pytest.mark.parametrize(
    "what", ["penstock.streams.embedded.writer.Writer._write", "penstock.pipeline.feed.intake.replace_text"]
)
def test_a_file_that_met_a_full_disk_is_taken_when_there_is_room_again(
    tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Folder(tmp_path)
    folder.write("n\n1\n2\n")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(what, full)
    progress = folder.take(monkeypatch.undo)
    assert folder.numbers() == [1, 2]
    assert progress.error is None


def test_what_is_said_of_files_that_do_not_fit_does_not_grow_with_their_number(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    for i in range(40):
        folder.write("n\nx\n", f"bad{i:02}")
    progress = folder.take()
    assert progress.left_out == 40
    assert (progress.error or "").startswith("40 files were left out; the last: ")
    assert "bad39.csv" in (progress.error or "")
    assert len(progress.error or "") < 600


@pytest.mark.parametrize("grown", [False, True], ids=["as it was", "grown since"])
def test_after_a_crash_the_same_bytes_make_the_same_batches(tmp_path: Path, grown: bool) -> None:
    """A crash between two appends: the mark says up to where the file was being taken."""
    folder = Folder(tmp_path)
    folder.write(folder.lines(range(400_000)))

    class Crash(Exception):
        pass

    def crash(*_: object) -> int:
        raise Crash

    append, done = folder.log.append, []

    def append_twice(rows: pa.RecordBatch, partition: int, key: AppendKey) -> int:
        done.append(key)
        return crash() if len(done) > 2 else append(rows, partition, key)

    folder.log.append = append_twice  # type: ignore[method-assign,assignment]
    with pytest.raises(Crash):
        folder.take()
    folder.log.append = append  # type: ignore[method-assign]
    assert 0 < len(folder.numbers()) < 400_000
    if grown:
        folder.add(folder.lines(range(400_000, 400_100), header=False))
    folder.take()
    assert folder.numbers() == list(range(400_100 if grown else 400_000))


def test_marks_and_batches_of_earlier_versions_count(tmp_path: Path) -> None:
    """Those made an empty mark when a file was through, and none before."""
    from penstock.pipeline.feed.files import read_rows
    from penstock.pipeline.feed.intake import file_writer

    folder = Folder(tmp_path)
    folder.write(folder.lines(range(3)), "through")
    folder.write(folder.lines(range(1000, 400_000)), "half")
    marks = folder.log.directory / "files"
    marks.mkdir()
    (marks / file_writer(folder.path("through"))).touch()
    writer = file_writer(folder.path("half"))
    first = next(read_rows(folder.path("half"), "csv", SCHEMA, "readings"))
    folder.log.append(first, zlib.crc32(writer.encode()) % 2, AppendKey(writer, 0))
    progress = folder.take(lambda: folder.add("3\n", "through"))
    assert sorted(folder.numbers()) == [3, *range(1000, 400_000)]
    assert progress.changed == 0


def test_a_compressed_file_is_read_whole(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    path = folder.folder / "a.csv.gz"
    path.write_bytes(gzip.compress(b"n\n1\n2\n"))
    folder.settle(path)
    progress = Progress()
    source = FilesSource(path=str(folder.folder / "*.gz"), format="csv")
    take_files(folder.log, source, Scripted(), progress, clock=lambda: NOW_S)
    assert folder.numbers() == [1, 2]


def test_a_file_that_is_being_written_is_left_alone_until_it_settles(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.write("n\n1\n", age_s=0.5)
    folder.take()
    assert folder.numbers() == []
