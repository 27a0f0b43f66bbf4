"""CQL files."""

from __future__ import annotations

from pathlib import Path

from penstock.cql.program import Program, read_program
from penstock.vocabulary.errors import InvalidInputError


def read_file(file: Path, tick_us: int = 1) -> Program:
    """Reads the registrations and queries of a file, which must have at least one query.

    Args:
        file: The file.
        tick_us: Time between two instants.

    Raises:
        CqlError: A statement is not CQL, or has no meaning.
        InvalidInputError: The file is no text, or has no query.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InvalidInputError("a CQL file is UTF-8 text", file, "save it as UTF-8") from error
    program = read_program(text, file=str(file), tick_us=tick_us)
    if not program.queries:
        raise InvalidInputError("a CQL file has at least one query", file, "SELECT * FROM readings [ROWS 1];")
    return program
