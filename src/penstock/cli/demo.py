"""`penstock demo`: three classes on one Spark with far more input than it can process, governed and plain."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table

from penstock.cli.consoles import output_console
from penstock.cli.outputs import claim_output, write_json
from penstock.vocabulary.errors import MissingExtraError, PenstockError

if TYPE_CHECKING:
    from penstock.demo.run import DemoResult


def demo_command(
    json: Annotated[
        str | None, typer.Option(help="Write the results as JSON; - for standard output.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing JSON file.")] = False,
    runs: Annotated[Path, typer.Option(help="Folder for the demo's own directory.")] = Path("runs"),
    simulated: Annotated[
        bool, typer.Option("--simulated", help="Load managers in virtual time instead; needs no Java.")
    ] = False,
) -> None:
    """See an overloaded Spark keep its delay targets, and plain Spark miss them, in about three minutes.

    Starts Spark on this machine, measures what it can process, and offers it two and a half times as much in
    three classes. Leaves a run directory with a report and a picture.
    """
    claim_output(json, force)
    folder = _fresh_folder(runs)
    if simulated:
        from penstock.cli.simulated.demo import simulated_demo

        simulated_demo(json, folder)
        return
    console = output_console(json)
    result = _run(console, folder)
    values = result.to_json()
    write_json(folder / "report.json", values)
    run = f"run:   {folder / 'run'}  (penstock replay {folder / 'run'})"
    try:
        result.check_overload()
    except PenstockError:
        console.print(run, highlight=False, soft_wrap=True)  # it can be looked at all the same
        raise
    if json is not None:
        write_json(json, values)
    _print(console, result)
    console.print(run, highlight=False, soft_wrap=True)
    _plot(console, result, folder / "demo.png")


def _fresh_folder(runs: Path) -> Path:
    """The first of demo-001, demo-002, ... that does not exist."""
    for number in count(1):
        folder = runs / f"demo-{number:03d}"
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            if runs.exists() and not runs.is_dir():
                raise
            continue
        return folder
    raise PenstockError("unreachable")


def _run(console: Console, folder: Path) -> DemoResult:
    try:
        from penstock.demo import run as demo
        from penstock.spark.session import session, stderr_to
    except ImportError as missing:
        raise MissingExtraError("the demo", "pyspark", "spark") from missing
    work = Path(tempfile.mkdtemp(prefix="penstock-demo-"))
    say = _Teller(console)
    spark = None
    try:
        say("starting Spark")
        kept: dict[str, Any] = {
            "spark.sql.streaming.numRecentProgressUpdates": 10_000,
            # a thousand devices: more partitions of the state only make each micro-batch cost more
            "spark.sql.shuffle.partitions": 1,
        }
        with stderr_to(folder / "spark.log"):  # stopping plain queries inside a batch is noisy
            spark = session(app="penstock-demo", **kept)
        say("warming up")
        judged = demo.measure_capacity(spark, work, say)
        capacity = judged.capacity
        say(
            f"this machine processes {capacity.rows_per_s:,.0f} rows/s of the demo's query; "
            f"it now gets {sum(demo.LOADS.values()):.1f} times as much, in bursts"
        )
        root = demo.make_streams(work / "log", _arrivals(), capacity, demo.GOVERNED_S + 15.0)
        with _live(console, "Penstock", demo.GOVERNED_S) as show:
            governed, governed_from_s = demo.run_governed(spark, work, root, show, folder / "run")
        say("measuring the capacity again")
        after = demo.measure_again(spark, work, capacity)
        with _live(console, "plain Structured Streaming", demo.PLAIN_S) as show:
            plain, plain_from_s = demo.run_plain(spark, work, root, show)
    finally:
        if spark is not None:
            spark.stop()
        shutil.rmtree(work, ignore_errors=True)
    return demo.DemoResult(capacity, after, governed, governed_from_s, plain, plain_from_s, judged.doubts)


def _arrivals() -> Any:
    """The bursty trace of the simulated benches, or a synthetic trace if there is no such file."""
    from penstock.sim.workloads.arrivals import s_r

    return s_r().times_s


class _Teller:
    """Prints one line a step, with the time since the start."""

    def __init__(self, console: Console) -> None:
        self._console, self._began = console, time.monotonic()

    def __call__(self, text: str) -> None:
        self._console.print(f"{time.monotonic() - self._began:5.0f} s  {text}", highlight=False)


@contextmanager
def _live(console: Console, title: str, seconds: float) -> Iterator[Any]:
    """A live table on a terminal, a line elsewhere."""
    from penstock.show.report import live_table

    if console.is_terminal:
        with Live(console=console, transient=True, refresh_per_second=4) as live:
            yield lambda status, passed_s: live.update(
                live_table(status, f"{title}, {passed_s:.0f} of {seconds:.0f} s") if status else title
            )
        return
    console.print(f"         {title}, {seconds:g} s ...", highlight=False)
    yield lambda status, passed_s: None


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.2f} s"


def _print(console: Console, result: DemoResult) -> None:
    table = Table(title="three classes, p95 of the second half", title_justify="left")
    for column in (
        "class",
        "target",
        "p95",
        "shed",
        "oldest waiting",
        "share",
        "plain: p95",
        "plain: behind by",
    ):
        table.add_column(column, justify="left" if column == "class" else "right")
    for name, row in result.to_json()["classes"].items():
        met = row["p95_s"] is not None and row["p95_s"] <= row["target_s"]
        table.add_row(
            name,
            f"{row['target_s']:g} s",
            f"[{'green' if met else 'red'}]{_seconds(row['p95_s'])}[/]",
            f"{100 * row['shed_fraction']:.0f} %",
            _seconds(row["oldest_waiting_s"]),
            f"{100 * row['share']:.0f} %",
            _seconds(row["plain_p95_s"]),
            _seconds(row["plain_oldest_waiting_s"]),
        )
    console.print(table)
    console.print(
        f"admitted in the second half: {result.admitted_to_capacity:.2f} of the measured capacity "
        f"({result.capacity.rows_per_s:,.0f} rows/s before, {result.capacity_after.rows_per_s:,.0f} after)",
        highlight=False,
    )
    for doubt, measured in result.doubts.items():
        console.print(
            f"uncertain: the capacity before; expected: {doubt.value}; got: {measured}", highlight=False
        )
    for missed in result.missed:
        console.print(f"[red]missed:[/] {missed}", highlight=False, soft_wrap=True)
    if result.missed:
        console.print("a machine that others use too may be the cause: run it again", highlight=False)


def _plot(console: Console, result: DemoResult, path: Path) -> None:
    from penstock.demo.plot import plot_demo

    try:
        plot_demo(result, path)
    except MissingExtraError as missing:  # the demo is worth having without its picture
        console.print(f"no plot: {missing}", highlight=False, soft_wrap=True)
        return
    console.print(f"plot:  {path}", highlight=False, soft_wrap=True)
