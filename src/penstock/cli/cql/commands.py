"""`penstock cql`: check and explain files of continuous queries."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, cast

import typer
from rich.markup import escape

from penstock.cli.consoles import output_console
from penstock.cli.cql.run import check_answers, run_command, spark_plans
from penstock.cli.outputs import claim_output, write_json
from penstock.cql.analysis.explain import plan_lines, running_lines
from penstock.cql.analysis.families import Family, families_of
from penstock.cql.analysis.windowing import Mode, check_mode, default_mode
from penstock.cql.errors import CqlError
from penstock.cql.files import read_file
from penstock.cql.meaning.check import advice_on
from penstock.cql.program import Program, Written

cql_app = typer.Typer(
    help="Continuous queries in CQL: check, explain and run them.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)

cql_app.command("run")(run_command)

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
    answers: Annotated[
        str | None,
        typer.Option(metavar="MODE", help="Also refuse what cannot be given so: windows, relation or rows."),
    ] = None,
    json: Json = None,
    force: Force = False,
) -> None:
    """Say whether the queries of a file are right, and what each keeps for ever."""
    claim_output(json, force)
    check_answers(answers)
    program = read_file(file)
    console = output_console(json)
    found = []
    for number, written in enumerate(program.queries, 1):
        check_mode(written.query, cast("Mode", answers) or default_mode(written.query.plan))
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
def explain_command(
    file: QueryFile,
    spark: Annotated[bool, typer.Option("--spark", help="Also Spark's physical plan; starts Spark.")] = False,
    json: Json = None,
    force: Force = False,
) -> None:
    """Show what each query of a file does: its operators, from the answer down to its streams, how Spark runs
    it, and which queries are computed together."""
    claim_output(json, force)
    program = read_file(file)
    console = output_console(json)
    found = []
    plans = spark_plans(program) if spark else []
    for number, written in enumerate(program.queries, 1):
        mode = default_mode(written.query.plan)
        runs = running_lines(written.query, program.catalog, mode)
        lines = plan_lines(written.query, program.catalog)
        found.append(_as_json(written) | {"plan": lines, "answers": mode, "runs": runs})
        lines += runs
        if plans:
            lines += plans[number - 1].splitlines()
            found[-1]["spark"] = plans[number - 1]
        console.print(f"query {number}: {escape(written.text)}", highlight=False, soft_wrap=True)
        for line in lines:
            console.print(f"  {escape(line)}", highlight=False, soft_wrap=True)
    shared = [family.members for family in _families(program) if len(family.members) > 1]
    for members in shared:
        line = f"queries {', '.join(members)} are a family: they differ in constants, and are computed as one"
        console.print(line, highlight=False, soft_wrap=True)
    if json is not None:
        families = [{name: list(constants) for name, constants in members.items()} for members in shared]
        write_json(json, {"file": str(file), "queries": found, "families": families})


def _families(program: Program) -> list[Family]:
    """The families of queries that are computed window by window; members are named by their numbers."""
    numbered = {str(number): written.query for number, written in enumerate(program.queries, 1)}
    by_windows = {number: q for number, q in numbered.items() if default_mode(q.plan) == "windows"}
    return families_of(by_windows)


def _as_json(written: Written) -> dict[str, Any]:
    columns = zip(written.query.names, written.query.plan.columns, strict=True)
    return {
        "query": written.text,
        "columns": {name: column.type for name, column in columns},
        "stream": written.query.plan.is_stream,
    }
