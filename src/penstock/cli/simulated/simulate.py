"""`penstock simulate`: a load manager, or all of them, against an overload in virtual time."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table

from penstock.cli.consoles import output_console, progress_bars, seconds
from penstock.cli.outputs import claim_output, write_json
from penstock.cli.run import Changes, changes_of
from penstock.config.mistakes import read_mapping
from penstock.policies.load import LOAD_MANAGERS
from penstock.policies.load.base import describe_manager
from penstock.record.rundir import RunDirectory
from penstock.sim.scenario import NETWORKS, Scenario, load_scenario
from penstock.vocabulary.errors import InvalidInputError, UnknownNameError

if TYPE_CHECKING:
    from penstock.sim.simulate import SimulationResult

ALL = "all"
ENGINE, MICROBATCH = PLANTS = ("engine", "microbatch")
OF_ONE_PLANT = {
    **dict.fromkeys(("workload", "time_scale", "network", "headroom", "period", "plot"), ENGINE),
    **dict.fromkeys(("slots", "fixed_cost", "row_cost", "noise", "change"), MICROBATCH),
}
"""Options that only one plant has."""

EPILOG = """
[bold]Examples[/bold]

The default scenario, real network traffic on QN-flat: [cyan]penstock simulate[/cyan]

All six managers on half as much again as the machine can do:
[cyan]penstock simulate --overload 1.5 --manager all --plot managers.png[/cyan]

Your own trace, one arrival time a line or second,count:
[cyan]penstock simulate --trace arrivals.csv --overload 1.5 --json result.json[/cyan]

What would be shed, without shedding: [cyan]penstock simulate --dry-run --run-dir runs/try[/cyan]

A scenario file, see examples/scenarios:
[cyan]penstock simulate examples/scenarios/burst.yaml --manager ctrl --delay-target 500ms[/cyan]

Three classes of micro-batches under the real control plane, twice what the machine can do:
[cyan]penstock simulate --plant microbatch[/cyan]

The same with dearer rows, two slots and another target of gold:
[cyan]penstock simulate --plant microbatch --row-cost 40us --slots 2 --set classes.gold.target=3s[/cyan]
"""


def simulate_command(
    context: typer.Context,
    scenario: Annotated[
        Path | None,
        typer.Argument(help="Scenario file (YAML). Options below override it.", show_default=False),
    ] = None,
    plant: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="engine: operators on one CPU, one class. microbatch: Spark's batches of several classes, "
            "under the real control plane.",
            show_default="the file's, else engine",
        ),
    ] = None,
    manager: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help=f"Load manager: {', '.join(LOAD_MANAGERS)}; or all, to compare them.",
            show_default="deadline",
        ),
    ] = None,
    delay_target: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Delay to keep, e.g. 2s, 500ms, 1min.", show_default="2s"),
    ] = None,
    trace: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Input from a file: one arrival time in seconds a line, or lines second,count; .gz too.",
        ),
    ] = None,
    workload: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Input from a generator: constant, step, sinusoid, pareto, s_c, s_step, s_r, self_similar.",
            show_default="s_r",
        ),
    ] = None,
    overload: Annotated[
        float | None,
        typer.Option(metavar="X", help="Scale the input to a mean load of this many times the capacity."),
    ] = None,
    rate_scale: Annotated[
        float | None, typer.Option(metavar="X", help="Multiply the number of rows.")
    ] = None,
    time_scale: Annotated[
        float | None,
        typer.Option(
            metavar="X", help="Multiply the times: 0.5 plays twice as fast, 1e-6 reads microseconds."
        ),
    ] = None,
    network: Annotated[
        str | None,
        typer.Option(metavar="NAME", help=f"Query network: {', '.join(NETWORKS)}.", show_default="flat"),
    ] = None,
    headroom: Annotated[
        float | None,
        typer.Option(
            metavar="X",
            help="Part of the CPU that queries get; aurora, baseline and ctrl are told, the others learn it.",
            show_default="0.985",
        ),
    ] = None,
    period: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Time between decisions.", show_default="the manager's own"),
    ] = None,
    duration: Annotated[
        str | None, typer.Option(metavar="TIME", help="Length of the run.", show_default="the workload's")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(metavar="N", help="Fixes every random choice.", show_default="0")
    ] = None,
    slots: Annotated[
        int | None, typer.Option(metavar="N", help="microbatch: batches that may run at once.")
    ] = None,
    fixed_cost: Annotated[
        str | None, typer.Option(metavar="TIME", help="microbatch: time of a batch without rows, e.g. 150ms.")
    ] = None,
    row_cost: Annotated[
        str | None, typer.Option(metavar="TIME", help="microbatch: time of a row, e.g. 20us.")
    ] = None,
    noise: Annotated[
        float | None,
        typer.Option(metavar="X", help="microbatch: spread of a batch's time, as a part of it."),
    ] = None,
    change: Changes = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Decide and log, but shed nothing.")] = False,
    run_dir: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Record the run in this new directory, for penstock replay."),
    ] = None,
    json: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write the result as JSON; - for standard output.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a PNG of input, shedding and delay over time.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing output files.")] = False,
) -> None:
    """Simulate an overload in virtual time: what is shed, how long rows take.

    Without a scenario file: 400 s of real network traffic on ten operators,
    a delay target of 2 s, the manager deadline.
    With --plant microbatch: three classes whose queries run in micro-batches,
    for 60 s at twice what the machine can do.
    The same seed gives the same result.
    """
    claim_output(json, force)
    claim_output(plot, force)
    plant = chosen_plant(plant, scenario)
    _check_options(context, plant, manager)
    if plant == MICROBATCH:
        from penstock.cli.simulated.microbatch import OPTIONS, run_microbatch

        run_microbatch(
            scenario,
            {name: context.params[name] for name in OPTIONS},
            changes_of(change),
            trace=trace,
            dry_run=dry_run,
            run_dir=run_dir,
            json=json,
        )
        return
    if trace is not None and workload is not None:
        raise InvalidInputError(
            "the input is a --trace or a --workload, not both", f"{trace} and {workload}", "leave one out"
        )
    overrides: dict[str, Any] = {
        "manager": None if manager == ALL else manager,
        "delay_target": delay_target,
        "network": network,
        "headroom": headroom,
        "period": period,
        "duration": duration,
        "seed": seed,
        "dry_run": dry_run or None,
        "workload": _workload(trace, workload, rate_scale, time_scale, overload),
    }
    chosen = load_scenario(scenario, {key: value for key, value in overrides.items() if value is not None})
    names = list(LOAD_MANAGERS) if manager == ALL else [chosen.manager]
    results = []
    with progress_bars() as bars:
        for name in names:
            results.append(
                run(
                    chosen.with_manager(name),
                    bars,
                    name,
                    run_dir / name if run_dir and manager == ALL else run_dir,
                )
            )
    console = output_console(json)
    console.print(result_table(results))
    if len(results) == 1:
        r = results[0]
        console.print(
            f"offered {r.offered:,} = admitted {r.admitted:,} + shed {r.shed:,} + waiting {r.waiting:,}",
            highlight=False,
        )
    if json is not None:
        described = [result.to_json() for result in results]
        write_json(json, described if manager == ALL else described[0])
    if plot is not None:
        from penstock.sim.plot import plot_timelines

        plot_timelines(
            {result.manager: result.timeline for result in results},
            chosen.delay_target_s,
            plot,
            title=headline(results[0]),
        )
        console.print(f"plot: {plot}", highlight=False, soft_wrap=True)
    if run_dir is not None:
        console.print(f"run: {run_dir}", highlight=False, soft_wrap=True)


def chosen_plant(plant: str | None, scenario: Path | None) -> str:
    """The plant that the option names, else the plant of the scenario file, else the engine."""
    if plant is None and scenario is not None and scenario.is_file():
        plant = str(read_mapping(scenario, "scenario", "examples/scenarios").get("plant", ENGINE))
    if plant not in (None, *PLANTS):
        raise UnknownNameError("--plant", plant, PLANTS)
    return plant or ENGINE


def _check_options(context: typer.Context, plant: str, manager: str | None) -> None:
    """Refuses options of the other plant, which would be ignored silently."""
    for name, of in OF_ONE_PLANT.items():
        source = context.get_parameter_source(name)
        if of != plant and source is not None and source.name == "COMMANDLINE":
            option = {"change": "--set"}.get(name, f"--{name.replace('_', '-')}")
            raise InvalidInputError(f"{option} is for the plant {of}", f"the plant {plant}", "leave it out")
    if plant == MICROBATCH and manager == ALL:
        raise InvalidInputError(
            "a class of the plant microbatch has one manager", "--manager all", "name one"
        )


def _workload(
    trace: str | None,
    kind: str | None,
    rate_scale: float | None,
    time_scale: float | None,
    overload: float | None,
) -> dict[str, Any] | None:
    given = {
        "kind": kind if trace is None else "trace",
        "path": trace,
        "rate_scale": rate_scale,
        "time_scale": time_scale,
        "overload": overload,
    }
    return {key: value for key, value in given.items() if value is not None} or None


def run(scenario: Scenario, bars: Progress, label: str, record_in: Path | None = None) -> SimulationResult:
    """Simulates under a progress bar; records the run in a directory if one is given."""
    from penstock.sim.simulate import simulate

    task = bars.add_task(label, total=None)

    def on_progress(now_s: float, end_s: float) -> None:
        bars.update(task, completed=now_s, total=end_s)

    if record_in is None:
        return simulate(scenario, on_progress=on_progress)
    config = {**scenario.to_config(), **describe_manager(scenario.manager_config().build())}
    with RunDirectory.create(record_in, config) as recorder:
        result = simulate(scenario, recorder, on_progress)
    recorder.write_report(result.to_json())
    return result


def result_table(results: list[SimulationResult]) -> Table:
    """One line a manager."""
    table = Table(title=escape(headline(results[0])), title_justify="left")
    table.add_column("manager", style="bold")
    for column in ("shed", "mean", "p95", "p99", "max", "violation avg", "late rows"):
        table.add_column(column, justify="right")
    for result in results:
        delay, violation = result.delay, result.violation
        table.add_row(
            f"{result.manager} (dry run)" if result.dry_run else result.manager,
            f"{100 * result.loss_fraction:.1f} %",
            *(seconds(value) for value in (delay.mean_s, delay.p95_s, delay.p99_s, delay.max_s)),
            f"{violation.average_s:.3f} s",
            f"{100 * violation.delayed / max(1, violation.completed):.1f} %",
        )
    return table


def headline(result: SimulationResult) -> str:
    """A line on what was simulated."""
    return (
        f"{result.workload} on {result.network}, {result.duration_s:g} s, target {result.delay_target_s:g} s"
    )
