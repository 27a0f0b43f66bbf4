"""The demo, shortened: the real Spark, the real control plane, the real command. It takes minutes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from tests.waits import ran

pytestmark = [pytest.mark.spark, pytest.mark.long]

SHORT = """
import sys
from penstock.demo import run as demo
demo.GOVERNED_S, demo.PLAIN_S, demo.WARM_UP_S = 12.0, 4.0, 4.0
# whether this machine, with other tests beside it, has one speed and is overloaded is not this test's matter
demo.LEAST_OVERLOAD, demo.check_capacity = 0.0, lambda judged: None
from penstock.cli import main
sys.exit(main(["demo", "--runs", sys.argv[1], "--json", sys.argv[2]]))
"""


def test_the_demo_runs_both_ways_and_leaves_its_run_behind(tmp_path: Path) -> None:
    out = tmp_path / "demo.json"
    done = ran([sys.executable, "-c", SHORT, tmp_path / "runs", out])
    assert done.returncode == 0, done.stderr[-3000:]
    assert not done.stderr, done.stderr[-3000:]
    folder = tmp_path / "runs" / "demo-001"
    assert (folder / "demo.png").read_bytes().startswith(b"\x89PNG")
    result = json.loads(out.read_text())
    assert result == json.loads((folder / "report.json").read_text())
    assert set(result["classes"]) == {"gold", "silver", "bronze"}
    for cls in result["classes"].values():
        assert cls["offered"] == cls["admitted"] + cls["shed"] + cls["waiting"]
    command = Path(sys.executable).with_name("penstock")
    replayed = ran([command, "replay", folder / "run", "--json", "-"])
    assert replayed.returncode == 0, replayed.stderr
    figures = json.loads(replayed.stdout)
    assert figures["decisions"] == figures["identical"] > 0
