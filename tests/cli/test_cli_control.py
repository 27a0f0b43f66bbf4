"""`penstock control` as a user types it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.waits import until

from penstock.cli import main
from penstock.host.client import ControlClient, ControlSilentError


@pytest.fixture
def flow_file(tmp_path: Path) -> Path:
    (tmp_path / "flow.yaml").write_text(
        f"log: logs\naddress: unix://{tmp_path}/control\nrun: run\n"
        "classes:\n  gold: {target: 2s, priority: 6}\n  bulk: {target: 30s}\n"
    )
    return tmp_path / "flow.yaml"


@pytest.fixture
def served(flow_file: Path) -> Iterator[subprocess.Popen[str]]:
    code = (
        f"import sys; from penstock.cli import main; sys.exit(main(['control', 'serve', {str(flow_file)!r}]))"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("serving classes gold, bulk at unix://")
            while not (flow_file.parent / "control").exists():
                assert process.poll() is None
            yield process
        finally:
            process.kill()


def test_a_control_plane_is_served_looked_at_and_stopped(
    flow_file: Path, served: subprocess.Popen[str], capsys: pytest.CaptureFixture[str]
) -> None:
    address = f"unix://{flow_file.parent}/control"
    assert main(["control", "status", address]) == 0
    shown = capsys.readouterr().out
    assert "gold" in shown
    assert "p95" in shown
    assert main(["control", "status", address, "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["classes"]["bulk"]["target_s"] == 30.0
    assert main(["control", "serve", str(flow_file)]) == 2
    assert "an address has one control plane" in capsys.readouterr().err
    assert ControlClient(address).request({"op": "status"})["status"]["slots"] == "auto"
    served.send_signal(signal.SIGTERM)
    assert served.stdout is not None
    assert served.stdout.read() == "stopped\n"
    assert served.wait(60) == 0
    report = json.loads((flow_file.parent / "run" / "report.json").read_text())
    assert report["classes"]["gold"]["priority"] == 6


def test_a_class_is_changed_and_shedding_switched_while_it_runs(
    flow_file: Path, served: subprocess.Popen[str], capsys: pytest.CaptureFixture[str]
) -> None:
    address = f"unix://{flow_file.parent}/control"
    assert main(["control", "change", address, "gold", "target=3s", "shed=oldest"]) == 0
    assert main(["control", "shedding", address, "off"]) == 0
    assert capsys.readouterr().out == "changed gold\nshedding is off\n"
    status = ControlClient(address).request({"op": "status"})["status"]
    assert status["classes"]["gold"]["target_s"] == 3.0
    assert status["shedding"] is False
    config = json.loads(ControlClient(address).request({"op": "config"})["config"])
    assert config["classes"]["gold"]["shed"]["by"] == "oldest"
    for wrong, rule in (
        (["change", address, "gold", "target"], "a change has a key and a value"),
        (["change", address, "gold", "targt=3s"], "did you mean 'target'?"),
        (["change", address, "silver", "target=3s"], "silver"),
        (["change", address, "gold", "priority=-1"], "priority"),
        (["change", address, "gold", "shed=rows"], "did you mean 'row'?"),
        (["shedding", address, "of"], "did you mean 'off'?"),
    ):
        assert main(["control", *wrong]) == 2
        assert rule in capsys.readouterr().err
    assert ControlClient(address).request({"op": "status"})["status"]["classes"]["gold"]["target_s"] == 3.0


def test_a_change_by_an_old_key_is_made_and_the_new_one_is_said(
    flow_file: Path, served: subprocess.Popen[str], caplog: pytest.LogCaptureFixture
) -> None:
    address = f"unix://{flow_file.parent}/control"
    assert main(["control", "change", address, "gold", "shedder=random"]) == 0
    assert main(["control", "change", address, "gold", "sampling=row"]) == 0
    assert caplog.messages == [
        "class gold: shedder is old: write shed: random",
        "class gold: sampling is old: write shed: {by: random, otherwise: row}",
    ]


def test_what_cannot_be_served_or_reached_is_one_line_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "flow.yaml").write_text("log: logs\nclasses: {gold: {target: 2s}}\n")
    assert main(["control", "serve", str(tmp_path / "flow.yaml")]) == 2
    assert main(["control", "serve", str(tmp_path / "flow.yaml"), "--address", "tcp://x"]) == 2
    assert main(["control", "status", f"unix://{tmp_path}/nobody"]) == 2
    none, scheme, silent = capsys.readouterr().err.splitlines()
    assert "a shared control plane has an address" in none
    assert "must be unix:// and an absolute path" in scheme
    assert "is it running?" in silent


def test_a_pipelines_own_file_says_what_is_served(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "pipeline.yaml").write_text(
        f"""
log: logs
run: runs/mine
address: unix://{tmp_path}/control
classes: {{gold: {{target: 2s}}}}
streams: {{numbers: {{schema: {{n: long}}}}}}
queries: {{all: {{class: gold, sql: SELECT n FROM numbers, sink: noop}}}}
"""
    )
    command = ["control", "serve", str(tmp_path / "pipeline.yaml"), "--run", str(tmp_path / "served")]
    code = f"import sys; from penstock.cli import main; sys.exit(main({command!r}))"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == f"serving classes gold at unix://{tmp_path}/control\n"
        client = ControlClient(f"unix://{tmp_path}/control")
        config = json.loads(until(lambda: answer(client, {"op": "config"}))["config"])
        client.request({"op": "stop"})
        assert process.wait(60) == 0
    assert config["log"] == str(tmp_path / "logs")
    assert config["classes"]["gold"]["target"] == 2.0
    assert not (tmp_path / "runs").exists(), "the pipeline's own record is made by `penstock run`"
    assert (tmp_path / "served" / "report.json").exists()
    (tmp_path / "pipeline.yaml").write_text("log: logs\nclasses: {gold: {target: 2s}}\nqueries: {}\n")
    assert main(["control", "serve", str(tmp_path / "pipeline.yaml")]) == 2
    assert "streams is required" in capsys.readouterr().err


def answer(client: ControlClient, message: dict[str, str]) -> dict[str, Any] | None:
    """What a control plane answers; `None` while it only starts."""
    try:
        return client.request(message)
    except ControlSilentError:
        return None
