"""The command line. Commands read, call and print; they decide nothing.

A user's mistake gives one line on standard error (for a query also the place in its text) and exit code 2,
never a traceback.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer
from typer.exceptions import TyperException

from penstock.cli.backfill import EPILOG as BACKFILL_EPILOG
from penstock.cli.backfill import backfill_command
from penstock.cli.bench import bench_app
from penstock.cli.control import control_app
from penstock.cli.cql.commands import cql_app
from penstock.cli.demo import demo_command
from penstock.cli.log import log_app
from penstock.cli.plan import EPILOG as PLAN_EPILOG
from penstock.cli.plan import plan_command
from penstock.cli.run import EPILOG as RUN_EPILOG
from penstock.cli.run import run_command
from penstock.cli.simulated.calibrate import calibrate_command
from penstock.cli.simulated.replay import replay_command
from penstock.cli.simulated.simulate import EPILOG, simulate_command
from penstock.cql.errors import CqlError
from penstock.vocabulary.errors import PenstockError
from penstock.vocabulary.version import __version__

USER_ERROR = 2

app = typer.Typer(
    name="penstock",
    add_completion=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def penstock(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Overload management for stream processing: shed what must be shed, keep the delay target.

    Start with [bold]penstock demo[/bold]; then [bold]penstock run[/bold] a pipeline of your own on Spark, or
    try its input on a simulated engine with [bold]penstock simulate[/bold].
    """
    if version:
        print(f"penstock {__version__}")
    elif context.invoked_subcommand is None:
        print(context.get_help())


app.command("demo")(demo_command)
app.command("run", epilog=RUN_EPILOG)(run_command)
app.command("plan", epilog=PLAN_EPILOG)(plan_command)
app.command("backfill", epilog=BACKFILL_EPILOG)(backfill_command)
app.command("simulate", epilog=EPILOG)(simulate_command)
app.command("replay")(replay_command)
app.command("calibrate")(calibrate_command)
app.add_typer(bench_app, name="bench")
app.add_typer(log_app, name="log")
app.add_typer(control_app, name="control")
app.add_typer(cql_app, name="cql")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command; returns the exit code."""
    arguments = None if argv is None else list(argv)
    try:
        code = app(arguments, prog_name="penstock", standalone_mode=False)
    except CqlError as error:
        return _complain(error.sentence, error.shown)
    except PenstockError as error:
        return _complain(str(error))
    except TyperException as error:
        return _complain(f"{error.format_message().rstrip('.')}; hint: penstock --help")
    except OSError as error:
        return _complain(
            f"{error.strerror or error}; got: {error.filename}; hint: check the path and its rights"
        )
    return code if isinstance(code, int) else 0


def _complain(message: str, shown: str = "") -> int:
    """Prints an error in one line, even if a file name has line ends; then the text it is about, if any."""
    print(f"penstock: error: {' '.join(message.split())}", file=sys.stderr)
    if shown:
        print(shown, file=sys.stderr)
    return USER_ERROR
