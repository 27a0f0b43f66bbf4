"""A run directory beside a control plane that must go on whatever becomes of its record."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from penstock.control.decide.cycle import Step
from penstock.record.rundir import RunDirectory

_log = logging.getLogger(__name__)


class LiveRecorder:
    """Records until the disk refuses; the record is then cut off there, and queries stay governed."""

    def __init__(self, run: RunDirectory) -> None:
        self._run = run
        self._ended = False

    def follow(self, managers: Callable[[], Mapping[str, object]]) -> None:
        """Says how to look at the managers, by class; a part of the record begins with their states."""
        self._run.managers = managers

    def record(self, step: Step) -> None:
        self._try(lambda: self._run.record(step))

    def record_change(self, cls: str, observation_id: int, manager: Mapping[str, object]) -> None:
        self._try(lambda: self._run.record_change(cls, observation_id, manager))

    def record_sic(self, line: Mapping[str, object]) -> None:
        self._try(lambda: self._run.record_sic(line))

    def record_shedding(self, line: Mapping[str, object]) -> None:
        self._try(lambda: self._run.record_shedding(line))

    def finish(self, report: Mapping[str, object]) -> None:
        """Ends the record and writes the closing report, also of a record that was cut off."""
        self._try(self._run.close)
        try:
            self._run.write_report(report)
        except OSError as error:
            _log.warning("the closing report is not written: %s", error)

    def _try(self, write: Callable[[], None]) -> None:
        if self._ended:
            return
        try:
            write()
        except Exception as error:  # whatever it is, a record is not worth a query
            self._ended = True
            self._run.abandon()
            _log.warning("the run is not recorded any further; queries stay governed: %s", error)
