"""`penstock backfill`: lists shed rows that are kept, and runs queries over them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, TaskID
from rich.table import Table

from penstock.cli.consoles import output_console, progress_bars
from penstock.cli.outputs import claim_output, write_json
from penstock.cli.run import Changes, changes_of
from penstock.lanes.progress import LaneStore, find_lanes
from penstock.pipeline.run.lanes import lanes_of
from penstock.pipeline.spec.load import load_pipeline
from penstock.vocabulary.durations import parse_duration_s
from penstock.vocabulary.errors import InvalidInputError, MissingExtraError

if TYPE_CHECKING:
    from penstock.backfill.work import Backfilled

_LANE = (
    "stream",
    "reader",
    "rows",
    "late",
    "sampled",
    "poison",
    "gone",
    "lost",
    "age_s",
    "pinned",
    "backfilled",
)
_JSON_ONLY = ("grants", "first_arrival_s", "last_arrival_s", "unfinished")

EPILOG = """
[bold]Examples[/bold]

What is in the lanes of a log: [cyan]penstock backfill --log logs --list[/cyan]

What a query has shed: [cyan]penstock backfill my.yaml --query hot --dry-run[/cyan]

Run it; the results go beside the query's files, in a folder a revision:
[cyan]penstock backfill my.yaml --query hot[/cyan]
"""


def backfill_command(
    pipeline: Annotated[Path | None, typer.Argument(help="Pipeline file (YAML).", show_default=False)] = None,
    query: Annotated[str | None, typer.Option(help="The pipeline's query to backfill.")] = None,
    log: Annotated[Path | None, typer.Option(metavar="ROOT", help="With --list: a log's directory.")] = None,
    list_lanes: Annotated[bool, typer.Option("--list", help="Only list the lanes of a log.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what is in the query's lane.")] = False,
    to: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Where Parquet files go.", show_default="PATH-backfill, or the query's stream"
        ),
    ] = None,
    window: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Length of the query's windows.", show_default="as in its SQL"),
    ] = None,
    slide: Annotated[str | None, typer.Option(metavar="TIME", help="Slide of the query's windows.")] = None,
    event_time: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Event time of the query's windows.")
    ] = None,
    window_column: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="The result's column with the window or its start.")
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Only rows that arrived earlier: an age such as 1h."),
    ] = None,
    ended: Annotated[
        bool, typer.Option("--ended", help="The query will not run again: open windows are final.")
    ] = False,
    change: Changes = None,
    json: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write the same as JSON; - for standard output.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing JSON file.")] = False,
) -> None:
    """Run a query over the rows that it shed, if its class has a shed lane.

    A stateless query's results are appended. A windowed query's windows are computed anew from all their
    rows, as a new revision. A backfill that was killed and is started again adds nothing twice.
    """
    claim_output(json, force)
    console = output_console(json)
    if list_lanes:
        root = log or (load_pipeline(pipeline, changes_of(change)).log if pipeline else None)
        if root is None:
            raise InvalidInputError("--list needs a log", "no log", "give --log ROOT or a pipeline")
        _list(find_lanes(root), console, json, ended)
        return
    if pipeline is None or query is None:
        raise InvalidInputError(
            "a backfill is of one query of a pipeline",
            "no pipeline" if pipeline is None else "no query",
            "penstock backfill my.yaml --query hot, or --log ROOT --list",
        )
    config = load_pipeline(pipeline, changes_of(change))
    stores = lanes_of(config, query)
    if dry_run:
        _list(stores, console, json, ended)
        return
    try:
        from penstock.backfill.query import BackfillOptions, backfill_query
        from penstock.spark.beside import importable
        from penstock.spark.session import pipeline_session
    except ImportError as error:
        raise MissingExtraError("penstock backfill", error.name or "pyspark", "spark") from None
    options = BackfillOptions(
        to,
        None if window is None else parse_duration_s(window, "--window"),
        None if slide is None else parse_duration_s(slide, "--slide"),
        event_time,
        window_column,
        None if until is None else stores[0].log.state.clock() - parse_duration_s(until, "--until"),
        ended,
    )
    done: list[Backfilled] = []
    try:
        with importable(pipeline.absolute().parent), progress_bars() as bars:
            spark = pipeline_session(config.spark, f"penstock backfill {query}")
            try:
                done.extend(backfill_query(spark, config, query, options, _Bar(bars)))
            finally:
                spark.stop()
    finally:  # one lane that is refused does not hide what was done with the others
        for each in done:
            console.print(escape(summary(each)), highlight=False, soft_wrap=True)
    if json is not None:
        write_json(json, [asdict(each) for each in done])


class _Bar:
    """Shows the progress of a backfill."""

    def __init__(self, bars: Progress) -> None:
        self._bars = bars
        self._tasks: dict[str, TaskID] = {}

    def __call__(self, what: str, done: int, total: int) -> None:
        if what not in self._tasks:
            self._tasks[what] = self._bars.add_task(what, total=total)
        self._bars.update(self._tasks[what], completed=done, total=total)


def summary(done: Backfilled) -> str:
    """The report of a backfill in a few sentences."""
    if not (done.rows or done.gone or done.left):
        return f"{done.reader}: nothing in the lane"
    parts = [f"{done.reader}: {done.rows} rows run, {done.result_rows} results to {done.sink}"]
    if done.revisions:
        parts.append(f"revision {', '.join(map(str, done.revisions))}")
    if done.windows:
        parts.append(f"{done.windows} windows computed anew")
    if done.gone:
        parts.append(f"{done.gone} rows are gone: they were trimmed before")
    if done.incomplete_windows:
        parts.append(f"{done.incomplete_windows} windows left as they were: rows of them were trimmed")
    if done.left:
        why = f": {done.open_windows} windows are still open" if done.open_windows else ""
        parts.append(f"{done.left} rows stay in the lane{why}; --ended takes them too")
    return "; ".join(parts)


def _list(stores: Sequence[LaneStore], console: Console, json: str | None, ended: bool) -> None:
    found = [_row_or_error(store, ended) for store in stores]
    found = [row for row in found if row["rows"] or row["backfilled"] or row["pinned"] or row["error"]]
    table = Table(*_LANE)
    for row in found:
        table.add_row(*(_shown(row[column]) for column in _LANE))
    console.print(table if found else "nothing in any lane")
    for row in found:
        if row["error"]:  # a sentence is too long for a column beside all others
            said = f"{row['stream']}, {row['reader']}: {row['error']}"
            console.print(escape(said), highlight=False, soft_wrap=True)
    if json is not None:
        write_json(json, found)


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else f"{value:.0f}" if isinstance(value, float) else str(value)


def _row_or_error(store: LaneStore, ended: bool) -> dict[str, Any]:
    """One lane, or why the lane cannot be read: its files may be damaged in any way."""
    try:
        return lane_row(store, ended)
    except Exception as error:  # one bad lane must not hide the others
        named = {"stream": store.stream.name, "reader": store.reader}
        return {**dict.fromkeys((*_LANE, *_JSON_ONLY)), **named, "error": str(error) or repr(error)}


def lane_row(store: LaneStore, ended: bool = False) -> dict[str, Any]:
    """One lane as JSON values."""
    journal, reader = store.journal(), store.registered()
    lane, progress = store.lane(ended, journal=journal), store.load(journal)
    return {
        "stream": store.stream.name,
        "reader": store.reader,
        "rows": lane.rows,
        "late": lane.late,
        "sampled": lane.sampled,
        "poison": lane.poison,
        "gone": lane.gone,
        "lost": lane.lost,
        "grants": len(lane.grants),
        "age_s": None if lane.first_arrival_s is None else store.log.state.clock() - lane.first_arrival_s,
        "first_arrival_s": lane.first_arrival_s,
        "last_arrival_s": lane.last_arrival_s,
        "pinned": bool(reader is not None and reader.pinned),
        "backfilled": progress.rows,
        "unfinished": progress.pending is not None,
        "error": None,
    }
