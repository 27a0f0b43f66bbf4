"""`penstock demo --simulated`: load managers face an overload in virtual time; no JVM."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from penstock.cli.consoles import output_console, progress_bars, seconds
from penstock.cli.outputs import write_json
from penstock.cli.simulated.simulate import headline, run
from penstock.sim.scenario import Scenario
from penstock.vocabulary.errors import MissingExtraError

if TYPE_CHECKING:
    from penstock.sim.simulate import SimulationResult

NO_SHEDDING = "no shedding"
SCENARIO: dict[str, Any] = {"name": "demo"}
SHOWN = (NO_SHEDDING, "aurora", "ctrl", "aloma", "deadline")

_KEPT, _NEARLY = 1.1, 1.5
"""p99 within a tenth of the target counts as kept, within a half as nearly kept."""


def simulated_demo(json: str | None, folder: Path) -> None:
    """Watch load managers face an overload: 400 s of bursty input, a quarter more than the machine can do."""
    console = output_console(json)
    console.print(
        "400 s of bursty traffic, simulated: a quarter more rows than one machine can process, target 2 s.\n"
    )
    scenario, results = Scenario(**SCENARIO), {}
    with progress_bars() as bars:
        for name in SHOWN:
            chosen = scenario.with_manager("deadline" if name == NO_SHEDDING else name)
            chosen = chosen.model_copy(update={"dry_run": name == NO_SHEDDING})
            results[name] = run(chosen, bars, name, None if name == NO_SHEDDING else folder / name)
    console.print(_table(results))
    console.print(_explanation(results), highlight=False)
    write_json(folder / "report.json", _as_json(results))
    console.print(
        f"runs:  {folder}  (penstock replay {folder / 'deadline'})", highlight=False, soft_wrap=True
    )
    _plot(results, folder / "demo.png", console)
    if json is not None:
        write_json(json, _as_json(results))


def _as_json(results: dict[str, SimulationResult]) -> list[dict[str, object]]:
    return [{"name": name, **result.to_json()} for name, result in results.items()]


def _plot(results: dict[str, SimulationResult], path: Path, console: Console) -> None:
    from penstock.sim.plot import plot_timelines

    any_result = next(iter(results.values()))
    timelines = {name: result.timeline for name, result in results.items()}
    try:
        plot_timelines(timelines, any_result.delay_target_s, path, headline(any_result))
    except MissingExtraError as missing:  # the demo is worth having without its picture
        console.print(f"no plot: {missing}", highlight=False, soft_wrap=True)
        return
    console.print(f"plot:  {path}", highlight=False, soft_wrap=True)


def _table(results: dict[str, SimulationResult]) -> Table:
    table = Table(title=escape(headline(next(iter(results.values())))), title_justify="left")
    table.add_column("manager", style="bold", no_wrap=True)
    over_s = _KEPT * next(iter(results.values())).delay_target_s
    for column in ("loss", "mean", "p95", "p99", f"time over {over_s:g} s"):
        table.add_column(column, justify="right")
    table.add_column("verdict", no_wrap=True)
    for name, result in results.items():
        delay = result.delay
        table.add_row(
            name,
            f"{100 * result.loss_fraction:.1f} %",
            *(seconds(value) for value in (delay.mean_s, delay.p95_s, delay.p99_s)),
            f"{result.timeline.over_s(over_s):.0f} s",
            _verdict(result),
        )
    return table


def _verdict(result: SimulationResult) -> str:
    ratio = (result.delay.p99_s or 0.0) / result.delay_target_s
    if ratio <= _KEPT:
        return "[green]kept[/green]"
    return "[yellow]nearly kept[/yellow]" if ratio <= _NEARLY else "[red]missed[/red]"


def _explanation(results: dict[str, SimulationResult]) -> str:
    """Three sentences about what the table shows."""
    nothing, aurora, deadline = results[NO_SHEDDING], results["aurora"], results["deadline"]
    longest_s, out_s = nothing.delay.max_s or 0.0, seconds(deadline.delay.p99_s)
    sentences = (
        "Without shedding nothing is lost, but rows queue up until they take "
        f"{longest_s:.0f} s instead of {nothing.delay_target_s:g} s.",
        f"Aurora sheds {100 * aurora.loss_fraction:.0f} % by looking at the load alone: it drops rows while "
        "the delay is still small, and cannot see the queue that a burst has left.",
        "The others watch the queue or the delay and shed only when the target needs it, and deadline, which "
        f"knows how long every row has waited, sheds {100 * deadline.loss_fraction:.0f} % and has 99 of 100 "
        f"rows out within {out_s}.",
    )
    return f"\n{' '.join(sentences)}\n"
