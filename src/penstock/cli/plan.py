"""`penstock plan`: what a pipeline's classes need, what their shares give, which targets cannot be met."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from penstock.cli.consoles import output_console
from penstock.cli.outputs import claim_output, write_json
from penstock.cli.run import Changes, PipelineFile, changes_of, shown
from penstock.pipeline.spec.load import load_pipeline
from penstock.vocabulary.durations import parse_duration_s
from penstock.vocabulary.errors import MissingExtraError

EPILOG = """
[bold]What it does[/bold]

Runs the pipeline's queries on this Spark for a while, with their own classes and rates, in a folder that is
removed: the log, the checkpoints and the sinks of the pipeline are not touched, results are thrown away.
A stream with `source: log` or `files` is played back from the log: its last rows, at the rate of its last
minute.

[bold]Examples[/bold]

What the example needs: [cyan]penstock plan examples/pipelines/three_classes.yaml[/cyan]

Would gold's target hold at 2 s? [cyan]penstock plan my.yaml --set classes.gold.target=2s[/cyan]

Of a pipeline that runs, ask the flow: [cyan]flow.plan()[/cyan]
"""


TARGETS = {True: "[green]can be met[/]", False: "[red]cannot be met[/]", None: "not known"}


def plan_command(
    pipeline: PipelineFile,
    seconds: Annotated[str, typer.Option(metavar="TIME", help="How long to measure.")] = "45s",
    folder: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Where streams lie meanwhile; a cluster's executors must reach it.",
            show_default="a temporary one",
        ),
    ] = None,
    change: Changes = None,
    json: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write the plan as JSON; - for standard output.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing JSON file.")] = False,
) -> None:
    """Say what each class needs of the time, what its share gives, and which targets cannot be met.

    The exit code is 1 if no allocation meets a target, or if a query failed or was not measured.
    """
    claim_output(json, force)
    duration_s = parse_duration_s(seconds, "--seconds")
    config = load_pipeline(pipeline, changes_of(change))
    try:
        from penstock.pipeline.run.feasibility import plan_pipeline
    except ImportError as error:
        raise MissingExtraError("penstock plan", error.name or "pyspark", "spark") from None
    console = output_console(json)

    def note(text: str) -> None:
        console.print(escape(text), highlight=False, soft_wrap=True)

    with shown(console, pipeline.stem) as on_status:
        plan = plan_pipeline(
            config, duration_s, on_status, note, base=pipeline.absolute().parent, folder=folder
        )
    console.print(plan_table(plan, f"{pipeline.stem}, measured for {plan['seconds']:.0f} s"))
    for name, cls in plan["classes"].items():
        for query, need in cls["queries"].items():
            note(f"{name}: query {query} needs {'more than all' if need is None else f'{need:.2f}'}")
        for sentence in cls["says"]:
            note(f"{name}: {sentence}")
    for what, message in plan["errors"].items():
        note(f"{what}: {message}")
    if json is not None:
        write_json(json, plan)
    if plan["errors"] or not all(cls["feasible"] for cls in plan["classes"].values()):
        raise typer.Exit(1)  # also if a query could not be measured


def plan_table(plan: Mapping[str, Any], title: str) -> Table:
    """A table with a line a class; figures are parts of the whole time."""
    table = Table(title=escape(title), title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.caption, table.caption_justify = "parts of the time of one Spark driver's batches", "left"
    table.add_column("class", style="bold", no_wrap=True)
    for column in ("needs", "share gives", "free", "would be shed", "target"):
        table.add_column(column, justify="right", no_wrap=True)
    for name, cls in plan["classes"].items():
        target, needs = TARGETS[cls["feasible"]], "more than all"
        if cls["needs"] is not None or cls["not_measured"]:
            needs = "not measured" if cls["not_measured"] else f"{cls['needs']:.2f}"
        shed = f"{100 * cls['shed_fraction']:.0f} %"
        table.add_row(name, needs, f"{cls['gives']:.2f}", f"{cls['free']:.2f}", shed, target)
    return table
