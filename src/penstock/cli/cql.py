"""`penstock cql`: check and explain files of continuous queries."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from penstock.cli.outputs import claim_output, write_json
from penstock.cli.simulate import output_console
from penstock.cql.check import advice_on
from penstock.cql.errors import CqlError
from penstock.cql.explain import plan_lines
from penstock.cql.program import Program, Written, read_program
from penstock.errors import InvalidInputError

cql_app = typer.Typer(
    help="Continuous queries in CQL: check and explain them.", no_args_is_help=True, rich_markup_mode="rich"
)

EPILOG = """
[bold]A file[/bold] registers streams and has queries over them, with a ; between:

[cyan]REGISTER STREAM readings (device int, value float);[/cyan]

[cyan]SELECT device, avg(value) FROM readings \\[RANGE 1 MINUTE] GROUP BY device;[/cyan]

[bold]Windows[/bold] are \\[NOW], \\[RANGE 10 SECONDS SLIDE 5 SECONDS], \\[ROWS 5], \\[UNBOUNDED] and
\\[PARTITION BY device ROWS 1]; ISTREAM(...), DSTREAM(...) and RSTREAM(...) make a stream of what a query
gives.
"""

QueryFile = Annotated[Path, typer.Argument(metavar="FILE", help="Queries in CQL.", show_default=False)]
Json = Annotated[str | None, typer.Option(metavar="FILE", help="Write it as JSON; - for standard output.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite an existing JSON file.")]


@cql_app.command("check", epilog=EPILOG)
def check_command(
    file: QueryFile,
    strict: Annotated[
        bool, typer.Option("--strict", help="Refuse queries that keep something for ever.")
    ] = False,
    json: Json = None,
    force: Force = False,
) -> None:
    """Say whether the queries of a file are right, and what each keeps for ever."""
    claim_output(json, force)
    program = _read(file)
    console = output_console(json)
    found = []
    for number, written in enumerate(program.queries, 1):
        advice = list(advice_on(written.query.plan))
        found.append(_as_json(written) | {"advice": [{"says": a.says, "hint": a.hint} for a in advice]})
        console.print(f"query {number}: {escape(written.text)}", highlight=False, soft_wrap=True)
        for each in advice:
            console.print(
                f"  [yellow]{escape(each.says)}[/]; {escape(each.hint)}", highlight=False, soft_wrap=True
            )
            if strict and each.keeps_for_ever:
                raise CqlError("a query keeps nothing for ever (strict)", each.says, each.hint)
    streams = sum(1 for _ in program.catalog.streams())
    console.print(f"{len(program.queries)} queries over {streams} streams are right", highlight=False)
    if json is not None:
        write_json(json, {"file": str(file), "queries": found})


@cql_app.command("explain", epilog=EPILOG)
def explain_command(file: QueryFile, json: Json = None, force: Force = False) -> None:
    """Show what each query of a file does: its operators, from the answer down to its streams."""
    claim_output(json, force)
    program = _read(file)
    console = output_console(json)
    found = []
    for number, written in enumerate(program.queries, 1):
        lines = plan_lines(written.query, program.catalog)
        found.append(_as_json(written) | {"plan": lines})
        console.print(f"query {number}: {escape(written.text)}", highlight=False, soft_wrap=True)
        for line in lines:
            console.print(f"  {escape(line)}", highlight=False, soft_wrap=True)
    if json is not None:
        write_json(json, {"file": str(file), "queries": found})


def _read(file: Path) -> Program:
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InvalidInputError("a CQL file is UTF-8 text", file, "save it as UTF-8") from error
    program = read_program(text, file=str(file))
    if not program.queries:
        raise InvalidInputError("a CQL file has at least one query", file, "SELECT * FROM readings [ROWS 1];")
    return program


def _as_json(written: Written) -> dict[str, Any]:
    columns = zip(written.query.names, written.query.plan.columns, strict=True)
    return {
        "query": written.text,
        "columns": {name: column.type for name, column in columns},
        "stream": written.query.plan.is_stream,
    }
