"""The reference of a stream: one text that names the stream for every process, wherever its rows are kept."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class StreamRef:
    """Names a stream: a directory on this machine, or an address such as `grpc://host:port/readings`.

    Attributes:
        id: The text. Two references with the same text name the same stream; no other stream has it.
    """

    id: str

    @classmethod
    def of(cls, place: str | Path | StreamRef) -> StreamRef:
        """The reference that a directory, `file://` and a directory, an address or a reference stands for."""
        return place if isinstance(place, StreamRef) else cls(str(place).removeprefix("file://"))

    @property
    def scheme(self) -> str:
        """Who keeps the stream: `grpc` for a server; `file` for a directory of this machine."""
        scheme, found, _ = self.id.partition("://")
        return scheme if found else "file"

    @property
    def address(self) -> str:
        """The text without the stream's name: `grpc://host:port`, or the parent of a directory."""
        return self.id.rstrip("/").rpartition("/")[0]

    @property
    def name(self) -> str:
        """What a user calls the stream: the last part of the text."""
        return self.id.rstrip("/").rpartition("/")[2]

    def absolute(self) -> StreamRef:
        """The reference that also another process, in another working directory, can open."""
        return StreamRef(str(Path(self.id).absolute())) if self.scheme == "file" else self

    def __str__(self) -> str:
        return self.id
