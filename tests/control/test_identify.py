"""System identification on the simulated plant, and `penstock calibrate`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from penstock.calibration.identify import PassiveManager, delay_series, identify, keep_everything, verify
from penstock.cli.simulated.calibrate import calibrate_command
from penstock.control.decide.cycle import Cycle
from penstock.policies.load import manager_config
from penstock.sim.engine.plant import Machine, SimulatedPlant
from penstock.sim.workloads import arrivals as workloads
from penstock.sim.workloads import networks
from penstock.sim.workloads.network import Network
from penstock.sim.workloads.traces import Arrivals
from penstock.vocabulary.errors import InvalidInputError, PenstockError
from penstock.vocabulary.model import DelayStats, Observation, QueryClass


def run(network: Network, arrivals: Arrivals, headroom: float, seed: int = 1) -> list[Observation]:
    plant = SimulatedPlant(
        network,
        [arrivals.times_s] * len(network.sources),
        QueryClass("q"),
        0.5,
        arrivals.duration_s,
        Machine(headroom=((0.0, headroom),)),
        seed=seed,
    )
    return keep_everything(plant)


def overload(network: Network, headroom: float, factor: float = 1.5) -> Arrivals:
    capacity_per_s = headroom / network.cost_per_row_s() / len(network.sources)
    return workloads.step([(0, 0.5 * capacity_per_s), (10, factor * capacity_per_s)], 40)


@pytest.mark.parametrize("headroom", [0.5, 0.8, 0.97])
def test_cost_and_headroom_of_a_flat_network_are_recovered(headroom: float) -> None:
    network = networks.qn_flat()
    found = identify(run(network, overload(network, headroom), headroom))
    assert found.model == "rows"
    assert found.headroom == pytest.approx(headroom, rel=0.03)
    assert found.load_headroom == pytest.approx(headroom, rel=0.03)
    assert found.busy_headroom == pytest.approx(headroom, rel=1e-6)
    assert found.cost_per_row_s == pytest.approx(network.cost_per_row_s(), rel=0.02)
    assert found.capacity_per_s == pytest.approx(headroom / network.cost_per_row_s(), rel=0.04)


@pytest.mark.parametrize("factor", [1.1, 3.0])
def test_the_fit_depends_little_on_how_high_the_overload_is(factor: float) -> None:
    network = networks.qn_flat()
    found = identify(run(network, overload(network, 0.97, factor), 0.97))
    assert found.headroom == pytest.approx(0.97, rel=0.03)


def test_with_ctrl_in_the_loop_the_fit_is_what_dropping_leaves_of_the_headroom() -> None:
    """The 0.966 that the pham2016 benches tell a tuned CTRL."""
    network, arrivals = networks.qn_flat(), workloads.s_c()
    machine = Machine(headroom=((0.0, networks.PHAM_HEADROOM),))
    plant = SimulatedPlant(network, [arrivals.times_s], QueryClass("q"), 0.5, 200.0, machine, seed=1)
    seen: list[Observation] = []
    Cycle(plant, manager_config("ctrl", headroom=0.966).build()).run(
        lambda step: seen.append(step.observation)
    )
    assert identify(seen).headroom == pytest.approx(0.966, abs=0.005)


def test_where_rows_leave_several_times_the_queued_load_is_used() -> None:
    network = networks.qn_complex(groups=4)
    found = identify(run(network, overload(network, 0.8), 0.8))
    assert (found.model, found.rows_headroom) == ("load", None)
    assert found.headroom == found.load_headroom == pytest.approx(0.8, rel=0.03)


def test_the_fitted_headroom_has_the_least_error_of_the_ladder() -> None:
    network = networks.qn_flat()
    found = identify(run(network, overload(network, 0.97), 0.97))
    best = min(found.ladder, key=lambda rung: rung.error_mean_s)
    assert best.headroom == found.headroom
    assert (best.error_mean_s, best.error_max_s) == (found.model_error_mean_s, found.model_error_max_s)
    assert len(found.ladder) == 5
    assert best.error_mean_s < 0.15


def test_a_model_fitted_on_a_step_holds_on_a_sinusoid() -> None:
    network = networks.qn_flat()
    found = identify(run(network, overload(network, 0.97), 0.97))
    swings = run(network, workloads.sinusoid(0, 400, 20, 40), 0.97)
    checked = verify(found, swings)
    assert checked.headroom == found.headroom
    assert checked.error_mean_s < 0.03 * max(o.delay.mean_s or 0.0 for o in swings)


def test_delays_are_held_against_the_queue_that_was_there_when_the_rows_arrived() -> None:
    """While the queue grows, it is half as long again when they leave: eq. 2 would then fit 1.5 H."""
    network = networks.qn_flat()
    observations = run(network, overload(network, 0.97), 0.97)
    series, last = delay_series(observations), observations[-1]
    assert series.arrived_s[-1] == pytest.approx(last.now_s - last.period_s / 2 - (last.delay.mean_s or 0.0))
    assert series.queue_rows[-1] < 0.7 * last.waiting_rows


def test_a_plant_that_was_never_overloaded_cannot_be_identified() -> None:
    calm = run(networks.qn_flat(), workloads.constant(100, 10), 0.97)
    with pytest.raises(
        InvalidInputError, match=r"at least 8 overloaded periods .*; got: 0 of 20; hint: raise"
    ):
        identify(calm)
    network = networks.qn_flat()
    found = identify(run(network, overload(network, 0.97), 0.97))
    with pytest.raises(
        InvalidInputError, match="a model is verified on a run with overloaded periods; got: 0"
    ):
        verify(found, calm)


def test_a_busy_plant_with_half_empty_batches_does_not_pass_for_overloaded() -> None:
    calm = run(networks.qn_flat(), workloads.constant(200, 5), 0.97)
    assert not delay_series([replace(o, busy_s=o.period_s) for o in calm]).overloaded.any()


def test_no_observations_and_no_measured_cost_are_said() -> None:
    with pytest.raises(InvalidInputError, match="identification needs observations; got: none"):
        identify([])
    network = networks.qn_flat()
    blind = [replace(o, cost_per_row_s=None) for o in run(network, overload(network, 0.97), 0.97)]
    with pytest.raises(InvalidInputError, match="from its measured cost per row; got: no measured cost"):
        identify(blind)


def test_periods_without_completions_are_skipped() -> None:
    network = networks.qn_flat()
    observations = run(network, overload(network, 0.97), 0.97)
    holes = [replace(o, delay=DelayStats()) if i % 7 == 0 else o for i, o in enumerate(observations)]
    assert identify(holes).headroom == pytest.approx(0.97, rel=0.03)


def test_the_passive_manager_keeps_everything() -> None:
    manager = PassiveManager()
    (observation,) = run(networks.qn_flat(), workloads.constant(100, 0.5), 0.97)
    assert manager.decide(observation).keep_fraction == 1.0
    manager.restore(manager.snapshot())


# -- the command --------------------------------------------------------------------------------

app = typer.Typer()
app.command()(calibrate_command)


def test_calibrate_prints_the_fit_and_writes_json_and_a_plot(tmp_path: Path) -> None:
    target, plot = tmp_path / "fit.json", tmp_path / "fit.png"
    result = CliRunner().invoke(
        app, ["--headroom-true", "0.9", "--json", str(target), "--plot", str(plot), "--seed", "3"]
    )
    assert result.exit_code == 0, result.output
    assert "y = (q + 1) c / H" in result.output
    assert "sinusoid, verified" in result.output
    fit = json.loads(target.read_text())
    assert fit["headroom"] == pytest.approx(0.9, rel=0.03)
    assert (fit["network"], fit["headroom_true"], fit["seed"], fit["model"]) == ("QN-flat", 0.9, 3, "rows")
    for name in ("step", "sinusoid"):
        assert 0 < fit[name]["error_mean_s"] < fit[name]["error_max_s"] < 0.1 * fit[name]["delay_max_s"]
    assert len(fit["ladder"]) == 5
    assert plot.read_bytes().startswith(b"\x89PNG")


@pytest.mark.long
def test_calibrate_on_the_complex_network_uses_the_queued_load_and_can_print_json() -> None:
    result = CliRunner().invoke(app, ["--network", "complex", "--json", "-"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["model"] == "load"
    assert json.loads(result.stdout)["headroom"] == pytest.approx(0.985, rel=0.01)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--network", "flatt"],
            "network must be one of borealis, complex, flat; got: 'flatt'; hint: did you mean 'flat'",
        ),
        (["--headroom-true", "0"], "the true headroom must lie in (0, 1]; got: 0.0"),
        (["--headroom-true", "nan"], "the true headroom must lie in (0, 1]; got: nan"),
        (["--json", "."], "an output is a file; got: the folder"),
    ],
)
def test_calibrate_rejects_bad_input(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(app, arguments)
    assert isinstance(result.exception, PenstockError)
    assert message in str(result.exception)


def test_calibrate_overwrites_only_with_force(tmp_path: Path) -> None:
    plot = tmp_path / "fit.png"
    plot.touch()
    result = CliRunner().invoke(app, ["--plot", str(plot)])
    assert "an existing file is not overwritten" in str(result.exception)
    assert CliRunner().invoke(app, ["--plot", str(plot), "--force"]).exit_code == 0
    assert plot.stat().st_size > 0
