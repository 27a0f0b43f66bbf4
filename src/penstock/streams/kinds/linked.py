"""A link: a directory of a log on this machine that stands for a stream at an address.

<stream>/stream.json   kind `link`, and the address at which the rows are

The rows are kept by a server or a broker. What Penstock keeps about the stream, such as plan journals and the
progress of readers, lies in the directory. Whoever opens the directory has both.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from penstock.streams.descriptor import read_about, write_about
from penstock.streams.protocol import HeaderArrays, PositionedRows, StreamRows
from penstock.streams.state import FileState
from penstock.vocabulary.errors import InvalidInputError
from penstock.vocabulary.stream_ref import StreamRef

KIND = "link"


def address_of(directory: Path) -> StreamRef:
    """The address that a link leads to."""
    return StreamRef(str(read_about(directory, KIND)["ref"]))


def make_link(directory: Path, ref: StreamRef) -> None:
    """Lets a directory stand for the stream at an address; a directory that does so already is left as it is.

    Raises:
        InvalidInputError: The directory holds another stream, or stands for another address.
    """
    if not (directory / "stream.json").exists():
        with suppress(InvalidInputError):  # another driver was quicker
            write_about(directory, {"kind": KIND, "ref": ref.id}, lambda: None)
    about = read_about(directory)
    if about.get("kind", "embedded") != KIND:
        raise InvalidInputError(
            f"stream {directory.name} lies at {ref}",
            f"a stream of this name in {directory.parent}",
            "leave the name out of `streams`, or give the stream at the address another name",
        )
    if about["ref"] != ref.id:
        raise InvalidInputError(
            f"stream {directory.name} lies at {about['ref']}, as when it was read first",
            ref,
            f"if it is the same stream, which has moved, remove {directory / 'stream.json'}; else rename it",
        )


class LinkedLog:
    """A stream at an address, with its state in a directory of this machine.

    Its name is that of the directory: what the flow calls the stream.

    Args:
        directory: The link.
        rows: The stream at the address. The linked log closes it.
        clock: Seconds since the epoch.
    """

    def __init__(self, directory: Path, rows: StreamRows, clock: Callable[[], float]) -> None:
        self.ref, self._rows = StreamRef.of(directory), rows
        self.schema, self.user_schema = rows.schema, rows.user_schema
        self.state = FileState(directory, self._first_left, clock)

    def _first_left(self, partition: int, before: int) -> int:
        """Trims nothing: rows go when their keeper wants it."""
        return self._rows.start(partition)

    @property
    def name(self) -> str:
        return self.ref.name

    @property
    def uid(self) -> str:
        """The id of the stream at the address, so that a checkpoint knows it wherever its link lies."""
        return self._rows.uid

    @property
    def partitions(self) -> int:
        return self._rows.partitions

    def partition_name(self, partition: int) -> str:
        return self._rows.partition_name(partition)

    @property
    def dense(self) -> bool:
        return self._rows.dense

    @property
    def key_column(self) -> str | None:
        return self._rows.key_column

    @property
    def key_buckets(self) -> int:
        return self._rows.key_buckets

    @property
    def event_time(self) -> str | None:
        return self._rows.event_time

    def start(self, partition: int = 0) -> int:
        return self._rows.start(partition)

    def end(self, partition: int = 0) -> int:
        return self._rows.end(partition)

    def position_at(self, partition: int, arrival_us: int) -> int:
        return self._rows.position_at(partition, arrival_us)

    def header_arrays(self, partition: int, start: int, end: int, keys: bool = True) -> HeaderArrays:
        return self._rows.header_arrays(partition, start, end, keys)

    def mark(self, partition: int, position: int) -> int | None:
        return self._rows.mark(partition, position)

    def read(self, partition: int, first: int, end: int) -> PositionedRows:
        return self._rows.read(partition, first, end)

    def close(self) -> None:
        self._rows.close()

    def __enter__(self) -> LinkedLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
