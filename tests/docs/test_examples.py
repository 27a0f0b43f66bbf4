"""Every example prints what stands beside it. After a wanted change: python examples/x.py > examples/x.out"""

import subprocess
import sys
from pathlib import Path

import pytest

from penstock.sim.scenario import load_scenario

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SCRIPTS = sorted(EXAMPLES.glob("*.py"))
SCENARIOS = sorted((EXAMPLES / "scenarios").glob("*.yaml"))

pytestmark = pytest.mark.docs


def test_there_are_examples_and_scenarios() -> None:
    assert SCRIPTS
    assert SCENARIOS


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_an_example_prints_what_stands_beside_it(script: Path, tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, cwd=tmp_path, check=False, timeout=300
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == script.with_suffix(".out").read_text(encoding="utf-8")
    assert not list(tmp_path.iterdir()), "an example leaves nothing behind"


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_an_example_is_one_idea_under_60_lines(script: Path) -> None:
    assert len(script.read_text(encoding="utf-8").splitlines()) < 60


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_an_example_scenario_loads_and_is_named_after_its_file(path: Path) -> None:
    scenario = load_scenario(path)
    assert scenario.name == path.stem
    assert scenario.arrivals.count > 0
