"""Every example prints what stands beside it. After a wanted change: python examples/x.py > examples/x.out

A scenario of the plant microbatch has its output beside it, too: `penstock simulate` prints it.
"""

import runpy
from pathlib import Path

import pytest

from penstock.cli import main
from penstock.cli.simulated.simulate import ENGINE, MICROBATCH, chosen_plant
from penstock.sim.microbatch.scenario import load_microbatch
from penstock.sim.scenario import load_scenario

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SCRIPTS = sorted(EXAMPLES.glob("*.py"))
SCENARIOS = {
    plant: [p for p in sorted((EXAMPLES / "scenarios").glob("*.yaml")) if chosen_plant(None, p) == plant]
    for plant in (ENGINE, MICROBATCH)
}

pytestmark = pytest.mark.docs


def test_there_are_examples_and_scenarios() -> None:
    assert SCRIPTS
    assert all(SCENARIOS.values())


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_an_example_prints_what_stands_beside_it(
    script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(script), run_name="__main__")
    assert capsys.readouterr().out == script.with_suffix(".out").read_text(encoding="utf-8")
    assert not list(tmp_path.iterdir()), "an example leaves nothing behind"


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_an_example_is_one_idea_under_60_lines(script: Path) -> None:
    assert len(script.read_text(encoding="utf-8").splitlines()) < 60


@pytest.mark.parametrize("path", SCENARIOS[ENGINE], ids=lambda path: path.stem)
def test_an_example_scenario_loads_and_is_named_after_its_file(path: Path) -> None:
    scenario = load_scenario(path)
    assert scenario.name == path.stem
    assert scenario.arrivals.count > 0


@pytest.mark.parametrize("path", SCENARIOS[MICROBATCH], ids=lambda path: path.stem)
def test_a_scenario_of_micro_batches_prints_what_stands_beside_it(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert load_microbatch(path).name == path.stem
    monkeypatch.chdir(tmp_path)
    assert main(["simulate", str(path)]) == 0
    printed = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert printed == path.with_suffix(".out").read_text(encoding="utf-8").splitlines()
    assert not list(tmp_path.iterdir())
