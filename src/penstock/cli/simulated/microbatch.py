"""`penstock simulate --plant microbatch`: classes and queries of micro-batches in virtual time."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.progress import Progress
from rich.table import Table

from penstock.cli.consoles import output_console, progress_bars, seconds
from penstock.cli.outputs import write_json
from penstock.policies.load.base import describe_manager
from penstock.record.recording import LiveRecorder
from penstock.record.rundir import RunDirectory
from penstock.sim.microbatch.scenario import MicrobatchScenario, load_microbatch
from penstock.sim.microbatch.simulate import MicrobatchResult, simulate_microbatch

OPTIONS = {
    "manager": "classes.*.manager",
    "delay_target": "classes.*.target",
    "overload": "overload",
    "rate_scale": "rate_scale",
    "fixed_cost": "queries.*.fixed",
    "row_cost": "queries.*.row",
    "noise": "queries.*.noise",
    "slots": "slots",
    "duration": "duration",
    "seed": "seed",
}
"""Options of the command, and the keys of a scenario that they replace."""


def run_microbatch(
    path: Path | None,
    options: Mapping[str, Any],
    changes: Mapping[str, Any],
    *,
    trace: str | None = None,
    dry_run: bool = False,
    run_dir: Path | None = None,
    json: str | None = None,
) -> None:
    """Runs a scenario of the plant and prints the result.

    Args:
        path: A scenario file, or none.
        options: Options of the command, by name; `None` if not given.
        changes: Changes of `--set`, by dotted key.
        trace: A file that all streams play.
        dry_run: Whether nothing is shed.
        run_dir: Directory in which the run is recorded.
        json: File that gets the result as JSON.
    """
    given = {OPTIONS[name]: value for name, value in options.items() if value is not None}
    if "classes.*.manager" in given:
        given["classes.*.settings"] = {}  # the settings belong to another manager
    if "overload" in given:
        given["rate_scale"] = 1.0
    if "rate_scale" in given and "overload" not in given:
        given["overload"] = None
    if trace is not None:
        given["streams.*.load"] = {"kind": "trace", "path": str(Path(trace).absolute())}
    if dry_run:
        given["dry_run"] = True
    scenario = load_microbatch(path, {**given, **changes})
    with progress_bars() as bars:
        result = _run(scenario, bars, run_dir)
    console = output_console(json)
    console.print(class_table(result))
    for line in books_lines(result):
        console.print(line, highlight=False, soft_wrap=True)
    if json is not None:
        write_json(json, result.to_json())
    if run_dir is not None:
        console.print(f"run: {run_dir}", highlight=False, soft_wrap=True)


def _run(scenario: MicrobatchScenario, bars: Progress, run_dir: Path | None) -> MicrobatchResult:
    task = bars.add_task(scenario.name, total=None)

    def on_progress(now_s: float, end_s: float) -> None:
        bars.update(task, completed=now_s, total=end_s)

    if run_dir is None:
        return simulate_microbatch(scenario, on_progress=on_progress)
    managers = {name: describe_manager(cls.build_manager()) for name, cls in scenario.classes.items()}
    config = {**scenario.model_dump(mode="json", by_alias=True), "classes": managers}
    recorder = LiveRecorder(RunDirectory.create(run_dir, config))
    result = simulate_microbatch(scenario, recorder, on_progress)
    recorder.finish({"kind": "microbatch", **result.status.to_json()})
    return result


def class_table(result: MicrobatchResult) -> Table:
    """One line a class."""
    slots = "1 slot" if result.slots == 1 else f"{result.slots} slots"
    dry = ", dry run" if result.dry_run else ""
    title = f"{result.scenario}: {result.duration_s:g} s, {slots}, load {result.load:.2f}{dry}"
    table = Table(title=escape(title), title_justify="left")
    table.add_column("class", style="bold")
    table.add_column("manager")
    for column in ("target", "p50", "p95", "max", "shed", "share", "oldest waiting"):
        table.add_column(column, justify="right")
    for name, outcome in result.classes.items():
        delay = outcome.delay
        table.add_row(
            name,
            outcome.manager,
            f"{outcome.target_s:g} s",
            *(seconds(value) for value in (delay.p50_s, delay.p95_s, delay.max_s)),
            f"{100 * outcome.loss_fraction:.1f} %",
            "-" if outcome.share is None else f"{100 * outcome.share:.1f} %",
            seconds(outcome.oldest_waiting_s),
        )
    return table


def books_lines(result: MicrobatchResult) -> list[str]:
    """The books of each class, as one line each."""
    width = max(len(name) for name in result.classes)
    return [
        f"{name:<{width}}  offered {o.offered:,} = admitted {o.admitted:,} + shed {o.shed:,} "
        f"+ waiting {o.waiting:,}"
        for name, o in result.classes.items()
    ]
