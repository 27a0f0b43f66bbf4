"""The interface of a run's record, and how lines of the engine are written into a record."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from penstock.control.core.instructions import ManagerChanged
from penstock.control.decide.cycle import Recorder, Step
from penstock.control.measure.lines import ShedLine, SicLine


class RunRecorder(Recorder, Protocol):
    """Keeps the record of a run, for example in a run directory."""

    def record_change(self, cls: str, observation_id: int, manager: Mapping[str, object]) -> None:
        """Keeps that a class has another manager from an observation on."""
        ...

    def record_sic(self, line: Mapping[str, object]) -> None:
        """Keeps the SIC of all queries at one moment."""
        ...

    def record_shedding(self, line: Mapping[str, object]) -> None:
        """Keeps what a class's shedder chose."""
        ...


def write_line(recorder: RunRecorder, line: Step | SicLine | ShedLine | ManagerChanged) -> None:
    """Writes a line of the engine into a record."""
    match line:
        case Step():
            recorder.record(line)
        case SicLine():
            recorder.record_sic(line.to_json())
        case ShedLine():
            recorder.record_shedding(line.to_json())
        case ManagerChanged():
            recorder.record_change(line.cls, line.observation_id, line.manager)
