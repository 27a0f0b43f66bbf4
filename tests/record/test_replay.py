"""Replay: the same manager decides identically on a recorded run; another one is compared."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from penstock.cli.simulated.replay import replay_command
from penstock.control.decide.cycle import Cycle, Step
from penstock.policies.load import LOAD_MANAGERS, Manager, manager_config
from penstock.policies.load.base import describe_manager
from penstock.policies.load.design import controller_from_poles
from penstock.record.layout import dump_json
from penstock.record.reading import RecordedRun, read_run
from penstock.record.replay import rebuild_manager, rebuild_managers, replay
from penstock.record.rundir import RunDirectory
from penstock.sim.engine.plant import Machine, SimulatedPlant
from penstock.sim.workloads.arrivals import constant
from penstock.sim.workloads.networks import PHAM_HEADROOM, qn_flat
from penstock.testing import ScriptedManager, ScriptedPlant, observation
from penstock.vocabulary.errors import InvalidInputError, UnknownNameError
from penstock.vocabulary.model import Decision, QueryClass

RUN_S = 40.0
app = typer.Typer()
app.command()(replay_command)


def overloaded(manager: Manager) -> SimulatedPlant:
    """QN-flat, which can do 210 rows a second, offered 350."""
    cls = QueryClass("gold")
    return SimulatedPlant(
        qn_flat(),
        [constant(350.0, RUN_S).times_s],
        cls,
        manager.config.period_s(cls.delay_target_s),
        RUN_S,
        Machine(headroom=((0.0, PHAM_HEADROOM),)),
        grants=manager.traits.gives_grants,
    )


def recorded(path: Path, manager: Manager, dry_run: bool = False) -> dict[str, object]:
    """Records a run; returns a snapshot that was taken half way, as it comes back from JSON."""
    half: dict[str, object] = {}

    def halfway(step: Step) -> None:
        if not half and step.observation.now_s >= RUN_S / 2:
            half.update(json.loads(json.dumps(manager.snapshot())), after=step.observation.id)

    with RunDirectory.create(path, describe_manager(manager)) as run:
        Cycle(overloaded(manager), manager, dry_run=dry_run, recorder=run).run(halfway)
    return half


@pytest.fixture(scope="module")
def ctrl_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "ctrl"
    recorded(path, manager_config("ctrl", headroom=0.9).build())
    return path


def scripted_run(*keep: float) -> RecordedRun:
    seen = [observation(id=i) for i in range(len(keep))]
    return RecordedRun({}, "0", seen, [Decision(i, k, "as scripted") for i, k in enumerate(keep)], False)


def scripted(*keep: float) -> ScriptedManager:
    return ScriptedManager(scripted_run(*keep).decisions)


@pytest.mark.parametrize("name", LOAD_MANAGERS)
def test_a_simulated_overload_replays_identically(tmp_path: Path, name: str) -> None:
    manager = manager_config(name).build()
    half = recorded(tmp_path / "run", manager)
    run = read_run(tmp_path / "run")
    assert not run.truncated
    assert any(decision.keep_fraction < 1.0 for decision in run.decisions)  # it was an overload
    again = replay(run, rebuild_manager(run.config))
    assert again.first_difference is None
    assert again.identical == again.total == len(run.observations) > 50
    assert again.max_keep_difference == 0.0

    after = half.pop("after")
    first = next(i for i, seen in enumerate(run.observations) if seen.id == after) + 1
    rest = replace(run, observations=run.observations[first:], decisions=run.decisions[first:])
    restored = rebuild_manager(run.config)
    restored.restore(half)
    later = replay(rest, restored)
    assert later.first_difference is None
    assert later.identical == later.total == again.total - first > 0


def test_a_dry_run_replays_identically_and_shed_nothing(tmp_path: Path) -> None:
    recorded(tmp_path / "run", manager_config("seamless").build(), dry_run=True)
    run = read_run(tmp_path / "run")
    assert all(seen.keep_fraction == 1.0 and seen.shed_rows == 0 for seen in run.observations)
    assert replay(run, rebuild_manager(run.config)).first_difference is None


def test_other_settings_are_seen_as_differences(ctrl_run: Path) -> None:
    run = read_run(ctrl_run)
    result = replay(run, rebuild_manager(run.config, "ctrl"))  # the default headroom, 0.97
    assert result.identical == 0  # the headroom is part of a decision
    assert result.mean_keep_difference is not None
    assert 0.0 < result.mean_keep_difference < 0.5
    assert result.first_difference is not None
    first = result.first_difference
    assert first.recorded != first.replayed
    assert first.recorded.observation_id == first.replayed.observation_id == first.observation_id


def test_differences_in_the_keep_fraction_are_summed_up() -> None:
    result = replay(scripted_run(1.0, 0.5, 0.5), scripted(1.0, 0.75, 0.0))
    assert (result.total, result.identical) == (3, 1)
    assert result.first_difference is not None
    assert result.first_difference.observation_id == 1
    assert result.mean_keep_difference == 0.25
    assert result.max_keep_difference == 0.5
    assert result.mean_keep_recorded == pytest.approx(2 / 3)
    assert result.mean_keep_replayed == pytest.approx(1.75 / 3)


def test_a_decision_that_differs_only_in_its_reason_is_not_identical() -> None:
    other = ScriptedManager([Decision(0, 0.5, "another reason")])
    assert replay(scripted_run(0.5), other).identical == 0


def test_a_refused_decision_with_nan_equals_itself_and_is_left_out_of_the_means() -> None:
    result = replay(scripted_run(math.nan, 0.5), scripted(math.nan, 0.75))
    assert result.identical == 1
    assert result.mean_keep_difference == result.max_keep_difference == 0.25
    assert result.mean_keep_recorded == 0.5


def test_an_empty_run_has_no_means() -> None:
    result = replay(scripted_run(), scripted())
    assert (result.total, result.identical, result.first_difference) == (0, 0, None)
    assert result.mean_keep_difference is result.max_keep_difference is result.mean_keep_recorded is None


def test_of_a_run_that_was_cut_off_the_observations_that_remain_are_replayed() -> None:
    run = scripted_run(1.0, 0.5, 0.25)
    fewer_observations = replace(run, observations=run.observations[:2])
    fewer_decisions = replace(run, decisions=run.decisions[:2])
    for cut in (fewer_observations, fewer_decisions):
        result = replay(cut, scripted(1.0, 0.5, 0.25))
        assert result.identical == result.total == 2
        assert result.max_keep_difference == 0.0


def test_a_run_of_two_classes_is_not_replayed_by_one_manager() -> None:
    run = scripted_run(1.0, 1.0)
    run.observations[1] = observation(cls="silver")
    with pytest.raises(InvalidInputError, match=r"a run of several classes.*got: gold, silver"):
        replay(run, scripted(1.0, 1.0))


@pytest.mark.parametrize("name", LOAD_MANAGERS)
def test_a_manager_is_rebuilt_with_the_same_settings(name: str) -> None:
    built = manager_config(name, max_drop_fraction=0.9).build()
    config = json.loads(dump_json(describe_manager(built)))
    assert rebuild_manager(config).config == built.config
    assert rebuild_manager(config, name).config == manager_config(name)


@given(first=st.floats(-0.99, 0.99), second=st.floats(-0.99, 0.99), a=st.floats(-0.99, 0.99))
def test_a_controller_survives_json(first: float, second: float, a: float) -> None:
    built = manager_config("ctrl", controller=controller_from_poles(first, second, a)).build()
    assert rebuild_manager(json.loads(dump_json(describe_manager(built)))).config == built.config


def test_a_run_without_its_manager_needs_one_to_be_named() -> None:
    with pytest.raises(InvalidInputError, match="hint: name a manager: --manager deadline"):
        rebuild_manager({})
    assert rebuild_manager({}, "deadline").name == "deadline"


def test_a_manager_recorded_without_settings_gets_its_defaults() -> None:
    assert rebuild_manager({"manager": "aloma"}).config == manager_config("aloma")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ([], r"manager_settings is a mapping; got: \[\]"),
        ({"controller": {"a": 1}}, r"a controller has the gains a, b0 and b1; got: \{'a': 1\}"),
        ({"headroom": "much"}, "recorded settings fit ctrl"),
        ({"headrom": 1.0}, "did you mean 'headroom'"),
    ],
)
def test_settings_that_were_changed_by_hand_are_refused(settings: object, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        rebuild_manager({"manager": "ctrl", "manager_settings": settings})


def test_an_unknown_manager_is_refused_with_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'aurora'"):
        rebuild_manager({}, "aurara")


def test_the_command_replays_a_run_identically_and_exits_0(ctrl_run: Path) -> None:
    done = CliRunner().invoke(app, [str(ctrl_run)])
    assert done.exit_code == 0, done.output
    assert "ctrl: ctrl -> ctrl" in done.output
    assert "First difference" not in done.output
    rows = {cells[0].strip(): cells[1].strip() for cells in _table(done.output)}
    assert (rows["decisions"], rows["identical"], rows["different"]) == ("80", "80", "0")
    assert rows["mean keep recorded"] == rows["mean keep replayed"]


def test_the_command_compares_another_manager_and_exits_0(ctrl_run: Path, tmp_path: Path) -> None:
    file = tmp_path / "out" / "aurora.json"
    done = CliRunner().invoke(app, [str(ctrl_run), "--manager", "aurora", "--json", str(file)])
    assert done.exit_code == 0, done.output
    assert "First difference, observation 1:" in done.output
    result = json.loads(file.read_text())
    assert (result["recorded_manager"], result["replayed_manager"]) == ("ctrl", "aurora")
    assert result["decisions"] == result["identical"] + result["different"] == 80
    assert result["first_difference"]["recorded"] != result["first_difference"]["replayed"]
    assert result["mean_keep_difference"] > 0


def test_the_command_says_when_a_run_lacks_what_the_manager_plans_by(ctrl_run: Path) -> None:
    done = CliRunner().invoke(app, [str(ctrl_run), "--manager", "deadline"])
    assert done.exit_code == 0, done.output
    assert "deadline plans by the age of waiting rows" in done.output
    assert "plans by" not in CliRunner().invoke(app, [str(ctrl_run)]).output


def test_the_command_exits_1_when_a_run_does_not_replay_identically(tmp_path: Path) -> None:
    described = describe_manager(manager_config("aurora").build())
    with RunDirectory.create(tmp_path / "run", described) as run:
        odd = ScriptedManager([Decision(1, 0.5, "[not] aurora's")])
        Cycle(ScriptedPlant([observation()]), odd, recorder=run).run()
    done = CliRunner().invoke(app, [str(tmp_path / "run")])
    assert done.exit_code == 1
    assert "recorded: keep 0.5000, [not] aurora's" in done.output
    assert CliRunner().invoke(app, [str(tmp_path / "run"), "--manager", "aurora"]).exit_code == 0


def test_the_command_says_that_a_recording_was_cut_off(tmp_path: Path) -> None:
    unclosed = RunDirectory.create(tmp_path / "run", {})
    file = tmp_path / "empty.json"
    done = CliRunner().invoke(app, [str(tmp_path / "run"), "--manager", "ctrl", "--json", str(file)])
    unclosed.close()
    assert done.exit_code == 0, done.output
    assert "unknown -> ctrl" in done.output
    assert "was cut off" in done.output
    assert json.loads(file.read_text())["truncated"] is True
    assert json.loads(file.read_text())["mean_keep_recorded"] is None


def _table(output: str) -> list[list[str]]:
    return [line.strip("│|").split("│") for line in output.splitlines() if line.startswith("│")]


def test_every_class_of_a_run_is_replayed_by_its_own_manager(tmp_path: Path) -> None:
    managers = {"gold": manager_config("aloma").build(), "silver": manager_config("ctrl").build()}
    config = {"classes": {name: describe_manager(manager) for name, manager in managers.items()}}
    with RunDirectory.create(tmp_path / "run", config) as run:
        for i in range(1, 7):
            for name, manager in managers.items():
                seen = observation(id=i, cls=name, offered_rows=900, waiting_rows=300 * i, offered_load=2.0)
                decided = manager.decide(seen)
                run.record(Step(seen, decided, decided, (), False))
    recorded = read_run(tmp_path / "run")
    result = replay(recorded, rebuild_managers(recorded.config, managers))
    assert (result.identical, result.total) == (12, 12)
    swapped = rebuild_managers(recorded.config, managers, "deadline")
    assert replay(recorded, swapped).identical < 12


def test_a_manager_that_was_exchanged_is_exchanged_in_the_replay(tmp_path: Path) -> None:
    before, after = manager_config("ctrl").build(), manager_config("aurora").build()
    with RunDirectory.create(tmp_path / "run", {"classes": {"gold": describe_manager(before)}}) as run:
        for i in range(1, 9):
            if i == 5:
                run.record_change("gold", 5, describe_manager(after))
            seen = observation(id=i, cls="gold", offered_rows=900, waiting_rows=300 * i, offered_load=2.0)
            decided = (before if i < 5 else after).decide(seen)
            run.record(Step(seen, decided, decided, (), False))
    recorded = read_run(tmp_path / "run")
    managers = rebuild_managers(recorded.config, ["gold"])
    assert replay(recorded, managers).identical == 8
    assert replay(recorded, rebuild_managers(recorded.config, ["gold"]), exchange=False).identical == 4
