"""Totals of readers that seem to be gone for good, by class and name of their query.

A control plane may outlive thousands of queries. The status shows the last queries that ended one by one. Of
earlier queries, only the row counts stay, in the books of their class.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.control.state.query import Gone

QUERIES = 32
"""Most ended queries of a class that the status shows one by one, and most ended readers of one query."""
AWAY_S = 60.0
"""Every query that ended is kept for this time. Perhaps only its connection was lost, as all connections are
when the control plane stops for a while. If such a query were forgotten, its cost would be learned anew."""
NAMES = 256
"""Most names of ended queries that have their own totals in a class. Further names share `OTHERS`."""
OTHERS = "(others)"
READERS = 4096
"""Most ended readers that are remembered one by one. When such a reader comes back, its rows are taken out of
the totals. A reader that ended earlier and comes back is counted twice."""


@dataclass(frozen=True, slots=True)
class Totals:
    """Row counts of readers that are gone.

    Attributes:
        readers: Number of readers.
        admitted: Rows that were admitted.
        shed: Rows that were shed.
        waiting: Rows that waited for the readers when they left.
    """

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
    """Returns the totals of one reader as they were when the reader left."""
    return Totals(1, gone.offset.books.admitted, gone.offset.books.shed, gone.waiting)


class Past:
    """The totals of all readers that are gone."""

    def __init__(self) -> None:
        self._classes: dict[str, dict[str, Totals]] = {}
        self._readers: dict[str, tuple[str, str, Totals]] = {}
        """By reader, the class and the name that its rows are counted under, and its rows. Oldest first."""

    def fold(self, cls: str, name: str, readers: Mapping[str, Gone]) -> None:
        """Adds the row counts of a query's readers to the totals."""
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
        """Takes the rows of a reader that joins again out of the totals: its offset counts all its rows."""
        if (found := self._readers.pop(reader, None)) is not None:
            cls, name, mine = found
            if cls in self._classes:
                self._classes[cls][name] = self._classes[cls][name].plus(mine, -1)

    def forget(self, cls: str) -> None:
        """Forgets the totals of a class that was removed."""
        self._classes.pop(cls, None)

    def of(self, cls: str) -> dict[str, Totals]:
        """Returns the totals of a class, by name of the query."""
        return {name: totals for name, totals in self._classes.get(cls, {}).items() if totals.readers}
