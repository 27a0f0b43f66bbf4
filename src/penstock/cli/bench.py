"""`penstock bench list` and `penstock bench run`: the papers' figures beside ours."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from penstock.bench.parts import Parts, code_at
from penstock.bench.registry import Bench, figures_by_folder, find_root, load_benches, select
from penstock.bench.report import BenchReport, PaperFigures
from penstock.bench.runner import BenchRun, run_bench
from penstock.cli.outputs import STDOUT, claim_output, write_json
from penstock.vocabulary.durations import parse_duration_s
from penstock.vocabulary.errors import InvalidInputError

bench_app = typer.Typer(
    help="Run the papers' benchmarks, and those of the Spark plant.", no_args_is_help=True
)

JsonOption = Annotated[str | None, typer.Option(help="Write the result as JSON; - for standard output.")]
ForceOption = Annotated[bool, typer.Option("--force", help="Overwrite an existing JSON file.")]

_HELD = {"within": "within a tolerance", "bounded": "by a bound of ours", "printed": "printed beside ours"}
_UNWRAPPED_COLUMNS = 140
"""Width of tables that go into a file or a pipe, which have no width of their own."""


@bench_app.command("list")
def list_command(json: JsonOption = None, force: ForceOption = False) -> None:
    """List the benches with their ids, and how the papers' figures are held."""
    claim_output(json, force)
    benches = load_benches().values()
    table = Table("id", "title")
    for bench in benches:
        table.add_row(bench.id, escape(bench.title))
    console = _console(json)
    console.print(table)
    console.print(_figures_table(figures_by_folder(benches)))
    if json is not None:
        write_json(
            json,
            [
                {"id": bench.id, "title": bench.title, "paper_figures": bench.figures._asdict()}
                for bench in benches
            ],
        )


def _figures_table(figures: Mapping[str, PaperFigures]) -> Table:
    """A table of how the papers' figures are checked, that is, what a pass of the benches says of them."""
    table = Table("paper", "figures", *_HELD.values(), title="how the papers' figures are held")
    for folder, held in figures.items():
        table.add_row(folder, str(held.total), *(str(getattr(held, name)) for name in _HELD))
    return table


@bench_app.command("run")
def run_command(
    ids: Annotated[
        list[str], typer.Argument(metavar="ID...", help="Bench ids, folders, patterns like tu2006/*, or all.")
    ],
    json: JsonOption = None,
    plots: Annotated[Path | None, typer.Option(help="Folder for plots; made if it does not exist.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="One repeat, fewer points; marked as such.")] = False,
    repeats: Annotated[
        int | None, typer.Option(help="Repeats of each measurement; 5 (3 on Spark) if not given, 1 if quick.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the first repeat.")] = 0,
    seconds: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Length of a repeat, where a bench takes one."),
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(help="Folder that keeps finished parts of long benches, to go on after a stop."),
    ] = None,
    force: ForceOption = False,
) -> None:
    """Run benches: paper, ours, difference, tolerance. Exits with 1 when a row is outside its tolerance."""
    claim_output(json, force)
    length_s = None if seconds is None else parse_duration_s(seconds, "--seconds")
    benches = select(load_benches(), ids)
    if plots is not None:
        if plots.exists() and not plots.is_dir():
            raise InvalidInputError("--plots names a folder", plots, "choose another name")
        plots.mkdir(parents=True, exist_ok=True)
    if resume is not None:
        resume.mkdir(parents=True, exist_ok=True)
    console = _console(json)
    reports = []
    for bench in benches:
        parts = None
        if resume is not None:
            head = {"quick": quick, "seed": seed, "repeats": repeats, "seconds": length_s}
            parts = Parts(resume / f"{bench.id.replace('/', '-')}.json", head, code_at(find_root()))
        run = BenchRun(quick, seed, repeats, plots, seconds=length_s, parts=parts)
        report = _run_one(bench, run)
        report.print(console)
        reports.append(report)
    if json is not None:
        values = [report.to_json() for report in reports]
        write_json(json, values[0] if len(values) == 1 else values)
    for report in reports:
        report.require_complete()
    if not all(report.ok for report in reports):
        raise typer.Exit(1)


def _run_one(bench: Bench, run: BenchRun) -> BenchReport:
    with _progress_bar(bench.id) as tell:
        run.on_progress = tell.update
        return run_bench(bench, run)


class _Teller:
    """Shows a bench's progress as a bar; without a terminal, its texts as lines of a log."""

    def __init__(self, bar: Progress, bench_id: str) -> None:
        self._bar, self._id = bar, bench_id
        self._task = bar.add_task(bench_id, total=None)

    def update(self, text: str | None, advance: float, total: float | None) -> None:
        if total is not None:
            self._bar.update(self._task, total=total)
        if text is not None:
            self._bar.update(self._task, description=f"{self._id}: {text}")
            if self._bar.disable:
                self._bar.console.print(f"{self._id}: {text}", markup=False, soft_wrap=True)
        self._bar.update(self._task, advance=advance)


@contextmanager
def _progress_bar(bench_id: str) -> Iterator[_Teller]:
    stderr = Console(stderr=True)
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TimeElapsedColumn(),
    )
    # Without a terminal rich would print one last frame of the bar into the log.
    with Progress(*columns, console=stderr, transient=True, disable=not stderr.is_terminal) as bar:
        yield _Teller(bar, bench_id)


def _console(json: str | None) -> Console:
    console = Console(stderr=json == STDOUT)
    return console if console.is_terminal else Console(stderr=json == STDOUT, width=_UNWRAPPED_COLUMNS)
