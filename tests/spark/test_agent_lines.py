"""A line to the control plane belongs to one thread: two that share it would take each other's answers."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

from penstock.spark.driver.agent import Agent
from penstock.spark.driver.task_events import Cores, JobTasks, LastStage


class Line:
    """Remembers which threads use it."""

    def __init__(self) -> None:
        self.threads: set[str] = set()
        self.said: list[str] = []

    def request(self, message: dict[str, Any]) -> dict[str, Any]:
        self.threads.add(threading.current_thread().name)
        self.said.append(message["op"])
        return {}


class Looks:
    """Lets the agent look once."""

    def __init__(self) -> None:
        self.left = 1

    def wait(self, seconds: float) -> bool:
        self.left -= 1
        return self.left < 0


def test_each_thread_that_tells_the_control_plane_something_has_a_line_of_its_own() -> None:
    agent: Any = Agent.__new__(Agent)
    agent._line, agent._other_line, agent._own_line = lines = Line(), Line(), Line()
    agent._flow = SimpleNamespace(driver="d", control=None)
    agent._tokens, agent._is_up_to_date, agent._cores = {"run": ["token"]}, True, None
    agent._stop, agent._check_queries = Looks(), lambda: None

    def hears() -> None:
        for event in (Cores(4), LastStage("run", 1), JobTasks("run", 1, 2, 0.5, 1.0)):
            agent._heard(event)

    threads = [
        threading.Thread(target=hears, name="events"),
        threading.Thread(target=agent._ended, args=(1, {}), name="reports"),
        threading.Thread(target=agent._run, name="agent"),
    ]
    for thread in threads:
        thread.start()
        thread.join()
    assert [line.threads for line in lines] == [{"events"}, {"reports"}, {"agent"}]
    assert [line.said for line in lines] == [["cores", "last_stage", "job"], ["dropped"], ["cores"]]
