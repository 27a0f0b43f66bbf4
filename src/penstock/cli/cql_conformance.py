"""`penstock cql conformance`: queries on Spark whose answers are known, compared tuple by tuple."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table

from penstock.cli.consoles import output_console
from penstock.cli.outputs import claim_output, write_json
from penstock.errors import MissingExtraError, UnknownNameError

if TYPE_CHECKING:
    from penstock.cql.spark.conformance import Verdict

SHOWN = 3
"""Wrong elements that are printed of each case and kind."""


def conformance_command(
    folder: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="Has queries/, data/ and expected/.", show_default=False),
    ],
    queries: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where the queries lie.", show_default="DIR/queries")
    ] = None,
    case: Annotated[list[str] | None, typer.Option(help="Only this case; may be repeated.")] = None,
    partitions: Annotated[
        list[int], typer.Option(min=1, help="Partitions of the streams and of the state; may be repeated.")
    ] = [1, 4],  # noqa: B006 - typer copies it
    batches: Annotated[int, typer.Option(min=1, help="Micro-batches that a case takes at the least.")] = 10,
    json: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write it as JSON; - for standard output.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing JSON file.")] = False,
) -> None:
    """Run queries on Spark whose answers are known, and compare them tuple by tuple.

    DIR has queries/NAME.cql (streams with their data, REGISTER STREAM S (A int) FROM 'S1', and one query),
    data/S1.dat (types, then instant and values) and expected/NAME (the answer, [instant]:sign:values); files
    of the latter two may end in .gz. docs/cql.md has the whole of it. The exit code is 1 if any is wrong or
    refused.
    """
    claim_output(json, force)
    try:
        from penstock.cql.spark.conformance import cases_in, run_case
        from penstock.spark.session import session
    except ImportError as error:
        raise MissingExtraError("penstock cql conformance", error.name or "pyspark", "spark") from None
    cases = {each.name: each for each in cases_in(folder, queries)}
    for name in case or ():
        if name not in cases:
            raise UnknownNameError("a case", name, cases)
    console = output_console(json)
    chosen = [each for each in cases.values() if not case or each.name in case]
    verdicts = []
    stderr = Console(stderr=True)
    with Progress(console=stderr, transient=True, disable=not stderr.is_terminal) as bar:
        task = bar.add_task("starting Spark", total=len(chosen) * len(partitions))
        spark = session(app="penstock cql", log_level="FATAL")
        try:
            for each in chosen:
                for count in partitions:
                    bar.update(task, description=f"{each.name}, {count} partitions")
                    verdicts.append(run_case(spark, each, count, batches))
                    bar.advance(task)
        finally:
            spark.stop()
    console.print(_verdicts_table(verdicts))
    for verdict in verdicts:
        if verdict.refused:
            note = f"{verdict.case}, {verdict.partitions} partitions: refused: {verdict.refused}"
            console.print(escape(note), highlight=False, soft_wrap=True)
        kinds = {"missing": verdict.missing, "extra": verdict.extra, "at the end": verdict.at_end}
        for what, elements in kinds.items():
            for (t, sign, values), times in sorted(elements.items(), key=str)[:SHOWN]:
                shown = f"[{t}]:{sign}:{', '.join(map(str, values))}"
                note = f"{verdict.case}, {verdict.partitions} partitions: {what} {shown}"
                console.print(escape(note + (f", {times} times" if times > 1 else "")), highlight=False)
    if json is not None:
        write_json(json, {"folder": str(folder), "cases": [_verdict_json(each) for each in verdicts]})
    if not all(verdict.passed for verdict in verdicts):
        raise typer.Exit(1)


def _verdicts_table(verdicts: Sequence[Verdict]) -> Table:
    table = Table(title="answers compared tuple by tuple")
    table.add_column("case")
    for column in ("partitions", "micro-batches", "tuples", "wrong", "at the end"):
        table.add_column(column, justify="right")
    for each in verdicts:
        wrong = "[red]refused[/]" if each.refused else f"[red]{each.wrong:,}[/]" if each.wrong else "0"
        ran = [str(each.batches), f"{each.tuples:,}"] if not each.refused else ["", ""]
        at_end = f"{each.at_end.total():,}" if each.at_end else ""
        table.add_row(escape(each.case), str(each.partitions), *ran, wrong, at_end)
    return table


def _verdict_json(verdict: Verdict) -> dict[str, Any]:
    return {
        "case": verdict.case,
        "partitions": verdict.partitions,
        "batches": verdict.batches,
        "tuples": verdict.tuples,
        "missing": verdict.missing.total(),
        "extra": verdict.extra.total(),
        "at_end": verdict.at_end.total(),
        "refused": verdict.refused or None,
    }
