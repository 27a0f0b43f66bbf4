"""Reads a CQL text: its registrations and its queries."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
from sqlglot import exp

from penstock.cql.analysis.windowing import streams_read
from penstock.cql.datafiles import no_tuples, tuples_of
from penstock.cql.errors import CqlError
from penstock.cql.language.dialect import parse, to_text
from penstock.cql.language.nodes import Register
from penstock.cql.meaning.bind import bind
from penstock.cql.meaning.catalog import Catalog, StreamDef
from penstock.cql.meaning.expressions import place_of
from penstock.cql.meaning.plan import Query
from penstock.cql.meaning.registering import register


@dataclass(frozen=True, slots=True)
class Written:
    """A query of a text: as written, its meaning, and its name if REGISTER QUERY gave it one."""

    statement: exp.Expr
    query: Query
    name: str | None = None

    @property
    def text(self) -> str:
        return to_text(self.statement)


@dataclass(frozen=True, slots=True)
class Program:
    """The content of a CQL text.

    Attributes:
        catalog: The streams and views that the queries may name.
        queries: The queries in the order of the text.
    """

    catalog: Catalog
    queries: list[Written] = field(default_factory=list)


def read_program(text: str, catalog: Catalog | None = None, file: str = "", tick_us: int = 1) -> Program:
    """Reads a whole text.

    Args:
        text: Statements with a ; between them.
        catalog: Names that are registered already; statements add to it.
        file: Name of the file, for errors.
        tick_us: Time between two instants.

    Raises:
        CqlError: A statement is not CQL, or has no meaning.
    """
    program = Program(Catalog() if catalog is None else catalog)
    try:
        for statement in parse(text):
            if not isinstance(statement, Register):
                program.queries.append(Written(statement, bind(statement, program.catalog, text, tick_us)))
            elif statement.args["kind"] == "QUERY":
                program.queries.append(_named(statement, program, text, tick_us))
            else:
                register(statement, program.catalog, text)
    except CqlError as error:
        raise (error.of_file(file) if file else error) from None
    return program


def _named(statement: Register, program: Program, text: str, tick_us: int) -> Written:
    name = statement.this.name
    if name.lower() in ((written.name or "").lower() for written in program.queries):
        place = place_of(statement.this)
        raise CqlError("a name is registered once", repr(name), "choose another name", text, place)
    query = statement.args["query"]
    return Written(query, bind(query, program.catalog, text, tick_us), name)


def tuples_read(program: Program, query: Query, folder: Path | None) -> dict[str, pa.Table]:
    """Tuples of the streams that a query reads, from files of a folder, see `tuples_of`; none without one."""
    found = {}
    for name in sorted(streams_read(query.plan)):
        stream = program.catalog.get(name)
        assert isinstance(stream, StreamDef)
        found[name] = no_tuples(stream) if folder is None else tuples_of(stream, folder)
    return found
