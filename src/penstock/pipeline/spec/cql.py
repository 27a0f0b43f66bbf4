"""Queries of a pipeline in CQL, over the pipeline's own streams; checked before anything starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from penstock.config.shed_settings import ShedSettings
from penstock.cql.analysis.estimating import estimated
from penstock.cql.analysis.families import Family, families_of
from penstock.cql.analysis.windowing import Mode, check_mode, default_mode, streams_read, tuple_by_tuple
from penstock.cql.errors import CqlError
from penstock.cql.meaning.catalog import Catalog, RelationDef, StreamDef
from penstock.cql.meaning.plan import Query
from penstock.cql.program import read_program
from penstock.policies.quality.estimates import WITHOUT_CHANCES
from penstock.vocabulary.schema import parse_type


class Changing(Protocol):
    """The part of a stream's configuration that makes it the changes of a relation."""

    @property
    def sign(self) -> str:
        """The column that says whether a row inserts or deletes a tuple."""
        ...

    @property
    def key(self) -> tuple[str, ...]:
        """Columns that tell tuples apart; none for all columns."""
        ...


class Stream(Protocol):
    """The part of a stream's configuration that a query needs."""

    @property
    def columns(self) -> Mapping[str, str] | None:
        """Types of the columns by name; `None` if only the log knows them."""
        ...

    @property
    def event_time(self) -> str | None:
        """The column with the time of a row's event, if there is one."""
        ...

    @property
    def changes(self) -> Changing | None:
        """What makes the stream the changes of a relation; `None` for a stream of rows."""
        ...


@dataclass(frozen=True, slots=True)
class Continuous:
    """The meaning of a pipeline's key `cql`.

    Attributes:
        query: The only query, or the first query of a family.
        family: Queries with names that differ in constants alone; there may be only one.
    """

    query: Query
    family: Family | None = None


Streams = tuple[tuple[str, tuple[tuple[str, str], ...], str | None, tuple[str, ...] | None], ...]
"""For each stream: name, columns, event time; for changes also the column with the sign, and the keys."""
Views = tuple[tuple[str, str], ...]


def continuous(
    text: str, streams: Mapping[str, Stream], views: Mapping[str, str] | None = None
) -> Continuous:
    """The meaning of a text: one query, or a family of queries with names; views may come before them.

    Args:
        text: A text in CQL.
        streams: The pipeline's streams.
        views: The pipeline's views, in CQL.

    Raises:
        CqlError: The text has no meaning, or more than one.
    """
    return _continuous(text, _known(streams), tuple((views or {}).items()))


def catalog_of(streams: Mapping[str, Stream], views: Mapping[str, str]) -> Catalog:
    """The catalog of names that a pipeline's queries can use.

    Raises:
        CqlError: A view has no meaning.
    """
    return _catalog(_known(streams), tuple(views.items()))


def _known(streams: Mapping[str, Stream]) -> Streams:
    def changes(stream: Stream) -> tuple[str, ...] | None:
        return None if stream.changes is None else (stream.changes.sign, *stream.changes.key)

    return tuple(
        (n, tuple(s.columns.items()), s.event_time, changes(s))
        for n, s in streams.items()
        if s.columns is not None
    )


def _catalog(streams: Streams, views: Views) -> Catalog:
    catalog = Catalog()
    for name, columns, event_time, changes in streams:
        types = {column: parse_type(kind)[0] for column, kind in columns}
        entry = StreamDef(name, types, timestamp=event_time)
        if changes is not None:
            entry = RelationDef(name, types, timestamp=event_time, sign=changes[0], keys=changes[1:])
        catalog.add(entry)
    for name, text in views:
        add_view(catalog, name, text)
    return catalog


def add_view(catalog: Catalog, name: str, text: str) -> Query:
    """Registers a view; returns its meaning.

    A view that only drops and changes tuples is a stream, so that its readers can give it windows.

    Raises:
        CqlError: The view has no meaning, or is more than one query.
    """
    names = set(catalog.names)
    found = read_program(text, catalog).queries
    if len(found) != 1 or found[0].name is not None or set(catalog.names) != names:
        raise CqlError("a view is one query", f"view {name} with other statements", "SELECT ... FROM ...")
    query, text = found[0].query, text.strip().rstrip(";")
    if not query.plan.is_stream and _is_tuple_by_tuple(query):
        text = f"ISTREAM({text})"
    read_program(f"REGISTER VIEW {name} AS {text}", catalog)
    return query


def _is_tuple_by_tuple(query: Query) -> bool:
    try:
        tuple_by_tuple(query.plan)
    except CqlError:
        return False
    return True


@lru_cache(maxsize=64)  # a pipeline asks several times, and a thousand queries take a second
def _continuous(text: str, streams: Streams, views: Views) -> Continuous:
    catalog = _catalog(streams, views)
    found = read_program(text, catalog).queries
    if not found:
        raise CqlError("cql has a query", "none", "SELECT ... FROM a stream")
    others = {name for each in found for name in streams_read(each.query.plan)} - {
        each[0] for each in streams
    }
    if others:
        raise CqlError(
            "a query of a pipeline reads the pipeline's streams",
            ", ".join(sorted(others)),
            "declare it under streams; a relation is a stream with `changes`",
        )
    if len(found) == 1 and found[0].name is None:
        return Continuous(found[0].query)
    queries = {written.name: written.query for written in found if written.name is not None}
    if len(queries) < len(found):
        raise CqlError(
            "of several queries each has a name, by which its results are known",
            f"{len(found) - len(queries)} without a name",
            "REGISTER QUERY boiler AS SELECT ...",
        )
    families = families_of(queries)
    if len(families) > 1:
        first, other = (next(iter(family.members)) for family in families[:2])
        raise CqlError(
            "several queries of one key differ in constants alone, and are computed together",
            f"{first} and {other}, which differ in more",
            "make a key of `queries` for each shape; write 2.0 beside 2.5, and name columns with AS",
        )
    return Continuous(found[0].query, families[0])


def answers_of(meant: Continuous, wanted: Mode | None) -> Mode:
    """The mode of answers: the wanted one; by default windows, if the query's windows have a slide and close.

    Raises:
        CqlError: The query cannot be answered in the wanted mode.
    """
    if meant.family is not None and wanted == "relation":
        raise CqlError(
            "queries with names are computed together, and give each window's result once",
            "answers: relation",
            "leave it out, or make a key of `queries` for each query, without a name",
        )
    mode = wanted or ("windows" if meant.family is not None else default_mode(meant.query.plan))
    check_mode(meant.query, mode, meant.family is not None)
    return mode


def check_estimates(meant: Continuous, mode: Mode, shed: ShedSettings) -> None:
    """Refuses estimates that cannot be made.

    Raises:
        CqlError: The query, its answers or what its class sheds do not allow them.
    """
    if meant.family is not None or mode != "windows":
        raise CqlError(
            "estimates are by window, of a query by itself",
            "a family" if meant.family is not None else f"answers: {mode}",
            "leave out `estimates`, or make it a query of its own with [RANGE n SLIDE m]",
        )
    if shed.shedder is not None and shed.shedder in WITHOUT_CHANCES:
        raise CqlError(
            "an estimate needs a class that keeps rows with a known probability",
            f"shed by {shed.by}: {WITHOUT_CHANCES[shed.shedder]}",
            "write shed: sample, row, segment, key or random, or read the result's sic",
        )
    estimated(meant.query)
