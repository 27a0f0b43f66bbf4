"""Readers that are gone for good, as it seems: totals by class and name, whatever their number.

A control plane may outlive thousands of queries. The last few that ended stay in the status as they were; of
the others the rows stay in the books of their class.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.control.state.query import Gone

QUERIES = 32
"""Of a class that have ended and are still shown one by one; and of one query, readers."""
AWAY_S = 60.0
"""So long every query that ended is kept: its line may only be broken, as those of all queries are when the
control plane was stopped for a while, and its cost would be learned anew."""
NAMES = 256
"""Of a class with totals of their own; what comes after them is put together."""
OTHERS = "(others)"
READERS = 4096
"""That are taken out of the totals should they come back; one that was gone before them counts twice then."""


@dataclass(frozen=True, slots=True)
class Totals:
    """Rows of readers that are gone."""

    readers: int = 0
    admitted: int = 0
    shed: int = 0
    waiting: int = 0

    @property
    def offered(self) -> int:
        return self.admitted + self.shed + self.waiting

    def plus(self, other: Totals, sign: int = 1) -> Totals:
        return Totals(
            self.readers + sign * other.readers,
            self.admitted + sign * other.admitted,
            self.shed + sign * other.shed,
            self.waiting + sign * other.waiting,
        )

    def to_json(self) -> dict[str, int]:
        names = ("readers", "offered", "admitted", "shed", "waiting")
        return {name: getattr(self, name) for name in names}


def totals_of(gone: Gone) -> Totals:
    """One reader's, as it was when it left."""
    return Totals(1, gone.offset.books.admitted, gone.offset.books.shed, gone.waiting)


class Past:
    """The books of those that are gone."""

    def __init__(self) -> None:
        self._classes: dict[str, dict[str, Totals]] = {}
        self._readers: dict[str, tuple[str, str, Totals]] = {}
        """By reader, where its rows are counted; the longest gone first."""

    def fold(self, cls: str, name: str, readers: Mapping[str, Gone]) -> None:
        """Counts readers of a query into the totals."""
        totals = self._classes.setdefault(cls, {})
        if name not in totals and len(totals) >= NAMES:
            name = OTHERS
        for reader, gone in readers.items():
            mine = totals_of(gone)
            totals[name] = totals.get(name, Totals()).plus(mine)
            self._readers[reader] = cls, name, mine
        while len(self._readers) > READERS:
            del self._readers[next(iter(self._readers))]

    def comes_back(self, reader: str) -> None:
        """A reader joins: its offset has all its rows, also those from before."""
        if (found := self._readers.pop(reader, None)) is not None:
            cls, name, mine = found
            if cls in self._classes:
                self._classes[cls][name] = self._classes[cls][name].plus(mine, -1)

    def forget(self, cls: str) -> None:
        """A class was taken out."""
        self._classes.pop(cls, None)

    def of(self, cls: str) -> dict[str, Totals]:
        """By name."""
        return {name: totals for name, totals in self._classes.get(cls, {}).items() if totals.readers}
