"""Queries of a pipeline in CQL: over the pipeline's own streams, checked before anything starts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Protocol

from penstock.cql.catalog import Catalog, StreamDef
from penstock.cql.errors import CqlError
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


def cql_query(text: str, streams: Mapping[str, Stream]) -> Query:
    """What the only query of a text means; views may come before it.

    Raises:
        CqlError: It means nothing, or there are more.
    """
    catalog = Catalog()
    for name, stream in streams.items():
        if stream.columns is not None:
            types = {column: parse_type(kind)[0] for column, kind in stream.columns.items()}
            catalog.add(StreamDef(name, types, timestamp=stream.event_time))
    found = read_program(text, catalog).queries
    if len(found) != 1:
        raise CqlError(
            "a query of a pipeline is one query", str(len(found)), "make a key of `queries` for each"
        )
    return found[0].query


def answers_of(query: Query, wanted: Answers | None) -> Answers:
    """How a query's answer is given: as it is wanted, or by windows where they have a slide and close.

    Raises:
        CqlError: It cannot be given so.
    """
    if wanted == "windows":
        closing_windows(query.plan)
    if wanted is not None:
        return wanted
    return "windows" if default_mode(query.plan) == "windows" else "relation"
