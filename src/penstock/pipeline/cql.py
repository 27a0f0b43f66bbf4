"""Queries of a pipeline in CQL: over the pipeline's own streams, checked before anything starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from penstock.cql.catalog import Catalog, StreamDef
from penstock.cql.errors import CqlError
from penstock.cql.families import Family, families_of
from penstock.cql.plan import Query
from penstock.cql.program import read_program
from penstock.cql.windowing import closing_windows, default_mode
from penstock.pipeline.columns import parse_type

Answers = Literal["windows", "relation"]
"""Each window's result once, or the exact answer as changes."""


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
        family: Queries that differ in constants alone, if there is more than one.
    """

    query: Query
    family: Family | None = None


def continuous(text: str, streams: Mapping[str, Stream]) -> Continuous:
    """What a text means: one query, or a family of queries with names; views may come before them.

    Raises:
        CqlError: It means nothing, or more than one thing.
    """
    catalog = Catalog()
    for name, stream in streams.items():
        if stream.columns is not None:
            types = {column: parse_type(kind)[0] for column, kind in stream.columns.items()}
            catalog.add(StreamDef(name, types, timestamp=stream.event_time))
    found = read_program(text, catalog).queries
    if not found:
        raise CqlError("cql has a query", "none", "SELECT ... FROM a stream")
    if len(found) == 1:
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
            "make a key of `queries` for each shape, or cast constants alike",
        )
    return Continuous(found[0].query, families[0])


def answers_of(meant: Continuous, wanted: Answers | None) -> Answers:
    """How answers are given: as it is wanted, or by windows where they have a slide and close.

    Raises:
        CqlError: They cannot be given so.
    """
    plan = meant.query.plan
    if wanted == "windows" or meant.family is not None:
        closing_windows(plan)
    if meant.family is not None:
        if wanted == "relation":
            raise CqlError(
                "queries that are computed together give each window's result once",
                "answers: relation",
                "leave it out, or make a key of `queries` for each",
            )
        return "windows"
    if wanted is not None:
        return wanted
    return "windows" if default_mode(plan) == "windows" else "relation"
