"""The control plane as a child of the driver is replaced when it is dead, and when it is stuck. No JVM."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.waits import until

from penstock.config.flow import load_flow_config
from penstock.host.client import ControlClient, ControlSilentError
from penstock.spark.driver import agent
from penstock.spark.driver.agent import ControlProcess
from penstock.testing import ManualClock


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


class Silent:
    """A connection to a control plane that never answers."""

    def request(self, message: dict[str, str]) -> dict[str, str]:
        raise ControlSilentError("an answer", f"no answer to {message['op']}", "none")


def test_one_is_stuck_after_ten_seconds_without_an_answer_as_the_page_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    timer = ManualClock(100.0)
    monkeypatch.setattr(agent, "time", SimpleNamespace(monotonic=timer))
    control = object.__new__(ControlProcess)  # without a process
    control._pings, control._silent_since_s, control._unanswered = Silent(), None, 0  # type: ignore[assignment]
    for _ in range(10):
        assert not control._is_stuck()
        timer.advance(1.0)
    assert control._is_stuck()
    page = (Path(__file__).parents[2] / "docs" / "how-it-works.md").read_text(encoding="utf-8")
    assert "after 10 s the agent replaces it" in page


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
