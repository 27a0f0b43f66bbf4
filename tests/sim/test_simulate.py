import json
from pathlib import Path

import numpy as np
import pytest

from penstock.policies.load import LOAD_MANAGERS
from penstock.sim.plot import plot_timelines
from penstock.sim.scenario import Scenario
from penstock.sim.simulate import SimulationResult, Timeline, simulate
from penstock.sim.workloads.specs import Constant, SelfSimilar
from penstock.vocabulary.errors import PenstockError

KEYS = [
    "manager",
    "delay_target_s",
    "offered",
    "admitted",
    "shed",
    "waiting",
    "violation_avg_s",
    "violation_max_s",
    "violation_accumulated_s",
    "delayed_tuples",
    "loss_fraction",
    "delay",
]
BURSTS = Scenario(workload=SelfSimilar(overload=1.5), duration_s=60, seed=1)


@pytest.fixture(scope="module")
def results() -> dict[str, SimulationResult]:
    return {name: simulate(BURSTS.with_manager(name)) for name in LOAD_MANAGERS}


@pytest.mark.parametrize("name", LOAD_MANAGERS)
def test_every_row_is_admitted_shed_or_waiting(name: str, results: dict[str, SimulationResult]) -> None:
    result = results[name]
    assert result.offered == BURSTS.arrivals.count
    assert result.offered == result.admitted + result.shed + result.waiting
    assert 0 < result.loss_fraction < 1


@pytest.mark.parametrize("name", LOAD_MANAGERS)
def test_the_timeline_adds_up_to_the_totals(name: str, results: dict[str, SimulationResult]) -> None:
    result, line = results[name], results[name].timeline
    assert line.period_s.sum() == pytest.approx(60.0, abs=0.5)
    assert (line.offered_per_s * line.period_s).sum() == pytest.approx(result.offered)
    # what the last decision let in or shed is in the totals, but there was no period after it
    assert line.admitted_rows.sum() + line.shed_rows.sum() <= result.admitted + result.shed
    kept = line.kept_fraction[np.isfinite(line.kept_fraction)]
    assert ((kept >= 0) & (kept <= 1)).all()
    assert np.nanmax(line.max_s) == pytest.approx(result.delay.max_s)


def test_the_json_has_the_agreed_keys_first_and_is_plain(results: dict[str, SimulationResult]) -> None:
    described = results["deadline"].to_json()
    assert list(described)[: len(KEYS)] == KEYS
    assert list(described["delay"]) == ["mean_s", "p50_s", "p95_s", "p99_s", "max_s"]
    assert json.loads(json.dumps(described, allow_nan=False)) == described
    assert described["loss_fraction"] == described["shed"] / described["offered"]
    assert described["violation_avg_s"] == pytest.approx(
        described["violation_accumulated_s"] / described["labels"]["all"]["completed"]
    )


def test_the_same_seed_gives_the_same_result_and_another_another() -> None:
    workload = SelfSimilar(overload=1.5)
    first, second, other = (
        simulate(Scenario(workload=workload, duration_s=20, seed=seed)).to_json() for seed in (1, 1, 2)
    )
    assert first == second
    assert first != other


def test_a_dry_run_sheds_nothing_and_lets_the_delay_grow() -> None:
    scenario = Scenario(workload=Constant(overload=2.0), duration_s=30, dry_run=True)
    result = simulate(scenario)
    assert result.shed == 0
    assert result.dry_run
    assert (result.delay.max_s or 0.0) > 5.0


def test_progress_is_told_every_period_and_ends_at_the_end() -> None:
    told: list[tuple[float, float]] = []
    scenario = Scenario(workload=Constant(rate_per_s=50), duration_s=10, manager="ctrl")
    simulate(scenario, on_progress=lambda now_s, end_s: told.append((now_s, end_s)))
    assert len(told) == 20
    assert told[-1] == (10.0, 10.0)


def test_a_quiet_workload_has_no_delay_to_report() -> None:
    scenario = Scenario(workload=Constant(rate_per_s=0.01), duration_s=0.002, manager="ctrl", period_s=0.002)
    described = simulate(scenario).to_json()
    assert described["delay"]["mean_s"] is None
    assert described["violation_avg_s"] == 0.0


def test_a_plant_that_loses_a_row_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    from penstock.sim.engine.plant import SimulatedPlant

    monkeypatch.setattr(SimulatedPlant, "waiting_rows", property(lambda plant: 1_000_000))
    with pytest.raises(PenstockError, match="expected: offered = admitted \\+ shed \\+ waiting; got: "):
        simulate(Scenario(workload=Constant(), duration_s=2, manager="ctrl"))


def test_time_over_a_limit_holds_through_silent_periods() -> None:
    nan, ones = np.nan, np.ones(6)
    p95_s = np.array([nan, 1.0, 3.0, nan, nan, 1.0])
    line = Timeline(ones, ones * 0.5, ones, ones, ones, ones, p95_s, ones, ones)
    assert line.over_s(2.0) == pytest.approx(1.5)
    assert line.over_s(5.0) == 0.0


def test_a_plot_of_one_and_of_several_managers_is_a_png(
    tmp_path: Path, results: dict[str, SimulationResult]
) -> None:
    several = {name: result.timeline for name, result in results.items()}
    several["no shedding"] = simulate(BURSTS.model_copy(update={"dry_run": True})).timeline
    for name, lines in {"one": {"ctrl": several["ctrl"]}, "several": several}.items():
        path = tmp_path / f"{name}.png"
        plot_timelines(lines, 2.0, path)
        assert path.read_bytes().startswith(b"\x89PNG")


def test_a_run_without_a_single_delay_can_be_plotted(tmp_path: Path) -> None:
    scenario = Scenario(workload=Constant(rate_per_s=0.01), duration_s=0.002, manager="ctrl", period_s=0.002)
    plot_timelines({"ctrl": simulate(scenario).timeline}, 2.0, tmp_path / "empty.png")
    assert (tmp_path / "empty.png").exists()
