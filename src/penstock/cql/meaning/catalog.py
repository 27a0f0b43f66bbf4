"""What a query may name: streams with their columns, and queries that were registered under a name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from sqlglot import exp


@dataclass(frozen=True, slots=True)
class StreamDef:
    """A stream.

    Attributes:
        name: As it was registered.
        columns: By name, the type as Spark's DDL names it.
        data: Where its rows come from, if the text says so.
        timestamp: The column with a row's time; `None` for the time at which it arrives.
    """

    name: str
    columns: dict[str, str]
    data: str | None = None
    timestamp: str | None = None

    @property
    def tuple_columns(self) -> dict[str, str]:
        """Those of its tuples."""
        return self.columns


@dataclass(frozen=True, slots=True)
class RelationDef(StreamDef):
    """A base relation: a stream of rows that insert a tuple into it or delete one.

    Attributes:
        sign: The column with + for a row that inserts, - for one that deletes; `None` if the data has signs
            of its own.
        keys: Columns that tell its tuples apart: an insertion replaces the tuple with its key, a deletion
            takes it away. Without them a deletion takes away one tuple that equals it.
    """

    sign: str | None = None
    keys: tuple[str, ...] = ()

    @property
    def tuple_columns(self) -> dict[str, str]:
        """All but the time and the sign of a change: a deletion's are not those of its insertion."""
        return {name: kind for name, kind in self.columns.items() if name not in (self.timestamp, self.sign)}


@dataclass(frozen=True, slots=True)
class ViewDef:
    """A query with a name: what was registered as STREAM, RELATION or VIEW ... AS."""

    name: str
    kind: str
    query: exp.Expr
    text: str


@dataclass(slots=True)
class Catalog:
    """Names are told apart without regard to case, as in SQL."""

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
