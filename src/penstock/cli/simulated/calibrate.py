"""`penstock calibrate`: system identification of a simulated plant (tu2006 section 4.2, figures 5 to 7), and
costs of a pipeline's query on Spark.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from penstock.calibration.identify import (
    DelaySeries,
    Identification,
    Rung,
    delay_series,
    identify,
    keep_everything,
    verify,
)
from penstock.cli.outputs import STDOUT, claim_output, write_json
from penstock.cli.run import Changes, changes_of
from penstock.vocabulary.errors import InvalidInputError, MissingExtraError, UnknownNameError
from penstock.vocabulary.model import Observation, QueryClass

if TYPE_CHECKING:
    from penstock.sim.workloads.network import Network
    from penstock.sim.workloads.traces import Arrivals

PERIOD_S = 0.5
PROBE_S = 5.0
PROBE_RATE_PER_S = 1000.0
STEP_S, STEP_AT_S = 50.0, 10.0
SINUSOID_S, SWING_S = 60.0, 20.0
# Rates in parts of the capacity. tu2006 steps from low to high at the 10th second; its sinusoid swings from 0
# to 400/s on a plant that does 190/s.
LOW, HIGH, SWING_TO = 0.5, 1.5, 2.1


@dataclass(frozen=True)
class Run:
    """One experiment: its input and its measurements."""

    arrivals: Arrivals
    sources: int
    observations: list[Observation]

    @property
    def series(self) -> DelaySeries:
        return delay_series(self.observations)


@dataclass(frozen=True)
class Calibration:
    """A plant identified on a step and verified on a sinusoid."""

    network: str
    headroom_true: float
    identified: Identification
    step: Run
    sinusoid: Run

    @property
    def errors(self) -> dict[str, tuple[Rung, Run]]:
        return {
            "step": (verify(self.identified, self.step.observations), self.step),
            "sinusoid": (verify(self.identified, self.sinusoid.observations), self.sinusoid),
        }


@dataclass(frozen=True)
class SimulatedRig:
    """Runs a query network on the simulated plant without any load manager."""

    network: Network
    headroom_true: float
    seed: int

    def run(self, arrivals: Arrivals) -> Run:
        """Gives the same arrivals to every source, and sheds nothing."""
        from penstock.sim.engine.machine import Machine
        from penstock.sim.engine.plant import SimulatedPlant

        sources = len(self.network.sources)
        plant = SimulatedPlant(
            self.network,
            [arrivals.times_s] * sources,
            QueryClass("calibration"),
            PERIOD_S,
            arrivals.duration_s,
            Machine(headroom=((0.0, self.headroom_true),)),
            seed=self.seed,
        )
        return Run(arrivals, sources, keep_everything(plant))

    def capacity_per_s(self) -> float:
        """Rows a second of one source that the plant can process, measured at a rate far too high."""
        from penstock.sim.workloads import arrivals as workloads

        sources = len(self.network.sources)
        rate_per_s = PROBE_RATE_PER_S / sources
        while True:
            loaded = self.run(workloads.constant(rate_per_s, PROBE_S)).observations[-5:]
            done = sum(o.work_s for o in loaded) / max(sum(o.busy_s for o in loaded), 1e-9)
            cost_s = loaded[-1].cost_per_row_s
            if cost_s is not None and loaded[-1].offered_load > 2 * done:
                return done / cost_s / sources
            rate_per_s *= 4


def calibrate(network: Network, headroom_true: float, seed: int = 0) -> Calibration:
    """Identifies a simulated plant: probe, step to fit, sinusoid to verify."""
    from penstock.sim.workloads import arrivals as workloads

    rig = SimulatedRig(network, headroom_true, seed)
    capacity = rig.capacity_per_s()
    step = rig.run(workloads.step([(0.0, LOW * capacity), (STEP_AT_S, HIGH * capacity)], STEP_S))
    sinusoid = rig.run(workloads.sinusoid(0.0, SWING_TO * capacity, SWING_S, SINUSOID_S))
    return Calibration(network.name, headroom_true, identify(step.observations), step, sinusoid)


def calibrate_command(
    context: typer.Context,
    network: Annotated[str, typer.Option(help="Query network: flat, complex or borealis.")] = "flat",
    headroom_true: Annotated[
        float, typer.Option(help="The simulated machine's headroom, which the fit should find.")
    ] = 0.985,
    seed: Annotated[int, typer.Option(help="Fixes selectivities.")] = 0,
    pipeline: Annotated[
        Path | None,
        typer.Option(help="Measure a query of this pipeline on Spark.", show_default=False),
    ] = None,
    query: Annotated[
        str | None, typer.Option(help="Which query; the only one by default.", show_default=False)
    ] = None,
    change: Changes = None,
    json: Annotated[str | None, typer.Option(help="Write the result as JSON; - for standard output.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Write a PNG of measured and modelled delay.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing files.")] = False,
) -> None:
    """Fit the cost per row and the headroom of a plant, and tell how well the delay model holds.

    With --pipeline the plant is Spark: a query drains made-up rows of its stream, ungoverned, in small and
    large batches. That gives the cost of a micro-batch, the capacity, the headroom to tell to managers that
    need one, and the least delay target that makes sense.
    """
    claim_output(json, force)
    claim_output(plot, force)
    _check_options(context, pipeline)
    if pipeline is not None:
        _calibrate_spark(pipeline, query, changes_of(change), json)
        return
    from penstock.sim.workloads import networks

    known: dict[str, Callable[[], Network]] = {
        "flat": networks.qn_flat,
        "complex": networks.qn_complex,
        "borealis": networks.borealis,
    }
    if network not in known:
        raise UnknownNameError("network", network, known)
    if not 0.0 < headroom_true <= 1.0:
        raise InvalidInputError(
            "the true headroom must lie in (0, 1]", headroom_true, "the part of the CPU that queries get"
        )
    console = Console(stderr=json == STDOUT)
    with Console(stderr=True).status("Driving the plant with a step and a sinusoid"):
        result = calibrate(known[network](), headroom_true, seed)
    _print(console, result)
    if json is not None:
        write_json(json, as_json(result, seed))
    if plot is not None:
        draw(result, plot)
        console.print(f"plot: {plot}", highlight=False, soft_wrap=True)


def _check_options(context: typer.Context, pipeline: Path | None) -> None:
    """Refuses options of the other plant, which would be ignored silently."""
    others = ("query", "change") if pipeline is None else ("network", "headroom_true", "seed", "plot")
    for name in others:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            option = {"change": "--set"}.get(name, f"--{name.replace('_', '-')}")
            wanted = (
                "with --pipeline" if pipeline is None else "without --pipeline: it is of a simulated plant"
            )
            raise InvalidInputError(f"{option} is given {wanted}", option, "leave it out")


def _calibrate_spark(pipeline: Path, query: str | None, changes: dict[str, Any], json: str | None) -> None:
    from penstock.pipeline.spec.load import load_pipeline

    config = load_pipeline(pipeline, changes)
    try:
        from penstock.calibration.calibrate import calibrate_query
        from penstock.spark.beside import importable
    except ImportError as missing:
        raise MissingExtraError("calibrating Spark", "pyspark", "spark") from missing
    progress = Console(stderr=True).status("Starting Spark, then probing in small and large batches")
    with progress, importable(pipeline.absolute().parent):
        found = calibrate_query(config, query)
    table = Table(title=f"query {found.query}", title_justify="left", show_header=False)
    for name, value in asdict(found).items():
        if name != "query":
            table.add_row(name, f"{value:,.0f}" if value >= 1000 else f"{value:.4g}")
    Console(stderr=json == STDOUT).print(table)
    if json is not None:
        write_json(json, asdict(found))


def as_json(result: Calibration, seed: int) -> dict[str, object]:
    """The calibration as JSON values."""
    found = asdict(result.identified)
    ladder = found.pop("ladder")
    for name in ("model_error_mean_s", "model_error_max_s"):  # they are under "step"
        del found[name]
    return {
        "network": result.network,
        "headroom_true": result.headroom_true,
        **found,
        "capacity_per_s": result.identified.capacity_per_s,
        **{
            name: {
                "error_mean_s": rung.error_mean_s,
                "error_max_s": rung.error_max_s,
                "delay_max_s": float(run.series.delay_s.max()),
            }
            for name, (rung, run) in result.errors.items()
        },
        "ladder": ladder,
        "seed": seed,
    }


def _print(console: Console, result: Calibration) -> None:
    found = result.identified
    table = Table(title=f"{result.network}: cost and headroom", title_justify="left")
    table.add_column("what")
    table.add_column("fitted", justify="right")
    table.add_column("from", style="dim")
    table.add_row("cost per row c", f"{found.cost_per_row_s * 1e3:.4g} ms", "measured while overloaded")
    rows_model, load_model = "y = (q + 1) c / H", "y = queued load / H"
    used = "  <- used"
    if found.rows_headroom is None:
        table.add_row("headroom H", "-", f"{rows_model}: rows leave several times, q cannot be counted")
        table.add_row("headroom H", f"{found.load_headroom:.4f}", load_model + used)
    else:
        table.add_row("headroom H", f"{found.rows_headroom:.4f}", rows_model + used)
        table.add_row("headroom H", f"{found.load_headroom:.4f}", load_model)
    table.add_row("headroom H", f"{found.busy_headroom:.4f}", "CPU seconds a busy second, no delay model")
    table.add_row("headroom H", f"{result.headroom_true:.4f}", "true, as simulated")
    table.add_row("capacity", f"{found.capacity_per_s:.1f} rows/s", "H / c")
    console.print(table)
    table = Table(title="model error", title_justify="left")
    for name in ("input", "H", "mean", "max", "mean, of the delay"):
        table.add_column(name, justify="left" if name == "input" else "right")
    rungs = [("step", rung, result.step) for rung in found.ladder]
    rungs.append(("sinusoid", *result.errors["sinusoid"]))
    for name, rung, run in rungs:
        series = run.series
        share = 100 * rung.error_mean_s / float(series.delay_s[series.overloaded].mean())
        fitted = rung.headroom == found.headroom
        table.add_row(
            f"{name}, {'fitted' if name == 'step' else 'verified'}" if fitted else name,
            f"{rung.headroom:.4f}",
            f"{rung.error_mean_s:.3f} s",
            f"{rung.error_max_s:.3f} s",
            f"{share:.1f} %",
            style="bold" if fitted else None,
        )
    console.print(table)


# -- the plot -----------------------------------------------------------------------------------

_INK, _MEASURED, _MODEL, _TOO_LOW, _TOO_HIGH = "#333333", "#1f77b4", "#d62728", "#e8a33d", "#6a9f58"


def draw(result: Calibration, path: Path) -> None:
    """A PNG like tu2006 figures 6 and 7: input, measured against modelled delay, and the error magnified."""
    try:
        from matplotlib.figure import Figure
    except ImportError as missing:  # pragma: no cover - exercised only without the extra
        raise MissingExtraError("a plot", "matplotlib", "sim") from missing
    found = result.identified
    figure = Figure(figsize=(11, 7.2), layout="constrained")
    axes = figure.subplots(3, 2, sharex="col", sharey="row", height_ratios=(1.0, 1.9, 1.4))
    _draw_column(axes[:, 0], "Step input: fitted", result.step, found, (0.98, 1.0, 1.02))
    _draw_column(axes[:, 1], "Sinusoidal input: verified", result.sinusoid, found, (1.0,))
    for row, headspace in ((0, 1.35), (1, 1.1)):  # room for the legends above both columns' curves
        axes[row, 0].set_ylim(0.0, headspace * max(axis.dataLim.y1 for axis in axes[row]))
    axes[2, 0].margins(y=0.2)
    figure.suptitle(
        f"{result.network}: c = {found.cost_per_row_s * 1e3:.4g} ms, H = {found.headroom:.4f} "
        f"(simulated with {result.headroom_true:g})",
        fontsize=13,
        color=_INK,
    )
    figure.savefig(path, dpi=150, format="png")


def _draw_column(axes: Any, title: str, run: Run, found: Identification, steps: tuple[float, ...]) -> None:
    series = run.series
    top, middle, bottom = axes
    rate_s = [o.now_s - o.period_s / 2 for o in run.observations]
    top.step(rate_s, [o.offered_rate_per_s for o in run.observations], where="mid", color=_INK, lw=1.2)
    top.axhline(found.capacity_per_s, color=_MODEL, lw=1.0, ls="--", label="capacity H / c")
    top.set_title(title, fontsize=11, color=_INK, loc="left")
    top.set_ylabel("input [rows/s]")
    model_s = series.model_s(found.model, found.cost_per_row_s, found.headroom)
    middle.plot(series.now_s, series.delay_s, "o", ms=4, mfc="none", color=_MEASURED, label="measured")
    formula = "(q + 1) c / H" if found.model == "rows" else "queued load / H"
    middle.plot(series.now_s, model_s, color=_MODEL, lw=1.4, label=f"model  y = {formula}")
    middle.set_ylabel("mean delay y [s]")
    colours = {0.98: _TOO_LOW, 1.0: _MODEL, 1.02: _TOO_HIGH}
    for step in steps:
        headroom = found.headroom * step
        error_s = series.model_s(found.model, found.cost_per_row_s, headroom) - series.delay_s
        bottom.plot(series.now_s, error_s, color=colours[step], lw=1.2, label=f"H = {headroom:.3f}")
    bottom.axhline(0.0, color=_INK, lw=0.8)
    bottom.set_ylabel("model - measured [s]")
    bottom.set_xlabel("time [s]")
    for axis in axes:
        axis.legend(loc="upper left", fontsize=8, frameon=False, ncols=3)
        axis.grid(True, color="#e6e6e6", lw=0.7)
        axis.set_axisbelow(True)
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(labelsize=9, labelleft=True)
        axis.margins(x=0.01)
