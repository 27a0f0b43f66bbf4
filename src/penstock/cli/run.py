"""`penstock run`: a pipeline on Spark, with a live table and a closing report."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from rich.console import Console
from rich.live import Live
from rich.markup import escape

from penstock.cli.consoles import output_console
from penstock.cli.outputs import claim_output, write_json
from penstock.pipeline.spec.load import load_pipeline
from penstock.vocabulary.durations import parse_duration_s
from penstock.vocabulary.errors import InvalidInputError, MissingExtraError
from penstock.vocabulary.status import Status

LINE_EVERY_S = 5.0

EPILOG = """
[bold]A pipeline[/bold] is a YAML file with the parts log, classes, streams and queries:

[cyan]log: logs[/cyan]
[cyan]classes: {gold: {target: 2s, priority: 6}}[/cyan]
[cyan]streams: {readings: {schema: {device: long}, source: {kind: generator, rate: 1000}}}[/cyan]
[cyan]queries: {hot: {class: gold, sql: SELECT device FROM readings, sink: console}}[/cyan]

examples/pipelines/three_classes.yaml has everything, with comments.

[bold]Examples[/bold]

A minute of the example, its report also as JSON:
[cyan]penstock run examples/pipelines/three_classes.yaml --seconds 60 --json report.json[/cyan]

What would be shed, without shedding: [cyan]penstock run my.yaml --dry-run[/cyan]

Another target, another manager, without editing the file:
[cyan]penstock run my.yaml --set classes.gold.target=3s --set classes.bulk.manager=aloma[/cyan]

The run directory has what `penstock replay` needs; Ctrl-C stops between two micro-batches.
"""


PipelineFile = Annotated[Path, typer.Argument(help="Pipeline file (YAML).", show_default=False)]
Changes = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a key of the file: classes.gold.target=3s."),
]
"""Arguments of all commands that take a pipeline."""


def run_command(
    pipeline: PipelineFile,
    seconds: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Stop after this long, e.g. 60 or 5min.", show_default="Ctrl-C"),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Decide and log, but shed nothing.")] = False,
    drain: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="At the end, process what waits for at most this long, unshed."),
    ] = None,
    run: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Record the run in this new directory.",
            show_default="runs/NAME-TIME beside the file",
        ),
    ] = None,
    change: Changes = None,
    json: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write the report as JSON; - for standard output.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing JSON file.")] = False,
) -> None:
    """Run a pipeline on Spark: streams, classes, queries and sinks of a YAML file.

    Every class keeps its delay target; when there is too much, rows are shed by priority.
    Ends with a report; the exit code is 1 if a query or a source failed.
    """
    claim_output(json, force)
    duration_s = None if seconds is None else parse_duration_s(seconds, "--seconds")
    drain_s = 0.0 if drain is None else parse_duration_s(drain, "--drain")
    config = load_pipeline(pipeline, changes_of(change))
    try:
        from penstock.pipeline.run.runner import new_run_directory, run_pipeline, timestamped
        from penstock.show.report import closing_table, query_table
    except ImportError as error:
        raise MissingExtraError("penstock run", error.name or "pyspark", "spark") from None
    base = pipeline.absolute().parent
    directory = new_run_directory(run or config.run or base / "runs" / timestamped(pipeline.stem))
    console = output_console(json)

    def note(text: str) -> None:
        console.print(escape(text), highlight=False, soft_wrap=True)

    note(f"run: {directory}")
    with shown(console, pipeline.stem) as on_status:
        report = run_pipeline(
            config, duration_s, dry_run, directory, on_status, note, base=base, drain_s=drain_s
        )
    console.print(closing_table(report["classes"], f"{pipeline.stem}, {report['seconds']:.0f} s"))
    console.print(query_table(report["queries"]))
    for what, message in report["errors"].items():
        note(f"{what}: {message}")
    if json is not None:
        write_json(json, report)
    if not report["ok"]:
        raise typer.Exit(1)


def changes_of(texts: Sequence[str] | None) -> dict[str, Any]:
    """The changes of options `--set KEY=VALUE`, by key."""
    return dict(_change(text) for text in texts or ())


def _change(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise InvalidInputError(
            "a change has a key and a value", repr(text), "KEY=VALUE, e.g. classes.gold.target=3s"
        )
    try:
        return key.strip(), yaml.safe_load(value)
    except yaml.YAMLError:
        raise InvalidInputError("a change has a value of YAML", repr(value), "quote it") from None


@contextmanager
def shown(console: Console, name: str) -> Iterator[Callable[[Status, float], None]]:
    """A table that is kept up to date on a terminal; elsewhere a line every few seconds."""
    from penstock.show.report import live_table, status_line

    if not console.is_terminal:
        last_s = 0.0

        def print_line(status: Status, at_s: float) -> None:
            nonlocal last_s
            if at_s - last_s >= LINE_EVERY_S:
                last_s = at_s
                console.print(escape(status_line(status, at_s)), highlight=False, soft_wrap=True)

        yield print_line
        return
    with Live(console=console, transient=True, auto_refresh=False) as live:

        def update(status: Status, at_s: float) -> None:
            live.update(live_table(status, f"{name}, {at_s:.0f} s"), refresh=True)

        yield update
