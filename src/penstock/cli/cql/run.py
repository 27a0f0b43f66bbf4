"""`penstock cql run`: queries over files, on Spark, and their answers."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table

from penstock.cli.consoles import output_console
from penstock.cli.outputs import claim_output, write_json
from penstock.cql.analysis.windowing import ADDED, Mode, check_mode, default_mode
from penstock.cql.files import read_file
from penstock.cql.program import Program, tuples_read
from penstock.vocabulary.errors import MissingExtraError, UnknownNameError

if TYPE_CHECKING:
    import pyarrow as pa


def run_command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Queries in CQL.", show_default=False)],
    answers: Annotated[
        str | None,
        typer.Option(
            metavar="MODE",
            help="windows: each window's result once. relation: the exact answer as changes. "
            "rows: tuple by tuple.",
            show_default="windows if they slide and close",
        ),
    ] = None,
    rows: Annotated[int, typer.Option(min=0, help="Rows of each answer that are printed; 0 for all.")] = 20,
    batches: Annotated[int, typer.Option(min=1, help="Micro-batches in which the files are read.")] = 4,
    json: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write answers as JSON; - for standard output.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing JSON file.")] = False,
) -> None:
    """Run the queries of a file on Spark, over streams whose rows are in files, until the files end.

    REGISTER STREAM readings (device int, value float, at timestamp) FROM 'readings.csv' TIMESTAMP BY at

    Files are .csv with a header, .parquet, or data files of STREAM, beside FILE. A pipeline runs queries over
    streams that do not end: cql: of a query, see penstock run.
    """
    claim_output(json, force)
    check_answers(answers)
    program, folder = read_file(file), file.absolute().parent
    todo = []
    for written in program.queries:  # errors are found before Spark starts
        mode = cast("Mode", answers) or default_mode(written.query.plan)
        check_mode(written.query, mode)
        todo.append((written, mode, tuples_read(program, written.query, folder)))
    try:
        from penstock.spark.cql.bounded import bounded
        from penstock.spark.session import session
    except ImportError as error:
        raise MissingExtraError("penstock cql run", error.name or "pyspark", "spark") from None
    console, found = output_console(json), []
    stderr = Console(stderr=True)
    with Progress(console=stderr, transient=True, disable=not stderr.is_terminal) as bar:
        task = bar.add_task("starting Spark", total=len(todo))
        spark = session(app="penstock cql", log_level="FATAL")
        try:
            for number, (written, mode, tuples) in enumerate(todo, 1):
                bar.update(task, description=f"query {number}")
                with bounded(spark, tuples, batches=batches) as streams:
                    answer, _ = streams.answer(written.query, mode)
                order = [(name, "ascending") for name in ADDED[mode]]
                found.append((written, mode, answer.sort_by(order) if order else answer))
                bar.advance(task)
        finally:
            spark.stop()
    for number, (written, _, answer) in enumerate(found, 1):
        console.print(f"query {number}: {escape(written.text)}", highlight=False, soft_wrap=True)
        console.print(_table(answer, rows))
        if 0 < rows < answer.num_rows:
            console.print(f"{answer.num_rows - rows:,} more", highlight=False)
    if json is not None:
        as_json = [{"query": w.text, "answers": mode, "rows": _json_rows(a)} for w, mode, a in found]
        write_json(json, {"file": str(file), "queries": as_json})


def spark_plans(program: Program) -> list[str]:
    """Spark's physical plan of each query."""
    try:
        from penstock.spark.cql.bounded import bounded
        from penstock.spark.session import session
    except ImportError as error:
        raise MissingExtraError("penstock cql explain --spark", error.name or "pyspark", "spark") from None
    spark, found = session(app="penstock cql", log_level="FATAL"), []
    try:
        for written in program.queries:
            with bounded(spark, tuples_read(program, written.query, None)) as streams:
                found.append(streams.plan(written.query, default_mode(written.query.plan)))
    finally:
        spark.stop()
    return found


def check_answers(answers: str | None) -> None:
    """Refuses an unknown mode of answers."""
    if answers is not None and answers not in ADDED:
        raise UnknownNameError("--answers", answers, ADDED)


def _table(answer: pa.Table, rows: int) -> Table:
    table = Table(*answer.column_names)
    for row in answer.slice(0, rows or None).to_pylist():
        table.add_row(*(escape(_shown(value)) for value in row.values()))
    return table


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else "NULL" if value is None else str(value)


def _json_rows(answer: pa.Table) -> list[dict[str, Any]]:
    return [{name: _json_value(value) for name, value in row.items()} for row in answer.to_pylist()]


def _json_value(value: Any) -> Any:
    """A value as JSON: times and decimals as texts, bytes in hexadecimal, NaN and infinities as null."""
    if isinstance(value, list):
        return [_json_value(each) for each in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, bytes):
        return value.hex()
    return value if value is None or isinstance(value, bool | int | str) else _text(value)


def _text(value: Any) -> str:
    return str(value.isoformat() if hasattr(value, "isoformat") else value)
