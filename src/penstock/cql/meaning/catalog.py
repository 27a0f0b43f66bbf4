"""The catalog of names that a query may use: streams with their columns, and registered queries."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from sqlglot import exp


@dataclass(frozen=True, slots=True)
class StreamDef:
    """A stream.

    Attributes:
        name: The registered name.
        columns: Types of the columns by name, as Spark's DDL names them.
        data: Name of the stream's data, if the text has one.
        timestamp: The column with a row's time; `None` if a row's time is its arrival.
    """

    name: str
    columns: dict[str, str]
    data: str | None = None
    timestamp: str | None = None

    @property
    def tuple_columns(self) -> dict[str, str]:
        """The columns of the stream's tuples."""
        return self.columns


@dataclass(frozen=True, slots=True)
class RelationDef(StreamDef):
    """A base relation: a stream of rows that insert a tuple into it or delete one.

    Attributes:
        sign: The column with + for a row that inserts, - for a row that deletes; `None` if the data has signs
            of its own.
        keys: Columns that identify a tuple: an insertion replaces the tuple with the same key, a deletion
            removes it. Without keys, a deletion removes one equal tuple.
    """

    sign: str | None = None
    keys: tuple[str, ...] = ()

    @property
    def tuple_columns(self) -> dict[str, str]:
        """All columns but the time and the sign of a change, which differ from insertion to deletion."""
        return {name: kind for name, kind in self.columns.items() if name not in (self.timestamp, self.sign)}


@dataclass(frozen=True, slots=True)
class ViewDef:
    """A query that was registered under a name, as STREAM, RELATION or VIEW ... AS."""

    name: str
    kind: str
    query: exp.Expr
    text: str


@dataclass(slots=True)
class Catalog:
    """Registered names; their case is ignored, as in SQL."""

    _entries: dict[str, StreamDef | ViewDef] = field(default_factory=dict)

    def add(self, entry: StreamDef | ViewDef) -> None:
        self._entries[entry.name.lower()] = entry

    def get(self, name: str) -> StreamDef | ViewDef | None:
        return self._entries.get(name.lower())

    def __contains__(self, name: str) -> bool:
        return name.lower() in self._entries

    @property
    def names(self) -> list[str]:
        return [entry.name for entry in self._entries.values()]

    def streams(self) -> Iterator[StreamDef]:
        return (entry for entry in self._entries.values() if isinstance(entry, StreamDef))
