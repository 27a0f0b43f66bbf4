"""The control plane as a child of the driver is replaced when it is dead, and when it is stuck. No JVM."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.waits import until

from penstock.config.flow import load_flow_config
from penstock.host.client import ControlClient
from penstock.spark.driver import agent
from penstock.spark.driver.agent import ControlProcess


@pytest.fixture
def control(tmp_path: Path) -> Iterator[ControlProcess]:
    config = load_flow_config({"log": tmp_path, "classes": {"gold": {"target": "2s"}}})
    made = ControlProcess(config)
    yield made
    made.stop()


def answers(control: ControlProcess) -> bool:
    client = ControlClient(control.address, 60.0)
    try:
        return "status" in client.request({"op": "status"})
    finally:
        client.close()


def test_one_that_answers_is_left_alone(control: ControlProcess) -> None:
    pid = control.pid
    for _ in range(20):
        assert not control.revive()
    assert control.pid == pid


def test_one_that_is_dead_is_replaced(control: ControlProcess) -> None:
    pid = control.pid
    os.kill(pid, signal.SIGKILL)
    until(control.revive, "another control plane")
    assert control.pid != pid
    assert answers(control)


def test_one_that_lives_and_does_not_answer_is_replaced(
    control: ControlProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent, "SILENT_S", 0.5)
    control._pings.timeout_s = 0.1
    pid = control.pid
    os.kill(pid, signal.SIGSTOP)
    until(control.revive, "another control plane")
    assert control.pid != pid
    assert answers(control)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_one_that_was_silent_for_a_moment_is_left_alone(
    control: ControlProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    control._pings.timeout_s = 0.1
    pid = control.pid
    os.kill(pid, signal.SIGSTOP)
    monkeypatch.setattr(agent, "SILENT_S", 1e9)
    for _ in range(agent.LEAST_PINGS + 1):
        assert not control.revive()
    os.kill(pid, signal.SIGCONT)
    until(lambda: not control.revive() and control._unanswered == 0, "an answer")
    assert control.pid == pid
