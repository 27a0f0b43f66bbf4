"""Sinks of a backfill. Results are staged first, then published in one step, so that a repeat adds nothing.

The results of a revision are staged as Parquet files with a note that says to which revision they belong. The
note is written last: with it, the files are complete. However often the process dies, the same files are
published:

- A Parquet directory gets the files by one rename, as `revision=<n>/`; Spark reads `revision` as a column.
- A log stream gets the rows by appends whose keys are the numbers of the chunks.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame
from pyspark.sql.functions import lit
from pyspark.sql.functions import max as highest_of
from pyspark.sql.pandas.types import to_arrow_schema

from penstock.lanes.progress import Stretch
from penstock.spark.sink import check_fit
from penstock.streams.columns import is_shared
from penstock.streams.files import replace_text, sync_directory
from penstock.streams.opening import open_writer
from penstock.streams.protocol import AppendKey
from penstock.vocabulary.errors import InvalidInputError

REVISION = "revision"
"""Column of a result: 0 or none for results of the streaming query. A window's highest revision holds."""
CHUNK_ROWS = 65_536
_NOTE = "_penstock.json"


class Published(Protocol):
    """A sink of a backfill."""

    @property
    def name(self) -> str:
        """Name of the sink, the same in every process."""
        ...

    def last_revision(self) -> int:
        """The highest revision that was published; 0 for none."""
        ...

    def check(self, results: DataFrame, windowed: bool) -> None:
        """Refuses results that the sink cannot take, before they are computed."""
        ...

    def prepared(self, results: DataFrame, stretch: Stretch) -> DataFrame:
        """The results with the columns in which they are staged."""
        ...

    def staging(self, reader: str, lanes: Path) -> Path:
        """The directory in which a reader's results are staged."""
        ...

    def published(self, reader: str, stretch: Stretch) -> int | None:
        """The revision as which a stretch is published; `None` if it is not, or if only appends can tell."""
        ...

    def next_batch(self, reader: str) -> int:
        """Number of the next append."""
        ...

    def publish(self, staged: Path, reader: str, stretch: Stretch) -> int:
        """Publishes a staged stretch; returns its revision."""
        ...

    def close(self) -> None:
        """Releases locks and files."""
        ...


def is_staged(staged: Path, reader: str, stretch: Stretch) -> bool:
    """Whether all results of a stretch are staged in a directory."""
    return _note(staged) == _note_of(reader, stretch)


def stage(results: DataFrame | None, staged: Path, reader: str, stretch: Stretch) -> int:
    """Computes results into a directory, unless all of them are there; returns the number of rows.

    When this returns, the results survive a power cut.
    """
    if not is_staged(staged, reader, stretch):
        shutil.rmtree(staged, ignore_errors=True)
        staged.parent.mkdir(parents=True, exist_ok=True)
        assert results is not None
        results.write.parquet(staged.absolute().as_uri())
        for path in staged.iterdir():
            _sync(path)
        replace_text(staged / _NOTE, json.dumps(_note_of(reader, stretch)))
    return sum(pq.read_metadata(path).num_rows for path in staged.glob("*.parquet"))


def _note_of(reader: str, stretch: Stretch) -> dict[str, object]:
    return {"reader": reader, "first": stretch.first, "last": stretch.last, "revision": stretch.revision}


def _note(folder: Path) -> object:
    try:
        return json.loads((folder / _NOTE).read_text())
    except (FileNotFoundError, ValueError):
        return None


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class ParquetRevisions:
    """A directory of Parquet files, with one folder for each revision.

    The directory is the backfill's own: Spark ignores foreign files in the directory of a streaming sink.

    Args:
        path: The directory, on a disk of this machine.
    """

    def __init__(self, path: str | Path) -> None:
        if "://" in str(path):
            raise InvalidInputError(
                "a backfill's results go to a directory of this machine", repr(str(path)), "give a path"
            )
        self.path = Path(path).absolute()
        if (self.path / "_spark_metadata").exists():
            raise InvalidInputError(
                "a backfill's results have a directory of their own",
                f"{self.path}, which a streaming query writes",
                "Spark would not see files added to it; give another directory, and read both",
            )

    @property
    def name(self) -> str:
        return f"parquet {self.path}"

    def last_revision(self) -> int:
        numbers = [path.name.removeprefix("revision=") for path in self.path.glob("revision=*")]
        return max((int(number) for number in numbers if number.isdigit()), default=0)

    def check(self, results: DataFrame, windowed: bool) -> None:
        """Takes anything that Spark can write."""

    def prepared(self, results: DataFrame, stretch: Stretch) -> DataFrame:
        return results.drop(REVISION)  # the folder's name has the revision

    def staging(self, reader: str, lanes: Path) -> Path:
        return self.path / f"_staging-{reader}"

    def published(self, reader: str, stretch: Stretch) -> int | None:
        wanted = _note_of(reader, stretch)
        found = (folder for folder in self.path.glob("revision=*") if _note(folder) == wanted)
        return next((int(folder.name.removeprefix("revision=")) for folder in found), None)

    def next_batch(self, reader: str) -> int:
        return 0

    def publish(self, staged: Path, reader: str, stretch: Stretch) -> int:
        revision = stretch.revision
        while True:
            try:
                staged.rename(self.path / f"revision={revision}")
                break
            except OSError:
                if not (self.path / f"revision={revision}").exists():
                    raise
                revision += 1  # a backfill of another stream has taken this number
        sync_directory(self.path)
        return revision

    def close(self) -> None:
        """Does nothing: a directory has no lock."""


class LogRevisions:
    """A stream of the embedded log; this process takes the lock of its first partition.

    Args:
        directory: The stream's directory.
    """

    def __init__(self, directory: str | Path) -> None:
        self.log = open_writer(directory, fsync="interval")  # synced when it is closed

    @property
    def name(self) -> str:
        return f"stream {self.log.ref.absolute()}"

    def last_revision(self) -> int:
        return 0

    def check(self, results: DataFrame, windowed: bool) -> None:
        """Refuses columns that are not the stream's.

        `revision` is added if the stream has that column; results with windows need it.
        """
        wanted = self.log.user_schema
        if is_shared(self.log.schema):
            raise InvalidInputError(
                "a shared stream takes no backfill, because its readers would take the results for new rows",
                self.log.name,
                "write to files: --to DIR",
            )
        if REVISION in wanted.names:
            results = results.withColumn(REVISION, self._revision(0))
        elif windowed:
            raise InvalidInputError(
                f"a stream that takes windows computed anew has a column {REVISION}",
                f"{self.log.name} with {wanted.names}",
                f"declare {REVISION}: long, and let the query give 0",
            )
        check_fit(to_arrow_schema(results.schema, timezone="UTC"), wanted, self.log.name)
        self.log.append(pa.RecordBatch.from_pylist([], schema=wanted))  # takes the lock before the work

    def prepared(self, results: DataFrame, stretch: Stretch) -> DataFrame:
        if REVISION in self.log.user_schema.names:
            results = results.withColumn(REVISION, self._revision(stretch.revision))
        return results

    def _revision(self, number: int) -> Column:
        kind = self.log.user_schema.field(REVISION).type
        return lit(number).cast("int" if kind == pa.int32() else "bigint")

    def staging(self, reader: str, lanes: Path) -> Path:
        return lanes / f"{reader}.staged"

    def published(self, reader: str, stretch: Stretch) -> int | None:
        return None

    def next_batch(self, reader: str) -> int:
        return self.log.last_batch(_writer(reader)) + 1

    def publish(self, staged: Path, reader: str, stretch: Stretch) -> int:
        for number, chunk in enumerate(self._chunks(staged), stretch.batch):
            self.log.append(chunk, 0, AppendKey(_writer(reader), number))
        self.log.close()  # syncs
        return stretch.revision

    def close(self) -> None:
        """Releases the lock."""
        self.log.close()

    def _chunks(self, staged: Path) -> Iterator[pa.RecordBatch]:
        """The staged rows, cut into the same chunks each time."""
        wanted = self.log.user_schema
        for path in sorted(staged.glob("*.parquet")):
            for chunk in pq.ParquetFile(path).iter_batches(CHUNK_ROWS):
                table = pa.Table.from_batches([chunk]).select(wanted.names).cast(wanted)
                yield from table.combine_chunks().to_batches()


def _writer(reader: str) -> str:
    return f"backfill-{reader[-30:]}"


def newest(results: DataFrame, revisions: DataFrame, window: str = "window") -> DataFrame:
    """The results of a windowed query, in which windows that were computed anew replace the old ones.

    Args:
        results: Results of the streaming query.
        revisions: Results of backfills: `spark.read.parquet(directory)`.
        window: The column that identifies a window.
    """
    first = results if REVISION in results.columns else results.withColumn(REVISION, lit(0))
    both = first.unionByName(revisions)
    highest = both.groupBy(window).agg(highest_of(REVISION).alias(REVISION))
    return both.join(highest, [window, REVISION], "left_semi")
