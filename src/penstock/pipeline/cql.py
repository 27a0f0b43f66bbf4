"""Queries of a pipeline in CQL: over the pipeline's own streams, checked before anything starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from penstock.cql.catalog import Catalog, StreamDef
from penstock.cql.errors import CqlError
from penstock.cql.families import Family, families_of
from penstock.cql.plan import Query
from penstock.cql.program import read_program
from penstock.cql.windowing import Mode, check_mode, default_mode
from penstock.pipeline.columns import parse_type


class Stream(Protocol):
    """What a query must know of a stream."""

    @property
    def columns(self) -> Mapping[str, str] | None: ...

    @property
    def event_time(self) -> str | None: ...


@dataclass(frozen=True, slots=True)
class Continuous:
    """What a pipeline's key `cql` means.

    Attributes:
        query: The only query, or the first of a family.
        family: Queries with names that differ in constants alone; one may be the only one.
    """

    query: Query
    family: Family | None = None


def continuous(text: str, streams: Mapping[str, Stream]) -> Continuous:
    """What a text means: one query, or a family of queries with names; views may come before them.

    Raises:
        CqlError: It means nothing, or more than one thing.
    """
    known = [(n, tuple(s.columns.items()), s.event_time) for n, s in streams.items() if s.columns is not None]
    return _continuous(text, tuple(known))


@lru_cache(maxsize=64)  # a pipeline asks several times, and a thousand queries take a second
def _continuous(
    text: str, streams: tuple[tuple[str, tuple[tuple[str, str], ...], str | None], ...]
) -> Continuous:
    catalog = Catalog()
    for name, columns, event_time in streams:
        types = {column: parse_type(kind)[0] for column, kind in columns}
        catalog.add(StreamDef(name, types, timestamp=event_time))
    found = read_program(text, catalog).queries
    if not found:
        raise CqlError("cql has a query", "none", "SELECT ... FROM a stream")
    if len(found) == 1 and found[0].name is None:
        return Continuous(found[0].query)
    queries = {written.name: written.query for written in found if written.name is not None}
    if len(queries) < len(found):
        raise CqlError(
            "of several queries each has a name, by which its results are known",
            f"{len(found) - len(queries)} without",
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
    """How answers are given: as it is wanted, or by windows where they have a slide and close.

    Raises:
        CqlError: They cannot be given so.
    """
    if meant.family is not None and wanted == "relation":
        raise CqlError(
            "queries with names are computed together, and give each window's result once",
            "answers: relation",
            "leave it out, or make a key of `queries` for each, without a name",
        )
    mode = wanted or ("windows" if meant.family is not None else default_mode(meant.query.plan))
    check_mode(meant.query, mode, meant.family is not None)
    return mode
