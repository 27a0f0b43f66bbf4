"""Shared streams: which class owns the stream, and that no class above it reads it.

A shared stream has the rows of a sub-query that several queries read. A class that waited for the results of
a lower one would wait for what is shed and delayed there (the congestion of pham2016 fig. 5), so the highest
class that reads a shared stream owns it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from penstock.vocabulary.errors import InvalidInputError
from penstock.vocabulary.stream_ref import StreamRef

RUNNING = "class {}: a class that is removed has no running queries"
"""The rule that a driver waits for: its queries take a moment to leave."""

Reads = Iterable[tuple[str, str]]
"""Ids of streams, and the classes whose queries read them."""


class SharedStreams:
    """The owners of shared streams, by the id of the stream."""

    def __init__(self) -> None:
        self._owners: dict[str, str] = {}

    def own(self, stream: str, cls: str, reads: Reads, priorities: Mapping[str, float]) -> None:
        """A query of a class writes a shared stream; the last one that says so owns it.

        Args:
            stream: Its id.
            cls: The class.
            reads: Of all queries that run.
            priorities: Of all classes.
        """
        _check({**self._owners, stream: cls}, reads, priorities)
        self._owners[stream] = cls

    def owned(self, cls: str) -> list[str]:
        """The shared streams of a class."""
        return [stream for stream, owner in self._owners.items() if owner == cls]

    def release(self, stream: str) -> None:
        """Nobody writes a shared stream any more: it is a stream like others."""
        self._owners.pop(stream, None)

    def forget(self, cls: str) -> None:
        """A class is gone, and what it owned with it."""
        for stream in self.owned(cls):
            del self._owners[stream]

    def check(self, reads: Reads, priorities: Mapping[str, float]) -> None:
        """Refuses a read by a class above the owner."""
        _check(self._owners, reads, priorities)


def _check(owners: Mapping[str, str], reads: Reads, priorities: Mapping[str, float]) -> None:
    for stream, cls in reads:
        owner = owners.get(stream)
        if owner is not None and priorities[cls] > priorities[owner]:
            raise InvalidInputError(
                f"a shared stream is owned by the highest class that reads it; "
                f"{StreamRef(stream).name} is owned by {owner} (priority {priorities[owner]:g})",
                f"class {cls} (priority {priorities[cls]:g})",
                f"let a query of class {cls} write it, or read it in class {owner} or a lower one",
            )
