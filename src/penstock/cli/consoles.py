"""Consoles, progress bars and number formats with which commands print."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from penstock.cli.outputs import STDOUT


def output_console(json: str | None) -> Console:
    """The console for tables: standard error if JSON goes to standard output; wraps only on a terminal."""
    stderr = json == STDOUT
    console = Console(stderr=stderr)
    return console if console.is_terminal else Console(stderr=stderr, width=120)


@contextmanager
def progress_bars() -> Iterator[Progress]:
    """Progress bars on standard error; none if that is not a terminal."""
    console = Console(stderr=True)
    with Progress(
        TextColumn("{task.description:<12}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as bars:
        yield bars


def seconds(value: float | None) -> str:
    """A delay for a table."""
    return "-" if value is None else f"{value:.2f} s"
