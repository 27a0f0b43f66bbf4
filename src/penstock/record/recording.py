"""Records a control plane's run; the control plane must go on even if recording fails."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from penstock.control.decide.cycle import Step
from penstock.control.state.guard import PASSES, text_of
from penstock.record.rundir import RunDirectory

_log = logging.getLogger(__name__)


class LiveRecorder:
    """Records until writing fails; the record then ends there, and queries stay governed."""

    def __init__(self, run: RunDirectory) -> None:
        self._run = run
        self._ended = False

    def follow(self, managers: Callable[[], Mapping[str, object]]) -> None:
        """Sets the function that gives the managers by class; each part of the record begins with them."""
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
        """Ends the record and writes the closing report, even if the record was cut off."""
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
        except PASSES:
            raise
        except BaseException as error:  # no error of the record, or of a manager's snapshot, may stop a query
            self._ended = True
            self._run.abandon()
            _log.warning("the run is not recorded any further; queries stay governed: %s", text_of(error))
