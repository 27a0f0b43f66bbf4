"""Shared streams: which class owns a shared stream. No class above the owner may read the stream.

A shared stream has the rows of a sub-query that several queries read. The highest class that reads a shared
stream owns the stream. If a lower class owned it, the higher class would wait for rows that the lower class
sheds and delays (the congestion of pham2016 fig. 5).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from penstock.vocabulary.errors import InvalidInputError
from penstock.vocabulary.stream_ref import StreamRef

RUNNING = "class {}: a class that is removed has no running queries"
"""The rule of a refusal. A driver that removes a class tries again then: queries take a moment to leave."""

Reads = Iterable[tuple[str, str]]
"""Pairs: the id of a stream, and a class with a query that reads the stream."""


class SharedStreams:
    """The owners of shared streams, by the id of the stream."""

    def __init__(self) -> None:
        self._owners: dict[str, str] = {}

    def own(self, stream: str, cls: str, reads: Reads, priorities: Mapping[str, float]) -> None:
        """Makes a class the owner of a shared stream, instead of the owner before, if there was one.

        Args:
            stream: The id of the stream.
            cls: The class of the query that writes the stream.
            reads: What the running queries read.
            priorities: By class, its priority.
        """
        _check({**self._owners, stream: cls}, reads, priorities)
        self._owners[stream] = cls

    def owned(self, cls: str) -> list[str]:
        """Returns the ids of the shared streams that a class owns."""
        return [stream for stream, owner in self._owners.items() if owner == cls]

    def release(self, stream: str) -> None:
        """Forgets the owner of a shared stream that no query writes any more."""
        self._owners.pop(stream, None)

    def forget(self, cls: str) -> None:
        """Forgets a class and its ownership of streams."""
        for stream in self.owned(cls):
            del self._owners[stream]

    def check(self, reads: Reads, priorities: Mapping[str, float]) -> None:
        """Raises an error if a class reads a shared stream of a lower class."""
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
